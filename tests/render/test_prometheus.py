"""The metrics of a report for Prometheus; tests/lab/test_prometheus.py has the real tools."""

import os
import stat
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ddp_doctor.cli.outputs import Outputs, Results
from ddp_doctor.model.choices import CheckStatus, UsageError, Verdict
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import CheckResult, Measurement, NodeVerdict, Report
from ddp_doctor.render import prometheus
from tests.recordings import judged
from tests.render.reports import error, report, warning, world

#: Labels may have as many values as there are nodes, message sizes or world sizes; all others are fixed words.
LABELS = {"command", "version", "verdict", "node", "code", "severity", "check", "status"} | {*prometheus._OF_BANDWIDTH}


def series(given: Report, command: str = "run") -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the value of each series, by its name and the labels other than the command."""
    found = {}
    for family in text_string_to_metric_families(prometheus.render(given, Recording(options=Options(command=command)))):
        assert family.type == "gauge"
        assert family.documentation
        for sample in family.samples:
            assert set(sample.labels) <= LABELS
            labels = dict(sample.labels)
            assert labels.pop("command") == command
            key = (sample.name.removeprefix("ddp_doctor_"), frozenset((k, v) for k, v in labels.items() if v))
            assert key not in found, "the collector refuses a series that comes twice"
            found[key] = sample.value
    return found


def of(name: str, given: Report) -> dict[tuple[str, ...], float]:
    return {
        tuple(sorted(value for _, value in labels)): value
        for (each, labels), value in series(given).items()
        if each == name
    }


def test_a_slow_pair_of_ranks_is_an_unhealthy_node_with_codes_bandwidths_and_the_time_of_its_run():
    given = judged("p2p/one-slow-pair").report

    assert of("verdict", given) == {(verdict.value,): 0 for verdict in Verdict} | {(given.verdict.value,): 1}
    assert of("findings", given) == {(finding.code, finding.severity.value): 1 for finding in given.findings}
    slowest = min(each.value for each in given.measurements if each.name == "p2p_bandwidth")
    assert min(of("bandwidth_bytes_per_second", given).values()) == slowest
    assert of("check_status", given)["found", "p2p"] == 1
    assert of("check_status", given)["p2p", "passed"] == 0
    assert of("last_run_timestamp_seconds", given) == {(): 1793498589.0}  # 2026-11-01T02:03:09Z
    assert of("build_info", given) == {(given.tool.version,): 1}


def test_skipped_check_has_no_duration():
    statuses = (CheckStatus.PASSED, CheckStatus.SKIPPED, CheckStatus.TIMED_OUT)
    checks = tuple(CheckResult(id=each.value, title="", status=each, duration_s=2) for each in statuses)

    shown = of("check_duration_seconds", report().model_copy(update={"checks": checks}))

    assert shown == {("passed",): 2, ("timed_out",): 2}


def test_nodes_have_their_own_verdicts_and_the_worst_counts_per_name():
    lost, warm = error(), warning()
    nodes = (
        NodeVerdict(node_rank=0, hostname="node0", verdict=Verdict.HEALTHY),
        NodeVerdict(node_rank=1, hostname='"a\nb\\', verdict=Verdict.UNHEALTHY, findings=(lost.fingerprint,)),
        NodeVerdict(node_rank=2, hostname="node0", verdict=Verdict.UNSURE, findings=(warm.fingerprint,)),
        NodeVerdict(node_rank=3, hostname="\ud800", verdict=Verdict.HEALTHY, findings=("of no finding",)),
    )
    given = report(lost, warm).model_copy(update={"nodes": nodes})

    assert {labels for labels, value in of("node_verdict", given).items() if value} == {
        ("node0", "unsure"),
        ('"a\nb\\', "unhealthy"),
        ("?", "healthy"),
    }
    assert of("node_findings", given) == {('"a\nb\\', "DD601", "error"): 1, ("DD402", "node0", "warning"): 1}


def test_slowest_of_many_pairs_represents_all_and_invalid_numbers_are_skipped():
    rates = [("rank", rank, rate) for rank, rate in ((0, 3e9), (1, 1e9), (2, float("nan")), (3, 2e9))]
    measured = [
        Measurement(name="p2p_bandwidth", value=rate, unit="B/s", labels={label: rank, "bytes": 64, "node": 1})
        for label, rank, rate in rates
    ]
    other = Measurement(name="p2p_latency", value=1e-6, unit="s", labels={})
    nodes = (NodeVerdict(node_rank=1, hostname="node1", verdict=Verdict.HEALTHY),)
    given = report(on=world("node0", "node1")).model_copy(update={"measurements": (*measured, other), "nodes": nodes})

    assert of("bandwidth_bytes_per_second", given) == {("64", "gloo", "node1", "p2p_bandwidth"): 1e9}


@pytest.mark.parametrize("started_at", ["", "yesterday", "9999-12-31T23:59:59Z"])
def test_run_with_an_unknown_time_has_no_time_series(started_at: str):
    given = report().model_copy(update={"started_at": started_at, "duration_s": 1e300})

    assert of("last_run_timestamp_seconds", given) == {}


def test_the_file_can_be_read_by_all_whatever_the_umask_and_replaces_the_old_one(tmp_path: Path):
    target = tmp_path / "doctor-%h.prom"
    results = Results(report(), Recording(run_id="x", options=Options(command="prolog")))
    outputs = Outputs({"prometheus": str(target)}).at_node("node1", 0)
    written = tmp_path / "doctor-node1.prom"
    written.write_text("old")
    old = os.umask(0o077)
    try:
        assert outputs.write(results) == []
    finally:
        os.umask(old)

    assert stat.S_IMODE(written.stat().st_mode) == 0o644
    assert 'command="prolog"' in written.read_text()
    assert list(tmp_path.iterdir()) == [written]


def test_file_name_that_the_collector_ignores_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"expected a name ending in \.prom"):
        Outputs({"prometheus": str(tmp_path / "doctor.txt")}).refuse_unwritable()
    for target in ("-", "/dev/null", str(tmp_path / "doctor.prom")):
        Outputs({"prometheus": target}).refuse_unwritable()
    assert list(tmp_path.iterdir()) == []
