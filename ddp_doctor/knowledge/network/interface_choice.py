"""The network interface that gloo and NCCL use on a host, and the address they give to the other nodes.

Sources: torch 2.13 torch/csrc/distributed/c10d/ProcessGroupGloo.cpp (createDefaultDevice) and init.cpp, gloo
gloo/transport/tcp/device.cc (lookupAddrForIface, lookupAddrForHostname); NCCL 2.30.7 src/misc/socket.cc
(ncclFindInterfaces), src/os/linux.cc (ncclOsFindInterfaces), src/misc/utils.cc (parseStringList, matchIfList) and
src/bootstrap.cc. Both walk getifaddrs(3): all of IPv4, then all of IPv6, by interface index.
"""

from collections.abc import Iterable, Mapping, Sequence

from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.addresses import address_of, is_loopback
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.context import Interface

GLOO_IFNAME = "GLOO_SOCKET_IFNAME"
NCCL_IFNAME = "NCCL_SOCKET_IFNAME"
NCCL_FAMILY = "NCCL_SOCKET_FAMILY"
NCCL_COMM_ID = "NCCL_COMM_ID"
#: The variables that decide; their values are in the fact.
SETTINGS = (GLOO_IFNAME, NCCL_IFNAME, NCCL_FAMILY, NCCL_COMM_ID)

#: NCCL's own order without a setting: the first entry that finds an interface.
NCCL_ORDER = (
    ("ib", "its name begins with ib"),
    ("^docker,lo,virbr", "it is the first that is not docker*, lo* or virbr*"),
    ("docker", "there are only docker*, lo* and virbr* interfaces"),
    ("lo", "there are only lo* and virbr* interfaces"),
    ("virbr", "there are only virbr* interfaces"),
)


class Choice(Frozen):
    """The choice of a backend on this host. If ``address`` and ``error`` are None, ``why`` says why it is unknown."""

    interface: str | None = None
    address: str | None = None  # without a prefix length
    why: str = ""  # completes "it takes this one, because …"; NAME=VALUE if a setting decided
    error: str | None = None  # the backend finds none, and fails
    setting: str | None = None  # the variable that decided


def holder(interfaces: Sequence[Interface], address: str) -> str | None:
    """Return the interface that has the address. All of 127.0.0.0/8 belongs to the interface with 127.0.0.1."""
    for interface in interfaces:
        for held in map(address_of, interface.addresses):
            if held == address or (":" not in address and is_loopback(address) and is_loopback(held)):
                return interface.name
    return None


def gloo_choice(interfaces: Sequence[Interface], env: Mapping[str, str], own_addresses: Sequence[str] | None) -> Choice:
    """Return gloo's choice: the configured interface, or the address of the host's own name, or loopback.

    ``own_addresses`` are the addresses of that name, in the resolver's order, or None if the resolver did not answer in
    time. A name without an address of this host is not an error for torch: it warns and uses 127.0.0.1.
    """
    if env.get(GLOO_IFNAME):
        return _gloo_told(interfaces, env[GLOO_IFNAME])
    if own_addresses is None:
        return Choice(why="its own name did not resolve in time")
    for address in own_addresses:
        interface = holder(interfaces, address)
        if interface is not None:
            return Choice(interface=interface, address=address, why=f"its own name resolves to {address}")
    where = f"resolves to {' and '.join(own_addresses)}, not its own" if own_addresses else "does not resolve"
    lo = holder(interfaces, "127.0.0.1")
    return Choice(interface=lo, address="127.0.0.1", why=f"its own name {where}")


def _gloo_told(interfaces: Sequence[Interface], value: str) -> Choice:
    """Return the choice for exact names. A list makes one device per name, so one wrong name fails all."""
    by_name = {interface.name: interface for interface in reversed(interfaces)}
    choices = []
    for name in value.removesuffix(",").split(","):
        if name not in by_name:
            choices.append(Choice(error=f"no interface is named {name!r}"))
        elif not by_name[name].addresses:
            choices.append(Choice(interface=name, error=f"{name} has no address"))
        else:
            choices.append(Choice(interface=name, address=address_of(by_name[name].addresses[0])))
    error = next((choice.error for choice in choices if choice.error), None)
    why = f"{GLOO_IFNAME}={value}"
    return choices[0].model_copy(update={"why": why, "error": error, "setting": GLOO_IFNAME})


def nccl_choice(interfaces: Sequence[Interface], env: Mapping[str, str]) -> Choice:
    """Return NCCL's choice for its bootstrap: the first running interface that the setting, or its own order, allows.

    NCCL before 2.28 also uses an interface that is down, if it has an address (seen with 2.27.5). Therefore libnccl
    itself is asked if possible.
    """
    if len(env.get(NCCL_COMM_ID, "")) > 1:
        return Choice(why=f"{NCCL_COMM_ID} is set, and NCCL looks for the network of that address")
    running = [interface for interface in interfaces if interface.running]
    family = env.get(NCCL_FAMILY, "")
    setting = env.get(NCCL_IFNAME, "")
    if len(setting) > 1:
        found = _first_match(running, setting, family)
        why = f"{NCCL_IFNAME}={setting}"
        error = None if found else f"no running interface with an address matches {setting!r}"
        return (found or Choice()).model_copy(update={"why": why, "error": error, "setting": NCCL_IFNAME})
    for prefixes, why in NCCL_ORDER:
        found = _first_match(running, prefixes, family)
        if found:
            return found.model_copy(update={"why": why})
    if family:
        return Choice(error=f"no running interface has an address of {NCCL_FAMILY}={family}", setting=NCCL_FAMILY)
    return Choice(error="no running interface has an address")


def _first_match(running: Iterable[Interface], names: str, family: str) -> Choice | None:
    """Return the first address on an interface that the list allows; IPv4 on any interface comes before IPv6."""
    ipv6 = {"AF_INET": False, "AF_INET6": True}.get(family)  # any other value is ignored
    usable = [
        (":" in address, position, interface.name, address)
        for position, interface in enumerate(running)
        if nccl_hca.takes(names, interface.name)
        for address in map(address_of, interface.addresses)
        if ipv6 in (None, ":" in address) and address != "::1"
    ]
    if not usable:
        return None
    _, _, name, address = min(usable, key=lambda candidate: candidate[:2])
    return Choice(interface=name, address=address)
