r"""Reads ``rocm-smi --showtopo`` and its parts (--showtopoweight, -hops, -type, -access, -numa) of AMD GPUs.

    ============================ ROCm System Management Interface ============================
    ================================ Weight between two GPUs =================================
           GPU0         GPU1
    GPU0   0            72
    GPU1   72           0
    …
    =============================== Link Type between two GPUs ===============================
           GPU0         GPU1
    GPU0   0            PCIE
    GPU1   PCIE         0
    ======================================= Numa Nodes =======================================
    GPU[0]          : (Topology) Numa Node: 0
    GPU[0]          : (Topology) Numa Affinity: 0
    ================================== End of ROCm SMI Log ===================================

Nothing is concluded from it yet: RCCL chooses its paths by rules of its own.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddp_doctor.checks.node.topology.formats.gpu_tables import Table, gpu_header, read_table
from ddp_doctor.checks.node.topology.formats.topo_rows import TopologyError
from ddp_doctor.facts.node.topology import RocmTopologyFact

_PARTS = {"Weight": "weight", "Hops": "hops", "Link Type": "link_type", "Link accessibility": "access"}
_TITLE = re.compile(rf"=\s({'|'.join(_PARTS)}) between two GPUs\s=")
_NUMA = re.compile(r"GPU(?:\[| )([0-9]{1,4})\]?\s*: \(Topology\) Numa (Node|Affinity): (-?[0-9]{1,4})\s*$")
_BANNER = re.compile(r"=\s(?:ROCm System Management Interface|End of ROCm SMI Log|Numa Nodes)\s=")
_CELLS = {
    "weight": re.compile(r"[0-9]{1,6}|N/A"),
    "hops": re.compile(r"[0-9]{1,4}|N/A"),
    "link_type": re.compile(r"0|PCIE|XGMI|XXXX|N/A"),
    "access": re.compile(r"True|False|N/A"),
}


@dataclass
class _Host:
    start: int
    end: int = 0
    gpus: tuple[str, ...] = ()
    tables: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    numa: dict[str, dict[str, int]] = field(default_factory=lambda: {"Node": {}, "Affinity": {}})
    warnings: list[str] = field(default_factory=list)

    def has(self, part: str, gpus: tuple[str, ...]) -> bool:
        """Whether this part was there already, or is of other GPUs: it is another host's then."""
        return part in self.tables or (bool(self.gpus) and gpus != self.gpus)


def find_rocm_topologies(lines: Sequence[str]) -> Iterator[tuple[range, RocmTopologyFact]]:
    """The outputs in plain lines, each with the indices of the lines it takes. Raises TopologyError."""
    host: _Host | None = None
    index = 0
    while index < len(lines):
        text = lines[index][:500]
        title, numa = _TITLE.search(text), _NUMA.search(text)
        if title:
            part = _PARTS[title[1]]
            table = _table(lines, index, part)
            if host is not None and host.has(part, table.gpus):
                yield _told(host)
                host = None
            host = host or _Host(index)
            host.gpus, host.tables[part] = table.gpus, _others(table)
            host.warnings += table.warnings
            host.end = index = max(table.end, index + 1)
            continue
        if numa:
            host = host or _Host(index)
            gpu, kind = f"GPU{numa[1]}", numa[2]
            if gpu in host.numa[kind]:
                yield _told(host)
                host = _Host(index)
            host.numa[kind][gpu] = int(numa[3])
            host.end = index + 1
        index += 1
    if host is not None:
        yield _told(host)


def _table(lines: Sequence[str], title: int, part: str) -> Table:
    cell = _CELLS[part]
    for index in range(title + 1, min(title + 4, len(lines))):
        header = gpu_header(lines, index)
        if header is not None:
            return read_table(
                lines, header, lambda token: [token] if cell.fullmatch(token) else [], f"{part} of rocm-smi"
            )
        if lines[index].strip():
            break
    raise TopologyError("no table follows this title", title + 1, lines[title])


def _others(table: Table) -> dict[str, dict[str, str]]:
    return {one: {two: cell for two, cell in table.cells[one].items() if two != one} for one in table.gpus}


def _told(host: _Host) -> tuple[range, RocmTopologyFact]:
    numbered = [gpu for kind in host.numa.values() for gpu in kind]
    fact = RocmTopologyFact(
        gpus=host.gpus or tuple(dict.fromkeys(numbered)),
        **host.tables,
        numa_node=host.numa["Node"],
        numa_affinity=host.numa["Affinity"],
        warnings=tuple(host.warnings),
    )
    return range(host.start, host.end), fact
