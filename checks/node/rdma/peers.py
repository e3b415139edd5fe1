"""DD564, DD565, DD570, DD575: firmware, packet sizes and rails that differ, and links that go up and down."""

from collections.abc import Iterator

from ddp_doctor.checks.node.rdma.nodes import (
    UNCONFIGURED,
    for_later_jobs,
    hits_of,
    identity,
    is_of_a_card,
    odd_by_rate,
    odd_by_state,
    odd_ones,
    users,
    usual,
)
from ddp_doctor.checks.node.rdma.wording import Hit, look_at_link, port_draft, same_mtu
from ddp_doctor.facts.node.rdma import NetDevice, Port, RdmaFact
from ddp_doctor.knowledge.network.rdma import DAY_S, FLAPS, FLAPS_PER_DAY, verbs_mtu
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.differences import odd_culprits, split, values_with_nodes
from ddp_doctor.wording.findings import likely, possible
from ddp_doctor.wording.nodes import host, hosts, name_list, node_culprit


@rule("DD570", "roce-mtu-smaller-than-peers", Severity.WARNING, RdmaFact)
def roce_mtu_smaller_than_peers(recording: Recording) -> Iterator[Draft]:
    """A RoCE port that sends smaller packets than its peers.

    Finds: For NCCL on several nodes: the interface over an active RoCE port has an MTU that leaves RDMA smaller packets
        (1024 bytes of 1500, 4096 of 4200 and more) than three quarters of its peers have.
    Why: Both ends of a connection take the smaller size: four times as many packets, and all links that meet this port
        are as slow as it is. Where the switch has the small MTU, large packets vanish.
    Remedy: The peers' MTU on the interface, its bond and the switch port.
    See: include/rdma/ib_addr.h of the kernel, iboe_get_mtu
        NCCL src/transport/net_ib/connect.cc
    """
    mtus: dict[tuple[int, str, int], NetDevice] = {}
    hits: list[Hit] = []
    for node in users(recording):
        for hca, port in node.fact.chosen():
            netdev = node.fact.netdev(port) if port.is_roce and is_of_a_card(hca) else None
            if netdev is not None and netdev.mtu_bytes is not None:
                hits.append((node.node, hca, port))
                mtus[identity(hits[-1])] = netdev
    odd = odd_ones(hits, lambda port_at: verbs_mtu(mtus[identity(port_at)].mtu_bytes or 0))
    if not odd:
        return
    small = {identity(port.hit): mtus[identity(port.hit)] for port in odd}
    good = [netdev.mtu_bytes or 0 for port, netdev in mtus.items() if port not in small]
    described = []
    for few, netdev in zip(odd, small.values(), strict=True):
        packets = f"MTU {netdev.mtu_bytes}, so RDMA packets of {verbs_mtu(netdev.mtu_bytes or 0)} bytes"
        described.append((few.hit, f"{netdev.name} has {packets}; {few.peers} like it have {few.usual:g}"))
    yield port_draft(
        recording,
        described,
        f"smaller packets (MTU) than {'its' if len(odd) == 1 else 'their'} peers",
        same_mtu(max(good, default=9000), [netdev.name for netdev in small.values()]),
        detail="Both ends of a connection use the smaller size, so every peer of this port is slowed down.",
    )


