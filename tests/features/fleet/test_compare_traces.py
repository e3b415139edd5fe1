"""Comparison of two jobs' traces: changes in a step, and the gain from more ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.app import Outcome, UsageError
from ddp_doctor.app.outcome import judge
from ddp_doctor.facts.cluster import TracedPart, TracedSide, TracesFact
from ddp_doctor.features.fleet.compare.use_case import compare
from ddp_doctor.model.choices import Confidence, Severity, Verdict
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.render import compared
from ddp_doctor.views.compared_traces import changes, efficiency
from tests.features.trace.written import steps, written
from tests.recordings import load


def job(folder: Path, ranks: int = 2, count: int = 5, length: float = 1000.0, batch: int = 32) -> str:
    """Write a directory with a trace per rank; the part of a step above 900 us is the host's."""
    folder.mkdir()
    for rank in range(ranks):
        events = steps(count, length)
        for event in events:
            if event["name"] == "aten::linear":
                event["args"] = {"Input Dims": [[batch, 8], [8, 8], [8]]}
        (folder / f"rank{rank}.json").write_text(written(events, rank, ranks))
    return str(folder)


def found(outcome: Outcome) -> dict[str, str]:
    return {finding.code: finding.title for finding in outcome.report.findings}


def table(outcome: Outcome) -> str:
    shown = compared.beside(outcome.recording, each=True)
    assert shown is not None
    return "\n".join(shown.lines(120))


def test_traces_of_the_same_steps_are_equally_fast_with_their_parts(tmp_path):
    outcome = compare(job(tmp_path / "a"), job(tmp_path / "b"))

    assert outcome.report.verdict is Verdict.HEALTHY
    assert not found(outcome)
    assert "before: 2 ranks, 4 steps, 32 samples per rank" in table(outcome)


def test_longer_step_is_reported_with_the_part_that_grew(tmp_path):
    before = job(tmp_path / "a")
    outcome = compare(before, job(tmp_path / "b", length=1300.0))
    [finding] = outcome.report.findings

    assert (finding.code, finding.severity, finding.confidence) == ("DD832", Severity.WARNING, Confidence.LIKELY)
    assert finding.title == f"A step takes 30% longer than in {str(before)!r}: host +0.3 ms"
    assert finding.remedies[0].commands == (f"ddp-doctor trace {tmp_path / 'b'}",)
    assert "+0.30 !!" in table(outcome)


def test_shorter_step_is_info(tmp_path):
    outcome = compare(job(tmp_path / "a", length=1300.0), job(tmp_path / "b"))

    assert [(each.code, each.severity) for each in outcome.report.findings] == [("DD832", Severity.INFO)]


def test_a_step_three_times_as_long_is_an_error(tmp_path):
    outcome = compare(job(tmp_path / "a"), job(tmp_path / "b", length=3100.0))

    assert outcome.report.verdict is Verdict.UNHEALTHY
    assert "3.1 times as long as in" in found(outcome)["DD832"]


def test_noise_of_two_steps_is_unknown(tmp_path):
    [finding] = compare(job(tmp_path / "a", count=3), job(tmp_path / "b", count=3, length=1300.0)).report.findings

    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.POSSIBLE)
    assert "With fewer than 3 steps, the noise is unknown." in finding.detail


def test_more_ranks_with_equal_batches_are_reported_by_scaling_efficiency(tmp_path):
    one, four = job(tmp_path / "a"), job(tmp_path / "b", ranks=4, length=1250.0)
    forth, back = found(compare(one, four)), found(compare(four, one))

    assert (
        forth == back == {"DD833": "4 ranks do 1.6 times the work of 2 ranks (scaling efficiency 80%): host +0.25 ms"}
    )


def test_steps_of_smaller_batches_are_scaled_to_equal_samples(tmp_path):
    outcome = compare(job(tmp_path / "a"), job(tmp_path / "b", ranks=4, batch=16))

    assert "(scaling efficiency 50%)" in found(outcome)["DD833"]
    assert "the new step is scaled by 2 to the same number of samples" in table(outcome)


