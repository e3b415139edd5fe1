"""DD520-DD524, DD526: interfaces and addresses that are unusable for other nodes or do not fit together."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.facts.collectives import AllReduceFact
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network import interface_faults
from ddp_doctor.knowledge.network.addresses import address_of, is_ipv6
from ddp_doctor.knowledge.network.interface_choice import GLOO_IFNAME, NCCL_FAMILY
from ddp_doctor.knowledge.network.interface_faults import Better, Fault, Kind, Offer, can_speak
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy, Reproducer, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies import interfaces, nccl
from ddp_doctor.remedies.interfaces import back_to, name_interfaces
from ddp_doctor.remedies.kinds import NO_TRIAL, by_administrator, remedy
from ddp_doctor.settings import values
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.network import offer_of
from ddp_doctor.wording.findings import finding, possible
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, host, hosts, name_list, node_culprit


def use_interface(
    recording: Recording, offers: Sequence[Offer], better: Better, replaced: Sequence[Offer] = ()
) -> Remedy:
    """Set the interface names on all these nodes. On nodes in ``replaced`` the variable already has another value."""
    why = "it is in the network that all nodes share" if better.shared else "it may lead to the other nodes"
    known = {offer.node: {interface.name for interface in offer.interfaces} for offer in offers}
    old = [offer.setting for offer in replaced if offer.setting]
    return name_interfaces(recording, offers[0].backend, known, better.interfaces, why, old)


def hosts_entry(
    recording: Recording, offers: Sequence[Offer], interfaces: Mapping[int, str], *, ipv6: bool = False
) -> Remedy:
    """Map each host name to the address of its own interface in /etc/hosts."""
    lines = []
    for offer in offers:
        own = [each for each in offer.interfaces if each.name == interfaces.get(offer.node)]
        held = [address_of(address) for each in own for address in each.addresses]
        fitting = [address for address in held if is_ipv6(address) == ipv6]
        lines += [f"{address} {host(recording, offer.node)}" for address in fitting[:1]]
    entries = f": {'; '.join(lines[:NAMES_IN_A_SENTENCE])}" if lines else ""
    return remedy(
        "Map the host's own name to its reachable address in /etc/hosts of"
        f" {hosts(recording, [offer.node for offer in offers])}{entries}",
        "getent ahosts $(hostname)",
        "grep -n $(hostname) /etc/hosts",
        cost="administrator access; affects other programs",
        undo="restore the previous line",
        untried="ddp-doctor does not change files of the host",
        references=("hosts(5)",),
    )


def connect(recording: Recording, offers: Sequence[Offer]) -> Remedy:
    """Return the fix for nodes without any interface that could lead to the others."""
    down = {
        interface.name
        for offer in offers
        for interface in offer.interfaces
        if interface.addresses and not interface.running
    }
    those = f" ({' and '.join(sorted(down))} is down or not connected)" if down else ""
    return by_administrator(
        f"Connect {hosts(recording, (offer.node for offer in offers))} to the network of the other nodes{those}",
        "ip -br link",
        "ip -br address",
        cost="administrator access, possibly work on the cable",
    )


def one_family(recording: Recording, offers: Sequence[Offer]) -> Remedy:
    """Let all nodes give out the family that all of them have, IPv4 before IPv6."""
    common = next((new for new in (False, True) if all(can_speak(offer, ipv6=new) for offer in offers)), None)
    if common is None:
        return by_administrator(
            "Configure addresses of one family on all nodes",
            "ip -br address",
            scope="cluster",
            cost="administrator access",
            undo="remove the addresses",
        )
    better = interface_faults.better_interfaces(offers, ipv6=common)
    if offers[0].backend != "gloo":
        family = "AF_INET6" if common else "AF_INET"
        return nccl.by_setting(
            f"Set {NCCL_FAMILY}={family}: all nodes have such an address",
            Setting(name=NCCL_FAMILY, value=family, why="all nodes then use one address family"),
        )
    if common:  # on an interface that has both, gloo takes IPv4
        of_other_family = [offer for offer in offers if not is_ipv6(offer.address)]
        return hosts_entry(recording, of_other_family, better.interfaces, ipv6=True)
    return use_interface(recording, offers, better, offers)


#: This many nodes are shown as evidence; the culprits name them all.
SHOWN = 4


@dataclass(frozen=True)
class Group:
    """The nodes that share one cause, among all."""

    fault: Fault
    offers: Sequence[Offer]
    sick: Sequence[Offer]

    @property
    def backend(self) -> str:
        """The backend whose choice it is, as a display name."""
        return interfaces.backend_name(self.sick[0].backend)

    @property
    def given_out(self) -> str:
        """The addresses that these nodes give to the others: "127.0.1.1", or "127.0.0.1 and 127.0.1.1"."""
        return name_list(list(dict.fromkeys(offer.address for offer in self.sick if offer.address)))

    def nodes(self, recording: Recording) -> str:
        """The nodes' names for a sentence."""
        return hosts(recording, (offer.node for offer in self.sick))

    def victims(self) -> list[Offer]:
        """The nodes that cannot connect with one of these, themselves included."""
        return interface_faults.victims(self.sick, self.offers)

    def severity(self, recording: Recording) -> Severity:
        """Return error if two nodes cannot connect, unless this is a prediction and all ranks have connected."""
        is_wrong_guess = not self.fault.sure and recording.first(AllReduceFact) is not None
        return Severity.WARNING if is_wrong_guess or not self.victims() else Severity.ERROR


