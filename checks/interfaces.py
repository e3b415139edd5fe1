"""The network interfaces: which one gloo and NCCL take on each node, and whether the choices fit together.

Each backend chooses by rules of its own, gives that address to the other nodes, and waits there. A host name that
resolves to 127.0.1.1, an interface that is not there, a docker0 with the same address everywhere: the job hangs or
blames the healthy nodes, or works by luck. The choice is foretold (knowledge/interface_choice.py); where
there is a libnccl it is asked. Raw input::

    lo 127.0.0.1/8, eth0 10.0.0.1/24 fe80::1%eth0/64 (up, running), docker0 172.17.0.1/16   getifaddrs(3)
    node0 -> 127.0.1.1                                                                      getaddrinfo(3)
    32768	60999                                    /proc/sys/net/ipv4/ip_local_port_range
    {"version_code": 22907, "address": "10.0.0.1"}   libnccl's unique id
"""

from collections.abc import Iterator, Mapping, Sequence

from ddp_doctor.knowledge import values
from ddp_doctor.knowledge.interface_choice import (
    GLOO_IFNAME,
    NCCL_COMM_ID,
    SETTINGS,
    Choice,
    gloo_choice,
    nccl_choice,
)
from ddp_doctor.knowledge.interface_faults import (
    Offer,
    apart,
    better_interfaces,
    can_speak,
    family_sides,
    faults,
)
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Severity, Where
from ddp_doctor.model.context import Context, Interface
from ddp_doctor.model.fact import Failed
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse import nccl_interface
from ddp_doctor.parse.interface_facts import InterfacesFact, advertised, common_interface, offer_of
from ddp_doctor.phrases import interfaces as words
from ddp_doctor.phrases.interface_faults import (
    Group,
    culprits,
    draft,
    evidence,
    groups,
)
from ddp_doctor.phrases.settings import shown

__all__ = ["CHECK", "InterfacesFact", "advertised", "common_interface", "probe"]

_WHY_ONE_FAMILY = {
    "gloo": "gloo refuses such a pair at once, on both nodes.",
    "NCCL": "Whoever has no address of the other family cannot dial there.",
}
#: A name that takes longer is as good as none: each rank would wait for it at every start.
RESOLVE_LIMIT_S = 2.0


def probe(ctx: Context) -> InterfacesFact:
    """Read the interfaces and foretell the choices. Raises Failed where they cannot be listed."""
    try:
        found = ctx.interfaces()
    except OSError as error:
        raise Failed(f"the network interfaces cannot be listed: {error}") from None
    hostname = ctx.hostname()
    own, problem = _own_addresses(ctx, hostname)
    nccl_env = nccl_interface.nccl_environment(ctx)
    foretold = nccl_choice(found, nccl_env)
    return InterfacesFact(
        interfaces=found,
        hostname=hostname,
        hostname_addresses=own or (),
        hostname_error=problem,
        gloo=gloo_choice(found, ctx.env, own),
        nccl=foretold,
        libnccl=_libnccl(ctx, foretold, nccl_env, found),
        settings={name: nccl_env[name] for name in SETTINGS if nccl_env.get(name)},
        port_range=_port_range(ctx),
        host_id=_host_id(ctx),
    )


def _own_addresses(ctx: Context, hostname: str) -> tuple[tuple[str, ...] | None, str | None]:
    """What the host's own name resolves to, and why it does not; None in the first where time ran out."""
    try:
        return ctx.resolve(hostname, RESOLVE_LIMIT_S), None
    except TimeoutError:
        return None, f"no answer within {RESOLVE_LIMIT_S:g} s"
    except OSError as error:
        return (), error.strerror or str(error)


def _libnccl(
    ctx: Context, foretold: Choice, env: Mapping[str, str], found: Sequence[Interface]
) -> Choice | None:
    if NCCL_COMM_ID in env:
        return None  # the id would hold that address, and not a choice
    answer = ctx.child("nccl_interface")
    ctx.keep(answer.stdout)
    chosen = nccl_interface.library_choice(answer, found)
    return chosen and chosen.model_copy(update={"setting": foretold.setting})


def _port_range(ctx: Context) -> tuple[int, int] | None:
    try:
        low, high = map(int, ctx.read("/proc/sys/net/ipv4/ip_local_port_range").split())
    except (OSError, ValueError):
        return None
    return low, high


def _host_id(ctx: Context) -> str | None:
    try:
        boot = ctx.read("/proc/sys/kernel/random/boot_id").strip()
        return f"{boot} {ctx.readlink('/proc/self/ns/net')}"
    except OSError:
        return None


def _offers(recording: Recording, backend: str | None = None) -> list[Offer]:
    """The nodes of a run of several, as a backend (the run's) presents them; none in a run of one."""
    world = recording.world
    if world is None or world.nnodes < 2:
        return []
    return [offer_of(seen, backend or world.backend) for seen in recording.facts(InterfacesFact)]


def _used(recording: Recording, group: Group) -> Severity | None:
    """Information where the run's backend is another one; else the group's own severity."""
    in_use = recording.world is not None and recording.world.backend == group.sick[0].backend
    return None if in_use else Severity.INFO


