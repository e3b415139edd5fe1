"""step_time on real ranks, a rank made slow, and the rules on recordings."""

import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from ddp_doctor.checks.ddp.step_time import CHECK, measurements
from ddp_doctor.checks.ddp.step_time.measure import _how_many, measure, on_gpu
from ddp_doctor.checks.ddp.step_time.rounds import summary
from ddp_doctor.checks.ddp.step_time.work import Plan
from ddp_doctor.facts.collectives import GpuSpeedFact, Rate
from ddp_doctor.facts.ddp.step_time import Buckets, BucketTrial, Round, StepTimeFact
from ddp_doctor.knowledge.ddp.buckets import Curve
from ddp_doctor.model.choices import Level, Severity
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.work import Work
from tests.checks.judged_ranks import blamed, judge_by, only, record

pytestmark = pytest.mark.ranks

recording = partial(record, CHECK)
judge = partial(judge_by, CHECK)
SHORT = Plan(aim_s=0.002, rounds=3, iterations=1, bucket_aim_s=0.01)


# Scenarios: the code of each rank.


def small(ctx, slow_rank=None, level=Level.STANDARD):
    import torch

    ctx.level = level
    # That of the clock says for how long the others of this machine had the processor.
    ctx.clock = time.process_time
    times = 40 if ctx.rank == slow_rank else 1
    module = torch.nn.Sequential(*(torch.nn.Linear(45, 45) for _ in range(4)))

    def loss(wrapped, batch):
        return sum(wrapped(batch).pow(2).mean() for _ in range(times))

    work = Work(module, torch.ones(64, 45), loss, name="train:model")
    return measure(ctx, work, SHORT)


def own(ctx):
    from ddp_doctor.checks.ddp.step_time.work import own as work

    return measure(ctx, work(ctx), SHORT)


def too_long(ctx):
    try:
        _how_many(ctx, SHORT, 1e3 if ctx.rank == 1 else 1e-3)
    except Skip as reason:
        return str(reason)


def each_with_a_processor(facts: list[StepTimeFact]) -> list[StepTimeFact]:
    """Return the facts as if each rank had its own processor; the ranks of these tests share two."""
    return [fact.model_copy(update={"on_cpu_share": 1.0}) for fact in facts]


# Real ranks


def test_two_ranks_measure_every_kind_of_step_and_blame_no_rank(ranks):
    facts = ranks.facts(own, on=(0, 1))
    seen = summary(recording(facts, (0, 1)))

    assert seen is not None
    assert seen.fact.ranks == 2
    assert 0 < min(seen.computing) < 1
    assert 0 < min(seen.communicate) < 1
    assert seen.alone
    assert len(seen.alone_larger) == len(seen.step) == 3
    assert seen.fact.larger == 2
    assert facts[1].rounds[0].alone_s is None  # the other ranks waited
    assert [one.severity for one in judge(recording(facts, (0, 1))) if one.severity is not Severity.INFO] == []


def test_the_ranks_agree_on_the_work_and_on_the_number_of_rounds(ranks):
    facts = ranks.facts(own, on=(0, 1, 2))

    assert len({(fact.batch, fact.iterations, len(fact.rounds), fact.curve) for fact in facts}) == 1
    assert len({None if fact.buckets is None else len(fact.buckets.trials) for fact in facts}) == 1


def test_single_rank_is_also_measured(ranks):
    (fact,) = ranks.facts(own, on=(0,))

    assert fact.buckets is None
    assert "one rank" in fact.not_measured["bucket sizes"]
    assert judge(recording([fact], (0,))) == []


def test_too_long_steps_are_measured_on_no_rank(ranks):
    reasons = ranks.facts(too_long, on=(0, 1))

    assert all(reason and "would take" in reason for reason in reasons)


def test_every_step_has_the_same_name_and_detail_on_all_ranks(ranks):
    results = ranks.run(small, on=(0, 1, 2))

    assert all(one.error is None for one in results), results[0].error
    assert len({one.steps for one in results}) == 1


