"""The verdict of each node of a run."""

from collections.abc import Mapping, Sequence

from ddp_doctor.model.choices import Severity, Status, Verdict
from ddp_doctor.model.finding import Culprit, Finding
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.report import NodeVerdict
from ddp_doctor.views.node_traits import node_traits


def node_verdicts(
    recording: Recording, findings: Sequence[Finding], bar: Severity, verdict: Verdict
) -> tuple[NodeVerdict, ...]:
    """One for each node that is known by name or number; ``verdict`` is that of the run.

    Sick is a node that a finding at ``bar`` or above names, or one of its ranks, GPUs or links. Unsure is one that
    may be to blame, or of which too little was seen. The run's own verdict is that of its only node.
    """
    world = recording.world
    if world is None:
        return ()
    absent = [node for finding in findings for node in finding.missing]
    ranks = sorted(
        {node.node_rank for node in world.nodes}
        | {*range(len(world.expected_hosts))}
        | {node.node_rank for node in absent if node.node_rank is not None}
    )
    by_host = {host: rank for rank, host in enumerate(world.expected_hosts)}
    by_host |= {node.hostname: node.node_rank for node in world.nodes}
    by_node: dict[int, list[str]] = {rank: [] for rank in ranks}
    sick, suspected, anybody = set[int](), set[int](), False
    for finding in findings:
        nodes = [_nodes_of(culprit, world, by_host) for culprit in finding.culprits]
        fingerprint = finding.fingerprint  # sorts all culprits
        for rank in set().union(*nodes):
            by_node.setdefault(rank, []).append(fingerprint)
        if finding.severity.at_least(bar):
            sick |= set().union(*(each for each in nodes if len(each) == 1))
            suspected |= set().union(*nodes)
            anybody |= not finding.culprits
    seen = {reading.node for reading in recording.readings if reading.status is Status.COLLECTED}
    bad = (Status.FAILED, Status.TIMED_OUT)
    stuck = {reading.node for reading in recording.readings if reading.status in bad}

    def verdict_of(rank: int) -> Verdict:
        if len(ranks) == 1:
            return verdict
        if rank in sick:
            return Verdict.SICK
        unsure = verdict is Verdict.UNSURE and not stuck  # of the run as a whole
        if unsure or anybody or rank in suspected or rank in stuck or rank not in seen:
            return Verdict.UNSURE
        return Verdict.HEALTHY

    traits = node_traits(recording)
    return tuple(
        NodeVerdict(
            node_rank=rank,
            hostname=world.hostname(rank),
            verdict=verdict_of(rank),
            findings=tuple(dict.fromkeys(by_node[rank])),
            traits=traits.get(rank, {}),
        )
        for rank in ranks
    )


def _nodes_of(culprit: Culprit, world: World, by_host: Mapping[str, int]) -> set[int]:
    """One node; two for a pair of nodes; none for a setting or file of the whole job."""
    nodes: set[int] = set()
    ends = ((culprit.node_rank, culprit.node, culprit.rank), (None, culprit.peer_node, culprit.peer_rank))
    for node_rank, host, rank in ends:
        if node_rank is not None:
            nodes.add(node_rank)
        elif host is not None:
            nodes |= {by_host[host]} if host in by_host else set()
        elif rank is not None:
            nodes.add(world.node_of(rank))
    return nodes
