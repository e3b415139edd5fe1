"""The times of the median step by rank, in milliseconds.

The median of 3 steps of 2 ranks, in ms:
 rank   step  compute  optimizer  waiting  transfer  loading  host  (hidden)
    0   93.0     15.5        1.2     63.2      10.8      1.1   1.4       8.2
 !! 1   95.7     73.9        1.4      0.0      11.4      1.0   8.0       4.0
share   100%      47%         1%      33%       12%       1%    5%        6%
   (hidden) is communication during computing, which already counts it
"""

from collections.abc import Container, Iterator
from dataclasses import replace

from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.report import StepParts, TracedRank, TracedWindow, TraceReport
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.render.layout import Table
from ddp_doctor.render.text import one_line

#: The parts that add up to a step: fields of StepParts, and the titles of their columns.
PARTS = {
    "compute": "compute",
    "optimizer": "optimizer",
    "waiting": "waiting",
    "transfer": "transfer",
    "not_told": "waiting or\ntransfer",
    "loading": "loading",
    "host": "host",
    "other": "other",
}
#: Minimum share of the step on any rank for a part to get a column.
_LEAST_SHARE = 0.005
#: Minimum ratio of the longest to the median step for an explanation.
_LONGER = 1.1
#: Maximum rows on a screen and on the page, ranks named by a finding first; -v shows each rank.
MOST_ROWS = 16
#: Maximum number of unread files to list on a screen.
_MOST_FILES = 3


def tables(report: TraceReport, _recording: object, *, each: bool) -> Iterator[Table]:
    """Yield one table per window; the last one notes what could not be read."""
    unread = [f"not read: {one_line(f'{name}: {why}' if name else why)}" for name, why in report.unread.items()]
    if not each and len(unread) > _MOST_FILES:
        unread = [*unread[:_MOST_FILES], f"not read: {len(unread) - _MOST_FILES} more (-v lists them)"]
    to_blame = blamed(report)
    for window in report.windows:
        notes = [*_notes(window), *(unread if window is report.windows[-1] else ())]
        ranks = sorted(window.ranks, key=lambda rank: rank.rank not in to_blame)
        shown = window.ranks if each or len(ranks) <= MOST_ROWS else tuple(ranks[:MOST_ROWS])
        if left := len(ranks) - len(shown):
            notes.insert(0, f"and {left} more ranks (-v shows each)")
        table = _table(window, shown, to_blame)
        yield replace(table, caption=f"{caption(report, window)}, in ms:", notes=tuple(notes))


def blamed(report: TraceReport) -> dict[int | None, list[str]]:
    """Return the codes of the findings that name a rank as the cause."""
    return grouped(
        (culprit.rank, finding.code)
        for finding in report.findings
        for culprit in finding.culprits
        if finding.severity is not Severity.INFO and culprit.rank is not None
    )


def caption(report: TraceReport, window: TracedWindow) -> str:
    """Return ``The median of 4 steps of 2 ranks``, with the number of all ranks if some are missing."""
    which = f"Window {window.number}: the" if len(report.windows) > 1 else "The"
    steps = max((len(rank.steps) for rank in window.ranks), default=0)
    given, all_of_them = len(window.ranks), window.world_size
    ranks = f"{given} of {all_of_them} ranks" if all_of_them and all_of_them > given else f"{given} ranks"
    return f"{which} median of {steps} step{'s' if steps != 1 else ''} of {'1 rank' if ranks == '1 ranks' else ranks}"


def name_of(rank: TracedRank | TraceFact) -> str:
    """Return the rank's number, or its file if unknown."""
    return str(rank.rank) if rank.rank is not None else one_line(rank.file).rpartition("/")[2]


def is_seen(window: TracedWindow, part: str) -> bool:
    """Return True if the part gets a column."""
    return any(getattr(rank.median, part) >= _LEAST_SHARE * rank.median.step > 0 for rank in window.ranks)


def _table(window: TracedWindow, shown: tuple[TracedRank, ...], to_blame: Container[int | None]) -> Table:
    step = sum(rank.median.step for rank in window.ranks) or 1.0
    columns = {"step": "step", **PARTS, "hidden": "(hidden)"}
    kept = [name for name in columns if is_seen(window, name)]
    rows = [
        (
            f"{'!! ' * (rank.rank in to_blame)}{name_of(rank)}",
            *(_ms(getattr(rank.median, name), rank.median) for name in kept),
        )
        for rank in shown
    ]
    shares = (sum(getattr(rank.median, name) for rank in window.ranks) / step for name in kept)
    rows.append(("share", *(f"{share:.0%}" for share in shares)))
    return Table(("rank", *(columns[name] for name in kept)), rows, range(len(kept) + 1))


def _ms(seconds: float, of: StepParts) -> str:
    digits = 0 if of.step >= 1 else 1 if of.step >= 0.01 else 2
    return f"{seconds * 1e3:.{digits}f}"


def _notes(window: TracedWindow) -> Iterator[str]:
    if is_seen(window, "hidden"):
        yield "(hidden) is communication during computing, which already counts it"
    if longest := _longest(window):
        yield longest
    if left := max((rank.left_out for rank in window.ranks), default=0):
        which = "recorded step is" if left == 1 else f"{left} recorded steps are"
        yield f"the first {which} excluded: the profiler starts there, and DDP may rebuild its buckets"
    for rank in window.ranks:
        if rank.cut:
            yield f"the file of rank {name_of(rank)} is cut off; its complete steps are used"
        if rank.damaged:
            yield f"the file of rank {name_of(rank)} is damaged: {rank.damaged} of its events could not be read"


def _longest(window: TracedWindow) -> str:
    """Return a note on the longest step: the rank and the part, except waiting, that made it longer."""
    steps = [(step, rank) for rank in window.ranks for step in rank.steps]
    if len(steps) < 2 * len(window.ranks):
        return ""
    longest, at = max(steps, key=lambda each: each[0].step)
    growths = [
        (getattr(step, part) - getattr(rank.median, part), title, name_of(rank))
        for step, rank in steps
        if step.number == longest.number
        for part, title in PARTS.items()
        if part not in ("waiting", "not_told")
    ]
    more, part, name = max(growths)
    words = f"the longest step is number {longest.number}, {_ms(longest.step, at.median)} ms"
    is_told = more >= (longest.step - at.median.step) / 2 and longest.step > _LONGER * at.median.step
    return f"{words}: {part} of rank {name} takes {_ms(more, at.median)} ms more than usual" if is_told else words
