"""DD435, DD436, DD440, DD447: TCP between nodes with InfiniBand, a single connection, and a slow all-reduce."""

import re
from collections.abc import Container, Iterator, Sequence

from ddp_doctor.checks.node.topology import wording
from ddp_doctor.checks.node.topology.p2p import evidence as cluster_evidence
from ddp_doctor.facts.collectives import AllReduceFact, SizeResult
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.facts.node.nccl import NcclFact
from ddp_doctor.facts.node.rdma import Hca, Port, RdmaFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.network.path_quality import FAST_ETHERNET_MBPS, SOCKETS, SOCKETS_SHARE
from ddp_doctor.knowledge.topology.link_rates import BOUNDING, FAR_BELOW, LEAST_BYTES, network
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Reproducer, Setting
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import nccl
from ddp_doctor.remedies.kinds import NO_TRIAL, remedy, unset
from ddp_doctor.settings.nccl_conf import files_read, set_by_files
from ddp_doctor.views import forbidden_ways
from ddp_doctor.views.gpus import each_has_a_whole_gpu
from ddp_doctor.views.network import Crossing, crossings, interface_mbps, nodes_whose_log_has, rdma_of, severity_of_tcp
from ddp_doctor.views.reproducers import between_nodes
from ddp_doctor.views.transports import Expected, Place, log_of, places, used_within
from ddp_doctor.wording.findings import NOBODY, likely, possible
from ddp_doctor.wording.nodes import by_cause, host, hosts, name_list, node_culprit, node_culprits, node_names


@rule(
    *("DD440", "all-reduce-far-below-its-path", Consequence.MUCH_SLOWER, TopologyFact, AllReduceFact),
    explained_by=("DD624",),
)
def all_reduce_far_below_its_path(recording: Recording) -> Iterator[Draft]:
    """An all-reduce on one node reaches less than a third of its slowest link's expected rate.

    Finds: Compares the bus bandwidth of all-reduces of 64 MiB and more with the rate that NCCL's own constants give for
        the slowest pair of GPUs in its log. Applies to one node whose GPUs all copy directly (P2P), because a path
        through host memory depends on more than a link. Not reported if messages were smaller, if GPUs are busy,
        shared, in MIG mode or unknown, or if the rate of a pair is unknown.
    Why: A ring is as fast as its slowest link, and every training step waits for it.
    Remedy: First unset settings that limit channels, buffers, threads, algorithms or protocols. Otherwise, check PCIe
        width and generation under load, NVLink errors, clocks, and ACS on the bridges.
    See: NCCL src/graph/topo.h: the constants; nccl-tests, doc/PERFORMANCE.md: bus bandwidth
    """
    measured = best_of_large(recording)
    if recording.several_nodes or not recording.on_nccl or measured is None:
        return
    for place in places(recording) if each_has_a_whole_gpu(recording) else ():
        slowest = _slowest_link(recording, place)
        if slowest is None or measured.busbw_gb_per_s * FAR_BELOW >= (slowest.rate_gb_per_s or 0.0):
            continue
        pair = "-".join(slowest.gpus)
        held = {name: place.node.settings[name] for name in BOUNDING if name in place.node.settings}
        yield likely(
            (node_culprit(recording, place.seen.node),),
            f"All-reduce on {host(recording, place.seen.node)} reaches"
            f" {measured.busbw_gb_per_s:.3g} GB/s, less than a third of the slowest link's rate"
            f" ({slowest.rate_gb_per_s:.3g} GB/s, {pair})",
            _bus_bandwidth(measured, slowest.rate_gb_per_s, f"NCCL's own constants for {pair}, {slowest.code}"),
            *([unset(held, "NCCL then chooses by itself", proof=NO_TRIAL)] if held else []),
            remedy(
                "Check PCIe width and generation under load, NVLink errors, and ACS on the bridges",
                "nvidia-smi --query-gpu=index,pcie.link.gen.current,pcie.link.width.current --format=csv",
                "nvidia-smi -q -d CLOCK,PERFORMANCE   # both while the job runs",
                "nvidia-smi nvlink -e",
                "sudo lspci -vvv | grep ACSCtl   # SrcValid+ means that ACS is on",
                untried="no test is known for it",
                references=(nccl.TROUBLE,),
            ),
            detail=f"NCCL uses {wording.NAMES[slowest.choice.kind]} there, and the GPUs were idle.",
            reproduced_by=Reproducer(kind="all_reduce", size_bytes=LEAST_BYTES),
        )


def _slowest_link(recording: Recording, place: Place) -> Expected | None:
    """Return the slowest pair in the log; None if a pair does not use P2P or its rate is unknown."""
    expected = {expected.gpus: expected for expected in place.expected()}
    ways = []
    for used in used_within(recording, place):
        link, kinds = expected.get(used.gpus), used.kinds()
        if link is None or link.rate_gb_per_s is None or not kinds == {link.choice.kind} == {"P2P"}:
            return None
        ways.append(link)
    return min(ways, key=lambda link: link.rate_gb_per_s or 0.0, default=None)


