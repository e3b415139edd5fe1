"""DD337-DD341: kernel modules that do not fit, processes stuck in the driver, and a kernel log that cannot be read."""

from collections.abc import Iterator

from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.kernel import KernelFact, StuckProcess
from ddp_doctor.knowledge.gpu import gpudirect
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Backend, Confidence, Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Culprit, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import LOAD_PEERMEM, REBOOT
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.kernel_log import NodeView, blocked_s, views
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, finding, likely, proved
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.kernel_log import stuck_evidence
from ddp_doctor.wording.nodes import by_cause, host, name_list, of_nodes

_LIBRARY_FOLDERS = "/usr/lib*, as links from libcuda.so.1"


@rule("DD338", "libcuda-differs-from-module", Severity.WARNING, KernelFact)
def libcuda_differs_from_module(recording: Recording) -> Iterator[Draft]:
    """The libcuda that programs load is of another version than the loaded kernel module.

    Finds: libcuda in the usual folders, of which no copy has the version of the loaded kernel module. Silent where
        NVML's own library is of the same other version, which DD301 or DD322 tells.
    Why: CUDA refuses to start: "system has unsupported display driver / cuda driver combination" (803).
    Remedy: After an update of the driver: reboot, or unload and load the kernel modules. In a container: let the
        container runtime bring the libraries, instead of the image.
    See: https://docs.nvidia.com/deploy/cuda-compatibility
    """
    nodes = [node for node in recording.facts(KernelFact) if not _is_named_by_nvml_rule(recording, node)]
    for (versions, module, in_container), group in by_cause(nodes, _mismatch).items():
        if in_container:
            repair = by_operator(
                "Remove the driver's libraries from the image; the container runtime brings those of the host.",
                "ldconfig -p | grep libcuda",
                scope="job",
                cost="the image must be built anew",
                undo="build the image as before",
            )
        else:
            repair = by_operator(
                "Reboot the node, or unload and load the NVIDIA kernel modules.",
                "cat /proc/driver/nvidia/version",
                "ldconfig -p | grep libcuda",
                cost="ends all GPU jobs of the node",
                undo="install the former driver again",
            )
        found = " and ".join(versions)
        yield likely(
            of_nodes(recording, group),
            f"libcuda {found} on {{who}} does not match the loaded NVIDIA kernel module {module}",
            Evidence(text=f"libcuda: {found}; module: {module}", expected_from=_LIBRARY_FOLDERS),
            repair,
            detail="CUDA refuses to start. Mostly the driver was updated while the old module stayed loaded.",
            severity=asked_for(recording, Severity.WARNING),
        )


def _is_named_by_nvml_rule(recording: Recording, node: FactAt[KernelFact]) -> bool:
    for gpus in recording.at(GpusFact, node.node):
        library = (gpus.nvml_version or "").partition(".")[2]  # after CUDA's major version
        refused = gpus.nvml_error is not None and gpus.nvml_error.code == "lib_rm_version_mismatch"
        if refused or library in _versions(node.fact):
            return True
    return False


def _versions(fact: KernelFact) -> tuple[str, ...]:
    return tuple(sorted({value for path, value in fact.libraries.items() if "/libcuda." in path}))


def _mismatch(fact: KernelFact) -> tuple[tuple[str, ...], str, bool] | None:
    module, versions = fact.driver_version, _versions(fact)
    return (versions, module, fact.in_container) if module and versions and module not in versions else None


