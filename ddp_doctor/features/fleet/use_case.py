"""``ddp-doctor fleet``: compares many runs; reads their files one at a time to bound memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import monotonic

from pydantic import ValidationError

from ddp_doctor.app.outcome import Outcome, UsageError, blank
from ddp_doctor.app.recordings import JsonFile, read_json, report_in
from ddp_doctor.features.fleet.comparison import Labels, MeasuredRun, make_baseline, measured_run
from ddp_doctor.features.fleet.report import (
    CommonFinding,
    Difference,
    FleetNode,
    FleetReport,
    LeftOut,
    NamedFinding,
    Outlier,
    SharedValue,
    Since,
)
from ddp_doctor.knowledge.baselines import FEWEST_RUNS, is_outlier, loss
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import USABLE, WORST_FIRST, Command, Severity, Verdict, exit_code
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Options
from ddp_doctor.model.report import Measurement, NodeVerdict, Tool
from ddp_doctor.parse.file_kinds import BASELINE, FLEET_REPORT, RECORDING, REPORT
from ddp_doctor.sources.given import is_folder
from ddp_doctor.views.node_traits import is_setting
from ddp_doctor.wording.findings import counted
from ddp_doctor.wording.nodes import name_list

_ENDINGS = (".json", ".json.gz")
#: Keys of reports that evaluate a text, or less than a node.
_OF_LESS = {"settings": "env", "topology": "topology", "causes": "logs or attach"}
_SEVERITIES = (Severity.ERROR, Severity.WARNING)
#: Number of unhealthy runs of a node, if it has more than the others, that makes it a "lemon node" (Kokolis et al.,
#: Revisiting Reliability in Large-Scale Machine Learning Research Clusters, 2024); the number is a judgment.
_LEMON_RUNS = 3
#: Changes between usable and unhealthy, as in: healthy, unhealthy, healthy, unhealthy.
_FLAPPING_CHANGES = 3
#: A start further ahead than this is wrong: Kerberos tolerates as much (RFC 4120, 5 minutes).
_FUTURE_S = 300.0


@dataclass(frozen=True)
class _Run:
    at: float  # seconds since the epoch; before all others for a run with an impossible time
    run_id: str
    started_at: str
    nodes: tuple[NodeVerdict, ...]
    measured: MeasuredRun


@dataclass
class Fleet:
    """The contents of the files."""

    now: float
    files: int = 0
    runs: list[_Run] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    before: FleetReport | None = None  # the newest fleet report among the files
    findings: dict[str, Finding] = field(default_factory=dict)  # errors and warnings by fingerprint
    _read: dict[str, str] = field(default_factory=dict)  # files by the run in them

    def leave_out(self, path: str, why: str) -> None:
        """Record why a file is skipped."""
        self.left_out.append(LeftOut(file=path, why=why))

    def add(self, path: str) -> None:
        """Read one file, and keep what is compared."""
        self.files += 1
        try:
            file = read_json(path)
            if file.kind == FLEET_REPORT:
                before = FleetReport.model_validate_json(file.text)
                latest, at = _seconds(self.before.started_at) if self.before else None, _seconds(before.started_at)
                if at is not None and at <= self.now + _FUTURE_S and (latest is None or at > latest):
                    self.before = before
            elif file.kind != BASELINE:
                self._add(path, file)
        except ValidationError:
            self.leave_out(path, f"cannot use {quoted(path)}: it is not a valid fleet report")
        except UsageError as error:
            self.leave_out(path, str(error))

    def _add(self, path: str, file: JsonFile) -> None:
        if of_less := _narrower_command(file):
            raise UsageError(f"{quoted(path)} is from `{of_less}`, which does not test an entire node")
        report = report_in(file)
        if not report.nodes:
            raise UsageError(f"{quoted(path)} does not report on any node")
        if (first := self._read.setdefault(report.run_id, path)) != path:
            raise UsageError(f"{quoted(path)} is from the same run as {quoted(first)}")
        at = _seconds(report.started_at)
        if at is None or at > self.now + _FUTURE_S:
            when = f"starts in the future, {report.started_at}" if at else "has no start time"
            self.leave_out(path, f"{quoted(path)} {when}: it is treated as older than all others")
            at = 0.0
        for finding in report.findings:
            if finding.severity in _SEVERITIES:
                self.findings[finding.fingerprint] = finding
        nodes = tuple(_with_reason(node, report.findings) for node in report.nodes)
        self.runs.append(_Run(at, report.run_id, report.started_at, nodes, measured_run(report)))


_REASONS = {Verdict.UNHEALTHY: Severity.ERROR, Verdict.DEGRADED: Severity.WARNING}


def _with_reason(node: NodeVerdict, findings: Sequence[Finding]) -> NodeVerdict:
    """Add the run's findings without a node, such as a setting, if no finding of the node explains its verdict."""
    because = [found.fingerprint for found in findings if found.severity is _REASONS.get(node.verdict)]
    if not because or set(because) & set(node.findings):
        return node
    of_none = {found.fingerprint for found in findings if not any(each.node for each in found.culprits)}
    return node.model_copy(update={"findings": (*(each for each in because if each in of_none), *node.findings)})


