"""initial_state on real ranks: healthy worlds, models that differ, and a DDP that does not broadcast."""

from functools import partial
from typing import Any
from unittest import mock

import pytest

from ddp_doctor.checks.ddp import initial_state
from ddp_doctor.checks.ddp.initial_state import CHECK
from ddp_doctor.facts.ddp.model_state import InitialState
from ddp_doctor.model.choices import Confidence, Severity
from tests.checks.judged_ranks import blamed, judge_by, only, record

pytestmark = pytest.mark.ranks

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)


# Scenarios: the code of each rank.


def layers(*sizes: tuple[str, int, int]) -> Any:
    import torch

    return torch.nn.ModuleDict({name: torch.nn.Linear(given, made) for name, given, made in sizes})


def usual() -> Any:
    return layers(("first", 4, 4), ("second", 4, 4))


def odd_model(how: str) -> Any:
    built = {
        "extra head": (("first", 4, 4), ("second", 4, 4), ("head", 4, 2)),
        "no head": (("first", 4, 4),),
        "order": (("second", 4, 4), ("first", 4, 4)),
        "shape": (("first", 4, 4), ("second", 4, 5)),
        "name": (("first", 4, 4), ("last", 4, 4)),
    }
    model = layers(*built[how]) if how in built else usual()
    changed(model, how)
    return model


def changed(model: Any, how: str) -> None:
    import torch

    if how == "dtype":
        model["second"].bfloat16()
    elif how == "requires_grad":
        model["first"].weight.requires_grad_(False)
    elif how == "tied":
        model["second"].weight = model["first"].weight
    elif how == "strides":
        model["first"].weight = torch.nn.Parameter(torch.zeros(4, 4).t())
    elif how in ("buffer", "transient"):
        model["first"].register_buffer("seen", torch.zeros(3), persistent=how == "buffer")


def models_differ(ctx: Any, how: str, on: tuple[int, ...], rest: str = "") -> InitialState:
    return initial_state.wrap_and_compare(ctx, odd_model(how) if ctx.rank in on else odd_model(rest))


def order_from_a_set(ctx):
    """Use names from a set, whose order depends on hashes that differ between processes."""
    from hashlib import md5

    names = ["first", "second", "third", "fourth"]
    names.sort(key=lambda name: md5(f"{ctx.rank}{name}".encode()).digest())
    return initial_state.wrap_and_compare(ctx, layers(*((name, 4, 4) for name in names)))


def probe_with(ctx: Any, sync_module_states: Any) -> InitialState:
    with mock.patch("torch.nn.parallel.distributed._sync_module_states", sync_module_states):
        return initial_state.probe(ctx)


def original() -> Any:
    from torch.nn.parallel import distributed

    return vars(distributed)["_sync_module_states"]


def never_broadcasts(ctx):
    return probe_with(ctx, lambda **_: None)


def broadcasts_from_rank_2(ctx):
    broadcast = original()
    return probe_with(ctx, lambda **options: broadcast(**{**options, "src": 2}))


def leaves_out(ctx, name, on):
    broadcast = original()

    def all_but_one(module: Any, **options: Any) -> None:
        state = dict(module.named_parameters()) | dict(module.named_buffers())
        own = state[name].detach().clone()
        broadcast(module=module, **options)
        if ctx.rank in on:
            state[name].data.copy_(own)

    return probe_with(ctx, all_but_one)


def is_told_not_to_synchronise(ctx):
    """A subclass that hands ``init_sync=False`` on, and hides the option."""
    from torch.nn.parallel import DistributedDataParallel

    class Unsynchronized(DistributedDataParallel):
        def __init__(self, module: Any, **options: Any) -> None:
            super().__init__(module, **{**options, "init_sync": False})

    with mock.patch("torch.nn.parallel.DistributedDataParallel", Unsynchronized):
        return initial_state.probe(ctx)


# Healthy worlds


@pytest.mark.parametrize("on", [(1, 3), (0, 1, 2), (0, 1, 2, 3)], ids=str)
def test_healthy_ranks_start_from_their_first_rank_without_finding(ranks, on):
    facts = ranks.facts(initial_state.probe, on=on)

    assert judge(recording(facts, on)) == []
    assert {fact.source_rank for fact in facts} == {on[0]}
    assert all(fact.after == facts[0].before for fact in facts)


def test_different_seeds_show_the_broadcast_of_every_parameter_and_buffer(ranks):
    first, *others = ranks.facts(initial_state.probe)

    assert len(first.before) == 10
    for fact in others:
        assert {name for name in fact.before if fact.before[name] == first.before[name]} == set()


def test_one_seed_for_all_ranks_is_needed_for_equal_models_without_ddp(ranks):
    facts = ranks.facts(initial_state.probe)

    assert len({fact.same_seed for fact in facts}) == 1
    assert len({initial_state.whole(fact.before) for fact in facts}) == 4


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    results = ranks.run(initial_state.probe)

    assert len({one.steps for one in results}) == 1
    assert [name for name, _ in results[0].steps] == ["compare_models", *["ddp_construct"] * 3]


