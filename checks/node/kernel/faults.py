"""DD333, DD334, DD335, DD336: what else the kernel log says of NVSwitches, GPUs, PCIe links and NICs."""

from collections.abc import Container, Iterator

from ddp_doctor.facts.node.kernel import KernelFact
from ddp_doctor.knowledge import thresholds
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import FIND_GPU
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.kernel_log import Hit, failed_nics, hits_in_log, recent, switch_faults, views
from ddp_doctor.wording.findings import likely, possible
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.kernel_log import device_culprits, device_names, line_evidence
from ddp_doctor.wording.nodes import host

_FABRIC_GUIDE = "NVIDIA Fabric Manager user guide, NVSwitch SXids, https://docs.nvidia.com/datacenter/tesla/"
_AER = "Linux kernel, PCI Express Advanced Error Reporting, https://docs.kernel.org/PCI/pcieaer-howto.html"


@rule("DD333", "nvswitch-fatal-error", Severity.WARNING, KernelFact)
def nvswitch_fatal_error(recording: Recording) -> Iterator[Draft]:
    """An NVSwitch reported a fatal error.

    Finds: SXids that the kernel log calls fatal, within a day and since the driver was loaded. Non-fatal ones are
        everyday life, above all while links come up.
    Why: Traffic over that NVSwitch stalls or fails, so collectives of the node hang or die (Xid 74, 45).
    Remedy: Drain the node; reset all its GPUs and NVSwitches together, or reboot.
    See: NVIDIA Fabric Manager user guide, NVSwitch SXids
    """
    hits = switch_faults(recording)
    for code in dict.fromkeys(fault.event.code for fault in hits):
        some = [fault for fault in hits if fault.event.code == code]
        yield possible(
            device_culprits(recording, some),
            f"An NVSwitch reported a fatal error, SXid {code}: {device_names(recording, some)}",
            (
                *line_evidence(recording, some, _FABRIC_GUIDE),
                *_degraded_gpus(recording, {fault.view.node for fault in some}),
            ),
            by_operator(
                "Drain the node, and reset all GPUs and NVSwitches together, or reboot.",
                "sudo nvidia-smi --gpu-reset",
                cost="ends all GPU jobs of the node",
                undo=NOTHING_TO_UNDO,
                references=(_FABRIC_GUIDE,),
            ),
            detail="The log does not say that it was reset since.",
            severity=asked_for(recording, Severity.WARNING),
        )


def _degraded_gpus(recording: Recording, nodes: Container[int]) -> Iterator[Evidence]:
    """The GPUs of these nodes that the fabric reports as unhealthy (else DD317's)."""
    for view in views(recording):
        gpus = view.gpus.of_the_job() if view.gpus and view.node in nodes else ()
        for gpu in gpus:
            if gpu.fabric_faults:
                faults = ", ".join(gpu.fabric_faults).replace("_", " ")
                yield Evidence(check="gpus", text=f"{gpu.label} on {host(recording, view.node)}: {faults}")


@rule("DD334", "gpu-failed-to-start", Severity.ERROR, KernelFact)
def gpu_failed_to_start(recording: Recording) -> Iterator[Draft]:
    """The driver could not start a GPU.

    Finds: "RmInitAdapter failed" since the driver was loaded, for a GPU that is missing and that DD303 does not name,
        as in a container. A warning where NVML was not asked.
    Why: The GPU is missing; the job finds fewer than it asked for.
    Remedy: Reboot, then look at power, slot and firmware. In a virtual machine: its firmware and memory windows.
    See: https://github.com/NVIDIA/open-gpu-kernel-modules/issues/789
    """
    groups: dict[Severity, list[Hit]] = {}
    for fault in hits_in_log(recording, lambda _, event: event.kind == "init_failed"):
        view = fault.view
        unlisted = view.gpus.unlisted() if view.gpus is not None else ()
        for device in (fault.device,) if fault.device else unlisted:
            gpu = view.gpu(device)
            reported = view.gpus is not None and (gpu is not None or device in unlisted)
            if view.concerns(device) and not reported and (gpu is None or gpu.error is not None):
                severity = Severity.WARNING if view.gpus is None else Severity.ERROR
                groups.setdefault(severity, []).append(Hit(view, device, fault.event))
    for severity, hits in groups.items():
        yield likely(
            device_culprits(recording, hits),
            f"The NVIDIA driver could not start {device_names(recording, hits)}",
            line_evidence(recording, hits, "the driver starts every GPU on the bus"),
            FIND_GPU,
            detail="The job will have one GPU fewer for each.",
            severity=asked_for(recording, severity),
        )


#: Each kind of errors, how many lines of it matter, and how much.
_PCIE_ERRORS = (
    ("pcie_uncorrected", 0, Severity.WARNING),
    ("pcie_corrected", thresholds.PCIE_CORRECTED_LINES, Severity.INFO),
)


@rule("DD335", "pcie-errors-on-the-way", Severity.WARNING, KernelFact)
def pcie_errors_on_the_way(recording: Recording) -> Iterator[Draft]:
    """PCIe errors of a GPU, an RDMA device, or a bridge above them.

    Finds: Within a day: uncorrected errors (a warning), or a thousand lines and more of corrected ones (information).
        Errors of other devices are nobody's business here.
    Why: An uncorrected error resets the link: the GPU is lost, or the job on it. Corrected ones are sent again, which
        costs little; many of them tell of a link that is about to fail.
    Remedy: Reseat the device and its riser, update BIOS and firmware, exchange the cable or the board.
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
                f"{word} PCIe errors on the way to {device_names(recording, hits)}",
                line_evidence(recording, hits, _AER),
                by_operator(
                    "Have the link inspected: reseat the device, its riser and its cables; update the BIOS and"
                    " firmware.",
                    "sudo dmesg -T | grep -e 'PCIe Bus Error' -e AER",
                    cost="the node cannot be used meanwhile",
                    undo=NOTHING_TO_UNDO,
                    references=(_AER,),
                ),
                detail="The link was reset, with whatever ran over it."
                if bad
                else "What was lost was sent again; so many errors are the sign of a weak link.",
                severity=asked_for(recording, severity),
            )


@rule("DD336", "nic-firmware-fault", Severity.WARNING, KernelFact)
def nic_firmware_fault(recording: Recording) -> Iterator[Draft]:
    """The firmware of an NVIDIA (Mellanox) NIC stopped, or reported a fatal error.

    Finds: mlx5_core lines such as "device's health compromised" or "Fatal error 3 detected" within a day, without a
        later "health recovery succeeded".
    Why: All connections over that NIC break; NCCL ends with "Got completion … status 12", or hangs.
    Remedy: Reload the driver or reboot; update the firmware; exchange the NIC if it returns.
    See: https://docs.kernel.org/networking/devlink/devlink-health.html
    """
    hits = failed_nics(recording)
    if hits:
        yield likely(
            device_culprits(recording, hits),
            f"The firmware of {device_names(recording, hits)} failed",
            line_evidence(recording, hits, "the NIC's health counter moves"),
            by_operator(
                "Query the NIC's health with devlink; reload its driver, or reboot; update its firmware.",
                *(f"sudo devlink health show pci/{fault.device}" for fault in hits[:8]),
                cost="connections over the NIC break",
                undo=NOTHING_TO_UNDO,
            ),
            detail="Connections over it were lost, and nothing in the log says that it recovered.",
        )
