"""Advice for a faster step and its upper bound: on recordings of real ranks, and on constructed steps."""

from typing import Any

import pytest

from ddp_doctor.features.trace import CHECK
from ddp_doctor.features.trace.facts import SyncPoint, TraceCall, TraceFact, TraceStep
from ddp_doctor.features.trace.views.advice import advice
from ddp_doctor.features.trace.views.windows import windows
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options, Recording
from tests.readings import collected, findings_of
from tests.recordings import SITUATIONS, judged, load

MIB = 1 << 20
OF_TRACES = [situation for situation in SITUATIONS if situation.startswith("trace/")]


def call(kind: str = "all_reduce", **fields: Any) -> TraceCall:
    bucket = {"dtype": "float", "during": "backward", "averages": "during" not in fields}
    return TraceCall(**{"kind": kind, "begin_us": 500, "end_us": 700, **bucket, **fields})


def rank(number: int, *calls: TraceCall, world: int = 2, steps: int = 3, **fields: Any) -> TraceFact:
    """Return a rank with equal steps of 1000 us; the rest of a step is copying, which a profiler does not lengthen."""
    of_fact = {name: fields.pop(name) for name in tuple(fields) if name in TraceFact.model_fields}
    parts = ("optimizer_us", "loading_us", "exposed_us", "other_us", "host_us")
    rest = 1000 - sum(fields.get(part, 0) for part in parts)
    usual = {"passes": 1, "averaged": 1, "updates": 1, "backward_us": 400, **fields}
    usual["other_us"] = usual.get("other_us", 0) + rest
    made = [TraceStep(number=at, begin_us=1000 * at, end_us=1000 * at + 1000, **usual) for at in range(steps)]
    placed = [
        each.model_copy(update={"step": at, "begin_us": 1000 * at + each.begin_us, "end_us": 1000 * at + each.end_us})
        for at in range(steps)
        for each in calls
    ]
    return TraceFact(
        **{
            "file": f"rank{number}.json",
            "rank": number,
            "world_size": world,
            "is_ddp": True,
            "marked_by": "profiler",
            "steps": tuple(made),
            "calls": tuple(placed),
            **of_fact,
        }
    )


def recorded(*facts: TraceFact) -> Recording:
    readings = tuple(collected("trace", fact) for fact in facts)
    return Recording(run_id="1", options=Options(command="trace"), readings=readings)


def told(*facts: TraceFact) -> dict[str, float]:
    recording = recorded(*facts)
    return {each.code: round(each.at_most, 3) for each in advice(recording, windows(recording)[-1])}


def findings(*facts: TraceFact) -> list[Finding]:
    return findings_of(CHECK, recorded(*facts))


def alike(*calls: TraceCall, **fields: Any) -> list[TraceFact]:
    return [rank(0, *calls, **fields), rank(1, *calls, **fields)]


# The bound.


def test_bound_of_loading_includes_the_waiting_for_a_slower_loader():
    facts = rank(0, loading_us=500, exposed_us=300), rank(1, loading_us=310, exposed_us=540)

    assert told(*facts)["DDT120"] == 0.5


def test_bound_of_communication_on_a_gpu_excludes_the_profilers_host_time():
    buckets = [call(size_bytes=100 * 1024, exposed_us=40)] * 10

    on_gpu = told(*alike(*buckets, exposed_us=400, host_us=500, device="gpu", kernels=20))

    assert on_gpu["DDT121"] == pytest.approx(0.4 * 0.9 / (1 - 0.4 * 0.5), abs=0.001)


def test_bound_of_loading_on_a_cpu_excludes_the_profilers_operator_time():
    assert told(*alike(loading_us=500, host_us=100, compute_us=300, other_us=-300))["DDT120"] == pytest.approx(
        0.5 / (1 - 0.4 * 0.4), abs=0.001
    )


