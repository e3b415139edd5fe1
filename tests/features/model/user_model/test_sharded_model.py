"""user_model on real ranks with fully_shard models: correct models have no finding, each defect is reported."""

from functools import partial
from typing import Any

import pytest

from ddp_doctor.engine.asked import not_run
from ddp_doctor.features.model.user_model.check import CHECK
from ddp_doctor.features.model.user_model.facts import UserModel
from ddp_doctor.features.model.user_model.probing import sharding
from ddp_doctor.features.model.user_model.sharded_facts import Mesh
from ddp_doctor.features.model.user_model.work import yours
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.fact import Failed
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options
from tests.checks.judged_ranks import blamed, judge_by, only, record
from tests.features.model.user_model.test_user_model import look
from tests.rank_harness import Ranks
from tests.words import pairs

pytestmark = pytest.mark.ranks
judge = partial(judge_by, CHECK)


def seen(ranks: Ranks, name: str) -> list[Any]:
    results = ranks.run(look, name)
    assert [result.error for result in results] == [None] * 4
    return [result.value for result in results]


def planted(ranks: Ranks, name: str) -> Finding:
    return only(judge(record(CHECK, seen(ranks, f"sharded_planted:{name}"))), CODES[name])


CODES = pairs("""
    other_units=DD790 other_precision=DD790 other_resharding=DD790 other_mesh=DD790 bare_on_one_rank=DD790
    other_dtype=DD773 root_not_wrapped=DD793 ignored=DD793 added_afterwards=DD793 never_synchronised=DD794
    not_reduced_between_replicas=DD794 stale_shard=DD794 other_rate=DD794 optimizer_before=DD795
    optimizer_before_on_one_rank=DD795 over_a_part=DD796 keeps_a_part=DD797 keeps_a_part_silently=DD797
    rank_branch=DD776 root_before_its_layers=DD771 replicas_of_their_own=DD799
    leaves_a_part_of_the_batch_out=DD798 never_enters_the_step=DD798
""")


# Correct models


@pytest.mark.parametrize("name", [
    "plain", "plain_in_sgd", "hybrid", "in_bfloat16", "reduced_in_bfloat16", "clipped", "accumulating",
    "evaluating", "with_a_line_for_a_rank", "not_resharded", "tied", "frozen", "uneven", "offloaded", "compiled",
    "summed", "with_groups", "images",
])  # fmt: skip
def test_correct_sharded_model_has_no_finding_and_steps_like_one_rank(ranks, name):
    facts = seen(ranks, f"sharded:{name}")

    found = [finding for finding in judge(record(CHECK, facts)) if finding.severity is not Severity.INFO]
    assert found == []
    for fact in facts:
        assert (fact.stopped, fact.sharded.not_compared, fact.sharded.steps) == (None, None, 2)
        assert fact.sharded.loss == pytest.approx(fact.sharded.loss_alone, rel=1e-3)
        assert (fact.sharded.saved, fact.sharded.not_saved) == (True, None)


def test_gradients_that_the_job_averages_itself_may_stay_outside_of_sharding(ranks):
    facts = seen(ranks, "sharded_planted:ignored_and_reduced")

    assert [fact.sharded.outside.names for fact in facts] == [("head.weight",)] * 4
    assert judge(record(CHECK, facts)) == []


def test_layer_without_a_gradient_is_info_but_its_missing_state_a_warning(ranks):
    facts = seen(ranks, "sharded:with_unused_layer")

    found = {finding.code: finding for finding in judge(record(CHECK, facts))}
    assert {code: finding.severity for code, finding in found.items()} == {
        "DD775": Severity.INFO,
        "DD797": Severity.WARNING,
    }
    assert "DDP" not in found["DD775"].title
    assert "Missing optimizer state" in found["DD797"].title


