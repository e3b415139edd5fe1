"""How findings speak of what the kernel logged: GPUs and NICs by bus id, ages, lines."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from ddp_doctor.facts.gpus import Gpu, GpusFact
from ddp_doctor.facts.kernel import KernelEvent, KernelFact, StuckProcess
from ddp_doctor.knowledge.xids import CATALOG, RECENT_S, xid
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Culprit, CulpritKind, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.phrases.nodes import NAMES_IN_A_SENTENCE, host, in_words
from ddp_doctor.remedies.kinds import by_operator

LINES_OF_EVIDENCE = 16


@dataclass(frozen=True)
class NodeView:
    """What kernel and NVML said of one node."""

    node: int
    fact: KernelFact
    gpus: GpusFact | None

    def gpu(self, bus_id: str | None) -> Gpu | None:
        """The GPU as NVML lists it."""
        fact = self.gpus
        if fact is None or bus_id is None:
            return None
        return next((gpu for gpu in fact.gpus if fact.bus_id_of(gpu) == bus_id), None)

    def concerns(self, bus_id: str | None) -> bool:
        """Whether a GPU of the log is, or may be, one of the job's. The log tells of the whole machine."""
        if any(one.passed_through for one in self.fact.gpus if one.bus_id == bus_id):
            return False
        if self.gpus is None:
            return True
        gpu = self.gpu(bus_id)
        if gpu is not None:
            return gpu.index in self.gpus.used
        shared = self.gpus.in_container or "SLURM_PROCID" in self.gpus.environment
        short = self.gpus.granted is not None and len(self.gpus.gpus) < self.gpus.granted
        return not shared or short or self.gpus.nvml_error is not None

    def below(self, device: str | None) -> list[str]:
        """The GPUs and RDMA devices that a fault concerns: the device itself, or those below a bridge."""
        found = [bus for bus, bridges in self.fact.bridges.items() if device in (bus, *bridges)]
        return [bus for bus in found if bus in self.fact.rdma_devices or self.concerns(bus)]


@dataclass(frozen=True)
class Hit:
    """One device on one node, and the line that is held against it."""

    view: NodeView
    device: str | None
    event: KernelEvent
    note: str = ""  # what else is known, after the line


def views(recording: Recording) -> list[NodeView]:
    """The nodes with a kernel fact, each with what NVML said there."""
    gpus = {one.node: one.fact for one in recording.facts(GpusFact)}
    return [NodeView(one.node, one.fact, gpus.get(one.node)) for one in recording.facts(KernelFact)]


def device_names(recording: Recording, hits: Sequence[Hit]) -> str:
    """Devices for a sentence: "GPU 3 (0000:61:00.0) on node0", "9 GPUs or NICs on node0 and node1"."""
    hosts: dict[str, list[str]] = {}
    for hit in hits:
        hosts.setdefault(host(recording, hit.view.node), []).append(_name(hit.view, hit.device))
    if len(hits) > NAMES_IN_A_SENTENCE:
        named = list(hosts) if len(hosts) <= NAMES_IN_A_SENTENCE else [f"{len(hosts)} nodes"]
        return f"{len(hits)} devices on {in_words(named)}"
    return in_words([f"{in_words(names)} on {name}" for name, names in hosts.items()])


def device_culprits(recording: Recording, hits: Sequence[Hit]) -> tuple[Culprit, ...]:
    """One culprit per device: a GPU with NVML's index where that is known, or a NIC."""
    return tuple(dict.fromkeys(_culprit(recording, hit) for hit in hits))


def _culprit(recording: Recording, hit: Hit) -> Culprit:
    node, nic = host(recording, hit.view.node), hit.view.fact.rdma_devices.get(hit.device or "")
    gpu = hit.view.gpu(hit.device)
    if gpu is not None:
        return Culprit(kind="gpu", node=node, node_rank=hit.view.node, gpu=gpu.index, name=gpu.label)
    if nic is not None:
        return Culprit(kind="nic", node=node, node_rank=hit.view.node, name=f"{nic} ({hit.device})")
    kind: CulpritKind = "gpu" if any(gpu.bus_id == hit.device for gpu in hit.view.fact.gpus) else "node"
    return Culprit(kind=kind, node=node, node_rank=hit.view.node, name=hit.device)


def _name(view: NodeView, device: str | None) -> str:
    gpu, nic = view.gpu(device), view.fact.rdma_devices.get(device or "")
    if gpu is not None:
        return f"GPU {gpu.index} ({device})"
    if nic is not None:
        return f"{nic} ({device})"
    if any(one.bus_id == device for one in view.fact.gpus):
        return f"the GPU at {device}"
    return f"the device at {device}" if device else "a GPU"


def line_evidence(recording: Recording, hits: Sequence[Hit], expected_from: str) -> tuple[Evidence, ...]:
    """The line of each device: who, when, how often, and what else is known."""
    return tuple(_line(recording, hit, expected_from) for hit in hits[:LINES_OF_EVIDENCE])


