"""A report in Prometheus' text format, for the textfile collector of node_exporter.

Labels have few values, so there are no titles, paths or peers. Each series has the command as a label, because the
collector refuses two files with the same series: ``prolog`` and ``run`` may each write one.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import WORST_FIRST, CheckStatus, Verdict
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report, finished_at
from ddp_doctor.render.text import plain

#: The labels of bandwidths; further labels of measurements (peers, parameters) have too many values.
_OF_BANDWIDTH = ("measurement", "bytes", "ranks", "backend", "node", "gpu")

_Samples = Mapping[tuple[str, ...], float]


def render(report: Report, recording: Recording) -> str:
    """Return all series of a report."""
    return generate_latest(_Families(report, recording.options.command)).decode()


class _Families(Collector):
    """The families of one report, each a gauge: a report is the state at one time."""

    def __init__(self, report: Report, command: str) -> None:
        self._report = report
        self._command = command

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the families for the client library, without empty ones."""
        for name, words, labels, samples in _families(self._report):
            family = GaugeMetricFamily(f"ddp_doctor_{name}", words, labels=("command", *labels))
            for values, value in samples.items():
                family.add_metric([self._command, *map(plain, values)], value)
            if samples:
                yield family


def _families(report: Report) -> Iterator[tuple[str, str, tuple[str, ...], _Samples]]:
    """Yield the name, the help, the labels and the samples of each family."""
    yield "build_info", "Always 1; the release of ddp-doctor.", ("version",), {(report.tool.version,): 1}
    verdicts: _Samples = {(verdict,): value for verdict, value in _each(Verdict, report.verdict)}
    yield "verdict", "1 for the verdict, 0 for the others.", ("verdict",), verdicts
    worst: dict[str, Verdict] = {}  # of nodes that report the same name
    for node in sorted(report.nodes, key=lambda node: -WORST_FIRST.index(node.verdict)):
        worst[node.hostname] = node.verdict
    of_nodes: _Samples = {
        (host, state): value for host, verdict in worst.items() for state, value in _each(Verdict, verdict)
    }
    yield "node_verdict", "1 for the verdict on a node, 0 for the others.", ("node", "verdict"), of_nodes
    yield (
        "findings",
        "Number of findings, by code and severity; no series if there are none.",
        ("code", "severity"),
        Counter((finding.code, finding.severity.value) for finding in report.findings),
    )
    by_fingerprint = {finding.fingerprint: finding for finding in report.findings}
    named = (
        (node.hostname, by_fingerprint[fingerprint])
        for node in report.nodes
        for fingerprint in node.findings
        if fingerprint in by_fingerprint
    )
    yield (
        "node_findings",
        "Number of findings that name a node, by code and severity.",
        ("node", "code", "severity"),
        Counter((host, finding.code, finding.severity.value) for host, finding in named),
    )
    yield (
        "check_status",
        "1 for the result of a check, 0 for the others; skipped, timed_out and failed mean no evaluation.",
        ("check", "status"),
        {(check.id, status): value for check in report.checks for status, value in _each(CheckStatus, check.status)},
    )
    yield (
        "check_duration_seconds",
        "Duration of a check on the slowest node or rank.",
        ("check",),
        {(check.id,): check.duration_s for check in report.checks if check.status is not CheckStatus.SKIPPED},
    )
    yield (
        "bandwidth_bytes_per_second",
        "Measured bandwidth, by its name in the JSON report; the slowest of several with the same labels.",
        _OF_BANDWIDTH,
        _bandwidths(report),
    )
    of_fleet = (measured for measured in report.measurements if measured.unit in ("nodes", "files"))
    for name, alike in grouped((measured.name, measured) for measured in of_fleet).items():
        samples = {tuple(map(str, measured.labels.values())): measured.value for measured in alike}
        yield name, f"Number of {alike[0].unit} of the fleet in this state.", tuple(alike[0].labels), samples
    yield "last_run_timestamp_seconds", "End of the run, in Unix time.", (), _ended(report)
    yield "last_run_duration_seconds", "Duration of the run.", (), {(): report.duration_s}


def _each(states: type[Enum], state: Enum) -> Iterator[tuple[str, float]]:
    """Yield a set of states like Prometheus' own exporters: one series per state, so that no series comes and goes."""
    for each in states:
        yield each.value, float(each is state)


def _bandwidths(report: Report) -> _Samples:
    hosts = {node.node_rank: node.hostname for node in report.nodes}
    backend = report.world.backend if report.world else ""
    slowest: dict[tuple[str, ...], float] = {}
    for measured in report.measurements:
        if measured.unit == "B/s" and math.isfinite(measured.value):
            node = measured.labels.get("node", "")
            host = hosts.get(node, str(node)) if isinstance(node, int) else str(node)
            size, ranks, gpu = (str(measured.labels.get(name, "")) for name in ("bytes", "ranks", "gpu"))
            key = (measured.name, size, ranks, backend, host, gpu)
            slowest[key] = min(measured.value, slowest.get(key, math.inf))
    return slowest


def _ended(report: Report) -> _Samples:
    """Return the end of the run; empty if the report does not have it, because an invented time would hide problems."""
    ended = report.finished_at or finished_at(report.started_at, report.duration_s)
    try:
        return {(): datetime.fromisoformat(ended.replace("Z", "+00:00")).timestamp()}
    except (ValueError, OverflowError):
        return {}
