"""DD420-DD423: settings that send GPU and NIC traffic through the CPU, and PCIe links that are too narrow."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.pcie import PcieDevice, PcieFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.topology.link_codes import nvlinks
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.hardware import PASS_THROUGH, redirect_off
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.wording.findings import finding, likely, possible, proved
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.nodes import by_cause, host, name_list, node_culprit, of_nodes
from ddp_doctor.wording.pcie import acs_evidence, iommu_evidence, translated


def gpu_numbers(recording: Recording, node: int) -> dict[str, int]:
    """Return NVML's index of each GPU of a node by bus id, if NVML was asked."""
    return {gpu.bus_id: gpu.index for fact in recording.at(GpusFact, node) for gpu in fact.gpus if gpu.bus_id}


def jobs_gpus(recording: Recording, node: int) -> set[str] | None:
    """Return the bus ids of the job's GPUs; None if NVML was not asked or gave no answer."""
    facts = recording.at(GpusFact, node)
    if not facts or facts[0].nvml_error is not None:
        return None
    return {gpu.bus_id for gpu in facts[0].of_the_job() if gpu.bus_id}


def device_name(device: PcieDevice, numbers: dict[str, int]) -> str:
    """Name a device for a sentence: "GPU 3 (0000:61:00.0)", "mlx5_0 (0000:17:00.0)"."""
    if device.kind == "gpu" and device.bus_id in numbers:
        return f"GPU {numbers[device.bus_id]} ({device.bus_id})"
    name = {"gpu": "the GPU at", "nic": device.name or "the NIC at", "bridge": "the PCIe bridge"}[device.kind]
    return f"{name} ({device.bus_id})" if device.name else f"{name} {device.bus_id}"


Pair = tuple[PcieDevice, PcieDevice, tuple[str, ...]]


@rule("DD420", "acs-redirects-peer-traffic", Consequence.COST, PcieFact)
def acs_redirects_peer_traffic(recording: Recording) -> Iterator[Draft]:
    """PCIe switches route traffic between their own GPUs and NICs through the CPU.

    Finds: Reports active ACS redirection on ports between two GPUs without NVLink, or between a GPU and an RDMA device,
        below one PCIe switch. Virtual machines are skipped. On a single node, severity is info for a NIC.
    Why: Traffic that could stay within the switch goes through the root complex, which is slower and shared. On some
        machines it never arrives, and the first all-reduce hangs (DD401).
    Remedy: Disable ACS on these bridges, in the BIOS or with setpci at each boot.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
        Linux drivers/pci/p2pdma.c, pci_bridge_has_acs_redir
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], Severity], list[FactAt[PcieFact]]] = {}
    for node in recording.facts(PcieFact):
        pairs = [pair for pair in _pairs_over_pcie(recording, node) if node.fact.redirecting(pair[2])]
        if pairs and not node.fact.virtual:
            bridges = dict.fromkeys(bus for pair in pairs for bus in node.fact.redirecting(pair[2]))
            numbers = gpu_numbers(recording, node.node)
            ends = dict.fromkeys(device_name(device, numbers) for pair in pairs for device in pair[:2])
            gpus = any((device.kind, neighbor.kind) == ("gpu", "gpu") for device, neighbor, _ in pairs)
            matters = gpus or recording.several_nodes  # only then do NICs access GPUs
            cause = (tuple(bridges), tuple(ends), Severity.WARNING if matters else Severity.INFO)
            groups.setdefault(cause, []).append(node)
    for (bridges_of, ends_of, severity), group in groups.items():
        fact = group[0].fact
        iommu = iommu_evidence(fact)
        yield likely(
            of_nodes(recording, group),
            "PCIe access control (ACS) of {who} routes traffic between these devices"
            f" through the CPU: {name_list(ends_of)}",
            (acs_evidence(fact, bridges_of), *([iommu] if iommu else [])),
            redirect_off(fact, bridges_of),
            detail="Direct copies between these devices are slower than possible, and hang on some machines.",
            severity=asked_for(recording, severity),
        )


def _endpoints(recording: Recording, node: FactAt[PcieFact]) -> list[PcieDevice]:
    """Return the job's GPUs and the RDMA devices."""
    mine = jobs_gpus(recording, node.node)
    return [device for device in node.fact.endpoints() if device.kind != "gpu" or mine is None or device.bus_id in mine]


