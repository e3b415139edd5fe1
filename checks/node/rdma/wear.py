"""DD564, DD565: firmware that differs between equal devices, and links that go up and down."""

from collections.abc import Iterator

from ddp_doctor.checks.node.rdma.nodes import for_later_jobs, hits_of, identity, is_of_a_card, usual
from ddp_doctor.checks.node.rdma.wording import Hit, look_at_link, port_draft
from ddp_doctor.facts.node.rdma import Port, RdmaFact
from ddp_doctor.knowledge.network.rdma import DAY_S, FLAPS, FLAPS_PER_DAY
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import NOTHING_TO_UNDO, Culprit, Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import possible
from ddp_doctor.wording.nodes import host, name_list

_UPDATE = remedy(
    "Bring all devices of the model to one firmware when the nodes are serviced next",
    "sudo mlxfwmanager --query",
    scope="cluster",
    cost="an administrator's work and a reset of the devices",
    undo=NOTHING_TO_UNDO,
    untried="the doctor changes no firmware",
)


@rule("DD564", "rdma-firmware-differs", Severity.INFO, RdmaFact)
def firmware_differs(recording: Recording) -> Iterator[Draft]:
    """Devices of one model with different firmware, on one node or between nodes.

    What it finds
        Equal board ids (PSID) with different firmware versions. Information: most pairs work together.

    Why it matters
        Where one rail is slower or drops out, this is a difference to look at first.

    Remedy
        One firmware for all devices of a model.

    References
        https://docs.nvidia.com/networking/display/mftv4270/mlxfwmanager
    """
    boards: dict[str, dict[str, list[Hit]]] = {}
    for hit in hits_of(recording, lambda hca, port: is_of_a_card(hca) and port.number == 1):
        _, hca, _ = hit
        if hca.board_id and hca.firmware:
            boards.setdefault(hca.board_id, {}).setdefault(hca.firmware, []).append(hit)
    for board, versions in boards.items():
        if len(versions) > 1:
            yield _different(recording, board, versions)


def _different(recording: Recording, board: str, versions: dict[str, list[Hit]]) -> Draft:
    counts = sorted(versions.items(), key=lambda one: (-len(one[1]), one[0]))
    few = [hit for _, hits in counts[1:] for hit in hits]
    usual_one = 2 * len(counts[0][1]) > len(counts[0][1]) + len(few)
    told = [f"{version} on {len(hits)} ({_whose(recording, hits)})" for version, hits in counts]
    return possible(
        (
            Culprit(kind="nic", node=host(recording, node), node_rank=node, name=hca.name)
            for node, hca, _ in (few if usual_one else ())
        ),
        f"RDMA devices of model {board} have different firmware: {name_list([version for version, _ in counts])}",
        Evidence(text="; ".join(told[:6])),
        _UPDATE,
        detail="Most versions work together. It is the first difference to look at where a rail misbehaves.",
    )


def _whose(recording: Recording, hits: list[Hit]) -> str:
    nodes = list(dict.fromkeys(node for node, _, _ in hits))
    if len(nodes) > 1:
        return name_list([host(recording, node) for node in nodes])
    return f"{name_list([hca.name for _, hca, _ in hits])} of {host(recording, nodes[0])}"


@rule("DD565", "rdma-link-flaps", Severity.WARNING, RdmaFact)
def link_flaps(recording: Recording) -> Iterator[Draft]:
    """An RDMA link that has gone down far more often than its peers.

    What it finds
        An active port whose link went down ten times more than its peers' on the node usually did, and at
        least once a day since the node started. Information in a run of one node.

    Why it matters
        A link that goes down for a second ends NCCL's connection after its retries: the job fails with
        "Got completion … status 12", often hours into the training.

    Remedy
        The cable, the transceiver or the switch port.

    References
        https://docs.kernel.org/admin-guide/abi-stable.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-timeout
    """
    flapping = {
        identity(hit): (hit, downs, seen)
        for seen in recording.facts(RdmaFact)
        for hit, downs in _flapping(seen)
    }
    hits = [hit for hit, _, _ in flapping.values()]
    if hits:
        yield port_draft(
            recording,
            hits,
            "the link goes up and down",
            lambda hit: _told(*flapping[identity(hit)][1:]),
            look_at_link(hits, "A link that is unsteady"),
            detail="Each time NCCL's connections over it stall, and fail where it lasts longer than their retries.",
            severity=for_later_jobs(recording, Severity.WARNING),
            expected="a reboot of the node or the switch takes all links down together",
        )


def _flapping(seen: FactAt[RdmaFact]) -> list[tuple[Hit, float]]:
    fact = seen.fact
    active = [(hca, port) for hca, port in fact.ports() if port.is_active and is_of_a_card(hca)]
    counted = [((seen.node, hca, port), _downs(fact, port)) for hca, port in active]
    known = [(hit, downs) for hit, downs in counted if downs is not None]
    if fact.uptime_s is None:
        return []
    least = max(FLAPS, FLAPS_PER_DAY * fact.uptime_s / DAY_S)
    return [
        (hit, downs)
        for at, (hit, downs) in enumerate(known)
        if downs - usual(other for index, (_, other) in enumerate(known) if index != at) >= least
    ]


def _downs(fact: RdmaFact, port: Port) -> float | None:
    """How often the link went down, by its own counter or that of its interface, which counts both ways."""
    counted = port.counters.get("link_downed")
    netdev = fact.netdev(port) if port.is_roce else None
    if netdev is None or netdev.carrier_changes is None or netdev.slaves:
        return counted
    return max(counted or 0, netdev.carrier_changes // 2)


def _told(downs: float, seen: FactAt[RdmaFact]) -> str:
    days = (seen.fact.uptime_s or 0.0) / DAY_S
    return f"went down {downs:g} times; the node has been up for {days:.1f} days"
