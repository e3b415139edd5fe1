r"""The affinity cells at the end of a row of ``nvidia-smi topo -m``, assigned to their columns.

nvidia-smi prints the CPU list, one tab, the NUMA list, two tabs, the GPU's own NUMA node. A NUMA list of N/A is
preceded by two tabs. The cells are not aligned with their titles, and any may be blank:

    GPU0\t X \t0-63,128-191\t0\t\tN/A      all three
    GPU0\t X \t\t0\t\tN/A                  no CPU of this socket in the job's cpuset
    GPU0\t X \t\t\t\tN/A                   WSL2

Therefore, a row with fewer cells than columns is read by its tabs (or the 8-column stops they became), never by the
titles above it. Copying a wide matrix from a terminal may also lose one separator (``0-47,96-1430 N/A``). Such cells
are split if exactly one way makes sense. Otherwise the affinity of that row is unknown, but its links may still be
known.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddp_doctor.checks.node.topology.formats.cpus import cpu_ranges, share_a_cpu

CPU, NUMA, GPU_NUMA = "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"

_ONE_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")
_NONE = "N/A"
#: The column by the number of tabs after the first affinity field, for a cell that is not N/A, and for N/A.
_FIELDS = {0: CPU, 1: NUMA, 3: GPU_NUMA, 4: GPU_NUMA}
_FIELDS_OF_NONE = {**_FIELDS, 2: NUMA}
#: A longer run of digits and commas is not worth splitting: it is cut or damaged.
_LONGEST_GLUED = 200


@dataclass(frozen=True)
class Unclear:
    """A row whose affinity is not known, and why."""

    label: str
    line: int
    reason: str


@dataclass(frozen=True)
class Tail:
    """The cells after the link cells of one GPU's row; ``fields`` is None if the layout is lost."""

    label: str
    line: int
    cells: tuple[str, ...]
    fields: tuple[int, ...] | None


def read_tails(tails: Sequence[Tail], titles: Sequence[str]) -> tuple[dict[str, dict[str, str]], list[Unclear]]:
    """Return the cells of every row by column title, without blank cells; empty for an unclear row."""
    tails = [_with_none_apart(tail) for tail in tails]
    placed = {tail.label: _placed(tail, titles) for tail in tails}
    read = [cells for cells in placed.values() if cells]
    rows: dict[str, dict[str, str]] = {}
    unclear: list[Unclear] = []
    for tail in tails:
        cells = placed[tail.label]
        cells = _split(tail, titles, read) if cells is None else cells
        rows[tail.label] = cells or {}
        if cells is None:
            cells_shown = in_ascii("  ".join(tail.cells)[:80])
            unclear.append(Unclear(tail.label, tail.line, f"cannot be told apart: {cells_shown}"))
    if any(rows.values()):  # then the last column also exists, because nvidia-smi always prints it
        unclear_labels = {row.label for row in unclear}
        cut = [tail for tail in tails if titles[-1] not in rows[tail.label] and tail.label not in unclear_labels]
        unclear += [Unclear(tail.label, tail.line, f"are cut off before {titles[-1]}") for tail in cut]
        rows.update({tail.label: {} for tail in cut})
    return rows, unclear


_CONTROLS = {code: ascii(chr(code))[1:-1] for code in (*range(32), 127)}


def in_ascii(text: str) -> str:
    """Return a foreign text for display, with everything but plain ASCII escaped."""
    return text.encode("ascii", "backslashreplace").decode().translate(_CONTROLS)


def _with_none_apart(tail: Tail) -> Tail:
    """Split N/A from a cell that it is glued to, because it never follows a number."""
    cells: list[str] = []
    for cell in tail.cells:
        cells += [cell.removesuffix(_NONE), _NONE] if cell.endswith(_NONE) and cell != _NONE else [cell]
    return tail if len(cells) == len(tail.cells) else Tail(tail.label, tail.line, tuple(cells), None)


def _placed(tail: Tail, titles: Sequence[str]) -> dict[str, str] | None:
    if not tail.cells:
        return {}
    by_field = _by_field(tail)
    if by_field is not None and set(by_field) <= set(titles):
        return _checked(by_field)
    if by_field is not None or len(tail.cells) != len(titles):
        return None
    return _checked(dict(zip(titles, tail.cells, strict=True)))


def _by_field(tail: Tail) -> dict[str, str] | None:
    """Return the cells by nvidia-smi's columns, or None if they are not at the positions where it prints them."""
    found: dict[str, str] = {}
    for text, field in zip(tail.cells, tail.fields or (), strict=False):
        title = (_FIELDS_OF_NONE if text == _NONE else _FIELDS).get(field)
        if title is None or title in found:
            return None
        found[title] = text
    return found or None


def _checked(cells: dict[str, str]) -> dict[str, str] | None:
    return cells if all(_valid(title, text) for title, text in cells.items()) else None


def _valid(title: str, text: str) -> bool:
    if text == _NONE:
        return True
    if title == GPU_NUMA:
        return _ONE_NUMBER.fullmatch(text) is not None
    ranges = cpu_ranges(text)
    return ranges is not None and all(low <= high for low, high in ranges)


def _split(tail: Tail, titles: Sequence[str], read: Sequence[Mapping[str, str]]) -> dict[str, str] | None:
    """Restore a lost separator, or return None unless exactly one way is possible.

    ``read`` are the complete rows. If one of them has a NUMA list, it is not blank here either. The CPUs equal those of
    one of these rows or overlap with none, because sockets do not overlap.
    """
    ways: list[dict[str, str]] = []
    numa_printed = any(NUMA in cells for cells in read)
    if numa_printed and len(tail.cells) < len(titles) and max(map(len, tail.cells)) <= _LONGEST_GLUED:
        known = [cells[CPU] for cells in read if cells.get(CPU, _NONE) != _NONE]
        ways = [way for way in _ways(tail.cells, titles) if _equal_or_apart(way[CPU], known)]
    return ways[0] if len(ways) == 1 else None


def _equal_or_apart(cpus: str, known: Sequence[str]) -> bool:
    return cpus == _NONE or all(cpus == others or share_a_cpu(cpus, others) is False for others in known)


def _ways(cells: Sequence[str], titles: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield every way to cut ``cells`` into one valid text for each title."""
    if not titles or not cells:
        if not titles and not cells:
            yield {}
        return
    first = cells[0]
    for cut in range(1, len(first) + 1):
        head, after_cut = first[:cut], first[cut:]
        if _valid_glued(titles[0], head):
            for more in _ways([after_cut, *cells[1:]] if after_cut else cells[1:], titles[1:]):
                yield {titles[0]: head, **more}


def _valid_glued(title: str, text: str) -> bool:
    """Return True if a text is valid by stricter rules than ``_valid``: ascending CPU lists, one plain NUMA node."""
    if text == _NONE:
        return True
    if title != CPU:
        return _ONE_NUMBER.fullmatch(text) is not None
    if cpu_ranges(text) is None:
        return False
    numbers = [int(number) for number in re.split("[-,]", text)]
    return all(number < following for number, following in pairwise(numbers))
