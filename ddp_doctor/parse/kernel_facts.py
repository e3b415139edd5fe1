"""What a node's kernel knows of its GPUs and RDMA devices, without NVML.

The fact of the check ``kernel`` stands here, since rules about RDMA and transports ask it whether
GPUDirect RDMA is possible.
"""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.knowledge import gpudirect
from ddp_doctor.model.fact import Fact
from ddp_doctor.parse.gpu_facts import PciGpu


class KernelFact(Fact):
    """What the kernel of one node says; None is "not told"."""

    KIND: ClassVar[str] = "kernel/1"

    release: str | None = None  # of the kernel
    in_container: bool = False
    gpus: tuple[PciGpu, ...] = ()  # NVIDIA's, on the PCI bus
    modules: dict[str, str] = Field(default_factory=dict)  # loaded, with their version or ""
    driver_version: str | None = None  # of the loaded NVIDIA kernel driver
    driver_is_open: bool | None = None  # whether that is the open kernel module
    libraries: dict[str, str] = Field(default_factory=dict)  # libcuda and libnvidia-ml in force: versions
    peermem: str | None = None  # nvidia_peermem, nv_peer_mem, or the file by which NCCL finds such a module
    rdma_drivers: dict[str, str] = Field(default_factory=dict)  # RDMA devices with an active port

    def dma_buf(self) -> tuple[bool | None, str]:
        """Whether GPU memory can be handed to a NIC as a dma-buf, and why; None where it cannot be told."""
        return gpudirect.dma_buf(self.release, self.driver_version, open_modules=self.driver_is_open)

    def gpudirect_rdma(self) -> tuple[bool | None, str]:
        """Whether a NIC can reach GPU memory here, and why; None where it cannot be told."""
        if self.peermem is not None:
            return True, f"{self.peermem} is loaded"
        possible, why = self.dma_buf()
        return possible, f"no peer memory module is loaded; {why}"