def _narrower_command(file: JsonFile) -> str | None:
    """Return the command of a recording or report that covers less than a node, otherwise None."""
    if file.kind == RECORDING:
        options = file.data.get("options")
        command = options.get("command", "run") if isinstance(options, dict) else "run"
        return str(command) if command not in ("run", "prolog") else None
    keys = file.data.keys() if file.kind == REPORT else ()
    return next((command for key, command in _OF_LESS.items() if key in keys), None)


def _seconds(text: str) -> float | None:
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None


def read_fleet(paths: Sequence[str], tell: Callable[[str], None]) -> Fleet:
    """Read files, and files in directories. Raises UsageError if none of them is a run."""
    fleet = Fleet(datetime.now(timezone.utc).timestamp())
    for number, path in enumerate(dict.fromkeys(_files(paths, fleet))):
        if number % 100 == 0:
            tell(f"{number} files read")
        fleet.add(path)
    if not fleet.runs:
        why = f": {fleet.left_out[0].why}" if fleet.left_out else ""
        more = f" (and {len(fleet.left_out) - 1} more)" if len(fleet.left_out) > 1 else ""
        way_out = "write reports with `ddp-doctor run --json FILE` or `ddp-doctor prolog --json FILE`"
        raise UsageError(f"found no run in {name_list([*map(quoted, paths)])}{why}{more}; {way_out}")
    fleet.runs.sort(key=lambda run: run.at)
    return fleet


def _files(paths: Sequence[str], fleet: Fleet) -> Iterator[str]:
    for path in paths:
        if not is_folder(path):
            yield path
            continue
        try:
            yield from sorted(
                f"{found}" for found in Path(path).rglob("*") if found.name.endswith(_ENDINGS) and found.is_file()
            )
        except OSError as error:
            fleet.leave_out(path, f"{path} cannot be read whole: {error.strerror}")


def fleet_outcome(fleet: Fleet, started: float) -> Outcome:
    """Return the outcome of all files; ``started`` is when reading began, on the monotonic clock."""
    recording = blank(Options(command=Command.FLEET))
    newest = {node.hostname: (run, node) for run in fleet.runs for node in run.nodes}
    nodes = _nodes(fleet.runs, newest)
    verdict = next(each for each in WORST_FIRST if any(node.verdict is each for node in nodes))
    named = {fingerprint for node in nodes for fingerprint in node.findings}
    findings = [finding for fingerprint, finding in fleet.findings.items() if fingerprint in named]
    findings.sort(key=lambda finding: (_SEVERITIES.index(finding.severity), finding.code))
    report = FleetReport(
        tool=Tool(version=recording.tool_version),
        run_id=recording.run_id,
        started_at=recording.started_at,
        duration_s=round(monotonic() - started, 3),
        verdict=verdict,
        exit_code=exit_code(verdict).value,
        summary=_summary(verdict, nodes, fleet),
        nodes=tuple(nodes),
        findings=tuple(findings),
        runs=len(fleet.runs),
        files=fleet.files,
        left_out=tuple(fleet.left_out),
        common=tuple(_common(findings, nodes)),
        differences=tuple(_differences(nodes)),
        outliers=tuple(_outliers(newest)),
    )
    since = _since(fleet.before, report) if fleet.before else None
    measured = tuple(_counts(report))
    return Outcome(recording, report.model_copy(update={"since": since, "measurements": measured}))


