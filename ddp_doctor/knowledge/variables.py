"""The environment variables that NCCL, torch, gloo and torchrun read, and those that nothing reads.

The table is data/variables.json, one line a variable, which tools/generate_variables.py writes from
tools/data, where people edit it::

    {"name": "NCCL_NVLS_ENABLE", "owner": "nccl", "type": "int", "meaning": "Reduces in the NVSwitch …",
     "default": "2", "first": "2.17.1", "source": "NCCL 2.30.7 src/transport/nvls.cc",
     "history": [["2.17.1", "1"], ["2.18.1", "2"]],
     "concerns": [{"kind": "slows", "test": "is", "operands": ["0"], "why": "…", "source": "…"}]}

Releases are NCCL's in NCCL's own rows, and torch's in all others. ``backend`` is the only one of torch's two classes
behind "nccl" that reads a variable: nccl2, or nccl-legacy, which torch 2.13 and older call nccl.

``never_read`` holds names that people set although no release reads them, with what was meant;
``foreign`` the prefixes that plug-ins, images and build scripts use, which nobody may call misspelled.
Read from every NCCL tag 2.3.5 to 2.30.7, from what libnccl 2.31.2 and 2.32.3 themselves answer, and from
torch 2.13 to 2.15; a later library may know more names.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ddp_doctor.knowledge.versions import BUNDLED_NCCL, OLDEST_TORCH, Version, release

#: The newest releases that the table was read from.
NEWEST_TORCH = "torch 2.15"
RELEASES = f"NCCL 2.32.3 and {NEWEST_TORCH}"

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
#: torch's classes behind "nccl" that read different variables.
Backend = Literal["nccl2", "nccl-legacy"]
#: The names that the ranks and torch have for them (views/nccl_backend.py).
_CLASSES: Mapping[str | None, Backend] = {
    "nccl2": "nccl2",
    "nccl-legacy": "nccl-legacy",
    "nccl": "nccl-legacy",
}


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
    history: tuple[tuple[str, str], ...] = ()  # (release, default from there on)
    first: str | None = None  # first release that reads it; of torch's, only where that is 2.14 or newer
    last: str | None = None  # last release that reads it, where it was removed
    replaced_by: str | None = None
    read_when: str | None = None  # torch: what reads it
    backend: Backend | None = None  # None: both, or neither is asked
    values: tuple[str, ...] = ()
    case: Literal["exact", "any"] = "exact"
    otherwise: Literal["ignored", "refused", "hangs"] = "ignored"  # what becomes of any other value
    concerns: tuple[Concern, ...] = ()

    @property
    def what_it_does(self) -> str:
        """The meaning, and which class of torch's it is for."""
        older = {"nccl2": "newer", "nccl-legacy": "older"}
        only = (
            f" Only torch's {older[self.backend]} class for NCCL reads it, {self.backend}."
            if self.backend
            else ""
        )
        return f"{self.meaning}{only}"


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


@dataclass(frozen=True)
class Installed:
    """The releases of a node and its class behind "nccl"; () and None where they are not known."""

    nccl: Version = ()
    torch: Version = ()
    backend: str | None = None  # as views/nccl_backend.py says

    def of(self, variable: Variable) -> Version:
        """The release that decides whether the variable is read."""
        return self.nccl if variable.owner == "nccl" else self.torch

    def reads(self, name: str) -> bool:
        """Whether a variable of the table is read here for sure."""
        variable = variables()[name]
        at = self.of(variable) or _oldest(variable)
        return status_at(variable, at) == "read" and not is_of_another_backend(variable, self.backend)


def default_at(variable: Variable, at: Version) -> str | None:
    """The default in a release; None where it is unset, or that release does not read the variable."""
    if status_at(variable, at) in ("not yet", "no longer", "renamed"):
        return None
    defaults = [default for since, default in variable.history if release(since) <= at]
    return defaults[-1] if defaults else variable.default


def status_at(variable: Variable, at: Version) -> StatusAt:
    """Whether a release, NCCL's for NCCL's own variables and torch's for all others, reads the variable.

    A variable that another one replaced is "renamed" once the old name is no longer read.
    """
    if variable.first is not None and at < release(variable.first):
        return "not yet"
    if variable.last is not None and at[: len(release(variable.last))] > release(variable.last):
        return "renamed" if variable.replaced_by else "no longer"
    return "read"


def is_gone(variable: Variable) -> bool:
    """Whether no torch that the doctor supports, nor the NCCL that comes with it, reads the variable any more."""
    return variable.last is not None and release(variable.last) < _oldest(variable)


def _oldest(variable: Variable) -> Version:
    return min(BUNDLED_NCCL.values()) if variable.owner == "nccl" else OLDEST_TORCH


def is_of_another_backend(variable: Variable, backend: str | None) -> bool:
    """Whether the class behind "nccl" is known, and the variable is read by the other one alone."""
    return variable.backend is not None and _CLASSES.get(backend, variable.backend) != variable.backend


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


def is_of_rccl(name: str) -> bool:
    """Whether RCCL, where torch is built for ROCm, is who reads it."""
    return name.upper().startswith(("NCCL_", "RCCL_"))
