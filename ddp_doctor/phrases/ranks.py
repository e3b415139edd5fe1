"""How findings speak of ranks: in words, and as culprits on a host."""

from collections.abc import Iterable, Sequence

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
    """One rank with its host, and with its GPU where the backend is NCCL."""
    world = recording.world
    if world is None:
        return Culprit(kind="rank", rank=rank, node_rank=node)
    node = world.node_of(rank) if node is None else node
    gpu = rank % max(world.nproc_per_node, 1) if world.backend == "nccl" else None
    return Culprit(kind="rank", rank=rank, node_rank=node, node=world.hostname(node), gpu=gpu)


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