@rule("DD575", "rdma-rails-differ-between-nodes", Severity.WARNING, RdmaFact)
def rdma_rails_differ_between_nodes(recording: Recording) -> Iterator[Draft]:
    """Nodes whose RDMA ports differ in number, kind or rate.

    Finds: For NCCL on several nodes that all have RDMA: other numbers of ports that NCCL takes, other link layers or
        other rates. Ports that are down, slow or closed to the job are findings of their own, and nodes with such ports
        are not compared.
    Why: NCCL builds its rings from what each node has, and all go at the pace of the poorest. An InfiniBand port cannot
        connect to an Ethernet one at all.
    Remedy: Nodes of one kind; or NCCL_IB_HCA with what all have.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    named_already = {odd.hit[0] for odd in (*odd_by_state(recording), *odd_by_rate(recording))}
    compared = {
        node.node: tuple(sorted((port.link_layer or "", port.rate_gbit_per_s or 0.0) for _, port in node.fact.chosen()))
        for node in users(recording)
        if node.node not in named_already and _uses_all_it_has(node.fact)
    }
    apart = split({node: (rails, _in_words(rails)) for node, rails in compared.items()})
    if apart is None:
        return
    layers = {frozenset(layer for layer, _ in rails) for rails in compared.values()}
    strangers = any(not layer & layer_elsewhere for layer in layers for layer_elsewhere in layers)
    yield likely(
        odd_culprits(recording, apart),
        f"The nodes have different RDMA ports: {values_with_nodes(recording, apart)}",
        Evidence(text=values_with_nodes(recording, apart)),
        remedy(
            "Compare the nodes' devices, and give the job nodes of one kind, or one NCCL_IB_HCA for all",
            "ls -l /sys/class/infiniband",
            "ibdev2netdev",
            scope="cluster",
            cost="another choice of nodes",
            undo=NOTHING_TO_UNDO,
            untried="it takes other nodes",
        ),
        detail="InfiniBand ports cannot connect to Ethernet ones."
        if strangers
        else "NCCL's rings go at the pace of the node with the least.",
        severity=Severity.ERROR if strangers else Severity.WARNING,
    )


def _uses_all_it_has(fact: RdmaFact) -> bool:
    """Whether nothing that another rule reports keeps a port from NCCL."""
    mine = [(hca, port) for hca, port in fact.ports() if is_of_a_card(hca)]
    waiting = any(port.state in UNCONFIGURED for _, port in mine)
    return bool(fact.chosen()) and not waiting and not any(hca.device_problem for hca, _ in mine)


def _in_words(rails: tuple[tuple[str, float], ...]) -> str:
    kinds = dict.fromkeys(rails)
    return " + ".join(f"{rails.count(kind)} x {kind[0]} at {kind[1]:g} Gb/s" for kind in kinds)


@rule("DD564", "rdma-firmware-differs", Severity.INFO, RdmaFact)
def rdma_firmware_differs(recording: Recording) -> Iterator[Draft]:
    """Devices of one model with different firmware, on one node or between nodes.

    Finds: Equal board ids (PSID) with different firmware versions. Information: most pairs work together.
    Why: Where one rail is slower or drops out, this is a difference to look at first.
    Remedy: One firmware for all devices of a model.
    See: https://docs.nvidia.com/networking/display/mftv4270/mlxfwmanager
    """
    boards: dict[str, dict[str, list[Hit]]] = {}
    for port_at in hits_of(recording, lambda hca, port: is_of_a_card(hca) and port.number == 1):
        _, hca, _ = port_at
        if hca.board_id and hca.firmware:
            boards.setdefault(hca.board_id, {}).setdefault(hca.firmware, []).append(port_at)
    for board, versions in boards.items():
        if len(versions) > 1:
            counts = sorted(versions.items(), key=lambda version: (-len(version[1]), version[0]))
            few = [port_at for _, hits in counts[1:] for port_at in hits]
            usual_one = 2 * len(counts[0][1]) > len(counts[0][1]) + len(few)
            listed = [f"{version} on {len(hits)} ({_whose(recording, hits)})" for version, hits in counts]
            names = name_list([version for version, _ in counts])
            yield possible(
                (
                    node_culprit(recording, node, kind="nic", name=hca.name)
                    for node, hca, _ in (few if usual_one else ())
                ),
                f"RDMA devices of model {board} have different firmware: {names}",
                Evidence(text="; ".join(listed[:6])),
                remedy(
                    "Bring all devices of the model to one firmware when the nodes are serviced next",
                    "sudo mlxfwmanager --query",
                    scope="cluster",
                    cost="an administrator's work and a reset of the devices",
                    undo=NOTHING_TO_UNDO,
                    untried="the doctor changes no firmware",
                ),
                detail="Most versions work together. It is the first difference to look at where a rail misbehaves.",
            )


def _whose(recording: Recording, hits: list[Hit]) -> str:
    nodes = list(dict.fromkeys(node for node, _, _ in hits))
    if len(nodes) > 1:
        return hosts(recording, nodes)
    return f"{name_list([hca.name for _, hca, _ in hits])} of {host(recording, nodes[0])}"


@rule("DD565", "rdma-link-flaps", Severity.WARNING, RdmaFact)
def rdma_link_flaps(recording: Recording) -> Iterator[Draft]:
    """An RDMA link that has gone down far more often than its peers.

    Finds: An active port whose link went down ten times more than its peers' on the node usually did, and at least once
        a day since the node started. Information in a run of one node.
    Why: A link that goes down for a second ends NCCL's connection after its retries: the job fails with "Got completion
        … status 12", often hours into the training.
    Remedy: The cable, the transceiver or the switch port.
    See: https://docs.kernel.org/admin-guide/abi-stable.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-timeout
    """
    flapping = [port_at for node in recording.facts(RdmaFact) for port_at in _flapping(node)]
    if flapping:
        yield port_draft(
            recording,
            flapping,
            "the link goes up and down",
            look_at_link(flapping, "A link that is unsteady"),
            detail="Each time NCCL's connections over it stall, and fail where it lasts longer than their retries.",
            severity=for_later_jobs(recording, Severity.WARNING),
            expected="a reboot of the node or the switch takes all links down together",
        )


def _flapping(node: FactAt[RdmaFact]) -> list[tuple[Hit, str]]:
    fact = node.fact
    active = [(hca, port) for hca, port in fact.ports() if port.is_active and is_of_a_card(hca)]
    counted = [((node.node, hca, port), _times_down(fact, port)) for hca, port in active]
    known = [(port_at, downs) for port_at, downs in counted if downs is not None]
    if fact.uptime_s is None:
        return []
    days = fact.uptime_s / DAY_S
    least = max(FLAPS, FLAPS_PER_DAY * days)
    return [
        (port_at, f"went down {downs:g} times; the node has been up for {days:.1f} days")
        for at, (port_at, downs) in enumerate(known)
        if downs - usual(downs_there for index, (_, downs_there) in enumerate(known) if index != at) >= least
    ]


def _times_down(fact: RdmaFact, port: Port) -> float | None:
    """How often the link went down, by its own counter or that of its interface, which counts both ways."""
    counted = port.counters.get("link_downed")
    netdev = fact.netdev(port) if port.is_roce else None
    if netdev is None or netdev.carrier_changes is None or netdev.slaves:
        return counted
    return max(counted or 0, netdev.carrier_changes // 2)
