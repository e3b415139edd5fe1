"""DD420, DD421, DD423: what sends traffic between GPUs and NICs through the CPU, or cannot be seen."""

from collections.abc import Iterator
from itertools import combinations

from ddp_doctor.checks.node.pcie.wording import device_name, gpu_numbers, jobs_gpus
from ddp_doctor.facts.node.pcie import PcieDevice, PcieFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.topology.link_codes import nvlinks
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import by_operator
from ddp_doctor.remedies.pcie import PASS_THROUGH, redirect_off
from ddp_doctor.wording.findings import likely, possible, proved
from ddp_doctor.wording.gpus import asked_for
from ddp_doctor.wording.nodes import by_cause, name_list, of_nodes
from ddp_doctor.wording.pcie import acs_evidence, iommu_evidence, translated

Pair = tuple[PcieDevice, PcieDevice, tuple[str, ...]]


@rule("DD420", "acs-redirects-peer-traffic", Severity.WARNING, PcieFact)
def acs_redirects(recording: Recording) -> Iterator[Draft]:
    """PCIe switches send traffic between their own GPUs and NICs up to the CPU.

    What it finds
        ACS redirection in force on ports between two GPUs without NVLink, or a GPU and an RDMA device, that
        hang on one PCIe switch of a machine that is not virtual. Information for a NIC in a run on one node.

    Why it matters
        What could stay within the switch goes through the root complex: slower, shared by all, and on some
        machines it never arrives: the first all-reduce hangs (DD401).

    Remedy
        Turn ACS off on these bridges, in the BIOS or with setpci at each boot.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
        Linux drivers/pci/p2pdma.c, pci_bridge_has_acs_redir
    """
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], Severity], list[FactAt[PcieFact]]] = {}
    for seen in recording.facts(PcieFact):
        pairs = [pair for pair in _pairs(recording, seen) if seen.fact.redirecting(pair[2])]
        if pairs and not seen.fact.virtual:
            bridges = dict.fromkeys(bus for pair in pairs for bus in seen.fact.redirecting(pair[2]))
            numbers = gpu_numbers(recording, seen.node)
            ends = dict.fromkeys(device_name(one, numbers) for pair in pairs for one in pair[:2])
            cause = (tuple(bridges), tuple(ends), _severity(recording, pairs))
            groups.setdefault(cause, []).append(seen)
    for (bridges_of, ends_of, severity), group in groups.items():
        fact = group[0].fact
        iommu = iommu_evidence(fact)
        yield likely(
            of_nodes(recording, group),
            f"PCIe switches of {{who}} send traffic between their own devices"
            f" through the CPU (ACS): {name_list(ends_of)}",
            (acs_evidence(fact, bridges_of), *([iommu] if iommu else [])),
            redirect_off(fact, bridges_of),
            detail="Direct copies between these devices are slower than they could be, and on some machines hang.",
            severity=asked_for(recording, severity),
        )


def _severity(recording: Recording, pairs: list[Pair]) -> Severity:
    """NICs reach into GPUs only where there are several nodes."""
    several = recording.world is not None and recording.world.nnodes > 1
    gpus = any((one.kind, two.kind) == ("gpu", "gpu") for one, two, _ in pairs)
    return Severity.WARNING if gpus or several else Severity.INFO


def _pairs(recording: Recording, seen: FactAt[PcieFact]) -> list[Pair]:
    """Neighbours that would talk over PCIe, of the job's own GPUs."""
    mine = jobs_gpus(recording, seen.node)
    linked = _nvlinked(recording, seen.node)
    return [
        (one, two, ports)
        for one, two, ports in seen.fact.neighbours()
        if frozenset((one.bus_id, two.bus_id)) not in linked
        and all(end.kind != "gpu" or mine is None or end.bus_id in mine for end in (one, two))
    ]


def _nvlinked(recording: Recording, node: int) -> set[frozenset[str]]:
    """The pairs of GPUs that have NVLink, by bus ids."""
    return recording.once(("pairs with NVLink", node), lambda: _find_nvlinked(recording, node))


def _find_nvlinked(recording: Recording, node: int) -> set[frozenset[str]]:
    buses = {number: bus for bus, number in gpu_numbers(recording, node).items()}
    found = set()
    for fact in recording.at(TopologyFact, node):
        for one, two, code in fact.gpu_pairs():
            ends = [buses.get(int(name.removeprefix("GPU"))) for name in (one, two)]
            if nvlinks(code) and None not in ends:
                found.add(frozenset(str(end) for end in ends))
    return found


@rule("DD421", "iommu-translates-gpus", Severity.INFO, PcieFact)
def iommu_translates(recording: Recording) -> Iterator[Draft]:
    """The IOMMU translates addresses between GPUs that talk over PCIe.

    What it finds
        Several of the job's GPUs, not all joined by NVLink, in IOMMU groups of type DMA or DMA-FQ on a
        machine that is not virtual. Information: many such machines work.

    Why it matters
        CUDA does not support direct copies over PCIe under a translating IOMMU on bare metal: on some machines
        they hang (DD401) or arrive wrong.

    Remedy
        None unless copies hang or are wrong. Then iommu=pt, or the IOMMU off in the BIOS.

    References
        https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#iommu-on-linux
    """
    seen = [
        node for node in recording.facts(PcieFact) if not node.fact.virtual and _translates(recording, node)
    ]
    for evidence, group in by_cause(seen, iommu_evidence).items():
        yield possible(
            of_nodes(recording, group),
            "The IOMMU of {who} translates what GPUs send to each other over PCIe",
            evidence,
            PASS_THROUGH,
            detail="It works on many machines. Where copies between GPUs hang or are wrong, this is the first suspect.",
            severity=Severity.INFO,
        )


def _translates(recording: Recording, seen: FactAt[PcieFact]) -> bool:
    mine, linked = jobs_gpus(recording, seen.node), _nvlinked(recording, seen.node)
    gpus = [
        one for one in seen.fact.endpoints() if one.kind == "gpu" and (mine is None or one.bus_id in mine)
    ]
    return any(
        translated(one) and translated(two) and frozenset((one.bus_id, two.bus_id)) not in linked
        for one, two in combinations(gpus, 2)
    )


@rule("DD423", "acs-not-readable", Severity.INFO, PcieFact)
def acs_not_readable(recording: Recording) -> Iterator[Draft]:
    """Access control of PCIe switches cannot be read here, so nothing is known of it.

    What it finds
        GPUs or RDMA devices below one PCIe switch of a machine that is not virtual, whose configuration the
        kernel does not show to this user.

    Why it matters
        ACS redirection slows direct copies down, and on some machines they hang.

    Remedy
        Run ddp-doctor prolog as root on the node, or look with lspci.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html
    """
    seen = [node for node in recording.facts(PcieFact) if not node.fact.virtual and _pairs(recording, node)]
    for reason, group in by_cause(seen, lambda fact: fact.acs_problem).items():
        yield proved(
            of_nodes(recording, group),
            "Whether PCIe switches of {who} redirect peer traffic (ACS) cannot be read",
            Evidence(text=reason),
            by_operator(
                "Look as root; SrcValid+ or ReqRedir+ on a bridge above GPUs means that ACS is on.",
                "sudo lspci -vvv | grep -e '^[0-9a-f]' -e ACSCtl",
                undo=NOTHING_TO_UNDO,
            ),
        )