def groups(offers: Sequence[Offer], kind: Kind, alike: Callable[[Offer], Hashable]) -> list[Group]:
    """Return the offers with a fault of this kind; offers with equal ``alike`` share a cause."""
    found = interface_faults.faults(offers)
    sick = (offer for offer in offers if offer.node in found and found[offer.node].kind == kind)
    by_cause = grouped((alike(offer), offer) for offer in sick)
    return [Group(found[group[0].node], offers, group) for group in by_cause.values()]


def draft(recording: Recording, group: Group, title: str) -> Draft:
    """Return a finding about the nodes of a group; info if the run uses another backend."""
    is_used, offered = recording.backend == group.sick[0].backend, remedies(recording, group)
    severity = group.severity(recording) if is_used else Severity.INFO
    return finding(
        culprits(recording, group.sick),
        title,
        evidence(recording, group.sick),
        *offered,
        confidence=Confidence.PROVED if group.fault.sure else Confidence.POSSIBLE,
        detail=_who_fails(recording, group),
        severity=severity,
        reproduced_by=reproduced_by(severity, offered),
    )


def reproduced_by(severity: Severity, offered: Sequence[Remedy]) -> Reproducer | None:
    """Reproduce the fault with ranks that do not meet, if it stops them and a setting may fix it."""
    stops = severity is Severity.ERROR
    return Reproducer(kind="meet") if stops and any(remedy.settings for remedy in offered) else None


def culprits(recording: Recording, offers: Sequence[Offer]) -> tuple[Culprit, ...]:
    """Return one culprit per node: the setting that decided there, or the node itself."""
    chosen = [(offer.node, offer.choice.setting) for offer in offers]
    return tuple(node_culprit(recording, node, kind="setting" if name else "node", name=name) for node, name in chosen)


def evidence(recording: Recording, offers: Sequence[Offer]) -> tuple[Evidence, ...]:
    """Return the addresses that the first of these nodes give out, and why."""
    source = interfaces.DIAL_RULE if offers[0].backend == "gloo" else interfaces.NCCL_ORDER
    return tuple(Evidence(text=_choice_in_words(recording, offer), expected_from=source) for offer in offers[:SHOWN])


