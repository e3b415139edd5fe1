"""DD422: a PCIe link that came up narrower or slower than both of its ends can."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddp_doctor.checks.node.pcie.wording import device_name, gpu_numbers, jobs_gpus
from ddp_doctor.facts.node.pcie import PcieDevice, PcieFact
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Culprit, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.nodes import host

#: From this speed on (Gen6) links may drop lanes while idle, by design (L0p).
_LANES_MAY_SLEEP_GT_PER_S = 64.0


@dataclass(frozen=True)
class _Link:
    """The link up from a device: what it runs at and what both of its ends can."""

    device: PcieDevice
    node: int
    width: int
    width_can: int
    speed: float
    speed_can: float

    @property
    def is_short(self) -> bool:
        """Whether it runs below what its ends can. An idle GPU or switch lowers its speed on purpose."""
        lanes = self.width < self.width_can and self.speed_can < _LANES_MAY_SLEEP_GT_PER_S
        return lanes or (self.device.kind == "nic" and self.speed < self.speed_can)

    def in_words(self) -> str:
        """What it runs at, and what it could: "x8 (of x16)"."""
        if self.width < self.width_can:
            return f"x{self.width} of x{self.width_can}"
        return f"{self.speed:g} GT/s of {self.speed_can:g} GT/s"


@rule("DD422", "pcie-link-below-its-ends", Severity.WARNING, PcieFact)
def links_short(recording: Recording) -> Iterator[Draft]:
    """A PCIe link came up with fewer lanes than both of its ends have, or a NIC's at a lower speed.

    What it finds
        The link of a GPU, an RDMA device or a bridge above them, while most devices of the same model run at
        full width: a warning. A device without a peer to compare with is information, since a slot may have
        fewer lanes than its port claims. Where all of a model are alike, that is how the machine is built.

    Why it matters
        Half the lanes are half the bandwidth to host memory, to NICs and to GPUs without NVLink; in DDP all
        ranks wait for the slowest.

    Remedy
        Reseat the device, its riser or cable; look at the slot's bifurcation in the BIOS.

    References
        https://docs.kernel.org/PCI/sysfs-pci.html
        Linux Documentation/ABI/testing/sysfs-bus-pci, current_link_width and max_link_width
    """
    everywhere = [link for seen in recording.facts(PcieFact) for link in _links(recording, seen)]
    for link in everywhere:
        if not link.is_short:
            continue
        peers = [one for one in everywhere if one is not link and _alike(one.device, link.device)]
        full = [peer for peer in peers if not peer.is_short]
        if peers and len(full) <= len(peers) / 2:
            continue
        yield _draft(recording, link, full)


def _draft(recording: Recording, link: _Link, peers: list[_Link]) -> Draft:
    name = device_name(link.device, gpu_numbers(recording, link.node))
    where = host(recording, link.node)
    slot = f", slot {link.device.slot}" if link.device.slot else ""
    beside = f"; {len(peers)} of the same model run at full width and speed" if peers else ""
    return finding(
        (_culprit(recording, link, name),) if peers else (),
        f"The PCIe link of {name} on {where} runs at {link.in_words()}",
        Evidence(
            text=f"{name}{slot}: x{link.width} at {link.speed:g} GT/s{beside}",
            value=link.width,
            unit="lanes",
            expected=link.width_can,
            expected_from="what both ends of the link can, by the kernel",
        ),
        by_operator(
            "Reseat the device, its riser or cable, and look at the slot's bifurcation in the BIOS.",
            f"sudo lspci -vv -s {link.device.bus_id} | grep -e LnkCap -e LnkSta",
            cost="the node is out of work meanwhile",
            undo=NOTHING_TO_UNDO,
        ),
        confidence=Confidence.LIKELY if peers else Confidence.POSSIBLE,
        detail="All ranks wait for the one that gets its data slowest."
        if peers
        else "Nothing of the same model is there to compare with: the slot may just have fewer lanes.",
        severity=asked_for(recording, Severity.WARNING if peers else Severity.INFO),
    )


def _culprit(recording: Recording, link: _Link, name: str) -> Culprit:
    where, number = host(recording, link.node), gpu_numbers(recording, link.node).get(link.device.bus_id)
    if link.device.kind == "gpu":
        return Culprit(kind="gpu", node=where, node_rank=link.node, gpu=number, name=name)
    kind = link.device.kind
    return Culprit(kind="nic" if kind == "nic" else "node", node=where, node_rank=link.node, name=name)


def _alike(one: PcieDevice, two: PcieDevice) -> bool:
    """Whether two devices are of one model and stand in the same place: as many bridges above."""
    return (one.kind, one.model, len(one.above)) == (two.kind, two.model, len(two.above))


def _links(recording: Recording, seen: FactAt[PcieFact]) -> Iterator[_Link]:
    """The links up from the job's GPUs and the RDMA devices, and those of the bridges above them."""
    if seen.fact.virtual:
        return
    mine = jobs_gpus(recording, seen.node)
    ends = [one for one in seen.fact.endpoints() if one.kind != "gpu" or mine is None or one.bus_id in mine]
    bridges = {bus for one in ends for bus in one.above}
    for device in (*ends, *(device for device in seen.fact.devices if device.bus_id in bridges)):
        port = seen.fact.device(device.above[-1]) if device.above else None
        if port is not None:
            yield from _link(device, port, seen.node)


def _link(device: PcieDevice, port: PcieDevice, node: int) -> Iterator[_Link]:
    """The link, where the kernel tells all of it."""
    width, speed = device.width, device.speed_gt_per_s
    widths = [value for value in (device.width_max, port.width_max) if value]
    speeds = [value for value in (device.speed_max_gt_per_s, port.speed_max_gt_per_s) if value]
    if width and speed and len(widths) == len(speeds) == 2:
        yield _Link(device, node, width, min(widths), speed, min(speeds))
