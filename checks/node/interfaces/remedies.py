"""Which setting or which hands bring the nodes together."""

from collections.abc import Mapping, Sequence

from ddp_doctor.knowledge.network.addresses import address_of, is_ipv6
from ddp_doctor.knowledge.network.interface_choice import NCCL_FAMILY
from ddp_doctor.knowledge.network.interface_faults import Better, Offer, better_interfaces, can_speak
from ddp_doctor.model.finding import Remedy, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies import nccl_settings
from ddp_doctor.remedies.interfaces import back_to, hostname, name_interfaces, names
from ddp_doctor.remedies.kinds import by_administrator, remedy
from ddp_doctor.remedies.settings import NO_TRIAL
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE


def given_out(offers: Sequence[Offer]) -> str:
    """ "127.0.1.1", or "127.0.0.1 and 127.0.1.1": what these nodes give to the others."""
    known = list(dict.fromkeys(offer.address for offer in offers if offer.address))
    return " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)


def use_interface(
    recording: Recording, offers: Sequence[Offer], better: Better, told: Sequence[Offer] = ()
) -> Remedy:
    """Name the interfaces of all these nodes. ``told`` are those on which the variable has another value now."""
    why = "it is in the network that all nodes share" if better.shared else "it may lead to the other nodes"
    known = {offer.node: {interface.name for interface in offer.interfaces} for offer in offers}
    old = [offer.setting for offer in told if offer.setting]
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
        f"{address} {hostname(recording, offer.node)}"
        for offer in offers
        if (address := _address_on(offer, interfaces.get(offer.node), ipv6))
    ]
    entries = f": {'; '.join(lines[:NAMES_IN_A_SENTENCE])}" if lines else ""
    return remedy(
        f"In /etc/hosts of {names(recording, [offer.node for offer in offers])} give the host's own"
        f" name the address that others reach{entries}",
        "getent ahosts $(hostname)",
        "grep -n $(hostname) /etc/hosts",
        cost="an administrator's work; other programs see the change too",
        undo="put the former line back",
        untried="the doctor changes no file of the host",
        references=("hosts(5)",),
    )


def _address_on(offer: Offer, interface: str | None, ipv6: bool) -> str | None:
    held = [
        address_of(address)
        for each in offer.interfaces
        if each.name == interface
        for address in each.addresses
    ]
    return next((one for one in held if is_ipv6(one) == ipv6), None)


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
        f"Connect {names(recording, (offer.node for offer in offers))} to the network of the others{those}",
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
        return _use_family("AF_INET6" if common else "AF_INET")
    if common:  # on an interface that has both, gloo takes IPv4
        other = [offer for offer in offers if not is_ipv6(offer.address)]
        return hosts_entry(recording, other, better.interfaces, ipv6=True)
    return use_interface(recording, offers, better, offers)


def _use_family(family: str) -> Remedy:
    return nccl_settings.remedy(
        f"Set {NCCL_FAMILY}={family}: all nodes have such an address",
        Setting(name=NCCL_FAMILY, value=family, why="all nodes then give out one family"),
        cost="none between these nodes",
    )