def best_of_large(recording: Recording) -> SizeResult | None:
    """Return the best of the large sizes, each by its slowest rank."""
    by_size = grouped(
        (result.size_bytes, result)
        for rank in recording.facts(AllReduceFact)
        for result in rank.fact.sizes
        if result.size_bytes >= LEAST_BYTES
    )
    slowest = [min(results, key=lambda result: result.busbw_gb_per_s) for results in by_size.values()]
    return max(slowest, key=lambda result: result.busbw_gb_per_s, default=None)


def _bus_bandwidth(best: SizeResult, expected: float | None, expected_from: str) -> Evidence:
    return Evidence(
        check="allreduce",
        text=f"bus bandwidth at {best.size_bytes >> 20} MiB, slowest rank",
        value=round(best.busbw_gb_per_s, 3),
        unit="GB/s",
        expected=expected,
        expected_from=expected_from,
    )


_SOCKET = re.compile(r" via NET/Socket/")


@rule("DD435", "sockets-used-beside-rdma", Consequence.SLOWER, RdmaFact)
def sockets_used_beside_rdma(recording: Recording) -> Iterator[Draft]:
    """NCCL uses TCP between nodes, although both ends have usable RDMA ports.

    Finds: Reports ranks of different nodes that NCCL's log connects by NET/Socket, if each of the nodes has an active
        port that NCCL_IB_HCA allows, a device file that can be opened, and libibverbs. Not reported if a setting
        selected TCP, or if one of these is missing, which other rules report.
    Why: TCP reaches a fraction of the adapter's rate and uses CPU time.
    Remedy: NCCL's log about NET/IB contains the reason. Make it log more.
    See: NCCL src/transport/net_ib/init.cc, ncclIbInitDevices: which devices it takes, and why none
        NCCL user guide, environment variables NCCL_NET and NCCL_IB_DISABLE
    """
    rdma, groups = rdma_of(recording), dict[str, list[Crossing]]()
    for node in nodes_whose_log_has(recording, _SOCKET):
        log = log_of(recording, node)
        reason = "NCCL's log does not show why it skipped them"
        if log.no_verbs_library or log.no_ib_device:
            says = "that it could not open libibverbs.so" if log.no_verbs_library else '"NET/IB : No device found"'
            reason = f"NCCL's log shows {says}"
        chosen_tcp = log.settings.get("NCCL_IB_DISABLE", "0") != "0" or "NCCL_NET" in log.settings
        for crossing in crossings(recording, node):
            network_name = crossing.transport.network
            ends = [end for end in (rdma.get(node), rdma.get(crossing.other)) if end is not None]
            usable = [end for end in ends if end.chosen() and end.unused_by is None and end.verbs_library is not None]
            if network_name and network_name[0] == "Socket" and len(usable) == 2 and not chosen_tcp:
                groups.setdefault(reason, []).append(crossing)
    for reason, group in groups.items():
        nodes = list(dict.fromkeys(crossing.node for crossing in group))
        ports = rdma[nodes[0]].chosen()
        yield likely(
            (node_culprit(recording, node) for node in nodes),
            f"NCCL uses TCP (NET/Socket) on {hosts(recording, nodes)}, although RDMA ports are active",
            (
                Evidence(
                    check="rdma", text=f"active on {host(recording, nodes[0])}: {_names(ports)}{_printed_rates(ports)}"
                ),
                *wording.crossings_seen(recording, group),
            ),
            wording.SHOW_NETWORK,
            detail=f"No recorded setting disables RDMA. {reason}.",
            severity=severity_of_tcp(recording, nodes[0]),
        )


@rule("DD436", "setting-forbids-rdma", Consequence.SLOWER, RdmaFact)
def setting_forbids_rdma(recording: Recording) -> Iterator[Draft]:
    """A setting sends traffic between nodes over TCP, although InfiniBand is available.

    Finds: Reports NCCL_IB_DISABLE=1 or NCCL_NET=Socket in a run with NCCL on several nodes that have active InfiniBand
        ports. Severity is error if other nodes will use theirs, because the two cannot connect. It is info if all ports
        are RoCE, which is often left unused on purpose.
    Why: TCP reaches a fraction of the adapter's rate. The setting is a common test for a network fault, and is then
        forgotten in scripts.
    Remedy: Unset it and measure again.
    See: NCCL user guide, environment variables NCCL_IB_DISABLE and NCCL_NET
    """
    if not forbidden_ways.may_use_rdma(recording):
        return
    facts = recording.facts(RdmaFact)
    mixed = forbidden_ways.rdma_in_use(facts)
    for (setting, roce), group in by_cause(facts, forbidden_ways.forbidding_rdma).items():
        ports, (name, _, value) = group[0].fact.candidates(), setting.partition("=")
        yield likely(
            (Culprit(kind="setting", name=name), *node_culprits(recording, group)),
            f"{setting} disables the RDMA ports of {node_names(recording, group)}",
            (
                Evidence(check="rdma", text=f"active: {_names(ports)}{_printed_rates(ports)}"),
                *_file_origins(recording, name, {node.node for node in group}),
            ),
            wording.unset_setting(name, value, "NCCL then uses RDMA between nodes"),
            detail="Ranks on TCP cannot connect to ranks of the other nodes, which use RDMA."
            if mixed
            else "Traffic between the nodes uses TCP." + _price(recording, group[0]),
            severity=Severity.ERROR if mixed else Severity.INFO if roce else severity_of_tcp(recording, group[0].node),
            reproduced_by=between_nodes(recording),
        )


