"""The environment variables that NCCL, torch, gloo and torchrun read, and those that nothing reads.

The table is data/variables.json, one line a variable, which tools/generate_variables.py writes from
tools/data, where people edit it::

    {"name": "NCCL_NVLS_ENABLE", "owner": "nccl", "type": "int", "meaning": "Reduces in the NVSwitch …",
     "default": "2", "first": "2.17.1", "source": "NCCL 2.30.7 src/transport/nvls.cc",
     "history": [["2.17.1", "1"], ["2.18.1", "2"]],
     "concerns": [{"kind": "slows", "test": "is", "operands": ["0"], "why": "…", "source": "…"}]}

``never_read`` holds names that people set although no release reads them, with what was meant;
``foreign`` the prefixes that plug-ins, images and build scripts use, which nobody may call misspelled.
Read from every NCCL tag 2.3.5 to 2.30.7, from what libnccl 2.31.2 and 2.32.3 themselves answer, and from
torch 2.13; a later library may know more names.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ddp_doctor.knowledge.versions import BUNDLED_NCCL, Version, release

#: The newest releases that the table was read from.
RELEASES = "NCCL 2.32.3 and torch 2.13"

#: What is recorded of an environment beside the names in the table.
PREFIXES = ("NCCL_", "TORCH_", "TORCHELASTIC_", "GLOO_", "PET_")

#: Of TORCH_*, only these are the distributed package's own; the rest belongs to the compiler, the hub ….
DISTRIBUTED_PREFIXES = (
    "NCCL_",
    "TORCH_NCCL_",
    "TORCH_FR_",
    "TORCH_DIST",
    "TORCH_GLOO_",
    "TORCHELASTIC_",
    "GLOO_",
    "PET_",
)

#: Similarity of two words from which one is taken for a misspelling of the other: one letter of five
#: dropped, doubled or swapped. Below it ENABLE and DISABLE, or MIN and MAX, would be confused.
SAME_WORD = 0.8
#: Shorter words (IB, TC, P2P, MIN) differ by design and must match exactly.
SHORTEST_MISSPELLED_WORD = 4

#: Last words that say in what a value is given; they are forgotten easily, and add no other meaning.
UNITS = ("SEC", "MSEC", "MILSEC", "BYTES", "SIZE", "CNT", "NUM", "INDEX")

Status = Literal["active", "deprecated", "removed"]
StatusAt = Literal["read", "not yet", "no longer", "renamed"]


@dataclass(frozen=True)
class Concern:
    """Why a value that does what it says is still worth a word; knowledge/concerns.py tells when it holds.

    ``debug`` costs time for logs or checks, ``slows`` gives a fast path up, ``unsafe`` risks hangs or wrong data.
    """

    kind: Literal["debug", "slows", "unsafe"]
    test: Literal["any", "is", "not", "below", "above", "has", "allows"]
    operands: tuple[str, ...]
    why: str  # a sentence
    source: str
    mild: bool = False  # costs little


@dataclass(frozen=True)
class Variable:
    """One variable that some release reads; ``type`` is how it is read (knowledge/values.py)."""

    name: str
    owner: str  # who reads it: the file of tools/data/variables; torch is its distributed package alone
    type: str
    meaning: str  # a sentence: what it does
    source: str
    status: Status = "active"  # in the newest release
    default: str | None = None  # in the newest release; None where it is unset
    history: tuple[tuple[str, str], ...] = ()  # (NCCL release, default from there on)
    first: str | None = None  # first NCCL release that reads it
    last: str | None = None  # last NCCL release that reads it, where it was removed
    replaced_by: str | None = None
    read_when: str | None = None  # torch: what reads it
    values: tuple[str, ...] = ()
    case: Literal["exact", "any"] = "exact"
    otherwise: Literal["ignored", "refused", "hangs"] = "ignored"  # what becomes of any other value
    concerns: tuple[Concern, ...] = ()


@dataclass(frozen=True)
class NeverRead:
    """A name that nothing reads, what people mean by it, and the variable that does that."""

    name: str
    meant: str
    source: str
    instead: str | None = None


@dataclass(frozen=True)
class Foreign:
    """A prefix that something else than NCCL, torch and gloo uses."""

    prefix: str
    reader: str
    source: str


@lru_cache(maxsize=1)
def _tables() -> Mapping[str, list[dict[str, Any]]]:
    text = (Path(__file__).parent / "data" / "variables.json").read_text(encoding="utf-8")
    tables: dict[str, list[dict[str, Any]]] = json.loads(text)
    return tables


@lru_cache(maxsize=1)
def variables() -> Mapping[str, Variable]:
    """All variables that some release reads, by name."""
    return {row["name"]: _variable(row) for row in _tables()["variables"]}


def _variable(row: dict[str, Any]) -> Variable:
    tuples = {
        "history": tuple((since, default) for since, default in row.get("history", ())),
        "values": tuple(row.get("values", ())),
        "concerns": tuple(_concern(concern) for concern in row.get("concerns", ())),
    }
    return Variable(**{**row, **tuples})


def _concern(row: dict[str, Any]) -> Concern:
    return Concern(**{**row, "operands": tuple(row["operands"])})


@lru_cache(maxsize=1)
def never_read() -> Mapping[str, NeverRead]:
    """The names that nothing reads, by name."""
    return {row["name"]: NeverRead(**row) for row in _tables()["never_read"]}


@lru_cache(maxsize=1)
def _foreign() -> tuple[Foreign, ...]:
    return tuple(Foreign(**row) for row in _tables()["foreign"])


def is_recorded(name: str) -> bool:
    """Whether the doctor records this variable's value. NCCL's prefix is recognised in lower case too."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return False
    return name in variables() or name.startswith(PREFIXES) or name.upper().startswith("NCCL_")


