"""step_time on real ranks with a user's model: it is measured and named, or skipped with the reason."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from ddp_doctor.checks.ddp.step_time import CHECK, probe
from ddp_doctor.checks.ddp.step_time.measure import measure
from ddp_doctor.checks.ddp.step_time.work import Plan
from ddp_doctor.facts.ddp.step_time import ArgumentTrial, StepTimeFact
from ddp_doctor.features.model.user_model.work import yours
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import TraceAdvice
from tests.checks.judged_ranks import blamed, judge_by, only, record
from tests.recordings import load

pytestmark = pytest.mark.ranks

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)
SHORT = Plan(rounds=3, iterations=1)


def whole(ctx: Any, name: str) -> StepTimeFact:
    ctx.model = f"tests.models.{name}" if name else ""
    return probe(ctx)


def short(ctx: Any, name: str) -> StepTimeFact:
    ctx.model = f"tests.models.{name}"
    return measure(ctx, yours(ctx), SHORT)


def on_one_node_only(ctx: Any) -> StepTimeFact:
    return whole(ctx, "healthy:wide_net" if ctx.rank == 0 else "")


def test_your_model_is_measured_with_its_own_gradients_and_options(ranks):
    facts = ranks.facts(whole, "healthy:wide_net", on=(0, 1))

    assert {fact.model for fact in facts} == {"tests.models.healthy:wide_net"}
    assert {(fact.parameters, fact.gradient_bytes, fact.batch) for fact in facts} == {(8, 4 * 4 * (64 * 64 + 64), None)}
    assert all(len(fact.rounds) == 5 and fact.same_work and fact.buckets for fact in facts)


def test_models_with_batch_norm_and_dict_batches_are_measured(ranks):
    for name in ("healthy:conv_net", "healthy:transformer"):
        facts = ranks.facts(short, name, on=(0, 1))
        assert all(fact.rounds and fact.same_work for fact in facts)


def test_batches_of_different_shapes_are_not_the_same_work(ranks):
    facts = ranks.facts(short, "healthy:uneven_batches", on=(0, 1))

    assert [fact.same_work for fact in facts] == [False, False]


def test_bucket_sizes_of_the_factory_are_kept(ranks):
    (fact, _) = ranks.facts(short, "healthy:with_buckets_of_its_own", on=(0, 1))

    assert fact.buckets is None
    assert "bucket_cap_mb" in fact.not_measured["bucket sizes"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("healthy:conv_net_alone", "does not return make_batch"),
        ("planted:rank_branch", "never get gradients, but DDP waits for them"),
        ("planted:unused_head", "never get gradients, but DDP waits for them"),
        ("planted:raises", "does not work with DDP; the user_model check reports why"),
        ("planted:additional_layer", "does not work with DDP; the user_model check reports why"),
        ("planted:not_to_be_copied", "cannot be copied"),
    ],
)
def test_model_that_cannot_be_measured_is_skipped_on_all_ranks_with_reason(ranks, name, reason):
    for one in ranks.run(whole, name, on=(0, 1, 2)):
        assert "model.fact.Skip" in (one.error or "")
        assert reason in (one.error or "")


def test_invalid_model_factory_is_not_measured(ranks):
    for one in ranks.run(whole, "planted:gives_a_number", on=(0, 1)):
        assert "model.fact.Misused" in (one.error or "")


def test_different_models_on_nodes_are_not_measured(ranks):
    for one in ranks.run(on_one_node_only, on=(0, 1)):
        assert "the nodes have different models" in (one.error or "")


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    results = ranks.run(short, "healthy:odd_ones", on=(0, 1, 2))

    assert all(one.error is None for one in results), results[0].error
    assert len({one.steps for one in results}) == 1


def tiny_buckets(**changes: Any) -> TraceAdvice:
    """Return the advice of ``trace`` for a job with a bucket for each gradient."""
    advice = TraceAdvice(code="DDT120", at_most=0.9, setting="bucket_cap_mb", value=None, had=0.001)
    return advice.model_copy(update=changes)


def advised(ctx: Any, name: str, *advice: TraceAdvice) -> StepTimeFact:
    ctx.options = ctx.options.model_copy(update={"advice": advice})
    return short(ctx, name)


def test_advice_of_a_trace_is_tried_against_the_arguments_of_the_job(ranks):
    view = tiny_buckets(setting="gradient_as_bucket_view", value=True, had=False)
    facts = ranks.facts(advised, "healthy:many_layers", tiny_buckets(), view, on=(0, 1))

    assert [trial.advice.setting for trial in facts[0].arguments] == ["bucket_cap_mb", "gradient_as_bucket_view"]
    assert all(len(trial.without_s) == len(trial.with_s) >= 5 for fact in facts for trial in fact.arguments)
    assert "tried instead" in facts[0].not_measured["bucket sizes"]


def test_change_that_the_job_may_already_have_is_not_tried(ranks):
    (fact, _) = ranks.facts(advised, "healthy:wide_net", tiny_buckets(had=None), on=(0, 1))

    assert [trial.not_tried for trial in fact.arguments] == ["neither the trace nor the factory shows the job's value"]


def test_an_argument_that_would_make_ddp_wait_for_a_gradient_is_not_tried(ranks):
    search = tiny_buckets(setting="find_unused_parameters", value=False, had=True)
    (fact, _) = ranks.facts(advised, "planted:unused_head", search, on=(0, 1))

    assert [trial.not_tried for trial in fact.arguments] == [
        "some parameters get no gradient, which DDP would wait for"
    ]
    assert not any(one.code == "DD821" for one in judge(recording([fact] * 4)))


def tried(without: Sequence[float], changed: Sequence[float], **changes: Any) -> Finding:
    fast = ArgumentTrial(advice=tiny_buckets(**changes), without_s=(0.1,) * 5, with_s=(0.1,) * 5)
    slow = fast.model_copy(update={"without_s": tuple(without), "with_s": tuple(changed)})
    fact = load("step_time/own-model-scales").facts(StepTimeFact)[0].fact
    facts = [fact.model_copy(update={"ranks": 2, "arguments": (each,)}) for each in (fast, slow)]
    return next(one for one in judge(recording(facts)) if one.code == "DD821")


@pytest.mark.parametrize(
    ("without", "changed", "status", "title"),
    [
        ([1.0] * 5, [0.8, 0.7, 0.8, 0.9, 0.8], "proved", "A step of train:model is 20% shorter without bucket_cap_mb"),
        ([1.0] * 9, [0.8] * 8 + [1.1], "proved", "A step of train:model is 20% shorter without bucket_cap_mb"),
        (
            [1.0] * 5,
            [0.8, 0.7, 0.8, 1.1, 0.8],
            "not_tried",
            "The rounds do not show whether a step of train:model is shorter without bucket_cap_mb",
        ),
        ([1.0] * 5, [0.99] * 5, "disproved", "No advice of the trace makes a step of train:model shorter"),
        ([1.0] * 5, [1.3] * 5, "disproved", "No advice of the trace makes a step of train:model shorter"),
    ],
)
def test_change_is_proved_only_if_enough_rounds_are_clearly_shorter(without, changed, status, title):
    finding = tried(without, changed)
    (remedy,) = finding.remedies

    assert finding.title.startswith(title)
    assert remedy.proof.status == status
    assert remedy.proof.before
    assert remedy.proof.after
    assert remedy.undo == "bucket_cap_mb=0.001"


def test_change_of_a_value_shows_how_to_write_it_and_its_cost():
    (remedy,) = tried([1.0] * 5, [0.5] * 5, value=12.5, had=None).remedies

    assert remedy.summary == "DistributedDataParallel(..., bucket_cap_mb=12.5)"
    assert remedy.undo == "remove bucket_cap_mb"
    assert remedy.cost


def slow_third(facts: list[StepTimeFact], **changes: Any) -> list[StepTimeFact]:
    by_rank = [facts[0].model_copy(update={"on_cpu_share": 1.0, "ranks": 4, **changes}) for _ in range(4)]
    rounds = tuple(
        one.model_copy(update={"compute_s": 0.010, "again_s": 0.010, "step_s": 0.1}) for one in facts[0].rounds
    )
    slow = tuple(one.model_copy(update={"compute_s": 0.1, "again_s": 0.1}) for one in rounds)
    return [fact.model_copy(update={"rounds": slow if rank == 2 else rounds}) for rank, fact in enumerate(by_rank)]


def test_findings_name_the_model_and_no_rank_with_another_batch(ranks):
    facts = ranks.facts(short, "healthy:wide_net", on=(0, 1))
    found = [one for one in judge(recording(slow_third(facts, device="cuda:0"))) if one.code == "DD812"]
    finding = only(found, "DD812")

    assert blamed(finding) == [2]
    assert "of tests.models.healthy:wide_net" in finding.title
    assert finding.severity is Severity.ERROR
    assert "DD812" not in {one.code for one in judge(recording(slow_third(facts, same_work=False)))}
