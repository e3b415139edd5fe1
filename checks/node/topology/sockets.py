"""DD435, DD436, DD447: what goes between nodes takes TCP, though InfiniBand is there, or one connection alone."""

import re
from collections.abc import Container, Iterator, Sequence

from ddp_doctor.checks.node.topology import transport_wording
from ddp_doctor.checks.node.topology.clusters import evidence as cluster_evidence
from ddp_doctor.checks.node.topology.slowness import best_of_large
from ddp_doctor.checks.node.topology.transport_wording import more_sockets
from ddp_doctor.facts.collectives import AllReduceFact
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.facts.node.nccl import NcclFact
from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.facts.node.rdma import Hca, Port, RdmaFact
from ddp_doctor.knowledge.network.path_quality import FAST_ETHERNET_MBPS, SOCKETS, SOCKETS_SHARE
from ddp_doctor.knowledge.topology.link_rates import LEAST_BYTES, network
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Reproducer
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.settings.nccl_conf import files_read, set_by_files
from ddp_doctor.views import forbidden_ways
from ddp_doctor.views.interfaces import chosen
from ddp_doctor.views.links_between_nodes import Crossing, crossings, nodes_that_say, rdma_of
from ddp_doctor.views.reproducers import between_nodes
from ddp_doctor.views.transports import log_of, places
from ddp_doctor.wording.findings import NOBODY, likely, possible
from ddp_doctor.wording.nodes import by_cause, host, name_list, node_culprit, node_culprits, node_names
from ddp_doctor.wording.ranks import ranks_at

_SOCKET = re.compile(r" via NET/Socket/")


@rule("DD435", "sockets-used-beside-rdma", Severity.WARNING, RdmaFact)
def sockets_used(recording: Recording) -> Iterator[Draft]:
    """NCCL talks between nodes over TCP, though both ends have RDMA ports it could use.

    What it finds
        Ranks of different nodes that NCCL's log joins by NET/Socket, where each of the nodes has an active
        port that NCCL_IB_HCA allows, a device file that can be opened, and libibverbs. Silent where a setting
        chose TCP, and where one of these is missing, which other rules tell.

    Why it matters
        TCP reaches a fraction of what the adapter carries, and takes the CPU's time for it.

    Remedy
        What NCCL's log says of NET/IB is the reason; have it say more.

    References
        NCCL src/transport/net_ib/init.cc, ncclIbInitDevices: which devices it takes, and why none
        NCCL user guide, environment variables NCCL_NET and NCCL_IB_DISABLE
    """
    rdma, groups = rdma_of(recording), dict[str, list[Crossing]]()
    for node in nodes_that_say(recording, _SOCKET):
        log = log_of(recording, node)
        for one in crossings(recording, node):
            network_name = one.transport.network
            ends = (rdma.get(node), rdma.get(one.other))
            if (
                network_name
                and network_name[0] == "Socket"
                and all(end and _usable(end, log) for end in ends)
            ):
                groups.setdefault(_reason(log), []).append(one)
    for reason, group in groups.items():
        nodes = list(dict.fromkeys(one.node for one in group))
        ports = rdma[nodes[0]].chosen()
        yield likely(
            (node_culprit(recording, node) for node in nodes),
            f"NCCL goes over TCP (NET/Socket) from {name_list([host(recording, node) for node in nodes])},"
            f" though RDMA ports are active there: {_names(ports)}",
            (
                Evidence(
                    check="rdma", text=f"active on {host(recording, nodes[0])}: {_names(ports)}{_rate(ports)}"
                ),
                *(
                    Evidence(text=f"NCCL's log: {ranks_at(recording, one.ranks)} via {one.transport.via}")
                    for one in group[: transport_wording.MOST_PAIRS]
                ),
            ),
            transport_wording.SHOW_NETWORK,
            detail=f"Nothing that is recorded forbids RDMA. {reason}.",
        )


def _usable(fact: RdmaFact, log: NcclTransportFact) -> bool:
    """Whether nothing that other rules tell keeps NCCL from this node's ports."""
    chosen_tcp = log.settings.get("NCCL_IB_DISABLE", "0") != "0" or "NCCL_NET" in log.settings
    return (
        bool(fact.chosen()) and fact.unused_by is None and fact.verbs_library is not None and not chosen_tcp
    )


def _reason(log: NcclTransportFact) -> str:
    if log.no_verbs_library:
        return "NCCL's log says that it could not open libibverbs.so"
    if log.no_ib_device:
        return 'NCCL\'s log says "NET/IB : No device found"'
    return "NCCL's log does not say why it passed them over"


@rule("DD436", "setting-forbids-rdma", Severity.WARNING, RdmaFact)
def rdma_forbidden(recording: Recording) -> Iterator[Draft]:
    """A setting sends what goes between nodes over TCP, though InfiniBand is there.

    What it finds
        NCCL_IB_DISABLE=1 or NCCL_NET=Socket in a run over several nodes with NCCL, where nodes have active
        InfiniBand ports. An error where other nodes will use theirs: the two do not meet. Information only where
        the ports of all are RoCE: those are often left unused on purpose.

    Why it matters
        TCP reaches a fraction of what the adapter carries. The setting is a common test for a fault of the
        network, and is forgotten in scripts.

    Remedy
        Unset it and measure again.

    References
        NCCL user guide, environment variables NCCL_IB_DISABLE and NCCL_NET
    """
    if not forbidden_ways.may_use_rdma(recording):
        return
    facts = recording.facts(RdmaFact)
    mixed = forbidden_ways.rdma_in_use(facts)
    for (setting, roce), group in by_cause(facts, forbidden_ways.forbidding_rdma).items():
        ports, (name, _, value) = group[0].fact.candidates(), setting.partition("=")
        yield likely(
            (Culprit(kind="setting", name=name), *node_culprits(recording, group)),
            f"{setting} keeps NCCL from the RDMA ports of {node_names(recording, group)}: {_names(ports)}",
            (
                Evidence(check="rdma", text=f"active: {_names(ports)}{_rate(ports)}"),
                *_in_files(recording, name, {seen.node for seen in group}),
            ),
            transport_wording.unset_setting(name, value, "NCCL then uses RDMA between nodes"),
            detail="Ranks on TCP cannot connect to the ranks of the other nodes, which use RDMA."
            if mixed
            else "What goes between the nodes takes TCP." + _price(recording, group[0]),
            severity=Severity.ERROR if mixed else Severity.INFO if roce else None,
            reproduced_by=between_nodes(recording),
        )


