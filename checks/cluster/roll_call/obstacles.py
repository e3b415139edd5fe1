"""What keeps a node from the endpoint: one obstacle for each node, so that one rule speaks of it."""

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Literal

from ddp_doctor.checks.cluster.roll_call.wording import same_host
from ddp_doctor.facts.cluster import AttemptOutcome, RollCallFact
from ddp_doctor.model.recording import Recording
from ddp_doctor.views.lost_nodes import leads_out

Obstacle = Literal[
    "unresolved", "loopback", "family", "refused", "timed_out", "unreachable", "held", "other", "job"
]


def obstacle_of(recording: Recording, fact: RollCallFact) -> Obstacle | None:
    """What keeps a node from the endpoint; an address that cannot work explains whatever came of it."""
    if is_led_astray(fact):
        return "loopback"
    if fact.outcome in ("refused", "timed_out", "unreachable") and _no_family(recording, fact):
        return "family"
    if fact.outcome == "other_job" or jobs_that_clash(fact):
        return "job"
    if fact.outcome in ("held", "mute", "foreign"):
        return "held" if fact.outcome == "held" else "other"
    if fact.outcome in ("unresolved", "refused", "timed_out", "unreachable"):
        return fact.outcome
    return None


def facts_with(recording: Recording, *outcomes: AttemptOutcome) -> Iterator[RollCallFact]:
    """The facts with one of these outcomes; one that is led astray, or two jobs, have rules of their own."""
    for seen in recording.facts(RollCallFact):
        led_astray = is_led_astray(seen.fact) or jobs_that_clash(seen.fact)
        if seen.fact.outcome in outcomes and not led_astray:
            yield seen.fact


def jobs_that_clash(fact: RollCallFact) -> tuple[str, ...]:
    """The jobs of those who came, where they are several and do not go together; a run may span two that do."""
    jobs = dict.fromkeys(one.job for one in fact.present if one.job)
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
    return [one for of in (mine.addresses.values() if mine else ()) for one in of if leads_out(one)]


def _no_family(recording: Recording, fact: RollCallFact) -> bool:
    """Whether the endpoint has addresses only of a family of which this node has none."""
    theirs = {":" in one for one in fact.endpoint_addresses}
    mine = {":" in one for one in own_addresses(recording, fact)}
    return bool(theirs) and bool(mine) and not theirs & mine
