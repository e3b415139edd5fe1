"""The limits of a node."""

from typing import ClassVar

from pydantic import PositiveInt

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class BusyProcess(Frozen):
    """A process that takes much of the CPUs. Its arguments, which may hold anything, are not kept."""

    name: str  # as the kernel has it: 15 characters
    pid: int
    cpus: float  # how many it kept busy


class Host(Fact):
    """The limits of one node for a process of the job; None is "not known", for limits "no limit"."""

    KIND: ClassVar[str] = "host/1"

    kernel: str | None = None
    in_container: bool = False
    cpus: PositiveInt  # logical CPUs this process may run on
    cpus_are_per_rank: bool = False  # the launcher starts, and may bind, each rank by itself
    host_cpus: int | None = None
    cpu_quota_cpus: float | None = None  # limit: the control group's processor time
    load_1min: float | None = None
    busiest: tuple[BusyProcess, ...] = ()  # of others, the two that take most; looked for under a high load only
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None  # of the host
    cgroup_memory_limit_bytes: int | None = None  # limit
    cgroup_memory_free_bytes: int | None = None  # under that limit
    shm_total_bytes: int | None = None  # limit
    shm_free_bytes: int | None = None
    shm_device: int | None = None  # st_dev of /dev/shm, of one booted kernel
    shm_problem: str | None = None  # why no segment can be made in /dev/shm
    loopback_problem: str | None = None  # why 127.0.0.1 cannot be reached: "lo is down"
    memlock_bytes: int | None = None  # limit
    memlock_is_ignored: bool = False  # the kernel lets this process lock more
    open_files: int | None = None  # limit
    omp_num_threads: int | None = None
    clock_source: str | None = None
    rdma_devices: tuple[str, ...] = ()  # with an active port
    rdma_unused_by: str | None = None  # the setting that keeps NCCL from them
    vendor: str | None = None  # of the machine, as its firmware says: "Amazon EC2", "Supermicro"
    product: str | None = None
    asset_tag: str | None = None  # of the chassis; clouds put a mark of their own there
    network_drivers: tuple[str, ...] = ()  # of the interfaces on a device: "ena", "mlx5_core"

    @property
    def usable_cpus(self) -> float:
        """What the job can run at once: the CPUs it may use, under the quota."""
        return min(float(self.cpus), self.cpu_quota_cpus or float(self.cpus))

    @property
    def load_per_cpu(self) -> float:
        """Processes that ran or waited for a CPU in the last minute, of all on the host."""
        return (self.load_1min or 0.0) / (self.host_cpus or self.cpus)

    @property
    def free_memory_bytes(self) -> int | None:
        """What a new process can take, of the host and under the control group's limit."""
        known = (self.memory_available_bytes, self.cgroup_memory_free_bytes)
        return min((value for value in known if value is not None), default=None)
