"""DD515, DD516, DD518: who came to the roll call and does not go together, and who did not come."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.checks.cluster.roll_call.endpoint import facts_with, obstacle_of
from ddp_doctor.checks.cluster.roll_call.wording import (
    ANOTHER_START,
    LAUNCHERS,
    advice,
    command_for,
    endpoint,
    launch_again,
    looks,
    reader,
    same_host,
    start_again,
    time_given,
    who_came,
)
from ddp_doctor.facts.cluster import RollCallFact
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import finding, likely, proved
from ddp_doctor.wording.nodes import name_list


@rule("DD515", "two-nodes-claim-one-node-rank", Severity.ERROR, RollCallFact)
def one_rank_twice(recording: Recording) -> Iterator[Draft]:
    """Two hosts were started with the same node rank, or rank 0 with another host than the endpoint.

    What it finds
        A --node-rank that two of those who reported in claim, or node rank 0 on a host that is not the one
        that the endpoint names.

    Why it matters
        torchrun says nothing of it: both nodes wait for ever, or the second replaces the first.

    Remedy
        Give each host its own node rank from 0 on, the head 0; or leave --node-rank out on all of them.

    References
        torch.distributed.run, --node-rank
    """
    for fact in facts_with(recording, "duplicate"):
        yield from _duplicates(recording, fact)
    for fact in facts_with(recording, "misplaced"):
        yield proved(
            (_claim(fact.hostname, 0),),
            f"{fact.hostname} was given node rank 0, but the endpoint {endpoint(fact)} is another host",
            _misplaced_evidence(fact),
            start_again(f"Give node rank 0 to {fact.endpoint_host}, or name {fact.hostname} as the endpoint"),
            detail="The node with rank 0 hosts the meeting, so it must be the host that the endpoint names.",
        )


def _misplaced_evidence(fact: RollCallFact) -> Evidence:
    addresses = ", ".join(fact.endpoint_addresses) or "unknown here"
    return Evidence(
        text=f"{fact.endpoint_host} is {addresses}, no address of {fact.hostname}",
        expected_from="node rank 0 runs on the endpoint's host",
    )


def _claim(hostname: str, rank: int) -> Culprit:
    return Culprit(kind="node", node=hostname, node_rank=rank, name="--node-rank")


def _duplicates(recording: Recording, fact: RollCallFact) -> Iterator[Draft]:
    claims: dict[int, list[str]] = defaultdict(list)
    for node in fact.present:
        if node.claimed_rank is not None:
            claims[node.claimed_rank].append(node.hostname)
    for rank, hosts in claims.items():
        if len(hosts) < 2:
            continue
        distinct = list(dict.fromkeys(hosts))
        who = name_list(distinct) if len(distinct) > 1 else f"{len(hosts)} starts on {distinct[0]}"
        yield proved(
            (_claim(host, rank) for host in distinct),
            f"{who} claim node rank {rank}: each needs its own",
            who_came(fact.present),
            start_again(
                f"Give each of the {fact.nnodes} hosts its own --node-rank, 0 to {fact.nnodes - 1}, or leave"
                " it out on all"
                if len(distinct) > 1
                else f"Start the command once on {distinct[0]}",
                *(
                    f"{command_for(recording, fact, node_rank)}   # on {host}"
                    for node_rank, host in _free_ranks(fact, distinct)
                ),
            ),
            detail=f"They reported in to {endpoint(fact)} with the same --node-rank. torchrun would hang.",
        )


def _free_ranks(fact: RollCallFact, hosts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Ranks for all claimants but the first, which keeps its own."""
    taken = {node.claimed_rank for node in fact.present}
    free = (number for number in range(fact.nnodes) if number not in taken)
    yield from zip(free, hosts[1:], strict=False)


@rule("DD518", "nodes-disagree-on-number-of-nodes", Severity.ERROR, RollCallFact)
def disagree(recording: Recording) -> Iterator[Draft]:
    """The nodes were told different numbers of nodes, or one more came than was asked for.

    What it finds
        Nodes that reported in with another --nnodes than the rest, and a node that came when all were here.
        Where no number is the usual one, no node is blamed.

    Why it matters
        Each waits for another number of nodes: torchrun hangs, or starts a world that somebody is left out of.

    Remedy
        The same --nnodes on all nodes, and as many starts.

    References
        torch.distributed.run, --nnodes
    """
    for fact in facts_with(recording, "disagree"):
        yield _different_numbers(recording, fact)
    for fact in facts_with(recording, "too_many"):
        yield proved(
            (reader(fact),),
            f"{fact.hostname} is one too many: all {fact.nnodes} nodes had reported in to {endpoint(fact)}",
            Evidence(
                text=f"{fact.hostname} reported in after the last node",
                expected=fact.nnodes,
                unit="nodes",
                expected_from="--nnodes",
            ),
            start_again("Start as many nodes as --nnodes says, or raise --nnodes on all of them"),
            detail="Another host has taken the place, or the command was started twice.",
        )


