"""DD333-DD341: NVSwitches, GPUs, PCIe links and NICs that failed by the kernel log, modules, and stuck processes."""

from collections.abc import Container, Iterator

from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.kernel import KernelFact, StuckProcess
from ddp_doctor.knowledge import thresholds
from ddp_doctor.knowledge.gpu import gpudirect
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Backend, Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import FIND_GPU, LOAD_PEERMEM, REBOOT
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.kernel_log import Hit, NodeView, blocked_s, failed_nics, hits_in_log, recent, switch_faults, views
from ddp_doctor.views.software import is_for_cpus
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, finding, likely, possible, proved
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.kernel_log import device_culprits, device_names, line_evidence, stuck_evidence
from ddp_doctor.wording.nodes import by_cause, host, name_list, node_culprit, of_nodes, on_hosts

_FABRIC_GUIDE = "NVIDIA Fabric Manager user guide, NVSwitch SXids, https://docs.nvidia.com/datacenter/tesla/"
_AER = "Linux kernel, PCI Express Advanced Error Reporting, https://docs.kernel.org/PCI/pcieaer-howto.html"


@rule("DD333", "nvswitch-fatal-error", Consequence.FAILS, KernelFact)
def nvswitch_fatal_error(recording: Recording) -> Iterator[Draft]:
    """An NVSwitch reported a fatal error.

    Finds: SXids that the kernel log calls fatal, within a day and since the driver was loaded. Non-fatal SXids are
        normal, especially while links start.
    Why: Traffic over that NVSwitch stalls or fails, so collectives of the node hang or die (Xid 74, 45).
    Remedy: Drain the node; reset all its GPUs and NVSwitches together, or reboot.
    See: NVIDIA Fabric Manager user guide, NVSwitch SXids
    """
    hits = switch_faults(recording)
    for code in dict.fromkeys(fault.event.code for fault in hits):
        some = [fault for fault in hits if fault.event.code == code]
        switches = list(dict.fromkeys((fault.view.node, f"NVSwitch {fault.device}") for fault in some))
        report = "reports" if len(switches) == 1 else "report"
        yield possible(
            device_culprits(recording, some),
            f"{on_hosts(recording, switches, 'NVSwitches')} {report} fatal error SXid {code}",
            (
                *line_evidence(recording, some, _FABRIC_GUIDE),
                *_degraded_gpus(recording, {fault.view.node for fault in some}),
            ),
            by_operator(
                "Drain the node and reset all GPUs and NVSwitches together, or reboot",
                "sudo nvidia-smi --gpu-reset",
                cost="ends all GPU jobs of the node",
                references=(_FABRIC_GUIDE,),
            ),
            detail="The log shows no reset since then.",
            severity=asked_for(recording, Severity.ERROR),
        )


def _degraded_gpus(recording: Recording, nodes: Container[int]) -> Iterator[Evidence]:
    """Yield the GPUs of these nodes that the fabric reports as unhealthy (otherwise DD317 reports them)."""
    for view in views(recording):
        gpus = view.gpus.of_the_job() if view.gpus and view.node in nodes else ()
        for gpu in gpus:
            if gpu.fabric_faults:
                faults = ", ".join(gpu.fabric_faults).replace("_", " ")
                yield Evidence(check="gpus", text=f"{gpu.label} on {host(recording, view.node)}: {faults}")


@rule("DD334", "gpu-failed-to-start", Consequence.FAILS, KernelFact)
def gpu_failed_to_start(recording: Recording) -> Iterator[Draft]:
    """The driver could not start a GPU.

    Finds: "RmInitAdapter failed" since the driver was loaded, for a missing GPU that DD303 does not report, for
        example in a container. Only possible if NVML was not queried.
    Why: The GPU is missing; the job finds fewer than it requested.
    Remedy: Reboot, then check power, slot and firmware. In a virtual machine: its firmware and memory windows.
    See: https://github.com/NVIDIA/open-gpu-kernel-modules/issues/789
    """
    groups: dict[bool, list[Hit]] = {}
    for fault in hits_in_log(recording, lambda _, event: event.kind == "init_failed"):
        view = fault.view
        unlisted = view.gpus.unlisted() if view.gpus is not None else ()
        for device in (fault.device,) if fault.device else unlisted:
            gpu = view.gpu(device)
            reported = view.gpus is not None and (gpu is not None or device in unlisted)
            if view.concerns(device) and not reported and (gpu is None or gpu.error is not None):
                groups.setdefault(view.gpus is None, []).append(Hit(view, device, fault.event))
    for is_unseen, hits in groups.items():
        yield (possible if is_unseen else likely)(
            device_culprits(recording, hits),
            f"NVIDIA driver cannot start {device_names(recording, hits)}",
            line_evidence(recording, hits, "the driver starts every GPU on the bus"),
            FIND_GPU,
            detail="The job has one GPU less for each.",
            severity=asked_for(recording, Severity.ERROR),
        )


