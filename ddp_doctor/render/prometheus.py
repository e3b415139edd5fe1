"""A report in Prometheus' text format, for the textfile collector of node_exporter.

Labels have few values, and what could have many stays out: no titles, paths or peers. Each series carries the command,
because the collector refuses two files with the same series: ``prolog`` and ``run`` may each write one.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import Enum

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import CheckStatus, Verdict
from ddp_doctor.model.report import Measurement, Report, finished_at
from ddp_doctor.render.text import plain

#: Of what a bandwidth was measured; further labels of measurements (peers, parameters) have too many values.
_OF_BANDWIDTH = ("measurement", "bytes", "ranks", "backend", "node", "gpu")
_WORST_FIRST = (Verdict.SICK, Verdict.UNSURE, Verdict.HEALTHY)

_Samples = Mapping[tuple[str, ...], float]


def render(report: Report, command: str) -> str:
    """All series of a report that ``command`` made."""
    return generate_latest(_Families(report, command)).decode()


class _Families(Collector):
    """The families of one report, each a gauge: a report is the state at one time."""

    def __init__(self, report: Report, command: str) -> None:
        self._report = report
        self._command = command

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """As the client library asks for them; a family without a sample is left out."""
        report = self._report
        yield from self._family(
            "build_info", "Always 1; the release of ddp-doctor.", ("version",), {(report.tool.version,): 1}
        )
        yield from self._family(
            "verdict",
            "1 for the verdict, 0 for the others.",
            ("verdict",),
            {(verdict,): value for verdict, value in _each(Verdict, report.verdict)},
        )
        yield from self._family(
            "node_verdict", "1 for what the run says of a node, 0 for the others.", *_states_of_nodes(report)
        )
        yield from self._family(
            "findings",
            "Findings, by code and severity; there is no series where there is none.",
            ("code", "severity"),
            Counter((finding.code, finding.severity.value) for finding in report.findings),
        )
        yield from self._family(
            "node_findings",
            "Findings that name a node, by code and severity.",
            ("node", "code", "severity"),
            _findings_of_nodes(report),
        )
        yield from self._family(
            "check_status",
            "1 for what became of a check, 0 for the others; skipped, timed_out and failed were not evaluated.",
            ("check", "status"),
            {
                (check.id, status): value
                for check in report.checks
                for status, value in _each(CheckStatus, check.status)
            },
        )
        yield from self._family(
            "check_duration_seconds",
            "How long a check took on the slowest node or rank.",
            ("check",),
            {(check.id,): check.duration_s for check in report.checks if check.status is not CheckStatus.SKIPPED},
        )
        yield from self._family(
            "bandwidth_bytes_per_second",
            "What was measured, by its name in the JSON report; the slowest of several with the same labels.",
            _OF_BANDWIDTH,
            _bandwidths(report),
        )
        yield from self._counts()
        yield from self._family("last_run_timestamp_seconds", "When the run ended, in Unix time.", (), _ended(report))
        yield from self._family("last_run_duration_seconds", "How long the run took.", (), {(): report.duration_s})

    def _counts(self) -> Iterator[GaugeMetricFamily]:
        counted = (each for each in self._report.measurements if each.unit in ("nodes", "files"))
        for name, alike in grouped((each.name, each) for each in counted).items():
            samples = {tuple(map(str, each.labels.values())): each.value for each in alike}
            words = f"How many {alike[0].unit} of the fleet are so."
            yield from self._family(name, words, tuple(alike[0].labels), samples)

    def _family(self, name: str, words: str, labels: Iterable[str], samples: _Samples) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(f"ddp_doctor_{name}", words, labels=("command", *labels))
        for values, value in samples.items():
            family.add_metric([self._command, *map(plain, values)], value)
        if samples:
            yield family


def _each(states: type[Enum], state: Enum) -> Iterator[tuple[str, float]]:
    """A set of states as Prometheus' own exporters write it: a series each, so that none comes and goes."""
    for each in states:
        yield each.value, float(each is state)


def _states_of_nodes(report: Report) -> tuple[tuple[str, str], _Samples]:
    """The worst of nodes that say they have the same name."""
    worst = {
        node.hostname: node.verdict
        for verdict in reversed(_WORST_FIRST)
        for node in report.nodes
        if node.verdict is verdict
    }
    states = ((host, *state) for host, verdict in worst.items() for state in _each(Verdict, verdict))
    return ("node", "verdict"), {(host, verdict): value for host, verdict, value in states}


def _findings_of_nodes(report: Report) -> _Samples:
    by_fingerprint = {finding.fingerprint: finding for finding in report.findings}
    return Counter(
        (node.hostname, finding.code, finding.severity.value)
        for node in report.nodes
        for fingerprint in node.findings
        if (finding := by_fingerprint.get(fingerprint))
    )


def _bandwidths(report: Report) -> _Samples:
    hosts = {node.node_rank: node.hostname for node in report.nodes}
    backend = report.world.backend if report.world else ""
    slowest: dict[tuple[str, ...], float] = {}
    for measured in report.measurements:
        if measured.unit == "B/s" and math.isfinite(measured.value):
            key = _labels(measured, hosts, backend)
            slowest[key] = min(measured.value, slowest.get(key, math.inf))
    return slowest


def _labels(measured: Measurement, hosts: Mapping[int, str], backend: str) -> tuple[str, ...]:
    """The labels in the order of _OF_BANDWIDTH; empty is the same as none to Prometheus."""
    node = measured.labels.get("node", "")
    host = hosts.get(node, str(node)) if isinstance(node, int) else str(node)
    size, ranks, gpu = (str(measured.labels.get(name, "")) for name in ("bytes", "ranks", "gpu"))
    return (measured.name, size, ranks, backend, host, gpu)


def _ended(report: Report) -> _Samples:
    """Empty where the report does not tell: a time that is made up would say that all is well."""
    ended = report.finished_at or finished_at(report.started_at, report.duration_s)
    try:
        return {(): datetime.fromisoformat(ended.replace("Z", "+00:00")).timestamp()}
    except (ValueError, OverflowError):
        return {}
