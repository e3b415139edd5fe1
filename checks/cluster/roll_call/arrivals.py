"""DD515, DD516, DD518: nodes that checked in but do not match, and nodes that did not check in."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddp_doctor.checks.cluster.roll_call import wording
from ddp_doctor.checks.cluster.roll_call.endpoint import facts_with, head, obstacle_of
from ddp_doctor.facts.cluster import ClosedPort, RollCallFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence
from ddp_doctor.model.finding import Culprit, Draft, Evidence, MissingNode, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import finding, likely, possible, proved
from ddp_doctor.wording.nodes import name_list


@rule("DD515", "two-nodes-claim-one-node-rank", Consequence.FAILS, RollCallFact)
def two_nodes_claim_one_node_rank(recording: Recording) -> Iterator[Draft]:
    """Two hosts have the same node rank, or rank 0 is not on the endpoint's host.

    Finds: Reports a --node-rank that two of the nodes that checked in claim, or node rank 0 on a host other than the
        endpoint's.
    Why: torchrun prints no error: both nodes wait forever, or the second replaces the first.
    Remedy: Give each host a different node rank, starting at 0 on the head node, or omit --node-rank on all of them.
    See: torch.distributed.run, --node-rank
    """
    for fact in facts_with(recording, "duplicate"):
        claims = grouped((node.claimed_rank, node.hostname) for node in fact.present if node.claimed_rank is not None)
        for rank, hosts in claims.items():
            if len(hosts) > 1:
                yield _duplicate(recording, fact, rank, hosts)
    for fact in facts_with(recording, "misplaced"):
        addresses = ", ".join(fact.endpoint_addresses) or "unknown here"
        yield proved(
            (_claim(fact.hostname, 0),),
            f"{fact.hostname} has node rank 0, but the endpoint {wording.endpoint(fact)} is another host",
            Evidence(
                text=f"{fact.endpoint_host} is {addresses}, not an address of {fact.hostname}",
                expected_from="node rank 0 runs on the endpoint's host",
            ),
            wording.start_again(f"Set node rank 0 on {fact.endpoint_host}, or use {fact.hostname} as the endpoint"),
            detail="The node with rank 0 hosts the rendezvous, so it must be the endpoint's host.",
        )


def _claim(hostname: str, rank: int) -> Culprit:
    return Culprit(kind="setting", node=hostname, node_rank=rank, name="--node-rank")


def _duplicate(recording: Recording, fact: RollCallFact, rank: int, hosts: list[str]) -> Draft:
    distinct = list(dict.fromkeys(hosts))
    free = (number for number in range(fact.nnodes) if number not in {node.claimed_rank for node in fact.present})
    who = name_list(distinct) if len(distinct) > 1 else f"{len(hosts)} starts on {distinct[0]}"
    return proved(
        (_claim(host, rank) for host in distinct),
        f"{who} have the same node rank {rank}",
        wording.who_came(fact.present),
        wording.start_again(
            (
                f"Set a different --node-rank on each of the {fact.nnodes} hosts, 0 to"
                f" {fact.nnodes - 1}, or omit it on all"
            )
            if len(distinct) > 1
            else f"Start the command once on {distinct[0]}",
            *(
                f"{wording.command_for(recording, fact, node_rank)}   # on {host}"
                for node_rank, host in zip(free, distinct[1:], strict=False)
            ),
        ),
        detail=f"They joined {wording.endpoint(fact)} with the same --node-rank, with which torchrun hangs.",
    )


@rule("DD518", "nodes-disagree-on-number-of-nodes", Consequence.FAILS, RollCallFact)
def nodes_disagree_on_number_of_nodes(recording: Recording) -> Iterator[Draft]:
    """The nodes were started with different --nnodes, or more nodes started than requested.

    Finds: Reports nodes that checked in with a different --nnodes than the rest, and a node that arrived after all
        expected nodes. If no number has a majority, no node is named.
    Why: Each node waits for a different number of nodes: torchrun hangs, or starts a world without some of them.
    Remedy: Use the same --nnodes on all nodes, and start that many nodes.
    See: torch.distributed.run, --nnodes
    """
    for fact in facts_with(recording, "disagree"):
        ranks = {node.hostname: node.claimed_rank for node in reversed(fact.present)}
        hosts_by_number = grouped((node.nnodes, node.hostname) for node in fact.present)
        most = max(map(len, hosts_by_number.values()), default=0)
        usual = [number for number, hosts in hosts_by_number.items() if len(hosts) == most]
        odd_numbers = [number for number in hosts_by_number if len(usual) == 1 and number != usual[0]]
        each = "; ".join(f"{number} on {name_list(hosts)}" for number, hosts in sorted(hosts_by_number.items()))
        yield proved(
            tuple(
                Culprit(kind="setting", node=host, node_rank=ranks[host], name="--nnodes")
                for number in odd_numbers
                for host in hosts_by_number[number]
            )
            or (Culprit(kind="setting", name="--nnodes"),),
            f"--nnodes differs between nodes: {each}",
            Evidence(text=f"--nnodes by host: {each}", expected_from="the same on all nodes"),
            wording.start_again("Set the same --nnodes on all nodes", wording.command_for(recording, fact)),
            detail="Each node waits for its own number of nodes, so the job does not start on all nodes.",
        )
    for fact in facts_with(recording, "too_many"):
        yield proved(
            (Culprit(kind="setting", node=fact.hostname, name="--nnodes"),),
            f"{fact.hostname} is one node too many: all {fact.nnodes} nodes had checked in at {wording.endpoint(fact)}",
            Evidence(
                text=f"{fact.hostname} checked in after the last node",
                expected=fact.nnodes,
                unit="nodes",
                expected_from="--nnodes",
            ),
            wording.start_again("Start exactly --nnodes nodes, or raise --nnodes on all of them"),
            detail="Another host took its place, or the command was started twice.",
        )


@dataclass(frozen=True)
class _Missing:
    """The nodes that did not check in; ``named`` if the title can name them."""

    nodes: tuple[MissingNode, ...] = ()
    named: bool = False

    @property
    def names(self) -> list[str]:
        """The nodes for a sentence: names, or node ranks if the name is unknown."""
        return [node.node or f"node rank {node.node_rank}" for node in self.nodes]


@rule("DD516", "node-missing-at-roll-call", Consequence.FAILS, RollCallFact)
def node_missing_at_roll_call(recording: Recording) -> Iterator[Draft]:
    """Not all nodes checked in before the timeout.

    Finds: On the head node, reports which nodes are missing, by name if a scheduler, --hosts or a hostfile lists them,
        and whether a node sent data that this release cannot read. A missing node is not necessarily at fault: it was
        not started, or cannot reach the endpoint's port. Nodes that ssh or srun could not start are named as the cause,
        with the reason. The head node is named if no node arrived and its own packet filter closes the port to all
        others (nft, iptables; if ddp-doctor runs as root). On another node, reports a head node that never completed
        the check-in.
    Why: torchrun waits ten minutes without showing how many nodes or which ones are missing.
    Remedy: Start the command on the missing hosts, within --join-timeout of the first. If srun, ssh, mpirun or an
        operator starts it, check why it did not start on those hosts. If it runs on them, open the endpoint's port. Set
        --nnodes to the actual number of nodes.
    See: torch.distributed.run, --rdzv-conf join_timeout
    """
    # Nodes whose own reading shows the obstacle, in a run that one command started.
    speakers = {
        node.node
        for node in recording.facts(RollCallFact)
        if node.fact.role == "follower" and obstacle_of(recording, node.fact) is not None
    }
    for fact in facts_with(recording, "missing"):
        if fact.role == "follower":
            yield _never_closed(fact)
        elif fact.closed_by:
            yield _closed(recording, fact, fact.closed_by)
        elif len(speakers) == fact.nnodes - len(fact.present):
            continue  # the rule about each node's obstacle reports them
        elif 0 < fact.nnodes - len(fact.present) == len(fact.not_started):
            yield _not_startable(recording, fact)
        elif any(fact.unreadable):
            yield _not_understood(fact)
        else:
            yield _never_came(recording, fact)


def _never_closed(fact: RollCallFact) -> Draft:
    head = fact.endpoint_host or "the head"
    me = wording.reader(fact)
    return likely(
        (me.model_copy(update={"kind": "pair", "peer_node": head}),),
        f"Head node {head} stopped responding before all nodes had joined, while {me.node} was connected",
        Evidence(
            text=f"on {me.node}, {fact.error or 'the head node stopped responding'}; waited for it",
            value=round(fact.waited_s, 1),
            unit="s",
            expected_from="the head node sends several updates per second",
        ),
        wording.advice(
            f"Check on {head} whether the command still runs, then start it again on all nodes",
            f"ss -ltnp 'sport = :{fact.endpoint_port}'   # on {head}",
            untried=wording.ANOTHER_START,
        ),
        detail="ddp-doctor exited or stalled on the head node, or the path to it broke. The"
        " other nodes are not at fault.",
    )


def _closed(recording: Recording, fact: RollCallFact, closed: ClosedPort) -> Draft:
    """Return the finding that the head itself blocked the others; it is unknown whether they tried."""
    drops = "drops" if closed.verdict == "drop" else "rejects"
    listing = f"nft list chain {closed.chain}" if closed.command == "nft" else "iptables-save"
    return proved(
        (head(fact),),
        f"Firewall of {fact.hostname} {drops} all connections from other hosts to TCP port {fact.endpoint_port}",
        (
            Evidence(
                text=f"{closed.command} on {fact.hostname}: every new connection from another"
                f" host to TCP port {fact.endpoint_port} ends in {closed.verdict} in chain"
                f" {closed.chain}",
                expected_from="the endpoint's port is open to the other nodes",
            ),
            wording.who_came(fact.present),
        ),
        wording.open_port(fact, "", f"sudo {listing}   # on {fact.hostname}"),
        detail="No other node can reach it, so the missing nodes are not at fault.",
        missing=_who_is_missing(recording, fact).nodes,
    )


def _never_came(recording: Recording, fact: RollCallFact) -> Draft:
    gone = _who_is_missing(recording, fact)
    here = name_list([node.hostname for node in fact.present]) or fact.hostname
    came = f"{len(fact.present)} of {fact.nnodes} nodes checked in within {wording.time_given(fact)}"
    others = "the other was" if fact.nnodes - len(fact.present) == 1 else "the others were"
    why = f"not started or cannot reach {wording.endpoint(fact)}"
    title = f"Only {came} ({here}); {others} {why}"
    if gone.named:
        title = f"{name_list(gone.names)} did not check in ({why}): {came}"
    reason = f" ({fact.not_started[0].reason})" if len(fact.not_started) == 1 else ""
    return finding(
        _nodes_kept_from_starting(fact, gone),
        f"{title}{reason}",
        (wording.who_came(fact.present), *_not_started_evidence(fact), *_unreadable_evidence(fact)),
        _start_there(recording, fact, gone),
        confidence=Confidence.PROVED if gone.named else Confidence.LIKELY,
        detail="It is unknown which of the two applies, so no node is named as faulty."
        if not fact.not_started
        else f"The command to start ddp-doctor failed on {name_list([node.hostname for node in fact.not_started])}.",
        missing=gone.nodes,
    )


def _start_there(recording: Recording, fact: RollCallFact, gone: _Missing) -> Remedy:
    """Return the fix to start the missing nodes, if necessary through the launcher that starts all nodes."""
    names = name_list(gone.names) if gone.named else "the other hosts"
    if recording.launcher in wording.LAUNCHERS:
        return wording.launch_again(recording.launcher, [node.node for node in gone.nodes if gone.named and node.node])
    commands = [wording.command_for(recording, fact)]
    if _by_hand(fact) and all(node.node_rank is not None for node in gone.nodes):
        named = list(zip(gone.nodes, gone.names, strict=True))[:4]
        commands = [f"{wording.command_for(recording, fact, node.node_rank)}   # on {name}" for node, name in named]
    return wording.start_again(
        f"Start the command on {names} within --join-timeout of the first node; if it already"
        f" runs there, read its output and allow TCP port {fact.endpoint_port} of"
        f" {fact.endpoint_host or fact.hostname}",
        *commands,
    )


def _not_understood(fact: RollCallFact) -> Draft:
    """Return the finding on nodes with unreadable messages; a client without a name may not be a node."""
    hosts = [host for host in dict.fromkeys(fact.unreadable) if host]
    return possible(
        (Culprit(kind="node", node=host) for host in hosts),
        f"{name_list(hosts)} sent unreadable messages: only {len(fact.present)} of {fact.nnodes} nodes could join",
        (wording.who_came(fact.present), *_unreadable_evidence(fact)),
        wording.start_again(
            "Install one release of ddp-doctor on all nodes",
            *(f"ddp-doctor --version   # on {host}" for host in (fact.hostname, *hosts[:3])),
            cost="one installation",
            undo="reinstall the previous release",
        ),
        detail="Another release of ddp-doctor may run there. A node that this release does"
        " not understand counts as missing, but may still run jobs.",
        missing=(MissingNode(node=host) for host in hosts),
    )


def _unreadable_evidence(fact: RollCallFact) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            text=f"{host or 'a client without a name'} sent an unreadable check-in",
            expected_from="one release on all nodes, and no other program on the endpoint's port",
        )
        for host in fact.unreadable
    )


def _not_startable(recording: Recording, fact: RollCallFact) -> Draft:
    """Return the finding that the command that starts all nodes could not start the missing ones."""
    gone = _who_is_missing(recording, fact)
    hosts = [node.hostname for node in fact.not_started]
    reasons = dict.fromkeys(node.reason for node in fact.not_started)
    return proved(
        _nodes_kept_from_starting(fact, gone),
        f"{name_list(hosts)} could not be started: {'; '.join(list(reasons)[:2])}",
        _not_started_evidence(fact),
        wording.advice(
            "Fix the cause that the reason names, so that the nodes can be started",
            *wording.looks(recording.launcher, hosts),
            scope="cluster",
            untried=wording.ANOTHER_START,
        ),
        detail=f"{len(fact.present)} of {fact.nnodes} nodes started. Nothing between the nodes was tested.",
        missing=gone.nodes,
    )


def _nodes_kept_from_starting(fact: RollCallFact, gone: _Missing) -> tuple[Culprit, ...]:
    ranks = {node.node: node.node_rank for node in gone.nodes}
    return tuple(
        Culprit(kind="node", node=node.hostname, node_rank=ranks.get(node.hostname)) for node in fact.not_started
    )


def _not_started_evidence(fact: RollCallFact) -> tuple[Evidence, ...]:
    return tuple(Evidence(text=f"{node.hostname} was not started: {node.reason}") for node in fact.not_started)


def _who_is_missing(recording: Recording, fact: RollCallFact) -> _Missing:
    """Return the missing nodes by name if the expected hosts are known; by number only if ranks are unambiguous."""
    count = fact.nnodes - len(fact.present)
    expected = recording.world.expected_hosts if recording.world else ()
    absent = [
        MissingNode(node=name, node_rank=rank)
        for rank, name in enumerate(expected)
        if not any(wording.same_host(name, node.hostname) for node in fact.present)
    ]
    unstarted = [MissingNode(node=node.hostname) for node in fact.not_started]
    for known in (absent, unstarted):  # hosts given as addresses do not match the names of the nodes that came
        if len(known) == count:
            return _Missing(tuple(known), named=True)
    if not _by_hand(fact) and len(fact.present) > 1:
        return _Missing()
    return _Missing(tuple(MissingNode(node_rank=rank) for rank in fact.missing), named=_by_hand(fact))


def _by_hand(fact: RollCallFact) -> bool:
    """Return True if all nodes that came were given a node rank; the head always has 0, so its own claim counts."""
    return fact.claimed_rank is not None and all(node.claimed_rank is not None for node in fact.present)
