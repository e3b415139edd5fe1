"""A backend that finds no interface, or gives out an address that is useless to the other nodes."""

from collections.abc import Iterator

from ddp_doctor.checks.node.interfaces.offers import offers_of
from ddp_doctor.checks.node.interfaces.wording import draft, groups
from ddp_doctor.facts.interfaces import InterfacesFact
from ddp_doctor.knowledge.interface_choice import GLOO_IFNAME
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.settings import shown
from ddp_doctor.settings import values


@rule("DD521", "no-usable-interface", Severity.ERROR, InterfacesFact)
def no_usable_interface(recording: Recording) -> Iterator[Draft]:
    """A backend that finds no interface, or one that is down, mostly for a setting.

    What it finds
        In a run of several nodes: GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names what is not there, has no
        address or is down; NCCL_SOCKET_IFNAME=^eth0, after which only loopback is left.

    Why it matters
        The ranks of that node fail at once, or give out an address that nobody reaches, and the ranks of all
        other nodes wait for them. A name that is right on one node may not exist on the next.

    Remedy
        The interface that the nodes share, by its name on each, or no setting where the default does.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    for group in groups(offers_of(recording), "unusable", lambda one: (one.setting, one.choice.error)):
        first = group.sick[0]
        if first.backend == "gloo" and first.setting and values.misread(GLOO_IFNAME, first.setting):
            continue  # DD122 names a value that gloo cannot take
        told = f"{shown(first.choice.setting, first.setting or '')}: " if first.choice.setting else ""
        title = (
            f"{group.backend} has no usable interface on {group.nodes(recording)}: {told}{group.fault.why}"
        )
        yield draft(recording, group, title)


@rule("DD522", "address-hidden-from-other-nodes", Severity.ERROR, InterfacesFact)
def address_hidden_from_other_nodes(recording: Recording) -> Iterator[Draft]:
    """A chosen address that is loopback, is the same on several nodes, or is of a bridge for containers.

    What it finds
        In a run of several nodes: such an address where a setting, a host name or NCCL's order leads to
        it. An error where some pair of nodes cannot connect, a warning where gloo's rule of who dials spares
        them, or where only the interface's name (docker0, virbr0) speaks against it.

    Why it matters
        Whoever dials 127.0.0.1 or the docker0 address 172.17.0.1 reaches itself. Nothing says so: gloo reports
        a refused connection on a healthy node, NCCL retries for a minute.

    Remedy
        The interface that the nodes share, by its name on each, or no setting where the default does.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        gloo/transport/tcp/device.cc, Device::isInitiator
    """
    for group in groups(offers_of(recording), "hidden", lambda one: (one.setting, one.address)):
        first = group.sick[0]
        told = (
            f", because of {shown(first.choice.setting, first.setting or '')}" if first.choice.setting else ""
        )
        title = (
            f"{group.backend} on {group.nodes(recording)} gives out {group.given_out}"
            f" ({first.choice.interface}){told}: {group.fault.why}"
        )
        yield draft(recording, group, title)
