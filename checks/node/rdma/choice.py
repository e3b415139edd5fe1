"""DD563, DD571, DD577, DD578: the ports that NCCL uses by default or by NCCL_IB_HCA, and the ports it should use."""

from collections.abc import Iterator, Sequence

from ddp_doctor.checks.node.rdma.nodes import distance, fast_and_others, users
from ddp_doctor.checks.node.rdma.wording import Hit, port_draft, port_name, use_ports
from ddp_doctor.facts.node.rdma import Hca, Port, RdmaFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.nccl_hca import HCA
from ddp_doctor.knowledge.topology.link_codes import link_code
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import NO_TRIAL, unset
from ddp_doctor.settings.wording import printable, shown
from ddp_doctor.views.reproducers import everybody
from ddp_doctor.wording.findings import likely, proved
from ddp_doctor.wording.nodes import by_cause, first_names, host, name_list, node_culprit, node_names

_DOCS = "NCCL src/transport/net_ib/init.cc and src/misc/utils.cc, matchIfList"


@rule("DD563", "rdma-ports-of-different-kinds", Consequence.KNOWN, RdmaFact)
def rdma_ports_of_different_kinds(recording: Recording) -> Iterator[Draft]:
    """NCCL may use a management or storage port in addition to the fast ports.

    Finds: For NCCL on several nodes without NCCL_IB_HCA, reports active ports of both InfiniBand and Ethernet, or ports
        with less than half of the fastest port's rate. Not reported if all are of one kind and the topology shows that
        every GPU has a fast port that is nearer than any slow one. Severity is info, because NCCL usually chooses well.
    Why: A rank that uses an Ethernet port cannot connect to a rank that uses InfiniBand: "Remote RoCE device is
        incompatible with the local … Try selecting NICs of only one link type using NCCL_IB_HCA".
    Remedy: Set NCCL_IB_HCA to the fast ports.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
        NCCL src/transport/net_ib/connect.cc, ncclIbConnect
    """
    fast: dict[int, list[tuple[Hca, Port]]] = {}
    others: list[Hit] = []
    for node in users(recording):
        if node.fact.settings.get(HCA):
            continue
        best, others_here = fast_and_others(node.fact.chosen())
        models = {hca.model for hca, _ in best}
        slower = [(hca, port) for hca, port in others_here if hca.model not in models]
        fast[node.node] = [*best, *(port for port in others_here if port not in slower)]
        if slower and not _is_well_chosen(recording, node, best, slower):
            others += [(node.node, hca, port) for hca, port in slower]
    if not others:
        return
    least = min(port.rate_gbit_per_s or 0.0 for ports in fast.values() for _, port in ports)
    is_slower = all((port.rate_gbit_per_s or 0.0) < least for _, _, port in others)
    kind = "slower" if is_slower else " and ".join(sorted({port.link_layer or "other" for _, _, port in others}))
    these = f"this {kind} port" if len({hca.name for _, hca, _ in others}) == 1 else f"these {kind} ports"
    yield port_draft(
        recording,
        [(port_at, _kind_and_rate(port_at[2])) for port_at in others],
        f"NCCL may use {these} along with fast ports",
        *use_ports(recording, fast, "only ports of the fabric between the nodes"),
        detail="NCCL uses every active port by default. It usually prefers fast ports.",
        confidence=Confidence.POSSIBLE,
        reproduced_by=everybody(recording),
    )


def _kind_and_rate(port: Port) -> str:
    return f"{port.link_layer}, {port.rate}"


def _is_well_chosen(
    recording: Recording, node: FactAt[RdmaFact], best: Sequence[tuple[Hca, Port]], slower: Sequence[tuple[Hca, Port]]
) -> bool:
    """Return True if NCCL will ignore the slower ports: same link layer as the best, and farther from all GPUs."""
    if {port.link_layer for _, port in best} != {port.link_layer for _, port in slower}:
        return False
    fact = next(iter(recording.at(TopologyFact, node.node)), None)
    near, far = {hca.name for hca, _ in best}, {hca.name for hca, _ in slower}
    return fact is not None and all(distance(fact, gpu, near) < distance(fact, gpu, far) for gpu in fact.gpus)


