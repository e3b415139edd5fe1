"""user_model on real ranks: models that work with DDP have no finding, and each injected defect is reported."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.features.model.user_model.check import CHECK, probe
from ddp_doctor.features.model.user_model.facts import UserModel
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding
from tests.checks.judged_ranks import blamed, judge_by, only, record
from tests.models import __file__ as models
from tests.rank_harness import Ranks, Result

pytestmark = pytest.mark.ranks
recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


MODELS = Path(models).parent


def look(ctx: Any, name: str) -> UserModel:
    ctx.model = f"tests.models.{name}"
    return probe(ctx)


def findings_of(ranks: Ranks, name: str, on: tuple[int, ...] = (0, 1)) -> list[Finding]:
    return judge(recording(seen(ranks, name, on), on))


#: Results by model and ranks. A run takes 30 ms on each rank, so tests share it.
_SEEN: dict[tuple[str, tuple[int, ...]], list[Result]] = {}


def results(ranks: Ranks, name: str, on: tuple[int, ...] = (0, 1)) -> list[Result]:
    if (name, on) not in _SEEN:
        _SEEN[name, on] = ranks.run(look, name, on=on)
    return _SEEN[name, on]


def seen(ranks: Ranks, name: str, on: tuple[int, ...] = (0, 1)) -> list[Any]:
    assert [one.error for one in results(ranks, name, on)] == [None] * len(on)
    return [one.value for one in results(ranks, name, on)]


def lines_of(finding: Finding) -> list[str | None]:
    return [culprit.name for culprit in finding.culprits if culprit.kind == "file"]


# Models that work with DDP


@pytest.mark.parametrize("on", [(0,), (0, 1), (0, 1, 2, 3)], ids=str)
def test_convolutional_net_with_batch_norm_has_no_finding(ranks, on):
    facts = seen(ranks, "healthy:conv_net", on)
    assert judge(recording(facts, on)) == []
    for fact in facts:
        assert (fact.stopped, fact.repeats, fact.compared_elements) == (None, True, fact.elements)
        assert [local.step for local in fact.local] == [0, 1]
        assert fact.batch_norms.samples == 16


@pytest.mark.parametrize(
    "name", ["transformer", "shared_branch", "odd_ones", "unlike_at_first", "uneven_batches", "static_graph"]
)
def test_healthy_model_has_no_finding(ranks, name):
    facts = seen(ranks, f"healthy:{name}")
    assert judge(recording(facts, (0, 1))) == []
    assert all(fact.stopped is None for fact in facts)


@pytest.mark.parametrize("name", [
    "adversaries", "recurrent", "recurrent_packed", "uneven_experts", "rotary", "parametrised",
    "normalised_by_hooks", "data_class_outputs", "with_average", "frozen_backbone", "rounded_weights",
    "checkpointed", "dropping_by_numpy", "encoded", "of_graphs", "of_graphs_and_more", "of_lengths",
    "watched_on_the_first_rank",
])  # fmt: skip
def test_realistic_model_has_no_finding(ranks, name):
    facts = seen(ranks, f"as_written:{name}", (0, 1, 2))
    assert judge(recording(facts, (0, 1, 2))) == []
    assert [(fact.stopped, fact.repeats) for fact in facts] == [(None, True)] * 3


def with_17_seconds(ctx: Any, name: str) -> UserModel:
    ctx.deadline = ctx.clock() + 17.0
    return look(ctx, name)


def test_slow_first_forward_does_not_stop_the_check(ranks):
    facts = ranks.facts(with_17_seconds, "healthy:slow_at_first", on=(0, 1))
    assert [fact.stopped for fact in facts] == [None, None]


def next_numbers(ctx: Any) -> tuple[bool, ...]:
    import random

    import numpy as np
    import torch

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    states = (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())
    look(ctx, "as_written:dropping_by_numpy")
    after = (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())
    return tuple(one == other for one, other in zip(states, after, strict=True))


def test_random_generators_are_restored(ranks):
    assert ranks.facts(next_numbers, on=(0, 1)) == [(True, True, True)] * 2


@pytest.mark.parametrize("name", ["of_lengths", "of_graphs"])
def test_batches_of_different_structure_are_not_treated_as_the_same(ranks, name):
    (fact, *_) = seen(ranks, f"as_written:{name}", (0, 1, 2))
    assert fact.no_same_batch == "the ranks' batches differ in more than the values of their tensors"
    assert (fact.same_batch_loss, fact.same_batch_peer) == (None, None)


def test_unused_experts_are_accepted_with_find_unused_parameters(ranks):
    facts = ranks.facts(look, "healthy:experts", on=(0, 1, 2))

    assert any(local.unused.count or local.unused_everywhere.count for fact in facts for local in fact.local)
    assert [found for found in judge(recording(facts, (0, 1, 2))) if found.severity is not Severity.INFO] == []
    assert all(fact.stopped is None for fact in facts)


def test_unused_experts_are_reported_without_find_unused_parameters(ranks):
    found = findings_of(ranks, "planted:experts_not_allowed_for", on=(0, 1, 2))

    assert {one.code for one in found if one.severity is Severity.ERROR} & {"DD775", "DD776"}
    assert "experts." in found[0].title
    assert "every rank" not in found[0].title


def test_lazy_modules_are_reported_as_uninitialized(ranks):
    found = only(findings_of(ranks, "planted:lazy"), "DD771")

    assert "uninitialized" in found.detail


def test_synchronized_batch_norm_cannot_be_checked_on_a_cpu(ranks):
    for one in results(ranks, "healthy:synchronised_batch_norm"):
        assert "model.fact.Failed" in (one.error or "")
        assert "which works only on GPUs" in (one.error or "")


def test_model_without_batches_is_only_wrapped(ranks):
    facts = ranks.facts(look, "healthy:conv_net_alone", on=(0, 1))
    assert judge(recording(facts, (0, 1))) == []
    assert all(fact.buckets and not fact.has_batch and not fact.compared_elements for fact in facts)


def test_buckets_are_recorded_after_the_first_step_with_parameter_names(ranks):
    (fact, _) = seen(ranks, "healthy:conv_net")
    (bucket,) = fact.buckets.buckets
    assert fact.buckets.rebuilt
    assert (bucket.bytes, bucket.parameters) == (fact.gradient_bytes, fact.trainable)
    assert (bucket.first, bucket.last) == ("head.bias", "body.0.bias")


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    of_ranks = results(ranks, "as_written:encoded", (0, 1, 2))
    assert len({one.steps for one in of_ranks}) == 1


# Injected defects


@pytest.mark.parametrize(
    ("name", "code", "ranks_blamed", "words"),
    [
        ("rank_branch", "DD776", [1], "extra.weight and extra.bias"),
        ("additional_layer", "DD773", [1], "more.weight"),
        ("not_a_number", "DD779", [1], "loss"),
        ("scaled_by_rank", "DD781", [1], "returns different losses on rank 1 (node1) and rank 0"),
        ("raises", "DD771", [1], "ValueError at planted.py:"),
        ("normalised_by_rank", "DD778", [1], "layer.weight"),
        ("unused_head", "DD775", [], "extra.weight and extra.bias"),
        ("on_meta", "DD774", [], "Parameter extra.weight"),
        ("input_on_meta", "DD774", [], "Input "),
        ("two_samples", "DD782", [], "sees only 2 samples per rank (1 layer, body.1)"),
        ("ignored", "DD777", [], "head.weight"),
        ("twice", "DD777", [], "layer.weight and 1 more"),
        ("restless", "DD780", [], "in a second pass"),
        ("no_parameters", "DD784", [], "has no parameters"),
        ("all_frozen", "DD784", [], "none requires a gradient"),
        ("detached", "DD771", [], "backward"),
        ("one_value_a_channel", "DD771", [], "ValueError"),
        ("starts_the_group_itself", "DD771", [], "starts_the_group_itself raises ValueError at planted.py:"),
        ("raises_without_words", "DD771", [], "raises Wordless at planted.py:"),
        ("searches_in_vain", "DD783", [], "does not need find_unused_parameters=True"),
        ("hooked_on_one_rank", "DD781", [1], "only rank 1 has a hook on head.weight at planted.py:"),
        ("hooked_afterwards_on_one_rank", "DD781", [1], "different gradients of head.weight on rank 1"),
        ("frozen_in_the_forward", "DD776", [1], "clears requires_grad of extra.weight and extra.bias"),
        ("thawed", "DD777", [], "extra.weight and extra.bias"),
        ("thawed_on_one_rank", "DD777", [1], "extra.weight and extra.bias"),
        ("made_late", "DD777", [], "late.weight and late.bias"),
        ("draws_from_its_own", "DD780", [], "a different gradient in a second pass"),
    ],
)
def test_injected_defect_is_reported_for_its_ranks(ranks, name, code, ranks_blamed, words):
    on = (0, 1, 2) if ranks_blamed else (0, 1)
    finding = only(findings_of(ranks, f"planted:{name}", on), code)
    assert words in finding.title
    assert [rank for rank in blamed(finding) if rank is not None] == ranks_blamed
    assert "None" not in [remedy.cost for remedy in finding.remedies]


def test_instance_norm_with_two_samples_has_no_finding(ranks):
    assert findings_of(ranks, "planted:two_samples_without_batch_norm") == []


def test_unequal_graphs_show_the_first_different_call_with_its_line(ranks):
    finding = only(findings_of(ranks, "planted:rank_branch", (0, 1, 2)), "DD776")
    assert "rank 1 calls head at healthy.py:" in finding.title
    assert "but rank 0 calls extra at healthy.py:" in finding.title
    assert len(lines_of(finding)) == 1


def test_unequal_graphs_of_two_ranks_blame_neither(ranks):
    finding = only(findings_of(ranks, "planted:rank_branch"), "DD776")
    assert [rank for rank in blamed(finding) if rank is not None] == []


def test_parameters_that_drift_on_most_ranks_blame_no_rank(ranks):
    found = findings_of(ranks, "planted:reset_by_hooks", (0, 1, 2))

    assert {one.code for one in found} == {"DD775", "DD778"}
    assert [rank for one in found for rank in blamed(one) if rank is not None] == []


@pytest.mark.parametrize("name", ["hooked_on_the_first_rank", "scaled_on_the_first"])
def test_first_rank_with_different_results_is_blamed_instead_of_the_majority(ranks, name):
    finding = only(findings_of(ranks, f"planted:{name}", (0, 1, 2)), "DD781")
    assert [rank for rank in blamed(finding) if rank is not None] == [0]
    assert "on rank 0 (node0) and rank 1 (node1)" in finding.title


@pytest.mark.parametrize("name", ["hooked_on_one_rank", "hooked_on_the_first_rank", "scaled_by_rank"])
def test_neither_of_two_ranks_with_different_results_is_blamed(ranks, name):
    finding = only(findings_of(ranks, f"planted:{name}"), "DD781")
    assert [rank for rank in blamed(finding) if rank is not None] == []


@pytest.mark.parametrize(("name", "code"), [("rank_branch", "DD776"), ("unused_head", "DD775")])
def test_unused_parameters_are_info_with_find_unused_parameters(ranks, name, code):
    finding = only(findings_of(ranks, f"planted:{name}_allowed"), code)
    assert finding.severity is Severity.INFO


def test_exception_on_one_rank_stops_all_and_credentials_are_not_recorded(ranks):
    facts = seen(ranks, "planted:raises", (0, 1, 2))
    assert [fact.stopped for fact in facts] == ["forward"] * 3
    assert [fact.trouble is not None for fact in facts] == [False, True, False]
    assert "abc" not in json.dumps([fact.recorded() for fact in facts])


def test_failure_only_in_ddp_ends_the_rank_with_its_message(ranks):
    for one in results(ranks, "planted:dislikes_ddp"):
        assert "StepFailed: RuntimeError at planted.py:" in (one.error or "")
        assert ": Expected to mark a variable ready only once" in (one.error or "")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nowhere:make", "found no module 'tests.models.nowhere'"),
        ("planted:nothing", "planted.py has no function 'nothing'"),
        ("planted:wraped", "has no function 'wraped'; did you mean 'wrapped'?"),
        ("planted:A_MODEL", "is a model; name a callable that returns a model"),
        ("planted:NO_CALLABLE", "is of type int; name a callable"),
        ("planted:needs_an_argument", "missing a required argument: 'width'"),
        ("planted:gives_a_number", "returns type int"),
        ("planted:batch_is_text", "returns type str without any tensor"),
        ("planted:a_batch_itself", "type Tensor as make_batch; it must be a function make_batch(step)"),
        (
            "planted:batch_without_step",
            "make_batch of tests.models.planted:batch_without_step must take the step, as in `def make_batch(step)`",
        ),
        ("planted:four_things", "returns a tuple of 4"),
        ("planted:misspelt", "returns a dict with the unknown key 'make_batches'; known keys: model, make_batch"),
        ("planted:no_model", "returns type dict; it must return a torch.nn.Module"),
        ("planted:loss_of_torch", "type CrossEntropyLoss as loss; it must be a function loss(output, batch)"),
        ("planted:inputs_and_target", "make_batch returns (inputs, target), but forward(images) takes no target"),
        ("planted:target_is_a_number", "make_batch returns (inputs, target)"),
        ("planted:target_is_words", "make_batch returns (inputs, target)"),
        ("planted:target_is_none", "make_batch returns (inputs, target)"),
        ("planted:target_as_mask", "but forward(given, mask) takes no target"),
        ("planted:target_as_switch", "but forward(given, scaled) takes no target"),
        ("planted:target_as_state", "raises ValueError at planted.py"),
        ("planted:labels_in_a_dict", "forward(images) does not take what make_batch returns, 'images', 'labels'"),
        ("planted:loss_is_a_number", "loss(output, batch) returns type float"),
        ("planted:loss_of_each", "loss(output, batch) returns a tensor of shape [4]; return its mean()"),
        ("planted:loss_detached", "returns a tensor without a gradient"),
    ],
)
def test_unusable_factory_is_refused_with_a_reason(ranks, name, sentence):
    (one,) = ranks.run(look, name, on=(0,))
    assert "model.fact.Misused" in (one.error or "")
    assert sentence in " ".join((one.error or "").replace(str(MODELS) + "/", "").split())


@pytest.mark.parametrize("name", [
    "target_for_the_loss", "labels_for_the_loss", "inputs_by_name_and_target", "several_inputs_and_target",
    "by_attributes", "optional_labels", "boolean_mask",
])  # fmt: skip
def test_forward_gets_its_part_of_a_batch_and_the_loss_gets_all_of_it(ranks, name):
    (fact,) = seen(ranks, f"healthy:{name}", (0,))
    assert judge(recording([fact], (0,))) == []
    assert (fact.stopped, fact.compared_elements) == (None, fact.elements)


def test_loss_that_raises_is_reported_with_its_line(ranks):
    finding = only(findings_of(ranks, "planted:loss_fails", (0,)), "DD771")
    assert "Your loss raises IndexError at planted.py:" in finding.title


def test_factory_unusable_on_only_one_rank_blames_that_rank(ranks):
    finding = only(findings_of(ranks, "planted:wrong_on_one_rank"), "DD771")
    assert "is unusable on rank 1 (node1): " in finding.title
    assert "returns type NoneType" in finding.title
    assert [rank for rank in blamed(finding) if rank is not None] == [1]


def named_by_node(ctx):
    return look(ctx, "healthy:conv_net" if ctx.rank != 2 else "healthy:transformer")


def without_a_name(ctx):
    ctx.model = "" if ctx.rank == 1 else "tests.models.healthy:conv_net"
    return probe(ctx)


@pytest.mark.parametrize(("scenario", "rank"), [(named_by_node, 2), (without_a_name, 1)])
def test_rank_with_another_model_is_blamed(ranks, scenario, rank):
    finding = only(judge(recording(ranks.facts(scenario))), "DD770")
    assert blamed(finding) == [rank]


@pytest.mark.parametrize("name", ["wrapped", "wrapped_and_compiled"])
def test_model_that_is_already_wrapped_is_refused(ranks, name):
    for one in ranks.run(look, f"planted:{name}"):
        assert "returns a model wrapped in DistributedDataParallel; return it unwrapped" in (one.error or "")
