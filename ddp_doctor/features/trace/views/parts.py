"""The parts of each step, with waiting and transfer separated, and the usual contents of a step."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import NamedTuple

from ddp_doctor.features.trace.facts import Interval, TraceCall, TraceFact, TraceStep
from ddp_doctor.features.trace.numbers import TINY_BYTES, TINY_TIMES
from ddp_doctor.features.trace.views.windows import Window
from ddp_doctor.knowledge.ddp.buckets import DEFAULT_CAP_MIB, FIRST_BUCKET_BYTES, MIB
from ddp_doctor.model.intervals import Times
from ddp_doctor.model.recording import Recording, once_a_recording

Calls = Sequence[TraceCall]
#: A value of one step and its collectives, usually microseconds.
Measure = Callable[[TraceStep, Calls], float]
Average = Callable[[Iterable[float]], float]


class Parts(NamedTuple):
    """The parts of a step or of the median step in microseconds; all but ``step`` and ``hidden`` add up to ``step``."""

    step: float
    compute: float
    optimizer: float
    loading: float
    waiting: float  # for ranks that arrive later
    transfer: float
    not_told: float  # waiting or transfer, if the rank's peers are missing
    other: float
    host: float
    hidden: float  # communication during computing


@once_a_recording
def parts(_recording: Recording, window: Window) -> tuple[tuple[Parts, ...], ...]:
    """Return the parts of each step of each rank in the window."""
    return tuple(_of_rank(window, place, fact) for place, fact in enumerate(window.ranks))


@once_a_recording
def median_parts(recording: Recording, window: Window) -> tuple[Parts, ...]:
    """Return for each rank the step of median length, by the median of each part, scaled to its length."""
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
    """Split the exposed communication: the rest is transfer if no rank or collective is missing."""
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


@dataclass(frozen=True)
class Buckets:
    """The buckets that carry the gradients of one backward pass."""

    count: float
    size_bytes: float  # total of all buckets; 0 if sizes were not recorded
    first_bytes: float  # size of the first bucket

    @property
    def tiny(self) -> bool:
        """Return True if the buckets are small and many more than by default."""
        many = self.count >= TINY_TIMES * self.by_default
        return bool(self.size_bytes) and many and self.size_bytes / self.count < TINY_BYTES

    @property
    def by_default(self) -> int:
        """The number of buckets that DistributedDataParallel makes for these bytes with its default sizes."""
        more = max(self.size_bytes - FIRST_BUCKET_BYTES, 0.0)
        return 1 + -int(-more // (DEFAULT_CAP_MIB * MIB))

    @property
    def cap_mib(self) -> float | None:
        """A bucket_cap_mb that makes similar buckets; the gradient that fills a bucket makes it larger than the cap."""
        share = 0.8 if self.count > 1 else 2.0
        return float(f"{share * self.size_bytes / self.count / MIB:.3g}") or None


class Usual:
    """The steps of a window."""

    def __init__(self, window: Window) -> None:
        self.ranks = window.ranks
        self.on_gpu = all(fact.device == "gpu" for fact in window.ranks)
        self.is_ddp = any(fact.is_ddp for fact in window.ranks)
        self._steps = [_steps(fact) for fact in window.ranks]
        self.step_us = max(self.of_ranks(lambda step, _: step.length_us), default=0.0)

    def of_ranks(self, measure: Measure, average: Average = median) -> list[float]:
        """Return the measure of a usual step for each rank."""
        return [average([measure(step, calls) for step, calls in steps]) for steps in self._steps]

    def least(self, measure: Measure, average: Average = median) -> float:
        """Return the minimum over all ranks, as a share of the step."""
        return min(self.of_ranks(measure, average)) / self.step_us

    def count(self, measure: Measure) -> float:
        """Return the minimum of the measure over all ranks."""
        return min(self.of_ranks(measure))

    def at_most(self, measure: Measure, average: Average = median) -> float:
        """Return the maximum share of the step that is saved if each rank does not spend this time.

        A rank also saves its waiting for other ranks, if this time made them late. A late rank therefore limits the
        bound: the other ranks' waiting for it cannot be saved.
        """
        spared, exposed = self.of_ranks(measure, average), self.of_ranks(lambda step, _: step.exposed_us, average)
        length = average(self.of_ranks(lambda step, _: step.length_us, average))
        waited = [each - min(exposed) for each in exposed]
        return min(max(spared), *map(sum, zip(spared, waited, strict=True)), length) / length

    @cached_property
    def buckets(self) -> Buckets:
        """Return the buckets of one backward pass that averages gradients."""
        passes = max(self.count(lambda step, _: step.averaged), 1.0)

        def first(calls: Calls) -> float:
            return next((call.size_bytes or 0.0 for call in calls if is_bucket(call)), 0.0)

        return Buckets(
            self.count(lambda _, calls: sum(map(is_bucket, calls))) / passes,
            self.count(lambda _, calls: sum(call.size_bytes or 0 for call in calls if is_bucket(call))) / passes,
            self.count(lambda _, calls: first(calls)),
        )


def is_bucket(call: TraceCall) -> bool:
    """Return True if it averages a bucket of gradients."""
    return call.averages and not is_map(call)


def is_map(call: TraceCall) -> bool:
    """Return True for the map of used parameters, which find_unused_parameters sends with each backward."""
    return call.averages and call.dtype.startswith("int")


def exposed_in(wanted: Callable[[TraceCall], bool]) -> Measure:
    """Measure how long only communication ran, in collectives of a kind."""

    def measure(step: TraceStep, calls: Calls) -> float:
        return min(sum(call.exposed_us for call in calls if wanted(call)), step.exposed_us)

    return measure


def idle(step: TraceStep) -> float:
    """Return the time when the GPU idles."""
    return step.host_us + step.loading_us


def waited_in(step: TraceStep, *names: str) -> float:
    """Return how long the host waits for the GPU in operators of these names."""
    return sum(sync.wait_us for sync in step.syncs if sync.name in names)


def _steps(fact: TraceFact) -> list[tuple[TraceStep, Calls]]:
    of_step: list[list[TraceCall]] = [[] for _ in fact.steps]
    for call in fact.calls:
        if call.step is not None:
            of_step[call.step].append(call)
    return list(zip(fact.steps, of_step, strict=True))
