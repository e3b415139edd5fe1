"""Whether a NIC can reach GPU memory by itself (GPUDirect RDMA), as far as kernel and driver decide it.

There are two ways, and one is enough. A *peer memory* module (nvidia_peermem, before driver 470
nv_peer_mem) that NCCL finds by the files below; or the kernel's own dma-buf, which takes a kernel from
5.12, a driver from 515 (CUDA 11.7) and NVIDIA's open kernel modules: dma_buf_export is for GPL-compatible
modules only. Whether a single GPU or NIC does it, only NCCL's own log shows.

Sources: NVIDIA/nccl src/transport/net_ib (ibGdrSupportInitOnce, ncclIbDmaBufSupport) and src/init.cc
(dmaBufSupported: CUDA driver 11.7); NVIDIA GPU Operator, GPUDirect RDMA, prerequisites of DMA-BUF.
"""

from ddp_doctor.knowledge.versions import release

#: One of these files is there: NCCL takes GPU memory to be registrable. The first two are in the way
#: of the peer memory interface of MLNX_OFED and of Ubuntu's kernels, where the module's client is nv_mem.
PEERMEM_FILES = (
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
    "/sys/module/nvidia_peermem/version",
)
PEERMEM_MODULES = ("nvidia_peermem", "nv_peer_mem")

#: Before this kernel only back-ports register dma-bufs with an RDMA device.
DMA_BUF_KERNEL = (5, 12)
#: The first driver of CUDA 11.7.
DMA_BUF_DRIVER = 515

#: Drivers of RDMA devices that NCCL's own IB transport uses with a peer memory module or dma-buf. EFA
#: has a plug-in with ways of its own; rxe and siw are software and never reach GPU memory.
RDMA_DRIVERS = ("mlx5_core", "mlx4_core")

GUIDE = "https://docs.nvidia.com/cuda/gpudirect-rdma/"


def dma_buf(kernel: str | None, driver: str | None, *, open_modules: bool | None) -> tuple[bool | None, str]:
    """Whether GPU memory can be handed to a NIC as a dma-buf, and why; None where it is not known."""
    if driver is None or open_modules is None:
        return None, "the NVIDIA kernel driver is not known"
    if not open_modules:
        return False, "the proprietary NVIDIA kernel module cannot export dma-bufs, the open one can"
    if release(driver)[:1] < (DMA_BUF_DRIVER,):
        return False, f"driver {driver} is older than {DMA_BUF_DRIVER}, the first with dma-buf"
    if kernel is None:
        return None, "the kernel's version is not known"
    if release(kernel)[:2] < DMA_BUF_KERNEL:
        return None, f"kernel {kernel} is older than 5.12; only a back-port registers dma-bufs with a NIC"
    return True, f"open NVIDIA kernel module {driver} on kernel {kernel}"
