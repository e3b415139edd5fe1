"""Fixes for network interfaces: the settings that make a backend use another interface.

Sources: PyTorch documentation, "Common environment variables: choosing the network interface to use"; NCCL user guide,
NCCL_SOCKET_IFNAME and NCCL_SOCKET_FAMILY; hosts(5).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from ddp_doctor.knowledge.network.addresses import address_of, is_loopback
from ddp_doctor.knowledge.network.interface_choice import GLOO_IFNAME, NCCL_COMM_ID, NCCL_IFNAME, holder
from ddp_doctor.model.context import Interface
from ddp_doctor.model.finding import Remedy, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.remedies.kinds import NO_TRIAL
from ddp_doctor.settings.trials import LOCAL_ADDR
from ddp_doctor.settings.wording import shown
from ddp_doctor.wording.nodes import host

_GLOO_GUIDE = "https://docs.pytorch.org/docs/stable/distributed.html"
_NCCL_GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname"

#: The sources of the rules.
NCCL_ORDER = "NCCL, misc/socket.cc ncclFindInterfaces: the setting, otherwise its own order"
DIAL_RULE = "gloo, transport/tcp/device.cc: the side with the larger address connects"


def variable(backend: str) -> str:
    """Return the variable that sets this backend's interface."""
    return GLOO_IFNAME if backend == "gloo" else NCCL_IFNAME


def backend_name(backend: str) -> str:
    """Return a backend's name in its usual spelling."""
    return "gloo" if backend == "gloo" else "NCCL"


def name_interfaces(
    recording: Recording,
    backend: str,
    known: Mapping[int, Collection[str]],
    interfaces: Mapping[int, str],
    why: str,
    old: Iterable[str] = (),
) -> Remedy:
    """Return a fix that sets the backend's interface: one value for all nodes if possible, or one per node.

    ``known`` are the names of all interfaces of each node of the run, ``old`` the variable's previous values.
    """
    name, value = variable(backend), _one_value(backend, known, interfaces)
    settings = [Setting(name=name, value=value, why=why)]
    if not value:
        exactly = "" if backend == "gloo" else "="
        settings = [
            Setting(name=name, value=f"{exactly}{interface}", why=why, node=host(recording, node), node_rank=node)
            for node, interface in interfaces.items()
        ]
    return Remedy(
        summary=f"Set {name}{f'={value}' if value else ' on each node to its own interface'}: {why}",
        settings=tuple(settings),
        cost="ties the job to these names, which differ on other clusters",
        undo=back_to(name, old) or f"unset {name}",
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
    """Return the fix, with each node's address on the interface for torchrun if host names lead elsewhere.

    ``hosts`` are the interfaces of each node and the addresses of its own name: torchrun gives the workers the name of
    node rank 0 as MASTER_ADDR (torch, elastic/rendezvous/api.py, RendezvousStoreInfo).
    """

    def leads_elsewhere(node: int, name: str) -> bool:
        held, own = hosts.get(node, ((), ()))
        holders = {holder(held, address) for address in own if not is_loopback(address)}
        return bool(holders) and name not in holders

    if not any(leads_elsewhere(node, name) for node, name in interfaces.items()):
        return remedy
    settings = [
        Setting(
            name=LOCAL_ADDR,
            value=address_of(interface.addresses[0]),
            why="torchrun uses it as MASTER_ADDR, because the host's name leads elsewhere",
            node=host(recording, node),
            node_rank=node,
        )
        for node, (held, _) in hosts.items()
        for interface in held
        if interface.name == interfaces.get(node) and interface.addresses
    ]
    cost = f"{remedy.cost}; without torchrun, MASTER_ADDR must be set to that address of node rank 0"
    undo = f"{remedy.undo}; unset {LOCAL_ADDR}"
    return remedy.model_copy(update={"settings": (*remedy.settings, *settings), "cost": cost, "undo": undo})


def _one_value(backend: str, known: Mapping[int, Collection[str]], interfaces: Mapping[int, str]) -> str | None:
    """Return a value for all nodes. gloo opens every name of a list, so its value must be one name.

    NCCL uses every listed name that exists, so a node must not have two of them; without the = they would be prefixes.
    Returns None if there is no such value, or not every node needs one.
    """
    wanted = list(dict.fromkeys(interfaces.values()))
    if not wanted or not known.keys() <= interfaces.keys():
        return None
    if backend == "gloo":
        return wanted[0] if len(wanted) == 1 else None
    if any(len(set(there) & set(wanted)) > 1 for there in known.values()):
        return None
    return "=" + ",".join(wanted)


def back_to(name: str, old: Iterable[str]) -> str:
    """Return the line that restores the variable; in words if nodes had several values, because the last would win."""
    lines = [f"export {shown(name, value)}" for value in sorted(set(old))]
    return lines[0] if len(lines) == 1 else f"restore each node's own line: {' or '.join(lines)}" if lines else ""