def baseline_of(fleet: Fleet) -> str:
    """Return a baseline of the healthy and degraded runs as text. Raises UsageError if they are too few."""
    measured = [run.measured for run in fleet.runs]
    baseline = make_baseline(measured)
    if baseline is None:
        usable = sum(run.verdict in USABLE for run in measured)
        raise UsageError(
            f"cannot write a baseline: it requires {FEWEST_RUNS} healthy or degraded runs with the same measurements"
            f" on the same hardware (healthy or degraded: {usable} of {len(measured)})"
        )
    return baseline.model_dump_json(indent=1) + "\n"


def _summary(verdict: Verdict, nodes: Sequence[FleetNode], fleet: Fleet) -> str:
    these = [node.hostname for node in nodes if node.verdict is verdict]
    what = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    runs = f"in {len(fleet.runs)} run{'s' if len(fleet.runs) != 1 else ''}"
    if verdict is Verdict.HEALTHY:
        sentence = f"Healthy: {what} {runs}"
    else:
        sentence = f"{verdict.value.capitalize()}: {len(these)} of {what} ({name_list(these)})"
    left_out = len({each.file for each in fleet.left_out})
    files = f" {counted(left_out, 'file')} need{'s' * (left_out == 1)} attention." if left_out else ""
    return f"{sentence}.{files}"


def _nodes(runs: Sequence[_Run], newest: Mapping[str, tuple[_Run, NodeVerdict]]) -> list[FleetNode]:
    history = grouped((node.hostname, node.verdict) for run in runs for node in run.nodes)
    unhealthy = {host: verdicts.count(Verdict.UNHEALTHY) / len(verdicts) for host, verdicts in history.items()}
    usual = median(unhealthy.values())
    usually = median(abs(share - usual) for share in unhealthy.values())
    nodes = []
    for number, host in enumerate(sorted(newest)):
        run, node = newest[host]
        failed = [verdict is Verdict.UNHEALTHY for verdict in history[host] if verdict is not Verdict.UNSURE]
        changes = sum(before is not after for before, after in pairwise(failed))
        unhealthy_runs = sum(failed)
        nodes.append(
            FleetNode(
                **dict(node) | {"node_rank": number},
                run_id=run.run_id,
                seen_at=run.started_at,
                runs=len(history[host]),
                unhealthy_runs=unhealthy_runs,
                changes=changes,
                flapping=changes >= _FLAPPING_CHANGES,
                lemon=unhealthy_runs >= _LEMON_RUNS and unhealthy[host] > usual + usually,
            )
        )
    return nodes


def _common(findings: Sequence[Finding], nodes: Sequence[FleetNode]) -> Iterator[CommonFinding]:
    hosts = grouped((fingerprint, node.hostname) for node in nodes for fingerprint in node.findings)
    by_code = grouped((finding.code, finding) for finding in findings).values()
    for alike in sorted(by_code, key=lambda alike: (alike[0].severity is not Severity.ERROR, -len(alike))):
        named = {host for finding in alike for host in hosts[finding.fingerprint]}
        fields = {name: getattr(alike[0], name) for name in ("code", "name", "severity", "title")}
        yield CommonFinding(**fields, nodes=tuple(sorted(named)))