def _different_numbers(recording: Recording, fact: RollCallFact) -> Draft:
    hosts_by_number: dict[int, list[str]] = defaultdict(list)
    for node in fact.present:
        hosts_by_number[node.nnodes].append(node.hostname)
    most = max(map(len, hosts_by_number.values()), default=0)
    usual = [number for number, hosts in hosts_by_number.items() if len(hosts) == most]
    odd = [
        host
        for number, hosts in hosts_by_number.items()
        if len(usual) == 1 and number != usual[0]
        for host in hosts
    ]
    each = "; ".join(f"{name_list(hosts)}: {number}" for number, hosts in sorted(hosts_by_number.items()))
    return proved(
        tuple(
            Culprit(kind="node", node=host, node_rank=_rank_of(fact, host), name="--nnodes") for host in odd
        )
        or (Culprit(kind="setting", name="--nnodes"),),
        f"The nodes were told different numbers of nodes (--nnodes): {each}",
        Evidence(text=f"--nnodes by host: {each}", expected_from="one number on all nodes"),
        start_again("Give all nodes the same --nnodes", command_for(recording, fact)),
        detail="Each waits for its own number of nodes, so the job would not start on all of them.",
    )


def _rank_of(fact: RollCallFact, hostname: str) -> int | None:
    return next((node.claimed_rank for node in fact.present if node.hostname == hostname), None)


@dataclass(frozen=True)
class _Missing:
    """The nodes that did not come; ``named`` where the title can say which they are."""

    culprits: tuple[Culprit, ...] = ()
    named: bool = False


@rule("DD516", "node-missing-at-roll-call", Severity.ERROR, RollCallFact)
def missing(recording: Recording) -> Iterator[Draft]:
    """Not all nodes had reported in when the time for it was up.

    What it finds
        On the head: which nodes never came, by name where a scheduler, --hosts or a hostfile told them, and
        why they could not be started, where ssh or srun said so, and whether one came that sent what this
        release cannot read. On another node: a head that never closed the
        roll call.

    Why it matters
        torchrun waits ten minutes, without a word about how many or who is missing.

    Remedy
        Start the command on the missing hosts, within --join-timeout of the first. Where srun, ssh, mpirun or
        an operator starts it, see why it did not there.

    References
        torch.distributed.run, --rdzv-conf join_timeout
    """
    speakers = _who_say_why(recording)
    for fact in facts_with(recording, "missing"):
        if fact.role == "follower":
            yield _never_closed(fact)
        elif len(speakers) == fact.nnodes - len(fact.present):
            continue  # a rule about what each of them met with speaks instead
        elif 0 < fact.nnodes - len(fact.present) == len(fact.not_started):
            yield _not_startable(recording, fact)
        elif any(fact.unreadable):
            yield _not_understood(fact)
        else:
            yield _never_came(recording, fact)


def _never_closed(fact: RollCallFact) -> Draft:
    head = fact.endpoint_host or "the head"
    me = reader(fact)
    return likely(
        (me.model_copy(update={"kind": "pair", "peer_node": head}),),
        f"The head {head} never closed the roll call: {me.node} reported in and then heard no more of it",
        Evidence(
            text=f"on {me.node}, {fact.error or 'the head fell silent'}; waited for it",
            value=round(fact.waited_s, 1),
            unit="s",
            expected_from="the head tells several times a second who is here",
        ),
        advice(
            f"See on {head} what became of the command; then start it again on all nodes",
            f"ss -ltnp 'sport = :{fact.endpoint_port}'   # on {head}",
            scope="node",
            proof=ANOTHER_START,
        ),
        detail="The head's doctor has ended or stands still, or the path to it broke; no other node is blamed.",
    )


def _never_came(recording: Recording, fact: RollCallFact) -> Draft:
    gone = _who_is_missing(recording, fact)
    here = name_list([node.hostname for node in fact.present]) or fact.hostname
    came = f"{len(fact.present)} of {fact.nnodes} nodes reported in to {endpoint(fact)} within {time_given(fact)}"
    names = name_list([culprit.node or "" for culprit in gone.culprits])
    title = f"{names} never reported in: {came}" if gone.named else f"{came}: only {here} came"
    return finding(
        gone.culprits,
        f"{title}{_reason(fact)}",
        (who_came(fact.present), *_not_started_evidence(fact), *_unreadable_evidence(fact)),
        _start_there(recording, fact, gone),
        confidence=Confidence.PROVED if gone.named else Confidence.LIKELY,
        detail="It is not known whether the command was started there, or did not get this far."
        if not fact.not_started
        else "The command that was to start the doctor there failed.",
    )