@rule("DD339", "gpudirect-rdma-off", Severity.WARNING, KernelFact)
def gpudirect_rdma_off(recording: Recording) -> Iterator[Draft]:
    """InfiniBand or RoCE beside GPUs, and no way for the NIC to reach their memory.

    Finds: An active port of an NVIDIA (Mellanox) NIC and a loaded NVIDIA driver, without a peer memory module
        (nvidia_peermem, nv_peer_mem) and without dma-buf, which the proprietary kernel module, or one before 515, does
        not offer. A warning for a run over several nodes with NCCL, else information.
    Why: NCCL copies everything through host memory: between nodes often half the bandwidth or less, and CPU memory
        bandwidth is lost to it.
    Remedy: Load nvidia_peermem, or install the open kernel modules of the driver.
    See: https://docs.nvidia.com/cuda/gpudirect-rdma/
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    world = recording.world
    several = world is not None and world.nnodes > 1 and world.backend == "nccl"
    for (why, devices), group in by_cause(recording.facts(KernelFact), _no_gpudirect).items():
        yield proved(
            of_nodes(recording, group),
            "GPUDirect RDMA is off on {who}: the NICs cannot reach the memory of the GPUs",
            Evidence(text=f"active RDMA ports: {devices}; {why}", expected_from=gpudirect.GUIDE),
            LOAD_PEERMEM,
            detail="NCCL then copies what goes between nodes through host memory.",
            severity=asked_for(recording, Severity.WARNING if several else Severity.INFO),
        )


def _no_gpudirect(fact: KernelFact) -> tuple[str, str] | None:
    devices = [name for name, driver in fact.rdma_drivers.items() if driver in gpudirect.RDMA_DRIVERS]
    possible, why = fact.gpudirect_rdma()
    served = any(gpu.driver == "nvidia" for gpu in fact.gpus)
    return (why, ", ".join(devices)) if devices and served and possible is False else None


@rule("DD340", "nouveau-holds-the-gpus", Severity.INFO, KernelFact)
def nouveau_holds_the_gpus(recording: Recording) -> Iterator[Draft]:
    """The kernel's own driver nouveau holds NVIDIA GPUs.

    Finds: GPUs on the PCI bus that are bound to nouveau, unless gloo was asked for.
    Why: CUDA cannot use them, and NVIDIA's driver does not load beside it: DD301 tells that it does not work, this
        tells why.
    Remedy: Keep nouveau from loading, install NVIDIA's driver, reboot.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide
    """
    if recording.options.backend is Backend.GLOO:
        return
    for buses, group in by_cause(recording.facts(KernelFact), _nouveau).items():
        yield proved(
            of_nodes(recording, group),
            f"{len(buses)} GPU{'s' if len(buses) > 1 else ''} of {{who}} cannot run CUDA: the driver nouveau holds"
            f" {'them' if len(buses) > 1 else 'it'}",
            Evidence(text=f"bound to nouveau: {', '.join(buses)}"),
            by_operator(
                "Keep nouveau from loading, install NVIDIA's driver, and reboot.",
                "echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
                "sudo update-initramfs -u   # or: sudo dracut --force",
                cost="a reboot; a desktop on this GPU then runs on NVIDIA's driver",
                undo="sudo rm /etc/modprobe.d/blacklist-nouveau.conf; sudo update-initramfs -u; and reboot",
            ),
            detail="CUDA needs NVIDIA's own driver.",
        )


def _nouveau(fact: KernelFact) -> tuple[str, ...] | None:
    return tuple(gpu.bus_id for gpu in fact.gpus if gpu.driver == "nouveau") or None


@rule("DD337", "process-stuck-in-gpu-driver", Severity.WARNING, KernelFact)
def process_stuck_in_gpu_driver(recording: Recording) -> Iterator[Draft]:
    """A process is stuck in the NVIDIA driver, and cannot be killed.

    Finds: Processes in state D (uninterruptible) that wait in a function of the driver and did not run at all while
        they were watched for three seconds. An error where the kernel has called them hung (blocked for more than 120
        seconds); information where the function cannot be read. Where NVML does not answer either, DD302 names them.
    Why: Its GPU memory is never freed, and whoever needs the same lock of the driver hangs with it: nvidia-smi, and
        every new rank.
    Remedy: Reboot the node; no signal ends such a process.
    See: https://docs.kernel.org/filesystems/proc.html
    """
    for view in views(recording):
        groups = grouped(
            (_severity(view, process), process)
            for process in (() if view.gpus and view.gpus.driver_hangs else view.fact.stuck)
        )
        for severity, processes in groups.items():
            where = host(recording, view.node)
            names = name_list([f"{process.name} (pid {process.pid})" for process in processes])
            are = "is" if len(processes) == 1 else "are"
            yield finding(
                (Culprit(kind="node", node=where, node_rank=view.node),),
                f"{names} on {where} {are} stuck in the NVIDIA driver (state D)",
                (stuck_evidence(view, process) for process in processes[:LINES_OF_EVIDENCE]),
                REBOOT,
                confidence=Confidence.POSSIBLE if severity is Severity.INFO else Confidence.LIKELY,
                detail="No signal ends such a process; what needs the same lock of the driver hangs with it.",
                severity=asked_for(recording, severity),
            )


def _severity(view: NodeView, process: StuckProcess) -> Severity:
    if blocked_s(view, process):
        return Severity.ERROR
    return Severity.WARNING if process.wait_channel else Severity.INFO


@rule("DD341", "kernel-log-not-readable", Severity.INFO, KernelFact)
def kernel_log_not_readable(recording: Recording) -> Iterator[Draft]:
    """The kernel log cannot be read here, so nothing is known of Xids.

    Finds: GPUs that the NVIDIA driver serves, while dmesg, the journal and the files of syslog are all refused or
        missing, as for ordinary users where kernel.dmesg_restrict is 1, and in most containers.
    Why: Xids, PCIe errors and hung tasks stand nowhere else. What follows from them may still be found.
    Remedy: Run ddp-doctor prolog as root on the node, or read the log as an administrator.
    See: https://docs.kernel.org/admin-guide/sysctl/kernel.html#dmesg-restrict
    """
    for reason, group in by_cause(recording.facts(KernelFact), _unread).items():
        yield proved(
            of_nodes(recording, group),
            "The kernel log of {who} cannot be read: GPU errors in it (Xids) go unseen",
            Evidence(text=reason),
            by_operator(
                "Read the log as root, or as a member of the groups adm or systemd-journal.",
                "sudo dmesg -T | grep -i -e xid -e nvrm",
                undo=NOTHING_TO_UNDO,
            ),
        )


def _unread(fact: KernelFact) -> str | None:
    served = any(gpu.driver == "nvidia" for gpu in fact.gpus)
    return fact.log_problem if served else None
