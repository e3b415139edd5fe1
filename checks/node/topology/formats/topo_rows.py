"""The lines of pasted text that form matrices of ``nvidia-smi topo -m``, checked cell by cell.

A header names the columns. Each column has one row, found by its label. Each row has exactly one link code per column,
and X only under its own label. Everything else between the first and the last row is refused. The text before a label
(a line number, a timestamp, a quote sign) must have the same shape on all lines. Cut or missing rows are not a fault
yet: topo_matrix.py fills them from the others.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ddp_doctor.checks.node.topology.formats.topo_affinity import CPU, GPU_NUMA, NUMA, Tail, in_ascii
from ddp_doctor.knowledge.topology.link_codes import NUMBERED

#: No real line is longer (72 GPUs and 62 NICs need 1,200 characters); no real matrix is wider.
_LONGEST_LINE = 20_000
_MOST_COLUMNS = 512
#: Rows required before a missing row is reconstructed from them; with fewer rows, the matrix counts as cut off.
_LEAST_WITNESSES = 2

#: Only ASCII digits: Python's \d also matches other scripts, whose digits would end up in every output.
_NUMBER = "(?:0|[1-9][0-9]{0,3})"

#: "NV1824-47" may be NV18 and 24-47, or NV1 and 824-47, so it is not a code.
CODE = re.compile(r"NV[1-9][0-9]?(?![0-9])|SYS|NODE|PHB|PXB|PIX|SOC|X")
#: The cells of ``nvidia-smi topo -p2p``, whose matrix looks much the same.
_P2P_CELL = re.compile(r"(?<!\S)(?:OK|CNS|GNS|TNS|NS|DR|U)(?!\S)")
GPU = re.compile(f"GPU{_NUMBER}")
_NUMBERED_GLUED = re.compile(f"((?:{NUMBERED.pattern})+)(.*)")
#: Names of RDMA devices (mlx5_bond_0, rocep177s0f0, ibp0), safe to put into a setting. The UUID of a GPU does not
#: match.
DEVICE = re.compile(r"(?!GPU|MIG)(?=[^0-9]*[0-9])[A-Za-z][A-Za-z0-9_.-]{0,62}[A-Za-z0-9]")
FIRST_GPU = re.compile(r"(?<![\w.-])GPU[0-9]")
_CPU_TITLE = re.compile(r"CPU\s*Affinity")
#: "CPU Affi": the title at the edge of a window that cut every line.
_CUT_TITLE = re.compile(r"\s(?:C|CP|CPU|CPU\s+A[a-z]*)\s*$")
#: The beginning of a code, at the end of a row that is cut.
_CUT_CODE = re.compile("N|NV|NO|NOD|P|PH|PI|PX|S|SO|SY")
#: NV18 or NV1, followed by the CPU list.
_GLUED_CODE = re.compile("NV[1-9][0-9]+[-,]")
_TITLES = re.compile(r"CPU\s*Affinity\s*(NUMA(?:\s*Affinity)?)?\s*(GPU\s*NUMA\s*ID)?\s*")
_ROW_LIKE = re.compile(rf"[\s>]*{NUMBERED.pattern}\s+(?:{CODE.pattern})(?=\s|$)")
_ONLY_CODES = re.compile(rf"\S+(?:\s+(?:{CODE.pattern})){{2,}}\s*")
NOTHING = re.compile(r"[\s:|+\-=>{}]*")


class TopologyError(Exception):
    """The text is not understood; ``line`` counts from 1 and is None if no single line is at fault.

    The reason may quote the text, with everything but plain ASCII escaped.
    """

    def __init__(self, reason: str, line: int | None = None, text: str = "") -> None:
        self.reason = in_ascii(reason)
        self.line = line
        self.text = text.strip()[:200]
        super().__init__(self.reason if line is None else f"line {line}: {self.reason}")


@dataclass(frozen=True)
class Header:
    """A header line; ``shape`` is the text before the first name, ``titles`` the affinity columns, None if unclear."""

    line: int
    shape: str
    columns: tuple[str, ...]
    titles: tuple[str, ...] | None


@dataclass
class Block:
    """One matrix in the text; ``end`` is the index of the first line after its rows.

    ``rests`` are, by row, the texts after the links that can be read in several ways. They belong to rows that are cut
    (``cut``) and to rows whose last link runs into the following text. ``links`` holds the links before them.
    """

    header: Header
    end: int
    links: dict[str, dict[str, str]] = field(default_factory=dict)
    tails: dict[str, Tail] = field(default_factory=dict)
    rests: dict[str, str] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)  # the line of each row that is cut
    warnings: list[str] = field(default_factory=list)


def read_blocks(lines: Sequence[str]) -> Iterator[Block | TopologyError]:
    """Yield the matrices in the text, in order, and why others are refused, once up to the next header."""
    index, refused = 0, False
    while index < len(lines):
        line = bare(lines[index])
        index += 1
        try:
            header = _header(line, index - 1, lines) if line else None
            if header is not None:
                block = _block(header, lines)
                index, refused = block.end, False
                yield block
                continue
        except TopologyError as error:
            refused = True
            yield error
        if not refused and _looks_like_row(line):
            refused = True
            yield TopologyError("the text has a row of a matrix without its header", index, line)


def bare(line: str) -> str:
    """Return the line with the bars of Markdown tables as blanks."""
    return line[:_LONGEST_LINE].replace("|", " ")


def _looks_like_row(line: str) -> bool:
    return _ROW_LIKE.match(line) is not None and not _P2P_CELL.search(line)


def _header(line: str, index: int, lines: Sequence[str]) -> Header | None:
    start = FIRST_GPU.search(line)
    if start is None:
        return None
    body = line[start.start() :]
    cpu_title = _CPU_TITLE.search(body)
    cut_title = None if cpu_title else _CUT_TITLE.search(body)
    titles_begin = cpu_title or cut_title
    columns = columns_of(body[: titles_begin.start()] if titles_begin else body)
    if columns is None:
        return None
    titles: tuple[str, ...] | None = None if cut_title else ()
    if cpu_title is not None:
        known = _TITLES.fullmatch(body, cpu_title.start())
        if known is not None:
            titles = (CPU, *((NUMA,) if known[1] else ()), *((GPU_NUMA,) if known[2] else ()))
        else:
            titles = None
    elif len(columns) == 1 or not any(_looks_like_row(bare(line)) for line in lines[index + 1 : index + 3]):
        return None
    refuse_odd_columns(columns, index + 1, line)
    return Header(index + 1, shape_of(line[: start.start()]), columns, titles)


def columns_of(text: str) -> tuple[str, ...] | None:
    """Return the names in the header, with glued names split; None if this is not a header."""
    names: list[str] = []
    for token in text.split():
        glued = _NUMBERED_GLUED.fullmatch(token)
        name = glued[2] if glued else token
        names += NUMBERED.findall(glued[1]) if glued else []
        if name and (not DEVICE.fullmatch(name) or not split_codes(name)[1]):
            return None
        names += [name] if name else []
    return tuple(names) if names and GPU.fullmatch(names[0]) else None


def refuse_odd_columns(columns: tuple[str, ...], line: int, text: str) -> None:
    """Raise TopologyError for a header that no machine has."""
    if len(columns) > _MOST_COLUMNS:
        raise TopologyError(
            f"the header has {len(columns)} columns, but ddp-doctor reads at most {_MOST_COLUMNS}", line, text
        )
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice:
        raise TopologyError(f"{twice} appears twice in the header", line, text)


def shape_of(prefix: str) -> str:
    """Return the text before a label (a line number, time stamp, quote sign) with all numbers replaced by one sign."""
    return re.sub(r"\d+", "0", " ".join(prefix.split()))


def _block(header: Header, lines: Sequence[str]) -> Block:
    block = Block(header, len(lines))
    for index in range(header.line, len(lines)):
        line = bare(lines[index])
        if block.links and _header(line, index, lines):
            block.end = index
            break
        label, start = label_of(line, header)
        # After the last row, only a line of codes counts as another row.
        if label and (len(block.links) < len(header.columns) or _ONLY_CODES.fullmatch(line[start:])):
            _add_row(block, label, line[start:], index + 1)
        elif block.links and _ONLY_CODES.fullmatch(line.strip()):
            raise TopologyError("the header has no column for this row", index + 1, line)
        elif not NOTHING.fullmatch(line) and shape_of(line) != header.shape:
            block.end = index
            break
    missing = [name for name in header.columns if name not in block.links]
    if not block.links:
        raise TopologyError("no matrix row follows this header", header.line)
    if missing and len(block.links) < _LEAST_WITNESSES:
        more = f" and of {len(missing) - 1} more" if len(missing) > 1 else ""
        number = line_behind(lines, block.end)
        reason = f"the row of {missing[0]}{more} is missing: the matrix is cut off or interrupted"
        raise TopologyError(reason, number, lines[number - 1])
    return block


def label_of(line: str, header: Header) -> tuple[str | None, int]:
    """Return the row's label and its start; None if this line is not a row."""
    for found in re.finditer(r"\S+", line):
        # "12:" of ``grep -n``, "[1,0]<stdout>:" of mpirun and ">" of a quotation are directly before a label.
        name = found[0][max(found[0].rfind(":"), found[0].rfind(">")) + 1 :]
        if name in header.columns or NUMBERED.fullmatch(name):
            start = found.end() - len(name)
            shape = shape_of(line[:start])
            if name != found[0] and shape != header.shape:
                continue
            is_row = shape in {"", header.shape} and line[found.end() :].strip() != ""
            return (name if is_row else None), start
    return None, 0


