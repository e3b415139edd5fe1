"""DD510, DD517, DD519: the obstacle between a node and the endpoint, and what the endpoint's name means on a node."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Literal

from ddp_doctor.checks.cluster.roll_call.wording import Group, endpoint, fix, names, paths, reader, readers, same_host
from ddp_doctor.facts.cluster import AttemptOutcome, RollCallFact
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, MissingNode, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.silence_causes import leads_out
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import by_cause

Obstacle = Literal[
    "unresolved", "loopback", "family", "rejected", "refused", "timed_out", "unreachable", "held", "other", "job"
]


def obstacle_of(recording: Recording, fact: RollCallFact) -> Obstacle | None:
    """What keeps a node from the endpoint; an address that cannot work explains whatever came of it."""
    if is_led_astray(fact):
        return "loopback"
    theirs = {":" in address for address in fact.endpoint_addresses}
    mine = {":" in address for address in own_addresses(recording, fact)}
    if fact.outcome in ("refused", "timed_out", "unreachable") and theirs and mine and not theirs & mine:
        return "family"
    if fact.outcome == "other_job" or jobs_that_clash(fact):
        return "job"
    if fact.outcome in ("held", "mute", "foreign"):
        return "held" if fact.outcome == "held" else "other"
    if fact.outcome in ("unresolved", "refused", "timed_out", "unreachable"):
        return "rejected" if any(attempt.rejected_by for attempt in fact.attempts) else fact.outcome
    return None


def facts_with(recording: Recording, *outcomes: AttemptOutcome) -> Iterator[RollCallFact]:
    """The facts with one of these outcomes; one that is led astray, or two jobs, have rules of their own."""
    for node in recording.facts(RollCallFact):
        led_astray = is_led_astray(node.fact) or jobs_that_clash(node.fact)
        if node.fact.outcome in outcomes and not led_astray:
            yield node.fact


def jobs_that_clash(fact: RollCallFact) -> tuple[str, ...]:
    """The jobs of those who came, where they are several and do not go together; a run may span two that do."""
    jobs = dict.fromkeys(node.job for node in fact.present if node.job)
    return tuple(jobs) if len(jobs) > 1 and fact.outcome in ("duplicate", "disagree") else ()


def is_led_astray(fact: RollCallFact) -> bool:
    """Whether the endpoint's name means, on this other host, this host itself: it dials or hosts in vain."""
    if fact.outcome == "met" or fact.claimed_rank == 0 or same_host(fact.hostname, fact.endpoint_host):
        return False
    waits_in_vain = fact.role == "head" and fact.outcome == "missing"
    dials_itself = fact.outcome in ("refused", "timed_out", "unreachable", "mute", "foreign")
    addresses = fact.endpoint_addresses
    return (waits_in_vain or dials_itself) and bool(addresses) and all(map(is_loopback, addresses))


def is_loopback(address: str) -> bool:
    """Whether the address means the host itself, on every host; a name is none."""
    try:
        return ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def own_addresses(recording: Recording, fact: RollCallFact) -> list[str]:
    """This node's addresses by which others can meet it."""
    nodes = recording.world.nodes if recording.world else ()
    mine = next((node for node in nodes if node.hostname == fact.hostname), None)
    return [address for of in (mine.addresses.values() if mine else ()) for address in of if leads_out(address)]


def facing(recording: Recording, *obstacles: Obstacle) -> list[Group]:
    """The nodes before one of these obstacles, as groups that share it and the endpoint."""

    def cause(fact: RollCallFact) -> tuple[str, str] | None:
        obstacle = obstacle_of(recording, fact)
        return (obstacle, endpoint(fact)) if obstacle in obstacles else None

    return list(by_cause(recording.facts(RollCallFact), cause).values())


def head(fact: RollCallFact) -> Culprit:
    """The host that the endpoint names."""
    name = fact.hostname if fact.role == "head" else fact.endpoint_host
    return Culprit(kind="node", node=name or fact.hostname, node_rank=0)


def draft(
    group: Group,
    title: str,
    detail: str,
    culprits: tuple[Culprit, ...],
    *remedies: Remedy,
    expected: str = "the endpoint answers within the time for the roll call",
    confidence: Confidence = Confidence.PROVED,
    missing: tuple[MissingNode, ...] = (),
) -> Draft:
    """A finding that rests on what each node of the group saw of the endpoint; the head may know the cause."""
    evidence = []
    for fact in (node.fact for node in group):
        attempts = [f"{attempt.address}: {attempt.error or attempt.outcome}" for attempt in fact.attempts]
        if not attempts:
            attempts = [fact.error or f"{fact.endpoint_host} is {', '.join(fact.endpoint_addresses)}"]
        seen_there = Evidence(
            text=f"on {reader(fact).node}, {'; '.join(attempts)}{'; tried for' if fact.waited_s else ''}",
            value=round(fact.waited_s, 1) or None,
            unit="s" if fact.waited_s else None,
            expected_from=expected,
        )
        evidence.append(seen_there)
    return finding(
        culprits, title, evidence, *remedies, confidence=confidence, detail=detail, nodes=(0,), missing=missing
    )


