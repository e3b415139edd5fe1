"""The strategies that fit the memory of a GPU, how much the batch can grow with each, and which one to use.

A strategy fits if its peak plus the memory that CUDA's caching allocator keeps is within the memory. The recommended
one of these changes and costs least: stored activations before recomputed ones, the GPU's memory before the host's,
then the order of knowledge/ddp/strategies.py, from DDP to HSDP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ddp_doctor.features.model.fit.facts import Estimate, FitFact, FitMeasuredFact
from ddp_doctor.features.model.fit.report import FitEstimate
from ddp_doctor.knowledge.ddp.strategies import BY_NAME, RESERVE
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import FitOptions, Recording, once_a_recording
from ddp_doctor.views.gpus import gpus_of_the_job

#: The ids of the checks.
FIT, FIT_MEASURED = "fit", "fit_measured"
#: The parts of an estimate, in display order.
PARTS = ("parameters", "gradients", "optimizer", "buckets", "activations", "unsharded", "temporaries")

#: The start of the reason for a strategy that --budget leaves no time to measure.
NO_TIME = "not enough time left"


@dataclass(frozen=True)
class Memory:
    """The memory that the estimates are compared with."""

    size_bytes: int
    whose: str  # "--memory", "the smallest of 8 GPUs, GPU 3"


def size(number: float) -> str:
    """Return bytes as ``31.2 GiB``, ``460 MiB``."""
    unit, name = (2**30, "GiB") if number >= 2**30 else (2**20, "MiB")
    return f"{number / unit:{'.0f' if number >= 1000 * unit else '.3g'}} {name}"


def asked(recording: Recording) -> FitOptions:
    """Return the options of the estimate."""
    return recording.options.fit or FitOptions()


def memory(recording: Recording) -> Memory | None:
    """Return the memory from --memory or of the smallest GPU of the job on this node, or None if unknown."""
    if given := asked(recording).memory_bytes:
        return Memory(given, "--memory")
    gpus = [gpu for _, gpu in gpus_of_the_job(recording) if not gpu.mig_enabled]  # a MIG slice has less
    sizes = [gpu.memory_total_bytes for gpu in gpus if gpu.memory_total_bytes]
    if not sizes or len(sizes) < len(gpus_of_the_job(recording)):
        return None
    least = min(sizes)
    smallest = next(gpu for gpu in gpus if gpu.memory_total_bytes == least)
    whose = f"the GPU here, {smallest.name}" if len(sizes) == 1 else f"each of {len(sizes)} GPUs here, {smallest.name}"
    if max(sizes) > least:
        whose = f"the smallest of {len(sizes)} GPUs here, GPU {smallest.index}, {smallest.name}"
    return Memory(least, whose)


def unknown(recording: Recording) -> str:
    """Return why the estimates do not show whether the model fits; empty if they do."""
    fact = recording.first(FitFact)
    if fact is None:
        return ""
    if memory(recording) is None:
        return "the GPU memory is unknown because no whole GPU was found; give it with --memory, for example 80GiB"
    wanted = asked(recording).strategy
    if wanted and all(each.strategy != wanted for each in estimates(recording)):
        why = (each for each in fact.left_out if each.startswith(wanted) or "FSDP2" in each)
        return f"--strategy {wanted} was not estimated{''.join(f' ({each})' for each in why)}"
    return "" if nothing_fits(recording) else _lacks(fact)


def _lacks(fact: FitFact) -> str:
    """Return which activations or optimizer state no estimate includes: then a strategy that seems to fit may not."""
    parts = ("activations", "the state of the optimizer")
    return next((f"the estimates do not include {each}" for each in fact.left_out if each.startswith(parts)), "")


@once_a_recording
def estimates(recording: Recording) -> tuple[FitEstimate, ...]:
    """Return one estimate per possible strategy, with and without checkpointing."""
    fact = recording.first(FitFact)
    if fact is None:
        return ()
    room, is_whole = memory(recording), not _lacks(fact)
    measured = grouped(
        ((each.fact.strategy, each.fact.checkpointing), each.fact) for each in recording.facts(FitMeasuredFact)
    )
    order = list(BY_NAME)
    return tuple(
        _estimate(each, fact, room, measured.get((each.strategy, each.checkpointing), ()), is_whole=is_whole)
        for each in sorted(fact.estimates, key=lambda each: (order.index(each.strategy), each.checkpointing))
    )


def _estimate(
    each: Estimate, fact: FitFact, room: Memory | None, measured: Sequence[FitMeasuredFact], *, is_whole: bool
) -> FitEstimate:
    most = max(each.peak_bytes, *(rank.peak_bytes for rank in measured), 0)
    out_of_memory = any(rank.out_of_memory for rank in measured)
    needed = round(most * (1 + RESERVE))
    within = room is not None and needed <= room.size_bytes and not out_of_memory
    batch = None
    if room is not None and fact.batch is not None and each.sample_bytes and is_whole and not out_of_memory:
        # A larger batch takes more only in the passes; if the optimizer does not fit, a smaller batch does not help.
        left = room.size_bytes / (1 + RESERVE) - (each.pass_bytes or each.peak_bytes) - (most - each.peak_bytes)
        batch = max(fact.batch + int(left // each.sample_bytes), 0)
        batch = batch if within or each.moment in ("forward", "backward") else 0
    took = [median(rank.steps_s) for rank in measured if rank.steps_s]
    return FitEstimate(
        strategy=each.strategy,
        words=BY_NAME[each.strategy].words,
        checkpointing=each.checkpointing,
        moment=each.moment,
        parts={part: getattr(each, part) for part in PARTS},
        peak_bytes=each.peak_bytes,
        needed_bytes=needed,
        fits=None if room is None or (within and not is_whole) else within,
        batch=batch,
        sent_bytes=each.sent_bytes,
        host_bytes=each.host_bytes,
        measured_bytes=max((rank.peak_bytes for rank in measured), default=None),
        measured_out_of_memory=out_of_memory,
        step_s=max(took, default=None),
    )


def nothing_fits(recording: Recording) -> bool:
    """Return True if all estimates exceed the memory."""
    return bool(estimates(recording)) and all(each.fits is False for each in estimates(recording))


def to_take(recording: Recording, wanted: str) -> FitEstimate | None:
    """Return the fitting estimate that changes and costs least, of one strategy or of all ("")."""
    fitting = [each for each in estimates(recording) if each.fits and wanted in ("", each.strategy)]
    return min(fitting, key=lambda each: (BY_NAME[each.strategy].offloads, each.checkpointing), default=None)


def name_of(each: FitEstimate) -> str:
    """Return ``ZeRO-1``, ``DDP with activation checkpointing``, for a sentence."""
    short = each.words.partition(":")[0]
    return (
        f"{short}{' and' if ' with ' in short else ' with'} activation checkpointing" if each.checkpointing else short
    )


def advice(recording: Recording) -> tuple[str, ...]:
    """Return which strategy to use and why, in sentences without their period; empty if unknown."""
    wanted = asked(recording).strategy
    taken, room = to_take(recording, wanted), memory(recording)
    if room is None or unknown(recording):
        return ()
    if taken is None:
        return (f"{wanted} does not fit" if wanted else "no strategy fits",)
    needs = f"{name_of(taken)} needs {size(taken.needed_bytes)} of {size(room.size_bytes)}"
    if wanted:
        return (needs,)
    first = estimates(recording)[0]
    if taken == first:
        sharded = max((each.sent_bytes for each in estimates(recording) if each.strategy == "zero3"), default=0)
        more = sharded / first.sent_bytes if first.sent_bytes else 0.0
        return (needs, f"FSDP would send {more:.3g} times as much data") if more > 1 else (needs,)
    ratio = taken.sent_bytes / first.sent_bytes if first.sent_bytes else 1.0
    sends = "as much as DDP" if 0.95 < ratio < 1.05 else f"{ratio:.2g} times as much as DDP"
    costs = ", and computes each forward twice" if taken.checkpointing else ""
    return f"{needs}; DDP would need {size(first.needed_bytes)}", f"{name_of(taken)} sends {sends} per step{costs}"
