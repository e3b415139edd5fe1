"""Where the time of each step of each rank goes, with waiting for others told from transfer."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from ddp_doctor.facts.trace import Interval, TraceFact, TraceStep
from ddp_doctor.model.intervals import Times
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.views.trace.windows import Window


class Parts(NamedTuple):
    """Microseconds of a step, or of the median step; all but ``step`` and ``hidden`` add up to ``step``."""

    step: float
    compute: float
    optimizer: float
    loading: float
    waiting: float  # for ranks that came later
    transfer: float
    not_told: float  # waiting or transfer: of a rank without its peers
    other: float
    host: float
    hidden: float  # communication beside computing


@once_a_recording
def parts(_recording: Recording, window: Window) -> tuple[tuple[Parts, ...], ...]:
    """For each rank of the window, for each of its steps."""
    return tuple(_of_rank(window, place, fact) for place, fact in enumerate(window.ranks))


@once_a_recording
def median_parts(recording: Recording, window: Window) -> tuple[Parts, ...]:
    """For each rank of the window: the step of median length, by the median of each part, scaled to its length."""
    return tuple(_median(steps) for steps in parts(recording, window))


def _of_rank(window: Window, place: int, fact: TraceFact) -> tuple[Parts, ...]:
    waits, met = list[Interval](), Counter[int]()
    for meeting in window.met.meetings:
        if place in meeting.spans:
            begin, _ = meeting.spans[place]
            waits.append((begin, begin + meeting.waited(place)))
            met[meeting.step] += 1
    calls = Counter(fact.steps[call.step].number for call in fact.calls if call.step is not None)
    told = {step for step in met if window.is_whole and met[step] == calls[step]}
    waited = Times.union(waits)
    return tuple(_of_step(step, waited, told=step.number in told) for step in fact.steps)


def _of_step(step: TraceStep, waits: Times, *, told: bool) -> Parts:
    """What of the exposed communication is waiting; the rest is transfer if no rank or collective is missing."""
    waiting = (Times.union(step.exposed) & waits).total
    rest = max(step.exposed_us - waiting, 0.0)
    return Parts(
        step=step.length_us,
        compute=step.compute_us,
        optimizer=step.optimizer_us,
        loading=step.loading_us,
        waiting=waiting,
        transfer=rest if told else 0.0,
        not_told=0.0 if told else rest,
        other=step.other_us,
        host=step.host_us,
        hidden=step.hidden_us,
    )


def _median(steps: Sequence[Parts]) -> Parts:
    length, *each, hidden = (median(values) for values in zip(*steps, strict=True))
    scale = length / sum(each) if sum(each) else 0.0
    return Parts._make((length, *(scale * part for part in each), hidden))
