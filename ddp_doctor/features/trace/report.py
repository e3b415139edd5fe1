"""The report on traces: the parts of each step, and changes that make it faster."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

from pydantic import Field

from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.views.advice import advice
from ddp_doctor.features.trace.views.parts import Parts, median_parts, parts
from ddp_doctor.features.trace.views.windows import Window, windows
from ddp_doctor.knowledge.severity import WARNING_SHARE
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Status
from ddp_doctor.model.finding import Finding
from ddp_doctor.model.recording import Recording, TraceAdvice
from ddp_doctor.model.report import Report


class StepParts(Frozen):
    """The time of a step by part; all but ``step`` and ``hidden`` add up to ``step``."""

    step: float  # how long it took
    compute: float  # kernels run, on a CPU trace operators
    optimizer: float  # … of Optimizer.step
    loading: float  # the rank waits for its data
    waiting: float  # the rank waits for ranks that arrive later at a collective
    transfer: float  # a collective moves data while nothing is computed
    not_told: float  # waiting or transfer, if the rank's peers are missing
    other: float  # only copies to and from the GPU
    host: float  # everything else: Python, launches, synchronization, pauses
    hidden: float  # communication during computing, already counted as compute


class TracedStep(StepParts):
    """The times of one rank in one step."""

    number: int  # the profiler's number


class TracedRank(Frozen):
    """The steps of one rank in one window."""

    rank: int | None  # null if it is neither in the trace nor in the file name
    file: str  # the path as given, or ARCHIVE:MEMBER
    host: str  # empty if unknown
    device: Literal["cpu", "gpu"]  # where the parts of a step are measured
    gpu: str  # its model
    left_out: int  # number of first recorded steps, which are not analyzed
    cut: bool = False  # whether the file is truncated; complete steps before that are here
    damaged: int = 0  # events that could not be read
    median: StepParts  # the median of each part, scaled to the length of the median step
    steps: tuple[TracedStep, ...]  # the analyzed steps


class TracedWindow(Frozen):
    """The steps that the ranks recorded at the same time."""

    number: int  # from 1, the earliest first
    world_size: int | None  # of the job, if known
    ranks: tuple[TracedRank, ...]  # the ranks whose trace was given
    advice: tuple[TraceAdvice, ...] = ()  # changes that would make its steps faster, the largest bound first


class TraceReport(Report):
    """The document that ``trace --json`` writes: the envelope, the times of each step, and possible speedups."""

    windows: tuple[TracedWindow, ...] = ()  # the windows that are analyzed
    advice: tuple[TraceAdvice, ...] = ()  # the advice for the latest of these windows
    #: Files without a trace, and why; "" has the number of further files next to traces.
    unread: dict[str, str] = Field(default_factory=dict)


def with_steps(report: Report, recording: Recording, _diagnosis: object) -> TraceReport:
    """Return the report with the table of ranks and steps."""
    traced = tuple(_window(recording, window) for window in windows(recording))
    return TraceReport(
        **dict(report),
        windows=traced,
        advice=traced[-1].advice if traced else (),
        unread={each.part: each.reason or "" for each in recording.readings if each.status is Status.SKIPPED},
    )


def _window(recording: Recording, window: Window) -> TracedWindow:
    rows = zip(window.ranks, parts(recording, window), median_parts(recording, window), strict=True)
    return TracedWindow(
        number=window.number,
        world_size=window.world_size,
        ranks=tuple(_rank(fact, steps, middle) for fact, steps, middle in rows),
        advice=advice(recording, window),
    )


def _rank(fact: TraceFact, steps: tuple[Parts, ...], middle: Parts) -> TracedRank:
    told = {
        name: getattr(fact, name) for name in ("rank", "file", "host", "device", "gpu", "left_out", "cut", "damaged")
    }
    numbered = zip(fact.steps, steps, strict=True)
    return TracedRank(
        **told,
        median=StepParts(**_seconds(middle)),
        steps=tuple(TracedStep(number=step.number, **_seconds(taken)) for step, taken in numbered),
    )


def _seconds(taken: Parts) -> dict[str, float]:
    return {name: round(value / 1e6, 9) for name, value in taken._asdict().items()}


#: The rules about ranks that delay the others; their information findings may be noise.
_LATE_RANKS = tuple(f"DDT10{number}" for number in range(1, 8))


def healthy(recording: Recording, findings: Sequence[Finding]) -> tuple[str, tuple[str, ...]]:
    """Return the verdict if no rank certainly delays the others and no setting costs much, and any exposed transfer."""
    exposed = _exposed(recording)
    delays = next((found.title for found in findings if found.code in _LATE_RANKS), None)
    if delays:
        return f"No certain bottleneck ({scope(recording)}): {delays[0].lower()}{delays[1:]}", exposed
    return f"No {'avoidable ' if exposed else ''}bottleneck above {WARNING_SHARE:.0%} ({scope(recording)})", exposed


def _exposed(recording: Recording) -> tuple[str, ...]:
    ranks = [taken for window in windows(recording) for taken in median_parts(recording, window)]
    share = sum(taken.transfer for taken in ranks) / (sum(taken.step for taken in ranks) or 1.0)
    return (f"Exposed communication takes {share:.0%} of the step",) if share >= WARNING_SHARE else ()


def scope(recording: Recording) -> str:
    """Return the scope of a verdict: ``2 ranks, 4 steps of 31 ms``."""
    told = []
    for window in windows(recording):
        ranks = f"{len(window.ranks)} rank{'s' if len(window.ranks) != 1 else ''}"
        count = max((len(fact.steps) for fact in window.ranks), default=0)
        lengths = [step.length_us for fact in window.ranks for step in fact.steps]
        told.append(f"{ranks}, {count} step{'s' if count != 1 else ''} of {median(lengths or [0.0]) / 1e3:.3g} ms")
    return "; ".join(told) or "no step"