def test_waiting_and_transfer_of_one_rank_of_two_are_combined(tmp_path):
    before, now = job(tmp_path / "a"), job(tmp_path / "b")
    outcome = compare(f"{before}/rank0.json", f"{now}/rank0.json")

    assert "waiting or transfer" in table(outcome)
    assert "1 of 2 ranks is here" in table(outcome)


def side(step: float, mad: float = 0.0, **changed: Any) -> TracedSide:
    names = ("step", "compute", "optimizer", "waiting", "transfer", "not_told", "exposed", "loading", "host", "other")
    parts = {name: TracedPart(median_us=0.0, mad_us=0.0) for name in names}
    parts |= {name: TracedPart(median_us=step, mad_us=mad) for name in ("step", "compute")}
    return TracedSide.model_validate({"file": "a", "ranks": 2, "steps": 5, "parts": parts, **changed})


@pytest.mark.parametrize(
    ("step", "mad", "is_seen"), [(102.0, 0.0, False), (104.0, 0.0, True), (110.0, 4.0, False), (110.0, 3.0, True)]
)
def test_change_exceeds_three_percent_and_three_times_the_variation(step, mad, is_seen):
    fact = TracesFact(before=side(100.0), now=side(step, mad))

    assert {each.is_seen for each in changes(fact) if each.part in ("step", "compute")} == {is_seen}


def test_twice_the_ranks_with_half_the_batch_in_half_the_time_scale_perfectly():
    fact = TracesFact(before=side(100.0, samples=64), now=side(50.0, samples=32, ranks=4))

    assert efficiency(fact) == 1.0


REPORT = {"verdict": "healthy", "exit_code": 0, "findings": []}


@pytest.mark.parametrize("other", [REPORT, {"baseline": [], "hardware": {}}, {"readings": [], "run_id": ""}])
def test_trace_compared_with_another_kind_of_file_is_refused(tmp_path, other):
    traces = job(tmp_path / "a")
    path = tmp_path / "other.json"
    path.write_text(json.dumps(other))

    for earlier, later in ((traces, str(path)), (str(path), traces), (f"{traces}/rank0.json", str(path))):
        with pytest.raises(UsageError, match=r"is a trace, but '.*other\.json' is not"):
            compare(earlier, later)


def test_directory_without_a_usable_trace_is_refused_with_the_reason(tmp_path):
    traces = job(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "notes.txt").write_text("step 1")
    (tmp_path / "mixed").mkdir()
    for name in ("a", "b"):
        (tmp_path / "mixed" / f"{name}_rank0.json").write_text(written(steps(), 0, 2))

    for folder, why in (
        ("empty", "no file"),
        ("others", "cannot read '.*notes.txt': it is not a trace"),
        ("mixed", "cannot compare '.*': rank 0 occurs"),
    ):
        with pytest.raises(UsageError, match=why):
            compare(traces, str(tmp_path / folder))


def test_a_recording_of_two_jobs_on_a_gpu_names_both():
    outcome = load("baseline/traces-of-one-and-two-ranks")
    shown = compared.beside(outcome, each=True)

    assert shown is not None
    assert "before: 1 rank, 4 steps, 256 samples per rank, NVIDIA H100 80GB HBM3" in "\n".join(shown.lines(200))


@pytest.mark.parametrize(
    ("before", "now", "different"),
    [
        (("NVIDIA A100",), ("NVIDIA H100",), True),
        ((), ("NVIDIA H100",), True),
        (("NVIDIA H100",), ("NVIDIA H100",), False),
        (("a GPU",), ("NVIDIA H100",), False),
        ((), (), False),
    ],
)
def test_traces_of_other_gpus_have_no_scaling_efficiency(
    before: tuple[str, ...], now: tuple[str, ...], different: bool
):
    fact = TracesFact(before=side(100.0, gpus=before), now=side(300.0, ranks=4, gpus=now))
    recording = Recording(options=Options(command="compare"), readings=(fact.collected("baseline"),))
    report = judge(recording).report
    assert [finding.code for finding in report.findings] == ["DD834" if different else "DD833"]
    assert any(each.name == "scaling_efficiency" for each in report.measurements) is not different
