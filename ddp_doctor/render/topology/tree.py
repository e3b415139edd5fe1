"""The machine behind a matrix, reconstructed from its codes: NUMA nodes, host bridges, PCIe switches, NVLink.

A matrix has codes between pairs and no tree. PIX and PXB join devices below common PCIe bridges, PHB devices below one
host bridge, and NODE devices of one NUMA node. For GPUs joined by NVLink the matrix hides the PCIe path, so their host
bridge may be unknown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from ddp_doctor.facts.node.topology import TopologyMatrix
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.knowledge.topology.link_codes import connected
from ddp_doctor.model.base import grouped

#: Maximum number of NVLinks of a GPU; a GPU that would need more for direct links to all others uses a switch.
_MOST_NVLINKS = 18
#: More GPUs than this without common parts are drawn as one block.
_MOST_APART = 12
_NONE = "N/A"


@dataclass(frozen=True)
class Group:
    """Devices below common PCIe bridges (``code`` PIX or PXB), or a single one (""); ``parts`` are its PIX groups."""

    code: str
    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    parts: tuple["Group", ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The group's GPUs and NICs."""
        return (*self.gpus, *self.nics)


@dataclass(frozen=True)
class Bridge:
    """The devices below one host bridge; below several or unknown ones if ``count`` is not 1."""

    groups: tuple[Group, ...]
    count: int = 1  # 0: unknown


@dataclass(frozen=True)
class Box:
    """A NUMA node (or a range of them, or a set of CPUs), or the remaining devices."""

    title: str
    cpus: str
    bridges: tuple[Bridge, ...]

    def devices(self) -> Iterator[str]:
        """Yield all GPUs and NICs in the box."""
        for bridge in self.bridges:
            for group in bridge.groups:
                yield from group.devices


@dataclass(frozen=True)
class Fabric:
    """GPUs that all have NVLinks to each other; ``links`` is the number of links of each."""

    links: dict[str, int]
    switched: bool


@dataclass(frozen=True)
class Machine:
    """A host. ``bridged`` are pairs with NVLinks outside of ``fabric``; ``between`` joins neighbors."""

    boxes: tuple[Box, ...]
    between: tuple[str, ...]
    fabric: Fabric | None
    bridged: tuple[tuple[str, str, int], ...]


def machine_of(matrix: TopologyMatrix) -> Machine:
    """Return the machine that the matrix shows."""
    boxes = tuple(_box(matrix, title, cpus, devices) for title, cpus, devices in _places(matrix))
    fabric = _fabric(matrix)
    linked = ((gpu, peer, link_codes.nvlinks(code)) for gpu, peer, code in matrix.gpu_pairs())
    bridged = tuple(pair for pair in linked if pair[2] and fabric is None)
    between = []  # the code between each box and the next; the farthest code if pairs differ
    for box, neighbor in pairwise(boxes):
        codes = {pcie_code(matrix, a, b) for a in box.devices() for b in neighbor.devices()}
        between.append(max(filter(None, codes), key=lambda code: link_codes.link_code(code).distance, default=""))
    return Machine(boxes, tuple(between), fabric, bridged)


def pcie_code(matrix: TopologyMatrix, first: str, peer: str) -> str | None:
    """Return the PCIe path between two devices, or None if NVLink hides it or the rows disagree or lack it."""
    code = matrix.links[first].get(peer, "")
    is_told = code and code == matrix.links[peer].get(first)
    return code if is_told and not link_codes.nvlinks(code) else None


def _is_near(code: str | None, limit: str) -> bool:
    return code is not None and link_codes.link_code(code).distance <= link_codes.link_code(limit).distance


def _pairs_within(matrix: TopologyMatrix, devices: Sequence[str], limit: str) -> Iterator[tuple[str, str]]:
    for first, peer in combinations(devices, 2):
        if _is_near(pcie_code(matrix, first, peer), limit):
            yield first, peer


