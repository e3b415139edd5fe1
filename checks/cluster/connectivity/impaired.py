"""What the rules about paths that exist and do not do share: paths, culprits, evidence, severity."""

from collections.abc import Collection, Iterable

from ddp_doctor.checks.cluster.connectivity import wording
from ddp_doctor.checks.cluster.connectivity.blame import Blame, Path
from ddp_doctor.checks.cluster.connectivity.matrix import Matrix
from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.nodes import host, node_culprit


def on_paths(recording: Recording, found: Blame) -> str:
    """ "On all paths to and from node2,", to begin a sentence with."""
    if found.everyone:
        return "Between all nodes"
    if not found.nodes:
        return f"On the path {wording.path_words(recording, found.paths)}"
    sides = [side for side, nodes in (("to", found.inbound), ("from", found.outbound)) if nodes]
    return f"On the paths {' and '.join(sides)} {wording.hosts(recording, found.nodes)}"


def blamed(recording: Recording, found: Blame, nodes: Iterable[int]) -> tuple[Culprit, ...]:
    """The nodes that are named, of all ``nodes`` of the run, else the paths."""
    named = nodes if found.everyone else found.nodes
    alone = () if found.nodes else wording.path_culprits(recording, found.paths)
    return (*(node_culprit(recording, node) for node in named), *alone)


def measured(text: str, value: float, unit: str, usual: float | None) -> Evidence:
    """What was measured, beside what is usual here, where there is anything to compare with."""
    digits = 0 if unit == "B/s" else 6
    return Evidence(
        text=text,
        value=round(value, digits),
        unit=unit,
        expected=None if usual is None else round(usual, digits),
        expected_from=None if usual is None else "the fastest quarter of the paths of this run",
    )


def look(recording: Recording, matrix: Matrix, nodes: Iterable[int]) -> Remedy:
    """Look at the interface of each node, by its name where that is known."""
    addresses = matrix.address_of
    known = {node: wording.interface_name(recording, node, addresses.get(node, "")) for node in nodes}
    return wording.look_at_link(
        [(host(recording, node), name or "INTERFACE") for node, name in known.items()]
    )


def touching(paths: Iterable[Path], nodes: Collection[int]) -> set[Path]:
    """The paths that begin or end at one of the nodes."""
    return {path for path in paths if set(path) & set(nodes)}


def unless_over_rdma(recording: Recording, severity: Severity) -> Severity:
    """Information where the data does not take this path at all."""
    return Severity.INFO if goes_over_rdma(recording) else severity


def goes_over_rdma(recording: Recording) -> bool:
    """Whether NCCL has RDMA devices on every node."""
    if recording.world is None or recording.world.backend != "nccl":
        return False
    hosts = [one.fact for one in recording.facts(Host)]
    return bool(hosts) and all(host.rdma_devices and not host.rdma_unused_by for host in hosts)
