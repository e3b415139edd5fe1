"""The hosts on each leaf switch, block or rack: SLURM's topology files, or a plain list.

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
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ddp_doctor.model.base import grouped
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import Leaf
from ddp_doctor.parse.hostlist import MOST_HOSTS, expand

_SETTING = re.compile(r'\s*(\w+)\s*=\s*("[^"]*"|\S+)', re.ASCII)
_YAML = re.compile(r"\s*(- +)?(\w+):(?:\s+(\S.*))?\s*|\s*- +\d+\s*|---\s*", re.ASCII)
_UNITS = ("switch", "block", "ring")
#: A partition has one; each may name all hosts.
_MOST_TOPOLOGIES = 16
_NAME = re.compile(r"\w[\w.:/+@ -]{0,63}")  # SLURM's have at most 64 characters


class _Entry(NamedTuple):
    """A switch, block or rack as written, or another entry without a name and nodes."""

    line: int
    topology: str  # empty in files of one
    fields: dict[str, str]  # by the keys of topology.yaml

    @property
    def name(self) -> str:
        return next((self.fields[kind] for kind in _UNITS if self.fields.get(kind)), "")

    def expanded(self, key: str) -> tuple[str, ...]:
        """Return its nodes or children without duplicates. Raises ValueError."""
        try:
            return tuple(dict.fromkeys(expand(self.fields[key]))) if self.fields.get(key) else ()
        except ValueError as error:
            raise self.wrong(str(error)) from None

    def wrong(self, why: str) -> ValueError:
        return ValueError(f"{why} (line {self.line})")


def read_topology(text: str) -> tuple[Leaf, ...]:
    """Return the leaves of a text. In a file of several topologies they are named TOPOLOGY:LEAF, as in SLURM.

    A host is on one leaf. If several topologies name it, the leaf of the default topology counts, or of the first one.
    Raises ValueError with a sentence.
    """
    lines = [
        (number, line)
        for number, whole in enumerate(re.split(r"\r\n|\n|\r", text.removeprefix("\ufeff")), 1)
        if (line := whole.partition("#")[0].rstrip())
    ]
    if not lines:
        raise ValueError("it is empty")
    is_conf = _SETTING.match(lines[0][1])
    entries = list(_of_yaml(lines) if lines[0][1].startswith("-") else _of_conf(lines) if is_conf else _of_list(lines))
    defaults = {entry.topology for entry in entries if entry.fields.get("cluster_default", "").lower() == "true"}
    topologies = grouped((entry.topology, entry) for entry in entries if entry.name or entry.fields.get("nodes"))
    if len(topologies) > _MOST_TOPOLOGIES:
        raise ValueError(f"it exceeds the limit of {_MOST_TOPOLOGIES} topologies")
    seen, leaves = set[str](), list[Leaf]()
    for topology in sorted(topologies, key=lambda name: name not in defaults):
        own = list(_leaves(topologies[topology]))
        for leaf in own:
            name = f"{topology}:{leaf.name}" if len(topologies) > 1 else leaf.name
            leaves.append(Leaf(name=name, hosts=tuple(host for host in leaf.hosts if host not in seen)))
        seen.update(host for leaf in own for host in leaf.hosts)
    if not seen:
        raise ValueError("it does not list any host")
    return tuple(leaf for leaf in leaves if leaf.hosts)


def _of_list(lines: Sequence[tuple[int, str]]) -> Iterator[_Entry]:
    for number, line in lines:
        name, _, hosts = (part.strip() for part in line.partition(":"))
        if not name or not hosts:
            raise _odd(number, line, "is neither SwitchName=LEAF Nodes=HOSTS nor LEAF: HOSTS")
        yield _Entry(number, "", {"switch": name, "nodes": hosts})


def _of_conf(lines: Sequence[tuple[int, str]]) -> Iterator[_Entry]:
    parts = list[str]()
    for number, line in lines:
        parts.append(line.removesuffix("\\"))
        if line.endswith("\\"):  # it continues in the next line
            continue
        whole, at, fields = " ".join(parts), 0, dict[str, str]()
        while found := _SETTING.match(whole, at):
            key = found[1].lower().removesuffix("name")
            fields["children" if key == "switches" else key] = found[2].strip('"')
            at = found.end()
        entry = _Entry(number, "", fields)
        if whole[at:].strip() or not (entry.name or fields.keys() == {"blocksizes"}):
            raise _odd(number, whole, "is none of SwitchName=LEAF Nodes=HOSTS, Switches=SWITCHES and BlockName=BLOCK")
        yield entry
        parts = []


def _of_yaml(lines: Sequence[tuple[int, str]]) -> Iterator[_Entry]:
    """Yield an entry for each dash. Fields after the end of an inner list count as fields of its last entry."""
    topology, entry = "", _Entry(0, "", {})
    for number, line in lines:
        match = _YAML.fullmatch(line)
        if match is None:
            raise _odd(number, line, "does not match the topology.yaml format")
        dash, key, value = match[1], match[2], (match[3] or "").strip("'\"")
        topology = value if key == "topology" else topology
        if key is not None and not topology:
            raise _odd(number, line, "is not a valid first line of topology.yaml; expected `- topology: NAME`")
        if dash:
            yield entry
            entry = _Entry(number, topology, {})
        entry.fields[key or ""] = value
    yield entry


def _leaves(entries: Sequence[_Entry]) -> Iterator[Leaf]:
    """Yield the leaves. Raises ValueError if the switches are not a tree, or a host is on two leaves."""
    by_name, leaf_of = dict[str, _Entry](), dict[str, str]()
    for entry in entries:
        if not _NAME.fullmatch(entry.name):
            raise entry.wrong(f"{quoted(entry.name)} is not a valid switch, block or rack name")
        if entry.name in by_name:
            raise ValueError(
                f"{entry.name} is defined in line {by_name[entry.name].line} and again in line {entry.line}"
            )
        by_name[entry.name] = entry
    _require_tree(by_name)
    for entry in entries:
        hosts = entry.expanded("nodes")
        for host in hosts:
            if leaf_of.setdefault(host, entry.name) != entry.name:
                raise entry.wrong(f"{host} is on two leaves, {leaf_of[host]} and {entry.name}")
        if len(leaf_of) > MOST_HOSTS:
            raise entry.wrong(f"the file exceeds the limit of {MOST_HOSTS} hosts")
        yield Leaf(name=entry.name, hosts=hosts)


def _require_tree(by_name: dict[str, _Entry]) -> None:
    parent_of = dict[str, str]()
    for entry in by_name.values():
        # SLURM ignores the switches below a switch that has nodes.
        for child in () if entry.fields.get("nodes") else entry.expanded("children"):
            if child not in by_name:
                raise entry.wrong(f"switch {quoted(child)} is not defined")
            if parent_of.setdefault(child, entry.name) != entry.name:
                raise entry.wrong(f"switch {child} is a child of two switches, {parent_of[child]} and {entry.name}")
    rooted = set[str]()
    for name, entry in by_name.items():
        way, at = set[str](), name
        while at and at not in rooted:
            if at in way:
                raise entry.wrong(f"switch {at} is its own descendant")
            way.add(at)
            at = parent_of.get(at, "")
        rooted |= way


def _odd(number: int, line: str, why: str) -> ValueError:
    return ValueError(f"{quoted(line.strip())} in line {number} {why}")
