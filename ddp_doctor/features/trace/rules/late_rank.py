"""DDT101 to DDT107: the rank that the others wait for, and the cause."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf, prod
from statistics import mean, median
from typing import NamedTuple

from ddp_doctor.features.trace import numbers
from ddp_doctor.features.trace.facts import TraceFact, TraceStep
from ddp_doctor.features.trace.rules.told import by_trace, ms, rank_of
from ddp_doctor.features.trace.views.windows import Late, Window, windows
from ddp_doctor.knowledge.severity import of_lost_share
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import in_code
from ddp_doctor.wording.findings import NOBODY, finding
from ddp_doctor.wording.ranks import capital, rank_list

#: Functions and annotations that save a checkpoint.
_SAVES = re.compile(r"save|checkpoint|state_dict", re.IGNORECASE)


class Compared(NamedTuple):
    """The mean of a value over a late rank's late steps, and the median of the other ranks' means."""

    own: float
    others: float

    @property
    def more(self) -> float:
        """The difference."""
        return self.own - self.others

    @property
    def times(self) -> float:
        """The ratio."""
        return self.own / self.others if self.others > 0 else inf if self.own > 0 else 1.0

    def evidence(self, what: str, unit: str | None = "s") -> Evidence:
        """Return both values as evidence: microseconds, or a count without a unit."""
        scale = 1e6 if unit else 1.0
        source = "median of other ranks in the same steps"
        return Evidence(
            text=what, value=self.own / scale, unit=unit, expected=self.others / scale, expected_from=source
        )


class Cause(NamedTuple):
    """The reason why a rank is late."""

    code: str
    said: str  # it loads data for 62 ms, the others for 1 ms
    evidence: Evidence | None = None
    confidence: Confidence = Confidence.LIKELY
    blames: bool = True  # whether the rank is to blame for it
    fix: Remedy | None = None  # replaces the usual fixes


class Suspect:
    """A late rank, compared with the other ranks in the steps where it is late."""

    def __init__(self, window: Window, late: Late) -> None:
        self.fact = window.ranks[late.place]
        self.others = [fact for fact in window.ranks if fact is not self.fact]
        self.on_gpu = self.fact.device == "gpu"
        first = min(late.lost_us)
        self.late_in = [step for step in late.steps if step > first] or late.steps
        #: An idle gap after the last collective of a step delays the first collective of the next step.
        self.steps = {*self.late_in, *(step - 1 for step in self.late_in)} & {step.number for step in self.fact.steps}
        self.lost_us = sum(late.lost_us[step] for step in self.late_in) / len(self.steps)

    def compare(self, of: Callable[[TraceStep], float]) -> Compared:
        """Compare a value in these steps: the mean of each rank."""
        each = (
            mean([of(step) for step in fact.steps if step.number in self.steps] or [0.0])
            for fact in (self.fact, *self.others)
        )
        own, *others = each
        return Compared(own, median(others))

    def gap(self, step: TraceStep) -> float:
        """Return the longest idle time of a step, if it delays a step in which the rank is late."""
        is_last = step.gap and step.exposed and step.gap.begin_us >= step.exposed[-1][1]
        return step.gap_us if step.number + bool(is_last) in self.late_in else 0.0

    def idle(self, step: TraceStep) -> float:
        """Return the total idle time of a step, with its longest gap only if that delays a late step."""
        return step.host_us + step.other_us - step.gap_us + self.gap(step)

    def explains(self, of: Callable[[TraceStep], float], share: float = numbers.EXPLAINED_SHARE) -> Compared | None:
        """Return the comparison if it explains at least this share of the other ranks' loss, otherwise None."""
        compared = self.compare(of)
        least = max(share * self.lost_us, numbers.LEAST_SHARE * self.compare(lambda step: step.length_us).others)
        return compared if compared.more >= least else None

    def works(self) -> Compared | None:
        """Compare the time that grows with more work: operators, on a GPU computing and launches."""
        return self.explains(lambda step: step.compute_us + step.host_us if self.on_gpu else step.op_us)

    def samples(self) -> Compared:
        """Compare the batch sizes; 0 if sizes are not recorded."""
        return self.compare(lambda step: prod(step.batch) if step.batch else 0.0)


