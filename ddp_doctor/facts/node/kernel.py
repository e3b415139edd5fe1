"""Facts from a node's kernel about its GPUs and RDMA devices, without NVML."""

from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.facts.node.gpus import PciGpu
from ddp_doctor.knowledge.gpu import gpudirect
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class StuckProcess(Frozen):
    """A process that did not run while it was watched, and its place in the kernel."""

    pid: int
    name: str
    wait_channel: str | None = None  # the kernel function it waits in
    device: str | None = None  # device of the driver that it holds open
    watched_s: float = 0.0


Kind = Literal["xid", "sxid", "off_bus", "init_failed", "pcie_corrected", "pcie_uncorrected", "nic_fault", "hung_task"]


class KernelEvent(Frozen):
    """The lines of one kind about one device, and their number. Seconds count from boot."""

    kind: Kind
    device: str | None = None  # PCI bus id as in /sys
    code: int | None = None  # Xid, SXid; seconds of a hung task
    detail: str = ""  # Fatal, Non-fatal; the recovery action of an Xid 154; the name of a hung task
    text: str = ""  # the last such line
    count: int = 1
    first_at_s: float | None = None
    last_at_s: float | None = None
    pids: tuple[int, ...] = ()
    past: bool = False  # the driver was reloaded since, or the log shows that it is over


class KernelFact(Fact):
    """The state and log of one node's kernel. None: unknown."""

    KIND: ClassVar[str] = "kernel/1"

    release: str | None = None  # of the kernel
    in_container: bool = False
    gpus: tuple[PciGpu, ...] = ()  # NVIDIA's, on the PCI bus
    modules: dict[str, str] = Field(default_factory=dict)  # loaded, with their version or ""
    driver_version: str | None = None  # of the loaded NVIDIA kernel driver
    driver_is_open: bool | None = None  # whether it is the open kernel module
    libraries: dict[str, str] = Field(default_factory=dict)  # libcuda and libnvidia-ml in force: versions
    peermem: str | None = None  # nvidia_peermem, nv_peer_mem, or the file that shows NCCL such a module
    rdma_drivers: dict[str, str] = Field(default_factory=dict)  # RDMA devices with an active port
    uptime_s: float | None = None  # when the log was read
    log_source: str | None = None  # dmesg, journalctl, or a file
    log_problem: str | None = None  # why no kernel log could be read
    log_begins_at_s: float | None = None  # seconds since boot; earlier lines are lost
    events: tuple[KernelEvent, ...] = ()  # since the boot, the latest last
    bridges: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # above each GPU and RDMA device
    rdma_devices: dict[str, str] = Field(default_factory=dict)  # PCI device: name of its RDMA device
    stuck: tuple[StuckProcess, ...] = ()

    def age_s(self, event: KernelEvent) -> float | None:
        """Return the seconds since the last line of an event was logged, or None if unknown."""
        if self.uptime_s is None or event.last_at_s is None:
            return None
        return max(self.uptime_s - event.last_at_s, 0.0)

    def dma_buf(self) -> tuple[bool | None, str]:
        """Return whether GPU memory can be passed to a NIC as a dma-buf (None if unknown), and why."""
        return gpudirect.dma_buf(self.release, self.driver_version, open_modules=self.driver_is_open)

    def gpudirect_rdma(self) -> tuple[bool | None, str]:
        """Return whether a NIC can access GPU memory on this node (None if unknown), and why."""
        if self.peermem is not None:
            return True, f"{self.peermem} is loaded"
        possible, why = self.dma_buf()
        return possible, f"no peer memory module is loaded; {why}"


class KernelAfterFact(Fact):
    """The kernel log of the last hour, read after the ranks have exited."""

    KIND: ClassVar[str] = "kernel-after/1"

    log_source: str
    events: tuple[KernelEvent, ...] = ()