def test_experts_unused_on_one_rank_are_info_if_fully_shard_allows_it(ranks):
    facts = seen(ranks, "sharded:with_experts")

    finding = only(judge(record(CHECK, facts)), "DD776")
    assert finding.severity is Severity.INFO
    assert "set_reduce_scatter_unused_params is set" in finding.detail
    assert {(fact.stopped, fact.sharded.steps) for fact in facts} == {(None, 2)}
    assert {fact.sharded.not_compared for fact in facts} == {"the ranks use different parameters"}


def test_fact_contains_the_sharding(ranks):
    fact = seen(ranks, "sharded:hybrid")[0]

    mesh = Mesh(names=("replicate", "shard"), shape=(2, 2), ranks=(0, 1, 2, 3))
    assert (fact.mesh, fact.sharded.meshes) == (mesh, (mesh,))
    assert (fact.sharded.root, fact.sharded.unit_count) == (True, 4)
    assert (fact.sharded.optimizer, fact.sharded.optimizer_given) == ("AdamW", False)


# Defects


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other_units", "parameter layers.0.norm.weight and 5 more have FSDP unit (the model) on rank"),
        ("other_precision", "have mixed precision parameters bfloat16 on rank"),
        ("other_resharding", "have reshard_after_forward False on rank"),
        ("other_mesh", "have mesh (dimension 0=4, ranks 3 2 1 0) on rank"),
        ("bare_on_one_rank", "have FSDP unit none on rank"),
        ("other_dtype", "have dtype bfloat16 on rank"),
    ],
)
def test_rank_that_wraps_differently_is_reported_before_a_hang(ranks, name, words):
    finding = planted(ranks, name)

    assert blamed(finding) == [1]
    assert words in finding.title


def test_parameters_without_a_sharding_unit_are_reported_with_the_reason(ranks):
    finding = planted(ranks, "root_not_wrapped")

    assert "embedding.weight and head.weight are not sharded" in finding.title
    assert "fully_shard() was not called on the model itself" in finding.title
    assert "no rank averages their gradients" in finding.detail
    assert finding.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("name", "title"),
    [("ignored", "head.weight is not sharded"), ("added_afterwards", "head.weight and head.bias are not sharded")],
)
def test_head_without_a_sharding_unit_is_reported_without_blaming_a_rank(ranks, name, title):
    finding = planted(ranks, name)

    assert finding.title == title
    assert set(blamed(finding)) == {None}


@pytest.mark.parametrize("name", ["never_synchronised", "not_reduced_between_replicas"])
def test_gradients_that_are_never_reduced_are_seen_in_the_first_step(ranks, name):
    finding = planted(ranks, name)

    assert finding.title.startswith("The first step leaves embedding.weight")
    assert finding.title.endswith("unchanged on every rank")
    assert set(blamed(finding)) == {None}


@pytest.mark.parametrize("name", ["stale_shard", "other_rate"])
def test_rank_with_a_different_optimizer_is_reported(ranks, name):
    finding = planted(ranks, name)

    assert [rank for rank in blamed(finding) if rank is not None] == [1]
    assert "Your optimizer updates embedding.weight" in finding.title


def test_optimizer_created_before_fully_shard_is_reported(ranks):
    assert blamed(planted(ranks, "optimizer_before")) == []
    assert blamed(planted(ranks, "optimizer_before_on_one_rank")) == [1]


def test_one_dimension_of_a_2d_mesh_is_reported_without_blaming_a_rank(ranks):
    finding = planted(ranks, "over_a_part")

    assert "is sharded over 2 of 4 ranks" in finding.title
    assert [evidence.text for evidence in finding.evidence] == ["sharded over ranks 0 1", "sharded over ranks 2 3"]


def test_trained_parameter_missing_in_the_checkpoint_is_reported(ranks):
    silent, strict = planted(ranks, "keeps_a_part_silently"), planted(ranks, "keeps_a_part")

    assert "head.weight of " in silent.title
    assert "Missing key(s) in state_dict" in strict.title
    assert (silent.severity, strict.severity) == (Severity.ERROR, Severity.WARNING)


def test_unit_skipped_by_one_rank_is_reported_with_its_line_before_a_hang(ranks):
    finding = planted(ranks, "rank_branch")

    assert 1 in blamed(finding)
    assert "rank 1 calls layers.1 at sharded_planted.py" in finding.title
    assert "the job hangs" in finding.detail