@rule("DD571", "nccl-ib-hca-matches-nothing", Consequence.FAILS, RdmaFact)
def nccl_ib_hca_matches_nothing(recording: Recording) -> Iterator[Draft]:
    """NCCL_IB_HCA names devices that do not exist.

    Finds: For NCCL on several nodes, reports nodes with active RDMA ports if NCCL_IB_HCA allows none of them (error).
        Also reports a name that matches no device of the node, not even as a prefix, while other names match (warning).
    Why: NCCL prints no message and uses TCP, many times slower. If other nodes have an RDMA port, its ranks cannot
        connect to theirs. Names differ between machines: mlx5_4 on one is mlx5_2 on another.
    Remedy: Set the names that the node has, or unset the variable if NCCL chooses the correct ports without it.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    for (value, missing, fatal), group in by_cause(users(recording), _unmatched).items():
        setting = shown(HCA, value)
        title = (
            f"{setting} matches no active RDMA port on {node_names(recording, group)}"
            if fatal
            else (
                f"{setting} names {name_list(missing)}, which {node_names(recording, group)}"
                f" {'does' if len(group) == 1 else 'do'} not have"
            )
        )
        detail = (
            "NCCL then uses TCP without a warning, and cannot connect to nodes that use RDMA."
            if fatal
            else "NCCL uses the other ports without a warning."
        )
        best = {node.node: fast_and_others(node.fact.candidates()) for node in group}
        fast = {node: ports for node, (ports, _) in best.items()}
        unneeded = not any(slow for _, slow in best.values())  # NCCL uses only these by default
        yield proved(
            (node_culprit(recording, node.node, kind="setting", name=HCA) for node in group),
            title,
            (_devices_seen(recording, node) for node in group[:8]),
            unset({HCA: value}, "NCCL finds active ports by itself", proof=NO_TRIAL),
            *(() if unneeded else use_ports(recording, fast, "the active fast ports of this node", value)),
            detail=detail,
            severity=Severity.ERROR if fatal else Severity.WARNING,
            reproduced_by=everybody(recording),
        )


def _unmatched(fact: RdmaFact) -> tuple[str, tuple[str, ...], bool] | None:
    value = fact.settings.get(HCA, "")
    if not nccl_hca.entries(value) or nccl_hca.is_exclusion(value) or not fact.candidates():
        return None
    missing = nccl_hca.absent(value, [hca.name for hca in fact.hcas])
    fatal = not fact.chosen()
    return (value, missing, fatal) if missing or fatal else None


def _devices_seen(recording: Recording, node: FactAt[RdmaFact]) -> Evidence:
    ports = [port_name(hca, port) for hca, port in node.fact.candidates()]
    return Evidence(text=f"active on {host(recording, node.node)}: {first_names(ports, 12)}", expected_from=_DOCS)


@rule("DD578", "nccl-ib-hca-takes-more-than-named", Consequence.KNOWN, RdmaFact)
def nccl_ib_hca_takes_more_than_named(recording: Recording) -> Iterator[Draft]:
    """NCCL_IB_HCA without = also matches devices whose names start with the same characters.

    Finds: For NCCL on several nodes, reports an active device that is not named but matches a name as a prefix, for
        example mlx5_10 if NCCL_IB_HCA contains mlx5_1. Severity is warning if it is of another kind, or less than half
        as fast.
    Why: Names in NCCL_IB_HCA are prefixes, so a storage port may be used along with the fast ports.
    Remedy: Put = before the first name.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    groups: dict[tuple[str, Severity], list[Hit]] = {}
    for node in users(recording):
        value = node.fact.settings.get(HCA, "")
        named, extra = _named_and_extra(node.fact, value)
        if extra:
            _, slow = fast_and_others([*named, *extra])
            worse = any(port in extra for port in slow)
            key = (value, Severity.WARNING if worse else Severity.INFO)
            groups.setdefault(key, []).extend((node.node, hca, port) for hca, port in extra)
    for (value, severity), hits in groups.items():
        nodes = {node for node, _, _ in hits}
        ports = {node.node: _named_and_extra(node.fact, value)[0] for node in users(recording) if node.node in nodes}
        yield port_draft(
            recording,
            [(port_at, _kind_and_rate(port_at[2])) for port_at in hits],
            f"also matched by {shown(HCA, value)}, which does not name it"
            if len({hca.name for _, hca, _ in hits}) == 1
            else f"also matched by {shown(HCA, value)}, which does not name them",
            *use_ports(recording, ports, "exact names", value),
            detail="Without a leading =, all names are prefixes: mlx5_1 also matches mlx5_10.",
            severity=severity,
            confidence=Confidence.PROVED,
            reproduced_by=everybody(recording),
        )


