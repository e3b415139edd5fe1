"""Tables with a row and a column for each GPU and nothing else, as several tools print them.

            GPU0    GPU1
     GPU0   X       OK
     GPU1   OK      X

The grammar is that of a matrix of ``nvidia-smi topo -m``: rows go by their label, cells by their count,
each column has one row, and what stands before a label looks alike on all lines. Whatever else stands
there is refused.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ddp_doctor.checks.node.topology.formats.topo_rows import (
    FIRST_GPU,
    GPU,
    NOTHING,
    Header,
    TopologyError,
    bare,
    columns_of,
    label_of,
    line_behind,
    refuse_odd_columns,
    shape_of,
)

#: Takes a cell apart where separators were lost; empty where it holds something else.
Split = Callable[[str], list[str]]


@dataclass
class Table:
    """One table; ``line`` is its header's, from 1, and ``end`` the index of the first line behind it."""

    line: int
    gpus: tuple[str, ...]
    end: int = 0
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def gpu_header(lines: Sequence[str], index: int) -> Header | None:
    """The header in this line, if it names GPUs and nothing else."""
    if not lines[index]:
        return None
    line = bare(lines[index])
    start = FIRST_GPU.search(line)
    columns = columns_of(line[start.start() :]) if start else None
    if start is None or columns is None or not all(GPU.fullmatch(name) for name in columns):
        return None
    return Header(index + 1, shape_of(line[: start.start()]), columns, ())


def read_table(lines: Sequence[str], header: Header, split: Split, what: str) -> Table:
    """The rows below ``header``; ``what`` names a cell in a refusal. Raises TopologyError."""
    refuse_odd_columns(header.columns, header.line, lines[header.line - 1])
    table = Table(header.line, header.columns, len(lines))
    for index in range(header.line, len(lines)):
        line = bare(lines[index])
        label, start = label_of(line, header)
        complete = len(table.cells) == len(table.gpus)
        if label and not (complete and _holds_something_else(line[start:], split)):
            _add_row(table, label, _row_cells(label, line[start:], index + 1, split, what), index + 1)
        elif complete or (not NOTHING.fullmatch(line) and shape_of(line) != header.shape):
            table.end = index
            break
    missing = [name for name in table.gpus if name not in table.cells]
    if missing:
        reason = f"the row of {missing[0]} is missing: the table is cut off or interrupted"
        raise TopologyError(reason, line_behind(lines, table.end))
    return table


def _holds_something_else(row: str, split: Split) -> bool:
    return not all(split(token) for token in row.split()[1:])


def _row_cells(label: str, text: str, line: int, split: Split, what: str) -> list[str]:
    cells: list[str] = []
    for token in re.findall(r"\S+", text)[1:]:
        parts = split(token)
        if not parts:
            raise TopologyError(f"{token[:40]} in row {label} is no {what}", line, text)
        cells += parts
    return cells


def _add_row(table: Table, label: str, cells: Sequence[str], line: int) -> None:
    if label not in table.gpus:
        raise TopologyError(f"row {label} has no column of its own in the header", line)
    if len(cells) != len(table.gpus):
        raise TopologyError(f"row {label} has {len(cells)} cells under {len(table.gpus)} columns", line)
    row = dict(zip(table.gpus, cells, strict=True))
    if label in table.cells:
        if table.cells[label] != row:
            raise TopologyError(f"row {label} appears twice with different cells", line)
        table.warnings.append(f"row {label} appears twice")
    table.cells[label] = row
