"""A run compared with healthy runs, or traces with earlier traces, for people."""

from collections.abc import Sequence

from ddp_doctor.facts.cluster import BaselineFact, RunDifferencesFact, TracedSide, TracesFact
from ddp_doctor.knowledge.baselines import FEWEST_RUNS, in_words, loss, noise
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.layout import Table
from ddp_doctor.render.text import amount, one_line
from ddp_doctor.views.compared_traces import changes, scale
from ddp_doctor.wording.nodes import hosts

#: Rows of a table on a screen; the JSON has all.
SHOWN = 12
_NUMBERS = ("runs", "unhealthy", "nodes", "change", "noise")
Rows = Sequence[tuple[str, ...]]


def table(rows: Rows, titles: tuple[str, ...], caption: str, notes: tuple[str, ...] = ()) -> Table:
    """Return a table of one-line cells; columns of numbers are aligned to the right."""
    shown = [tuple(one_line(cell) for cell in row) for row in rows]
    return Table(titles, shown, [titles.index(name) for name in _NUMBERS if name in titles], caption, notes)


def change(name: str, value: float, median: float) -> str:
    """Return the change in percent, negative if slower."""
    return f"{round(-100 * loss(name, value, median)):+d}%"


def beside(recording: Recording, *, each: bool) -> Table | None:
    """Return a table of measurements compared with a baseline, slowest first, and of omitted ones, or None.

    If ``each`` is False, the table has only the first rows.
    """
    if (traces := recording.first(TracesFact)) is not None:
        return _traces(traces)
    fact, others = recording.first(BaselineFact), recording.first(RunDifferencesFact)
    left_out = tuple(map(one_line, others.left_out)) if others else ()
    if fact is None:
        if others is None or not left_out:
            return None
        return Table(caption=f"Not compared with {one_line(others.file)}:", notes=left_out)
    rows = []
    for held in sorted(fact.compared, key=lambda held: -loss(held.name, held.value, held.median)):
        gpu = "" if held.gpu is None else f", GPU {held.gpu}"
        usual = noise(held.name, held.median, held.mad)
        much = "all" if usual >= 1 else f"{100 * usual:.0f}%"  # all: too much to compare
        rows.append(
            (
                in_words(held.name, held.labels),
                f"{hosts(recording, held.nodes)}{gpu}" if held.nodes else "all",
                amount(held.value, held.unit),
                amount(held.median, held.unit),
                change(held.name, held.value, held.median),
                "?" if held.runs < FEWEST_RUNS else much,
            )
        )
    runs = f"{fact.runs} earlier healthy runs" if fact.runs > 1 else "one earlier run"
    titles = ("measured", "where", "value", "before", "change", "noise")
    shown = rows if each else rows[:SHOWN]
    return table(shown, titles, f"Compared with {runs} ({one_line(fact.file)}):", left_out)


def _traces(fact: TracesFact) -> Table:
    """Return the parts of a step, averaged over the ranks, before and now."""
    step = changes(fact)[0].before
    rows = [
        (
            each.part,
            *(f"{value / 1e3:.2f}" for value in (each.before, each.now)),
            f"{each.more / 1e3:+.2f}{' !!' * each.is_seen}",
            f"{each.noise / 1e3:.2f}",
            f"{each.more / step:+.0%}",
        )
        for each in changes(fact)
        if each.before or each.now
    ]
    notes = [f"{name}: {one_line(_of_side(side))}" for name, side in (("before", fact.before), ("now", fact.now))]
    if (by := scale(fact)) != 1.0:
        notes.append(f"the batches differ: the new step is scaled by {by:.2g} to the same number of samples")
    titles = ("one step, mean of all ranks, in ms", "before", "now", "change", "noise", "share of step")
    caption = f"{one_line(fact.now.file)} compared with {one_line(fact.before.file)}:"
    return Table(titles, rows, range(1, 6), caption, tuple(notes))


def _of_side(side: TracedSide) -> str:
    """Return ``2 ranks, 5 steps, 256 samples per rank, NVIDIA H100 80GB HBM3``."""
    samples = f"{side.samples:g} samples per rank" if side.samples else ""
    counts = [f"{count} {what}{'s' * (count != 1)}" for count, what in ((side.ranks, "rank"), (side.steps, "step"))]
    return ", ".join(filter(None, (*counts, samples, *side.gpus, side.problem)))
