"""DD510, DD517, DD519: what the endpoint's name means on a node, and that it cannot work."""

from collections.abc import Iterator, Sequence

from ddp_doctor.checks.cluster.roll_call.endpoint import draft, facing
from ddp_doctor.checks.cluster.roll_call.obstacles import is_loopback, own_addresses
from ddp_doctor.checks.cluster.roll_call.wording import mend, names, paths, readers
from ddp_doctor.facts.cluster import RollCallFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule

_HOSTS = "/etc/hosts"


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
    for group in facing(recording, "unresolved"):
        fact = group[0].fact
        yield draft(
            group,
            f"{names(group)} cannot resolve {fact.endpoint_host}, the name of the endpoint:"
            f" {fact.error or 'no address'}",
            "Without an address the node never finds the others; they wait for it in vain.",
            tuple(
                one.model_copy(update={"kind": "setting", "name": "--rdzv-endpoint"})
                for one in readers(group)
            ),
            mend(
                "Correct the name, make it known there (DNS, /etc/hosts), or use the address of the head",
                f"getent ahosts {fact.endpoint_host}   # on {names(group)}",
                "hostname -I   # on the head: its addresses",
                scope="node",
                cost="a line in /etc/hosts has to be kept true by hand",
                undo="take the line out again",
            ),
            expected="the resolver knows the name of the endpoint on every node",
        )


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
    for group in facing(recording, "family"):
        fact = group[0].fact
        theirs, mine = _family(fact.endpoint_addresses), _family(own_addresses(recording, fact))
        yield draft(
            group,
            f"{names(group)} has only {mine}, and knows the endpoint {fact.endpoint_host} only by {theirs}"
            f" ({', '.join(fact.endpoint_addresses)})",
            "The two have no address family in common, so no connection between them is possible.",
            paths(group),
            mend(
                f"Give {names(group)} an {theirs} address, or {fact.endpoint_host} an {mine} address and name entry",
                f"getent ahosts {fact.endpoint_host}; ip -br address   # on both",
                scope="cluster",
                cost="a change to the addresses of a host",
                undo="take the address away again",
            ),
        )


def _family(addresses: Sequence[str]) -> str:
    return "IPv6" if any(":" in one for one in addresses) else "IPv4"


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
    for group in facing(recording, "loopback"):
        fact = group[0].fact
        where, name = names(group), fact.endpoint_host
        typed = name.lower() == "localhost" or is_loopback(name)  # else the host's own files say so
        blamed = {"kind": "setting", "name": "--rdzv-endpoint"} if typed else {"kind": "file", "name": _HOSTS}
        yield draft(
            group,
            f"On {where}, {name} is {', '.join(fact.endpoint_addresses)}, {where} itself: it never calls the head",
            f"If {where} is itself meant to be the head, then nobody else reported in.",
            tuple(one.model_copy(update=blamed) for one in readers(group)),
            mend(
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