def test_the_broadcast_is_measured(ranks):
    facts = ranks.facts(initial_state.probe)
    found = {one.name: one for one in initial_state.measurements(recording(facts))}

    assert found["initial_state_broadcast"].labels == {"ranks": 4, "bytes": 7944}
    assert 0 <= found["initial_state_broadcast"].value < 1
    assert found["initial_state_equal_by_seed"].value == 4


def test_equal_models_that_are_built_differently_have_no_finding(ranks):
    for how in ("", "tied", "strides", "requires_grad", "buffer"):
        facts = ranks.facts(models_differ, how, (0, 1, 2, 3))
        assert judge(recording(facts)) == [], how
        assert all(fact.wrap_s is not None for fact in facts)


# Models that differ: told before anything is wrapped


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("extra head", "DD740", "parameter head.weight and 1 more are missing on rank"),
        ("no head", "DD740", "parameter second.weight and 1 more are missing"),
        ("shape", "DD740", "parameter second.weight and 1 more have shape (5, 4) on rank"),
        ("dtype", "DD740", "parameter second.weight and 1 more have dtype bfloat16 on rank"),
        ("requires_grad", "DD740", "parameter first.weight has requires_grad False on rank"),
        ("tied", "DD740", "parameter second.weight is tied to first.weight on rank"),
        ("strides", "DD740", "first.weight has memory format strides (1, 4) on rank"),
        ("order", "DD741", "parameter number 0 is second.weight on rank"),
        ("name", "DD741", "parameter second.weight of rank"),
        ("buffer", "DD742", "buffer first.seen is missing on rank"),
    ],
)
def test_odd_rank_of_four_is_reported_before_its_model_is_wrapped(ranks, rank, how, code, words):
    results = ranks.run(models_differ, how, (rank,))
    facts = [one.value for one in results]
    finding = only(judge(recording(facts)), code)

    peer = 1 if rank == 0 else 0
    assert blamed(finding) == [rank]
    assert f"model differs between rank {rank} (node{rank}) and rank {peer} (node{peer}): " in finding.title
    assert words in finding.title
    assert all("ddp_construct" not in dict(one.steps) for one in results)
    assert all(fact.after == {} for fact in facts)


def test_other_names_in_the_same_places_are_a_warning(ranks):
    finding = only(judge(recording(ranks.facts(models_differ, "name", (1,)))), "DD741")

    assert finding.severity is Severity.WARNING


def test_a_buffer_that_only_some_save_is_a_warning(ranks):
    finding = only(judge(recording(ranks.facts(models_differ, "transient", (1,), "buffer"))), "DD742")

    assert finding.severity is Severity.WARNING
    assert "persistent False on rank" in finding.title


@pytest.mark.parametrize(("on", "odd"), [((0, 1), (1,)), ((0, 1, 2, 3), (1, 3))], ids=str)
def test_differing_pair_without_a_majority_is_reported_without_blame(ranks, on, odd):
    facts = ranks.facts(models_differ, "no head", odd, on=on)
    finding = only(judge(recording(facts, on)), "DD740")

    assert blamed(finding) == []
    assert "model differs between rank 1 (node1) and " in finding.title
    assert "Compare rank 1 (node1)" in finding.detail
    assert "There is no majority, so it is unknown which is wrong" in finding.detail
    assert finding.confidence is Confidence.LIKELY


def test_order_from_a_set_is_found_without_blaming_a_rank(ranks):
    findings = judge(recording(ranks.facts(order_from_a_set)))

    assert {finding.code for finding in findings} == {"DD741"}
    assert all(blamed(finding) == [] for finding in findings)


# A DDP that does not broadcast


@pytest.mark.parametrize("scenario", [never_broadcasts, is_told_not_to_synchronise])
def test_ddp_that_never_broadcasts_blames_no_rank(ranks, scenario):
    finding = only(judge(recording(ranks.facts(scenario))), "DD743")

    assert "on rank 1 (node1), rank 2 (node2) and rank 3 (node3) differ from rank 0's: " in finding.title
    assert finding.title.endswith("each rank kept its own values")
    assert blamed(finding) == []


def test_values_of_a_wrong_rank_are_reported(ranks):
    findings = judge(recording(ranks.facts(broadcasts_from_rank_2)))

    assert {finding.code for finding in findings} == {"DD743"}
    assert any("they hold rank 2's values" in finding.title for finding in findings)
    assert all(blamed(finding) == [] for finding in findings)


@pytest.mark.parametrize("name", ["low", "frozen", "strided", "weight", "running", "counts", "step", "scale", "mask"])
def test_tensor_that_one_rank_does_not_receive_identifies_both(ranks, name):
    finding = only(judge(recording(ranks.facts(leaves_out, name, (2,)))), "DD743")

    assert blamed(finding) == [2]
    assert f"model: {'head.weight, ' if name == 'weight' else ''}{name} on rank 2 (node2)." in finding.detail


def test_receiver_of_two_ranks_is_not_blamed(ranks):
    facts = ranks.facts(leaves_out, "step", (1,), on=(0, 1))
    finding = only(judge(recording(facts)), "DD743")

    assert blamed(finding) == []
