"""DD447: one TCP connection between two nodes, where the interface carries several times as much."""

import re
from collections.abc import Iterator

from ddp_doctor.checks.node.topology.clusters import evidence as cluster_evidence
from ddp_doctor.checks.node.topology.slowness import best_of_large
from ddp_doctor.checks.node.topology.transport_wording import more_sockets
from ddp_doctor.facts.collectives.allreduce import AllReduceFact
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network.path_quality import FAST_ETHERNET_MBPS, SOCKETS, SOCKETS_SHARE
from ddp_doctor.knowledge.topology.link_rates import LEAST_BYTES, network
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.interfaces import chosen
from ddp_doctor.views.links_between_nodes import crossings, nodes_that_say, rdma_of
from ddp_doctor.views.transports import log_of, places
from ddp_doctor.wording.findings import NOBODY, possible
from ddp_doctor.wording.nodes import host, in_words

_SOCKET = re.compile(r" via NET/Socket/")


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
        f"NCCL sends over one TCP connection from {in_words([host(recording, node) for node in nodes])}:"
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
