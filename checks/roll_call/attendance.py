"""DD515, DD516, DD518: what is wrong with those who came to the roll call, or did not come."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.checks.roll_call.facts import Outcome, Present, RollCallFact
from ddp_doctor.checks.roll_call.obstacles import is_led_astray
from ddp_doctor.checks.roll_call.words import command_for, endpoint, reader, same_host
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Proof, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.nodes import in_words

_NOT_TRIED = Proof(reason="it takes another start on those hosts")


def _facts(recording: Recording, *outcomes: Outcome) -> Iterator[RollCallFact]:
    """The facts with one of these outcomes; a host that waits for itself alone has a rule of its own."""
    for seen in recording.facts(RollCallFact):
        if seen.fact.outcome in outcomes and not is_led_astray(seen.fact):
            yield seen.fact


def _start_again(summary: str, *commands: str) -> Remedy:
    return Remedy(
        summary=summary,
        commands=commands,
        scope="job",
        cost="none",
        undo="start with the former options",
        proof=_NOT_TRIED,
    )


# --- node ranks -----------------------------------------------------------------------------------


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
    for fact in _facts(recording, "duplicate"):
        yield from _duplicates(fact)
    for fact in _facts(recording, "misplaced"):
        yield Draft(
            title=f"{fact.hostname} was given node rank 0, but the endpoint {endpoint(fact)} is another host",
            detail="The node with rank 0 hosts the meeting, so it must be the host that the endpoint names.",
            confidence=Confidence.PROVED,
            culprits=(_claim(fact.hostname, 0),),
            evidence=(_misplaced_evidence(fact),),
            remedies=(
                _start_again(
                    f"Give node rank 0 to {fact.endpoint_host}, or name {fact.hostname} as the endpoint"
                ),
            ),
        )


def _misplaced_evidence(fact: RollCallFact) -> Evidence:
    addresses = ", ".join(fact.endpoint_addresses) or "unknown here"
    return Evidence(
        check="roll_call",
        text=f"{fact.endpoint_host} is {addresses}, no address of {fact.hostname}",
        expected_from="node rank 0 runs on the endpoint's host",
    )


def _claim(hostname: str, rank: int) -> Culprit:
    return Culprit(kind="node", node=hostname, node_rank=rank, name="--node-rank")


def _duplicates(fact: RollCallFact) -> Iterator[Draft]:
    claims: dict[int, list[str]] = defaultdict(list)
    for one in fact.present:
        if one.claimed_rank is not None:
            claims[one.claimed_rank].append(one.hostname)
    for rank, hosts in claims.items():
        if len(hosts) < 2:
            continue
        distinct = list(dict.fromkeys(hosts))
        who = in_words(distinct) if len(distinct) > 1 else f"{len(hosts)} starts on {distinct[0]}"
        yield Draft(
            title=f"{who} claim node rank {rank}: each needs its own",
            detail=f"They reported in to {endpoint(fact)} with the same --node-rank. torchrun would hang.",
            confidence=Confidence.PROVED,
            culprits=tuple(_claim(host, rank) for host in distinct),
            evidence=(_present_evidence(fact.present),),
            remedies=(
                _start_again(
                    f"Give each of the {fact.nnodes} hosts its own --node-rank, 0 to {fact.nnodes - 1}, or leave"
                    " it out on all"
                    if len(distinct) > 1
                    else f"Start the command once on {distinct[0]}",
                    *(
                        f"{command_for(fact, node_rank)}   # on {host}"
                        for node_rank, host in _free_ranks(fact, distinct)
                    ),
                ),
            ),
        )


def _free_ranks(fact: RollCallFact, hosts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Ranks for all claimants but the first, which keeps its own."""
    taken = {one.claimed_rank for one in fact.present}
    free = (number for number in range(fact.nnodes) if number not in taken)
    yield from zip(free, hosts[1:], strict=False)


def _present_evidence(present: Sequence[Present]) -> Evidence:
    said = [
        one.hostname if one.claimed_rank is None else f"{one.hostname} as node rank {one.claimed_rank}"
        for one in present
    ]
    return Evidence(
        check="roll_call",
        text=f"reported in: {', '.join(said)}",
        expected_from="each host has a node rank of its own, or none is given",
    )