def _in_files(recording: Recording, name: str, nodes: Container[int]) -> Iterator[Evidence]:
    """Where a file, and no environment, sets it."""
    for seen in recording.facts(NcclFact):
        place = set_by_files(files_read(recording, seen)).get(name)
        if place is not None and seen.node in nodes and name not in seen.fact.overruled:
            text = f"{host(recording, seen.node)}: {place[1]} sets {name}, and no environment"
            yield Evidence(check="nccl", text=text)


def _price(recording: Recording, seen: FactAt[RdmaFact]) -> str:
    """What one port carries beside what the interface does that NCCL then takes."""
    fast = max((port.rate_gbit_per_s or 0.0 for _, port in seen.fact.candidates()), default=0.0)
    interfaces = next(iter(recording.at(InterfacesFact, seen.node)), None)
    name = chosen(interfaces, "nccl").interface if interfaces else None
    speeds = {one.name: one.speed_mbps for one in interfaces.interfaces} if interfaces else {}
    return transport_wording.price(fast / 8 or None, network(speeds.get(name or "")))


def _names(ports: Sequence[tuple[Hca, Port]]) -> str:
    return name_list([f"{hca.name} port {port.number}" for hca, port in ports])


def _rate(ports: Sequence[tuple[Hca, Port]]) -> str:
    """The rates of the ports as the kernel prints them."""
    rates = dict.fromkeys(port.rate for _, port in ports if port.rate)
    return f" ({', '.join(rates)})" if rates else ""


@rule("DD447", "one-socket-on-a-fast-network", Severity.INFO, InterfacesFact, AllReduceFact)
def one_socket(recording: Recording) -> Iterator[Draft]:
    """NCCL sends between nodes over one TCP connection, and the interface carries far more.

    What it finds
        Nodes without RDMA that NCCL's log joins by NET/Socket with no further threads and sockets, over an interface of
        25 Gbit/s or more, where the all-reduce of 64 MiB and more stays below half of it. Silent where
        NCCL_SOCKET_NTHREADS or NCCL_NSOCKS_PERTHREAD is set, and on AWS and Google Cloud, where NCCL takes several by
        itself.

    Why it matters
        One connection is bound by what one core moves.

    Remedy
        NCCL_SOCKET_NTHREADS=4 and NCCL_NSOCKS_PERTHREAD=4 are worth a measurement: keep what is faster.

    References
        NCCL src/transport/net_socket.cc, ncclNetSocketGetNsockNthread: 2 x 8 on AWS, 4 x 1 on Google Cloud, else one
        NCCL user guide, NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD: 4 for generic networks of 100 Gbit/s
    """
    world, best = recording.world, best_of_large(recording)
    if world is None or world.nnodes < 2 or best is None:
        return
    slow = {
        node: rate for node in nodes_that_say(recording, _SOCKET) if (rate := _interface(recording, node))
    }
    nodes = [node for node, rate in slow.items() if best.busbw_gb_per_s < SOCKETS_SHARE * rate]
    if not nodes or len(nodes) < len(slow):
        return
    least = min(slow.values())
    yield possible(
        NOBODY,
        f"NCCL sends over one TCP connection from {name_list([host(recording, node) for node in nodes])}:"
        f" all-reduce reaches {best.busbw_gb_per_s:.3g} GB/s, the interface carries {least:.3g} GB/s",
        (
            Evidence(
                check="allreduce",
                text=f"bus bandwidth at {best.size_bytes >> 20} MiB, slowest rank",
                value=round(best.busbw_gb_per_s, 3),
                unit="GB/s",
                expected=least,
                expected_from="the speed of the interface that NCCL takes",
            ),
            Evidence(text="NCCL's log: NET/Socket, without further threads and sockets"),
            *cluster_evidence(recording, nodes[0]),
        ),
        more_sockets(*SOCKETS),
        detail="One connection is bound by one core. More threads and sockets are a candidate to measure.",
        reproduced_by=Reproducer(kind="all_reduce", size_bytes=LEAST_BYTES),
    )


def _interface(recording: Recording, node: int) -> float | None:
    """GB/s of the interface under NCCL's one connection; None where it is slow, not known, or there are several."""
    log, rdma = log_of(recording, node), rdma_of(recording).get(node)
    settings = next(
        (place.node.settings for place in places(recording) if place.seen.node == node), log.settings
    )
    several = log.sockets is not None or {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"} & set(settings)
    plain = any(
        one.transport.network and one.transport.network[0] == "Socket" for one in crossings(recording, node)
    )
    fact = next(iter(recording.at(InterfacesFact, node)), None)
    if several or not plain or fact is None or (rdma is not None and rdma.chosen()):
        return None
    speeds = {one.name: one.speed_mbps for one in fact.interfaces}
    speed = speeds.get(chosen(fact, "nccl").interface or "")
    return network(speed) if speed is not None and speed >= FAST_ETHERNET_MBPS else None
