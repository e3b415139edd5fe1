"""The nodes for the RDMA rules: which use RDMA, their NCCL, comparable ports, and the growth of counters."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddp_doctor.checks.node.rdma.wording import Hit
from ddp_doctor.facts.node.rdma import Hca, Port, PortAfter, RdmaAfterFact, RdmaFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.rdma import FEW_SHARE, LEAST_ALIKE, LEAST_DARK
from ddp_doctor.knowledge.topology.link_codes import link_code
from ddp_doctor.knowledge.versions import Version, release
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.views.software import of_the_job

#: The link is up, and the port waits for a subnet manager.
UNCONFIGURED = ("INIT", "ARMED")


def is_between_nodes(recording: Recording) -> bool:
    """Return True if NCCL ranks of several nodes communicate; they do not need RDMA within a node."""
    world = recording.world
    return world is not None and world.backend == "nccl" and max(world.nnodes, world.foreign_nodes) > 1


def users(recording: Recording) -> list[FactAt[RdmaFact]]:
    """Return the nodes without a setting that keeps NCCL from using RDMA."""
    if not is_between_nodes(recording):
        return []
    return [node for node in recording.facts(RdmaFact) if node.fact.unused_by is None]


def for_later_jobs(recording: Recording, severity: Severity) -> Severity:
    """Return the severity of a port's fault, which is only info in a single-node run.

    A prolog keeps the severity, because it does not know which job follows.
    """
    prolog = recording.command.is_of_root
    return severity if prolog or is_between_nodes(recording) else Severity.INFO


@once_a_recording
def nccl_versions(recording: Recording) -> dict[int, Version]:
    """Return the NCCL version that the job would load on each node, if known."""
    found = {
        node.node: release(node.fact.nccl_loaded or node.fact.nccl_required_by_torch or "")
        for node in of_the_job(recording)
    }
    return {node: version for node, version in found.items() if version}


def hits_of(recording: Recording, keep: Callable[[Hca, Port], bool]) -> list[Hit]:
    """Return the ports of all nodes for which ``keep`` is true."""
    return [
        (node.node, hca, port)
        for node in recording.facts(RdmaFact)
        for hca, port in node.fact.ports()
        if keep(hca, port)
    ]


def is_of_a_card(hca: Hca) -> bool:
    """Return True if its ports have their own plug: not virtual, not software, not EFA."""
    return hca.bus_id is not None and not hca.is_virtual_function and not hca.is_efa


@dataclass(frozen=True)
class Odd:
    """A port that is worse than its peers, with their number and usual value."""

    hit: Hit
    peers: int
    usual: float


def odd_ones(hits: Iterable[Hit], value: Callable[[Hit], float | None]) -> list[Odd]:
    """Return the few ports with a lower value than their peers; ports with the value None are not compared.

    Peers are ports of one model on one node with the same number, or ports of one name and model on all nodes. Ports
    that are unused by design are unused on all or many of them.
    """
    found: dict[tuple[int, str, int], Odd] = {}
    groups: dict[Hashable, list[Hit]] = {}
    for hit in hits:
        node, hca, port = hit
        kind = (hca.model, port.number, port.link_layer)
        groups.setdefault(("node", node, kind), []).append(hit)
        groups.setdefault(("name", hca.name, kind), []).append(hit)
    for group in groups.values():
        values = [(port_at, reading) for port_at in group if (reading := value(port_at)) is not None]
        best = max((reading for _, reading in values), default=0.0)
        worse = [port_at for port_at, reading in values if reading < best]
        if len(values) >= LEAST_ALIKE and len(worse) <= FEW_SHARE * len(values):
            for port_at in worse:
                found.setdefault(identity(port_at), Odd(port_at, len(values) - len(worse), best))
    return list(found.values())


def _ports_of_dark_nodes(recording: Recording) -> list[Odd]:
    """Return the ports of nodes on which all ports of a model are down, but up under the same names on other nodes."""
    hits = hits_of(recording, _may_be_down)
    models: dict[tuple[int, Hashable], list[Hit]] = {}
    up: dict[tuple[str, Hashable], set[int]] = {}
    for port_at in hits:
        node, hca, port = port_at
        kind = (hca.model, port.number, port.link_layer)
        models.setdefault((node, kind), []).append(port_at)
        if port.is_active:
            up.setdefault((hca.name, kind), set()).add(node)
    return [
        Odd(port_at, len(up[port_at[1].name, kind]), 1.0)
        for (_, kind), mine in models.items()
        if len(mine) >= LEAST_DARK and all(port_at[2].state == "DOWN" for port_at in mine)
        for port_at in mine
        if (port_at[1].name, kind) in up
    ]


@once_a_recording
def cut_off(recording: Recording) -> set[int]:
    """Return the nodes without any port of a kind that other nodes would use."""
    layers = {
        node.node: {port.link_layer for _, port in fast_and_others(node.fact.chosen())[0]} for node in users(recording)
    }
    usual = {layer for found in layers.values() for layer in found}
    return {node for node, found in layers.items() if not found or (len(usual) > 1 and found == {"Ethernet"})}


def _is_up(port_at: Hit) -> float | None:
    """Return whether the port is up, as a number to compare."""
    state = port_at[2].state
    return None if state is None else float(state == "ACTIVE")


@once_a_recording
def odd_by_state(recording: Recording) -> list[Odd]:
    """Return the few ports that are down while their peers are up."""
    few = odd_ones(hits_of(recording, _may_be_down), _is_up)
    named = {identity(odd.hit) for odd in few}
    return [*few, *(odd for odd in _ports_of_dark_nodes(recording) if identity(odd.hit) not in named)]


@once_a_recording
def odd_by_rate(recording: Recording) -> list[Odd]:
    """Return the few ports that are slower than their peers."""
    return odd_ones(hits_of(recording, carries), lambda port_at: port_at[2].rate_gbit_per_s)


def _may_be_down(hca: Hca, port: Port) -> bool:
    """Return True if the state of a port is comparable; waiting for a subnet manager has its own finding."""
    return is_of_a_card(hca) and port.state not in UNCONFIGURED


def carries(hca: Hca, port: Port) -> bool:
    """Return True if the rate of a port is comparable."""
    return is_of_a_card(hca) and port.is_active


def identity(port_at: Hit) -> tuple[int, str, int]:
    """Return the key of a port among all ports of all nodes."""
    return port_at[0], port_at[1].name, port_at[2].number


def usual(values: Iterable[float]) -> float:
    """Return the median, or 0 without values."""
    known = list(values)
    return median(known) if known else 0.0


def named_by_setting(fact: RdmaFact, hca: Hca, port: Port) -> bool:
    """Return True if NCCL_IB_HCA names exactly this port, or matches it and all its ports are down."""
    value = fact.settings.get(nccl_hca.HCA, "")
    asked = nccl_hca.names_port(value, hca.name, port.number)
    return asked and (nccl_hca.names_in_full(value, hca.name) or not fact.chosen())


def fast_and_others(ports: Sequence[tuple[Hca, Port]]) -> tuple[list[tuple[Hca, Port]], list[tuple[Hca, Port]]]:
    """Return the ports of the kind with the highest total rate, at half of its best rate or more, and the rest."""
    rates: dict[str | None, float] = {}
    for _, port in ports:
        rates[port.link_layer] = rates.get(port.link_layer, 0.0) + (port.rate_gbit_per_s or 0.0)
    kind = max(rates, key=lambda layer: rates[layer], default=None)
    most = max((port.rate_gbit_per_s or 0.0 for _, port in ports if port.link_layer == kind), default=0.0)
    best = [(hca, port) for hca, port in ports if port.link_layer == kind and (port.rate_gbit_per_s or 0.0) >= most / 2]
    return best, [port for port in ports if port not in best]


def distance(fact: TopologyFact, gpu: str, names: set[str]) -> int:
    """Return the distance from a GPU to the nearest of these devices; 99 if none is in the matrix."""
    links = fact.links[gpu]
    codes = (links[nic] for nic, name in fact.hcas().items() if name in names and nic in links)
    return min((link_code(code).distance for code in codes), default=99)


@dataclass(frozen=True)
class Change:
    """A port that was up before the ranks started, and its later state."""

    hit: Hit
    seconds: float  # between the two samples
    state: str | None
    grown: Mapping[str, int]
    carrier_changes: int
    is_used: bool  # by NCCL between nodes

    def growth(self, names: Sequence[str]) -> int:
        """Return the total growth of these counters."""
        return sum(self.grown.get(name, 0) for name in names)

    def in_words(self, names: Sequence[str]) -> str:
        """Describe the growth of some counters."""
        grown = [f"{name} +{self.grown[name]}" for name in names if self.grown.get(name)]
        return f"{', '.join(grown)} in {self.seconds:.0f} s"


@once_a_recording
def changes(recording: Recording) -> list[Change]:
    """Return the ports that were up before the ranks; a counter that decreased was cleared and is ignored."""
    used = {identity((node.node, hca, port)) for node in users(recording) for hca, port in node.fact.chosen()}
    before = {node.node: node for node in recording.facts(RdmaFact)}
    return [
        change
        for after in recording.facts(RdmaAfterFact)
        if after.node in before
        for change in _of_node(before[after.node], after, used)
    ]


def _of_node(
    before: FactAt[RdmaFact], after: FactAt[RdmaAfterFact], used: set[tuple[int, str, int]]
) -> Iterator[Change]:
    known: dict[tuple[str, int], PortAfter] = {(port.hca, port.number): port for port in after.fact.ports}
    for hca, port in before.fact.ports():
        now = known.get((hca.name, port.number))
        if now is None or not port.is_active or not is_of_a_card(hca):
            continue
        port_at = (before.node, hca, port)
        netdev = before.fact.netdev(port) if port.is_roce else None
        changed = (now.carrier_changes or 0) - (netdev.carrier_changes or 0) if netdev else 0
        yield Change(
            hit=port_at,
            seconds=max(after.reading.started_at - before.reading.started_at, 1.0),
            state=now.state,
            grown={
                name: count - port.counters[name]
                for name, count in now.counters.items()
                if name in port.counters and count > port.counters[name]
            },
            carrier_changes=max(changed, 0) if now.carrier_changes is not None else 0,
            is_used=identity(port_at) in used,
        )
