r"""The report as Markdown for a ticket: findings, versions, tables, and the details folded.

Names and messages come from anywhere, and a ticket must only show them: they must not produce HTML, links, pictures,
table cells or an early end of code, and no @name must be notified. Anything that looks like a credential is omitted.

    node|1 <img src=x>   becomes   node\|1 &lt;img src=x>
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from ddp_doctor.features import recorded_by
from ddp_doctor.model.choices import CheckStatus
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import NOT_SELECTED, Recording
from ddp_doctor.model.report import Report
from ddp_doctor.parse.redact import KEPT_BACK, looks_like_credential
from ddp_doctor.render import about, findings, tables
from ddp_doctor.render.text import one_line, plain
from ddp_doctor.render.used_transports import used_table

#: Special in Markdown at any place; < and & may begin HTML, $ mathematics.
_MARKS = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
#: Special at the start of a line: a list, a heading or a rule.
_STARTS = re.compile(r"^(\d{1,9}(?=[.)](?:\s|$))|(?=[-+=#>]))")
#: GitHub and GitLab would notify a user or link to another issue.
_CALLS = re.compile(r"@|[#!]\d")


def render(report: Report, recording: Recording) -> str:
    """Return the complete block, ending in a newline."""
    blocks = [f"### ddp-doctor: {_text(report.summary)}"]
    blocks += [block for finding in report.findings for block in _finding(report, finding)]
    blocks += [_table(("", ""), about.lines(report, recording))]
    if (feature := recorded_by(recording.command)) is not None and feature.story is None:
        blocks += [_fence("\n".join(table.lines(None))) for table in feature.tables(report, recording, each=True)]
    elif feature is not None and feature.story is not None and feature.in_markdown:
        lines = (line for part in feature.story(report, recording, None, each=False) for line in part)
        blocks += [_folded(feature.in_markdown, [_fence(story)])] if (story := "\n".join(lines)) else []
    if measured := _measurements(report, recording):
        blocks += [_folded("Measurements", [_fence(measured)])]
    selected = [check for check in report.checks if check.reason != NOT_SELECTED]
    if selected and (feature is None or feature.lists_checks):
        rows = [(check.id, check.status.value.replace("_", " "), check.reason or "") for check in selected]
        counts = Counter(check.status for check in selected)
        words = ", ".join(f"{counts[status]} {status.value}" for status in CheckStatus if counts[status]).replace(
            "_", " "
        )
        blocks += [_folded(f"Checks: {words}", [_table(("check", "result", "reason"), rows)])]
    return "\n\n".join(blocks) + "\n"


def _finding(report: Report, finding: Finding) -> Iterator[str]:
    yield f"**{finding.severity.value.upper()} {_text(finding.code)}** {_text(finding.title)}"
    lines = [*findings.lines(finding, findings.cause_of(report, finding))]
    if finding.detail:  # is the first of them
        yield _text(lines.pop(0).text)
    blocks = []
    for to_paste, alike in groupby(lines, lambda line: line.to_paste):
        texts = [line.text for line in alike]
        items = [f"- {_text(text.removeprefix('- '))}" for text in texts]
        blocks.append(_fence("\n".join(texts)) if to_paste else "\n".join(items))
    yield _folded("Evidence and fixes", blocks)


def _measurements(report: Report, recording: Recording) -> str:
    reduces = [
        f"{size:>12} B {time_us:>10.1f} us"
        f" {tables.gb_per_s(algbw):>8} GB/s algbw {tables.gb_per_s(busbw):>8} GB/s busbw {wrong:>5} wrong"
        for size, time_us, algbw, busbw, wrong in tables.rows_with_rate(report.measurements)
    ]
    parts = [
        "\n".join(["all_reduce float32 sum, slowest rank", *reduces]) if reduces else "",
        used_table(recording),
        "\n".join(tables.lines(tables.isolation_table(recording))),
        "\n".join(tables.lines(tables.bucket_table(report.measurements))),
        "\n".join(tables.lines(tables.step_table(report.measurements))),
        "\n".join(tables.lines(tables.advice_table(report.measurements))),
    ]
    return "\n\n".join(part for part in parts if part)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (map(_text, row) for row in rows)]
    return "\n".join([f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *lines])


def _folded(title: str, blocks: Sequence[str]) -> str:
    return "\n\n".join([f"<details><summary>{title}</summary>", *blocks, "</details>"])


def _fence(text: str) -> str:
    """Return the text as a code block; the fence is longer than any in the text."""
    lines = "\n".join(KEPT_BACK if looks_like_credential(line) else line for line in plain(text).splitlines())
    marks = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", lines))])
    return f"{marks}text\n{lines}\n{marks}"


def _text(text: str) -> str:
    """Return foreign text on one line, with every mark of Markdown and HTML escaped."""
    line = one_line(text)
    if looks_like_credential(line):
        return KEPT_BACK
    words = (_code(word) if _CALLS.search(word) else _escaped(word) for word in line.split(" "))
    return _STARTS.sub(r"\1\\", " ".join(words))


def _escaped(text: str) -> str:
    marked = _MARKS.sub(lambda mark: f"\\{mark[0]}", text)
    return marked.replace("&", "&amp;").replace("<", "&lt;")


def _code(word: str) -> str:
    """Return a word as code, where only the pipe is escaped, because it ends a cell of a table."""
    marks = "`" * (1 + max((len(run) for run in re.findall("`+", word)), default=0))
    space = " " if "`" in word else ""
    return f"{marks}{space}{word.replace('|', chr(92) + '|')}{space}{marks}"