#: Each kind of error, the minimum number of its lines, and its severity.
_PCIE_ERRORS = (
    ("pcie_uncorrected", 0, Severity.WARNING),
    ("pcie_corrected", thresholds.PCIE_CORRECTED_LINES, Severity.INFO),
)


#: For corrected, uncorrected non-fatal and fatal errors.
_EFFECTS = (
    "The link resent lost data. So many errors indicate a weak link.",
    "A transaction was lost. The link stayed up.",
    "The link was reset, which interrupts its traffic.",
)


@rule("DD335", "pcie-errors-on-the-way", Consequence.RISK, KernelFact)
def pcie_errors_on_the_way(recording: Recording) -> Iterator[Draft]:
    """A GPU, an RDMA device, or a bridge above them has PCIe errors.

    Finds: Within a day: uncorrected errors (a warning), or at least a thousand lines of corrected errors
        (information). Errors of other devices are ignored.
    Why: A fatal uncorrected error resets the link: the GPU is lost, or the job on it. A non-fatal error loses a
        transaction. Corrected errors only cause a retransmission, at little cost; many of them indicate that the
        link is about to fail.
    Remedy: Reseat the device and its riser, update BIOS and firmware, replace the cable or the board.
    See: https://docs.kernel.org/PCI/pcieaer-howto.html
    """
    for kind, least, severity in _PCIE_ERRORS:
        hits = [
            Hit(view, device, event)
            for view in views(recording)
            for event in view.fact.events
            if event.kind == kind and recent(view, event) and event.count >= least
            for device in view.below(event.device)
        ]
        if hits:
            word = "Uncorrected" if kind == "pcie_uncorrected" else f"{hits[0].event.count} corrected"
            bad = severity is Severity.WARNING
            yield likely(
                device_culprits(recording, hits) if bad else (),
                f"{word} PCIe errors on the path to {device_names(recording, hits)}",
                line_evidence(recording, hits, _AER),
                by_operator(
                    "Inspect the link: reseat the device, its riser and its cables, and update BIOS and firmware",
                    "sudo dmesg -T | grep -e 'PCIe Bus Error' -e AER",
                    cost="node unavailable until fixed",
                    references=(_AER,),
                ),
                detail=_EFFECTS[bad + any("(Fatal)" in hit.event.text for hit in hits)],
                severity=asked_for(recording, severity),
            )


@rule("DD336", "nic-firmware-fault", Consequence.FAILS, KernelFact)
def nic_firmware_fault(recording: Recording) -> Iterator[Draft]:
    """The firmware of an NVIDIA (Mellanox) NIC stopped, or reported a fatal error.

    Finds: mlx5_core lines such as "device's health compromised" or "Fatal error 3 detected" within a day, without a
        later "health recovery succeeded".
    Why: All connections over that NIC break; NCCL ends with "Got completion … status 12", or hangs.
    Remedy: Reload the driver or reboot; update the firmware; replace the NIC if the fault returns.
    See: https://docs.kernel.org/networking/devlink/devlink-health.html
    """
    hits = failed_nics(recording)
    if hits:
        yield possible(
            device_culprits(recording, hits),
            f"Firmware of {device_names(recording, hits)} failed",
            line_evidence(recording, hits, "the NIC's health counter moves"),
            by_operator(
                "Query the NIC's health with devlink, then reload its driver or reboot, and update its firmware",
                *(f"sudo devlink health show pci/{fault.device}" for fault in hits[:8]),
                cost="breaks connections over the NIC",
            ),
            detail="Connections over it were lost, and the log shows no recovery.",
        )


