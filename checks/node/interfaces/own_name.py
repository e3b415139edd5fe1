"""A host whose own name leads to no address that other nodes can reach, which gloo gives out all the same."""

from collections.abc import Iterator

from ddp_doctor.checks.node.interfaces.offers import offers_of, severity_unless_used
from ddp_doctor.checks.node.interfaces.wording import draft, groups
from ddp_doctor.facts.interfaces import InterfacesFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule


@rule("DD520", "own-host-name-resolves-to-loopback", Severity.ERROR, InterfacesFact)
def resolves_to_loopback(recording: Recording) -> Iterator[Draft]:
    """A host whose own name means 127.0.0.1 or 127.0.1.1 there, which gloo then gives to the other nodes.

    What it finds
        In a run of several nodes, without GLOO_SOCKET_IFNAME: nodes whose own name resolves to loopback, as
        Debian's installer writes it into /etc/hosts. An error where some node must dial that address; a
        warning where none does; information where the run uses NCCL, which asks for no name.

    Why it matters
        gloo gives that address to the others. Of two sides the one with the larger address dials, so in
        192.168.x and 172.16.x networks the others dial themselves, and blame their own ranks. In 10.x
        networks the node with 127.0.1.1 dials, and the job works by luck.

    Remedy
        GLOO_SOCKET_IFNAME with the interface that the nodes share, or the right address in /etc/hosts.

    References
        https://docs.pytorch.org/docs/stable/distributed.html
        gloo/transport/tcp/device.cc, Device::isInitiator
    """
    for group in groups(offers_of(recording, "gloo"), "own-name", lambda offer: offer.choice.setting):
        several = "own names resolve" if len(group.sick) > 1 else "own name resolves"
        title = (
            f"On {group.nodes(recording)} the host's {several} to {group.given_out}, and gloo gives that out"
        )
        yield draft(recording, group, title, severity_unless_used(recording, group))


@rule("DD526", "own-host-name-does-not-resolve", Severity.ERROR, InterfacesFact)
def does_not_resolve(recording: Recording) -> Iterator[Draft]:
    """A host whose own name leads to no address that it has, so that gloo falls back to loopback.

    What it finds
        In a run of several nodes, without GLOO_SOCKET_IFNAME: nodes whose own name is unknown there, or is
        known with addresses that the node does not have. A warning where no node must dial 127.0.0.1, and
        where the resolver did not answer in time; information where the run uses NCCL.

    Why it matters
        torch warns ("Unable to resolve hostname to a (local) address") and gives 127.0.0.1 to the other
        nodes, which reach themselves. With a dead name server every rank waits for it first.

    Remedy
        GLOO_SOCKET_IFNAME with the interface that the nodes share, or an entry in /etc/hosts.

    References
        torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, createDefaultDevice
    """
    for group in groups(offers_of(recording, "gloo"), "unresolved", lambda one: bool(one.address)):
        fallback = f"; gloo then gives out {group.given_out}" if group.given_out else ""
        title = f"On {group.nodes(recording)} the host does not find itself: {group.fault.why}{fallback}"
        yield draft(recording, group, title, severity=severity_unless_used(recording, group))