def _start_there(recording: Recording, fact: RollCallFact, gone: _Missing) -> Remedy:
    """Where one command starts all nodes, nobody types anything on the others."""
    launcher = recording.world.launcher if recording.world else ""
    names = name_list([culprit.node or "" for culprit in gone.culprits]) if gone.named else "the other hosts"
    if launcher in LAUNCHERS:
        return launch_again(
            launcher, [culprit.node for culprit in gone.culprits if gone.named and culprit.node]
        )
    return start_again(
        f"Start the command on {names}, within --join-timeout of the first; if it runs there already, read what"
        " it says",
        *_commands(recording, fact, gone),
    )


def _not_understood(fact: RollCallFact) -> Draft:
    """Nodes that came and could not be taken in; a client that gives no name may be no node."""
    hosts = [host for host in dict.fromkeys(fact.unreadable) if host]
    return likely(
        (Culprit(kind="node", node=host) for host in hosts),
        f"{name_list(hosts)} sent what cannot be read (another release of ddp-doctor?): {len(fact.present)} of"
        f" {fact.nnodes} nodes could be taken in",
        (who_came(fact.present), *_unreadable_evidence(fact)),
        start_again(
            "Install one release of ddp-doctor on all nodes",
            *(f"ddp-doctor --version   # on {host}" for host in (fact.hostname, *hosts[:3])),
            cost="an installation",
            undo="install the former release there again",
        ),
        detail="A node whose words this release does not understand counts as absent. Nothing else is known of it.",
    )


def _unreadable_evidence(fact: RollCallFact) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            text=f"{host or 'a client without a name'} reported in with what cannot be read",
            expected_from="all nodes run one release, and nobody else speaks on the endpoint's port",
        )
        for host in fact.unreadable
    )


def _not_startable(recording: Recording, fact: RollCallFact) -> Draft:
    """All who are missing could not be started by the command that starts all of them."""
    gone = _who_is_missing(recording, fact)
    hosts = [node.hostname for node in fact.not_started]
    launcher = recording.world.launcher if recording.world else ""
    reasons = dict.fromkeys(node.reason for node in fact.not_started)
    return proved(
        gone.culprits,
        f"{name_list(hosts)} could not be started: {'; '.join(list(reasons)[:2])}",
        _not_started_evidence(fact),
        advice(
            "Mend what the reason names: until then no command reaches all of these hosts",
            *looks(launcher, hosts),
            scope="cluster",
            cost="none: the commands only look",
            proof=ANOTHER_START,
        ),
        detail=f"{len(fact.present)} of {fact.nnodes} nodes could. Nothing is known of how nodes work together.",
    )


def _reason(fact: RollCallFact) -> str:
    """Why one node could not be started, in the title; of several nodes the evidence says."""
    return f" ({fact.not_started[0].reason})" if len(fact.not_started) == 1 else ""


def _commands(recording: Recording, fact: RollCallFact, gone: _Missing) -> tuple[str, ...]:
    if not _by_hand(fact) or not all(culprit.node_rank is not None for culprit in gone.culprits):
        return (command_for(recording, fact),)
    return tuple(
        f"{command_for(recording, fact, culprit.node_rank)}   # on {culprit.node}"
        for culprit in gone.culprits[:4]
    )


def _not_started_evidence(fact: RollCallFact) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(text=f"{node.hostname} was not started: {node.reason}") for node in fact.not_started
    )


def _who_is_missing(recording: Recording, fact: RollCallFact) -> _Missing:
    """By name where it is known who was expected; by number only where no rank can be another node's."""
    count = fact.nnodes - len(fact.present)
    expected = recording.world.expected_hosts if recording.world else ()
    absent = [
        Culprit(kind="node", node=name, node_rank=rank)
        for rank, name in enumerate(expected)
        if not any(same_host(name, node.hostname) for node in fact.present)
    ]
    unstarted = [Culprit(kind="node", node=node.hostname) for node in fact.not_started]
    for known in (absent, unstarted):  # hosts given as addresses match no name of those who came
        if len(known) == count:
            return _Missing(tuple(known), named=True)
    if not _by_hand(fact) and len(fact.present) > 1:
        return _Missing()
    numbered = [Culprit(kind="node", node=f"node rank {rank}", node_rank=rank) for rank in fact.missing]
    return _Missing(tuple(numbered), named=_by_hand(fact))


def _who_say_why(recording: Recording) -> set[int]:
    """The node ranks of those whose own reading says what kept them away: a run that one command started."""
    return {
        node.node
        for node in recording.facts(RollCallFact)
        if node.fact.role == "follower" and obstacle_of(recording, node.fact) is not None
    }


def _by_hand(fact: RollCallFact) -> bool:
    """Whether all who came were given a node rank; the head has 0 in any case, so its own claim counts."""
    return fact.claimed_rank is not None and all(node.claimed_rank is not None for node in fact.present)
