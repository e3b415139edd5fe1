"""Which of a node's GPUs others use."""

from ddp_doctor.facts.node.gpus import Gpu, GpuProcess, GpusFact
from ddp_doctor.knowledge.gpu.nvml import MPS_SERVER
from ddp_doctor.model.base import Frozen


class BusyGpu(Frozen):
    """A GPU of the job that somebody else uses, as it was before the doctor started anything on it."""

    index: int  # NVML's
    uuid: str | None
    used_bytes: int | None  # by others; None where NVML does not tell
    free_bytes: int | None
    holders: tuple[GpuProcess, ...]  # empty where none can be seen from here, as in a container


def busy_gpus(fact: GpusFact) -> tuple[BusyGpu, ...]:
    """Which of the job's GPUs are busy: foreign data in their memory, or a process that computes.

    An MPS server is there for the job itself, and a desktop that only draws counts by its memory. GPUs in
    MIG mode are left out: what is free in the job's slice is not known.
    """
    return tuple(_as_busy(gpu) for gpu in fact.of_the_job() if not gpu.mig_enabled and _is_busy(gpu))


def _is_busy(gpu: Gpu) -> bool:
    return gpu.holds_foreign_data() or any(not _is_mps(process) for process in gpu.computing())


def _is_mps(process: GpuProcess) -> bool:
    return (process.name or "").startswith(MPS_SERVER)


def _as_busy(gpu: Gpu) -> BusyGpu:
    known = gpu.memory_total_bytes is not None and gpu.memory_used_bytes is not None
    free = max((gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0), 0)
    return BusyGpu(
        index=gpu.index,
        uuid=gpu.uuid,
        used_bytes=gpu.memory_of_others_bytes if known else None,
        free_bytes=free if known else None,
        holders=tuple(process for process in gpu.processes if not _is_mps(process)),
    )
