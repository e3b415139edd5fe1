"""The rank that the others wait for is reported with its cause, and no rank is reported by chance."""

import random
from typing import Any

import pytest

from ddp_doctor.app.outcome import judge
from ddp_doctor.features.trace.facts import Gap, TraceFact, TraceStep
from ddp_doctor.features.trace.rules import communication, late_rank
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.rule import rules_in
from tests.features.trace.made_facts import job, moved, of_rank, recording, with_steps

EVEN, SLOW = [20_000.0] * 5, [60_000.0] * 5
RULES = rules_in(late_rank)


def found(ranks: tuple[TraceFact, ...]) -> list[Finding]:
    return [finding for rule in RULES for finding in rule.apply(recording(ranks))]


def named(ranks: tuple[TraceFact, ...]) -> list[tuple[str, int | None]]:
    return [(one.name, one.culprits[0].rank if one.culprits else None) for one in found(ranks)]


def two(**changed: Any) -> tuple[TraceFact, ...]:
    """Rank 1 is late, and its steps have these fields, or fields less what they compute in."""
    return with_steps(job([EVEN, SLOW]), 1, lambda _step: changed)


def idle(step: TraceStep) -> dict[str, Any]:
    begin = step.begin_us + 1_000.0
    gap = Gap(begin_us=begin, end_us=begin + 40_000.0)
    return {"compute_us": 20_000.0, "op_us": 20_000.0, "host_us": 40_000.0, "gap": gap}


def test_late_rank_is_reported_with_its_cost_and_cause():
    [finding] = found(two(ops=250, batch=()))

    assert finding.title == "Rank 1 delays every step by 40 ms (65%): it runs 2.5 times as many operators"
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.LIKELY)
    assert [(one.value, one.expected) for one in finding.evidence] == [(0.04, None), (250.0, 100.0)]


def test_step_that_becomes_three_times_as_long_is_an_error():
    assert found(with_steps(job([EVEN, [80_000.0] * 5]), 1, lambda _: {"ops": 250}))[0].severity is Severity.ERROR


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"ops": 250}, "slow-compute"),
        ({"batch": (192, 512), "ops": 250}, "larger-batch"),
        ({"loader_us": 40_000.0}, "slow-data-loading"),
        ({"loader_us": 25_000.0, "batch": (192, 512)}, "larger-batch"),
        ({"op_us": 20_000.0, "loader_us": 40_000.0, "batch": (66, 512)}, "slow-data-loading"),
        ({}, "host-bound-rank"),
        ({"op_us": 20_000.0, "host_us": 40_000.0}, "host-bound-rank"),
        ({"op_us": 20_000.0}, "late-rank"),
    ],
)
def test_cause_is_the_activity_that_took_longer(changed: dict[str, Any], name: str):
    assert [finding.name for finding in found(two(**changed))] == [name]


def test_long_gap_is_a_pause_or_a_checkpoint_if_tensors_are_detached():
    ranks = with_steps(job([EVEN, SLOW]), 1, idle)
    saving = with_steps(ranks, 1, lambda _: {"detached": 14})
    told = with_steps(
        ranks, 1, lambda step: {"gap": step.gap and step.gap.model_copy(update={"inside": ("train.py(3): save",)})}
    )

    assert (named(ranks), named(saving)) == ([("pauses", 1)], [("checkpoint-in-step", 1)])
    assert named(told) == [("checkpoint-in-step", 1)]
    assert "train.py(3): save" in found(told)[0].evidence[1].text


def test_pause_after_the_last_collective_of_a_step_is_found():
    computing = [20_000.0, 20_000.0, 220_000.0, 20_000.0, 20_000.0]
    ranks = job([EVEN, computing])
    steps = list(ranks[1].steps)
    # By the rank's own marks the pause is the end of the step before.
    gap = Gap(begin_us=steps[1].end_us, end_us=steps[1].end_us + 200_000.0)
    steps[1] = steps[1].model_copy(update={"end_us": gap.end_us, "host_us": 200_000.0, "gap": gap})
    steps[2] = steps[2].model_copy(update={"begin_us": gap.end_us, "compute_us": 20_000.0, "op_us": 20_000.0})

    assert named(of_rank(ranks, 1, steps=tuple(steps))) == [("pauses", 1)]


def test_one_gap_that_a_scheduler_may_cause_is_not_a_pause():
    def short(step: TraceStep) -> dict[str, Any]:
        if step.number != 5:
            return {}
        gap = Gap(begin_us=step.begin_us, end_us=step.begin_us + 40_000.0)
        return {"compute_us": 20_000.0, "op_us": 20_000.0, "host_us": 40_000.0, "gap": gap}

    ranks = job([EVEN[:4], [20_000.0, 20_000.0, 60_000.0, 20_000.0]])
    assert named(with_steps(ranks, 1, short)) == [("late-rank", None)]


def test_kernels_of_a_gpu_that_take_longer_are_a_slow_gpu():
    ranks = job([EVEN, [30_000.0] * 5], device="gpu")
    ranks = tuple(with_steps(ranks, 1, lambda _: {"kernels": 100})[at] for at in (0, 1))
    ranks = with_steps(ranks, 0, lambda _: {"kernels": 100})

    assert named(ranks) == [("slow-compute", 1)]
    assert "the same kernels take 1.5 times as long" in found(ranks)[0].title
    assert any("nvidia-smi" in command for remedy in found(ranks)[0].remedies for command in remedy.commands)


def test_gpu_that_idles_for_an_unknown_reason_is_a_warning_without_culprit():
    ranks = with_steps(job([EVEN, SLOW], device="gpu"), 1, lambda _: {"compute_us": 20_000.0, "host_us": 40_000.0})

    assert (named(ranks), found(ranks)[0].severity) == ([("late-rank", None)], Severity.WARNING)


