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
    return tuple(_culprit(recording, rank, nodes.get(rank)) for rank in ranks)


def _culprit(recording: Recording, rank: int, node: int | None) -> Culprit:
    world = recording.world
    if world is None:
        return Culprit(kind="rank", rank=rank, node_rank=node)
    node = world.node_of(rank) if node is None else node
    return Culprit(kind="rank", rank=rank, node_rank=node, node=world.hostname(node))
