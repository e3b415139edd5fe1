"""DD510-DD514, DD517, DD519: a node that cannot get through to the endpoint, and what stands in the way."""

from collections.abc import Iterator, Sequence
from typing import Literal

from ddp_doctor.checks.roll_call.facts import RollCallFact
from ddp_doctor.checks.roll_call.obstacles import Obstacle, is_loopback, obstacle_of, own_addresses
from ddp_doctor.checks.roll_call.words import (
    Group,
    command_for,
    endpoint,
    names,
    paths,
    reader,
    readers,
    system_words,
)
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Proof, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.nodes import by_cause

_NOT_TRIED = Proof(reason="it takes somebody who may change that host or the network")
#: What the kernel says where this host itself knows no way, whatever the other one does (errno(3)).
_NO_NETWORK = "Network is unreachable"
_HOSTS = "/etc/hosts"


def _facing(recording: Recording, *obstacles: Obstacle) -> list[Group]:
    """The nodes before one of these obstacles, as groups that share it and the endpoint."""

    def cause(fact: RollCallFact) -> tuple[str, str] | None:
        obstacle = obstacle_of(recording, fact)
        return (obstacle, endpoint(fact)) if obstacle in obstacles else None

    return list(by_cause(recording.facts(RollCallFact), cause).values())


def _family(addresses: Sequence[str]) -> str:
    return "IPv6" if any(":" in one for one in addresses) else "IPv4"


# --- what the findings share ----------------------------------------------------------------------


def _head(fact: RollCallFact) -> Culprit:
    return Culprit(kind="node", node=fact.endpoint_host or fact.hostname, node_rank=0)


def _evidence(group: Group, expected: str) -> tuple[Evidence, ...]:
    return tuple(_of_one(one.fact, expected) for one in group)


def _of_one(fact: RollCallFact, expected: str) -> Evidence:
    attempts = [f"{one.address}: {one.error or one.outcome}" for one in fact.attempts]
    if not attempts:
        attempts = [fact.error or f"{fact.endpoint_host} is {', '.join(fact.endpoint_addresses)}"]
    return Evidence(
        check="roll_call",
        text=f"on {reader(fact).node}: {'; '.join(attempts)}",
        value=round(fact.waited_s, 1),
        unit="s",
        expected_from=expected,
    )


def _remedy(
    summary: str, *commands: str, scope: Literal["job", "node", "cluster"], cost: str = "", undo: str = ""
) -> Remedy:
    return Remedy(
        summary=summary,
        commands=commands,
        scope=scope,
        cost=cost or "none: it only looks",
        undo=undo or "nothing to undo",
        proof=_NOT_TRIED,
    )


def _draft(
    group: Group,
    title: str,
    detail: str,
    culprits: tuple[Culprit, ...],
    *remedies: Remedy,
    expected: str = "the endpoint answers within the time for the roll call",
    confidence: Confidence = Confidence.PROVED,
) -> Draft:
    return Draft(
        title=title,
        detail=detail,
        confidence=confidence,
        culprits=culprits,
        evidence=_evidence(group, expected),
        remedies=remedies,
    )


# --- the rules ------------------------------------------------------------------------------------


@rule("DD510", "endpoint-name-does-not-resolve", Severity.ERROR, RollCallFact)
def unresolved(recording: Recording) -> Iterator[Draft]:
    """The host name of the endpoint has no address on a node.

    What it finds
        A name in --rdzv-endpoint (or --master-addr) for which this node's resolver has no address for several
        seconds: misspelt, or missing from DNS or /etc/hosts here.

    Why it matters
        torchrun repeats "The IPv6 network addresses of (…) cannot be retrieved" for more than a minute on this
        node, and says nothing at all on the others.

    Remedy
        Correct the name, make it known on this host, or give the endpoint's address instead.

    References
        getent(1), nsswitch.conf(5)
    """
    for group in _facing(recording, "unresolved"):
        fact = group[0].fact
        yield _draft(
            group,
            f"{names(group)} cannot resolve {fact.endpoint_host}, the name of the endpoint:"
            f" {fact.error or 'no address'}",
            "Without an address the node never finds the others; they wait for it in vain.",
            tuple(
                one.model_copy(update={"kind": "setting", "name": "--rdzv-endpoint"})
                for one in readers(group)
            ),
            _remedy(
                "Correct the name, make it known there (DNS, /etc/hosts), or use the address of the head",
                f"getent ahosts {fact.endpoint_host}   # on {names(group)}",
                "hostname -I   # on the head: its addresses",
                scope="node",
                cost="a line in /etc/hosts has to be kept true by hand",
                undo="take the line out again",
            ),
            expected="the resolver knows the name of the endpoint on every node",
        )


