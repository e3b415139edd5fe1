"""How findings speak of addresses that other nodes cannot reach: whom it hurts, how badly, and what fixes it."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.knowledge.network import interface_faults
from ddp_doctor.knowledge.network.addresses import address_of, is_ipv6
from ddp_doctor.knowledge.network.interface_choice import NCCL_FAMILY
from ddp_doctor.knowledge.network.interface_faults import Better, Fault, Kind, Offer, better_interfaces, can_speak
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Remedy, Reproducer, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies import interfaces, nccl
from ddp_doctor.remedies.interfaces import back_to, name_interfaces
from ddp_doctor.remedies.kinds import NO_TRIAL, by_administrator, remedy
from ddp_doctor.views.network import offer_of
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, host, hosts, name_list


def use_interface(
    recording: Recording, offers: Sequence[Offer], better: Better, replaced: Sequence[Offer] = ()
) -> Remedy:
    """Name the interfaces of all these nodes. On those in ``replaced`` the variable has another value now."""
    why = "it is in the network that all nodes share" if better.shared else "it may lead to the other nodes"
    known = {offer.node: {interface.name for interface in offer.interfaces} for offer in offers}
    old = [offer.setting for offer in replaced if offer.setting]
    return name_interfaces(recording, offers[0].backend, known, better.interfaces, why, old)


def unset_interface(offers: Sequence[Offer]) -> Remedy:
    """Let the backend choose by itself again, where that is known to do."""
    name = offers[0].choice.setting or ""
    old = sorted({offer.setting for offer in offers if offer.setting})
    return Remedy(
        summary=f"Or unset {name}: the choice without it can be reached",
        settings=(Setting(name=name, action="unset", why="the default choice does"),),
        cost="none, unless something else relies on it",
        undo=back_to(name, old),
        proof=NO_TRIAL,
    )


def hosts_entry(
    recording: Recording, offers: Sequence[Offer], interfaces: Mapping[int, str], *, ipv6: bool = False
) -> Remedy:
    """Give each of these host names the address of its own interface in /etc/hosts."""
    lines = [
        f"{address} {host(recording, offer.node)}"
        for offer in offers
        if (address := _address_on(offer, interfaces.get(offer.node), ipv6))
    ]
    entries = f": {'; '.join(lines[:NAMES_IN_A_SENTENCE])}" if lines else ""
    return remedy(
        f"In /etc/hosts of {hosts(recording, [offer.node for offer in offers])} give the host's own"
        f" name the address that others reach{entries}",
        "getent ahosts $(hostname)",
        "grep -n $(hostname) /etc/hosts",
        cost="an administrator's work; other programs see the change too",
        undo="put the former line back",
        untried="the doctor changes no file of the host",
        references=("hosts(5)",),
    )


def _address_on(offer: Offer, interface: str | None, ipv6: bool) -> str | None:
    held = [address_of(address) for each in offer.interfaces if each.name == interface for address in each.addresses]
    return next((address for address in held if is_ipv6(address) == ipv6), None)


def connect(recording: Recording, offers: Sequence[Offer]) -> Remedy:
    """For nodes that have no interface at all which could lead to the others."""
    down = {
        interface.name
        for offer in offers
        for interface in offer.interfaces
        if interface.addresses and not interface.running
    }
    those = f" ({' and '.join(sorted(down))} is down or not connected)" if down else ""
    return by_administrator(
        f"Connect {hosts(recording, (offer.node for offer in offers))} to the network of the others{those}",
        "ip -br link",
        "ip -br address",
        cost="an administrator's work, and maybe hands at the cable",
    )


def one_family(recording: Recording, offers: Sequence[Offer]) -> Remedy:
    """Let all nodes give out the family that all of them have, IPv4 before IPv6."""
    common = next((new for new in (False, True) if all(can_speak(offer, ipv6=new) for offer in offers)), None)
    if common is None:
        return by_administrator(
            "Give all nodes addresses of one family",
            "ip -br address",
            scope="cluster",
            cost="an administrator's work",
            undo="take the addresses away again",
        )
    better = better_interfaces(offers, ipv6=common)
    if offers[0].backend != "gloo":
        family = "AF_INET6" if common else "AF_INET"
        return nccl.by_setting(
            f"Set {NCCL_FAMILY}={family}: all nodes have such an address",
            Setting(name=NCCL_FAMILY, value=family, why="all nodes then give out one family"),
            cost="none between these nodes",
        )
    if common:  # on an interface that has both, gloo takes IPv4
        of_other_family = [offer for offer in offers if not is_ipv6(offer.address)]
        return hosts_entry(recording, of_other_family, better.interfaces, ipv6=True)
    return use_interface(recording, offers, better, offers)


#: This many nodes are shown as evidence; the culprits name them all.
SHOWN = 4


class Group:
    """The nodes that share one cause, among all."""

    def __init__(self, fault: Fault, offers: Sequence[Offer]) -> None:
        self.fault = fault
        self.offers = offers
        self.sick: list[Offer] = []

    @property
    def backend(self) -> str:
        """The backend whose choice it is, as people write it."""
        return interfaces.backend_name(self.sick[0].backend)

    @property
    def given_out(self) -> str:
        """ "127.0.1.1", or "127.0.0.1 and 127.0.1.1": what these nodes give to the others."""
        return name_list(list(dict.fromkeys(offer.address for offer in self.sick if offer.address)))

    def nodes(self, recording: Recording) -> str:
        """The nodes' names for a sentence."""
        return hosts(recording, (offer.node for offer in self.sick))

    def victims(self) -> list[Offer]:
        """The nodes that cannot connect with one of these, themselves included."""
        return interface_faults.victims(self.sick, self.offers)

    def severity(self) -> Severity:
        """An error where some pair of nodes cannot connect; with gloo's rule of who dials that may be luck."""
        return Severity.ERROR if self.fault.sure and self.victims() else Severity.WARNING


