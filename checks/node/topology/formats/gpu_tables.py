"""Tables with a row and a column for each GPU: ``nvidia-smi topo -p2p`` and ``rocm-smi --showtopo``.

            GPU0    GPU1
     GPU0   X       OK
     GPU1   OK      X

The grammar is that of a matrix of ``nvidia-smi topo -m``: rows are identified by label and cells by count, each column
has one row, and the text before a label has the same shape on all lines. Everything else within the table is refused.

``nvidia-smi topo -p2p r|w|n|a|p`` shows which GPUs may access each other's memory according to the driver.

    $ nvidia-smi topo -p2p r
            GPU0    GPU1    GPU2
     GPU0   X       OK      CNS
     GPU1   OK      X       CNS
     GPU2   CNS     CNS     X

    Legend:

      X    = Self
      OK   = Status Ok
      CNS  = Chipset not supported

The table does not name the requested capability, so it is known only if the command is above the table.

``rocm-smi --showtopo`` and its parts (--showtopoweight, -hops, -type, -access, -numa) describe AMD GPUs.

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

No rule uses it yet, because RCCL has different rules for choosing paths.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ddp_doctor.checks.node.topology.formats import topo_rows
from ddp_doctor.checks.node.topology.formats.topo_rows import GPU, Header, TopologyError, bare, label_of
from ddp_doctor.facts.node.topology import P2pStatusFact, RocmTopologyFact

#: Splits a cell whose separators were lost; empty if it contains anything else.
Split = Callable[[str], list[str]]


@dataclass
class Table:
    """A table; ``line`` is the line of its header, from 1, and ``end`` the index of the first line after it."""

    line: int
    gpus: tuple[str, ...]
    end: int = 0
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def gpu_header(lines: Sequence[str], index: int) -> Header | None:
    """Return the header in this line if it names only GPUs."""
    if not lines[index]:
        return None
    line = bare(lines[index])
    start = topo_rows.FIRST_GPU.search(line)
    columns = topo_rows.columns_of(line[start.start() :]) if start else None
    if start is None or columns is None or not all(GPU.fullmatch(name) for name in columns):
        return None
    return Header(index + 1, topo_rows.shape_of(line[: start.start()]), columns, ())


def read_table(lines: Sequence[str], header: Header, split: Split, what: str) -> Table:
    """Parse the rows below ``header``; ``what`` is the name of a cell in errors. Raises TopologyError."""
    topo_rows.refuse_odd_columns(header.columns, header.line, lines[header.line - 1])
    table = Table(header.line, header.columns, len(lines))
    for index in range(header.line, len(lines)):
        line = bare(lines[index])
        label, start = label_of(line, header)
        complete = len(table.cells) == len(table.gpus)
        if label and (not complete or all(split(token) for token in line[start:].split()[1:])):
            _add_row(table, label, line[start:], index + 1, split, what)
        elif complete or (not topo_rows.NOTHING.fullmatch(line) and topo_rows.shape_of(line) != header.shape):
            table.end = index
            break
    missing = [name for name in table.gpus if name not in table.cells]
    if missing:
        reason = f"the row of {missing[0]} is missing: the table is cut off or interrupted"
        raise TopologyError(reason, topo_rows.line_behind(lines, table.end))
    return table


def _add_row(table: Table, label: str, text: str, line: int, split: Split, what: str) -> None:
    cells: list[str] = []
    for token in text.split()[1:]:
        parts = split(token)
        if not parts:
            raise TopologyError(f"{token[:40]} in row {label} is not a {what}", line, text)
        cells += parts
    if label not in table.gpus:
        raise TopologyError(f"the header has no column for row {label}", line)
    if len(cells) != len(table.gpus):
        raise TopologyError(f"row {label} has {len(cells)} cells, but the header has {len(table.gpus)} columns", line)
    row = dict(zip(table.gpus, cells, strict=True))
    if label in table.cells:
        if table.cells[label] != row:
            raise TopologyError(f"row {label} appears twice with different cells", line)
        table.warnings.append(f"row {label} appears twice")
    table.cells[label] = row


_WORD = re.compile(r"OK|CNS|GNS|TNS|NS|DR|U|X")
_COMMAND = re.compile(r"topo\s+(?:-p2p|--p2p_capabilities)\s+([rwnap]{1,5})(?![\w-])")
#: The command is directly above its table, or separated by one line: an error or a prompt.
_LINES_ABOVE = 3
_LINES_OF_LEGEND = 8


def find_p2p_tables(lines: Sequence[str]) -> Iterator[tuple[range, P2pStatusFact]]:
    """Yield the tables in plain lines, each with the indices of its lines. Raises TopologyError."""
    index = 0
    while index < len(lines):
        header = gpu_header(lines, index)
        if header is None or not _is_p2p(lines, header):
            index += 1
            continue
        table = read_table(lines, header, _split, "status of nvidia-smi topo -p2p")
        yield range(index, table.end), _fact(table, _capability(lines, index))
        index = max(table.end, index + 1)


def _is_p2p(lines: Sequence[str], header: Header) -> bool:
    """Return True if the row below has such words; with a single GPU, if such a legend follows."""
    for line in lines[header.line : header.line + 2]:
        label, start = label_of(bare(line), header)
        if label is None:
            continue
        words = [word for token in bare(line)[start:].split()[1:] for word in _split(token)]
        if any(word != "X" for word in words):
            return True
        legend = lines[header.line + 1 : header.line + 1 + _LINES_OF_LEGEND]
        return words == ["X"] and len(header.columns) == 1 and any("= Status Ok" in line for line in legend)
    return False


def _split(token: str) -> list[str]:
    words = _WORD.findall(token)
    return words if "".join(words) == token else []


def _capability(lines: Sequence[str], header: int) -> str | None:
    """Return the letters in the nearest command above the table, or None if other output is in between."""
    for line in reversed(lines[max(header - _LINES_ABOVE, 0) : header]):
        found = _COMMAND.search(line[:2000])
        if found:
            return found[1]
        if gpu_header([line], 0) or " = " in line:
            return None
    return None


def _fact(table: Table, capability: str | None) -> P2pStatusFact:
    for gpu, row in table.cells.items():
        if row[gpu] != "X" or list(row.values()).count("X") != 1:
            raise TopologyError(f"row {gpu} must contain exactly one X, in column {gpu}", table.line)
    return P2pStatusFact(
        capability=capability, gpus=table.gpus, statuses=_others(table), warnings=tuple(table.warnings)
    )


_PARTS = {"Weight": "weight", "Hops": "hops", "Link Type": "link_type", "Link accessibility": "access"}
_TITLE = re.compile(rf"=\s({'|'.join(_PARTS)}) between two GPUs\s=")
_NUMA = re.compile(r"GPU(?:\[| )([0-9]{1,4})\]?\s*: \(Topology\) Numa (Node|Affinity): (-?[0-9]{1,4})\s*$")
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


def find_rocm_topologies(lines: Sequence[str]) -> Iterator[tuple[range, RocmTopologyFact]]:
    """Yield the outputs in plain lines, each with the indices of their lines. Raises TopologyError."""
    host: _Host | None = None
    index = 0
    while index < len(lines):
        text = lines[index][:500]
        title, numa = _TITLE.search(text), _NUMA.search(text)
        if title:
            part = _PARTS[title[1]]
            table = _table(lines, index, part)
            # A part that is already known, or is about other GPUs, belongs to another host.
            if host is not None and (part in host.tables or (host.gpus and table.gpus != host.gpus)):
                yield _rocm_fact(host)
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
                yield _rocm_fact(host)
                host = _Host(index)
            host.numa[kind][gpu] = int(numa[3])
            host.end = index + 1
        index += 1
    if host is not None:
        yield _rocm_fact(host)


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
    return {gpu: {two: cell for two, cell in table.cells[gpu].items() if two != gpu} for gpu in table.gpus}


def _rocm_fact(host: _Host) -> tuple[range, RocmTopologyFact]:
    numbered = [gpu for kind in host.numa.values() for gpu in kind]
    fact = RocmTopologyFact(
        gpus=host.gpus or tuple(dict.fromkeys(numbered)),
        **host.tables,
        numa_node=host.numa["Node"],
        numa_affinity=host.numa["Affinity"],
        warnings=tuple(host.warnings),
    )
    return range(host.start, host.end), fact
