"""DD330, DD331, DD332: Xids in the kernel log, by what they ask for."""

from collections.abc import Iterator, Sequence
from typing import Literal

from ddp_doctor.facts.node.kernel import KernelEvent, KernelFact
from ddp_doctor.knowledge.gpu.xids import CATALOG, JUST_NOW_S, OFF_BUS, REBOOT_WORDS, RECOVERY_ACTION, Xid, xid
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Remedy
from ddp_doctor.model.recording import Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import REBOOT_NODE
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.views.kernel_log import Hit, NodeView, recent, views
from ddp_doctor.wording.findings import NOBODY, finding, likely, possible
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.kernel_log import device_culprits, device_names, line_evidence


def reset_gpus(bus_ids: Sequence[str]) -> Remedy:
    """Return the fix that resets exactly these GPUs."""
    return by_operator(
        "Drain the node and reset the GPU, or reboot if it stays missing; replace the hardware if the fault returns",
        *(f"sudo nvidia-smi --gpu-reset -i {bus_id}" for bus_id in bus_ids[:8]),
        cost="ends every process on the GPU; GPUs joined by NVSwitch may have to be reset together",
        references=(CATALOG,),
    )


WATCH = by_operator(
    "Have the device inspected if it happens again; no action is needed now",
    "sudo dmesg -T | grep -i -e xid",
    references=(CATALOG,),
)


#: The state of a GPU since its Xid: still unusable, working again, or unknown.
Standing = Literal["out", "back", "unknown"]

#: Xids whose end NVML shows: a lost GPU does not answer, uncorrected errors count until the reset, a row that could not
#: be remapped is recorded, and a GPU without its system processor cannot report its memory.
_LOST = (79,)
_MEMORY = (48, 95, 140)
_REMAPPED, _NOT_REMAPPED = 63, 64
_CONTAINED = 94
_SILENT = (62, 110, 119, 120, 143)
#: NVML errors that a GPU in this state causes for all of NVML.
_DEAD = ("timed_out", "gpu_is_lost", "crashed", "unknown")
#: Xids that follow others and add no information.
_FOLLOWS = (43, 45)


@rule("DD330", "gpu-out-of-order-since-xid", Consequence.FAILS, KernelFact)
def gpu_out_of_order_since_xid(recording: Recording) -> Iterator[Draft]:
    """The kernel log has an Xid that makes a GPU unusable until a reset.

    Finds: Xids such as 48, 64, 79, 95, 119 and 120, or an Xid 154 that asks for a reset or a reboot, since the boot
        and the last loading of the driver; and a GPU that the driver found off the bus without an Xid. An error if
        NVML agrees (the GPU is missing, fails, or asks for recovery); a warning, for a day, if NVML finds the GPU
        healthy again; only possible if NVML cannot answer. If a finding is based on NVML itself (DD301 to DD304,
        DD307, DD312), that finding shows the line. GPUs of other jobs do not count.
    Why: Every CUDA program on that GPU fails or hangs, and the entire DDP job fails with it.
    Remedy: Drain the node, reset the GPU or reboot. If the fault returns, the hardware is faulty.
    See: https://docs.nvidia.com/deploy/xid-errors
    """
    for (code, severity, standing), all_hits in _staying_xids(recording).items():
        hits = [fault for fault in all_hits if standing != "out" or not _is_reported(fault.view, fault.device)]
        if not hits:
            continue
        known = meaning(hits[0].event)
        reboot, back = known.kind == "reboot", standing == "back"
        alone = "" if any(fault.note for fault in hits) else ", without an Xid"
        what = f"Xid {code}, {known.meaning}" if code else f"{known.meaning}{alone}"
        if back:
            was, works = ("was", "works") if len(hits) == 1 else ("were", "work")
            what = f"{f'had Xid {code} ({known.meaning})' if code else f'{was} off the bus'} but {works} again"
        yield finding(
            device_culprits(recording, hits),
            f"{device_names(recording, hits)}: {what}",
            line_evidence(recording, hits, CATALOG if code else "a GPU on the bus answers its driver"),
            WATCH if back else REBOOT_NODE if reboot else reset_gpus([h.device or "" for h in hits]),
            confidence=Confidence.POSSIBLE if standing == "unknown" else Confidence.LIKELY,
            detail=_DETAILS[standing],
            severity=asked_for(recording, severity),
        )