def _choice_in_words(recording: Recording, offer: Offer) -> str:
    node, choice = host(recording, offer.node), offer.choice
    of = "of " if choice.setting and choice.why.startswith(f"{choice.setting}=") else ""
    because = f", because {of}{choice.why}" if choice.why else ""
    if choice.error or not choice.address:
        return f"{node}: {choice.error or 'not known'}{because}"
    return f"{node}: {choice.address} on {choice.interface or 'no interface'}{because}"


def _who_fails(recording: Recording, group: Group) -> str:
    """Describe which ranks fail because of it, or why none fails yet."""
    first = group.sick[0]
    if first.choice.error:
        return f"Every rank there fails when {group.backend} starts, and ranks of the other nodes wait."
    if not first.address:
        return "Every rank resolves it when gloo starts, waits, and uses loopback without an answer."
    if not group.fault.sure:
        return f"Ranks on other nodes may find no host or a different host at {group.given_out}."
    if first.backend == "gloo":
        return _who_dials_whom(recording, group)
    return f"NCCL ranks on other nodes connect to {group.given_out} and do not reach {group.nodes(recording)}."


def _who_dials_whom(recording: Recording, group: Group) -> str:
    """Return gloo's rule, applied to the first healthy node that it affects."""
    hurt, sick = group.victims(), {offer.node for offer in group.sick}
    if not hurt:
        return (
            "Of two nodes, the node with the larger address connects. No node has a larger"
            f" address than {group.given_out}, so the job runs. It breaks when a node with a"
            " larger address joins."
        )
    healthy = next((offer for offer in hurt if offer.node not in sick), None)
    if healthy is None:
        return f"Every node that connects to {group.given_out} reaches itself."
    return (
        "Of two nodes, the node with the larger address connects. This fails between"
        f" {host(recording, healthy.node)} ({healthy.address}) and {group.given_out}."
    )


def remedies(recording: Recording, group: Group) -> tuple[Remedy, ...]:
    """Return the fixes: another interface first, then the setting or host name that led to this one."""
    better, first = interface_faults.better_interfaces(group.offers), group.sick[0]
    stranded = [offer for offer in group.sick if offer.node not in better.interfaces]
    if stranded:  # no setting helps before they are connected
        return (connect(recording, stranded),)
    use = use_interface(recording, group.offers, better, group.sick)
    if group.fault.kind == "unusable":  # may apply to the host name's interface as well
        hosts = {offer.node: (offer.interfaces, offer.own_addresses) for offer in group.offers}
        use = interfaces.with_rendezvous(recording, use, hosts, better.interfaces)
    made = [use]
    if all(offer.choice.setting and offer.default_does for offer in group.sick):
        name = group.sick[0].choice.setting or ""
        old = sorted({offer.setting for offer in group.sick if offer.setting})
        made.append(
            Remedy(
                summary=f"Unset {name}; the default choice is reachable",
                settings=(Setting(name=name, action="unset", why="the default choice works"),),
                cost="may affect other programs that rely on it",
                undo=back_to(name, old),
                proof=NO_TRIAL,
            )
        )
    if first.backend == "gloo" and first.choice.setting is None:
        made.append(hosts_entry(recording, group.sick, better.interfaces))
    return tuple(made)


def offers_of(recording: Recording, backend: str | None = None) -> list[Offer]:
    """Return the offers of a multi-node run for a backend (default: the run's); empty for one node."""
    if not recording.several_nodes:
        return []
    return [offer_of(node, backend or recording.backend) for node in recording.facts(InterfacesFact)]