def _named_and_extra(fact: RdmaFact, value: str) -> tuple[list[tuple[Hca, Port]], list[tuple[Hca, Port]]]:
    """Return the ports chosen by their full names, and the ports chosen only because such a name is their prefix."""
    words = {name for name, _ in nccl_hca.entries(value)}
    if nccl_hca.is_exclusion(value) or nccl_hca.is_exact(value) or not words:
        return [], []
    names = {hca.name for hca in fact.hcas}
    whole = words & names  # a word that matches no full name is a prefix
    chosen = fact.chosen()
    extra = [
        (hca, port)
        for hca, port in chosen
        if hca.name not in words and all(word in whole for word in words if hca.name.startswith(word))
    ]
    return [(hca, port) for hca, port in chosen if hca.name in words], extra


@rule("DD577", "nccl-ib-hca-leaves-out-the-nearest", Consequence.COST, RdmaFact, TopologyFact)
def nccl_ib_hca_leaves_out_the_nearest(recording: Recording) -> Iterator[Draft]:
    """NCCL_IB_HCA excludes the port nearest to a GPU, so its traffic takes a longer path.

    Finds: For NCCL on several nodes, reports GPUs whose nearest active port, behind the same PCIe switch, is not
        allowed, while the allowed ports are behind a CPU or on another socket.
    Why: By default, NCCL does not use GPUDirect RDMA beyond a PCIe switch. The data then goes through host memory, and
        between sockets.
    Remedy: Add the nearest ports to NCCL_IB_HCA, or unset it.
    See: NCCL src/graph/paths.cc, ncclTopoCheckGdr
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-net-gdr-level
    """
    topologies = {node.node: node.fact for node in recording.facts(TopologyFact)}
    able = [node for node in users(recording) if node.fact.chosen() and node.node in topologies]
    groups = grouped(
        ((node.fact.settings[HCA], *_gpus_and_ports_cut_off(node.fact, topologies[node.node])), node)
        for node in able
        if node.fact.settings.get(HCA)
    )
    for (value, gpus, names), group in groups.items():
        if not gpus:
            continue
        yield likely(
            (node_culprit(recording, node.node, kind="setting", name=HCA) for node in group),
            f'{HCA}="{printable(value)}" on {node_names(recording, group)} excludes'
            f" {name_list(names)}, the nearest to {name_list(gpus)}",
            (Evidence(check="topology", text=text) for text in topologies[group[0].node].nearest_in_words()),
            unset({HCA: value}, "NCCL uses the nearest ports of each GPU", proof=NO_TRIAL),
            detail="Their traffic uses ports behind a CPU, through host memory and without GPUDirect RDMA.",
            reproduced_by=everybody(recording),
        )


def _gpus_and_ports_cut_off(fact: RdmaFact, topology: TopologyFact) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