def _file_origins(recording: Recording, name: str, nodes: Container[int]) -> Iterator[Evidence]:
    for node in recording.facts(NcclFact):
        place = set_by_files(files_read(recording, node)).get(name)
        if place is not None and node.node in nodes and name not in node.fact.overruled:
            text = f"{host(recording, node.node)}: {place[1]} sets {name}, not the environment"
            yield Evidence(check="nccl", text=text)


def _price(recording: Recording, node: FactAt[RdmaFact]) -> str:
    """Compare the rate of one port with the rate of the interface that NCCL uses instead."""
    fast = max((port.rate_gbit_per_s or 0.0 for _, port in node.fact.candidates()), default=0.0)
    return wording.price(fast / 8 or None, network(interface_mbps(recording, node.node)))


def _names(ports: Sequence[tuple[Hca, Port]]) -> str:
    return name_list([f"{hca.name} port {port.number}" for hca, port in ports])


def _printed_rates(ports: Sequence[tuple[Hca, Port]]) -> str:
    rates = dict.fromkeys(port.rate for _, port in ports if port.rate)
    return f" ({', '.join(rates)})" if rates else ""


@rule("DD447", "one-socket-on-a-fast-network", Consequence.COST, InterfacesFact, AllReduceFact)
def one_socket_on_a_fast_network(recording: Recording) -> Iterator[Draft]:
    """NCCL uses one TCP connection between nodes, although the interface is much faster.

    Finds: Reports nodes without RDMA that NCCL's log connects by NET/Socket without additional threads and sockets,
        over an interface of 25 Gbit/s or more, if the all-reduce of 64 MiB and more stays below half of its rate. Not
        reported if NCCL_SOCKET_NTHREADS or NCCL_NSOCKS_PERTHREAD is set, or on AWS and Google Cloud, where NCCL uses
        several by default.
    Why: One core limits the rate of one connection.
    Remedy: Measure with NCCL_SOCKET_NTHREADS=4 and NCCL_NSOCKS_PERTHREAD=4, and keep whichever is faster.
    See: NCCL src/transport/net_socket.cc, ncclNetSocketGetNsockNthread: 2 x 8 on AWS, 4 x 1 on Google Cloud, else one
        NCCL user guide, NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD: 4 for generic networks of 100 Gbit/s
    """
    best = best_of_large(recording)
    if not recording.several_nodes or best is None:
        return
    slow = {
        node: rate for node in nodes_whose_log_has(recording, _SOCKET) if (rate := _interface_rate(recording, node))
    }
    nodes = [node for node, rate in slow.items() if best.busbw_gb_per_s < SOCKETS_SHARE * rate]
    if not nodes or len(nodes) < len(slow):
        return
    least = min(slow.values())
    (threads, sockets), why = SOCKETS, "one core limits one connection"
    yield possible(
        NOBODY,
        f"NCCL uses a single TCP connection on {hosts(recording, nodes)}: all-reduce reaches"
        f" {best.busbw_gb_per_s:.3g} of {least:.3g} GB/s",
        (
            _bus_bandwidth(best, least, "speed of NCCL's interface"),
            Evidence(text="NCCL's log: NET/Socket, without further threads and sockets"),
            *cluster_evidence(recording, nodes[0]),
        ),
        nccl.by_setting(
            "Measure the job with more connections and with the current number on the same"
            " nodes, and keep the faster one",
            Setting(name="NCCL_SOCKET_NTHREADS", value=str(threads), why=why),
            Setting(name="NCCL_NSOCKS_PERTHREAD", value=str(sockets), why=why),
            cost=f"{threads} threads per connection; less CPU time for ranks and data loaders",
        ),
        detail="One connection is as fast as one CPU core. More threads and sockets may be faster; nothing was tested.",
        reproduced_by=Reproducer(kind="all_reduce", size_bytes=LEAST_BYTES),
    )


def _interface_rate(recording: Recording, node: int) -> float | None:
    """Return GB/s of the interface of NCCL's single connection; None if slow, unknown or several connections."""
    log, rdma = log_of(recording, node), rdma_of(recording).get(node)
    settings = next((place.node.settings for place in places(recording) if place.seen.node == node), log.settings)
    several = log.sockets is not None or {"NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"} & set(settings)
    plain = any(
        crossing.transport.network and crossing.transport.network[0] == "Socket"
        for crossing in crossings(recording, node)
    )
    if several or not plain or (rdma is not None and rdma.chosen()):
        return None
    speed = interface_mbps(recording, node)
    return network(speed) if speed is not None and speed >= FAST_ETHERNET_MBPS else None
