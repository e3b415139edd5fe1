"""Which hosts share a leaf switch, a block or a rack: SLURM's files of its topology, or a plain list.

``topology.conf``, as in topology.conf(5) of SLURM 22.05 to 26.11::

    SwitchName=leaf1 Nodes=node[1-4]
    SwitchName=leaf2 Nodes=node[5-8]
    SwitchName=spine Switches=leaf[1-2]

    BlockName=block1 Nodes=node[1-32]

``topology.yaml``, as in topology.yaml(5) of SLURM 25.05 to 26.11, and no other YAML::

    - topology: fat
      cluster_default: true
      tree:
        switches:
          - switch: spine
            children: leaf[1-2]
          - switch: leaf1
            nodes: node[1-4]

A plain list::

    rack1: node[1-4],node7
    rack2: node[5-6]
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ddp_doctor.model.recording import Leaf
from ddp_doctor.parse.hostlist import MOST_HOSTS, expand

_SETTING = re.compile(r'\s*(\w+)\s*=\s*("[^"]*"|\S+)', re.ASCII)
_YAML = re.compile(r"\s*(- +)?(\w+):(?:\s+(\S.*))?\s*|\s*- +\d+\s*|---\s*", re.ASCII)
_NAMES_OF_LEAVES = ("switch", "block", "ring")
_NAME = re.compile(r"\w[\w.:/+@ -]{0,63}")  # SLURM's have 64 characters at most


@dataclass
class _Unit:
    """A switch, block or rack as it is written."""

    line: int
    name: str = ""
    nodes: str = ""
    children: str = ""

    def set(self, key: str, value: str) -> None:
        """Take what may be of use."""
        if key.removesuffix("name") in _NAMES_OF_LEAVES and value:
            self.name = value
        elif key == "nodes":
            self.nodes = value
        elif key in ("switches", "children"):
            self.children = value


@dataclass
class _Topology:
    """One of the topologies of a file."""

    name: str
    units: list[_Unit]
    is_default: bool = False


def read_topology(text: str) -> tuple[Leaf, ...]:
    """The leaves of a text; those of a file of several topologies are named TOPOLOGY:LEAF, as SLURM does.

    A host is on one leaf: where several topologies name it, on that of the default one, or of the first.
    Raises ValueError with a sentence.
    """
    lines = [
        (number, line)
        for number, whole in enumerate(re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff")), 1)
        if (line := whole.partition("#")[0].rstrip())
    ]
    if not lines:
        raise ValueError("it is empty")
    if lines[0][1].startswith("-"):
        topologies = _of_yaml(lines)
    elif _SETTING.match(lines[0][1]):
        topologies = [_Topology("", list(_of_conf(lines)))]
    else:
        topologies = [_Topology("", list(_of_list(lines)))]
    topologies.sort(key=lambda topology: not topology.is_default)
    seen, leaves = set[str](), list[Leaf]()
    several = sum(any(unit.nodes for unit in topology.units) for topology in topologies) > 1
    for topology in topologies:
        for leaf in _leaves(topology.units):
            hosts = tuple(host for host in leaf.hosts if host not in seen)
            leaves.append(Leaf(name=f"{topology.name}:{leaf.name}" if several else leaf.name, hosts=hosts))
        seen.update(host for leaf in leaves for host in leaf.hosts)
    if not seen:
        raise ValueError("it names no hosts")
    return tuple(leaf for leaf in leaves if leaf.hosts)


def _of_list(lines: list[tuple[int, str]]) -> Iterator[_Unit]:
    for number, line in lines:
        name, colon, hosts = line.partition(":")
        if not colon or not name.strip() or not hosts.strip():
            raise _odd(number, line, "is neither SwitchName=LEAF Nodes=HOSTS nor LEAF: HOSTS")
        yield _Unit(number, name.strip(), hosts.strip())


def _of_conf(lines: list[tuple[int, str]]) -> Iterator[_Unit]:
    parts = list[str]()
    for number, line in lines:
        parts.append(line.removesuffix("\\"))
        if line.endswith("\\"):  # it goes on in the next
            continue
        whole = " ".join(parts)
        parts, unit, keys, at = [], _Unit(number), set[str](), 0
        while found := _SETTING.match(whole, at):
            keys.add(found[1].lower())
            unit.set(found[1].lower(), found[2].strip('"'))
            at = found.end()
        if whole[at:].strip() or not (unit.name or keys == {"blocksizes"}):
            raise _odd(number, whole, "is not SwitchName=LEAF Nodes=HOSTS, Switches=SWITCHES or BlockName=BLOCK")
        if unit.name:
            yield unit


def _of_yaml(lines: list[tuple[int, str]]) -> list[_Topology]:
    found, unit = list[_Topology](), _Unit(0)
    for number, line in lines:
        match = _YAML.fullmatch(line)
        if match is None:
            raise _odd(number, line, "is not as the manual of topology.yaml has it")
        dash, key, value = match[1], match[2], (match[3] or "").strip("'\"")
        if key == "topology":
            found.append(_Topology(value, []))
        elif key is not None and not found:
            raise _odd(number, line, "is not as topology.yaml begins: - topology: NAME")
        elif key == "cluster_default":
            found[-1].is_default = value.lower() in ("true", "yes", "on")
        elif key is not None:
            if dash:
                unit = _Unit(number)
                found[-1].units.append(unit)
            unit.set(key, value)
    return found


def _leaves(units: list[_Unit]) -> Iterator[Leaf]:
    """Raises ValueError where they are no tree, or a host is on two leaves."""
    by_name, leaf_of = dict[str, _Unit](), dict[str, str]()
    for unit in units:
        if not _NAME.fullmatch(unit.name):
            raise ValueError(f"line {unit.line}: {unit.name[:60]!r} is no name of a switch, block or rack")
        if unit.name in by_name:
            raise ValueError(f"line {unit.line}: {unit.name} was named before, in line {by_name[unit.name].line}")
        by_name[unit.name] = unit
    _require_tree(by_name)
    for unit in units:
        hosts = _expanded(unit, unit.nodes) if unit.nodes else ()
        for host in hosts:
            if leaf_of.setdefault(host, unit.name) != unit.name:
                raise ValueError(f"line {unit.line}: {host} is on two leaves, {leaf_of[host]} and {unit.name}")
        if len(leaf_of) > MOST_HOSTS:
            raise ValueError(f"line {unit.line}: more than {MOST_HOSTS} hosts")
        yield Leaf(name=unit.name, hosts=tuple(dict.fromkeys(hosts)))


def _require_tree(by_name: dict[str, _Unit]) -> None:
    parent_of = dict[str, str]()
    for unit in by_name.values():
        # SLURM ignores the switches below one that has nodes.
        for child in _expanded(unit, unit.children) if unit.children and not unit.nodes else ():
            if child not in by_name:
                raise ValueError(f"line {unit.line}: there is no switch {child}")
            if parent_of.setdefault(child, unit.name) != unit.name:
                raise ValueError(
                    f"line {unit.line}: switch {child} is below two others, {parent_of[child]} and {unit.name}"
                )
    rooted = set[str]()
    for name in by_name:
        way = dict[str, None]()
        at: str | None = name
        while at is not None and at not in rooted:
            if at in way:
                raise ValueError(f"line {by_name[at].line}: switch {at} is below itself")
            way[at] = None
            at = parent_of.get(at)
        rooted.update(way)


def _expanded(unit: _Unit, text: str) -> tuple[str, ...]:
    try:
        return expand(text)
    except ValueError as error:
        raise ValueError(f"line {unit.line}: {error}") from None


def _odd(number: int, line: str, why: str) -> ValueError:
    return ValueError(f"line {number}: {line.strip()[:60]!r} {why}")
