"""How findings speak of what the kernel logged: GPUs and NICs by bus id, ages, lines."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddp_doctor.knowledge.nvml import remedy
from ddp_doctor.knowledge.xids import CATALOG
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Culprit, CulpritKind, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.parse.gpu_facts import Gpu, GpusFact
from ddp_doctor.parse.kernel_facts import KernelFact
from ddp_doctor.parse.kernel_log import KernelEvent
from ddp_doctor.phrases.nodes import NAMES_IN_A_SENTENCE, host, in_words

LINES_OF_EVIDENCE = 16


@dataclass(frozen=True)
class NodeView:
    """What kernel and NVML said of one node."""

    node: int
    fact: KernelFact
    gpus: GpusFact | None

    def gpu(self, bus_id: str | None) -> Gpu | None:
        """The GPU as NVML lists it."""
        listed = self.gpus.gpus if self.gpus else ()
        return next((gpu for gpu in listed if bus_id is not None and gpu.bus_id == bus_id), None)

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


def _line(recording: Recording, hit: Hit, expected_from: str) -> Evidence:
    event, age_s = hit.event, hit.view.fact.age_s(hit.event)
    times = f", {event.count} times" if event.count > 1 else ""
    when = f"{ago(age_s)} ago" if age_s is not None else "since the boot"
    note = f"; {hit.note}" if hit.note else ""
    text = f"{host(recording, hit.view.node)}, {when}{times}: {event.text}{note}"
    return Evidence(check="kernel", text=text, expected_from=expected_from)


def ago(age_s: float) -> str:
    """An age for people: "40 s", "12 min", "3 h", "5 days"."""
    for unit, scale in (("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if age_s >= (2 * scale if unit == "days" else scale):
            return f"{age_s / scale:.0f} {unit}"
    return f"{age_s:.0f} s"


def reset_gpus(bus_ids: Sequence[str]) -> Remedy:
    """Reset exactly these GPUs."""
    return remedy(
        "Drain the node and reset the GPU; where it does not come back, reboot; what returns is hardware.",
        *(f"sudo nvidia-smi --gpu-reset -i {bus_id}" for bus_id in bus_ids[:8]),
        cost="ends every process on the GPU; GPUs joined by NVSwitch may have to be reset together",
        undo=NOTHING_TO_UNDO,
        references=(CATALOG,),
    )


REBOOT_NODE = remedy(
    "Drain the node and reboot it; have power, cooling and the slot inspected if it returns.",
    "sudo reboot",
    cost="ends all jobs of the node",
    undo=NOTHING_TO_UNDO,
    references=(CATALOG,),
)
WATCH = remedy(
    "Nothing now. If it comes again on the same device, have it inspected.",
    "sudo dmesg -T | grep -i -e xid",
    undo=NOTHING_TO_UNDO,
    references=(CATALOG,),
)