_DETAILS: dict[Standing, str] = {
    "out": "NVML confirms it: the GPU is missing, fails or requests recovery. CUDA programs on it fail or hang.",
    "unknown": "It is unknown whether the GPU was reset since then: neither the log nor NVML shows it.",
    "back": "It was reset since then, or recovered by itself.",
}


def _is_reported(view: NodeView, device: str | None) -> bool:
    """Return True if a finding about NVML's answer reports this broken GPU, or all GPUs of the node."""
    fact = view.gpus
    by_nvml = fact is not None and (fact.nvml_error is not None or device in fact.unlisted())
    return by_nvml or view.gpu(device) is not None


def meaning(event: KernelEvent) -> Xid:
    """Return the meaning of the line's Xid or equivalent: a GPU off the bus, or an action the driver requests."""
    if event.kind == "off_bus":
        return xid(OFF_BUS)
    if event.code != RECOVERY_ACTION:
        return xid(event.code or 0, event.detail)
    reboot = any(word in event.detail for word in REBOOT_WORDS)
    wanted = event.detail or "recovery"
    return Xid(f"the driver requests: {wanted}", "reboot" if reboot else "reset", stays=True)


#: The severity of an Xid of the last day, and of an older one.
_SEVERITIES: dict[Standing, tuple[Severity, Severity | None]] = {
    "out": (Severity.ERROR, Severity.ERROR),
    "back": (Severity.WARNING, None),
    "unknown": (Severity.ERROR, Severity.INFO),
}
_Staying = dict[tuple[int, Severity, Standing], list[Hit]]


@once_a_recording
def _staying_xids(recording: Recording) -> _Staying:
    """Return each GPU under the first of its Xids that persist, with its severity."""
    found: _Staying = {}
    for view in views(recording):
        for device, events in _by_device(view).items():
            staying = [event for event in events if meaning(event).stays]
            if not staying:
                continue
            standing = _standing_by_nvml(view, staying[0])
            severity = _SEVERITIES[standing][0 if recent(view, staying[0]) else 1]
            if severity is not None:
                others = {f"{event.code}" for event in staying[1:] if event.code not in (staying[0].code, None)}
                note = f"followed by Xid {', '.join(sorted(others))}" if others else ""
                fault = Hit(view, device, staying[0], note)
                found.setdefault((staying[0].code or 0, severity, standing), []).append(fault)
    return found


def _by_device(view: NodeView) -> dict[str, list[KernelEvent]]:
    """Return unresolved Xids and equivalents of GPUs that are or may be the job's, by their first line."""
    kinds = ("xid", "off_bus")
    events = [event for event in view.fact.events if event.kind in kinds and not event.past and event.device]
    concerning = [event for event in events if view.concerns(event.device)]
    by_time = sorted(concerning, key=lambda event: event.first_at_s or 0.0)
    return grouped((event.device or "", event) for event in by_time)


def _standing_by_nvml(view: NodeView, event: KernelEvent) -> Standing:
    if view.gpus is None:
        return "unknown"
    error, gpu = view.gpus.nvml_error, view.gpu(event.device)
    if error is not None:
        return "out" if error.code in _DEAD else "unknown"
    if gpu is None:
        return "out"
    if gpu.error not in (None, "no_permission") or gpu.recovery_action not in (None, "none"):
        return "out"
    errors = gpu.ecc_volatile_uncorrected
    if (event.code in _MEMORY and errors) or (event.code == _NOT_REMAPPED and gpu.row_remap_failed):
        return "out"
    answers = gpu.memory_used_bytes is not None
    over = (
        gpu.recovery_action == "none"
        or event.kind == "off_bus"
        or event.code in _LOST
        or (event.code in _MEMORY and errors == 0)
        or (event.code in _SILENT and answers)
        or (event.code == _NOT_REMAPPED and gpu.row_remap_failed is False)
    )
    return "back" if over else "unknown"