@pytest.mark.parametrize(
    ("computing", "title"),
    [
        ([[20e3] * 5, [24e3] * 5], "Rank 1 delays steps by 4 ms (15%)"),
        ([[20e3] * 5, [20e3, 50e3, 20e3, 20e3, 20e3]], "Rank 1 delays steps by 6 ms (21%)"),
        ([[20e3, 29e3] * 3, [29e3, 20e3] * 3], "Ranks 0, 1 delay steps in turn, by 9 ms (29%) together"),
        ([[20e3, 22e3] * 3, [22e3, 20e3] * 3], None),
        ([[20e3] * 5, [21e3] * 5], None),
    ],
)
def test_cost_of_a_tenth_of_the_step_is_info_with_its_numbers(computing: list[list[float]], title: str | None):
    ranks = with_steps(job(computing), 1, lambda step: {"op_us": 20_000.0})
    one = found(ranks)

    assert [(finding.severity, finding.culprits, finding.title.startswith(title or "")) for finding in one] == [
        (Severity.INFO, (), True)
    ] * (title is not None)
    verdict = judge(recording(ranks)).report
    assert verdict.exit_code == 0
    assert verdict.summary.startswith("No certain bottleneck" if title else "No ")
    assert (title is None) == ("bottleneck above 10%" in verdict.summary)


@pytest.mark.parametrize(
    ("inside", "named"),
    [
        (("train.py(41): log", "<built-in function sleep>"), "Move train.py(41): log (sleep)"),
        (
            ("train.py(9): main", "train.py(41): read", "/usr/lib/python3.11/pathlib.py(1050): read_text"),
            "train.py(41): read",
        ),
        (("<built-in function collect>",), "gc.freeze()"),
        ((), "gc.freeze()"),
    ],
)
def test_fix_of_a_pause_names_the_line_that_a_stack_shows(inside: tuple[str, ...], named: str):
    def pausing(step: TraceStep) -> dict[str, Any]:
        gap = idle(step)["gap"].model_copy(update={"inside": inside})
        return {**idle(step), "gap": gap}

    [finding] = found(with_steps(job([EVEN, SLOW]), 1, pausing))
    assert finding.code == "DDT106"
    assert [named in remedy.summary for remedy in finding.remedies] == [True]


def test_short_gaps_of_a_cpu_are_not_pauses_in_few_steps():
    computing = [20e3, 20e3, 55e3, 20e3, 55e3, 20e3]
    ranks = job([[20e3] * 6, computing])

    def short(step: TraceStep) -> dict[str, Any]:
        gap = Gap(begin_us=step.begin_us, end_us=step.begin_us + 35_000.0)
        changed = {"compute_us": 20_000.0, "op_us": 20_000.0, "host_us": 35_000.0, "gap": gap}
        return changed if step.compute_us > 50e3 else {}

    assert named(with_steps(ranks, 1, short)) == [("late-rank", None)]


def test_same_operators_may_have_more_work_if_sizes_are_unknown():
    ranks = two(batch=())

    assert named(ranks) == [("slow-compute", 1)]
    assert found(ranks)[0].confidence is Confidence.POSSIBLE


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [2, 4])
def test_no_rank_is_blamed_for_random_differences(seed: int, count: int):
    chance = random.Random(seed)
    ranks = job([[chance.uniform(15e3, 30e3) for _ in range(5)] for _ in range(count)])

    assert [finding for finding in found(ranks) if finding.culprits or finding.code != "DDT107"] == []


def test_two_ranks_that_are_late_alternately_are_both_reported():
    turns = [[80_000.0, 20_000.0] * 3, [20_000.0, 80_000.0] * 3]
    ranks = with_steps(job(turns), 0, lambda step: {"loader_us": step.compute_us - 20_000.0})
    ranks = with_steps(ranks, 1, lambda step: idle(step) if step.compute_us > 50_000.0 else {})

    assert sorted(named(ranks)) == [("pauses", 1), ("slow-data-loading", 0)]


def test_rank_with_a_clock_that_is_off_by_hours_gives_the_same_finding():
    ranks = two(ops=250)

    assert found((ranks[0], moved(ranks[1], by=-3.6e9))) == found(ranks)


def against(ranks: tuple[TraceFact, ...], busbw: float | None, window: str = "latest") -> list[str]:
    made = recording(ranks, window)
    made = made.model_copy(update={"options": made.options.model_copy(update={"expected_busbw": busbw})})
    return [finding.title for finding in communication.slow_transfer.apply(made)]


def test_transfer_is_slow_only_if_a_preflight_measured_more_than_usual():
    ranks = job([[5_000.0] * 3, [9_000.0] * 3])
    large = tuple(
        fact.model_copy(
            update={"calls": tuple(call.model_copy(update={"size_bytes": 32 << 20}) for call in fact.calls)}
        )
        for fact in ranks
    )

    # 32 MiB in the 2 ms after the last one came; the rank that waits sees 6 ms.
    [title] = against(large, 200e9)
    assert title.startswith("Transfer is slow: all-reduces reach 16.8 of 200 GB/s")
    later = tuple(
        fact.model_copy(
            update={"steps": tuple(step.model_copy(update={"number": step.number + 50}) for step in fact.steps)}
        )
        for fact in large
    )
    assert [title.split(":")[0] for title in against((*large, *later), 200e9, "all")] == [
        "Transfer is slow in window 1",
        "Transfer is slow in window 2",
    ]
    assert against(large, 100e9) == against(large, None) == against(ranks, 200e9) == against(large[:1], 200e9) == []