@pytest.mark.parametrize("situation", OF_TRACES)
def test_bounds_are_within_the_step_and_changes_to_try_have_a_command(situation: str):
    recording = load(situation)
    every = [each for window in windows(recording) for each in advice(recording, window)]
    shown = {found.code: found for found in judged(situation).report.findings}

    assert all(0 <= each.at_most <= 1 for each in every)
    assert [each.at_most for each in every] == sorted((each.at_most for each in every), reverse=True)
    for each in every:
        assert f"at most {each.at_most:.0%} of the step" in shown[each.code].title
        commands = [command for remedy in shown[each.code].remedies for command in remedy.commands]
        assert ("--from-trace REPORT.json" in "".join(commands)) == bool(each.setting)


def test_severity_grows_with_the_share_of_the_step():
    def severity(exposed_us: float) -> Severity:
        passes = [call(size_bytes=9 * MIB, exposed_us=exposed_us / 4)] * 4
        (found,) = findings(*alike(*passes, exposed_us=exposed_us, passes=4, averaged=4))
        return found.severity

    assert [severity(us) for us in (100, 400, 950)] == [Severity.INFO, Severity.WARNING, Severity.ERROR]


def test_file_of_a_single_rank_gives_only_possible_confidence():
    (found,) = findings(rank(0, loading_us=500, world=8))

    assert found.confidence is Confidence.POSSIBLE


# Reported and unreported advice.


def test_advice_lists_settings_to_try_with_their_values():
    settings = {
        (each.code, each.setting, each.value)
        for situation in OF_TRACES
        for window in windows(load(situation))
        for each in advice(load(situation), window)
        if each.setting
    }

    assert {
        ("DDT121", "bucket_cap_mb", None),
        ("DDT122", "bucket_cap_mb", None),
        ("DDT123", "find_unused_parameters", False),
        ("DDT128", "broadcast_buffers", False),
        ("DDT130", "gradient_as_bucket_view", True),
        ("DDT134", "static_graph", True),
    } <= settings


def test_buckets_without_sizes_may_be_of_any_size():
    assert told(*alike(*[call(exposed_us=40)] * 10, exposed_us=390)) == {}


@pytest.mark.parametrize(
    ("sizes", "begins", "fires"),
    [
        ((26, 25, 25, 24), 0.7, True),  # bucket_cap_mb=25, named
        ((50,), 1.0, True),
        ((1, 25, 25, 24), 0.1, False),  # by default
        ((26, 25, 25, 24), 0.1, False),  # one large parameter that is ready early
        ((1,), 1.0, False),  # a small model is one bucket
    ],
)
def test_first_bucket_is_too_large_if_sent_after_half_of_backward(sizes: tuple[int, ...], begins: float, fires: bool):
    calls = [call(size_bytes=size * MIB, exposed_us=300 / len(sizes)) for size in sizes]
    facts = alike(*calls, exposed_us=300, backward_end_us=600.0, first_reduce_us=200 + 400 * begins)

    assert ("DDT122" in told(*facts)) == fires


def test_earlier_communication_is_bounded_by_backward():
    one = call(size_bytes=50 * MIB, exposed_us=500)
    facts = alike(one, exposed_us=500, backward_us=200, backward_end_us=600.0, first_reduce_us=600.0)

    assert told(*facts)["DDT122"] == pytest.approx(0.2 * 49 / 50, abs=0.001)


@pytest.mark.parametrize(
    ("passes", "averaged", "updates", "fires"),
    [(4, 4, 1, True), (4, 1, 1, False), (2, 1, 1, False), (2, 2, 2, False), (2, 2, 0, False)],
    ids=["each pass", "no_sync", "two forwards for one backward", "two models", "no optimizer seen"],
)
def test_no_sync_is_missing_if_each_pass_for_one_update_averages(passes: int, averaged: int, updates: int, fires: bool):
    calls = [call(size_bytes=9 * MIB, exposed_us=300 / averaged)] * averaged
    facts = alike(*calls, exposed_us=300, passes=passes, averaged=averaged, updates=updates)

    assert told(*facts).get("DDT124") == (0.225 if fires else None)


@pytest.mark.parametrize(("used", "code"), [(14, "DDT123"), (12, "DDT134")])
@pytest.mark.parametrize("by_map", [True, False])
def test_unused_parameters_are_found_by_the_map_or_copied_gradients(used: int, code: str, by_map: bool):
    of_map = [call(size_bytes=56, dtype="int", exposed_us=150)] if by_map else []
    facts = alike(*of_map, exposed_us=200, searched_us=100.0, reduced=used, copied_back=14)

    assert list(told(*facts)) == [code]