@once_a_recording
def _waited_for(_recording: Recording, window: Window) -> tuple[tuple[Late, Cause], ...]:
    """Return the ranks with their own cause, the most costly first, and a conspicuously slower rank."""
    found = [
        (late, cause)
        for late in window.late
        if late.share >= numbers.LATE_SHARE and _is_last(late, window.late) and (cause := _cause(Suspect(window, late)))
    ]
    for late in window.late[:1]:
        if late not in [named for named, _ in found] and _stands_out(late, window.late[1:]):
            found.append((late, _slower(Suspect(window, late))))
    return tuple(found)


class Jitter(NamedTuple):
    """Ranks that delay each other in turn."""

    ranks: tuple[int, ...]  # their places in the window, the most costly first
    share: float  # share of all steps that is lost to the last rank of each step
    lost_us: float  # per step


@once_a_recording
def lesser(recording: Recording, window: Window) -> Late | Jitter | None:
    """Return the rank, or the ranks in turn, that cost the others a tenth of the step but get no warning."""
    if _waited_for(recording, window) or not window.late or window.late[0].share <= 0:
        return None
    first = window.late[0]
    steps = sum(first.lost_us.values()) / first.share
    last = {step: max(window.late, key=lambda one: one.lost_us[step]) for step in first.lost_us}
    lost = sum(one.lost_us[step] for step, one in last.items())
    others = max((one.share for one in window.late[1:]), default=0.0)
    if first.share >= numbers.LATE_SHARE and others < numbers.LATE_SHARE:
        return first
    if lost / steps < numbers.JITTER_SHARE:
        return None
    counts = Counter(
        one.place for step, one in last.items() if one.lost_us[step] >= numbers.LATE_SHARE * lost / len(last)
    )
    return Jitter(tuple(place for place, _ in counts.most_common()), lost / steps, lost / len(last))


def _often(late: Late) -> bool:
    return len(late.steps) >= len(late.lost_us) / 2


def _is_last(late: Late, ranks: Sequence[Late]) -> bool:
    """Return True if the rank is late in most steps, or the latest of all ranks in each of its late steps."""
    return _often(late) or all(late.lost_us[step] >= max(one.lost_us[step] for one in ranks) for step in late.steps)


def _stands_out(late: Late, others: Sequence[Late]) -> bool:
    """Return True if the rank is later than the usual differences between ranks."""
    usual = max((other.share for other in others), default=0.0)
    enough = late.share >= max(numbers.SLOWER_SHARE, numbers.SLOWER_TIMES_THE_NEXT * usual)
    return enough and len(late.lost_us) >= numbers.SLOWER_STEPS and _often(late)


def _cause(suspect: Suspect) -> Cause | None:
    """Return the cause in this rank that explains most of the others' loss, or None."""
    causes = (_loads, _saves, _pauses, _has_more_samples, _has_more_work)
    return next(filter(None, (cause(suspect) for cause in causes)), None)


def _loads(suspect: Suspect) -> Cause | None:
    loads, works = suspect.explains(lambda step: step.loader_us), suspect.works()
    is_larger = suspect.samples().times >= numbers.MORE_WORK
    if loads is None or (is_larger and works and works.more >= loads.more):
        return None
    said = f"it loads data for {ms(loads.own)}, other ranks for {ms(loads.others)}"
    evidence = loads.evidence("time of the main thread in its loader")
    if suspect.fact.loader != "workers" or all(fact.loader != "workers" for fact in suspect.others):
        return Cause("DDT102", said, evidence)
    said += ", but their workers may be equally slow"
    return Cause("DDT102", said, evidence, Confidence.POSSIBLE, blames=False)