def test_rank_that_computes_more_slowly_than_its_peers_is_reported(ranks):
    facts = each_with_a_processor(ranks.facts(small, 2))
    finding = only([one for one in judge(recording(facts)) if one.code == "DD812"], "DD812")

    assert blamed(finding) == [2]
    assert finding.culprits[0].node == "node2"
    assert finding.title.startswith("Rank 2 (node2) takes ")


def test_ranks_of_equal_speed_have_no_finding_about_a_slow_rank(ranks):
    assert "DD812" not in {one.code for one in judge(recording(ranks.facts(small)))}


def test_profiler_reports_the_time_of_collectives_or_a_reason(ranks):
    for fact in ranks.facts(small, None, Level.THOROUGH, on=(0, 1)):
        if fact.profile is None:
            assert fact.not_measured["torch.profiler"]
        else:
            assert fact.profile.collectives_s > 0
            assert fact.profile.covered_s <= fact.profile.collectives_s
            assert any(name.startswith("aten::") for name in fact.profile.operations)


def event(name: str, start: int, end: int, device: str = "DeviceType.CUDA", spoken: bool = False) -> Any:
    span = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(name=name, device_type=device, time_range=span, is_user_annotation=spoken)


def test_only_kernels_count_as_gpu_time():
    seen = on_gpu(
        [
            event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 100, 400),
            event("ampere_sgemm_128x64_tn", 50, 200),
            event("nccl:all_reduce", 0, 900, spoken=True),
            event("DistributedDataParallel.forward", 0, 900),
            event("a record_function of the model", 0, 900, spoken=True),
            event("aten::mm", 0, 900, "DeviceType.CPU"),
        ]
    )

    assert [pytest.approx(one) for one in ((1e-4, 4e-4),)] == seen.collectives
    assert [pytest.approx(one) for one in ((5e-5, 2e-4),)] == seen.work
    assert list(seen.own) == ["ampere_sgemm_128x64_tn"]


def test_the_profiler_is_loaded_at_level_thorough_only(ranks):
    (fact,) = ranks.facts(small, on=(0,))

    assert "thorough" in fact.not_measured["torch.profiler"]


# Rules on facts made by hand


def fact(
    compute: float = 0.010, step: float = 0.012, communicate: float = 0.004, rank: int = 0, **changes: Any
) -> StepTimeFact:
    wobble = (1.0, 1.01, 0.99, 1.02, 1.0, 0.99)
    rounds = tuple(
        Round(
            compute_s=compute * by,
            again_s=compute * (2 - by),
            step_s=step * by,
            communicate_s=communicate * by,
            alone_s=compute if rank == 0 else None,
            alone_larger_s=2 * compute if rank == 0 else None,
        )
        for by in wobble
    )
    whole = StepTimeFact(
        ranks=2,
        device="cpu",
        parameters=2,
        gradient_bytes=4 << 20,
        larger=2,
        cpus=(0, 1, 2, 3),
        on_cpu_share=1.0,
        iterations=2,
        rounds=rounds,
        curve=Curve(points=((4, 1e-4), (1 << 20, 1e-3))),
    )
    return whole.model_copy(update=changes)


def pair(**changes: Any) -> Recording:
    return recording([fact(rank=rank, **changes) for rank in (0, 1)], (0, 1))


SLOW_LINK: dict[str, Any] = {"step": 0.100, "communicate": 0.095}


def test_overlap_scaling_and_ratio_come_from_the_slowest_rank():
    seen = summary(pair())

    assert seen is not None
    assert seen.ratio == pytest.approx(0.4, rel=0.02)
    assert seen.overlap == pytest.approx(0.5, abs=0.03)
    assert seen.weak_scaling == pytest.approx(10 / 12, rel=0.02)
    assert seen.strong_scaling == pytest.approx(20 / 12 / 2, rel=0.02)


def test_overlap_is_unknown_if_communication_is_within_noise():
    seen = summary(pair(communicate=0.0001))

    assert seen is not None
    assert seen.overlap is None


def test_summary_requires_measurements_of_all_ranks():
    assert summary(recording([fact()], (0,))) is None
    assert list(measurements(recording([fact()], (0,)))) == []


def test_measurements_are_in_base_units():
    found = {one.name: one for one in measurements(pair())}

    assert found["step_time"].value == pytest.approx(0.012, rel=0.02)
    assert {one.unit for one in found.values()} == {"s", "ratio", "B/s"}
    assert list(measurements(Recording())) == []