# --- who is missing -------------------------------------------------------------------------------


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
        why they could not be started, where ssh or srun said so. On another node: a head that never closed the
        roll call.

    Why it matters
        torchrun waits ten minutes, without a word about how many or who is missing.

    Remedy
        Start the command on the missing hosts, within --join-timeout of the first.

    References
        torch.distributed.run, --rdzv-conf join_timeout
    """
    for fact in _facts(recording, "missing"):
        if fact.role == "follower":
            yield _never_closed(fact)
        elif 0 < fact.nnodes - len(fact.present) == len(fact.not_started):
            yield _not_startable(recording, fact)
        else:
            yield _never_came(recording, fact)


def _never_closed(fact: RollCallFact) -> Draft:
    head = fact.endpoint_host or "the head"
    me = reader(fact)
    return Draft(
        title=f"The head {head} never closed the roll call: {me.node} reported in and then heard no more of it",
        detail="The head's doctor has ended or stands still, or the path to it broke; no other node is blamed.",
        confidence=Confidence.LIKELY,
        culprits=(me.model_copy(update={"kind": "pair", "peer_node": head}),),
        evidence=(
            Evidence(
                check="roll_call",
                text=f"on {me.node}: {fact.error or 'the head fell silent'}",
                value=round(fact.waited_s, 1),
                unit="s",
                expected_from="the head tells several times a second who is here",
            ),
        ),
        remedies=(
            Remedy(
                summary=f"See on {head} what became of the command; then start it again on all nodes",
                commands=(f"ss -ltnp 'sport = :{fact.endpoint_port}'   # on {head}",),
                scope="node",
                cost="none: it only looks",
                undo="nothing to undo",
                proof=_NOT_TRIED,
            ),
        ),
    )


def _never_came(recording: Recording, fact: RollCallFact) -> Draft:
    gone = _who_is_missing(recording, fact)
    here = in_words([one.hostname for one in fact.present]) or fact.hostname
    came = f"{len(fact.present)} of {fact.nnodes} nodes reported in to {endpoint(fact)} within {fact.waited_s:.0f} s"
    names = in_words([one.node or "" for one in gone.culprits])
    title = f"{names} never reported in: {came}" if gone.named else f"{came}: only {here} came"
    return Draft(
        title=f"{title}{_reason(fact)}",
        detail="It is not known whether the command was started there, or came so far."
        if not fact.not_started
        else "The command that was to start the doctor there failed.",
        confidence=Confidence.PROVED if gone.named else Confidence.LIKELY,
        culprits=gone.culprits,
        evidence=(_present_evidence(fact.present), *_not_started_evidence(fact)),
        remedies=(
            _start_again(
                f"Start the command on {names if gone.named else 'the other hosts'}, within --join-timeout of the"
                " first; if it runs there already, read what it says",
                *_commands(fact, gone),
            ),
        ),
    )


def _not_startable(recording: Recording, fact: RollCallFact) -> Draft:
    """All who are missing could not be started by the command that starts all of them."""
    gone = _who_is_missing(recording, fact)
    hosts = [one.hostname for one in fact.not_started]
    launcher = recording.world.launcher if recording.world else ""
    looks = {"ssh": "ssh -o BatchMode=yes {} true", "slurm": "scontrol show node {}"}
    reasons = dict.fromkeys(one.reason for one in fact.not_started)
    return Draft(
        title=f"{in_words(hosts)} could not be started: {'; '.join(list(reasons)[:2])}",
        detail=f"{len(fact.present)} of {fact.nnodes} nodes could. Nothing is known of how nodes work together.",
        confidence=Confidence.PROVED,
        culprits=gone.culprits,
        evidence=_not_started_evidence(fact),
        remedies=(
            Remedy(
                summary="Mend what the reason names: until then no command reaches all of these hosts",
                commands=tuple(looks[launcher].format(host) for host in hosts[:4] if launcher in looks),
                scope="cluster",
                cost="none: the commands only look",
                undo="nothing to undo",
                proof=_NOT_TRIED,
            ),
        ),
    )


def _reason(fact: RollCallFact) -> str:
    """Why one node could not be started, in the title; of several nodes the evidence tells."""
    return f" ({fact.not_started[0].reason})" if len(fact.not_started) == 1 else ""


def _commands(fact: RollCallFact, gone: _Missing) -> tuple[str, ...]:
    if not _by_hand(fact) or not all(one.node_rank is not None for one in gone.culprits):
        return (command_for(fact),)
    return tuple(f"{command_for(fact, one.node_rank)}   # on {one.node}" for one in gone.culprits[:4])


def _not_started_evidence(fact: RollCallFact) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(check="roll_call", text=f"{one.hostname} was not started: {one.reason}")
        for one in fact.not_started
    )


def _who_is_missing(recording: Recording, fact: RollCallFact) -> _Missing:
    """By name where it is known who was expected; by number only where no rank can be another node's."""
    count = fact.nnodes - len(fact.present)
    expected = recording.world.expected_hosts if recording.world else ()
    absent = [
        Culprit(kind="node", node=name, node_rank=rank)
        for rank, name in enumerate(expected)
        if not any(same_host(name, one.hostname) for one in fact.present)
    ]
    unstarted = [Culprit(kind="node", node=one.hostname) for one in fact.not_started]
    for known in (absent, unstarted):  # hosts given as addresses match no name of those who came
        if len(known) == count:
            return _Missing(tuple(known), named=True)
    if not _by_hand(fact) and len(fact.present) > 1:
        return _Missing()
    numbered = [Culprit(kind="node", node=f"node rank {rank}", node_rank=rank) for rank in fact.missing]
    return _Missing(tuple(numbered), named=_by_hand(fact))