def _saves(suspect: Suspect) -> Cause | None:
    idle = suspect.explains(suspect.idle, numbers.SAVING_SHARE)
    usual = suspect.compare(lambda step: step.detached).others
    saves = [
        step
        for step in suspect.fact.steps
        if step.detached - usual >= max(numbers.STATE_DICT_TENSORS, step.reduced / max(step.passes, 1))
        or (step.gap and step.gap_us >= numbers.PAUSE_US and any(map(_SAVES.search, step.gap.inside)))
    ]
    if idle is None or not saves:
        return None
    said = f"it saves its state in {len(saves)} of {len(suspect.fact.steps)} steps"
    return Cause("DDT104", said, idle.evidence(f"idle{_longest(suspect.fact)}"))


def _pauses(suspect: Suspect) -> Cause | None:
    idle, gap = suspect.explains(suspect.idle), suspect.compare(suspect.gap)
    gaps = [step for step in suspect.fact.steps if step.gap_us >= numbers.PAUSE_US]
    together, longest = sum(step.gap_us for step in gaps), max((step.gap_us for step in gaps), default=0.0)
    if idle is None or together < numbers.PAUSES_US or gap.more < numbers.PAUSE_OF_IDLE * idle.more:
        return None
    by_chance = longest < numbers.PAUSES_US and 2 * len(gaps) < len(suspect.fact.steps)
    if by_chance and not suspect.on_gpu:  # a busy processor alternates between processes
        return None
    said = f"it pauses for up to {ms(longest)} in {len(gaps)} of {len(suspect.fact.steps)} steps"
    line = _line(max(gaps, key=lambda step: step.gap_us))
    fix = (
        in_code(f"Move {line} out of the step or into a thread, or call it on all ranks at the same time")
        if line
        else None
    )
    return Cause("DDT106", said, idle.evidence(f"idle{_longest(suspect.fact)}"), fix=fix)


#: Python frames of the job in a trace, such as "train.py(41): log", without library frames.
_OWN_FRAME = re.compile(
    r"(?!.*(?:site-packages|dist-packages|lib/python|\btorch/|<frozen|multiprocessing/))\S.*\.py\(\d+\): "
)
_BUILT_IN = re.compile(r"<built-in (?:function|method) (\S+?)(?: of .*)?>")


def _line(step: TraceStep) -> str:
    """Return the line that paused, such as "train.py(41): log (sleep)", or "" if no stack shows it."""
    inside = step.gap.inside if step.gap else ()
    own = next((frame for frame in reversed(inside) if _OWN_FRAME.match(frame)), "")
    called = _BUILT_IN.search(inside[-1]) if own else None
    return f"{own} ({called[1]})" if called else own


def _longest(fact: TraceFact) -> str:
    """Describe the longest idle time, and the code it was in if known."""
    step = max(fact.steps, key=lambda step: step.gap_us)
    inside = step.gap.inside[-3:] if step.gap else ()
    return f", at most {ms(step.gap_us)} at once" + (f" in {' > '.join(inside)}" if inside else "")


def _has_more_samples(suspect: Suspect) -> Cause | None:
    samples, longer = suspect.samples(), suspect.works() or suspect.explains(lambda step: step.loader_us)
    if samples.times < numbers.MORE_WORK or not samples.others or not longer:
        return None
    shapes = (next(step.batch for step in fact.steps if step.batch) for fact in (suspect.fact, suspect.others[0]))
    own, others = ("x".join(map(str, shape)) for shape in shapes)
    return Cause(
        "DDT103", f"its batch is {own}, other ranks have {others}", samples.evidence("elements per batch", unit=None)
    )


def _has_more_work(suspect: Suspect) -> Cause | None:
    what = "kernels" if suspect.on_gpu else "operators"
    counts = suspect.compare(lambda step: step.kernels if suspect.on_gpu else step.ops)
    if counts.times < numbers.MORE_WORK or suspect.works() is None:
        return None
    return Cause(
        "DDT101", f"it runs {counts.times:.2g} times as many {what}", counts.evidence(f"{what} per step", unit=None)
    )


