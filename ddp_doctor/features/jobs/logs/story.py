"""The description of an ended job from its output, and how its ranks ended, equal ranks in one row.

8 ranks on 2 nodes, torchrun, torch 2.15.0, NCCL 2.30.7; 3 files, 12,345 lines

                     host     pid   GPU  ended    was in         last line
!! rank 5            node2    4711  1    exit 1   idle after 16  epoch 3
   ranks 0-4, 6, 7   2 hosts  -     -    SIGTERM  all-reduce 17  step 120 loss 2.31
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from textwrap import shorten

from ddp_doctor.facts.given import FlightDumpFact
from ddp_doctor.features.jobs.facts import JobLogFact, RankSeen
from ddp_doctor.features.jobs.views.job_waits import collective_name, waits
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import JobFacts, LogsReport, Report
from ddp_doctor.render.layout import Table, folded
from ddp_doctor.render.text import one_line
from ddp_doctor.wording.ranks import rank_list

#: Maximum number of table rows, and of unreadable files listed, on a screen.
_MOST_ROWS = 12
_MOST_FILES = 3
_LONGEST_LINE = 100
_TITLES = ("", "host", "pid", "GPU", "ended", "was in", "last line")


def story(report: Report, recording: Recording, width: int | None, *, each: bool) -> Iterator[Iterable[str]]:
    """Yield the lines of the story, which has one part."""
    yield lines(report, recording, width, each=each)


def tables(report: Report, recording: Recording, **_: object) -> Iterator[Table]:
    """Yield the table of the ranks with the description of the job, if its output was read."""
    if told := list(words(report, recording)):
        yield replace(table(report, recording), caption=told[0], notes=tuple(told[1:]))


def lines(report: Report, recording: Recording, width: int | None = None, *, each: bool = False) -> Iterator[str]:
    """Yield the lines of the story. With ``each``, every rank has a row."""
    for number, text in enumerate(words(report, recording, each=each)):
        yield folded(text, width, hang=2 if number else 0)
    rows = _rows(report, recording, each=each)
    if rows:
        yield ""
        yield from Table(_TITLES, rows[: None if each else _MOST_ROWS]).without_empty_columns().lines(width)
        if not each and (left := len(rows) - _MOST_ROWS) > 0:
            yield f" and {left} more rows (-v shows each rank)"


def table(report: Report, recording: Recording) -> Table:
    """Return the table of the ranks, equal ranks in one row."""
    return Table(_TITLES, _rows(report, recording, each=False)).without_empty_columns()


def words(report: Report, recording: Recording, *, each: bool = False) -> Iterator[str]:
    """Yield the description of the job, and the files that could not be read."""
    job = recording.first(JobLogFact)
    if job is None or not isinstance(report, LogsReport):
        return
    yield _about(job, report.facts)
    unread = [file for file in job.files if file.unread is not None and (each or file.kind != "empty")]
    for file in unread if each else unread[:_MOST_FILES]:
        how = "Read in part" if file.lines else "Not read"
        yield f"{how}: {one_line(file.name)}: {one_line(file.unread or '')}"
    if not each and (left := len(unread) - _MOST_FILES) > 0:
        yield f"Not read: {left} more (-v lists them)"


def _about(job: JobLogFact, facts: JobFacts) -> str:
    ranks = f"{facts.ranks} rank{'s' if facts.ranks != 1 else ''}" if facts.ranks else ""
    on = f" on {len(facts.nodes)} nodes" if len(facts.nodes) > 1 else "".join(f" on {n}" for n in facts.nodes)
    versions = [f"{name} {version}" for name, version in (("torch", facts.torch), ("NCCL", facts.nccl)) if version]
    parts = [f"{ranks}{on}".strip(), facts.launcher, facts.backend, *versions]
    read = [file for file in job.files if file.unread is None or file.lines]
    number = sum(file.lines for file in read)
    files = f"{len(read)} file{'s' if len(read) != 1 else ''}"
    files += f", {number:,} line{'s' if number > 1 else ''}" if number else ""
    empty = sum(file.kind == "empty" for file in job.files)
    files += f", and {empty} empty" if empty else ""
    return one_line("; ".join(part for part in (", ".join(filter(None, parts)), files) if part))


def _rows(report: Report, recording: Recording, *, each: bool) -> list[tuple[str, ...]]:
    job = recording.first(JobLogFact)
    if job is None or not isinstance(report, LogsReport):
        return []
    blamed = {c.rank for cause in report.causes for c in cause.culprits if c.rank is not None}
    was_in = _collective_of_ranks(recording, job)
    seen = {rank.rank: rank for rank in job.ranks}
    known = [seen.get(rank, RankSeen(rank=rank)) for rank in sorted({*seen, *was_in, *blamed})]
    if each:
        groups = [[rank] for rank in known]
    else:
        groups = _alike(known, was_in, blamed, with_lines=True)
        if len(groups) > _MOST_ROWS:
            groups = _alike(known, was_in, blamed, with_lines=False)
    groups.sort(key=lambda group: (group[0].rank not in blamed, group[0].rank))
    return [_row(group, was_in, is_blamed=group[0].rank in blamed) for group in groups]


def _alike(
    ranks: Sequence[RankSeen], was_in: dict[int, str], blamed: set[int], *, with_lines: bool
) -> list[list[RankSeen]]:
    def story(rank: RankSeen) -> tuple[object, ...]:
        last = re.sub(r"\d+", "0", rank.last.text) if with_lines and rank.last is not None else ""
        return rank.rank in blamed, _ended(rank), was_in.get(rank.rank, ""), last

    return list(grouped((story(rank), rank) for rank in ranks).values())


def _row(ranks: Sequence[RankSeen], was_in: dict[int, str], *, is_blamed: bool) -> tuple[str, ...]:
    single = ranks[0] if len(ranks) == 1 else None
    hosts = list(dict.fromkeys(rank.host for rank in ranks if rank.host))
    return (
        f"{'!! ' * is_blamed}{rank_list([rank.rank for rank in ranks])}",
        one_line(hosts[0]) if len(hosts) == 1 else f"{len(hosts)} hosts" if hosts else "",
        str(single.pid or "") if single else "",
        "" if single is None or single.gpu is None else str(single.gpu),
        _ended(ranks[0]),
        was_in.get(ranks[0].rank, ""),
        shorten(one_line(ranks[0].last.text), _LONGEST_LINE, placeholder=" …") if ranks[0].last else "",
    )


def _ended(rank: RankSeen) -> str:
    return rank.signal or ("" if rank.exit_code is None else f"exit {rank.exit_code}")


def _collective_of_ranks(recording: Recording, job: JobLogFact) -> dict[int, str]:
    found = {
        rank: f"{collective_name(wait.op)} {wait.seq}"
        for of_group in waits(job).values()
        for rank, wait in of_group.items()
        if wait.seq is not None
    }
    for sign in (sign for sign in job.signs if "work" in sign.values):
        for number in sign.ranks:
            found.setdefault(number, f"collective {sign.values['work']}")
    for at in recording.facts(FlightDumpFact):
        rank = at.fact.rank if at.fact.rank is not None else at.rank
        if rank is not None and (at.fact.problem is None or rank not in found):
            found[rank] = _in_dump(at.fact)
    return found


def _in_dump(dump: FlightDumpFact) -> str:
    if dump.problem is not None:
        return f"dump: {one_line(dump.problem)}"
    for group in dump.groups:
        for entry in group.entries:
            if entry.is_open:
                return f"{collective_name(entry.op)} {entry.seq}"
    highest = max((group.highest_seq for group in dump.groups), default=0)
    return f"idle after {highest}" if highest else "no collective yet"
