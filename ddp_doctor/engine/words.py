"""How ranks are named in sentences."""

from collections.abc import Sequence

from ddp_doctor.model.recording import Recording


def ranks(numbers: Sequence[int]) -> str:
    """``rank 1``, ``ranks 0-4, 6, 7``: consecutive numbers as a range."""
    ordered = sorted(set(numbers))
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [_run(run) for run in runs]
    return f"rank{'s' if len(ordered) != 1 else ''} {', '.join(parts)}"


def _run(run: Sequence[int]) -> str:
    if len(run) > 2:
        return f"{run[0]}-{run[-1]}"
    return ", ".join(str(number) for number in run)


def rank_at(recording: Recording, rank: int) -> str:
    """``rank 5 (node2, GPU1)``: with its host, and its GPU where the backend is NCCL."""
    world = recording.world
    if world is None:
        return f"rank {rank}"
    place = [world.hostname(world.node_of(rank))] if world.nnodes > 1 else []
    if world.backend == "nccl":
        place.append(f"GPU{rank % max(world.nproc_per_node, 1)}")
    return f"rank {rank} ({', '.join(place)})" if place else f"rank {rank}"


def capital(sentence: str) -> str:
    """The sentence with a capital first letter; the rest stays as it is."""
    return sentence[:1].upper() + sentence[1:]


def short(where: str) -> str:
    """``/long/path/train.py:88`` as ``train.py:88``."""
    return where.rpartition("/")[2]
