"""The limits of a node."""

from typing import ClassVar

from pydantic import PositiveInt

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class BusyProcess(Frozen):
    """A process that takes much of the CPUs. Its arguments, which may hold anything, are not kept."""

    name: str  # from the kernel: at most 15 characters
    pid: int
    cpus: float  # number of CPUs it kept busy


class Host(Fact):
    """The limits of one node for a process of the job. None: unknown, or unlimited for fields marked "limit"."""

    KIND: ClassVar[str] = "host/1"

    kernel: str | None = None
    in_container: bool = False
    cpus: PositiveInt  # logical CPUs this process may run on
    cpus_are_per_rank: bool = False  # the launcher starts, and may bind, each rank separately
    host_cpus: int | None = None
    cpu_quota_cpus: float | None = None  # limit: the control group's processor time
    load_1min: float | None = None
    busiest: tuple[BusyProcess, ...] = ()  # the two busiest other processes; searched only under high load
    memory_total_bytes: int | None = None
    memory_available_bytes: int | None = None  # of the host
    cgroup_memory_limit_bytes: int | None = None  # limit
    cgroup_memory_free_bytes: int | None = None  # under that limit
    shm_total_bytes: int | None = None  # limit
    shm_free_bytes: int | None = None
    shm_device: int | None = None  # st_dev of /dev/shm; identifies the booted kernel
    shm_problem: str | None = None  # why no segment can be made in /dev/shm
    loopback_problem: str | None = None  # why 127.0.0.1 cannot be reached: "lo is down"
    memlock_bytes: int | None = None  # limit
    memlock_is_ignored: bool = False  # the kernel lets this process lock more
    open_files: int | None = None  # limit
    omp_num_threads: int | None = None
    clock_source: str | None = None
    rdma_devices: tuple[str, ...] = ()  # with an active port
    rdma_unused_by: str | None = None  # the setting that keeps NCCL from them
    vendor: str | None = None  # of the machine, from its firmware: "Amazon EC2", "Supermicro"
    product: str | None = None
    asset_tag: str | None = None  # of the chassis; clouds write an identifier there
    network_drivers: tuple[str, ...] = ()  # of the interfaces on a device: "ena", "mlx5_core"

    @property
    def usable_cpus(self) -> float:
        """The number of CPUs that the job can use at once: the allowed CPUs, limited by the quota."""
        return min(float(self.cpus), self.cpu_quota_cpus or float(self.cpus))

    @property
    def load_per_cpu(self) -> float:
        """The load of the host per CPU: processes that ran or waited for a CPU in the last minute."""
        return (self.load_1min or 0.0) / (self.host_cpus or self.cpus)

    @property
    def free_memory_bytes(self) -> int | None:
        """The memory that a new process can take on the host, within the control group's limit."""
        known = (self.memory_available_bytes, self.cgroup_memory_free_bytes)
        return min((value for value in known if value is not None), default=None)
