"""DD577, DD578: an NCCL_IB_HCA that takes more ports than it names, or leaves out the nearest to a GPU."""

from collections.abc import Iterator, Sequence

from ddp_doctor.checks.node.rdma.nodes import distance, fast_and_others, is_between_nodes, users
from ddp_doctor.checks.node.rdma.wording import Hit, port_draft, use_ports
from ddp_doctor.facts.node.rdma import Hca, Port, RdmaFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.nccl_hca import HCA
from ddp_doctor.knowledge.topology.link_codes import link_code
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.settings import NO_TRIAL, unset
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.reproducers import everybody
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nodes import name_list, node_culprits, node_names


@rule("DD578", "nccl-ib-hca-takes-more-than-named", Severity.INFO, RdmaFact)
def takes_more(recording: Recording) -> Iterator[Draft]:
    """NCCL_IB_HCA without = takes devices whose names only begin alike.

    What it finds
        For NCCL on several nodes: mlx5_1 in NCCL_IB_HCA on a node that has mlx5_10 as well, which is active and
        not named. A warning where that is of another kind, or less than half as fast.

    Why it matters
        Names in NCCL_IB_HCA are prefixes. A storage port slips in among the fast ones.

    Remedy
        = before the first name.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    groups: dict[tuple[str, Severity], list[Hit]] = {}
    for seen in users(recording):
        value = seen.fact.settings.get(HCA, "")
        named, extra = _named_and_extra(seen.fact, value)
        if extra:
            _, slow = fast_and_others([*named, *extra])
            worse = any(one in extra for one in slow)
            key = (value, Severity.WARNING if worse else Severity.INFO)
            groups.setdefault(key, []).extend((seen.node, hca, port) for hca, port in extra)
    for (value, severity), hits in groups.items():
        yield port_draft(
            recording,
            hits,
            f"{shown(HCA, value)} takes it too, though it is not named"
            if len({hca.name for _, hca, _ in hits}) == 1
            else f"{shown(HCA, value)} takes these too, though they are not named",
            lambda hit: f"{hit[2].link_layer}, {hit[2].rate}",
            *_with_equals(recording, value, hits),
            detail="Without = before the first, the names are prefixes: mlx5_1 means mlx5_10 as well.",
            severity=severity,
            confidence=Confidence.PROVED,
        ).model_copy(update={"reproduced_by": everybody(recording)})


def _named_and_extra(fact: RdmaFact, value: str) -> tuple[list[tuple[Hca, Port]], list[tuple[Hca, Port]]]:
    """The ports taken by their full names, and those taken because their names begin like another's."""
    words = {name for name, _ in nccl_hca.entries(value)}
    if nccl_hca.is_exclusion(value) or nccl_hca.is_exact(value) or not words:
        return [], []
    names = {hca.name for hca in fact.hcas}
    whole = words & names  # a word that is nobody's name is meant as a prefix
    chosen = fact.chosen()
    extra = [
        (hca, port)
        for hca, port in chosen
        if hca.name not in words and all(word in whole for word in words if hca.name.startswith(word))
    ]
    return [(hca, port) for hca, port in chosen if hca.name in words], extra


def _with_equals(recording: Recording, value: str, hits: Sequence[Hit]) -> list[Remedy]:
    nodes = {node for node, _, _ in hits}
    ports = {
        seen.node: _named_and_extra(seen.fact, value)[0] for seen in users(recording) if seen.node in nodes
    }
    remedy = use_ports(recording, ports, "the names stand for themselves")
    return [remedy] if remedy else []


@rule("DD577", "nccl-ib-hca-leaves-out-the-nearest", Severity.WARNING, RdmaFact, TopologyFact)
def leaves_out_nearest(recording: Recording) -> Iterator[Draft]:
    """NCCL_IB_HCA leaves out the port beside a GPU, so that its traffic crosses the machine.

    What it finds
        For NCCL on several nodes: a GPU whose nearest active port, behind the same PCIe switch, is not allowed,
        while those that are lie behind a CPU or another socket.

    Why it matters
        Beyond a PCIe switch NCCL uses no GPUDirect RDMA by default: the data go through host memory, and
        between sockets.

    Remedy
        NCCL_IB_HCA with the nearest ports too, or no setting.

    References
        NCCL src/graph/paths.cc, ncclTopoCheckGdr
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net-gdr-level
    """
    if not is_between_nodes(recording):
        return
    topologies = {seen.node: seen.fact for seen in recording.facts(TopologyFact)}
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[FactAt[RdmaFact]]] = {}
    for seen in users(recording):
        value, fact = seen.fact.settings.get(HCA), topologies.get(seen.node)
        if value and fact is not None and seen.fact.chosen():
            gpus, names = _cut_off(seen.fact, fact)
            if gpus:
                groups.setdefault((value, gpus, names), []).append(seen)
    for (value, gpus, names), group in groups.items():
        yield likely(
            (
                one.model_copy(update={"kind": "setting", "name": HCA})
                for one in node_culprits(recording, group)
            ),
            f"{shown(HCA, value)} on {node_names(recording, group)} leaves out {name_list(names)},"
            f" the nearest to {name_list(gpus)}",
            (Evidence(check="topology", text=text) for text in topologies[group[0].node].nearest_in_words()),
            unset({HCA: value}, "NCCL takes the ports nearest to each GPU", proof=NO_TRIAL),
            detail="Their traffic takes ports behind a CPU, through host memory and without GPUDirect RDMA.",
            reproduced_by=everybody(recording),
        )


def _cut_off(fact: RdmaFact, topology: TopologyFact) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The GPUs that lose their port behind a switch, and these ports."""
    best, _ = fast_and_others(fact.candidates())
    allowed = {hca.name for hca, _ in fact.chosen()}
    left = {hca.name for hca, _ in best} - allowed
    limit = link_code("PXB").distance
    gpus, names = [], set()
    for gpu in topology.gpus:
        near = {name for name in left if distance(topology, gpu, {name}) <= limit}
        if near and distance(topology, gpu, allowed) > limit:
            gpus.append(gpu)
            names |= near
    return tuple(gpus), tuple(sorted(names, key=nccl_hca.natural))