def _slower(suspect: Suspect) -> Cause:
    sizes_are_known = min(suspect.samples()) > 0
    busy = suspect.explains(lambda step: step.compute_us if suspect.on_gpu else step.op_us)
    if busy and busy.times >= (numbers.SLOWER_GPU_TIMES if suspect.on_gpu else numbers.SLOWER_TIMES):
        what = "kernels" if suspect.on_gpu else "operators"
        said = f"the same {what} take {busy.times:.2g} times as long"
        if suspect.on_gpu or not sizes_are_known:
            unsure = Confidence.LIKELY if sizes_are_known else Confidence.POSSIBLE
            return Cause("DDT101", said, busy.evidence(f"its {what}"), unsure)
        return Cause("DDT105", said, busy.evidence(f"its {what}"))
    idle = suspect.explains(lambda step: step.host_us)
    python = suspect.compare(lambda step: step.forward_us + step.optimizer_host_us) if suspect.on_gpu else idle
    if idle and python and python.times >= numbers.SLOWER_TIMES and python.more >= idle.more / 4:
        return Cause("DDT105", f"its host leaves it idle for {ms(idle.more)} longer", idle.evidence("idle time"))
    return Cause("DDT107", "its trace does not show the cause", confidence=Confidence.POSSIBLE, blames=False)


def _findings(recording: Recording, code: str, *remedies: Remedy) -> Iterator[Draft]:
    waited_for = ((window, each) for window in windows(recording) for each in _waited_for(recording, window))
    for window, (late, cause) in waited_for:
        if cause.code != code:
            continue
        fact, lost = window.ranks[late.place], sum(late.lost_us.values()) / len(late.lost_us)
        steps = "every step" if len(late.steps) == len(late.lost_us) else "steps"
        waited = Evidence(
            text=f"other ranks idle, waiting for {rank_of(fact)}, in {len(late.steps)} of {len(late.lost_us)} steps of"
            f" {ms(lost / late.share)} (from the lengths of {len(window.met.meetings)} collectives)",
            value=lost / 1e6,
            unit="s",
        )
        yield finding(
            (Culprit(kind="rank", rank=fact.rank, node=fact.host or None),) if cause.blames else NOBODY,
            f"Rank {fact.rank} delays {steps}{window.where} by {ms(lost)} ({late.share:.0%}): {cause.said}",
            [waited, *([cause.evidence] if cause.evidence else [])],
            *([cause.fix] if cause.fix else remedies),
            confidence=cause.confidence,
            detail="" if window.is_whole else "Only the ranks with a trace were compared.",
            severity=of_lost_share(late.share) if cause.blames else _unexplained(fact, late),
        )


def _unexplained(fact: TraceFact, late: Late) -> Severity | None:
    """Return information for CPU ranks that are not late in every step: other programs look the same."""
    by_chance = fact.device == "cpu" and len(late.steps) < len(late.lost_us)
    return Severity.INFO if by_chance else None


def _lesser_draft(window: Window, found: Late | Jitter) -> Draft:
    if isinstance(found, Late):
        fact, cause = window.ranks[found.place], _slower(Suspect(window, found))
        lost = sum(found.lost_us.values()) / len(found.lost_us)
        title = f"Rank {fact.rank} delays steps{window.where} by {ms(lost)} ({found.share:.0%}): {cause.said}"
        evidence, remedies = cause.evidence, _AGAINST.get(cause.code, (_MORE_STEPS,))
    else:
        lost, evidence, remedies = found.lost_us, None, (_MORE_STEPS,)
        ranks = rank_list([window.ranks[place].rank or 0 for place in found.ranks])
        title = f"{capital(ranks)} delay steps{window.where} in turn, by {ms(lost)} ({found.share:.0%}) together"
    waited = Evidence(
        text=f"other ranks idle, per step (from the lengths of {len(window.met.meetings)} collectives)",
        value=lost / 1e6,
        unit="s",
    )
    return finding(
        NOBODY,
        title,
        [waited, *([evidence] if evidence else [])],
        *remedies,
        confidence=Confidence.POSSIBLE,
        detail="Healthy ranks on a busy machine differ as much, so no rank is blamed.",
        severity=Severity.INFO,
    )