@rule("DD523", "choices-in-different-networks", Consequence.KNOWN, InterfacesFact)
def choices_in_different_networks(recording: Recording) -> Iterator[Draft]:
    """Nodes choose addresses in different networks, although they share a network.

    Finds: In a run of several nodes: no network contains all of the chosen addresses, but another contains an
        address of every node. Information, because routed clusters work with a network for each node.
    Why: Without a route between the networks, connections time out. The check reach tests the paths, not this rule.
    Remedy: If the paths fail, name the interface that the nodes share, by its name on each.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    offers = offers_of(recording)
    if not offers or interface_faults.faults(offers) or not interface_faults.apart(offers):
        return
    better = interface_faults.better_interfaces(offers)
    sides = interface_faults.family_sides(offers)
    if better.shared and not all(sides):
        backend = interfaces.backend_name(offers[0].backend)
        yield possible(
            culprits(recording, offers),
            f"{backend} uses addresses of different networks, but the nodes share one",
            evidence(recording, offers),
            use_interface(recording, offers, better, offers),
            detail="Routers may connect these networks. Use the shared network if connections fail.",
        )


@rule("DD524", "address-families-differ", Consequence.FAILS, InterfacesFact)
def address_families_differ(recording: Recording) -> Iterator[Draft]:
    """Some nodes use IPv4, others IPv6.

    Finds: In a run of several nodes: a backend that advertises an IPv4 address on some and an IPv6 address on
        others. With NCCL, a warning if every node has addresses of both.
    Why: gloo ends with "ss1.ss_family == ss2.ss_family. 2 vs 10" on every node. NCCL connects from its own address
        family, which fails on a node without the other one.
    Remedy: Choose one family: GLOO_SOCKET_IFNAME or an entry in /etc/hosts, NCCL_SOCKET_FAMILY.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-family
        gloo/transport/tcp/device.cc, Device::isInitiator
    """
    offers = offers_of(recording)
    wrong = interface_faults.faults(offers)
    old, new = interface_faults.family_sides([offer for offer in offers if offer.node not in wrong])
    if not old or not new:
        return
    backend = interfaces.backend_name(old[0].backend)
    both = all(can_speak(offer, ipv6=True) for offer in old) and all(can_speak(offer, ipv6=False) for offer in new)
    fewer = min(old, new, key=len)
    sides = [hosts(recording, (offer.node for offer in side)) for side in (new, old)]
    severity = Severity.WARNING if both and backend != "gloo" else Severity.ERROR
    offered = (one_family(recording, [*old, *new]),)
    yield finding(
        culprits(recording, [*old, *new] if len(old) == len(new) else fewer),
        f"{backend} uses IPv6 addresses on {sides[0]} and IPv4 addresses on {sides[1]}",
        evidence(recording, [new[0], old[0]]),
        *offered,
        confidence=Confidence.PROVED if backend == "gloo" else Confidence.LIKELY,
        detail="gloo fails immediately on both nodes of such a pair."
        if backend == "gloo"
        else "A node without an address of the other family cannot connect.",
        severity=severity,
        reproduced_by=reproduced_by(severity, offered),
    )


@rule("DD520", "own-host-name-resolves-to-loopback", Consequence.FAILS, InterfacesFact)
def own_host_name_resolves_to_loopback(recording: Recording) -> Iterator[Draft]:
    """A host's own name resolves to loopback, and gloo advertises that address to the other nodes.

    Finds: In a run of several nodes, without GLOO_SOCKET_IFNAME: nodes whose own name resolves to loopback
        (127.0.0.1, or 127.0.1.1, which Debian's installer writes into /etc/hosts). An error if some node must dial
        that address; a warning if none does; information if the run uses NCCL, which does not resolve names.
    Why: gloo advertises that address to the others. The side with the larger address dials, so in 192.168.x and
        172.16.x networks the others dial themselves, and blame their own ranks. In 10.x networks the node with
        127.0.1.1 dials, and the job runs until a node with a larger address joins.
    Remedy: Set GLOO_SOCKET_IFNAME to the interface that the nodes share, or correct the address in /etc/hosts.
    See: https://docs.pytorch.org/docs/stable/distributed.html
        gloo/transport/tcp/device.cc, Device::isInitiator
    """
    for group in groups(offers_of(recording, "gloo"), "own-name", lambda offer: offer.choice.setting):
        several = len(group.sick) > 1
        resolve = "resolve their host names" if several else "resolves its host name"
        tells = "gives that address to other nodes"
        title = f"{group.nodes(recording)} {resolve} to {group.given_out}, and gloo {tells}"
        yield draft(recording, group, title)


@rule("DD526", "own-host-name-does-not-resolve", Consequence.FAILS, InterfacesFact)
def own_host_name_does_not_resolve(recording: Recording) -> Iterator[Draft]:
    """A host's own name resolves to none of its addresses, so gloo falls back to loopback.

    Finds: In a run of several nodes, without GLOO_SOCKET_IFNAME: nodes whose own name is unknown on them, or
        resolves to addresses that the node does not have. Only possible if the resolver did not answer in time. A
        warning if no node must dial 127.0.0.1, or if the ranks still met. Information if the run uses NCCL.
    Why: torch warns ("Unable to resolve hostname to a (local) address") and gives 127.0.0.1 to the other nodes,
        which reach themselves. With a dead name server, every rank waits for it first.
    Remedy: Set GLOO_SOCKET_IFNAME to the interface that the nodes share, or add an entry to /etc/hosts.
    See: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, createDefaultDevice
    """
    for group in groups(offers_of(recording, "gloo"), "unresolved", lambda offer: bool(offer.address)):
        fallback = f"; gloo then gives {group.given_out} to other nodes" if group.given_out else ""
        why = group.fault.why.replace("its own name", "the host's own name")
        title = f"{group.nodes(recording)}: {why}{fallback}"
        yield draft(recording, group, title)


@rule("DD521", "no-usable-interface", Consequence.FAILS, InterfacesFact)
def no_usable_interface(recording: Recording) -> Iterator[Draft]:
    """A backend finds no interface, or only one that is down, usually because of a setting.

    Finds: In a run of several nodes: GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME names an interface that does not
        exist, has no address or is down; NCCL_SOCKET_IFNAME=^eth0, which leaves only loopback.
    Why: The ranks of that node fail at once, or advertise an unreachable address, and the ranks of all other nodes
        wait for them. A name that is right on one node may not exist on the next.
    Remedy: Name the interface that the nodes share, by its name on each, or unset the variable if the default
        works.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    for group in groups(offers_of(recording), "unusable", lambda offer: (offer.setting, offer.choice.error)):
        first = group.sick[0]
        if first.backend == "gloo" and first.setting and values.misread(GLOO_IFNAME, first.setting):
            continue  # DD122 names a value that gloo cannot take
        choice = f" with {shown(first.choice.setting, first.setting or '')}" if first.choice.setting else ""
        title = f"{group.backend} has no usable interface on {group.nodes(recording)}{choice}: {group.fault.why}"
        yield draft(recording, group, title)


@rule("DD522", "address-hidden-from-other-nodes", Consequence.FAILS, InterfacesFact)
def address_hidden_from_other_nodes(recording: Recording) -> Iterator[Draft]:
    """A chosen address is loopback, the same on several nodes, or on a bridge for containers.

    Finds: In a run of several nodes: such an address, chosen by a setting, a host name or NCCL's order. An error if
        some pair of nodes cannot connect, only possible if the interface's name (docker0, virbr0) is the only sign.
        A warning if gloo's dialing order avoids it, or if only the name is a sign and the ranks met.
    Why: A node that dials 127.0.0.1 or the docker0 address 172.17.0.1 reaches itself. No message explains it: gloo
        reports a refused connection on a healthy node, NCCL retries for a minute.
    Remedy: Name the interface that the nodes share, by its name on each, or unset the variable if the default
        works.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
        gloo/transport/tcp/device.cc, Device::isInitiator
    """
    for group in groups(offers_of(recording), "hidden", lambda offer: (offer.setting, offer.address)):
        first = group.sick[0]
        choice = f", because of {shown(first.choice.setting, first.setting or '')}" if first.choice.setting else ""
        title = (
            f"{group.backend} on {group.nodes(recording)} gives other nodes the address"
            f" {group.given_out} ({first.choice.interface}){choice}: {group.fault.why}"
        )
        yield draft(recording, group, title)