@rule("DD338", "libcuda-differs-from-module", Consequence.FAILS, KernelFact)
def libcuda_differs_from_module(recording: Recording) -> Iterator[Draft]:
    """The libcuda that programs load has a different version than the loaded kernel module.

    Finds: Copies of libcuda in the usual directories, none with the version of the loaded kernel module. Not
        reported if NVML's own library has the same mismatched version, which DD301 or DD322 reports.
    Why: CUDA refuses to start: "system has unsupported display driver / cuda driver combination" (803).
    Remedy: After a driver update, reboot, or unload and load the kernel modules. In a container, use the libraries
        of the container runtime instead of the image's.
    See: https://docs.nvidia.com/deploy/cuda-compatibility
    """
    nodes = [node for node in recording.facts(KernelFact) if not _is_named_by_nvml_rule(recording, node)]
    for (versions, module, in_container), group in by_cause(nodes, _mismatch).items():
        if in_container:
            repair = by_operator(
                "Remove the driver's libraries from the image; the container runtime provides the host's libraries",
                "ldconfig -p | grep libcuda",
                scope="job",
                cost="a new image build",
                undo="rebuild the previous image",
            )
        else:
            repair = by_operator(
                "Reboot the node, or reload the NVIDIA kernel modules",
                "cat /proc/driver/nvidia/version",
                "ldconfig -p | grep libcuda",
                cost="ends all GPU jobs of the node",
                undo="reinstall the previous driver",
            )
        found = " and ".join(versions)
        yield possible(
            of_nodes(recording, group),
            f"libcuda {found} on {{who}} does not match the loaded NVIDIA kernel module {module}",
            Evidence(text=f"libcuda: {found}; module: {module}", expected_from="/usr/lib*, as links from libcuda.so.1"),
            repair,
            detail="CUDA cannot start. Usually the driver was updated while the old module stayed loaded.",
            severity=asked_for(recording, Severity.ERROR),
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


@rule("DD339", "gpudirect-rdma-off", Consequence.COST, KernelFact)
def gpudirect_rdma_off(recording: Recording) -> Iterator[Draft]:
    """A node has GPUs and InfiniBand or RoCE, but the NIC cannot access GPU memory.

    Finds: An active port of an NVIDIA (Mellanox) NIC and a loaded NVIDIA driver, without a peer memory module
        (nvidia_peermem, nv_peer_mem) and without dma-buf, which the proprietary kernel module, or one before 515,
        does not offer. A warning for a run over several nodes with NCCL, otherwise information.
    Why: NCCL copies everything through host memory. The bandwidth between nodes is often half or less, and the
        copies use CPU memory bandwidth.
    Remedy: Load nvidia_peermem, or install the open kernel modules of the driver.
    See: https://docs.nvidia.com/cuda/gpudirect-rdma/
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    uses_rdma = recording.several_nodes and recording.on_nccl
    for (why, devices), group in by_cause(recording.facts(KernelFact), _no_gpudirect).items():
        yield proved(
            of_nodes(recording, group),
            "GPUDirect RDMA is off on {who}: NICs cannot access GPU memory",
            Evidence(text=f"active RDMA ports: {devices}; {why}", expected_from=gpudirect.GUIDE),
            LOAD_PEERMEM,
            detail="NCCL then copies traffic between nodes through host memory.",
            severity=asked_for(recording, Severity.WARNING if uses_rdma else Severity.INFO),
        )


def _no_gpudirect(fact: KernelFact) -> tuple[str, str] | None:
    devices = [name for name, driver in fact.rdma_drivers.items() if driver in gpudirect.RDMA_DRIVERS]
    possible, why = fact.gpudirect_rdma()
    served = any(gpu.driver == "nvidia" for gpu in fact.gpus)
    return (why, ", ".join(devices)) if devices and served and possible is False else None


@rule("DD340", "nouveau-holds-the-gpus", Consequence.RISK, KernelFact)
def nouveau_holds_the_gpus(recording: Recording) -> Iterator[Draft]:
    """The kernel's own driver nouveau holds NVIDIA GPUs.

    Finds: GPUs on the PCI bus that are bound to nouveau, unless gloo was requested. Information if torch is a build
        for CPUs.
    Why: CUDA cannot use them, and NVIDIA's driver does not load at the same time. This is the cause if DD301
        reports that the driver does not work.
    Remedy: Keep nouveau from loading, install NVIDIA's driver, reboot.
    See: https://docs.nvidia.com/datacenter/tesla/driver-installation-guide
    """
    if recording.options.backend is Backend.GLOO:
        return
    for buses, group in by_cause(recording.facts(KernelFact), _nouveau).items():
        yield proved(
            of_nodes(recording, group),
            f"{len(buses)} GPU{'s' if len(buses) > 1 else ''} of {{who}} cannot run CUDA: bound to the nouveau driver",
            Evidence(text=f"bound to nouveau: {', '.join(buses)}"),
            by_operator(
                "Disable nouveau, install NVIDIA's driver, and reboot",
                "echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf",
                "sudo update-initramfs -u   # or: sudo dracut --force",
                cost="a reboot; a desktop on this GPU then runs on NVIDIA's driver",
                undo="sudo rm /etc/modprobe.d/blacklist-nouveau.conf; sudo update-initramfs -u; then reboot",
            ),
            detail="CUDA needs NVIDIA's own driver.",
            severity=Severity.INFO if is_for_cpus(recording) else Severity.WARNING,
        )


def _nouveau(fact: KernelFact) -> tuple[str, ...] | None:
    return tuple(gpu.bus_id for gpu in fact.gpus if gpu.driver == "nouveau") or None


@rule("DD337", "process-stuck-in-gpu-driver", Consequence.HANGS, KernelFact)
def process_stuck_in_gpu_driver(recording: Recording) -> Iterator[Draft]:
    """A process is stuck in the NVIDIA driver, and cannot be killed.

    Finds: Processes in state D (uninterruptible) that wait in a function of the driver and did not run at all for
        three seconds. An error if the kernel has called them hung (blocked for more than 120 seconds); information
        if the function cannot be read. If NVML does not answer either, DD302 names them.
    Why: Its GPU memory is never freed. Every process that needs the same driver lock hangs with it, including
        nvidia-smi and every new rank.
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
                (node_culprit(recording, view.node),),
                f"{names} on {where} {are} stuck in the NVIDIA driver (state D)",
                (stuck_evidence(view, process) for process in processes[:LINES_OF_EVIDENCE]),
                REBOOT,
                confidence=Confidence.POSSIBLE if severity is Severity.INFO else Confidence.LIKELY,
                detail="No signal ends such a process. Other processes that need the same driver lock also hang.",
                severity=asked_for(recording, severity),
            )


