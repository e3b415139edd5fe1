"""DD570, DD575: RoCE interfaces with smaller packets than their peers, and nodes with other rails."""

from collections.abc import Iterator

from ddp_doctor.checks.node.rdma.nodes import (
    UNCONFIGURED,
    identity,
    is_of_a_card,
    odd_by_rate,
    odd_by_state,
    odd_ones,
    users,
)
from ddp_doctor.checks.node.rdma.wording import Hit, port_draft, same_mtu
from ddp_doctor.facts.node.rdma import NetDevice, RdmaFact
from ddp_doctor.knowledge.network.rdma import verbs_mtu
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.differences import odd_culprits, split, told
from ddp_doctor.wording.findings import likely

_COMPARE = remedy(
    "Compare the nodes' devices, and give the job nodes of one kind, or one NCCL_IB_HCA for all",
    "ls -l /sys/class/infiniband",
    "ibdev2netdev",
    scope="cluster",
    cost="another choice of nodes",
    undo=NOTHING_TO_UNDO,
    untried="it takes other nodes",
)


@rule("DD570", "roce-mtu-smaller-than-peers", Severity.WARNING, RdmaFact)
def mtu_smaller(recording: Recording) -> Iterator[Draft]:
    """A RoCE port that sends smaller packets than its peers.

    What it finds
        For NCCL on several nodes: the interface over an active RoCE port has an MTU that leaves RDMA smaller
        packets (1024 bytes of 1500, 4096 of 4200 and more) than three quarters of its peers have.

    Why it matters
        Both ends of a connection take the smaller size: four times as many packets, and all links that meet
        this port are as slow as it is. Where the switch has the small MTU, large packets vanish.

    Remedy
        The peers' MTU on the interface, its bond and the switch port.

    References
        include/rdma/ib_addr.h of the kernel, iboe_get_mtu
        NCCL src/transport/net_ib/connect.cc
    """
    mtus: dict[tuple[int, str, int], NetDevice] = {}
    hits: list[Hit] = []
    for seen in users(recording):
        for hca, port in seen.fact.chosen():
            netdev = seen.fact.netdev(port) if port.is_roce and is_of_a_card(hca) else None
            if netdev is not None and netdev.mtu_bytes is not None:
                hits.append((seen.node, hca, port))
                mtus[identity(hits[-1])] = netdev
    odd = odd_ones(hits, lambda hit: verbs_mtu(mtus[identity(hit)].mtu_bytes or 0))
    if not odd:
        return
    usual = {identity(one.hit): one for one in odd}
    good = [mtus[identity(hit)].mtu_bytes or 0 for hit in hits if identity(hit) not in usual]

    def sight(hit: Hit) -> str:
        netdev, one = mtus[identity(hit)], usual[identity(hit)]
        size = verbs_mtu(netdev.mtu_bytes or 0)
        return (
            f"{netdev.name} has MTU {netdev.mtu_bytes}, so RDMA packets of {size} bytes;"
            f" {one.peers} like it have {one.usual:g}"
        )

    yield port_draft(
        recording,
        [one.hit for one in odd],
        "smaller packets than its peers" if len(odd) == 1 else "smaller packets than their peers",
        sight,
        same_mtu(max(good, default=9000), [mtus[identity(one.hit)].name for one in odd]),
        detail="Both ends of a connection take the smaller size, so every peer of this port is slowed down.",
        severity=Severity.WARNING,
    )


@rule("DD575", "rdma-rails-differ-between-nodes", Severity.WARNING, RdmaFact)
def rails_differ(recording: Recording) -> Iterator[Draft]:
    """Nodes whose RDMA ports differ in number, kind or rate.

    What it finds
        For NCCL on several nodes that all have RDMA: other numbers of ports that NCCL takes, other link layers or
        other rates. Ports that are down, slow or closed to the job are findings of their own, and nodes
        with such ports are not compared.

    Why it matters
        NCCL builds its rings from what each node has, and all go at the pace of the poorest. An InfiniBand
        port cannot connect to an Ethernet one at all.

    Remedy
        Nodes of one kind; or NCCL_IB_HCA with what all have.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    told_already = {one.hit[0] for one in (*odd_by_state(recording), *odd_by_rate(recording))}
    compared = {
        seen.node: _rails(seen.fact)
        for seen in users(recording)
        if seen.node not in told_already and _uses_all_it_has(seen.fact)
    }
    apart = split({node: (rails, _in_words(rails)) for node, rails in compared.items()})
    if apart is None:
        return
    layers = {frozenset(layer for layer, _ in rails) for rails in compared.values()}
    strangers = any(not one & other for one in layers for other in layers)
    yield likely(
        odd_culprits(recording, apart),
        f"The nodes have different RDMA ports: {told(recording, apart)}",
        Evidence(text=told(recording, apart)),
        _COMPARE,
        detail="InfiniBand ports cannot connect to Ethernet ones."
        if strangers
        else "NCCL's rings go at the pace of the node with the least.",
        severity=Severity.ERROR if strangers else Severity.WARNING,
    )


def _uses_all_it_has(fact: RdmaFact) -> bool:
    """Whether nothing keeps a port from NCCL that is told elsewhere."""
    mine = [(hca, port) for hca, port in fact.ports() if is_of_a_card(hca)]
    waiting = any(port.state in UNCONFIGURED for _, port in mine)
    return bool(fact.chosen()) and not waiting and not any(hca.device_problem for hca, _ in mine)


def _rails(fact: RdmaFact) -> tuple[tuple[str, float], ...]:
    return tuple(sorted((port.link_layer or "", port.rate_gbit_per_s or 0.0) for _, port in fact.chosen()))


def _in_words(rails: tuple[tuple[str, float], ...]) -> str:
    kinds = dict.fromkeys(rails)
    return " + ".join(f"{rails.count(kind)} x {kind[0]} at {kind[1]:g} Gb/s" for kind in kinds)
