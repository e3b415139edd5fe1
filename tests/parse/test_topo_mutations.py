"""Samples altered as terminals, browsers, tickets and people alter them.

After each alteration the answer is the same as before, a refusal, or marked by a warning; it is never a different
answer without a mark. The alterations are taken from real pasted topologies.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ddp_doctor.checks.node.topology.formats.topo_matrix import TopologyError, parse_matrices
from ddp_doctor.facts.node.topology import TopologyMatrix

SAMPLES = Path(__file__).parents[1] / "samples" / "topology"
NAMES = (
    "classic-two-socket.txt", "driver-375-soc.txt", "driver-450-nvlink-mesh.txt", "grace-gpu-numa-ids.txt",
    "nvswitch-eight-gpus-raw.txt", "nvswitch-one-link-down.txt", "pcie-two-sockets-eight-gpus.txt",
    "slurm-cpuset-blank-cpus.txt", "wsl2-blank-affinities.txt",
)  # fmt: skip
LABEL = re.compile(r"(?:\x1b\[4m|\s|\ufeff)*(?:GPU|NIC|mlx|ibp|rocep)\S*\s")
CODE = re.compile(r"(?<!\S)(?:NV\d+|SYS|NODE|PHB|PXB|PIX|SOC)(?!\S)")
OUTPUT = "Traceback (most recent call last):\n" + '  File "train.py", line 3, in <module>\n' * 17

Altered = Iterator[str]


def text_of(name: str) -> str:
    with (SAMPLES / name).open(newline="") as file:
        return file.read().replace("\r\n", "\n")


def table_lines(text: str) -> range:
    lines = text.split("\n")
    start = next(index for index, line in enumerate(lines) if "GPU0" in line)
    end = next((n for n in range(start + 1, len(lines)) if not LABEL.match(lines[n])), len(lines))
    return range(start, end)


def with_line(text: str, index: int, *new: str) -> str:
    lines = text.split("\n")
    return "\n".join([*lines[:index], *new, *lines[index + 1 :]])


def each_line(text: str, change: Callable[[str], str]) -> str:
    lines, table = text.split("\n"), table_lines(text)
    return "\n".join(change(line) if index in table else line for index, line in enumerate(lines))


# --- alterations that lose something: the same, refused or marked ---------------------------------


def without_blank(line: str, at: int) -> str:
    return line[:at] + line[at + 1 :] if line[at : at + 1] == " " else line


def without_separator(line: str, behind: int) -> str:
    return re.sub(rf"^(\s*(?:\S+\s+){{{behind - 1}}}\S+)\s+", r"\1", line)


def wrapped(line: str, width: int) -> str:
    return "\n".join(re.findall(f".{{1,{width}}}", line))


def one_column_lost(text: str) -> Altered:
    """A terminal's copy loses the blank at its right edge, in every row (PIXSYS, NIC10NIC11, 0-70)."""
    wide = text.expandtabs(8)
    for column in range(1, max(map(len, wide.split("\n")))):
        yield each_line(wide, partial(without_blank, at=column))


def one_separator_lost(text: str) -> Altered:
    """The separator behind one cell, in every row and in the header."""
    for cell in range(1, max(len(line.split()) for line in text.split("\n"))):
        yield each_line(text, partial(without_separator, behind=cell))


def collapsed(text: str) -> Altered:
    """Yield texts without column positions."""
    yield each_line(text, lambda line: " ".join(line.split()))
    yield each_line(text, lambda line: "  ".join(line.split()))
    yield each_line(text, lambda line: "| " + " | ".join(line.split()) + " |")


def hard_wrapped(text: str) -> Altered:
    """Lines broken at the width of the terminal, in the middle of words; the header padded to 311 columns."""
    for width in range(20, 140, 7):
        yield each_line(text.expandtabs(8), partial(wrapped, width=width))
    start = table_lines(text).start
    header = text.expandtabs(8).split("\n")[start]
    for width in range(12, len(header), 9):
        yield with_line(text, start, header[:width].ljust(311), header[width:])


def cell_changed(text: str) -> Altered:
    """Yield texts where one cell of one row is another code, missing, or doubled."""
    lines = text.split("\n")
    for index in list(table_lines(text))[1:]:
        last_of_each = {found[0]: found for found in CODE.finditer(lines[index])}
        for found in last_of_each.values():
            for new in ("NV7", "", f"{found[0]}\t{found[0]}", "NV", "NV#", "CNS", "X", "72", "pix"):
                if new != found[0]:
                    yield with_line(text, index, lines[index][: found.start()] + new + lines[index][found.end() :])


