"""Check before ranks start that the requested message sizes and mesh are possible."""

from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.knowledge.collectives import TABLE, measured_sizes
from ddp_doctor.knowledge.gpu.gpu_speed import SHARE_FOR_SIZES
from ddp_doctor.model.choices import UsageError
from ddp_doctor.model.recording import Recording
from ddp_doctor.probing.all_reduces import bytes_needed
from ddp_doctor.probing.mesh import misfit


def require_possible(recording: Recording, nnodes: int) -> None:
    """Refuse --sizes and --min-busbw that exceed memory or leave ranks without data, and a mesh of other ranks.

    With several nodes, the number of ranks is known only after all have checked in. Raises UsageError.
    """
    options, world = recording.options, recording.world
    if world is None:
        return
    asked = [(least.collective, least.size_bytes, f"--min-busbw {least.typed}") for least in options.min_busbw]
    if options.sizes:
        span = ":".join((*map(short, options.sizes[:2]), str(options.sizes[2])))
        asked += [(name, measured_sizes(options.sizes)[-1], f"--sizes {span}") for name in options.collectives or TABLE]
    ranks = nnodes * world.nproc_per_node
    for name, size, typed in asked:
        row = TABLE[name]
        if row.is_timed and not row.moved(size, ranks):
            raise UsageError(
                f"{typed}: {name} of {size} bytes leaves less than 16 bytes for each of {ranks} ranks;"
                f" use {16 * ranks} bytes or more"
            )
        free, where = _memory(recording)
        needed = bytes_needed(row, size, None if recording.on_nccl else world.nproc_per_node)
        if row.is_timed and needed > free:
            raise UsageError(
                f"{typed}: {name} of {size} bytes needs {needed >> 20} MiB {where}, but only {free >> 20} MiB are free;"
                " use smaller sizes"
            )
    if options.mesh and nnodes == 1 and (why := misfit(options.mesh, world.world_size)):
        raise UsageError(why)


def short(size: int) -> str:
    """Return bytes as users type them: 1G, 512K, 8."""
    power = max(power for power in range(5) if size % (1 << 10 * power) == 0)
    return f"{size >> 10 * power}{' KMGT'[power].strip()}"


def _memory(recording: Recording) -> tuple[int, str]:
    """Return the bytes that may be used, and where."""
    gpus = recording.first(GpusFact)
    if not recording.on_nccl or gpus is None:
        import psutil

        return int(psutil.virtual_memory().available), "on this host"
    free = [
        (gpu.memory_total_bytes or 0) - (gpu.memory_used_bytes or 0)
        for gpu in gpus.gpus
        if gpu.memory_total_bytes is not None
    ]
    return int(SHARE_FOR_SIZES * min(free, default=1 << 62)), "on each GPU"
