"""The strategies that fit, the possible batch growth, the recommended strategy, and the verdict."""

from typing import Any

import pytest

from ddp_doctor import app
from ddp_doctor.features.model.fit import table
from ddp_doctor.features.model.fit.facts import FitMeasuredFact
from ddp_doctor.features.model.fit.report import FitReport
from ddp_doctor.features.model.fit.views import NO_TIME, size
from ddp_doctor.model.choices import Status, Verdict
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import FitOptions
from tests.features.model.fit.made_facts import GIB, recording


def judged(**given: Any) -> FitReport:
    outcome = app.judge(recording(**given))
    assert outcome.rule_failures == ()
    assert isinstance(outcome.report, FitReport)
    return outcome.report


def codes(report: FitReport) -> list[str]:
    return [finding.code for finding in report.findings]


def test_ddp_is_recommended_if_it_fits_because_fsdp_sends_more():
    report = judged(memory=200 * GIB)

    assert (report.exit_code, codes(report)) == (0, [])
    assert report.advice == ("DDP needs 191 GiB of 200 GiB. FSDP would send 1.5 times as much data")
    assert report.summary == f"Fits: {report.advice}."


@pytest.mark.parametrize(
    ("gib", "advised"),
    [
        (170, "DDP, gradient_as_bucket_view=True needs"),
        (110, "ZeRO-1 needs"),
        (90, "ZeRO-2 needs"),
        (60, "ZeRO-3 needs"),
        (45, "ZeRO-3 with activation checkpointing needs"),
        (10, "ZeRO-3 with CPU offload and activation checkpointing needs"),
    ],
)
def test_first_strategy_that_fits_is_recommended_and_offload_only_last(gib: int, advised: str):
    report = judged(memory=gib * GIB)

    assert report.advice.startswith(advised)
    assert report.exit_code == 0


def test_smallest_of_unequal_gpus_counts_and_is_shown():
    report = judged(gpus=[80 * GIB] * 7 + [40 * GIB])

    assert (report.memory_bytes, report.memory_of) == (
        40 * GIB,
        "the smallest of 8 GPUs here, GPU 7, NVIDIA H100 80GB HBM3",
    )
    assert judged(gpus=[80 * GIB] * 8).memory_of == "each of 8 GPUs here, NVIDIA H100 80GB HBM3"
    assert judged(gpus=[80 * GIB], memory=GIB).memory_of == "--memory"


def test_verdict_without_a_memory_size_is_unsure_with_the_table():
    report = judged()

    assert (report.verdict, report.exit_code) == (Verdict.UNSURE, 3)
    assert "the GPU memory is unknown" in report.summary
    assert {each.fits for each in report.estimates} == {None}


def test_model_that_fits_without_its_activations_is_not_certain_to_fit():
    fits = judged(
        memory=80 * GIB, batch=None, left_out=("activations and temporaries: net:make does not return make_batch",)
    )
    untraced = judged(memory=80 * GIB, left_out=("activations and temporaries: my::op has no fake kernel (net.py:8)",))

    assert (fits.exit_code, untraced.exit_code) == (3, 3)
    assert "net:make does not return make_batch" in fits.summary
    assert "my::op has no fake kernel" in untraced.summary


def test_model_that_fits_without_optimizer_state_is_not_certain_to_fit():
    report = judged(
        memory=80 * GIB, left_out=("the state of the optimizer, for which AdamW's is taken: TypeError: closure",)
    )

    assert report.exit_code == 3
    assert "the state of the optimizer" in report.summary


def test_batch_of_unknown_size_still_gives_a_verdict():
    report = judged(memory=200 * GIB, left_out=(), batch=None)

    assert (report.exit_code, codes(report)) == (0, [])