_SEE_GPU = by_trace(
    "Compare clocks, power and temperature of its GPU and CPUs with other nodes, if the work is the same",
    "nvidia-smi -q -d CLOCK,POWER,TEMPERATURE,PERFORMANCE",
    "ddp-doctor run",
)
_SEE_HOST = by_trace(
    "Check what else runs on its CPUs, and bind each rank to its own cores",
    "top -H -b -n 1 | head -30",
    "numactl --cpunodebind=NODE --membind=NODE python train.py",
    cost="a bound rank cannot use the cores of others",
    undo="start without numactl",
)
_SAME_WORK = in_code(
    "Distribute the same work to all ranks; look for extra work of this rank in forward and"
    " backward (validation, logging, another branch), and for samples of uneven length"
)
_LOADER = in_code(
    "Load during the steps: DataLoader(num_workers=4, persistent_workers=True,"
    " pin_memory=True), or more workers than now; if only one rank is slow, also check that"
    " node's storage and CPUs"
)
_EVEN_BATCHES = in_code(
    "Use DistributedSampler(drop_last=True) and DataLoader(batch_size=..., drop_last=True),"
    " the same on all ranks; group samples of uneven length by length"
)
_SAVE_BESIDE = in_code(
    "Save during the steps, with torch.distributed.checkpoint.async_save or from a copy in a thread, or save less often"
)
_NO_PAUSES = in_code(
    "Pause on all ranks at the same time: gc.freeze() after the first step, gc.disable(),"
    " and gc.collect() at the same steps; log and evaluate in a thread, or on all ranks"
)
_MORE_STEPS = in_code("Trace ten steps or more with profile(record_shapes=True, with_stack=True)")
_LESS_HOST = in_code("Reduce Python between operators on all ranks: torch.compile or CUDA graphs")
_AGAINST = {"DDT101": (_SAME_WORK, _SEE_GPU), "DDT105": (_SEE_HOST, _LESS_HOST)}


@rule("DDT101", "slow-compute", Consequence.SLOWER, TraceFact)
def slow_compute(recording: Recording) -> Iterator[Draft]:
    """A rank computes longer than the other ranks, which wait for it.

    Finds: Reported if the other ranks lose at least a tenth of the step waiting for this rank, and it runs at least a
        tenth more operators or kernels. Also reported if its GPU needs at least a quarter longer for the same kernels,
        and the other ranks lose at least a fifth of the step to it, in half of the steps, and three times as much as to
        any other rank. Severity is error from two thirds of the step.
    Why: In DDP every rank waits for the slowest rank in every step. The waiting ranks have the long collectives.
    Remedy: Give all ranks the same work. If the work is the same, check the clocks of its GPU.
    See: docs/explanation/traces.md
    """
    return _findings(recording, "DDT101", _SAME_WORK, _SEE_GPU)


@rule("DDT102", "slow-data-loading", Consequence.SLOWER, TraceFact)
def slow_data_loading(recording: Recording) -> Iterator[Draft]:
    """A rank's loader is slower than the other ranks' loaders, and they wait for it.

    Finds: Reported if the other ranks lose at least a tenth of the step waiting for this rank, and its extra time in
        the __next__ of its DataLoader explains at least half of that.
    Why: In DDP every rank waits for the slowest rank in every step.
    Remedy: Use workers and pinned memory, and check the storage of that node.
    See: https://pytorch.org/docs/stable/data.html
        docs/explanation/traces.md
    """
    return _findings(recording, "DDT102", _LOADER)


