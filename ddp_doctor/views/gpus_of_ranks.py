"""Which GPU each rank has."""

from collections.abc import Mapping

from ddp_doctor.facts.collectives import ProcessGroupFact
from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.model.recording import Recording


def gpu_of(recording: Recording, rank: int) -> int | None:
    """NVML's index of the rank's GPU, by its UUID; None where no such GPU was read.

    A rank's CUDA device is no such index: CUDA_VISIBLE_DEVICES=4,5 makes GPU 4 device 0.
    """
    return gpus_by_rank(recording).get(rank)


def gpus_by_rank(recording: Recording) -> Mapping[int, int | None]:
    """NVML's index of each rank's GPU, as ``gpu_of`` tells it."""
    return recording.once("GPU of each rank", lambda: _gpus_of_ranks(recording))


def _gpus_of_ranks(recording: Recording) -> Mapping[int, int | None]:
    """The first answer counts, of a rank as of a node."""
    known: dict[int, Mapping[str, int]] = {}
    for node in recording.facts(GpusFact):
        gpus = reversed(node.fact.gpus)
        known.setdefault(node.node, {gpu.uuid: gpu.index for gpu in gpus if gpu.uuid})
    found: dict[int, int | None] = {}
    for rank in recording.facts(ProcessGroupFact):
        if rank.rank is not None:
            found.setdefault(rank.rank, known.get(rank.node, {}).get(rank.fact.gpu_uuid or ""))
    return found
