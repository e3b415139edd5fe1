"""What the kernel logged of the GPUs and NICs of a node, beside what NVML says of them."""

from collections.abc import Callable
from dataclasses import dataclass

from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.facts.node.kernel import KernelEvent, KernelFact, StuckProcess
from ddp_doctor.knowledge.gpu.xids import RECENT_S
from ddp_doctor.model.recording import Recording


@dataclass(frozen=True)
class NodeView:
    """What the kernel and NVML report about one node."""

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
    """The nodes with a kernel fact, each with what NVML reports there."""
    gpus = {node.node: node.fact for node in recording.facts(GpusFact)}
    return [NodeView(node.node, node.fact, gpus.get(node.node)) for node in recording.facts(KernelFact)]


def recent(view: NodeView, event: KernelEvent, limit_s: float = RECENT_S) -> bool:
    """Whether a line is of the last day, or that recent; one without a time may be."""
    age_s = view.fact.age_s(event)
    return age_s is None or age_s <= limit_s


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
        recording, lambda view, event: event.kind == "sxid" and event.detail == "Fatal" and recent(view, event)
    )


def failed_nics(recording: Recording) -> list[Hit]:
    """NICs whose firmware failed on the last day."""
    return hits_in_log(recording, lambda view, event: event.kind == "nic_fault" and recent(view, event))


def blocked_s(view: NodeView, process: StuckProcess) -> int:
    """How long the process has been blocked, by the kernel's log."""
    hung = (event for event in view.fact.events if event.kind == "hung_task" and process.pid in event.pids)
    return max((event.code or 0 for event in hung), default=0)