def _severity(view: NodeView, process: StuckProcess) -> Severity:
    if blocked_s(view, process):
        return Severity.ERROR
    return Severity.WARNING if process.wait_channel else Severity.INFO


@rule("DD341", "kernel-log-not-readable", Consequence.KNOWN, KernelFact)
def kernel_log_not_readable(recording: Recording) -> Iterator[Draft]:
    """The kernel log is not readable, so Xids are unknown.

    Finds: GPUs that the NVIDIA driver serves, while dmesg, the journal and the files of syslog are all refused or
        missing, as for ordinary users if kernel.dmesg_restrict is 1, and in most containers.
    Why: Only the kernel log has Xids, PCIe errors and hung tasks. Other rules may still find their consequences.
    Remedy: Run ddp-doctor prolog as root on the node, or read the log as an administrator.
    See: https://docs.kernel.org/admin-guide/sysctl/kernel.html#dmesg-restrict
    """
    for reason, group in by_cause(recording.facts(KernelFact), _unread).items():
        yield proved(
            of_nodes(recording, group),
            "Kernel log of {who} is not readable: GPU errors in it (Xids) go unnoticed",
            Evidence(text=reason),
            by_operator(
                "Read the log as root, or as a member of the groups adm or systemd-journal",
                "sudo dmesg -T | grep -i -e xid -e nvrm",
            ),
        )


def _unread(fact: KernelFact) -> str | None:
    served = any(gpu.driver == "nvidia" for gpu in fact.gpus)
    return fact.log_problem if served else None
