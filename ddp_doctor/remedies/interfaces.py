"""The words of findings about network interfaces: who gives out what, and which setting would do.

Sources: PyTorch documentation, "Common environment variables: choosing the network interface to use"; NCCL user
guide, NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY; hosts(5).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ddp_doctor.knowledge.network.addresses import address_of, is_ipv6, is_loopback
from ddp_doctor.knowledge.network.interface_choice import (
    GLOO_IFNAME,
    NCCL_COMM_ID,
    NCCL_FAMILY,
    NCCL_IFNAME,
    holder,
)
from ddp_doctor.knowledge.network.interface_faults import Better, Offer, better_interfaces, can_speak
from ddp_doctor.model.context import Interface
from ddp_doctor.model.finding import Remedy, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies import nccl_settings
from ddp_doctor.remedies.kinds import by_administrator, remedy
from ddp_doctor.remedies.settings import NO_TRIAL
from ddp_doctor.settings.trials import LOCAL_ADDR
from ddp_doctor.settings.wording import shown
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE

_GLOO_GUIDE = "https://docs.pytorch.org/docs/stable/distributed.html"
_NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname"

#: Where the rules are to be read.
NCCL_ORDER = "NCCL, misc/socket.cc ncclFindInterfaces: the setting, else its own order"
DIAL_RULE = "gloo, transport/tcp/device.cc: of two sides the one with the larger address dials"


def variable(backend: str) -> str:
    """The variable that names this backend's interface."""
    return GLOO_IFNAME if backend == "gloo" else NCCL_IFNAME


def backend_name(backend: str) -> str:
    """As people write it."""
    return "gloo" if backend == "gloo" else "NCCL"


def names(recording: Recording, nodes: Iterable[int]) -> str:
    """ "node0", "node0 and node1", "node0, node1, node2, node3 and 12 more"."""
    known = [hostname(recording, node) for node in nodes]
    if len(known) > NAMES_IN_A_SENTENCE:
        known = [*known[:NAMES_IN_A_SENTENCE], f"{len(known) - NAMES_IN_A_SENTENCE} more"]
    return " and ".join([", ".join(known[:-1]), known[-1]] if len(known) > 1 else known)


def hostname(recording: Recording, node: int) -> str:
    """The node's name for a sentence."""
    return recording.world.hostname(node) if recording.world else f"node rank {node}"


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


def name_interfaces(
    recording: Recording,
    backend: str,
    known: Mapping[int, Collection[str]],
    interfaces: Mapping[int, str],
    why: str,
    old: Iterable[str] = (),
) -> Remedy:
    """Tell the backend its interface: by one setting where one does on all nodes, else each node its own.

    ``known`` are the names of all interfaces of each node of the run, ``old`` the variable's values until now.
    """
    name, value = variable(backend), _one_value(backend, known, interfaces)
    settings = (
        (Setting(name=name, value=value, why=why),)
        if value
        else tuple(_each_its_own(recording, backend, interfaces, why))
    )
    return Remedy(
        summary=f"Set {name}{f'={value}' if value else ' on each node to its own interface'}: {why}",
        settings=settings,
        cost="the job then depends on these names; another cluster has others",
        undo=_back_to(name, old) or f"unset {name}",
        proof=NO_TRIAL,
        references=(_GLOO_GUIDE if backend == "gloo" else _NCCL_GUIDE,),
        conflicts=() if backend == "gloo" else (NCCL_COMM_ID,),
    )


def with_rendezvous(
    recording: Recording,
    remedy: Remedy,
    hosts: Mapping[int, tuple[Sequence[Interface], Sequence[str]]],
    interfaces: Mapping[int, str],
) -> Remedy:
    """The remedy, and torchrun told each node's address there, where host names lead to other interfaces.

    ``hosts`` are the interfaces of each node and what its own name resolves to: torchrun gives the workers
    the name of node rank 0 as MASTER_ADDR (torch, elastic/rendezvous/api.py, RendezvousStoreInfo).
    """
    if not any(_leads_elsewhere(*hosts[node], name) for node, name in interfaces.items() if node in hosts):
        return remedy
    settings = [
        Setting(
            name=LOCAL_ADDR,
            value=address_of(one.addresses[0]),
            why="torchrun gives it to the workers as MASTER_ADDR, where the host's name leads elsewhere",
            node=hostname(recording, node),
            node_rank=node,
        )
        for node, (held, _) in hosts.items()
        for one in held
        if one.name == interfaces.get(node) and one.addresses
    ]
    cost = f"{remedy.cost}; without torchrun, set MASTER_ADDR to that address of node rank 0"
    undo = f"{remedy.undo}; unset {LOCAL_ADDR}"
    return remedy.model_copy(update={"settings": (*remedy.settings, *settings), "cost": cost, "undo": undo})


def _leads_elsewhere(interfaces: Sequence[Interface], own: Sequence[str], name: str) -> bool:
    holders = {holder(interfaces, one) for one in own if not is_loopback(one)}
    return bool(holders) and name not in holders


def _one_value(
    backend: str, known: Mapping[int, Collection[str]], interfaces: Mapping[int, str]
) -> str | None:
    """A value for all nodes. gloo opens every name of a list, so there it must be one name.

    NCCL takes what it finds of a list, so there a node must not have two of the names; without the = they
    would be prefixes. None, too, where not every node is to have one.
    """
    wanted = list(dict.fromkeys(interfaces.values()))
    if not wanted or not known.keys() <= interfaces.keys():
        return None
    if backend == "gloo":
        return wanted[0] if len(wanted) == 1 else None
    if any(len(set(there) & set(wanted)) > 1 for there in known.values()):
        return None
    return "=" + ",".join(wanted)


def _each_its_own(
    recording: Recording, backend: str, interfaces: Mapping[int, str], why: str
) -> Iterator[Setting]:
    exactly = "" if backend == "gloo" else "="
    for node, interface in interfaces.items():
        yield Setting(
            name=variable(backend),
            value=f"{exactly}{interface}",
            why=why,
            node=hostname(recording, node),
            node_rank=node,
        )


def _back_to(name: str, old: Iterable[str]) -> str:
    """The line that gives the variable its former value; in words where nodes had several, for the last would win."""
    lines = [f"export {shown(name, one)}" for one in sorted(set(old))]
    return (
        lines[0]
        if len(lines) == 1
        else f"on each node its own line again: {' or '.join(lines)}"
        if lines
        else ""
    )


def unset_interface(offers: Sequence[Offer]) -> Remedy:
    """Let the backend choose by itself again, where that is known to do."""
    name = offers[0].choice.setting or ""
    old = sorted({offer.setting for offer in offers if offer.setting})
    return Remedy(
        summary=f"Or unset {name}: the choice without it can be reached",
        settings=(Setting(name=name, action="unset", why="the default choice does"),),
        cost="none, unless something else relies on it",
        undo=_back_to(name, old),
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