def _pairs_over_pcie(recording: Recording, node: FactAt[PcieFact]) -> list[Pair]:
    """Return the neighboring pairs of the job's own GPUs that would communicate over PCIe."""
    ends = {device.bus_id for device in _endpoints(recording, node)}
    linked = _nvlinked_bus_ids(recording, node.node)
    return [
        (device, neighbor, ports)
        for device, neighbor, ports in node.fact.neighbors()
        if {device.bus_id, neighbor.bus_id} <= ends and frozenset((device.bus_id, neighbor.bus_id)) not in linked
    ]


@once_a_recording
def _nvlinked_bus_ids(recording: Recording, node: int) -> set[frozenset[str]]:
    buses = {number: bus for bus, number in gpu_numbers(recording, node).items()}
    found = set()
    for fact in recording.at(TopologyFact, node):
        for gpu, peer, code in fact.gpu_pairs():
            ends = [buses.get(int(name.removeprefix("GPU"))) for name in (gpu, peer)]
            if nvlinks(code) and None not in ends:
                found.add(frozenset(str(end) for end in ends))
    return found


@rule("DD421", "iommu-translates-gpus", Consequence.KNOWN, PcieFact)
def iommu_translates_gpus(recording: Recording) -> Iterator[Draft]:
    """The IOMMU translates addresses between GPUs that communicate over PCIe.

    Finds: Reports several GPUs of the job, not all connected by NVLink, in IOMMU groups of type DMA or DMA-FQ. Virtual
        machines are skipped. Severity is info, because many such machines work.
    Why: On bare metal, CUDA does not support direct copies over PCIe if the IOMMU translates addresses. On some
        machines they hang (DD401) or return wrong data.
    Remedy: No action is needed unless copies hang or are wrong. In that case, set iommu=pt, or disable the IOMMU in the
        BIOS.
    See: https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#iommu-on-linux
    """
    translating = []
    for node in recording.facts(PcieFact):
        linked = _nvlinked_bus_ids(recording, node.node)
        gpus = [gpu for gpu in _endpoints(recording, node) if gpu.kind == "gpu" and translated(gpu)]
        apart = [pair for pair in combinations(gpus, 2) if frozenset(gpu.bus_id for gpu in pair) not in linked]
        if apart and not node.fact.virtual:
            translating.append(node)
    for evidence, group in by_cause(translating, iommu_evidence).items():
        yield possible(
            of_nodes(recording, group),
            "IOMMU of {who} translates PCIe traffic between GPUs",
            evidence,
            PASS_THROUGH,
            detail="It works on many machines. It is the first suspect if copies between GPUs hang or are wrong.",
        )