@rule("DD511", "endpoint-refuses-connections", Severity.ERROR, RollCallFact)
def refused(recording: Recording) -> Iterator[Draft]:
    """The endpoint's host is up, and nobody listens on its port.

    What it finds
        Connections to the endpoint that were refused until the time for the roll call was up.

    Why it matters
        torchrun prints "timed out after 60000ms" of this as of everything else, and keeps trying for minutes.

    Remedy
        Start the command on the head too, with the same endpoint. If it runs there, look for a firewall that
        rejects instead of dropping: it looks the same from here.

    References
        connect(2), ECONNREFUSED
    """
    for group in _facing(recording, "refused"):
        fact = group[0].fact
        yield _draft(
            group,
            f"Nobody listens on {endpoint(fact)}: {names(group)} was refused for {_waited(group)}",
            f"{fact.endpoint_host} answers, so it is up: the command was not started there, has ended, or uses"
            " another port. A firewall that rejects looks the same.",
            (_head(fact),),
            _remedy(
                f"Start the same command on {fact.endpoint_host}, with the same endpoint",
                command_for(fact, 0 if fact.claimed_rank is not None else None),
                f"ss -ltnp 'sport = :{fact.endpoint_port}'   # on {fact.endpoint_host}: who listens",
                "sudo nft list ruleset   # there, if somebody does: a reject rule",
                scope="job",
            ),
            confidence=Confidence.LIKELY,
        )


def _waited(group: Group) -> str:
    return f"{max(one.fact.waited_s for one in group):.0f} s"


@rule("DD512", "endpoint-does-not-answer", Severity.ERROR, RollCallFact)
def timed_out(recording: Recording) -> Iterator[Draft]:
    """Nothing at all comes back from the endpoint.

    What it finds
        Connections to the endpoint that only time out: no answer, no refusal, no word from a router.

    Why it matters
        This node's torchrun gives up after a minute with a time-out; the head's hangs without a word.

    Remedy
        Open the port in the firewall of the head, or of the network between (security groups of a cloud);
        if the head does not answer a ping either, see whether it runs.

    References
        connect(2), ETIMEDOUT; torchrun uses TCP port 29400 unless told otherwise
    """
    for group in _facing(recording, "timed_out"):
        fact = group[0].fact
        port = fact.endpoint_port
        yield _draft(
            group,
            f"{endpoint(fact)} does not answer {names(group)} ({system_words(group)}): a firewall drops the packets,"
            " or the host is down",
            "Nothing came back within the time, not even a refusal; from here the two causes look alike.",
            paths(group),
            _remedy(
                f"Open TCP port {port} from {names(group)} to {fact.endpoint_host}, in the host's firewall and"
                " in the network's (security groups); the job needs its ephemeral ports too",
                f"ping -c 3 {fact.endpoint_host}   # on {names(group)}: is the host up?",
                f"ss -ltnp 'sport = :{port}'; sudo nft list ruleset   # on {fact.endpoint_host}",
                scope="cluster",
                cost="a port open between the nodes of the cluster",
                undo="close the port again",
            ),
        )


@rule("DD513", "no-route-to-endpoint", Severity.ERROR, RollCallFact)
def unreachable(recording: Recording) -> Iterator[Draft]:
    """There is no way to the endpoint's address.

    What it finds
        A kernel without a route to the endpoint, or a network in which nobody owns its address.

    Why it matters
        The node can never join; torchrun retries without saying so.

    Remedy
        An interface that is up on the endpoint's network, or a route to it. If only the endpoint's address is
        not found, see whether it is the right one and its host is up.

    References
        connect(2), ENETUNREACH and EHOSTUNREACH; ip-route(8)
    """
    for group in _facing(recording, "unreachable"):
        fact = group[0].fact
        own = any(_NO_NETWORK in attempt.error for one in group for attempt in one.fact.attempts)
        there = fact.endpoint_addresses[0] if fact.endpoint_addresses else fact.endpoint_host
        yield _draft(
            group,
            f"{names(group)} has no route to {endpoint(fact)} ({system_words(group) or fact.error})",
            f"{names(group)} has no network on which that address lies, and no route to one."
            if own
            else "The packets get no further than the network: nobody there owns the address, or a router"
            " refuses them.",
            readers(group) if own else paths(group),
            _remedy(
                "Bring up the interface that leads there, or use an address of the head that this node can reach",
                f"ip route get {there}; ip -br address   # on {names(group)}",
                f"ip -br address   # on {fact.endpoint_host}",
                scope="node",
            ),
        )