def _by_hand(fact: RollCallFact) -> bool:
    """Whether all who came were given a node rank; the head has 0 in any case, so its own claim counts."""
    return fact.claimed_rank is not None and all(one.claimed_rank is not None for one in fact.present)


# --- how many they are ----------------------------------------------------------------------------


@rule("DD518", "nodes-disagree-on-number-of-nodes", Severity.ERROR, RollCallFact)
def disagree(recording: Recording) -> Iterator[Draft]:
    """The nodes were told different numbers of nodes, or one more came than was asked for.

    What it finds
        Nodes that reported in with another --nnodes than the rest, and a node that came when all were here.

    Why it matters
        Each waits for another number of nodes: torchrun hangs, or starts a world that somebody is left out of.

    Remedy
        The same --nnodes on all nodes, and as many starts.

    References
        torch.distributed.run, --nnodes
    """
    for fact in _facts(recording, "disagree"):
        yield _different_numbers(fact)
    for fact in _facts(recording, "too_many"):
        yield Draft(
            title=f"{fact.hostname} is one too many: all {fact.nnodes} nodes had reported in to {endpoint(fact)}",
            detail="Another host has taken the place, or the command was started twice.",
            confidence=Confidence.PROVED,
            culprits=(reader(fact),),
            evidence=(
                Evidence(
                    check="roll_call",
                    text=f"{fact.hostname} reported in after the last node",
                    expected=fact.nnodes,
                    unit="nodes",
                    expected_from="--nnodes",
                ),
            ),
            remedies=(
                _start_again("Start as many nodes as --nnodes says, or raise --nnodes on all of them"),
            ),
        )


def _different_numbers(fact: RollCallFact) -> Draft:
    told: dict[int, list[str]] = defaultdict(list)
    for one in fact.present:
        told[one.nnodes].append(one.hostname)
    most = max(map(len, told.values()), default=0)
    usual = [number for number, hosts in told.items() if len(hosts) == most]
    odd = {n: hosts for n, hosts in told.items() if len(usual) != 1 or n != usual[0]}
    each = "; ".join(f"{in_words(hosts)}: {number}" for number, hosts in sorted(told.items()))
    return Draft(
        title=f"The nodes were told different numbers of nodes (--nnodes): {each}",
        detail="Each waits for its own number of nodes, so the job would not start on all of them.",
        confidence=Confidence.PROVED,
        culprits=tuple(
            Culprit(kind="node", node=host, node_rank=_rank_of(fact, host), name="--nnodes")
            for hosts in odd.values()
            for host in hosts
        ),
        evidence=(
            Evidence(
                check="roll_call", text=f"--nnodes by host: {each}", expected_from="one number on all nodes"
            ),
        ),
        remedies=(_start_again("Give all nodes the same --nnodes", command_for(fact)),),
    )


def _rank_of(fact: RollCallFact, hostname: str) -> int | None:
    return next((one.claimed_rank for one in fact.present if one.hostname == hostname), None)


RULES = (one_rank_twice, missing, disagree)
