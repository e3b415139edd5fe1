"""The kernel's log lines about the GPUs and NICs of a node, along with what NVML reports about them."""

from collections.abc import Callable
from dataclasses import dataclass

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.facts.node.kernel import KernelEvent, KernelFact, StuckProcess
from ddp_doctor.knowledge.gpu.xids import RECENT_S
from ddp_doctor.model.recording import Recording


@dataclass(frozen=True)
class NodeView:
    """The reports of the kernel and NVML about one node."""

    node: int
    fact: KernelFact
    gpus: GpusFact | None

    def gpu(self, bus_id: str | None) -> Gpu | None:
        """Return the GPU as NVML lists it."""
        fact = self.gpus
        if fact is None or bus_id is None:
            return None
        return next((gpu for gpu in fact.gpus if fact.bus_id_of(gpu) == bus_id), None)

    def concerns(self, bus_id: str | None) -> bool:
        """Return True if a GPU in the log belongs, or may belong, to the job. The log covers the entire machine."""
        if any(gpu.passed_through for gpu in self.fact.gpus if gpu.bus_id == bus_id):
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
        """Return the GPUs and RDMA devices that a fault concerns: the device itself, or the devices below a bridge."""
        found = [bus for bus, bridges in self.fact.bridges.items() if device in (bus, *bridges)]
        return [bus for bus in found if bus in self.fact.rdma_devices or self.concerns(bus)]


@dataclass(frozen=True)
class Hit:
    """A device on a node, and the log line about its fault."""

    view: NodeView
    device: str | None
    event: KernelEvent
    note: str = ""  # more known details, shown after the line


def views(recording: Recording) -> list[NodeView]:
    """Return the nodes with a kernel fact, each with NVML's report."""
    gpus = {node.node: node.fact for node in recording.facts(GpusFact)}
    return [NodeView(node.node, node.fact, gpus.get(node.node)) for node in recording.facts(KernelFact)]


def recent(view: NodeView, event: KernelEvent, limit_s: float = RECENT_S) -> bool:
    """Return True if a line is at most ``limit_s`` old, by default a day, or has no time."""
    age_s = view.fact.age_s(event)
    return age_s is None or age_s <= limit_s


def hits_in_log(recording: Recording, counts: Callable[[NodeView, KernelEvent], bool]) -> list[Hit]:
    """Return unresolved events of devices that are or may be the job's."""
    return [
        Hit(view, event.device, event)
        for view in views(recording)
        for event in view.fact.events
        if not event.past and counts(view, event)
    ]


def switch_faults(recording: Recording) -> list[Hit]:
    """Return fatal errors of NVSwitches in the last day."""
    return hits_in_log(
        recording, lambda view, event: event.kind == "sxid" and event.detail == "Fatal" and recent(view, event)
    )


def failed_nics(recording: Recording) -> list[Hit]:
    """Return NICs whose firmware failed in the last day."""
    return hits_in_log(recording, lambda view, event: event.kind == "nic_fault" and recent(view, event))


def blocked_s(view: NodeView, process: StuckProcess) -> int:
    """Return how long the process has been blocked, by the kernel's log."""
    hung = (event for event in view.fact.events if event.kind == "hung_task" and process.pid in event.pids)
    return max((event.code or 0 for event in hung), default=0)
