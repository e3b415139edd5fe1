r"""Reads ``nvidia-smi topo -p2p r|w|n|a|p``: which GPUs may reach each other's memory, by word of the driver.

    $ nvidia-smi topo -p2p r
            GPU0    GPU1    GPU2
     GPU0   X       OK      CNS
     GPU1   OK      X       CNS
     GPU2   CNS     CNS     X

    Legend:

      X    = Self
      OK   = Status Ok
      CNS  = Chipset not supported

The table does not say what was asked, so that is known only where the command stands above it.
"""

import re
from collections.abc import Iterator, Sequence

from ddp_doctor.checks.node.topology.formats.gpu_tables import Table, gpu_header, read_table
from ddp_doctor.checks.node.topology.formats.topo_rows import Header, TopologyError, bare, label_of
from ddp_doctor.facts.node.topology import P2pStatusFact

_WORD = re.compile(r"OK|CNS|GNS|TNS|NS|DR|U|X")
_COMMAND = re.compile(r"topo\s+(?:-p2p|--p2p_capabilities)\s+([rwnap]{1,5})(?![\w-])")
#: The command stands right above its table, or above it and the line of an error or a prompt.
_LINES_ABOVE = 3
_LINES_OF_LEGEND = 8


def find_p2p_tables(lines: Sequence[str]) -> Iterator[tuple[range, P2pStatusFact]]:
    """The tables in plain lines, each with the indices of the lines it takes. Raises TopologyError."""
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
    """Whether the row below holds such words; where there is one GPU, whether such a legend follows."""
    for line in lines[header.line : header.line + 2]:
        label, start = label_of(bare(line), header)
        if label is None:
            continue
        words = [word for token in bare(line)[start:].split()[1:] for word in _split(token)]
        if any(word != "X" for word in words):
            return True
        legend = lines[header.line + 1 : header.line + 1 + _LINES_OF_LEGEND]
        return words == ["X"] and len(header.columns) == 1 and any("= Status Ok" in one for one in legend)
    return False


def _split(token: str) -> list[str]:
    words = _WORD.findall(token)
    return words if "".join(words) == token else []


def _capability(lines: Sequence[str], header: int) -> str | None:
    """The letters in the nearest command above the table, unless other output stands between."""
    for line in reversed(lines[max(header - _LINES_ABOVE, 0) : header]):
        found = _COMMAND.search(line[:2000])
        if found:
            return found[1]
        if gpu_header([line], 0) or " = " in line:
            return None
    return None


def _fact(table: Table, capability: str | None) -> P2pStatusFact:
    for one, row in table.cells.items():
        if row[one] != "X" or list(row.values()).count("X") != 1:
            raise TopologyError(f"row {one} does not have its X under {one}", table.line)
    return P2pStatusFact(
        capability=capability,
        gpus=table.gpus,
        statuses={
            one: {two: word for two, word in table.cells[one].items() if two != one} for one in table.gpus
        },
        warnings=tuple(table.warnings),
    )