# --- NUMA nodes ------------------------------------------------------------------------------------


def _places(matrix: TopologyMatrix) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return title, CPUs and devices of each box, in the order of NUMA nodes, remaining devices last."""
    devices = (*matrix.gpus, *matrix.nics)
    keys = _keys(matrix)
    if keys:
        homes = {**keys, **_homes_of_nics(matrix, keys)}
    else:
        homes = connected(devices, _pairs_within(matrix, devices, "NODE"))
    groups = grouped((homes[name], name) for name in devices)
    places = [(*_box_titles(matrix, members, bool(keys)), tuple(members)) for members in groups.values()]
    return sorted(places, key=lambda place: _order(matrix, place[2]))


def _keys(matrix: TopologyMatrix) -> dict[str, str]:
    """Return each GPU's NUMA node, by number or by CPUs; empty if it is unknown for some GPU.

    In a container all GPUs may list the same few CPUs, whatever their sockets.
    """
    for affinity in (matrix.numa_affinity, matrix.cpu_affinity):
        keys = {gpu: text for gpu, text in affinity.items() if text and text != _NONE}
        if len(keys) == len(matrix.gpus):
            apart = any(link_codes.crosses_sockets(code) for _, _, code in matrix.gpu_pairs())
            by_number = affinity is matrix.numa_affinity
            return keys if by_number or len(set(keys.values())) > 1 or not apart else {}
    return {}


def _homes_of_nics(matrix: TopologyMatrix, homes: Mapping[str, str]) -> dict[str, str]:
    """Return the home of each NIC: the nearest GPU's node, or a near NIC's if all GPUs are across the sockets."""
    found: dict[str, str] = {}
    for _ in range(2):
        for nic in matrix.nics:
            known = {**homes, **found}
            near = [(code, name) for name in known if name != nic and (code := pcie_code(matrix, nic, name))]
            near = [(code, name) for code, name in near if _is_near(code, "NODE")]
            if nic not in found and near:
                best = min(near, key=lambda code: link_codes.link_code(code[0]).distance)
                found[nic] = known[best[1]]
    unplaced = [nic for nic in matrix.nics if nic not in found]
    apart = connected(unplaced, _pairs_within(matrix, unplaced, "NODE"))
    return {**found, **{nic: f"apart {apart[nic]}" for nic in unplaced}}


def _box_titles(matrix: TopologyMatrix, members: Sequence[str], by_key: bool) -> tuple[str, str]:
    gpus = [name for name in members if name in matrix.gpus]
    if not gpus:
        return "No GPU near", ""
    numa, cpus = matrix.numa_affinity[gpus[0]], matrix.cpu_affinity[gpus[0]]
    alike = len({matrix.cpu_affinity[gpu] for gpu in gpus}) == 1
    shown = [f"CPUs {cpus}"] if cpus and cpus != _NONE and alike else []
    if any(link_codes.crosses_sockets(pcie_code(matrix, a, b) or "X") for a, b in combinations(gpus, 2)):
        shown.append("SYS within")
    if not by_key or not numa or numa == _NONE:
        title = "One socket, by its CPUs" if by_key else "unknown NUMA node"
    else:
        title = f"NUMA {'node' if numa.isdecimal() else 'nodes'} {numa}"
    return title, ", ".join(shown)


def _order(matrix: TopologyMatrix, members: Sequence[str]) -> tuple[int, int, int]:
    gpus = [name for name in members if name in matrix.gpus]
    numa = matrix.numa_affinity[gpus[0]] if gpus else None
    number = int(numa) if numa and numa.isdecimal() else 10**6
    return (0 if gpus else 1, number, (matrix.gpus.index(gpus[0]) if gpus else 0))


# --- host bridges and switches ---------------------------------------------------------------------


def _box(matrix: TopologyMatrix, title: str, cpus: str, devices: Sequence[str]) -> Box:
    groups = [_group(matrix, members) for members in _joined(matrix, devices, "PXB")]
    groups.sort(key=lambda group: not group.gpus)

    def is_known(left: Group, peer: Group) -> bool:
        return any(pcie_code(matrix, a, b) for a in left.devices for b in peer.devices)

    if not all(is_known(left, peer) for left, peer in combinations(groups, 2)):
        return Box(title, cpus, (Bridge(_merged(groups), 0),))
    number = {name: str(index) for index, group in enumerate(groups) for name in group.devices}
    links = [(number[left], number[peer]) for left, peer in _pairs_within(matrix, devices, "PHB")]
    root = connected([str(index) for index, _ in enumerate(groups)], links)
    bridges = grouped((root[str(index)], group) for index, group in enumerate(groups))
    return Box(title, cpus, tuple(_bridges(list(bridges.values()))))


def _bridges(found: Sequence[Sequence[Group]]) -> Iterator[Bridge]:
    """Yield one bridge per group; bridges with only NICs are merged at the end."""
    with_gpus = [groups for groups in found if any(group.gpus for group in groups)]
    nics_only = [groups for groups in found if not any(group.gpus for group in groups)]
    if len(with_gpus) > _MOST_APART:
        yield Bridge(_merged([group for groups in with_gpus for group in groups]), len(with_gpus))
    else:
        yield from (Bridge(_merged(groups)) for groups in with_gpus)
    if nics_only:
        yield Bridge(tuple(group for groups in nics_only for group in groups), len(nics_only))


def _joined(matrix: TopologyMatrix, devices: Sequence[str], limit: str) -> Iterable[list[str]]:
    joined = connected(devices, _pairs_within(matrix, devices, limit))
    return grouped((joined[name], name) for name in devices).values()


def _group(matrix: TopologyMatrix, members: Sequence[str]) -> Group:
    if len(members) == 1:
        return _group_of(matrix, "", members)
    parts = list(_joined(matrix, members, "PIX"))
    if len(parts) == 1:
        return _group_of(matrix, "PIX", members)
    alone = [part[0] for part in parts if len(part) == 1]
    inside = [_group_of(matrix, "", alone)] if alone else []
    inside += [_group(matrix, part) for part in parts if len(part) > 1]
    order = {name: index for index, name in enumerate(matrix.links)}
    inside.sort(key=lambda part: order[part.devices[0]])
    return _group_of(matrix, "PXB", members, tuple(inside))


def _group_of(matrix: TopologyMatrix, code: str, members: Sequence[str], parts: tuple[Group, ...] = ()) -> Group:
    gpus = tuple(name for name in members if name in matrix.gpus)
    return Group(code, gpus, tuple(name for name in members if name not in matrix.gpus), parts)


def _merged(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Merge many GPUs without common parts into one block."""
    alone = [group for group in groups if not group.code and group.gpus]
    if len(alone) <= _MOST_APART:
        return tuple(groups)
    others = tuple(group for group in groups if group.code or not group.gpus)
    return (Group("", tuple(gpu for group in alone for gpu in group.gpus), ()), *others)


# --- NVLink ----------------------------------------------------------------------------------------


def _fabric(matrix: TopologyMatrix) -> Fabric | None:
    """Return the GPUs with NVLinks if each of them has some to each other."""
    pairs = {(gpu, peer): link_codes.nvlinks(code) for gpu, peer, code in matrix.gpu_pairs()}
    linked = {pair: count for pair, count in pairs.items() if count}
    members = [gpu for gpu in matrix.gpus if any(gpu in pair for pair in linked)]
    if len(members) < 3 or len(linked) != len(members) * (len(members) - 1) // 2:
        return None
    own = {gpu: max(count for pair, count in linked.items() if gpu in pair) for gpu in members}
    return Fabric(own, (len(members) - 1) * max(own.values()) > _MOST_NVLINKS)