def test_ranks_that_share_processors_have_no_finding():
    assert judge(pair(**SLOW_LINK, threads=8)) == []


def test_disturbed_machine_reports_only_communication_many_times_longer():
    assert judge(pair(step=0.040, communicate=0.030, on_cpu_share=0.6)) == []
    assert only(judge(pair(**SLOW_LINK, on_cpu_share=0.6)), "DD810").severity is Severity.INFO


def trials(best_s: float, predicted_s: float = 0.041, default_s: float = 0.061) -> Buckets:
    by = (1.0, 1.02, 0.98)
    both = ((25.0, 0.060, default_s), (1.0, predicted_s, best_s))
    made = [BucketTrial(cap_mib=cap, predicted_s=at, step_s=tuple(took * one for one in by)) for cap, at, took in both]
    return Buckets(batch=8, compute_s=0.02, predicted_s={25.0: 0.060, 1.0: predicted_s}, trials=tuple(made))


def test_with_your_user_model_the_advice_is_proved():
    finding = only(judge(pair(buckets=trials(0.043), model="train:model")), "DD820")

    assert finding.remedies[0].proof.status == "proved"


@pytest.mark.parametrize(
    "measured",
    [trials(0.060), trials(0.0595), trials(0.070), trials(0.043, predicted_s=0.020), trials(0.043, default_s=0.1)],
    ids=["no gain", "within noise", "a loss", "not as predicted", "default not as predicted"],
)
def test_bucket_size_that_did_not_win_is_not_advised(measured):
    assert judge(pair(buckets=measured)) == []


def test_rank_slowed_down_by_another_program_is_info():
    facts = [fact(rank=rank, ranks=4) for rank in range(4)]
    facts[1] = fact(0.030, 0.032, rank=1, ranks=4, on_cpu_share=0.4)
    finding = only(judge(recording(facts)), "DD812")

    assert (finding.severity, blamed(finding)) == (Severity.INFO, [1])
    assert "It had a CPU 40% of the time, because another program ran there" in finding.detail


@pytest.mark.parametrize(
    ("device", "times", "severity"),
    [("cuda:0", 1.5, Severity.WARNING), ("cuda:0", 4.0, Severity.ERROR), ("cpu", 4.0, Severity.WARNING)],
)
def test_slow_rank_is_a_warning_and_a_gpu_three_times_slower_an_error(device, times, severity):
    facts = [fact(rank=rank, ranks=4, device=device, on_cpu_share=None) for rank in range(4)]
    facts[3] = fact(0.010 * times, 0.060, rank=3, ranks=4, device=device, on_cpu_share=None)

    assert only(judge(recording(facts)), "DD812").severity is severity


def test_rank_with_a_slow_gpu_is_reported_by_the_finding_of_its_gpu():
    def gpu(rate: float) -> GpuSpeedFact:
        return GpuSpeedFact(device="cuda:0", matmul_tflop_per_s=Rate(median=rate, least=rate, most=rate, repetitions=3))

    steps = [fact(rank=rank, ranks=4, device="cuda:0", on_cpu_share=None) for rank in range(4)]
    steps[3] = fact(0.020, 0.022, rank=3, ranks=4, device="cuda:0", on_cpu_share=None)
    both = (*range(4), *range(4))
    rates = [gpu(700.0) for _ in range(3)]

    assert judge(recording([*steps, *rates, gpu(350.0)], both)) == []
    assert only(judge(recording([*steps, *rates, gpu(690.0)], both)), "DD812").severity is Severity.WARNING


def test_one_slow_sample_blames_no_rank():
    facts = [fact(rank=rank, ranks=4) for rank in range(4)]
    rounds = facts[3].rounds
    once = (rounds[0].model_copy(update={"compute_s": 0.5}), *rounds[1:])
    facts[3] = facts[3].model_copy(update={"rounds": once})

    assert judge(recording(facts)) == []


def test_two_equal_halves_blame_no_rank():
    facts = [fact(0.010 if rank < 2 else 0.020, 0.022, rank=rank, ranks=4) for rank in range(4)]

    assert judge(recording(facts)) == []