@rule("DD520", "own-host-name-resolves-to-loopback", Severity.ERROR, InterfacesFact)
def own_host_name_resolves_to_loopback(recording: Recording) -> Iterator[Draft]:
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
    for group in groups(_offers(recording, "gloo"), "own-name", lambda offer: offer.choice.setting):
        several = "own names resolve" if len(group.sick) > 1 else "own name resolves"
        title = (
            f"On {group.nodes(recording)} the host's {several} to {group.given_out}, and gloo gives that out"
        )
        yield draft(recording, group, title, _used(recording, group))


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
    for group in groups(_offers(recording), "unusable", lambda one: (one.setting, one.choice.error)):
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
    for group in groups(_offers(recording), "hidden", lambda one: (one.setting, one.address)):
        first = group.sick[0]
        told = (
            f", because of {shown(first.choice.setting, first.setting or '')}" if first.choice.setting else ""
        )
        title = (
            f"{group.backend} on {group.nodes(recording)} gives out {group.given_out}"
            f" ({first.choice.interface}){told}: {group.fault.why}"
        )
        yield draft(recording, group, title)


@rule("DD523", "choices-in-different-networks", Severity.INFO, InterfacesFact)
def choices_in_different_networks(recording: Recording) -> Iterator[Draft]:
    """Nodes that choose addresses of different networks, although they share one.

    What it finds
        In a run of several nodes: no network holds all of the chosen addresses, and another one holds
        an address of every node. Information: routed clusters have a network for each node, and are well.

    Why it matters
        Where no route leads from one to the other, connections time out. Whether one does is measured by the
        check reach, not here.

    Remedy
        Where the paths fail, the interface that the nodes share, by its name on each.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    offers = _offers(recording)
    if not offers or faults(offers) or not apart(offers):
        return
    better = better_interfaces(offers)
    sides = family_sides(offers)
    if better.shared and not all(sides):
        backend = words.backend_name(offers[0].backend)
        yield Draft(
            title=f"{backend} takes addresses of different networks, though the nodes share one",
            detail="Routers may well connect them. Where paths fail, the shared network is the one to take.",
            confidence=Confidence.POSSIBLE,
            culprits=culprits(recording, offers),
            evidence=evidence(recording, offers),
            remedies=(words.use_interface(recording, offers, better, offers),),
        )


@rule("DD524", "address-families-differ", Severity.ERROR, InterfacesFact)
def address_families_differ(recording: Recording) -> Iterator[Draft]:
    """IPv4 on some nodes, IPv6 on others.

    What it finds
        In a run of several nodes: a backend that gives out an IPv4 address on some and an IPv6 address on
        others. With NCCL only a warning where every node has addresses of both.

    Why it matters
        gloo ends with "ss1.ss_family == ss2.ss_family. 2 vs 10" on every node. NCCL dials from what it has,
        which a node without the other family cannot.

    Remedy
        One family: GLOO_SOCKET_IFNAME or an entry in /etc/hosts, NCCL_SOCKET_FAMILY.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-family
        gloo/transport/tcp/device.cc, Device::isInitiator
    """
    offers = _offers(recording)
    wrong = faults(offers)
    old, new = family_sides([offer for offer in offers if offer.node not in wrong])
    if not old or not new:
        return
    backend = words.backend_name(old[0].backend)
    both = all(can_speak(one, ipv6=True) for one in old) and all(can_speak(one, ipv6=False) for one in new)
    fewer = min(old, new, key=len)
    sides = [words.names(recording, (offer.node for offer in side)) for side in (new, old)]
    yield Draft(
        title=f"{backend} gives out IPv6 addresses on {sides[0]} and IPv4 addresses on {sides[1]}",
        detail=_WHY_ONE_FAMILY[backend],
        confidence=Confidence.PROVED if backend == "gloo" else Confidence.LIKELY,
        culprits=culprits(recording, [*old, *new] if len(old) == len(new) else fewer),
        evidence=evidence(recording, [new[0], old[0]]),
        remedies=(words.one_family(recording, [*old, *new]),),
        severity=Severity.WARNING if both and backend != "gloo" else None,
    )


@rule("DD526", "own-host-name-does-not-resolve", Severity.ERROR, InterfacesFact)
def own_host_name_does_not_resolve(recording: Recording) -> Iterator[Draft]:
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
    for group in groups(_offers(recording, "gloo"), "unresolved", lambda one: bool(one.address)):
        fallback = f"; gloo then gives out {group.given_out}" if group.given_out else ""
        title = f"On {group.nodes(recording)} the host does not find itself: {group.fault.why}{fallback}"
        yield draft(recording, group, title, severity=_used(recording, group))


CHECK = Check(
    id="interfaces",
    title="Network interfaces that gloo and NCCL take on each node",
    where=Where.NODE,
    probe=probe,
    facts=(InterfacesFact,),
    rules=(
        own_host_name_resolves_to_loopback,
        no_usable_interface,
        address_hidden_from_other_nodes,
        choices_in_different_networks,
        address_families_differ,
        own_host_name_does_not_resolve,
    ),
    cost_s=0.1,
    deadline_s=6.0,
)