_HOSTS = "/etc/hosts"


@rule("DD510", "endpoint-name-does-not-resolve", Severity.ERROR, RollCallFact)
def endpoint_name_does_not_resolve(recording: Recording) -> Iterator[Draft]:
    """The host name of the endpoint has no address on a node.

    Finds: A name in --rdzv-endpoint (or --master-addr) for which this node's resolver has no address for several
        seconds: misspelt, or missing from DNS or /etc/hosts here.
    Why: torchrun repeats "The IPv6 network addresses of (…) cannot be retrieved" for more than a minute on this node,
        and says nothing at all on the others.
    Remedy: Correct the name, make it known on this host, or give the endpoint's address instead.
    See: getent(1), nsswitch.conf(5)
    """
    for group in facing(recording, "unresolved"):
        fact = group[0].fact
        yield draft(
            group,
            f"{names(group)} cannot resolve {fact.endpoint_host}, the name of the endpoint:"
            f" {fact.error or 'no address'}",
            "Without an address the node cannot find the others, and they wait for it.",
            tuple(
                culprit.model_copy(update={"kind": "setting", "name": "--rdzv-endpoint"}) for culprit in readers(group)
            ),
            fix(
                "Correct the name, make it known there (DNS, /etc/hosts), or use the IP address of the head node",
                f"getent ahosts {fact.endpoint_host}   # on {names(group)}",
                "hostname -I   # on the head: its addresses",
                scope="node",
                cost="a line in /etc/hosts has to be kept true by hand",
                undo="take the line out again",
            ),
            expected="the resolver knows the name of the endpoint on every node",
        )


@rule("DD517", "endpoint-has-no-common-address-family", Severity.ERROR, RollCallFact)
def endpoint_has_no_common_address_family(recording: Recording) -> Iterator[Draft]:
    """The endpoint is known by IPv6 addresses only to a node that has IPv4 only, or the other way round.

    Finds: An endpoint whose name has, on this node, only addresses of a family of which the node has no address but
        loopback and link-local ones.
    Why: The node can never join. torch reports "errno: 101 - Network is unreachable" and retries for minutes.
    Remedy: Give the node an address of that family, or the endpoint's name one of the other.
    See: getaddrinfo(3), ENETUNREACH in connect(2)
    """
    for group in facing(recording, "family"):
        fact = group[0].fact
        theirs, mine = _family(fact.endpoint_addresses), _family(own_addresses(recording, fact))
        yield draft(
            group,
            f"{names(group)} has only {mine}, and knows the endpoint {fact.endpoint_host} only by {theirs}"
            f" ({', '.join(fact.endpoint_addresses)})",
            "The two have no address family in common, so no connection between them is possible.",
            paths(group),
            fix(
                f"Give {names(group)} an {theirs} address, or {fact.endpoint_host} an {mine} address and name entry",
                f"getent ahosts {fact.endpoint_host}; ip -br address   # on both",
                scope="cluster",
                cost="a change to the addresses of a host",
                undo="take the address away again",
            ),
        )


def _family(addresses: Sequence[str]) -> str:
    return "IPv6" if any(":" in address for address in addresses) else "IPv4"


@rule("DD519", "endpoint-name-resolves-to-loopback-for-others", Severity.ERROR, RollCallFact)
def endpoint_name_resolves_to_loopback_for_others(recording: Recording) -> Iterator[Draft]:
    """On a node other than the head, the endpoint's name means that node itself.

    Finds: An endpoint whose name resolves to 127.x or ::1 on a node of another name, which then calls, or waits for,
        nobody but itself.
    Why: The node waits for itself until the time is up; in a job it may even become a second head.
    Remedy: Take the name out of the loopback line of /etc/hosts there; name the head, not localhost.
    See: hosts(5); Debian writes the own host name to 127.0.1.1
    """
    for group in facing(recording, "loopback"):
        fact = group[0].fact
        where, name = names(group), fact.endpoint_host
        typed = name.lower() == "localhost" or is_loopback(name)  # else the host's own files say so
        blamed = {"kind": "setting", "name": "--rdzv-endpoint"} if typed else {"kind": "file", "name": _HOSTS}
        yield draft(
            group,
            f"On {where} the name {name} resolves to {', '.join(fact.endpoint_addresses)}, which is {where} itself:"
            " it cannot reach the head node",
            f"If {where} is itself meant to be the head, then nobody else reported in.",
            tuple(culprit.model_copy(update=blamed) for culprit in readers(group)),
            fix(
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