def xid_lines(recording: Recording, concerns: Callable[[NodeView, str], bool]) -> tuple[Evidence, ...]:
    """What the log has of the GPUs that another finding names, their programs' crashes left out.

    An old driver does not say which GPU it could not start: the device is "" then.
    """
    hits = [
        Hit(view, event.device, event)
        for view in views(recording)
        for event in view.fact.events
        if not event.past and (event.kind == "init_failed" or _is_of_the_hardware(event))
        if concerns(view, event.device or "")
    ]
    return line_evidence(recording, hits, CATALOG)


def _is_of_the_hardware(event: KernelEvent) -> bool:
    return event.kind == "xid" and xid(event.code or 0).kind != "application"


def xids_of(recording: Recording, hits: Sequence[tuple[int, Gpu]]) -> tuple[Evidence, ...]:
    """The same for pairs of node and GPU."""
    named = {(node, gpu.index) for node, gpu in hits}

    def concerns(view: NodeView, device: str) -> bool:
        gpu = view.gpu(device)
        return gpu is not None and (view.node, gpu.index) in named

    return xid_lines(recording, concerns)


def recent(view: NodeView, event: KernelEvent) -> bool:
    """Whether a line is of the last day; one without a time may be."""
    age_s = view.fact.age_s(event)
    return age_s is None or age_s <= RECENT_S


def hits_in_log(recording: Recording, counts: Callable[[NodeView, KernelEvent], bool]) -> list[Hit]:
    """Events that are not over, of devices that are or may be the job's."""
    return [
        Hit(view, event.device, event)
        for view in views(recording)
        for event in view.fact.events
        if not event.past and counts(view, event)
    ]


def switch_faults(recording: Recording) -> list[Hit]:
    """Fatal errors of NVSwitches of the last day."""
    return hits_in_log(
        recording, lambda view, one: one.kind == "sxid" and one.detail == "Fatal" and recent(view, one)
    )


def failed_nics(recording: Recording) -> list[Hit]:
    """NICs whose firmware failed on the last day."""
    return hits_in_log(recording, lambda view, one: one.kind == "nic_fault" and recent(view, one))


def _line(recording: Recording, hit: Hit, expected_from: str) -> Evidence:
    event, age_s = hit.event, hit.view.fact.age_s(hit.event)
    times = f", {event.count} times" if event.count > 1 else ""
    when = f"{ago(age_s)} ago" if age_s is not None else "since the boot"
    note = f"; {hit.note}" if hit.note else ""
    text = f"{host(recording, hit.view.node)}, {when}{times}: {event.text}{note}"
    return Evidence(check="kernel", text=text, expected_from=expected_from)


def blocked_s(view: NodeView, process: StuckProcess) -> int:
    """For how long the kernel has said that the process is blocked."""
    hung = (one for one in view.fact.events if one.kind == "hung_task" and process.pid in one.pids)
    return max((one.code or 0 for one in hung), default=0)


def stuck_evidence(view: NodeView, process: StuckProcess) -> Evidence:
    """Where a process stands."""
    since_s = blocked_s(view, process)
    parts = (
        f"pid {process.pid} ({process.name}) in state D",
        f"in {process.wait_channel}" if process.wait_channel else "",
        f"holds {process.device}" if process.device else "",
        f"blocked for more than {ago(since_s)}, says the kernel" if since_s else "",
    )
    text = ", ".join(part for part in parts if part) + f"; it did not run in {process.watched_s:g} s"
    return Evidence(
        check="kernel", text=text, expected_from="a call into the driver ends, or can be interrupted"
    )


def stuck_processes(recording: Recording, nodes: Container[int]) -> tuple[Evidence, ...]:
    """The processes that stand still inside the driver on these nodes."""
    found = [(view, one) for view in views(recording) if view.node in nodes for one in view.fact.stuck]
    return tuple(stuck_evidence(view, one) for view, one in found[:LINES_OF_EVIDENCE])


def ago(age_s: float) -> str:
    """An age for people: "40 s", "12 min", "3 h", "5 days"."""
    for unit, scale in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if age_s >= (2 * scale if unit == "days" else scale):
            return f"{age_s / scale:.0f} {unit}"
    return f"{age_s:.0f} s"


def reset_gpus(bus_ids: Sequence[str]) -> Remedy:
    """Reset exactly these GPUs."""
    return by_operator(
        "Drain the node and reset the GPU; where it does not come back, reboot; what returns is hardware.",
        *(f"sudo nvidia-smi --gpu-reset -i {bus_id}" for bus_id in bus_ids[:8]),
        cost="ends every process on the GPU; GPUs joined by NVSwitch may have to be reset together",
        undo=NOTHING_TO_UNDO,
        references=(CATALOG,),
    )


REBOOT_NODE = by_operator(
    "Drain the node and reboot it; have power, cooling and the slot inspected if it returns.",
    "sudo reboot",
    cost="ends all jobs of the node",
    undo=NOTHING_TO_UNDO,
    references=(CATALOG,),
)
WATCH = by_operator(
    "Nothing now. If it comes again on the same device, have it inspected.",
    "sudo dmesg -T | grep -i -e xid",
    undo=NOTHING_TO_UNDO,
    references=(CATALOG,),
)
