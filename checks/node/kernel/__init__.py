r"""The kernel's view of the GPUs: its log, its modules, and processes that are stuck in the driver.

If NVML is silent, hangs or gives wrong answers, the kernel has often logged the cause. Only the kernel knows whether a
NIC may access the memory of a GPU, which determines the speed of DDP between nodes. Raw input::

    [74889.644138] NVRM: Xid (PCI:0000:2b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
    /proc/uptime                         81234.56 1234567.89
    /sys/module/nvidia_peermem/version   550.90.07
    /proc/driver/nvidia/version          NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May …
    /usr/lib/x86_64-linux-gnu/libcuda.so.1 -> libcuda.so.550.90.07
    /proc/5403/stat                      5403 (nvidia-smi) D 5396 …

The log is the host's, even in a container, so it includes other users' GPUs and jobs. It does not show whether a GPU
was reset since; the rules take that from NVML.
"""

from ddp_doctor.checks.node.kernel import faults, xids
from ddp_doctor.checks.node.kernel.kernel_log import booted_at, parse_kernel_log, uptime_s
from ddp_doctor.checks.node.kernel.processes_in_driver import stuck_processes
from ddp_doctor.facts.node.kernel import KernelFact
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing import host_gpus, kernel, pci_devices
from ddp_doctor.probing.kernel import read_log
from ddp_doctor.probing.kernel_files import first_line


def probe(ctx: Context) -> KernelFact:
    """Read what the kernel shows. Raises Absent if there is neither a GPU nor an RDMA device."""
    gpus = host_gpus.pci_gpus(ctx) or ()
    rdma = kernel.rdma_drivers(ctx)
    line = first_line(ctx, "/proc/driver/nvidia/version")
    if not gpus and not rdma and line is None:
        raise Absent("no NVIDIA GPU and no RDMA device found")
    loaded = kernel.modules(ctx)
    version, is_open = kernel.driver(line)
    log = read_log(ctx)
    read_at_s = uptime_s(ctx)
    parsed = parse_kernel_log(log.text, booted_at(ctx))
    ctx.keep("\n".join((f"/proc/driver/nvidia/version: {line}", *parsed.lines)))
    nics = kernel.rdma_pci_devices(ctx)
    devices = (*(gpu.bus_id for gpu in gpus), *nics)
    return KernelFact(
        release=first_line(ctx, "/proc/sys/kernel/osrelease"),
        in_container=host_gpus.in_container(ctx),
        gpus=gpus,
        modules=loaded,
        driver_version=version,
        driver_is_open=is_open,
        libraries=kernel.libraries(ctx),
        peermem=kernel.peermem(ctx, loaded),
        rdma_drivers=rdma,
        uptime_s=read_at_s,
        log_source=log.source,
        log_problem=log.problem,
        log_begins_at_s=parsed.begins_at_s,
        events=parsed.events,
        bridges={bus: pci_devices.bridges_above(ctx, bus) for bus in devices},
        rdma_devices=nics,
        stuck=stuck_processes(ctx) if version is not None else (),
    )


CHECK = Check(
    id="kernel",
    title="The kernel's messages about GPUs and NICs",
    where=Where.NODE,
    probe=probe,
    facts=(KernelFact,),
    rules=rules_in(faults, xids),
    cost_s=0.2,
    deadline_s=30.0,  # a process that seems stuck is watched for some seconds
)
