"""The host's limits that a DDP job runs into: shared memory, locked memory, files, CPUs, memory, clock, loopback.

NCCL fails to start where /dev/shm is full (Docker gives 64 MiB) or RDMA memory cannot be locked; a CPU quota
slows all ranks. A limit is a finding only where something uses it. Raw input (cgroups: parse/cgroup.py)::

    statvfs("/dev/shm")                      67108864 bytes, 0 free
    getrlimit(MEMLOCK), getrlimit(NOFILE)    8388608, 1024
    getifaddrs()                             lo: up, 127.0.0.1/8
    /sys/class/infiniband/mlx5_0/ports/1/state                        4: ACTIVE
    /sys/devices/system/clocksource/clocksource0/current_clocksource  tsc
    /sys/class/dmi/id/sys_vendor             Amazon EC2 (probing/host_limits.py)
"""

from ddp_doctor.checks.node.host import rules, shared_memory
from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.rule import rules_in
from ddp_doctor.parse import cgroup
from ddp_doctor.probing import host_gpus, host_limits

__all__ = ["CHECK", "probe"]


def probe(ctx: Context) -> Host:
    """Read the limits; what this kernel does not show stays None."""
    read = host_limits.reader(ctx)
    meminfo, group = read("/proc/meminfo") or "", cgroup.limits(read)
    shm, shm_problem = host_limits.shared_memory(ctx)
    maker = host_limits.maker(ctx)
    return Host(
        kernel=host_limits.kernel(read),
        in_container=host_gpus.in_container(ctx),
        cpus=ctx.cpus(),
        cpus_are_per_rank=host_limits.several_tasks(ctx.env),
        host_cpus=host_limits.online_cpus(read("/proc/stat") or ""),
        cpu_quota_cpus=group.cpu_quota_cpus,
        load_1min=host_limits.load_1min(read("/proc/loadavg") or ""),
        memory_total_bytes=host_limits.memory_bytes(meminfo, "MemTotal"),
        memory_available_bytes=host_limits.memory_bytes(meminfo, "MemAvailable"),
        cgroup_memory_limit_bytes=group.memory_limit_bytes,
        cgroup_memory_free_bytes=group.memory_free_bytes,
        shm_total_bytes=shm.total_bytes if shm else None,
        shm_free_bytes=shm.free_bytes if shm else None,
        shm_device=host_limits.shared_memory_device(ctx),
        shm_problem=shm_problem,
        loopback_problem=host_limits.loopback_problem(ctx.interfaces),
        memlock_bytes=ctx.limit("MEMLOCK"),
        memlock_is_ignored=host_limits.memlock_is_ignored(read),
        open_files=ctx.limit("NOFILE"),
        omp_num_threads=host_limits.omp_threads(ctx.env.get("OMP_NUM_THREADS", "")),
        clock_source=host_limits.clock_source(read),
        rdma_devices=host_limits.rdma_devices(ctx),
        rdma_unused_by=host_limits.rdma_unused_by(ctx.env),
        vendor=maker.vendor,
        product=maker.product,
        asset_tag=maker.asset_tag,
        network_drivers=maker.network_drivers,
    )


CHECK = Check(
    id="host",
    title="Shared memory, limits, CPUs, memory and clock of the host",
    where=Where.NODE,
    probe=probe,
    facts=(Host,),
    rules=rules_in(rules, shared_memory),
    cost_s=0.05,
)