def groups(offers: Sequence[Offer], kind: Kind, alike: Callable[[Offer], object]) -> Iterable[Group]:
    """The offers with a fault of this kind; those with the same value of ``alike`` share a cause."""
    found = interface_faults.faults(offers)
    made: dict[object, Group] = {}
    for offer in offers:
        fault = found.get(offer.node)
        if fault is not None and fault.kind == kind:
            made.setdefault(alike(offer), Group(fault, offers)).sick.append(offer)
    return made.values()


def draft(recording: Recording, group: Group, title: str, severity: Severity | None = None) -> Draft:
    """A finding about the nodes of a group; ``severity`` where it is not the group's own."""
    severity, offered = severity or group.severity(), remedies(recording, group)
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
    """Ranks that do not meet show the fault, where it stops them and a setting may fix it."""
    stops = severity is Severity.ERROR
    return Reproducer(kind="meet") if stops and any(remedy.settings for remedy in offered) else None


def culprits(recording: Recording, offers: Sequence[Offer]) -> tuple[Culprit, ...]:
    """One for each node: the setting that decided there, or the node itself."""
    return tuple(
        Culprit(
            kind="setting" if offer.choice.setting else "node",
            node=host(recording, offer.node),
            node_rank=offer.node,
            name=offer.choice.setting,
        )
        for offer in offers
    )


def evidence(recording: Recording, offers: Sequence[Offer]) -> tuple[Evidence, ...]:
    """What the first of these nodes give out, and why."""
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
    """Who fails over it, or why nobody does yet."""
    first = group.sick[0]
    if first.choice.error:
        return f"Every rank there fails where {group.backend} starts, and the ranks of the other nodes wait."
    if not first.address:
        return "Every rank asks for it when gloo starts, waits, and uses loopback if no answer comes."
    if not group.fault.sure:
        return f"The ranks on the other nodes may find nobody at {group.given_out}, or somebody else."
    if first.backend == "gloo":
        return _who_dials_whom(recording, group)
    return f"NCCL's ranks on the other nodes connect to {group.given_out} and do not reach {group.nodes(recording)}."


def _who_dials_whom(recording: Recording, group: Group) -> str:
    """gloo's rule, applied to the first healthy node that it hurts."""
    hurt, sick = group.victims(), {offer.node for offer in group.sick}
    if not hurt:
        return (
            f"Of two nodes the one with the larger address connects to the other. Nobody has a larger one than"
            f" {group.given_out}, so the job runs; it breaks when a node with a larger address joins."
        )
    healthy = next((offer for offer in hurt if offer.node not in sick), None)
    if healthy is None:
        return f"Whoever connects to {group.given_out} reaches itself."
    return (
        "Of two nodes the one with the larger address connects to the other, here between"
        f" {host(recording, healthy.node)} ({healthy.address}) and {group.given_out}: in vain."
    )


def remedies(recording: Recording, group: Group) -> tuple[Remedy, ...]:
    """Another interface; then what led to this one: no setting where the default does, or the host's name."""
    better, first = interface_faults.better_interfaces(group.offers), group.sick[0]
    stranded = [offer for offer in group.sick if offer.node not in better.interfaces]
    if stranded:  # no setting helps before they are connected
        return (connect(recording, stranded),)
    use = use_interface(recording, group.offers, better, group.sick)
    if group.fault.kind == "unusable":  # the host's name is one, too, where it leads there
        hosts = {offer.node: (offer.interfaces, offer.own_addresses) for offer in group.offers}
        use = interfaces.with_rendezvous(recording, use, hosts, better.interfaces)
    made = [use]
    if all(offer.choice.setting and offer.default_does for offer in group.sick):
        made.append(unset_interface(group.sick))
    if first.backend == "gloo" and first.choice.setting is None:
        made.append(hosts_entry(recording, group.sick, better.interfaces))
    return tuple(made)


def offers_of(recording: Recording, backend: str | None = None) -> list[Offer]:
    """The nodes of a run of several, as a backend (the run's) presents them; none in a run of one."""
    world = recording.world
    if world is None or world.nnodes < 2:
        return []
    return [offer_of(node, backend or world.backend) for node in recording.facts(InterfacesFact)]


def severity_unless_used(recording: Recording, group: Group) -> Severity | None:
    """Information where the run's backend is another one; else the group's own severity."""
    in_use = recording.world is not None and recording.world.backend == group.sick[0].backend
    return None if in_use else Severity.INFO
