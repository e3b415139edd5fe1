"""How findings speak of ranks: in words, and as culprits on a host."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Culprit
from ddp_doctor.model.recording import Recording


def ranks_in_words(ranks: Sequence[int], world_size: int) -> str:
    """ "rank 3", "ranks 1 and 3", "ranks 0, 1 and 3", or "every rank"."""
    if len(ranks) == world_size and world_size > 1:
        return "every rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def rank_culprits(recording: Recording, kind: type[Fact], ranks: Iterable[int]) -> tuple[Culprit, ...]:
    """The ranks with their hosts, taken from where the facts of class ``kind`` were read."""
    nodes = {seen.rank: seen.node for seen in recording.facts(kind)}
    return tuple(rank_culprit(recording, rank, nodes.get(rank)) for rank in ranks)


def rank_culprit(recording: Recording, rank: int, node: int | None = None) -> Culprit:
    """One rank with its host, and with its GPU where it is known which one that is."""
    world = recording.world
    if world is None:
        return Culprit(kind="rank", rank=rank, node_rank=node)
    node = world.node_of(rank) if node is None else node
    gpu = gpu_of(recording, rank)
    return Culprit(kind="rank", rank=rank, node_rank=node, node=world.hostname(node), gpu=gpu)


def gpu_of(recording: Recording, rank: int) -> int | None:
    """NVML's index of the rank's GPU, by its UUID; None where no such GPU was read.

    A rank's CUDA device is no such index: CUDA_VISIBLE_DEVICES=4,5 makes GPU 4 device 0. The recorded
    facts are looked at as they are, for their classes belong to the checks.
    """
    node, group = _read(recording, "process-group/1", rank=rank)
    uuid = group.get("gpu_uuid")
    if uuid is None:
        return None
    gpus = _read(recording, "gpus/1", node=node)[1].get("gpus", ())
    return next((gpu["index"] for gpu in gpus if gpu.get("uuid") == uuid), None)


def _read(
    recording: Recording, kind: str, *, node: int | None = None, rank: int | None = None
) -> tuple[int, Mapping[str, Any]]:
    """Node and content of the first fact of this kind, of one node or rank; empty where there is none."""
    for one in recording.readings:
        here = one.rank == rank and node in {None, one.node}
        if here and one.fact is not None and one.fact.get("kind") == kind:
            return one.node, one.fact
    return 0, {}


def pair_culprit(recording: Recording, rank: int, peer: int) -> Culprit:
    """The link between two ranks."""
    end, other = rank_culprit(recording, rank), rank_culprit(recording, peer)
    return end.model_copy(update={"kind": "pair", "peer_rank": peer, "peer_node": other.node})


def rank_list(numbers: Sequence[int]) -> str:
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
    """``rank 5 (node2, GPU1)``: with its host, and with NCCL its GPU, or its CUDA device."""
    world = recording.world
    if world is None:
        return f"rank {rank}"
    place = [world.hostname(world.node_of(rank))] if world.nnodes > 1 else []
    if world.backend == "nccl":
        gpu = gpu_of(recording, rank)
        device = f"CUDA device {rank % max(world.nproc_per_node, 1)}"
        place.append(device if gpu is None else f"GPU{gpu}")
    return f"rank {rank} ({', '.join(place)})" if place else f"rank {rank}"


def capital(sentence: str) -> str:
    """The sentence with a capital first letter; the rest stays as it is."""
    return sentence[:1].upper() + sentence[1:]


def short(where: str) -> str:
    """``/long/path/train.py:88`` as ``train.py:88``."""
    return where.rpartition("/")[2]
