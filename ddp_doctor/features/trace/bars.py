"""Bars: the parts of each rank's median step, and timelines of the median and the longest step.

Each rank has its own clock. A timeline aligns the ranks at the end of a collective that all ranks leave together.
"""

from collections.abc import Iterator, Sequence
from statistics import median_low

from ddp_doctor.features.trace.facts import TraceFact, TraceStep
from ddp_doctor.features.trace.report import TracedRank, TraceReport
from ddp_doctor.features.trace.table import MOST_ROWS, PARTS, blamed, caption, is_seen, name_of
from ddp_doctor.features.trace.views.windows import windows
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.html.bars import Part, bar
from ddp_doctor.render.tables import three_digits
from ddp_doctor.render.text import amount, one_line

#: Maximum number of a rank's collectives to draw, the longest first.
_MOST_CALLS = 200
_ENDS_TOGETHER = ("all_reduce", "barrier", "all_gather", "reduce_scatter", "all_to_all")


def steps(report: TraceReport, recording: Recording) -> Iterator[Part]:
    """Yield the pictures of each window."""
    to_blame = blamed(report)
    for traced, window in zip(report.windows, windows(recording), strict=True):
        ranks = sorted(zip(traced.ranks, window.ranks, strict=True), key=lambda each: each[0].rank not in to_blame)
        shown = sorted(ranks[:MOST_ROWS], key=lambda each: traced.ranks.index(each[0]))
        most = max((rank.median.step for rank in traced.ranks), default=0.0) or 1.0
        yield {
            "title": caption(report, traced),
            "of": "the median step",
            "legend": [(name, words.replace("\n", " ")) for name, words in PARTS.items() if is_seen(traced, name)],
            "bars": [
                (
                    f"rank {name_of(rank)}",
                    to_blame.get(rank.rank, []),
                    three_digits(rank.median.step),
                    list(_parts(rank, most)),
                )
                for rank, _ in shown
            ],
            "lines": list(_lines([fact for _, fact in shown])),
            "left": len(ranks) - len(shown),
        }


def _parts(rank: TracedRank, longest: float) -> Iterator[Part]:
    """Yield the parts of the median step one after another, in percent of the longest median step of all ranks."""
    start = 0.0
    for name, title in PARTS.items():
        seconds = getattr(rank.median, name)
        width = 100 * seconds / longest
        if width > 0:
            share = f"{seconds / rank.median.step:.0%} of the step"
            words = f"{title.replace(chr(10), ' ')}: {three_digits(seconds)}, {share}"
            yield bar(name, start, width, words, title.partition("\n")[0])
        start += width


def _lines(facts: Sequence[TraceFact]) -> Iterator[Part]:
    """Yield timelines of the median and the longest step that all of these ranks have; one if both are the same."""
    of_ranks = [{step.number: step for step in fact.steps} for fact in facts]
    common = sorted(set(of_ranks[0]).intersection(*of_ranks)) if of_ranks else []
    if not common:
        return
    length = {number: max(of[number].length_us for of in of_ranks) for number in common}
    middle = median_low(length.values())
    usual = next(number for number in common if length[number] == middle)
    longest = max(common, key=lambda number: length[number])
    for number, what in dict.fromkeys([(usual, "the median"), (longest, "the longest")]):
        rows = [(fact, of[number]) for fact, of in zip(facts, of_ranks, strict=True)]
        yield _line(f"Step {number}, {what if longest != usual else 'the median and the longest'}", rows)
        if longest == usual:
            return


def _line(title: str, rows: Sequence[tuple[TraceFact, TraceStep]]) -> Part:
    together = [_last_together(fact, step) for fact, step in rows]
    known = [end for end in together if end is not None]
    zeros = known if len(known) == len(rows) else [step.begin_us for _, step in rows]
    begin = min(step.begin_us - zero for (_, step), zero in zip(rows, zeros, strict=True))
    end = max(step.end_us - zero for (_, step), zero in zip(rows, zeros, strict=True))
    drawn = []
    for (fact, step), zero in zip(rows, zeros, strict=True):
        scale = _Scale(begin + zero, end + zero)
        calls = list(_communication(fact, step, scale))
        drawn.append({"name": name_of(fact), "work": list(_work(step, scale)), "calls": calls})
    return {"title": title, "end": _ms(end - begin), "rows": drawn, "is_aligned": zeros is known}


class _Scale:
    """A scale from microseconds to percent of the width."""

    def __init__(self, begin: float, end: float) -> None:
        self.begin, self.us = begin, max(end - begin, 1e-3)

    def bar(self, name: str, begin: float, end: float, words: str, label: str = "") -> Part:
        """Return the bar from one time to another."""
        return bar(name, 100 * (begin - self.begin) / self.us, 100 * (end - begin) / self.us, words, label)


def _last_together(fact: TraceFact, step: TraceStep) -> float | None:
    at = fact.steps.index(step)
    return max((call.end_us for call in fact.calls if call.step == at and call.kind in _ENDS_TOGETHER), default=None)


def _work(step: TraceStep, scale: _Scale) -> Iterator[Part]:
    yield scale.bar("step", step.begin_us, step.end_us, f"the step: {_ms(step.length_us)}")
    for begin, end in step.exposed:
        yield scale.bar("waiting", begin, end, f"communication alone: {_ms(end - begin)}", "communication")
    if gap := step.gap:
        inside = f" in {one_line(' > '.join(gap.inside))}" if gap.inside else ""
        words = f"nothing ran{inside}: {_ms(step.gap_us)}"
        yield scale.bar("host", gap.begin_us, gap.end_us, words, "gap")


def _communication(fact: TraceFact, step: TraceStep, scale: _Scale) -> Iterator[Part]:
    inside = (call for call in fact.calls if call.begin_us < step.end_us and call.end_us > step.begin_us)
    for call in sorted(inside, key=lambda call: call.begin_us - call.end_us)[:_MOST_CALLS]:
        size = f" of {amount(call.size_bytes, 'B')}" if call.size_bytes else ""
        words = f"{one_line(call.kind)}{size}: {_ms(call.end_us - call.begin_us)}"
        yield scale.bar("transfer", max(call.begin_us, step.begin_us), min(call.end_us, step.end_us), words)


def _ms(us: float) -> str:
    return three_digits(us / 1e6)
