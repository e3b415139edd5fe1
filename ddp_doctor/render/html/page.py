"""The page: first the findings and what to do, then the evidence, then what was read and what was not tested.

Names and messages come from anywhere and are shown as text: the templates escape all foreign text, the page does not
allow scripts, and anything that looks like a credential is omitted.
"""

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import cache
from itertools import groupby
from operator import itemgetter

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ddp_doctor.features import feature_of, recorded_by
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import WORST_FIRST, CheckStatus, Command, Severity, Verdict
from ddp_doctor.model.finding import Culprit, Finding
from ddp_doctor.model.recording import NOT_SELECTED, Recording
from ddp_doctor.model.report import CheckResult, NodeVerdict, Report
from ddp_doctor.parse.redact import masked
from ddp_doctor.render import about, checks, compared, findings, heat_map, settings_table, tables
from ddp_doctor.render.finding_lines import Placed
from ddp_doctor.render.findings import Line
from ddp_doctor.render.html import bars, timeline
from ddp_doctor.render.layout import Table
from ddp_doctor.render.text import amount, plain
from ddp_doctor.render.topology.picture import Picture, topology_svg
from ddp_doctor.render.topology.report import pictures
from ddp_doctor.render.used_transports import slowest_p2p, used_transports
from ddp_doctor.settings.in_force import with_settings
from ddp_doctor.wording.nodes import name_list, shortened
from ddp_doctor.wording.ranks import capital

#: Number of pictures: equal hosts share one, and hosts of further kinds are only counted.
_MOST_PICTURES = 6
#: Number of culprits that a finding lists.
_MOST_CULPRITS = 6
#: Maximum number of nodes with a row each.
_EACH_NODE = 8

#: Signs next to the text, so that the meaning does not depend on the color.
_SIGNS = {
    Verdict.UNHEALTHY: "✗",
    Verdict.UNSURE: "?",
    Verdict.DEGRADED: "!",
    Verdict.HEALTHY: "✓",
    Severity.ERROR: "✗",
    Severity.WARNING: "!",
    Severity.INFO: "i",
}


def render(report: Report, recording: Recording) -> str:
    """Return the complete file, ending in a newline."""
    feature = feature_of(recording.command)
    if feature is not None and feature.page is not None:
        name, values = feature.page(report)
        found = [_finding(report, finding) for finding in report.findings]
        page = environment().overlay(loader=_with_templates_of(recording.command)).get_template(name)
        return page.render(report=report, findings=found, sentence=_sentence(report), **values) + "\n"
    page = environment().get_template("report.html")
    return page.render(report=report, recording=recording, **_parts(report, recording)) + "\n"