def _differences(nodes: Sequence[FleetNode]) -> Iterator[Difference]:
    known = [node for node in nodes if node.traits]
    for name in sorted({name for node in known for name in node.traits}):
        of_value = grouped(
            (node.traits.get(name), node.hostname) for node in known if name in node.traits or is_setting(name)
        )
        if len(of_value) > 1:
            ordered = sorted(of_value.items(), key=lambda each: (-len(each[1]), each[0] or ""))
            yield Difference(
                name=name,
                values=tuple(
                    SharedValue(value=value, count=len(hosts), nodes=tuple(hosts) if number else ())
                    for number, (value, hosts) in enumerate(ordered)
                ),
            )


def _outliers(newest: Mapping[str, tuple[_Run, NodeVerdict]]) -> list[Outlier]:
    """Return the slowest value of each node that is far below the nodes with the same hardware."""
    found: dict[tuple[str, Labels, str, frozenset[tuple[str, str]]], dict[str, float]] = {}
    for host, (run, node) in newest.items():
        hardware = frozenset(run.measured.hardware.items())
        for figure in run.measured.figures:
            if figure.nodes == (node.node_rank,):
                of_hosts = found.setdefault((figure.name, figure.labels, figure.unit, hardware), {})
                slower = host not in of_hosts or loss(figure.name, figure.value, of_hosts[host]) > 0
                of_hosts[host] = figure.value if slower else of_hosts[host]
    outliers = []
    for (name, labels, unit, _), values in found.items():
        middle = median(values.values())
        deviation = median(abs(value - middle) for value in values.values())
        alike = {"name": name, "labels": dict(labels), "unit": unit, "median": middle, "mad": deviation}
        outliers += [
            Outlier.model_validate({**alike, "node": host, "value": value, "nodes": len(values)})
            for host, value in values.items()
            if len(values) >= FEWEST_RUNS and is_outlier(name, value, middle, deviation)
        ]
    return sorted(outliers, key=lambda each: -loss(each.name, each.value, each.median))


def _since(before: FleetReport, now: FleetReport) -> Since:
    old = {node.hostname: node.verdict for node in before.nodes}
    new = {node.hostname: node.verdict for node in now.nodes}
    failed = {host: [verdict is Verdict.UNHEALTHY for verdict in (old[host], new[host])] for host in old.keys() & new}
    return Since(
        run_id=before.run_id,
        started_at=before.started_at,
        came=tuple(sorted(new.keys() - old.keys())),
        gone=tuple(sorted(old.keys() - new.keys())),
        became_unhealthy=tuple(host for host in sorted(failed) if failed[host] == [False, True]),
        recovered=tuple(host for host in sorted(failed) if failed[host][0] and new[host] in USABLE),
        findings_came=_others(now.findings, before.findings),
        findings_gone=_others(before.findings, now.findings),
    )


def _others(some: Iterable[Finding], than: Iterable[Finding]) -> tuple[NamedFinding, ...]:
    known = {finding.fingerprint for finding in than}
    return tuple(
        NamedFinding(fingerprint=finding.fingerprint, code=finding.code, title=finding.title)
        for finding in some
        if finding.fingerprint not in known
    )


def _counts(report: FleetReport) -> Iterator[Measurement]:
    """Yield the counts for a dashboard, with names that no run has."""
    verdicts = Counter(node.verdict for node in report.nodes)
    for verdict in WORST_FIRST:
        yield Measurement(name="fleet_nodes", value=verdicts[verdict], unit="nodes", labels={"verdict": verdict.value})
    counts = {
        "lemons": sum(node.lemon for node in report.nodes),
        "flapping": sum(node.flapping for node in report.nodes),
        "outliers": len({outlier.node for outlier in report.outliers}),
    }
    for name, value in counts.items():
        yield Measurement(name=f"fleet_{name}", value=value, unit="nodes")
    yield Measurement(name="fleet_files_left_out", value=len(report.left_out), unit="files")
