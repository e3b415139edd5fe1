"""The settings of one fix by variable: one value for all hosts, or a value for each host.

    NCCL_SOCKET_IFNAME=eth1 on node rank 0, =ens2 on node rank 1   ->  node0: eth1, node1: ens2
    OMP_NUM_THREADS=4 on each of all nodes                         ->  everywhere: 4

Not every name and value may be passed to a shell. A value that does not print (a newline, an escape, a mark that
reverses text) is refused instead of quoted: no setting needs it, and people read these lines before they paste them.
The shell's own variables are also omitted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ddp_doctor.model.base import grouped
from ddp_doctor.model.finding import Setting
from ddp_doctor.model.recording import World


@dataclass(frozen=True)
class Branch:
    """A value, None for unset, and its hosts. Without hosts, it is for all (other) hosts."""

    value: str | None
    hosts: tuple[str, ...] = ()


class Unclear(Exception):
    """The settings do not determine which host gets which value. The message explains why."""


def branches(settings: Sequence[Setting], world: World | None) -> tuple[Branch, ...]:
    """Return the values of one variable. Raises Unclear."""
    general = {_value(setting) for setting in settings if setting.node is None and setting.node_rank is None}
    if len(general) > 1:
        raise Unclear("the fix sets this variable to two different values")
    own = _by_host(settings, world)
    everywhere = tuple(Branch(value) for value in general)
    hosts = {node.hostname for node in world.nodes} if world and len(world.nodes) == world.nnodes else set()
    if own and not general and hosts and own.keys() >= hosts and len(set(own.values())) == 1:
        return (Branch(next(iter(own.values()))),)
    by_value = grouped((value, host) for host, value in own.items() if value not in general)
    return (*(Branch(value, tuple(hosts)) for value, hosts in by_value.items()), *everywhere)


def namesakes(found: Iterable[Branch], world: World | None) -> frozenset[str]:
    """Return short names that several hosts of the world, or of the branches, share."""
    hosts = {node.hostname for node in world.nodes} if world else set()
    hosts.update(host for branch in found for host in branch.hosts)
    return frozenset(short for short, count in Counter(map(short_name, hosts)).items() if count > 1)


def short_name(host: str) -> str:
    """Return a host's name without its domain."""
    return host.partition(".")[0]


def _value(setting: Setting) -> str | None:
    return None if setting.action == "unset" else setting.value or ""


def _by_host(settings: Sequence[Setting], world: World | None) -> dict[str, str | None]:
    own: dict[str, str | None] = {}
    by_rank: Counter[str] = Counter()
    for setting in settings:
        host = _host(setting, world)
        if host is None:
            continue
        if own.setdefault(host, _value(setting)) != _value(setting):
            raise Unclear(f"the fix sets this variable to two different values on {host}")
        by_rank[host] += setting.node_rank is not None
    of_name = Counter(node.hostname for node in world.nodes) if world else Counter()
    for host, count in by_rank.items():
        if 0 < count < of_name[host]:
            raise Unclear(f"several nodes have the host name {host}")
    return own


def _host(setting: Setting, world: World | None) -> str | None:
    """Return the host that a setting is for, or None if it is for all."""
    if setting.node is None and setting.node_rank is None:
        return None
    host = setting.node
    if host is None and world is not None and setting.node_rank is not None:
        host = world.hostname(setting.node_rank)
    if host is None or not is_host(host):
        raise Unclear(f"the host name of {host or f'node rank {setting.node_rank}'} is unknown")
    return host


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,255}")
#: Variables that bash does not allow to set, and variables that make a shell, the loader or Python run something else.
_NOT_FOR_JOBS = {
    *("_", "BASHOPTS", "BASH_ENV", "BASH_VERSINFO", "ENV", "EUID", "GROUPS", "IFS", "LD_AUDIT", "LD_PRELOAD"),
    *("PATH", "PPID", "PROMPT_COMMAND", "PS1", "PS2", "PS4", "PYTHONSTARTUP", "SHELLOPTS", "UID"),
}
#: The kernel accepts 128 KiB. A value longer than a path is a mistake or an attack.
_LONGEST_VALUE = 4096


def why_not(name: str, value: str | None) -> str:
    """Return why this variable cannot be applied, or "". A value of None unsets it."""
    if not _NAME.fullmatch(name) or name in _NOT_FOR_JOBS:
        return "its name is not that of a job's variable"
    if value is not None and not value.isprintable():
        return "its value holds characters that do not print"
    if value is not None and len(value) > _LONGEST_VALUE:
        return f"its value has {len(value)} characters"
    return ""


def is_host(name: str) -> bool:
    """Return True if a text can be a host's name."""
    return _HOST.fullmatch(name) is not None
