r"""The kernel log after the ranks have exited: failures of a GPU, NVSwitch, NIC or PCIe link during the run.

If a rank died or a run hung, the cause is often only in this log. Raw input, compared with the log that the check
kernel read before the ranks started::

    [74889.644138] NVRM: Xid (PCI:0000:2b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.

Lines are new if the first log did not have them: the times of the log and of the clock diverge over weeks. Xids caused
by programs are ignored (13, 31, 43, 45 and others), because ddp-doctor itself kills ranks that hang.
"""

from collections.abc import Iterator

from ddp_doctor.checks.node.kernel.kernel_log import booted_at, parse_kernel_log, uptime_s
from ddp_doctor.checks.node.kernel.xids import meaning, reset_gpus
from ddp_doctor.facts.node.kernel import KernelAfterFact, KernelEvent, KernelFact
from ddp_doctor.knowledge.gpu.xids import CATALOG, JUST_NOW_S, RECOVERY_ACTION
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Consequence, Severity, Where
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent, Skip
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.probing import host_gpus, kernel
from ddp_doctor.probing.kernel import read_log
from ddp_doctor.remedies.hardware import REBOOT_NODE
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.kernel_log import Hit, views
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE, likely
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.kernel_log import device_culprits, device_names
from ddp_doctor.wording.nodes import host

#: Xids that end the affected program, although the GPU keeps working.
_PROGRAM_LOST = (94,)


def probe(ctx: Context) -> KernelAfterFact:
    """Read the log again. Raises Absent if there is no device that it could report on."""
    if not host_gpus.pci_gpus(ctx) and not kernel.rdma_pci_devices(ctx):
        raise Absent("no NVIDIA GPU and no RDMA device found")
    log = read_log(ctx)
    if log.source is None:
        raise Skip(f"cannot read the kernel log: {log.problem}")
    since_s = (uptime_s(ctx) or 0.0) - JUST_NOW_S
    parsed = parse_kernel_log(log.text, booted_at(ctx), since_s)
    ctx.keep("\n".join(parsed.lines))
    return KernelAfterFact(log_source=log.source, events=parsed.events)


@rule("DD342", "gpu-failed-during-the-run", Consequence.FAILS, KernelFact, KernelAfterFact)
def gpu_failed_during_the_run(recording: Recording) -> Iterator[Draft]:
    """The kernel logged a fault of the job's GPUs, or of their NVSwitches, while the ranks ran.

    Finds: Xids that no program causes, GPUs that fell off the bus, and fatal SXids, in the kernel log after the
        ranks and not before them. An error if the GPU is unusable until a reset; a warning if the catalog asks for
        a reset or the program was lost; otherwise, information.
    Why: It caused the failure of the ranks, or will cause a failure of the job.
    Remedy: Drain the node and reset the GPU, or reboot; if the fault returns, the hardware is faulty.
    See: https://docs.nvidia.com/deploy/xid-errors
    """
    groups: dict[tuple[str, int, Severity], list[Hit]] = {}
    new = _new_events(recording, "xid", "sxid", "off_bus")
    with_xid = {(fault.view.node, fault.device) for fault in new if fault.event.kind == "xid"}
    for fault in new:
        if fault.event.kind == "off_bus" and (fault.view.node, fault.device) in with_xid:
            continue  # the driver reports it twice
        severity = _severity(fault.event)
        if severity is not None and fault.view.concerns(fault.device):
            groups.setdefault((fault.event.kind, fault.event.code or 0, severity), []).append(fault)
    for (kind, code, severity), hits in groups.items():
        if kind == "sxid":
            what, repair = f"fatal SXid {code}", REBOOT_NODE
        else:
            known = meaning(hits[0].event)
            what = f"Xid {code}, {known.meaning}" if kind == "xid" else known.meaning
            repair = REBOOT_NODE if known.kind == "reboot" else reset_gpus([fault.device or "" for fault in hits])
        title = f"{device_names(recording, hits)} failed while the ranks ran: {what}"
        yield _draft(recording, title, hits, repair, severity)


def _severity(event: KernelEvent) -> Severity | None:
    if event.kind == "sxid":
        return Severity.ERROR if event.detail == "Fatal" else None
    known = meaning(event)
    if known.kind == "application" or (event.code == RECOVERY_ACTION and event.past):
        return None
    if known.stays:
        return Severity.ERROR
    grave = known.kind in ("reset", "reboot") or event.code in _PROGRAM_LOST
    return Severity.WARNING if grave else Severity.INFO


@rule("DD343", "link-failed-during-the-run", Consequence.RISK, KernelFact, KernelAfterFact)
def link_failed_during_the_run(recording: Recording) -> Iterator[Draft]:
    """The kernel logged a NIC failure, or PCIe errors near a NIC or GPU, while the ranks ran.

    Finds: Failures of a NIC's firmware, and uncorrected PCIe errors of the job's GPUs, of RDMA devices and of the
        bridges above them, in the kernel log after the ranks and not before them.
    Why: All connections over that NIC, or all traffic over that link, were lost.
    Remedy: Have the device and its link inspected.
    See: https://docs.kernel.org/PCI/pcieaer-howto.html
    """
    hits = [
        Hit(fault.view, device, fault.event)
        for fault in _new_events(recording, "nic_fault", "pcie_uncorrected")
        for device in fault.view.below(fault.device)
    ]
    if hits:
        title = f"Link or firmware of {device_names(recording, hits)} failed while the ranks ran"
        repair = by_operator(
            "Inspect the device, its slot and its cables, and update its firmware",
            "sudo dmesg -T | tail -n 100",
            cost="node unavailable until fixed",
        )
        is_nic = any(fault.event.kind == "nic_fault" for fault in hits)
        yield _draft(recording, title, hits, repair, Severity.ERROR if is_nic else Severity.WARNING)


def _draft(recording: Recording, title: str, hits: list[Hit], repair: Remedy, severity: Severity) -> Draft:
    return likely(
        device_culprits(recording, hits),
        title,
        tuple(
            Evidence(
                check="kernel_after",
                text=f"{host(recording, fault.view.node)}: {fault.event.text}",
                expected_from=CATALOG if fault.event.kind == "xid" else "no such line before the ranks ran",
            )
            for fault in hits[:LINES_OF_EVIDENCE]
        ),
        repair,
        detail="The kernel logged it between the start of the first rank and the end of the last rank.",
        severity=asked_for(recording, severity),
    )


def _new_events(recording: Recording, *kinds: str) -> list[Hit]:
    """Return the events of the second log that are not in the first, which was read from the same source."""
    before = {view.node: view for view in views(recording)}
    found = []
    for node in recording.facts(KernelAfterFact):
        view = before.get(node.node)
        if view is None or view.fact.log_source != node.fact.log_source:
            continue
        known = {_key(event): event for event in view.fact.events}
        for event in node.fact.events:
            old = known.get(_key(event))
            if event.kind in kinds and (old is None or (event.last_at_s or 0.0) > (old.last_at_s or 0.0)):
                found.append(Hit(view, event.device, event))
    return found


def _key(event: KernelEvent) -> tuple[object, ...]:
    return event.kind, event.device, event.code, event.detail


CHECK = Check(
    id="kernel_after",
    title="The kernel log after the ranks: GPUs, NICs and links that failed during the run",
    where=Where.AFTERWARDS,
    probe=probe,
    facts=(KernelAfterFact,),
    rules=(gpu_failed_during_the_run, link_failed_during_the_run),
    cost_s=0.1,
    deadline_s=20.0,
)
