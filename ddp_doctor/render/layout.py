"""Lay out text at the width of a terminal: sentences break between words, and tables fold. Other outputs do not break.

If a table is too wide, its last column is broken, or each row becomes a sentence of its titles and cells:

rank 0, GPU 4, matmul 702.4 TFLOP/s,
    copy 2541.0 GB/s
"""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import fill

from ddp_doctor.render.screen import Console

#: A terminal of fewer columns breaks lines itself.
_NARROWEST = 12
#: Minimum width of a last column to be broken.
_LEAST = 24


#: The space between a number and its unit, or an option and its value.
_TOGETHER = re.compile(r"(?<=\d) (?=(?:[mu]?s|[KMGT]iB|B|[kMG]B/s|Gb/s|%)(?!\w))|(?<=--level|-budget) (?=\w)")


def width_of(out: Console) -> int | None:
    """Return the columns of a terminal, or None for other outputs and for terminals that report almost none."""
    return out.width if out.is_terminal and out.width >= _NARROWEST else None


def folded(text: str, width: int | None, *, indent: int = 0, hang: int = 0) -> str:
    """Return ``text`` at its indent, broken only between words; further lines begin ``hang`` further in."""
    first = " " * indent
    if width is None or width < _NARROWEST:
        return first + text.replace("\xa0", " ")
    broken = fill(
        _TOGETHER.sub("\xa0", text),
        width,
        initial_indent=first[: width // 3],
        subsequent_indent=" " * min(indent + hang, width // 3),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return broken.replace("\xa0", " ")


def command(text: str, width: int | None, *, indent: int) -> str:
    """Return a command at its indent; if it is too wide, it is continued as in a shell, with its comment above."""
    line = " " * indent + text
    if width is None or len(line) <= width:
        return line
    command, _, comment = text.partition("   # ")
    words = _SHELL_WORD.findall(command)
    if " ".join(words) != command or "#" in words:  # it has more than words, so it stays on one line
        return line
    above = [folded(f"# {comment}", width, indent=indent).replace("\n", "\n# ")] if comment else []
    lines = fill(
        " ".join(word.replace(" ", "\xa0") for word in words),
        max(width - 2, 1),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join((*above, lines.replace("\n", " \\\n").replace("\xa0", " ")))


#: One word of a shell, including quoted spaces.
_SHELL_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")


@dataclass(frozen=True)
class Table:
    """Rows of cells below their titles; ``right`` are the columns of numbers. May have only notes."""

    titles: tuple[str, ...] = ()  # of one line or of several
    rows: Sequence[tuple[str, ...]] = ()
    right: Container[int] = ()
    caption: str = ""  # the subject of the table
    notes: tuple[str, ...] = ()  # lines below the table

    def lines(self, width: int | None) -> list[str]:
        """Return all lines for a screen, the caption first; without titles if each row is a sentence."""
        titles, rows = self.parts(width)
        return [
            *([folded(self.caption, width, indent=1)] if self.caption else []),
            *titles,
            *(line for row in rows for line in row.split("\n")),
            *(folded(note, width, indent=3) for note in self.notes),
        ]

    def parts(self, width: int | None) -> tuple[list[str], list[str]]:
        """Return the lines of the titles, and a text for each row."""
        if not self.titles:
            return [], []
        titles = list(zip_longest(*(title.split("\n") for title in self.titles), fillvalue=""))
        widths = [max(map(len, column)) for column in zip(*titles, *self.rows, strict=True)]
        last = sum(widths[:-1]) + 2 * len(widths[:-1]) + 1
        lines = [self._line(row, widths) for row in (*titles, *self.rows)]
        if width is not None and last + widths[-1] > width:
            if len(widths) - 1 in self.right or width - last < _LEAST:
                return [], [folded(self._sentence(row), width, indent=1, hang=3) for row in self.rows]
            ends = [folded(line[last:], width - last).replace("\n", "\n" + " " * last) for line in lines]
            lines = [line[:last] + end for line, end in zip(lines, ends, strict=True)]
        return lines[: len(titles)], lines[len(titles) :]

    def without_empty_columns(self) -> "Table":
        """Return the table with its first column and all columns that are not empty; empty cells get a dash."""
        kept = [column for column in range(len(self.titles)) if column == 0 or any(row[column] for row in self.rows)]
        rows = [tuple(row[column] or "-" for column in kept) for row in self.rows]
        return Table(tuple(self.titles[column] for column in kept), rows)

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        cells = [
            cell.rjust(width) if column in self.right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return f" {'  '.join(cells)}".rstrip()

    def _sentence(self, row: Sequence[str]) -> str:
        named = zip(self.titles, row, strict=True)
        first, *others = [" ".join(f"{title} {cell}".split()) for title, cell in named if cell not in ("", "-")]
        if 0 in self.right:
            return ", ".join((first, *others))
        return f"{' '.join(row[0].split())}: {', '.join(others)}"


def matrix_lines(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return rows of cells, titles first; columns that do not fit follow below, again with the first column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    parts: list[list[int]] = [[]]
    room = (width or 0) - widths[0]
    for column in range(1, len(widths)):
        if width is not None and parts[-1] and sum(widths[c] + 2 for c in (*parts[-1], column)) > room:
            parts.append([])
        parts[-1].append(column)
    return [
        "  ".join(row[column].ljust(widths[column]) for column in (0, *part)).rstrip() for part in parts for row in rows
    ]
