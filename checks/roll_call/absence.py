"""DD516: the nodes that did not come to the roll call."""

from collections.abc import Iterator
from dataclasses import dataclass

from ddp_doctor.checks.roll_call.advice import ANOTHER_START, advice, start_again
from ddp_doctor.checks.roll_call.facts import RollCallFact
from ddp_doctor.checks.roll_call.obstacles import facts_with
from ddp_doctor.checks.roll_call.words import command_for, endpoint, reader, same_host, who_came
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.nodes import in_words


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
    for fact in facts_with(recording, "missing"):
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
            advice(
                f"See on {head} what became of the command; then start it again on all nodes",
                f"ss -ltnp 'sport = :{fact.endpoint_port}'   # on {head}",
                scope="node",
                proof=ANOTHER_START,
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
        evidence=(who_came(fact.present), *_not_started_evidence(fact)),
        remedies=(
            start_again(
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
            advice(
                "Mend what the reason names: until then no command reaches all of these hosts",
                *(looks[launcher].format(host) for host in hosts[:4] if launcher in looks),
                scope="cluster",
                cost="none: the commands only look",
                proof=ANOTHER_START,
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
