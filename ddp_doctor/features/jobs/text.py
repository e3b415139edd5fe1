"""Texts about running ranks, for findings and tables."""

from collections.abc import Sequence

from ddp_doctor.features.jobs.views.job_waits import collective_name
from ddp_doctor.features.jobs.views.live import Doing
from ddp_doctor.knowledge.thresholds import GPU_BUSY_PERCENT
from ddp_doctor.model.base import grouped
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, and_more
from ddp_doctor.wording.ranks import capital, rank_list, short


def names(ranks: Sequence[Doing]) -> str:
    """Return ``ranks 0-2``, or ``processes 4711, 4712`` if their ranks are unknown."""
    if all(rank.is_numbered for rank in ranks):
        return rank_list([rank.rank for rank in ranks])
    pids = [str(rank.fact.pid) for rank in ranks]
    shown = ", ".join(pids[:NAMES_IN_A_SENTENCE])
    return f"process{'es' * (len(pids) != 1)} {shown}{and_more(len(pids) - NAMES_IN_A_SENTENCE)}"


def says(rank: Doing) -> str:
    """Return the activity of a rank: ``in all-reduce at train.py:31 in main``."""
    where = f" at {short(rank.line)}" if rank.line else ""
    if rank.kind == "collective":
        return f"in {call_name(rank)}{where}"
    if rank.kind == "gone":
        return f"exited{f': {rank.words}' if rank.words else ''}"
    if rank.kind == "kernel":
        return f"in the kernel{f', {rank.words}' if rank.words else ''}{where}"
    if rank.kind == "unknown":
        return "stack was not read" if rank.fact.refused else "not in Python code"
    verb = "loops" if rank.loops else "stuck" if rank.kind == "own" and rank.moves is False else rank.words
    helper = f"; its data loader worker is at {short(rank.helper_line)}" if rank.helper_line else ""
    return f"{verb}{where}{helper}"


def call_name(rank: Doing) -> str:
    """Return the name of its call: ``all-reduce``, ``the backward pass``, ``wait()``, or ``work on the GPU``."""
    names = {
        "backward": "the backward pass",
        "wait": "wait()",
        "": "work on the GPU",
        "next_rendezvous": "the rendezvous",
    }
    return names.get(rank.call) or collective_name(rank.call)


def called(rank: Doing) -> str:
    """Return the call and its place: ``all-reduce at train.py:31``."""
    return f"{call_name(rank)} at {place(rank.line)}" if rank.line else call_name(rank)


def collective_of(rank: Doing) -> str:
    """Return the same, but name the collective of a backward pass: the missing rank may be in that pass as well."""
    return f"the collective of {called(rank)}" if rank.call == "backward" else called(rank)


def place(line: str) -> str:
    """Return the place of a frame: ``train.py:31``."""
    return short(line.partition(" in ")[0])


def waits_text(waiting: Sequence[Doing]) -> str:
    """Return ``Ranks 0-2 wait in all-reduce at train.py:31; rank 3 waits in barrier at train.py:40.``"""
    at = grouped((f"{'for' if rank.kind == 'gpu' else 'in'} {called(rank)}", rank) for rank in waiting)
    parts = (f"{names(ranks)} {verb(ranks, 'wait')} {where}" for where, ranks in at.items())
    return f"{capital('; '.join(parts))}." if waiting else ""


def gpu_use(ranks: Sequence[Doing]) -> str:
    """Return the use of the GPUs over all samples, ``100%`` or ``0-40%``; empty if the driver reports none."""
    samples = [percent for rank in ranks for percent in rank.fact.gpu_use]
    if not samples:
        return ""
    low, high = min(samples), max(samples)
    return f"{low}%" if low == high else f"{low}-{high}%"


def busy_text(waiting: Sequence[Doing]) -> str:
    """Return a sentence that busy GPUs do not show progress; empty unless waiting NCCL ranks have busy GPUs."""
    busy = [rank for rank in waiting if rank.fact.over_nccl and min(rank.fact.gpu_use, default=0) >= GPU_BUSY_PERCENT]
    if not busy:
        return ""
    alone = len(busy) == len(waiting) == 1
    whose = "Its GPU" if alone else f"The GPU{'s' * (len(busy) > 1)} of {names(busy)}"
    use = f"{verb(busy, 'are')} busy ({gpu_use(busy)})"
    return f"{whose} {use}, which NCCL's kernels also cause while they wait, so it does not show progress."


def verb(subjects: Sequence[object], plural: str) -> str:
    """Return the verb for the subjects: ``waits`` for one, ``wait`` for several."""
    if plural == "are":
        return "is" if len(subjects) == 1 else "are"
    return f"{plural}s" if len(subjects) == 1 else plural


def plural(words: str) -> str:
    """Return the plural of a verb and its object: ``compile`` for ``compiles``."""
    first, _, rest = words.partition(" ")
    return f"{first[:-1]} {rest}".strip()