def test_useless_settings_are_reported_whatever_they_cost():
    facts = alike(call("barrier", during="", exposed_us=1), exposed_us=1, searched_us=1.0, reduced=4, copied_back=4)

    assert told(*facts) == {"DDT123": 0.001, "DDT129": 0.001}


def test_loader_that_is_slow_on_one_rank_is_not_advice_for_the_step():
    assert "DDT120" not in told(rank(0, exposed_us=500), rank(1, loading_us=480, exposed_us=20))


def test_optimizer_with_few_kernels_is_not_reported():
    fields = {"optimizer_us": 300, "reduced": 20}

    assert told(*alike(optimizer_kernels=200, **fields)) == {"DDT125": 0.3}
    assert told(*alike(optimizer_kernels=20, **fields)) == {}


def test_reading_numbers_is_reported_on_a_gpu_and_info_on_a_cpu():
    item = SyncPoint(name="aten::item", count=3, wait_us=200, where="train.py(12): step")
    fields: dict[str, Any] = {"syncs": (item,), "loading_us": 90, "host_us": 100}
    (found,) = findings(*alike(device="gpu", kernels=60, **fields))

    assert found.title == "Host waits for the GPU in 3 calls of aten::item per step (costs at most 16% of the step)"
    assert "aten::item in train.py(12): step" in [evidence.text for evidence in found.evidence]
    (fact,) = findings(*alike(**fields))
    assert (fact.severity, fact.evidence[0].value) == (Severity.INFO, 3)
    assert fact.title.endswith("harmless on a CPU, but it waits for a GPU")


def test_bound_of_pinned_copies_is_the_waiting_with_an_idle_gpu():
    copies = SyncPoint(name="aten::to", count=2, wait_us=300)
    fields: dict[str, Any] = {"device": "gpu", "kernels": 60, "host_us": 120, "pageable_us": 40.0}

    assert told(*alike(syncs=(copies,), pageable=2, **fields)) == {"DDT131": round((0.6 * 0.12 + 0.04) / 0.952, 3)}
    assert told(*alike(pageable=2, **{**fields, "pageable_us": 0.0})) == {}
    assert [found.severity for found in findings(*alike(syncs=(copies,), pageable=2, **fields))] == [Severity.INFO]
    fields["pageable_us"] = 110.0
    assert [found.severity for found in findings(*alike(syncs=(copies,), pageable=2, **fields))] == [Severity.WARNING]


@pytest.mark.parametrize(("kernels", "severity"), [(100, Severity.INFO), (1000, Severity.INFO), (31, Severity.WARNING)])
def test_gpu_that_waits_for_launches_is_info_because_of_the_profiler(kernels: int, severity: Severity):
    length = {"begin_us": 0.0, "end_us": 10_000.0, "host_us": 6_000.0, "compute_us": 4_000.0, "kernels": kernels}
    facts = [
        fact.model_copy(update={"steps": tuple(step.model_copy(update=length) for step in fact.steps)})
        for fact in alike(device="gpu")
    ]
    (found,) = findings(*facts)

    assert (found.code, found.severity) == ("DDT132", severity)


def test_small_collectives_are_found_by_their_time_without_sizes():
    long, short = (call(begin_us=500, end_us=500 + us, exposed_us=us, during="") for us in (150, 30))

    assert told(*alike(*[short] * 8, exposed_us=240))["DDT126"] == 0.24
    assert told(*alike(*[long] * 4, exposed_us=600)) == {}


def test_communication_with_good_buckets_is_a_warning_unless_a_cause_is_found():
    good = [call(size_bytes=MIB, exposed_us=100), call(size_bytes=20 * MIB, exposed_us=500)]
    accumulated = {"passes": 2, "averaged": 2}
    (found,) = findings(*alike(*good, exposed_us=600))

    assert (found.code, found.severity) == ("DDT133", Severity.WARNING)
    assert list(told(*alike(*good, *good, exposed_us=600, **accumulated))) == ["DDT124"]