@rule("DD331", "gpu-fault-logged", Consequence.RISK, KernelFact)
def gpu_fault_logged(recording: Recording) -> Iterator[Draft]:
    """The kernel log of the last day has a GPU hardware fault that may be over.

    Finds: Xids such as 46, 63, 74, 94, 109 or a non-fatal 144 to 150, of the job's GPUs and within a day. A warning
        if the catalog asks for a reset, otherwise information.
    Why: The job on that GPU was lost, and a recent fault often happens again.
    Remedy: Ignore a single one. Reset the GPU at the next chance if the finding recommends it.
    See: https://docs.nvidia.com/deploy/xid-errors
    """
    named = {(fault.view.node, fault.device) for hits in _staying_xids(recording).values() for fault in hits}
    groups: dict[tuple[int, Severity, bool], list[Hit]] = {}
    for view in views(recording):
        for device, events in _by_device(view).items():
            for event in events if (view.node, device) not in named else ():
                known = meaning(event)
                if known.kind == "application" or not recent(view, event) or _is_pending(view, event):
                    continue
                severity = Severity.WARNING if known.kind == "reset" else Severity.INFO
                is_open = known.kind == "reset" and _standing_by_nvml(view, event) != "back"
                groups.setdefault((event.code or 0, severity, is_open), []).append(Hit(view, device, event))
    for (code, severity, is_open), hits in groups.items():
        yield possible(
            device_culprits(recording, hits) if severity is Severity.WARNING else (),
            f"{device_names(recording, hits)}: Xid {code}, {meaning(hits[0].event).meaning}",
            line_evidence(recording, hits, CATALOG),
            reset_gpus([fault.device or "" for fault in hits]) if is_open else WATCH,
            detail=_DETAILS["unknown"] if is_open else "NVML reports no problem of the GPU now.",
            severity=asked_for(recording, severity),
        )


def _is_pending(view: NodeView, event: KernelEvent) -> bool:
    """Return True if NVML still counts the logged event, which DD307 or DD313 then reports."""
    gpu = view.gpu(event.device)
    if gpu is None:
        return False
    pending = gpu.row_remap_pending or gpu.page_retirement_pending
    return bool((event.code == _REMAPPED and pending) or (event.code == _CONTAINED and gpu.ecc_volatile_uncorrected))


@rule("DD332", "gpu-programs-crashed", Consequence.KNOWN, KernelFact)
def gpu_programs_crashed(recording: Recording) -> Iterator[Draft]:
    """Programs crashed on the job's GPUs within the last hour.

    Finds: Xids that applications cause: 13, 31, 32, 44, 68, 69, 137. Older Xids, and Xids that only follow a crash or a
        kill (43, 45), are skipped because they are normal on a shared node.
    Why: They do not indicate a GPU fault, but may show the cause of a crash.
    Remedy: The node needs no fix. Find the call with compute-sanitizer, or CUDA_LAUNCH_BLOCKING=1.
    See: https://docs.nvidia.com/deploy/xid-errors
        https://docs.nvidia.com/compute-sanitizer
    """
    crashes = [
        Hit(view, device, event)
        for view in views(recording)
        for device, events in _by_device(view).items()
        for event in events
        if meaning(event).kind == "application" and event.code not in _FOLLOWS
        if event.last_at_s is not None and recent(view, event, JUST_NOW_S)
    ]
    for code, hits in grouped((fault.event.code or 0, fault) for fault in crashes).items():
        yield likely(
            NOBODY,
            f"Programs crashed on {device_names(recording, hits)}: Xid {code}, {xid(code).meaning}",
            line_evidence(recording, hits, CATALOG),
            detail="Programs cause such errors, not the GPU.",
        )