@rule("DD514", "endpoint-port-held-by-another-program", Severity.ERROR, RollCallFact)
def held(recording: Recording) -> Iterator[Draft]:
    """Another program has the endpoint's port.

    What it finds
        On the head: a port on which it cannot listen, and which program has it. On the others: a server at
        the endpoint that accepts the connection and says nothing, or answers and is no ddp-doctor.

    Why it matters
        torchrun connects to such a port and hangs without a word, on all nodes.

    Remedy
        Give another port with --rdzv-endpoint, to the job as well; or end that program.

    References
        bind(2), EADDRINUSE; ss(8)
    """
    for group in _facing(recording, "held", "other"):
        fact = group[0].fact
        port, name = fact.endpoint_port, fact.endpoint_host or fact.hostname
        yield _draft(
            group,
            _held_by(fact, names(group)),
            "A job with this endpoint would connect to it and hang. A doctor that was stopped looks the same."
            if fact.outcome == "mute"
            else "A job with this endpoint could not start either.",
            (_head(fact),),
            _remedy(
                "Give another port with --rdzv-endpoint, on all nodes and to the job, or end that program",
                f"ss -ltnp 'sport = :{port}'   # on {name}: who it is",
                scope="job",
                cost="another port may have to be opened in a firewall",
                undo="give the old port again",
            ),
            expected="the endpoint's port is free on the head, and the head's doctor answers on it",
            confidence=Confidence.LIKELY if fact.outcome == "mute" else Confidence.PROVED,
        )


def _held_by(fact: RollCallFact, observers: str) -> str:
    where, port = endpoint(fact), fact.endpoint_port
    if fact.outcome == "mute":
        return (
            f"Something listens on {where} that is no ddp-doctor: it took {observers}'s call and said nothing"
        )
    if fact.outcome == "foreign":
        return f"Something listens on {where} that is no ddp-doctor: another program, or the store of another job"
    if fact.held_by or not fact.error or "in use" in fact.error:
        return f"{fact.hostname}: port {port} is held by {fact.held_by or 'another program'}, so nobody can meet there"
    return f"{fact.hostname} cannot listen on port {port}: {fact.error}"


@rule("DD517", "endpoint-has-no-common-address-family", Severity.ERROR, RollCallFact)
def no_common_family(recording: Recording) -> Iterator[Draft]:
    """The endpoint is known by IPv6 addresses only to a node that has IPv4 only, or the other way round.

    What it finds
        An endpoint whose name has, on this node, only addresses of a family of which the node has no address
        but loopback and link-local ones.

    Why it matters
        The node can never join. torch reports "errno: 101 - Network is unreachable" and retries for minutes.

    Remedy
        Give the node an address of that family, or the endpoint's name one of the other.

    References
        getaddrinfo(3), ENETUNREACH in connect(2)
    """
    for group in _facing(recording, "family"):
        fact = group[0].fact
        theirs, mine = _family(fact.endpoint_addresses), _family(own_addresses(recording, fact))
        yield _draft(
            group,
            f"{names(group)} has only {mine}, and knows the endpoint {fact.endpoint_host} only by {theirs}"
            f" ({', '.join(fact.endpoint_addresses)})",
            "The two have no address family in common, so no connection between them is possible.",
            paths(group),
            _remedy(
                f"Give {names(group)} an {theirs} address, or {fact.endpoint_host} an {mine} address and name entry",
                f"getent ahosts {fact.endpoint_host}; ip -br address   # on both",
                scope="cluster",
                cost="a change to the addresses of a host",
                undo="take the address away again",
            ),
        )


@rule("DD519", "endpoint-name-resolves-to-loopback-for-others", Severity.ERROR, RollCallFact)
def loopback(recording: Recording) -> Iterator[Draft]:
    """On a node other than the head, the endpoint's name means that node itself.

    What it finds
        An endpoint whose name resolves to 127.x or ::1 on a node of another name, which then calls, or waits
        for, nobody but itself.

    Why it matters
        The node waits for itself until the time is up; in a job it may even become a second head.

    Remedy
        Take the name out of the loopback line of /etc/hosts there; name the head, not localhost.

    References
        hosts(5); Debian writes the own host name to 127.0.1.1
    """
    for group in _facing(recording, "loopback"):
        fact = group[0].fact
        where, name = names(group), fact.endpoint_host
        typed = name.lower() == "localhost" or is_loopback(name)  # else the host's own files say so
        blamed = {"kind": "setting", "name": "--rdzv-endpoint"} if typed else {"kind": "file", "name": _HOSTS}
        yield _draft(
            group,
            f"On {where}, {name} is {', '.join(fact.endpoint_addresses)}, {where} itself: it never calls the head",
            f"If {where} is itself meant to be the head, then nobody else reported in.",
            tuple(one.model_copy(update=blamed) for one in readers(group)),
            _remedy(
                "Give a name or address that means the head on every node"
                if typed
                else f"Take {name} out of the loopback line of {_HOSTS} on {where}",
                f"getent ahosts {name}; grep -n {name} {_HOSTS}   # on {where}",
                scope="job" if typed else "node",
                cost="none",
                undo="put the former line or option back",
            ),
            expected="the endpoint's name means the head on every node",
        )


RULES = (unresolved, refused, timed_out, unreachable, held, no_common_family, loopback)
