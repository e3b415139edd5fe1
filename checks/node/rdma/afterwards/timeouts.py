"""DD584: sends over RDMA that nobody acknowledged, in NCCL's own words."""

import re
from collections.abc import Iterator, Sequence

from ddp_doctor.checks.node.rdma.afterwards.growth import Change, changes
from ddp_doctor.checks.node.rdma.rdma_timeouts import lowered
from ddp_doctor.checks.node.rdma.wording import LOSSLESS, SOCKETS_ON_ALL, port_name, try_path, wait_longer
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.knowledge.network.rdma import GAPS, LEAST_ERRORS, LOSSES, ROCE_GAPS, ROCE_LOSSES
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.nccl_log import settings_in
from ddp_doctor.remedies.settings import NO_TRIAL, unset
from ddp_doctor.views.nccl_complaints import Said, nodes_of, said
from ddp_doctor.views.reproducers import between, everybody
from ddp_doctor.views.transports import texts
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nccl_complaints import complaint_lines
from ddp_doctor.wording.nodes import host, name_list, node_culprit, node_pair

_PEER = re.compile(r"from peer ([0-9a-fA-F.:]{2,45})<")
_MOST_PORTS = 6


@rule(
    "DD584",
    "rdma-send-never-acknowledged",
    Severity.ERROR,
    explained_by=("DD566", "DD567", "DD568", "DD569"),
)
def never_acknowledged(recording: Recording) -> Iterator[Draft]:
    """A send over RDMA failed because its acknowledgement never came (status 12).

    What it finds
        A trial that failed although all its ranks were alive, in which NCCL says "Got completion … status=12". Silent
        where a GID entry that other nodes do not reach, or a link that went down, is an error of its own.

    Why it matters
        What was sent was lost, seven times over, within half a minute: the path carries no RDMA, or loses packets.
        The job ends, at once or after hours.

    Remedy
        Settings that make NCCL give up sooner are unset. Where packets were sent again meanwhile and no link went down,
        NCCL_IB_TIMEOUT=22 waits longer, and flow control is to be set right. Else test the path without NCCL:
        addresses, MTU and routes. NCCL_IB_DISABLE=1 tells in one trial whether RDMA is to blame.

    References
        NCCL user guide, NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT; NVIDIA/nccl issue 426
        libibverbs, enum ibv_wc_status: IBV_WC_RETRY_EXC_ERR
    """
    group = said(recording, "rdma-timeout")
    if not group:
        return
    pair = _pair(recording, group)
    where = " and ".join(host(recording, node) for node in pair) if pair else "the nodes"
    lossy = _lossy(recording)
    yield likely(
        _culprits(recording, group, pair),
        f"RDMA between {where}: what NCCL sent was never acknowledged (status 12)",
        (*complaint_lines(recording, group), *_counted(recording, lossy)),
        *_remedies(recording, group, lossy),
        detail="All ranks were alive. " + (_RESENT if lossy else _NOTHING_RESENT),
        reproduced_by=between(recording, _ends(group, pair)) if pair else everybody(recording),
    )


_RESENT = "Packets were sent again meanwhile and the links stayed up, so that packets get lost on the way."
_NOTHING_RESENT = (
    "Nothing that was counted tells why: addresses, MTU, routes and the switch are what to look at."
)


def _pair(recording: Recording, group: Sequence[Said]) -> tuple[int, int] | None:
    """The two nodes, where all that is said is about one pair; the addresses are those of the roll call."""
    world = recording.world
    if world is None or world.nnodes < 2:
        return None
    if world.nnodes == 2:
        return (0, 1)
    known = {one: node.node_rank for node in world.nodes for some in node.addresses.values() for one in some}
    pairs = set()
    for one in group:
        peer = _PEER.search(one.complaint.text)
        other = known.get(peer[1]) if peer else None
        if other is None or other == one.node:
            return None
        pairs.add((min(one.node, other), max(one.node, other)))
    return pairs.pop() if len(pairs) == 1 else None


def _ends(group: Sequence[Said], pair: tuple[int, int]) -> tuple[int, int]:
    """A rank of each node that took part in the trial, those that spoke before the others."""
    spoke = [one.rank for one in group]
    took_part = group[0].trial.evidence
    one, other = (
        min(
            (each.rank for each in took_part if each.node == node), key=lambda rank: (rank not in spoke, rank)
        )
        for node in pair
    )
    return one, other


def _culprits(
    recording: Recording, group: Sequence[Said], pair: tuple[int, int] | None
) -> tuple[Culprit, ...]:
    """The pair: one end's silence names neither of the two."""
    if pair is not None:
        return (node_pair(recording, *pair),)
    nodes = nodes_of(group)
    return (node_culprit(recording, nodes[0]),) if len(nodes) == 1 else ()


def _lossy(recording: Recording) -> list[Change]:
    """The ports that NCCL takes and on which packets came late or twice, so that the path is not quite gone."""
    found = (change for change in changes(recording) if change.is_used)
    return [one for one in found if sum(one.grown.get(name, 0) for name in _late(one)) >= LEAST_ERRORS]


def _late(change: Change) -> Sequence[str]:
    """Acknowledgements that never came are no such sign: ranks that were ended leave those behind too."""
    return (*GAPS, *ROCE_GAPS) if change.hit[2].is_roce else GAPS


def _losses(change: Change) -> Sequence[str]:
    return ROCE_LOSSES if change.hit[2].is_roce else LOSSES


def _counted(recording: Recording, lossy: Sequence[Change]) -> Iterator[Evidence]:
    for one in lossy[:_MOST_PORTS]:
        node, hca, port = one.hit
        text = f"{port_name(hca, port)} on {host(recording, node)}: {one.told(_losses(one))}"
        yield Evidence(check="rdma_after", text=text)


def _remedies(recording: Recording, group: Sequence[Said], lossy: Sequence[Change]) -> Iterator[Remedy]:
    node = group[0].node
    env = [seen.fact.variables for seen in recording.facts(EnvVars) if seen.node == node]
    settings = {**(env[0] if env else {}), **settings_in(texts(recording).get(node, ""))}
    sooner = lowered(settings)
    if sooner:
        summary = f"Take {name_list(list(sooner))} away, which make NCCL give up sooner"
        yield unset(sooner, "NCCL then waits as long as it does by itself", summary, NO_TRIAL)
    elif lossy:
        yield wait_longer()
    if any(one.hit[2].is_roce for one in lossy):
        yield LOSSLESS
    yield try_path(next((change.hit[1].name for change in changes(recording) if change.is_used), None))
    yield SOCKETS_ON_ALL.model_copy(
        update={"summary": "Rule RDMA out: let the nodes talk over TCP until the path is repaired"}
    )
