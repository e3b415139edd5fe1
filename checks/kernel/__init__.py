"""The kernel's side of the GPUs: its modules and what it logged, read without NVML.

Where NVML is silent, hangs or lies, the kernel has often said what happened; and only it knows whether a
NIC may reach the memory of a GPU, on which the speed of DDP between nodes depends. Raw input::

    /sys/module/nvidia_peermem/version   550.90.07
    /proc/driver/nvidia/version          NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May …
    /usr/lib/x86_64-linux-gnu/libcuda.so.1 -> libcuda.so.550.90.07
"""

from ddp_doctor.checks.kernel import modules as module_rules
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent
from ddp_doctor.parse import host_gpus, kernel_modules
from ddp_doctor.parse.kernel_facts import KernelFact

__all__ = ["CHECK", "KernelFact", "probe"]


def probe(ctx: Context) -> KernelFact:
    """Read what the kernel shows. Raises Absent where there is neither a GPU nor an RDMA device."""
    gpus = host_gpus.pci_gpus(ctx) or ()
    rdma = kernel_modules.rdma_drivers(ctx)
    line = host_gpus.first_line(ctx, "/proc/driver/nvidia/version")
    if not gpus and not rdma and line is None:
        raise Absent("no NVIDIA GPU and no RDMA device on this machine")
    ctx.keep(f"/proc/driver/nvidia/version: {line}")
    loaded = kernel_modules.modules(ctx)
    version, is_open = kernel_modules.driver(line)
    return KernelFact(
        release=host_gpus.first_line(ctx, "/proc/sys/kernel/osrelease"),
        in_container=host_gpus.in_container(ctx),
        gpus=gpus,
        modules=loaded,
        driver_version=version,
        driver_is_open=is_open,
        libraries=kernel_modules.libraries(ctx),
        peermem=kernel_modules.peermem(ctx, loaded),
        rdma_drivers=rdma,
    )


CHECK = Check(
    id="kernel",
    title="What the kernel says of GPUs and NICs",
    where=Where.NODE,
    probe=probe,
    facts=(KernelFact,),
    rules=module_rules.RULES,
    cost_s=0.1,
)