def test_model_that_does_not_fit_without_activations_does_not_fit():
    report = judged(memory=GIB // 2, left_out=("activations and temporaries: net:make does not return make_batch",))

    assert (report.exit_code, codes(report)) == (1, ["DD870"])
    assert "head" in report.findings[0].detail


def test_requested_strategy_decides_the_verdict():
    no, yes, only_with_checkpointing = (judged(memory=80 * GIB, strategy=name) for name in ("ddp", "zero3", "zero2"))

    assert (no.exit_code, codes(no)) == (1, ["DD871"])
    assert "Use ZeRO-3, which needs 58.7 GiB" in no.findings[0].remedies[0].summary
    assert (yes.exit_code, yes.advice) == (0, "ZeRO-3 needs 58.7 GiB of 80 GiB")
    assert only_with_checkpointing.advice == "ZeRO-2 with activation checkpointing needs 49.5 GiB of 80 GiB"


def test_impossible_strategy_is_not_reported_as_a_fit():
    why = "hsdp: all ranks are on one node, where it is zero3"
    report = judged(memory=80 * GIB, strategy="hsdp", left_out=(why,))

    assert report.exit_code == 3
    assert f"--strategy hsdp was not estimated ({why})" in report.summary


def test_ignored_misfit_is_not_reported_as_a_fit():
    ignoring = recording(memory=GIB).ignoring(("DD870",))

    assert app.judge(ignoring).report.summary == "No strategy fits. Ignored: DD870."


def test_batch_grows_by_the_memory_of_one_more_sample():
    by_name = {(each.strategy, each.checkpointing): each.batch for each in judged(memory=80 * GIB).estimates}

    assert by_name["zero3", False] == 4 + int((80 / 1.15 - 51) // 9)
    assert by_name["zero1", False] == 1
    assert by_name["ddp", False] == 0


def test_hsdp_is_shown_on_several_nodes_only():
    shown = [{each.strategy for each in judged(memory=80 * GIB, ranks=ranks).estimates} for ranks in (8, 16)]

    assert "hsdp" not in shown[0]
    assert "hsdp" in shown[1]


def measured(peak: float, *, out_of_memory: bool = False) -> FitMeasuredFact:
    return FitMeasuredFact(
        strategy="zero3",
        checkpointing=False,
        peak_bytes=int(peak * GIB),
        steps_s=(2.0, 1.0, 1.1),
        out_of_memory=out_of_memory,
    )


def test_measured_memory_is_shown_and_counts_if_it_is_higher():
    near, far, out = (
        judged(memory=80 * GIB, measured=facts)
        for facts in ([measured(50), measured(55)], [measured(72)], [measured(0, out_of_memory=True)])
    )

    row = next(each for each in near.estimates if each.measured_bytes)
    assert (row.strategy, row.fits, row.measured_bytes, row.step_s) == ("zero3", True, 55 * GIB, 1.1)
    assert near.advice.startswith("ZeRO-3 needs 63.2 GiB")
    assert far.advice.startswith("ZeRO-1 with activation checkpointing needs")
    assert out.advice == far.advice


def test_sizes_have_a_readable_unit():
    assert [size(number) for number in (0, 5 << 20, 1536 << 20, 1234 * GIB)] == [
        "0 MiB",
        "5 MiB",
        "1.5 GiB",
        "1234 GiB",
    ]


@pytest.mark.parametrize(
    ("status", "why"), [(Status.TIMED_OUT, "the ranks were stopped"), (Status.SKIPPED, f"{NO_TIME}; --budget 120")]
)
def test_finished_measurements_decide_if_others_are_missing(status: Status, why: str):
    done = FitMeasuredFact(strategy="ddp", checkpointing=False, peak_bytes=GIB, steps_s=(1.0,))
    taken = recording(memory=200 * GIB, measured=[done], measure=True)
    late = Reading(check="fit_measured", status=status, rank=0, part="zero1", reason=why)
    whole = taken.model_copy(update={"readings": (*taken.readings, late)})
    report = app.judge(whole).report
    assert isinstance(report, FitReport)
    assert (report.verdict, report.summary.startswith("Fits: DDP")) == (Verdict.HEALTHY, True)
    [shown] = table.tables(report, whole, each=False)
    assert shown.notes[-1] == f"not measured: zero1: {why}"
    alone = app.judge(taken.model_copy(update={"readings": (*taken.readings[:1], late)})).report
    assert alone.verdict is Verdict.UNSURE


def test_caption_gives_the_tokens_of_a_sample():
    assumed = recording(memory=GIB, tokens=1024)
    given = assumed.model_copy(
        update={"options": assumed.options.model_copy(update={"fit": FitOptions(memory_bytes=GIB, seq=512)})}
    )
    for taken, said in ((assumed, "1,024 tokens (assumed; set --seq)"), (given, "1,024 tokens (--seq)")):
        report = app.judge(taken).report
        assert isinstance(report, FitReport)
        assert said in next(iter(table.tables(report, taken, each=False))).caption
