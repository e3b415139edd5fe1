"""The blocks of the written documents, and which of them are run.

The commands of a ``console`` block are run as they are, and the text below a command is compared with its output. A
``text`` block is part of the output of the last command above it. A comment above a block, which readers do not see,
marks other cases::

    <!-- shows: COMMAND -->   part of what this command prints
    <!-- not run: REASON -->  and who runs it instead

Blocks of other languages are only parsed. Most of docs/reference records measurements and is not checked.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

#: Acceptable exit codes: the command was valid, and ddp-doctor itself did not fail.
UNDERSTOOD = (0, 1, 3)
ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<note>shows|not run): (?P<said>[^\n]*?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_PROMPT = re.compile(r"[$#] (.*)")


@dataclass(frozen=True)
class Typed:
    command: str
    shown: str


@dataclass(frozen=True)
class Block:
    document: str  # from the root
    line: int
    language: str
    text: str
    note: str  # shows, not run or nothing
    said: str  # what the comment says

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"

    def typed(self) -> list[Typed]:
        """The commands of a console block, which follow a prompt."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if prompt := _PROMPT.fullmatch(line):
                found.append((prompt[1], []))
            else:
                found[-1][1].append(line)
        return [Typed(command, "\n".join(shown)) for command, shown in found]


def documents() -> list[str]:
    pages = (path.relative_to(ROOT).as_posix() for path in sorted(ROOT.glob("docs/**/*.md")))
    written = (page for page in pages if not page.startswith("docs/reference/"))
    return ["README.md", "CONTRIBUTING.md", "SECURITY.md", *written, "docs/reference/exit-codes.md"]


def blocks() -> Iterator[Block]:
    for document in documents():
        whole = (ROOT / document).read_text()
        for found in _BLOCK.finditer(whole):
            line = whole.count("\n", 0, found.start("language")) + 1
            text = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
            note, said = found["note"] or "", found["said"] or ""
            yield Block(document, line, found["language"], text, note, said)


def is_part(shown: str, printed: str) -> bool:
    """Return True if the text of a document was printed; a line with only ``...`` stands for any lines."""
    lines = ["(?s:.*?)" if line.strip() == "..." else f"{re.escape(line)}\n" for line in _plain(shown)]
    return re.search("^" + "".join(lines), "".join(f"{line}\n" for line in _plain(printed)), re.MULTILINE) is not None


#: Parts that differ between runs and machines, and their replacements.
_DIFFERS = (
    (r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b|(?<=, run )[\w-]+", "RUN"),
    (r"\S+/ddp-doctor/runs/", "RUNS/"),
    (r"/\S+/bin$", "BIN"),
    (r"\S+/\.bashrc\b", "BASHRC"),
    (r"\bprocess \d+", "PROCESS"),
    (r"\bddp-doctor \d+\.\d+\.\d+\w*", "VERSION"),
    (r" \(\d+\.\d+ s\)$", ""),  # a check that took no time has none
    (r"\b\d+(\.\d+)? (s|ms|us|MB/s|GB/s|MiB)\b", "MEASURED"),
    (r"\d+ times faster|\(median of [^)]*\)", "MEASURED"),
    (r" +", " "),
)


def _plain(text: str) -> Iterator[str]:
    """Yield the lines without varying parts, and without info findings, which depend on the machine.

    Consecutive rows of numbers count as one row, because their number depends on timing.
    """
    text = re.sub(r"^INFO .*\n( .*\n)*", "", text, flags=re.MULTILINE)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    for is_row, group in groupby(lines, lambda line: bool(re.fullmatch(r"(?=.*\d)[\d. ]+", line))):
        for line in ("ROW",) if is_row else group:
            if re.match(r" *[\d.]+ \w+ and above: not tested", line):
                continue
            shown = line
            for pattern, sign in _DIFFERS:
                shown = re.sub(pattern, sign, shown)
            yield shown


def pinned(package: str) -> str:
    """The release that the committed pages were made with."""
    found = re.search(rf"^{package}==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]