@rule("DDT103", "larger-batch", Consequence.SLOWER, TraceFact)
def larger_batch(recording: Recording) -> Iterator[Draft]:
    """A rank gets a larger batch than the other ranks, which wait for it.

    Finds: Reported if the other ranks lose at least a tenth of the step waiting for this rank, and the first input of
        its model is at least a tenth larger. The rule needs record_shapes=True.
    Why: In DDP every rank waits for the rank with the most samples, and all ranks' gradients have the same weight.
    Remedy: Use batches of one size, or group samples by length.
    See: https://pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler
        docs/explanation/traces.md
    """
    return _findings(recording, "DDT103", _EVEN_BATCHES)


@rule("DDT104", "checkpoint-in-step", Consequence.SLOWER, TraceFact)
def checkpoint_in_step(recording: Recording) -> Iterator[Draft]:
    """A rank saves a checkpoint while the other ranks wait for it.

    Finds: Reported if the other ranks lose at least a tenth of the step waiting for this rank while it saves its state.
        Signs of saving are tensors that are detached one after another, as in state_dict, and functions or annotations
        that save.
    Why: All GPUs idle while one rank writes a file.
    Remedy: Save asynchronously, or less often.
    See: https://pytorch.org/docs/stable/distributed.checkpoint.html
        docs/explanation/traces.md
    """
    return _findings(recording, "DDT104", _SAVE_BESIDE)


@rule("DDT105", "host-bound-rank", Consequence.SLOWER, TraceFact)
def host_bound_rank(recording: Recording) -> Iterator[Draft]:
    """A rank's host is slower than the other ranks' hosts, and they wait for it.

    Finds: Reported if the other ranks lose at least a fifth of the step waiting for this rank, in half of the steps,
        and three times as much as to any other rank. It does the same work, but its operators take at least 1.75 times
        as long on a CPU, or its GPU idles while its Python runs.
    Why: A busy or slow processor on one node delays all GPUs.
    Remedy: Check what else runs on that host, bind ranks to cores, and run less Python in the step.
    See: docs/explanation/traces.md
    """
    return _findings(recording, "DDT105", _SEE_HOST, _LESS_HOST)


@rule("DDT106", "pauses", Consequence.SLOWER, TraceFact)
def pauses(recording: Recording) -> Iterator[Draft]:
    """A rank pauses intermittently while the other ranks wait for it.

    Finds: Reported if the other ranks lose at least a tenth of the step waiting for this rank and most of that is gaps
        of 20 ms or more, 50 ms together, when it does not compute, load or communicate. Stacks or annotations in the
        trace show the code that pauses.
    Why: A pause of one rank pauses all ranks. Usual causes are garbage collection, logging and evaluation.
    Remedy: Pause on all ranks at the same time, or do this work outside the step.
    See: https://docs.python.org/3/library/gc.html
        docs/explanation/traces.md
    """
    return _findings(recording, "DDT106", _NO_PAUSES)


@rule("DDT107", "late-rank", Consequence.SLOWER, TraceFact)
def late_rank(recording: Recording) -> Iterator[Draft]:
    """The other ranks wait for a rank, and the trace does not show why.

    Finds: Reported if the other ranks lose at least a fifth of the step waiting for this rank, in half of the steps,
        and three times as much as to any other rank, but no part of the trace is longer on this rank. Severity is info
        for CPU ranks that are not late in every step, for a rank that costs a tenth of the step without standing out,
        and for ranks that cost 15% in turn.
    Why: A trace does not show everything, and its few steps may be a coincidence.
    Remedy: Record more steps, with stacks.
    See: docs/explanation/traces.md
    """
    yield from _findings(recording, "DDT107", _MORE_STEPS)
    for window in windows(recording):
        if less := lesser(recording, window):
            yield _lesser_draft(window, less)
