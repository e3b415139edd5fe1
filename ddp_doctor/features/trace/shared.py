"""Traces for other commands: one side of ``compare``, and the collectives for ``run --collectives-of``."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median

from ddp_doctor.app.outcome import UsageError, blank
from ddp_doctor.facts.cluster import UNKNOWN_GPU, TracedPart, TracedSide
from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.use_case import Progress, collected, read_traces
from ddp_doctor.features.trace.views.parts import Parts, parts
from ddp_doctor.features.trace.views.windows import problem, windows
from ddp_doctor.knowledge.collectives import BARRIER
from ddp_doctor.knowledge.job_collectives import OPERATIONS, TYPES
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Command
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.job_collectives import JobCall, JobCollectives, JobGroup
from ddp_doctor.model.recording import Options, Recording


def read_side(path: str, progress: Progress | None) -> TracedSide:
    """Read the traces on one side of a comparison. Raises UsageError."""
    read = read_traces([path], progress)
    if read.interrupted:  # partial traces would look faster
        raise KeyboardInterrupt
    recording = blank(Options(command=Command.TRACE), readings=tuple(map(collected, read.facts)))
    if (found := _side(recording, path)) is None:
        raise UsageError(f"cannot compare {quoted(path)}: {problem(recording)}")
    return found


def _side(recording: Recording, file: str) -> TracedSide | None:
    if not (found := windows(recording)):
        return None
    window = found[-1]
    steps = [
        Parts(*(fmean(values) for values in zip(*of_ranks, strict=True)))
        for of_ranks in zip(*parts(recording, window), strict=False)
    ]
    taken = {name: [getattr(step, name) for step in steps] for name in Parts._fields}
    taken["exposed"] = [step.waiting + step.transfer + step.not_told for step in steps]
    ranks = window.world_size or len(window.ranks)
    if ranks == 1:  # a single rank waits for no other rank
        taken |= {"transfer": taken["exposed"], "not_told": [0.0] * len(steps)}
    samples = [_samples(fact) for fact in window.ranks]
    return TracedSide(
        file=file,
        ranks=ranks,
        steps=len(steps),
        samples=fmean(each for each in samples if each) if all(samples) else None,
        gpus=tuple(sorted({fact.gpu or UNKNOWN_GPU for fact in window.ranks if fact.device == "gpu"})),
        problem=problem(recording) if ranks > 1 else "",
        parts={name: _part(values) for name, values in taken.items()},
    )


def _samples(fact: TraceFact) -> float | None:
    if not all(step.batch for step in fact.steps):
        return None
    return median(step.batch[0] * max(step.passes, 1) for step in fact.steps)


def _part(values: Sequence[float]) -> TracedPart:
    middle = median(values)
    return TracedPart(median_us=middle, mad_us=median(abs(value - middle) for value in values))


def job_collectives(path: str, recordings: Sequence[Recording]) -> JobCollectives:
    """Return the collectives in the last window of each rank. They have ended, and few of them have a number."""
    from ddp_doctor.app.job_collectives import MOST_ELEMENTS, replayable  # not needed by compare

    traces = [at.fact for recording in recordings for at in recording.facts(TraceFact)]
    of_rank = {fact.rank or 0: fact for fact in sorted(traces, key=lambda fact: fact.rank or 0)}
    world = max([max(of_rank) + 1, *(fact.world_size or 0 for fact in of_rank.values())])
    seen = grouped((call.group, (rank, call.ranks)) for rank, fact in of_rank.items() for call in fact.calls)
    names, left_out, calls = sorted(seen), Counter[str](), dict[int, list[JobCall]]()
    groups = []
    for name in names:
        is_whole = any(ranks in (None, world) for _, ranks in seen[name])
        members = range(world) if is_whole else sorted({rank for rank, _ in seen[name]})
        words = "the default group" if name in ("", "0") else f"group {name}"
        groups.append(JobGroup(words=words, ranks=tuple(members)))
    for rank, fact in of_rank.items():
        counted = Counter[str]()
        calls[rank] = []
        for call in sorted(fact.calls, key=lambda call: call.begin_us if call.called_us is None else call.called_us):
            counted[call.group] += 1
            op = OPERATIONS.get(call.kind)
            if op is None or (call.size_bytes is None and op != BARRIER):
                left_out[call.kind] += 1
                continue
            dtype, size = TYPES.get(call.dtype.lower(), ("uint8", 1))
            seq = counted[call.group] if call.seq is None else call.seq
            elements = min((call.size_bytes or 0) // size, MOST_ELEMENTS)
            index = names.index(call.group)
            calls[rank].append(JobCall(group=index, seq=seq, op=op, elements=elements, dtype=dtype))
    job = replayable(path, world, groups, calls, set(of_rank), left_out, source="the trace")
    if any(call.differs for of_rank in job.ranks for call in of_rank):  # complete, but numbered differently
        raise UsageError(
            f"the traces of {quoted(path)} do not start at the same collective; record the same steps on all ranks"
        )
    return job