def test_wrong_order_of_fully_shard_is_reported_and_the_fix_gives_the_order(ranks):
    finding = planted(ranks, "root_before_its_layers")

    assert "units first and the containing model last" in finding.remedies[0].summary


def test_replicas_with_other_start_values_are_reported_not_the_optimizer(ranks):
    finding = planted(ranks, "replicas_of_their_own")

    assert set(blamed(finding)) == {None}
    assert (
        "starts with other parameters on the replica of rank 2 (node2) and rank 3 (node3) than on the first rank: emb"
        in finding.title
    )


@pytest.mark.parametrize("name", ["leaves_a_part_of_the_batch_out", "never_enters_the_step"])
def test_rank_that_calls_the_model_less_often_is_reported_before_a_hang(ranks, name):
    finding = planted(ranks, name)

    assert 1 in blamed(finding)
    assert "In your step, rank 1 makes no further call" in finding.title
    assert ", but rank 0 calls (the model) at sharded" in finding.title


def test_step_that_does_not_train_is_not_healthy(ranks):
    facts = seen(ranks, "sharded_planted:never_steps")

    assert {fact.sharded.not_compared for fact in facts} == {
        "step(model, optimizer, batch) does not change any parameter; it must update the model"
    }


# Values that could not be checked


def without_policies(ctx: Any, name: str) -> UserModel:
    """Run with a torch that has other private attributes."""
    sharding.policy = lambda unit: None
    return look(ctx, name)


def test_torch_without_sharding_details_makes_the_verdict_unsure(ranks):
    known = sharding.policy
    facts = ranks.facts(without_policies, "sharded:plain")
    ranks.run(put_back)

    assert sharding.policy is known
    reason = "this torch does not tell how fully_shard was called"
    assert [fact.sharded.not_compared for fact in facts] == [reason] * 4
    whole = record(CHECK, facts)
    assert judge(whole) == []
    asked = whole.model_copy(update={"options": Options(model="net:make")})
    assert [each.why for each in not_run(asked, ())] == [
        f"its steps were not compared with those of a single rank: {reason}"
    ]


def put_back(ctx: Any) -> None:
    import importlib

    importlib.reload(sharding)


def test_unsuitable_torch_is_refused_with_a_reason(monkeypatch):
    import torch
    import torch.distributed.fsdp as fsdp

    sharding.require_torch("cpu")
    with monkeypatch.context() as older:
        older.delattr(torch.cpu.Stream, "record_event")
        sharding.require_torch("cuda:0")
        with pytest.raises(Failed, match=r"on the CPU, fully_shard .FSDP2. requires a torch newer than 2\.6"):
            sharding.require_torch("cpu")
    monkeypatch.delattr(fsdp, "FSDPModule")
    with pytest.raises(Failed, match=r"requires torch 2\.6 or newer; this is torch"):
        sharding.require_torch("cuda:0")


def timed(ctx: Any) -> str:
    ctx.model = "tests.models.sharded:plain"
    try:
        yours(ctx)
    except Exception as error:
        return str(error)
    return ""


def test_sharded_step_is_not_timed_and_the_reason_is_given(ranks):
    assert set(ranks.facts(timed)) == {
        "tests.models.sharded:plain is sharded by fully_shard, but only DDP steps are timed"
    }


def with_one_that_rounds(ctx: Any, name: str) -> UserModel:
    import torch

    norm = torch.linalg.vector_norm
    with pytest.MonkeyPatch.context() as other:
        if ctx.rank == 1:
            other.setattr(torch.linalg, "vector_norm", lambda *args, **kwargs: norm(*args, **kwargs) * (1 + 3e-7))
        return look(ctx, name)


def test_rank_with_another_order_of_additions_is_not_blamed(ranks):
    results = ranks.run(with_one_that_rounds, "sharded:clipped")

    assert judge(record(CHECK, [result.value for result in results])) == []
