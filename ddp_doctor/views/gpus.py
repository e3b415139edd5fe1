"""The job's GPUs on all nodes: by model, by rank, and GPUs that other users use."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ddp_doctor.facts.collectives import ProcessGroupFact
from ddp_doctor.facts.node.gpus import Gpu, GpuProcess, GpusFact
from ddp_doctor.knowledge.gpu.nvml import MPS_SERVER, OS_MANAGED_MEMORY
from ddp_doctor.knowledge.thresholds import GPU_LIMIT_SHARE
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Backend, Status
from ddp_doctor.model.recording import Recording, once_a_recording

Hits = Sequence[tuple[int, Gpu]]  # node ranks, and GPUs on them


def nccl_without_gpu(recording: Recording) -> str | None:
    """Return why NCCL cannot run although it was requested: no node has a GPU. None if one has, or was not checked."""
    world, readings = recording.world, recording.of_check("gpus")
    if not recording.command.has_ranks or recording.options.backend is not Backend.NCCL:
        return None
    looked_at = {reading.node for reading in readings if reading.status is Status.ABSENT}
    if len(looked_at) < max(len(readings), world.nnodes if world else 1):
        return None
    where = "no node has one" if len(looked_at) > 1 else str(readings[0].reason)
    return f"--backend nccl and --nproc-per-node gpu require GPUs: {where}; omit the option, or use --backend gloo"


def hits_of(recording: Recording, is_hit: Callable[[Gpu], object]) -> Hits:
    """Return the job's GPUs with a fault."""
    return [(node, gpu) for node, gpu in gpus_of_the_job(recording) if is_hit(gpu)]


@once_a_recording
def gpus_of_the_job(recording: Recording) -> Hits:
    """Return the job's GPUs, cached: about twenty rules use them, for thousands of nodes."""
    return [(gpus.node, gpu) for gpus in recording.facts(GpusFact) for gpu in gpus.fact.of_the_job()]


@once_a_recording
def by_model(recording: Recording) -> Mapping[str, Hits]:
    """Return the job's GPUs on all nodes by model: GPUs of one model should be equal."""
    hits = hits_of(recording, lambda gpu: gpu.name and gpu.error is None)
    return grouped((gpu.name or "", (node, gpu)) for node, gpu in hits)


def far_below(peers: Hits, tell: Callable[[Gpu], float | None]) -> tuple[Hits, Hits, float]:
    """Return the GPUs far below the usual value, all GPUs with a value, and the usual value: the most frequent one."""
    hits = [peer for peer in peers if tell(peer[1])]
    counts = Counter(tell(gpu) or 0.0 for _, gpu in hits)
    usual = max(counts, key=lambda value: (counts[value], value), default=0.0)
    low = [peer for peer in hits if (tell(peer[1]) or 0.0) < GPU_LIMIT_SHARE * usual]
    return low, hits, usual


def power_limited(recording: Recording) -> frozenset[tuple[int, str]]:
    """Return node and UUID of the GPUs whose power limit is below the usual limit of their model (DD318)."""
    found = (far_below(peers, lambda gpu: gpu.power_limit_w)[0] for peers in by_model(recording).values())
    return frozenset((node, gpu.uuid) for low in found for node, gpu in low if gpu.uuid)


class BusyGpu(NamedTuple):
    """A GPU of the job that other processes used before ddp-doctor started its own."""

    uuid: str | None
    used_bytes: int | None  # by others; None if NVML does not report it
    holders: tuple[GpuProcess, ...]  # empty if invisible, as in a container


def busy_gpus(fact: GpusFact) -> tuple[BusyGpu, ...]:
    """Return the busy GPUs of the job: foreign data in their memory, or a process that computes.

    MPS servers do not count, because they serve the job. A desktop that only draws counts by its memory. GPUs
    in MIG mode are skipped: the free memory of the job's slice is unknown.
    """
    found = []
    for gpu in fact.of_the_job():
        holders = [process for process in gpu.processes if not (process.name or "").startswith(MPS_SERVER)]
        computes = any(process.kind == "compute" for process in holders)
        if gpu.mig_enabled or not (computes or gpu.holds_foreign_data()):
            continue
        known = gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None
        found.append(BusyGpu(gpu.uuid, gpu.memory_of_others_bytes if known else None, tuple(holders)))
    return tuple(found)


def gpu_of(recording: Recording, rank: int) -> int | None:
    """Return NVML's index of the rank's GPU, by its UUID, or None if no such GPU was read.

    It is not a rank's CUDA device: CUDA_VISIBLE_DEVICES=4,5 makes GPU 4 device 0.
    """
    return gpus_by_rank(recording).get(rank)


@once_a_recording
def gpus_by_rank(recording: Recording) -> Mapping[int, int | None]:
    """Return NVML's index of each rank's GPU, as for ``gpu_of``; the first answer of a rank or node counts."""
    known: dict[int, Mapping[str, int]] = {}
    for node in recording.facts(GpusFact):
        gpus = reversed(node.fact.gpus)
        known.setdefault(node.node, {gpu.uuid: gpu.index for gpu in gpus if gpu.uuid})
    found: dict[int, int | None] = {}
    for rank in recording.facts(ProcessGroupFact):
        if rank.rank is not None:
            found.setdefault(rank.rank, known.get(rank.node, {}).get(rank.fact.gpu_uuid or ""))
    return found


def each_has_a_whole_gpu(recording: Recording) -> bool:
    """Return True if each rank has its own GPU, which is known, whole and not used by others."""
    world = recording.world
    assert world is not None
    gpus = {(node.node, gpu.index): gpu for node in recording.facts(GpusFact) for gpu in node.fact.gpus}
    used = [(world.node_of(rank), gpu_of(recording, rank)) for rank in range(world.world_size)]
    found = [gpus.get((node, index)) for node, index in used if index is not None]
    whole = all(
        gpu is not None
        and not gpu.mig_enabled
        and not gpu.computing()
        and not any(model in (gpu.name or "") for model in OS_MANAGED_MEMORY)
        for gpu in found
    )
    return whole and len(set(used)) == len(found) == world.world_size > 1