def line_behind(lines: Sequence[str], end: int) -> int:
    """Return the number of the line at index ``end``, or of the last line with text if the lines end before it."""
    if end < len(lines):
        return end + 1
    return max(index for index, line in enumerate(lines, start=1) if line.strip())


def _add_row(block: Block, label: str, text: str, line: int) -> None:
    columns = block.header.columns
    if label not in columns:
        raise TopologyError(f"the header has no column for row {label}", line, text)
    cells, rest, tail = _cells(label, text, line, len(columns))
    own = ["X"] if columns.index(label) < len(cells) else []
    if cells[columns.index(label) :][:1] != own or cells.count("X") != len(own):
        raise TopologyError(f"row {label} must contain exactly one X, in column {label}", line, text)
    links = {name: code for name, code in zip(columns, cells, strict=False) if name != label}
    if label in block.links:
        if links != block.links[label] or tail.cells != block.tails[label].cells:
            raise TopologyError(f"row {label} appears twice with different cells", line, text)
        if f"row {label} appears twice" not in block.warnings:
            block.warnings.append(f"row {label} appears twice")
        return
    if tail.cells and (not GPU.fullmatch(label) or block.header.titles == ()):
        raise TopologyError(f"row {label} has more cells than the header has columns", line, text)
    block.links[label] = links
    block.tails[label] = tail
    if rest is not None:
        block.rests[label] = rest
        if not tail.cells:
            block.cut[label] = line


