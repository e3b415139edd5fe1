"""Write the shipped table of variables from the files that people edit.

``python -m tools.generate_variables`` reads tools/data and writes ddp_doctor/knowledge/data/variables.json;
with ``--check`` it only says whether that file is up to date, which tests/tools asserts. A file for each
owner, tools/data/variables/OWNER.ini, holds a section for each variable, and one for each concern::

    [NCCL_IB_TIMEOUT]
    meaning = How long an RDMA connection waits for an answer, as an exponent.
    type = int
    default =
        2.3.5: 14
        2.14.3: 18
        2.23.4: 20
    first = 2.3.5
    source = NCCL 2.30.7 src/transport/net_ib/connect.cc

    [NCCL_P2P_DISABLE: slows]
    when = 1
    why = GPUs of one host exchange data through host memory.
    source = NCCL user guide, env.rst

``default`` is a value, or a line for each release that changed it. ``when`` is ``any``, values (``0, 1``),
``not 0``, ``< 4``, ``> 1``, ``has LL128`` for a list that names a word, or ``allows LL128`` for one that names
it or does not exclude it with ^. The kind of a concern is
debug, slows or unsafe, followed by ``, mild`` where it costs little. A value in double quotes keeps its
white space. INI, because Python 3.10 reads it without a new dependency, and a change is one line of a diff.
"""

import json
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
SHIPPED = Path(__file__).parent.parent / "ddp_doctor" / "knowledge" / "data" / "variables.json"

_KINDS = ("debug", "slows", "unsafe")
_TESTS = {"not": "not", "<": "below", ">": "above", "has": "has", "allows": "allows"}
_LISTS = ("values",)
_TEXTS = (
    "type",
    "meaning",
    "default",
    "first",
    "last",
    "replaced_by",
    "read_when",
    "backend",
    "case",
    "otherwise",
    "source",
)
_NEVER_READ = ("meant", "instead", "source")
_FOREIGN = ("reader", "source")

Row = dict[str, Any]


class BadRowError(ValueError):
    """A section that is no row; its text names file and section."""


def table(data: Path = DATA) -> str:
    """The text of the shipped table."""
    parts = {
        "variables": [row for path in sorted((data / "variables").glob("*.ini")) for row in _variables(path)],
        "never_read": list(_rows(data / "never_read.ini", "name", _NEVER_READ)),
        "foreign": list(_rows(data / "foreign.ini", "prefix", _FOREIGN)),
    }
    blocks = (f"{json.dumps(name)}: [\n{_lines(rows)}\n]" for name, rows in parts.items())
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _lines(rows: list[Row]) -> str:
    return ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)


def _read(path: Path) -> ConfigParser:
    parser = ConfigParser(interpolation=None, delimiters=("=",), default_section="")
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys are written as they are read
    parser.read_string(path.read_text(encoding="utf-8"), source=path.name)
    return parser


def _rows(path: Path, head: str, known: tuple[str, ...]) -> Iterator[Row]:
    parser = _read(path)
    for title in parser.sections():
        row = {key: _text(value) for key, value in parser[title].items()}
        _insist(set(row) <= {*known} and "source" in row, path, title)
        yield {head: title, **row}


def _variables(path: Path) -> Iterator[Row]:
    parser = _read(path)
    concerns: dict[str, list[Row]] = {}
    for title in parser.sections():
        name, colon, kind = title.partition(": ")
        if colon:
            _insist(name in parser, path, title)
            concerns.setdefault(name, []).append(_concern(path, title, kind, dict(parser[title])))
    for name in parser.sections():
        if ": " not in name:
            row = {"name": name, "owner": path.stem, **_variable(path, name, dict(parser[name]))}
            yield {**row, **({"concerns": concerns[name]} if name in concerns else {})}


def _variable(path: Path, name: str, given: dict[str, str]) -> Row:
    deprecated = given.pop("deprecated", "no") == "yes"
    _insist(set(given) <= {*_TEXTS, *_LISTS} and {"type", "meaning", "source"} <= set(given), path, name)
    row: Row = {key: _text(given[key]) for key in _TEXTS if key in given}
    if given.get("default", "").startswith("\n"):
        history = [line.split(": ", 1) for line in given["default"].strip().splitlines()]
        row |= {"default": history[-1][1], "history": history}
    row |= {key: given[key].split(", ") for key in _LISTS if key in given}
    status = "removed" if "last" in row else "deprecated" if deprecated else None
    return {**row, **({"status": status} if status else {})}


def _concern(path: Path, title: str, kind: str, given: dict[str, str]) -> Row:
    kind, _, mild = kind.partition(", ")
    fits = kind in _KINDS and mild in ("", "mild") and set(given) == {"when", "why", "source"}
    _insist(fits, path, title)
    word, _, rest = given["when"].partition(" ")
    test = _TESTS.get(word, "any" if given["when"] == "any" else "is")
    operands = (rest if word in _TESTS else given["when"]).split(", ") if test != "any" else []
    row: Row = {"kind": kind, "test": test, "operands": operands, "why": given["why"]}
    return {**row, "source": given["source"], **({"mild": True} if mild else {})}


def _text(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return value[1:-1] if quoted else " ".join(value.split())


def _insist(fits: bool, path: Path, title: str) -> None:
    if not fits:
        raise BadRowError(f"{path.name} [{title}]: a key is missing, or one too many")


def main(arguments: list[str]) -> int:
    """Write the table, or say that it is stale."""
    wanted = table()
    if arguments == ["--check"]:
        if SHIPPED.read_text(encoding="utf-8") == wanted:
            return 0
        sys.stderr.write(f"stale, run `make docs`: {SHIPPED.name}\n")
        return 1
    SHIPPED.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
