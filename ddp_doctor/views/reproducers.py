"""The smallest test that shows a fault between two ranks, and the rates of the pairs without it."""

from collections.abc import Collection, Sequence
from statistics import median_high

from ddp_doctor.facts.collectives import P2pFact
from ddp_doctor.model.finding import Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.gpus import gpu_of
from ddp_doctor.views.transports import first_trial, log_of, numbers_of_gpus

#: Bytes in each direction: enough that the link's rate matters, not its startup time.
EXCHANGED_BYTES = 16 << 20


def between(recording: Recording, ends: tuple[int, int], sick: Collection[tuple[int, int]] = ()) -> Reproducer:
    """Return an exchange between two ranks; ``sick`` are the pairs with a fault, lower rank first."""
    low, high = min(ends), max(ends)
    bad = {(low, high), *sick}
    across = is_across(recording, (low, high))
    rates = {
        (min(rank.rank, pair.peer), max(rank.rank, pair.peer)): pair.bandwidth_gb_per_s * 1e9
        for rank in recording.facts(P2pFact)
        if rank.rank is not None
        for pair in rank.fact.pairs
        if not pair.wrong_bytes
    }
    alike = [rate for pair, rate in rates.items() if pair not in bad and is_across(recording, pair) == across]
    return Reproducer(
        kind="exchange",
        ranks=(low, high),
        size_bytes=EXCHANGED_BYTES,
        healthy_bytes_per_s=median_high(alike) if alike else None,
        healthy=f"the other pairs {'between nodes' if across else 'within a node'}" if alike else "",
    )


def is_across(recording: Recording, pair: tuple[int, int]) -> bool:
    """Return True if two ranks are on different nodes."""
    world = recording.world
    return world is not None and world.node_of(pair[0]) != world.node_of(pair[1])


def meeting(recording: Recording, nodes: Sequence[int]) -> Reproducer | None:
    """Return a test on the ranks of the first of these nodes with several ranks, or None without such NCCL ranks."""
    world = recording.world
    if world is None or world.backend != "nccl":
        return None
    ranks = next((tuple(ranks_of_node) for ranks_of_node in map(world.ranks_of, nodes) if len(ranks_of_node) > 1), None)
    return Reproducer(kind="meet", ranks=ranks) if ranks else None


def between_gpus(recording: Recording, node: int, gpus: tuple[str, str]) -> Reproducer | None:
    """Return an exchange between the ranks of these two GPUs, or None if the ranks are unknown."""
    world = recording.world
    if world is None or world.backend != "nccl":
        return None
    trial = first_trial(recording)
    found = numbers_of_gpus(recording, trial, log_of(recording, node), node) if trial else {}
    known = {rank: found.get(rank, gpu_of(recording, rank)) for rank in world.ranks_of(node)}
    ranks = [rank for rank, number in known.items() if f"GPU{number}" in gpus]
    return between(recording, (ranks[0], ranks[1])) if len(ranks) == 2 else None


def between_nodes(recording: Recording) -> Reproducer | None:
    """Return an exchange between the first ranks of the first two nodes."""
    world = recording.world
    if world is None or world.backend != "nccl" or world.nnodes < 2:
        return None
    return between(recording, (world.ranks_of(0)[0], world.ranks_of(1)[0]))


def everybody(recording: Recording) -> Reproducer | None:
    """Return an all-reduce of all ranks, large enough to measure the rate of the links."""
    if not recording.on_nccl:
        return None
    return Reproducer(kind="all_reduce", size_bytes=EXCHANGED_BYTES)