@rule("DD423", "acs-not-readable", Consequence.KNOWN, PcieFact)
def acs_not_readable(recording: Recording) -> Iterator[Draft]:
    """Access control (ACS) of PCIe switches cannot be read here, so its state is unknown.

    Finds: Reports GPUs or RDMA devices below one PCIe switch whose configuration the kernel does not show to this user.
        Virtual machines are skipped.
    Why: ACS redirection slows down direct copies, and on some machines they hang.
    Remedy: Run ddp-doctor prolog as root on the node, or check with lspci.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    nodes = [node for node in recording.facts(PcieFact) if not node.fact.virtual and _pairs_over_pcie(recording, node)]
    for reason, group in by_cause(nodes, lambda fact: fact.acs_problem).items():
        yield proved(
            of_nodes(recording, group),
            "PCIe access control (ACS) of {who} is not readable",
            Evidence(text=reason),
            by_operator(
                "Run lspci as root; SrcValid+ or ReqRedir+ on a bridge above GPUs means that ACS is on",
                "sudo lspci -vvv | grep -e '^[0-9a-f]' -e ACSCtl",
            ),
        )


#: From this speed on (Gen6), links may drop lanes while idle, by design (L0p).
_LANES_MAY_SLEEP_GT_PER_S = 64.0


@dataclass(frozen=True)
class _Link:
    """The link above a device: its current width and speed, and the maximum of both ends."""

    device: PcieDevice
    node: int
    width: int
    width_can: int
    speed: float
    speed_can: float

    @property
    def place(self) -> tuple[str, str, int]:
        """The key of links of one model at the same depth, which have the same number of bridges above."""
        return self.device.kind, self.device.model, len(self.device.above)

    @property
    def is_short(self) -> bool:
        """Return True if it runs below the maximum of its ends. An idle GPU or switch reduces its speed on purpose."""
        lanes = self.width < self.width_can and self.speed_can < _LANES_MAY_SLEEP_GT_PER_S
        return lanes or (self.device.kind == "nic" and self.speed < self.speed_can)

    def in_words(self) -> str:
        """Describe current and maximum values: "x8 of x16"."""
        if self.width < self.width_can:
            return f"x{self.width} of x{self.width_can}"
        return f"{self.speed:g} GT/s of {self.speed_can:g} GT/s"


@rule("DD422", "pcie-link-below-its-ends", Consequence.COST, PcieFact)
def pcie_link_below_its_ends(recording: Recording) -> Iterator[Draft]:
    """A PCIe link has fewer lanes than both of its ends support, or a NIC's link has a lower speed.

    Finds: Reports links of GPUs, RDMA devices and bridges above them. Severity is warning if most devices of the same
        model run at full width. A device without a peer to compare with is info, because a slot may have fewer lanes
        than its port claims. Not reported if all devices of a model have the same link, because the machine is built
        that way.
    Why: Half of the lanes give half of the bandwidth to host memory, to NICs and to GPUs without NVLink. In DDP, all
        ranks wait for the slowest.
    Remedy: Reseat the device, its riser or its cable. Check the bifurcation of the slot in the BIOS.
    See: https://docs.kernel.org/PCI/sysfs-pci.html
        Linux Documentation/ABI/testing/sysfs-bus-pci, current_link_width and max_link_width
    """
    everywhere = [link for node in recording.facts(PcieFact) for link in _links(recording, node)]
    for link in everywhere:
        if not link.is_short:
            continue
        peers = [peer for peer in everywhere if peer is not link and peer.place == link.place]
        full = [peer for peer in peers if not peer.is_short]
        if peers and len(full) <= len(peers) / 2:
            continue
        yield _draft(recording, link, full)


def _draft(recording: Recording, link: _Link, peers: list[_Link]) -> Draft:
    name = device_name(link.device, gpu_numbers(recording, link.node))
    where = host(recording, link.node)
    slot = f", slot {link.device.slot}" if link.device.slot else ""
    kind = link.device.kind
    at_full = "full width and speed" if kind == "nic" else "full width"
    beside = f"; {len(peers)} of the same model run at {at_full}" if peers else ""
    culprit = node_culprit(recording, link.node, kind="node" if kind == "bridge" else kind, name=name)
    if kind == "gpu":
        culprit = culprit.model_copy(update={"gpu": gpu_numbers(recording, link.node).get(link.device.bus_id)})
    return finding(
        (culprit,) if peers else (),
        f"PCIe link of {name} on {where} runs at {link.in_words()}",
        Evidence(
            text=f"{name}{slot}: x{link.width} at {link.speed:g} GT/s{beside}",
            value=link.width,
            unit="lanes",
            expected=link.width_can,
            expected_from="maximum of both ends of the link, from the kernel",
        ),
        by_operator(
            "Reseat the device, its riser or cable, and check the slot's bifurcation in the BIOS",
            f"sudo lspci -vv -s {link.device.bus_id} | grep -e LnkCap -e LnkSta",
            cost="node unavailable until fixed",
        ),
        confidence=Confidence.LIKELY if peers else Confidence.POSSIBLE,
        detail="All ranks wait for the rank with the slowest link."
        if peers
        else "No device of the same model is present for comparison, so the slot may simply have fewer lanes.",
        severity=asked_for(recording, Severity.WARNING if peers else Severity.INFO),
    )


def _links(recording: Recording, node: FactAt[PcieFact]) -> Iterator[_Link]:
    """Yield the links above the job's GPUs and the RDMA devices, and those above their bridges."""
    if node.fact.virtual:
        return
    ends = _endpoints(recording, node)
    bridges = {bus for device in ends for bus in device.above}
    for device in (*ends, *(device for device in node.fact.devices if device.bus_id in bridges)):
        port = node.fact.device(device.above[-1]) if device.above else None
        if port is not None:
            width, speed = device.width, device.speed_gt_per_s
            widths = [value for value in (device.width_max, port.width_max) if value]
            speeds = [value for value in (device.speed_max_gt_per_s, port.speed_max_gt_per_s) if value]
            if width and speed and len(widths) == len(speeds) == 2:
                yield _Link(device, node.node, width, min(widths), speed, min(speeds))