def split_codes(token: str) -> tuple[list[str], str]:
    """Return the link codes at the start of a token ("PIXSYS" has two), and the rest of it."""
    codes: list[str] = []
    position = 0
    while found := CODE.match(token, position):
        codes.append(found[0])
        position = found.end()
    return codes, token[position:]


def _cells(label: str, text: str, line: int, count: int) -> tuple[list[str], str | None, Tail]:
    """Return the link cells of a row and the cells after them.

    There are ``count`` link cells, or fewer with the rest, if the line ends before or in the next cell or the last cell
    runs into the following text.
    """
    cells: list[str] = []
    starts: list[int] = []
    tokens = list(re.finditer(r"\S+", text))[1:]
    for index, token in enumerate(tokens):
        codes, after_codes = split_codes(token[0])
        cells += codes
        starts += [token.start()] * len(codes)
        if len(cells) > count:
            break
        if len(cells) == count:
            behind = tokens[index + 1 :]
            texts = ((after_codes,) if after_codes else ()) + tuple(field[0] for field in behind)
            fields = None if after_codes else _fields(text, starts, token.end(), behind)
            return cells, None, Tail(label, line, texts, fields)
        behind = tokens[index + 1 :]
        if not behind and (not after_codes or _CUT_CODE.fullmatch(after_codes)):
            if not after_codes and cells[-1].startswith("NV"):  # may be a cut NV18
                after_codes = cells.pop()
            return cells, after_codes, Tail(label, line, (), None)
        if len(cells) == count - 1 and _GLUED_CODE.match(after_codes):
            return (cells, after_codes, Tail(label, line, (after_codes, *(field[0] for field in behind)), None))
        if after_codes:
            raise TopologyError(_unknown_cell(label, token[0], len(cells), count), line, text)
    raise TopologyError(f"row {label} has more link cells than the header has columns ({count})", line, text)


def _unknown_cell(label: str, cell: str, read: int, count: int) -> str:
    if _P2P_CELL.fullmatch(cell):
        return f"{cell} is a word of nvidia-smi topo -p2p; run nvidia-smi topo -m for the links"
    if re.fullmatch(r"NV#?", cell):
        return f"{cell} in row {label} has no number of links: no driver prints that, so the text was altered"
    if re.match(r"[0-9]|N/A", cell):
        return f"row {label} has {read} link cells, but the header has {count} columns; the next cell is {cell[:40]}"
    return f"{cell[:40]} in row {label} is no link code of nvidia-smi topo -m"


def _fields(text: str, starts: Sequence[int], end: int, behind: Sequence[re.Match[str]]) -> tuple[int, ...] | None:
    """Return how many tabs each cell after the links is to the right of the first affinity field."""
    ends = [end, *(field.end() for field in behind)]
    gaps = [(end, field.start()) for end, field in zip(ends, behind, strict=False)]
    if "\t" in text[end:].rstrip():
        gaps = [(start + 1 if text[start] == " " else start, end) for start, end in gaps]  # it prints X as " X "
        steps = [end - start if text[start:end].strip("\t") == "" else 0 for start, end in gaps]
    elif "\t" not in text.rstrip() and _on_tab_stops(text, starts):
        steps = [end // 8 - start // 8 if end % 8 == 0 else 0 for start, end in gaps]
    else:
        return None
    return None if 0 in steps else tuple(sum(steps[: index + 1]) - 1 for index in range(len(steps)))


def _on_tab_stops(text: str, starts: Sequence[int]) -> bool:
    """Return True if the link cells are at the positions of tab stops; nvidia-smi prints X as " X "."""
    return all(start - (text[start] == "X") == 8 * (index + 1) for index, start in enumerate(starts))