def default_at(variable: Variable, nccl: Version) -> str | None:
    """The default in an NCCL release; None where it is unset, or that release does not read the variable."""
    if status_at(variable, nccl) in ("not yet", "no longer", "renamed"):
        return None
    defaults = [default for since, default in variable.history if release(since) <= nccl]
    return defaults[-1] if defaults else variable.default


def status_at(variable: Variable, nccl: Version) -> StatusAt:
    """Whether an NCCL release reads the variable; what is not NCCL's own is always read.

    A variable that another one replaced is "renamed" once the old name is no longer read.
    """
    if variable.first is not None and nccl < release(variable.first):
        return "not yet"
    if variable.last is not None and nccl > release(variable.last):
        return "renamed" if variable.replaced_by else "no longer"
    return "read"


def is_gone(variable: Variable) -> bool:
    """Whether no NCCL that comes with a torch the doctor supports reads the variable any more."""
    return variable.last is not None and release(variable.last) < min(BUNDLED_NCCL.values())


def is_unknown(name: str) -> bool:
    """Whether a name looks like the distributed package's, yet neither it nor a known plug-in reads it."""
    return (
        (name.upper().startswith(DISTRIBUTED_PREFIXES) or _without_nccl(name) in variables())
        and name not in variables()
        and name not in never_read()
        and not name.startswith(tuple(foreign.prefix for foreign in _foreign()))
    )


@lru_cache(maxsize=8192)
def nearest(name: str) -> str | None:
    """The variable that ``name`` is a misspelling of; None where that would be a guess.

    Recognised: the wrong case, a slip in one or more words, words in another order or divided otherwise,
    a forgotten NCCL_ or TORCH_ (``NCCL_DUMP_ON_TIMEOUT`` for ``TORCH_NCCL_DUMP_ON_TIMEOUT``) and a forgotten
    unit (``NCCL_IB_GID`` for ``NCCL_IB_GID_INDEX``).
    """
    upper = name.upper()
    with_unit = (f"{upper}_{unit}" for unit in UNITS)
    for whole in (upper, f"TORCH_{upper}", _without_nccl(upper), *with_unit):
        if whole in variables():
            return whole
    family = upper.partition("_")[0] + "_"
    relatives = [known for known in variables() if known.startswith(family)]
    likely = [known for known in relatives if _is_misspelled(upper, known)]
    return max(likely, key=lambda known: (_similarity(upper, known), known), default=None)


def _without_nccl(name: str) -> str:
    """The full name of a TORCH_NCCL_* variable whose NCCL_ was forgotten."""
    return name.replace("TORCH_", "TORCH_NCCL_", 1)


def _is_misspelled(name: str, known: str) -> bool:
    words, meant = name.split("_")[1:], known.split("_")[1:]
    if sorted(words) == sorted(meant):
        return True
    if len(words) == len(meant):
        return all(_is_slip(word, other) for word, other in zip(words, meant, strict=True))
    return _is_slip("".join(words), "".join(meant), SAME_WORD + 0.15)


def _is_slip(word: str, meant: str, least: float = SAME_WORD) -> bool:
    if word == meant:
        return True
    shorter, both = min(len(word), len(meant)), len(word) + len(meant)
    if shorter < SHORTEST_MISSPELLED_WORD or 2 * shorter < least * both:  # no better ratio is possible
        return False
    digits = [character for character in word if character.isdigit()]
    return (
        digits == [character for character in meant if character.isdigit()]
        and _similarity(word, meant) >= least
    )


def _similarity(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()