def lines_gone_or_moved(text: str) -> Altered:
    """A row missing, twice, interrupted, under another label, or with another's cells."""
    lines, table = text.split("\n"), table_lines(text)
    for index in table:
        line = lines[index]
        yield with_line(text, index)
        yield with_line(text, index, line, line)
        yield with_line(text, index, line, OUTPUT)
        middle = len(line) // 2
        yield with_line(text, index, line[:middle], OUTPUT, line[middle:])
        yield with_line(text, index, line[:middle])
        yield with_line(text, index, line.replace("GPU0", "GPU1"))
        yield with_line(text, index, re.sub(r"^(\s*)\S+", r"\1GPU9", line))
        yield with_line(text, index, re.sub(r"^\s*\S+", "", line))
        for other in table:
            swapped = with_line(text, index, lines[other])
            yield with_line(swapped, other, line)


def affinity_damaged(text: str) -> Altered:
    """Affinity cells that are glued, cut, turned round or blank."""
    lines = text.split("\n")
    for index in list(table_lines(text))[1:]:
        line = lines[index].rstrip()
        yield with_line(text, index, re.sub(r"\s+N/A$", "N/A", line))
        yield with_line(text, index, re.sub(r"\s+(\S+)\s+N/A$", r"\1N/A", line))
        yield with_line(text, index, re.sub(r"(\d)-(\d+)", r"\2-\1", line))
        for cut in range(1, 12):
            if line[-1].isalpha() or not line[-cut - 1].isdigit():  # the end of a last number is not missed
                yield with_line(text, index, line[:-cut])
    yield each_line(text, lambda line: re.sub(r"\s+N/A$", "N/A", line.rstrip()))
    yield each_line(text, lambda line: re.sub(r"\s+(\S+)\s+N/A$", r"\1N/A", line.rstrip()))


def header_damaged(text: str) -> Altered:
    """Names in the header that are swapped, doubled, gone or of another kind."""
    start = table_lines(text).start
    header = text.split("\n")[start]
    names = header.split()
    for one in names:
        for new in ("", "GPU0", "GPU1", "NIC7", "CPU", "$(reboot)"):
            if new != one:
                yield with_line(text, start, re.sub(rf"(?<!\S){re.escape(one)}(?!\S)", new, header, count=1))
    yield with_line(text, start, "\t".join(reversed(names)))


def cut_anywhere(text: str) -> Altered:
    """The end of the text is missing, or its beginning."""
    for at in range(0, len(text), 23):
        yield text[:at]
        yield text[at:]


HARMS = (
    one_column_lost,
    one_separator_lost,
    collapsed,
    hard_wrapped,
    cell_changed,
    lines_gone_or_moved,
    affinity_damaged,
    header_damaged,
    cut_anywhere,
)


def answer(text: str) -> tuple[TopologyMatrix, ...] | None:
    try:
        return parse_matrices(text)
    except TopologyError:
        return None


def silently_different(found: tuple[TopologyMatrix, ...], expected: TopologyMatrix) -> bool:
    """Return True if the answer differs without a mark; a CPU list may be incomplete, which is allowed."""
    if len(found) != 1 or found[0].warnings:
        return len(found) != 1
    cpus = [(found[0].cpu_affinity[gpu] or "", expected.cpu_affinity[gpu] or "") for gpu in expected.gpus]
    all_else_alike = found[0].model_copy(update={"cpu_affinity": expected.cpu_affinity}) == expected
    return not all_else_alike or not all(whole.startswith(part) for part, whole in cpus)


def misread(found: tuple[TopologyMatrix, ...], expected: TopologyMatrix) -> list[str]:
    """The links that both rows give, or that are taken from one of them, and that are others than before."""
    links = expected.links
    return [
        f"{name}-{other} is {code}"
        for matrix in found
        for name, row in matrix.links.items()
        for other, code in row.items()
        if code == matrix.links[other].get(name) and code != links.get(name, {}).get(other)
    ]


@pytest.mark.fuzz
@pytest.mark.parametrize("name", NAMES)
def test_lossy_change_gives_the_same_answer_or_is_refused_or_marked(name: str):
    text = text_of(name)
    (expected,) = parse_matrices(text)
    for altered in {altered for harm in HARMS for altered in harm(text)}:
        found = answer(altered)
        if found is not None:
            assert not silently_different(found, expected), f"{altered}\n{found}"
            assert not misread(found, expected), f"{altered}\n{found}"