@cache
def environment() -> Environment:
    """Return the environment of all pages, cached: compiling the templates takes longer than filling them."""
    made = Environment(
        loader=PackageLoader("ddp_doctor.render.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"sign": _SIGNS.__getitem__}
    return made


def _with_templates_of(command: Command) -> ChoiceLoader:
    own = PackageLoader(f"ddp_doctor.features.{command.value}")
    return ChoiceLoader([own, PackageLoader("ddp_doctor.render.html")])


def _shown(value: object) -> object:
    """Return the displayed form of a value; text from a template stays unchanged."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return masked(plain(value))


def _parts(report: Report, recording: Recording) -> dict[str, object]:
    feature = recorded_by(recording.command)
    has_checks = feature is None or feature.lists_checks
    selected = [check for check in report.checks if check.reason != NOT_SELECTED] if has_checks else []
    buckets = tables.bucket_table(report.measurements)
    measured = (
        compared.beside(recording, each=True),
        used_transports(recording),
        tables.isolation_table(recording),
        tables.gpu_table(report.measurements),
        tables.step_table(report.measurements),
        tables.advice_table(report.measurements),
        replace(buckets, caption="DDP's buckets of gradients") if buckets else None,
    )
    return {
        "sentence": _sentence(report),
        "about": list(about.lines(report, recording)),
        "findings": [_finding(report, finding) for finding in report.findings],
        "nodes": _nodes(report),
        "jobs": list(_job_tables(report, recording)),
        "timelines": list(timeline.timelines(report, recording)),
        "steps": list(_bars(report, recording)),
        "bandwidth": _bandwidth(report, recording),
        # Its own renderer escapes what it draws.
        "heat_maps": [(heat.title, Markup(heat_map.svg(heat))) for heat in heat_map.heat_maps(report)],  # noqa: S704
        "tables": [
            *(table for table in measured if table is not None),
            *tables.collectives_tables(report.measurements, all_rows=True),
        ],
        "topology": _topology(report, recording),
        "settings": _settings(report, recording),
        "tested": [check for check in selected if check.status in (CheckStatus.PASSED, CheckStatus.FOUND)],
        "untested": list(_untested(selected)),
        "not_selected": sum(check.reason == NOT_SELECTED for check in report.checks),
        "has_checks": has_checks,
    }


def _bars(report: Report, recording: Recording) -> Iterator[bars.Part]:
    if (feature := recorded_by(recording.command)) is not None:
        yield from feature.bars(report, recording)


def _sentence(report: Report) -> str:
    return capital(report.summary.removeprefix(f"{report.verdict.value.capitalize()}: ").removeprefix("Error: "))


def _finding(report: Report, finding: Finding) -> dict[str, object]:
    cause = findings.cause_of(report, finding)
    named = [_culprit(culprit, several=len(report.nodes) > 1) for culprit in finding.culprits]
    names = list(dict.fromkeys(filter(None, named)))
    return {
        "is": finding,
        "place": f"{finding.path}:{finding.line}" if isinstance(finding, Placed) else "",
        "culprits": shortened(names, _MOST_CULPRITS),
        "absent": findings.absent(finding),
        "remedies": [_words_and_pastes(findings.remedy_lines(remedy)) for remedy in finding.remedies],
        "evidence": list(findings.evidence_lines(finding.evidence)),
        "cause": _words_and_pastes(findings.job_cause_lines(cause)) if cause else [],
    }


def _words_and_pastes(lines: Iterator[Line]) -> list[tuple[bool, list[str]]]:
    """Group lines by whether they are pasted. "Undo:" is split from its command: a click selects a group."""
    parts: list[tuple[bool, str]] = []
    for line in lines:
        word, _, command = line.text.partition(": ")
        if line.to_paste and word == "Undo":
            parts += [(False, f"{word}:"), (True, command)]
        else:
            parts.append((line.to_paste, line.text))
    return [(to_paste, [text for _, text in turn]) for to_paste, turn in groupby(parts, itemgetter(0))]


def _culprit(culprit: Culprit, *, several: bool) -> str:
    """Return ``rank 5 on node2, GPU 1``, ``GPU 3 (GPU-0a1b…) on node2``, ``rank 0 on node1 and rank 3 on node2``."""
    number = "" if culprit.node_rank is None or not several else f"node rank {culprit.node_rank}"
    on = culprit.node or number
    rank = "" if culprit.rank is None else f"rank {culprit.rank}"
    gpu = "" if culprit.gpu is None else f"GPU {culprit.gpu}"
    if culprit.kind == "pair":
        peer = "" if culprit.peer_rank is None else f"rank {culprit.peer_rank}"
        ends = _at(rank, on), _at(peer, culprit.peer_node or "")
        return _at(culprit.name, on) if culprit.name else " and ".join(filter(None, ends))
    if culprit.kind == "gpu":
        named = "" if culprit.name in (None, gpu.replace(" ", "")) else f" ({culprit.name})"
        name = f"{gpu}{named}" if gpu else culprit.name or ""
        return _at(name, on)
    if culprit.kind == "rank":
        return ", ".join(filter(None, (_at(rank, on), gpu, culprit.name)))
    return _at(culprit.name or "", on)


def _at(name: str, node: str) -> str:
    return f"{name} on {node}" if name and node else name or node


def _nodes(report: Report) -> list[tuple[str, Verdict, list[str]]]:
    """Return the nodes, the worst first, with the codes that name them. If there are many, equal ones share a row."""
    if len(report.nodes) < 2:
        return []
    codes = {finding.fingerprint: finding.code for finding in report.findings}
    few = len(report.nodes) <= _EACH_NODE
    alike: dict[Hashable, list[NodeVerdict]] = grouped(
        (node.node_rank if few else (node.verdict, node.findings), node) for node in report.nodes
    )
    rows = [
        (
            name_list([node.hostname for node in nodes]),
            nodes[0].verdict,
            list(dict.fromkeys(codes[mark] for mark in nodes[0].findings if mark in codes)),
        )
        for nodes in alike.values()
    ]
    return sorted(rows, key=lambda row: WORST_FIRST.index(row[1]))


def _job_tables(report: Report, recording: Recording) -> Iterator[Table]:
    if (feature := recorded_by(recording.command)) is not None:
        yield from feature.tables(report, recording, each=True)


def _topology(report: Report, recording: Recording) -> dict[str, object]:
    """Return the hosts' pictures, one for equal hosts, faulty hosts first."""
    alike = grouped(
        ((picture.matrix.model_dump_json(), tuple(f.fingerprint for f in picture.faults())), picture)
        for picture in pictures(report, recording)
    )
    kinds = sorted(alike.values(), key=lambda hosts: not hosts[0].faults())
    drawn = [
        Picture(
            f"{hosts[0].title} and {len(hosts) - 1} more like it" if len(hosts) > 1 else hosts[0].title,
            hosts[0].matrix,
            hosts[0].findings,
        )
        for hosts in kinds[:_MOST_PICTURES]
    ]
    # Its own renderer escapes what it draws.
    svg = Markup(topology_svg(drawn)) if drawn else ""  # noqa: S704
    return {"svg": svg, "left": sum(map(len, kinds[_MOST_PICTURES:]))}


def _settings(report: Report, recording: Recording) -> dict[str, object]:
    of_env = with_settings(report, recording)
    rows = [(row, list(settings_table.further(row, of_env))) for row in of_env.settings]
    world = recording.world
    where = world.hostname(world.nodes[0].node_rank) if world and world.nnodes > 1 and world.nodes else ""
    return {"rows": rows, "versions": settings_table.versions(of_env), "where": where}


def _untested(selected: list[CheckResult]) -> Iterator[tuple[list[CheckResult], str, str]]:
    """Yield checks without a result, grouped by reason, then checks that did not run everywhere."""
    words = {CheckStatus.SKIPPED: "skipped", CheckStatus.TIMED_OUT: "timed out", CheckStatus.FAILED: "failed"}
    idle = [check for check in selected if check.status in words]
    for same in sorted(checks.alike(idle), key=lambda same: same[0].status is CheckStatus.SKIPPED):
        yield same, words[same[0].status], same[0].reason or ""
    for check in selected:
        if check.status not in words and check.reason:
            yield [check], "skipped in part", check.reason


# --- measurements ---------------------------------------------------------------------------------

_Part = dict[str, object]


def _bandwidth(report: Report, recording: Recording) -> _Part | None:
    """Return the bus bandwidths of the slowest rank by size, and the rate that large messages should reach.

    Bars and that rate are in percent of the width. None without measurements.
    """
    rows, untested = tables.rows_with_rate(report.measurements), list(tables.untested(report.measurements))
    if not rows and not untested:
        return None
    expected, source = _expected_bandwidth(report, recording)
    widest = max(*(busbw for *_, busbw, _ in rows), expected, 0.0) or 1.0
    sizes = [
        {
            "size": amount(size, "B"),
            "time": amount(float(f"{time_us:.4g}") / 1e6, "s"),
            "algbw": tables.gb_per_s(algbw),
            "busbw": tables.gb_per_s(busbw),
            "wrong": wrong,
            "percent": 100 * busbw / widest,
        }
        for size, time_us, algbw, busbw, wrong in rows
    ]
    words = f"{expected:.3g} GB/s, {source}" if expected else ""
    return {"sizes": sizes, "untested": untested, "expected": words, "expected_percent": 100 * expected / widest}


def _expected_bandwidth(report: Report, recording: Recording) -> tuple[float, str]:
    """Return GB/s that large messages should reach, and its source; a finding's comes before NCCL's constants."""
    for finding in report.findings:
        for item in finding.evidence:
            if item.check == "allreduce" and item.unit == "GB/s" and item.expected:
                return item.expected, item.expected_from or finding.code
    rate = slowest_p2p(recording)
    return (rate, "NCCL's own constants for the slowest pair of GPUs") if rate else (0.0, "")
