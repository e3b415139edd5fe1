"""Texts about the kernel log in findings: GPUs and NICs by bus id, ages, lines."""

from collections.abc import Callable, Container, Sequence

from ddp_doctor.facts.node.gpus import Gpu
from ddp_doctor.facts.node.kernel import KernelEvent, StuckProcess
from ddp_doctor.knowledge.gpu.xids import CATALOG, xid
from ddp_doctor.model.finding import Culprit, CulpritKind, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.kernel_log import Hit, NodeView, blocked_s, hits_in_log, views
from ddp_doctor.wording.findings import LINES_OF_EVIDENCE
from ddp_doctor.wording.nodes import host, on_hosts


def device_names(recording: Recording, hits: Sequence[Hit]) -> str:
    """Return devices for a sentence: "GPU 3 (0000:61:00.0) on node0", "9 devices on node0 and node1"."""
    named = [(fault.view.node, _name(fault.view, fault.device)) for fault in hits]
    return on_hosts(recording, named, "devices")


def device_culprits(recording: Recording, hits: Sequence[Hit]) -> tuple[Culprit, ...]:
    """Return one culprit per device: a GPU with NVML's index if it is known, or a NIC."""
    return tuple(dict.fromkeys(_culprit(recording, fault) for fault in hits))


def _culprit(recording: Recording, fault: Hit) -> Culprit:
    node, nic = host(recording, fault.view.node), fault.view.fact.rdma_devices.get(fault.device or "")
    gpu = fault.view.gpu(fault.device)
    if gpu is not None:
        return Culprit(kind="gpu", node=node, node_rank=fault.view.node, gpu=gpu.index, name=gpu.label)
    if nic is not None:
        return Culprit(kind="nic", node=node, node_rank=fault.view.node, name=f"{nic} ({fault.device})")
    kind: CulpritKind = "gpu" if any(gpu.bus_id == fault.device for gpu in fault.view.fact.gpus) else "node"
    return Culprit(kind=kind, node=node, node_rank=fault.view.node, name=fault.device)


def _name(view: NodeView, device: str | None) -> str:
    gpu, nic = view.gpu(device), view.fact.rdma_devices.get(device or "")
    if gpu is not None:
        return f"GPU {gpu.index} ({device})"
    if nic is not None:
        return f"{nic} ({device})"
    if any(gpu.bus_id == device for gpu in view.fact.gpus):
        return f"the GPU at {device}"
    return f"the device at {device}" if device else "a GPU"


def line_evidence(recording: Recording, hits: Sequence[Hit], expected_from: str) -> tuple[Evidence, ...]:
    """Return the line of each device: its host, the time, the count, and a note."""
    found = []
    for fault in hits[:LINES_OF_EVIDENCE]:
        event, age_s = fault.event, fault.view.fact.age_s(fault.event)
        times = f", {event.count} times" if event.count > 1 else ""
        when = f"{ago(age_s)} ago" if age_s is not None else "since the boot"
        note = f"; {fault.note}" if fault.note else ""
        text = f"{host(recording, fault.view.node)}, {when}{times}: {event.text}{note}"
        found.append(Evidence(check="kernel", text=text, expected_from=expected_from))
    return tuple(found)


def xid_lines(recording: Recording, concerns: Callable[[NodeView, str], bool]) -> tuple[Evidence, ...]:
    """Return the log lines about GPUs that another finding names, without crashes of their programs.

    An old driver does not log which GPU it could not start: the device is "" then.
    """

    def counts(view: NodeView, event: KernelEvent) -> bool:
        is_xid = event.kind == "xid" and xid(event.code or 0).kind != "application"
        return (is_xid or event.kind in ("init_failed", "off_bus")) and concerns(view, event.device or "")

    return line_evidence(recording, hits_in_log(recording, counts), CATALOG)


def xids_of(recording: Recording, hits: Sequence[tuple[int, Gpu]]) -> tuple[Evidence, ...]:
    """Return these lines for pairs of node and GPU."""
    named = {(node, gpu.index) for node, gpu in hits}

    def concerns(view: NodeView, device: str) -> bool:
        gpu = view.gpu(device)
        return gpu is not None and (view.node, gpu.index) in named

    return xid_lines(recording, concerns)


def stuck_evidence(view: NodeView, process: StuckProcess) -> Evidence:
    """Return the evidence for a process that is stuck in the kernel."""
    since_s = blocked_s(view, process)
    parts = (
        f"pid {process.pid} ({process.name}) in state D",
        f"in {process.wait_channel}" if process.wait_channel else "",
        f"holds {process.device}" if process.device else "",
        f"blocked for more than {ago(since_s)} (kernel)" if since_s else "",
    )
    text = ", ".join(part for part in parts if part) + f"; it did not run in {process.watched_s:g} s"
    return Evidence(check="kernel", text=text, expected_from="driver calls return or can be interrupted")


def stuck_processes(recording: Recording, nodes: Container[int]) -> tuple[Evidence, ...]:
    """Return the evidence for processes that are stuck in the driver on these nodes."""
    found = [(view, process) for view in views(recording) if view.node in nodes for process in view.fact.stuck]
    return tuple(stuck_evidence(view, process) for view, process in found[:LINES_OF_EVIDENCE])


def ago(age_s: float) -> str:
    """Return an age for people: "40 s", "12 min", "3 h", "5 days"."""
    for unit, scale in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if age_s >= (2 * scale if unit == "days" else scale):
            return f"{age_s / scale:.0f} {unit}"
    return f"{age_s:.0f} s"
