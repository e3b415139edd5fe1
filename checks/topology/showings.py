"""What a trial of a remedy repeats, where a rule on paths offers settings."""

from collections.abc import Sequence

from ddp_doctor.checks.p2p.shown import EXCHANGED_BYTES, between
from ddp_doctor.checks.topology.transports import first_trial, log_of, numbers_of_gpus
from ddp_doctor.model.finding import Showing
from ddp_doctor.model.recording import Recording
from ddp_doctor.phrases.ranks import gpu_of


def meeting(recording: Recording, nodes: Sequence[int]) -> Showing | None:
    """The ranks of the first of these nodes that has several; None where NCCL does not join ranks on any."""
    world = recording.world
    if world is None or world.backend != "nccl":
        return None
    ranks = next((tuple(of) for of in map(world.ranks_of, nodes) if len(of) > 1), None)
    return Showing(kind="meet", ranks=ranks) if ranks else None


def between_gpus(recording: Recording, node: int, gpus: tuple[str, str]) -> Showing | None:
    """An exchange between the ranks that have these two GPUs; None where it is not known which have."""
    world = recording.world
    if world is None or world.backend != "nccl":
        return None
    trial = first_trial(recording)
    found = numbers_of_gpus(recording, trial, log_of(recording, node), node) if trial else {}
    known = {rank: found.get(rank, gpu_of(recording, rank)) for rank in world.ranks_of(node)}
    ranks = [rank for rank, number in known.items() if f"GPU{number}" in gpus]
    return between(recording, (ranks[0], ranks[1])) if len(ranks) == 2 else None


def between_nodes(recording: Recording) -> Showing | None:
    """An exchange between the first ranks of the first two nodes."""
    world = recording.world
    if world is None or world.backend != "nccl" or world.nnodes < 2:
        return None
    return between(recording, (world.ranks_of(0)[0], world.ranks_of(1)[0]))


def everybody(recording: Recording) -> Showing | None:
    """An all-reduce of all ranks, large enough for the rate of the links to show."""
    world = recording.world
    if world is None or world.backend != "nccl":
        return None
    return Showing(kind="all_reduce", size_bytes=EXCHANGED_BYTES)
