"""The conditions of GPUDirect RDMA, a NIC's direct access to GPU memory, in kernel and driver.

There are two ways, and one is enough. The first is a *peer memory* module (nvidia_peermem, before driver 470
nv_peer_mem), which NCCL finds by the files below. The second is the kernel's own dma-buf, which needs kernel 5.12 or
later, driver 515 or later (CUDA 11.7) and NVIDIA's open kernel modules, because dma_buf_export is for GPL-compatible
modules only. Only NCCL's own log shows whether a single GPU or NIC uses it.

Sources: NVIDIA/nccl src/transport/net_ib (ibGdrSupportInitOnce, ncclIbDmaBufSupport) and src/init.cc (dmaBufSupported:
CUDA driver 11.7); NVIDIA GPU Operator, GPUDirect RDMA, prerequisites of DMA-BUF.
"""

from ddp_doctor.knowledge.versions import release

#: If one of these files exists, NCCL assumes that GPU memory can be registered. The first two are paths of the peer
#: memory interface of MLNX_OFED and of Ubuntu's kernels, whose name for the module's client is nv_mem.
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

#: Drivers of RDMA devices that NCCL's own IB transport uses with a peer memory module or dma-buf. EFA has a plug-in
#: with its own methods; rxe and siw are software and never access GPU memory.
RDMA_DRIVERS = ("mlx5_core", "mlx4_core")

GUIDE = "https://docs.nvidia.com/cuda/gpudirect-rdma/"


def dma_buf(kernel: str | None, driver: str | None, *, open_modules: bool | None) -> tuple[bool | None, str]:
    """Return whether GPU memory can be passed to a NIC as a dma-buf (None if unknown), and why."""
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
