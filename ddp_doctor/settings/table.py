"""The table of environment variables that NCCL, torch, gloo, torchrun and the libraries below them read.

The rows are in INI files of the package, data/variables/OWNER.ini. A section describes a variable. A section with a
word after the name describes a consequence of its value::

    [NCCL_IB_TIMEOUT]
    meaning = How long an RDMA connection waits for an answer, as an exponent.
    type = int
    default =
        2.3.5: 14
        2.14.3: 18
        2.23.4: 20
    first = 2.3.5
    tried_with = nccl
    source = NCCL 2.30.7 src/transport/net_ib/connect.cc

    [NCCL_IB_TIMEOUT: range]
    takes = 1..31
    beyond = It waits for ever for an answer: a dead peer then hangs the job.
    source = NCCL user guide, NCCL_IB_TIMEOUT

The keys are the fields of Variable, and those of Effect (debug, slows, unsafe), Range, Silencer (silences, needed),
Conflict and Agreement. Another word distinguishes sections of one kind, and ``, mild`` marks a minor effect.
``default`` and ``takes`` are a value, or a line for each release that changed it. ``when`` is a condition
(settings/conditions.py) on the variable, or a line ``NAME: condition`` for each variable concerned. A value in
double quotes keeps its white space; a line that starts with # is a comment.

Releases are NCCL's in NCCL's own rows, and torch's in the other rows. data/never_read.ini lists names that users set
although no release reads them. data/foreign.ini lists the prefixes of plug-ins, images and build scripts, which are
never reported as misspelled. Sources: every NCCL tag from 2.3.5 to 2.30.7 and the user guide of 2.30.7, the behavior of
libnccl 2.31.2 and 2.32.3, and torch 2.13 to 2.15. Later libraries may read more names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from ddp_doctor.knowledge.versions import Version, release
from ddp_doctor.settings.conditions import When, parse_when

DATA = Path(__file__).parent / "data"

Status = Literal["active", "deprecated", "removed"]
#: torch's classes behind "nccl" that read different variables.
Backend = Literal["nccl2", "nccl-legacy"]
#: The scope of a setting. ``paths``: between the GPUs of a node; ``rdma``: between nodes; ``gpudirect``: between NIC
#: and GPU; ``network``: a plug-in's; ``nvls``: NVLink SHARP; ``collectives``: any NCCL job of several ranks; ``job``.
Scope = Literal["paths", "rdma", "gpudirect", "network", "nvls", "collectives", "job"]
#: How much it matters that nodes or ranks differ.
Weight = Literal["fatal", "matters", "minor"]


@dataclass(frozen=True)
class Effect:
    """The cost or risk of a value that works as intended.

    ``debug`` costs time for logs or checks, ``slows`` disables a fast path, ``unsafe`` risks hangs or wrong data.
    """

    name: str
    kind: Literal["debug", "slows", "unsafe"]
    when: When
    why: str  # a sentence
    source: str
    mild: bool = False  # costs little

    @property
    def values(self) -> str:
        """The affected values as text: "0", "below 4"."""
        return self.when[0][1].in_words


@dataclass(frozen=True)
class Range:
    """The valid numbers of a setting; others are clamped, wrap or change their meaning without a message."""

    name: str
    takes: tuple[tuple[Version, int, int], ...]  # (release, minimum, maximum since then)
    beyond: str  # the effect of another number
    source: str
    says: str = ""  # the text after the setting; if empty, the range
    mild: bool = False  # NCCL handles it as well as it can


@dataclass(frozen=True)
class Silencer:
    """A setting that disables others, or that others need."""

    name: str
    when: When
    names: str  # a pattern of the others' names
    why: str
    source: str
    mild: bool = False  # users are unlikely to expect their effect
    about: Literal["", "rdma", "plugin"] = ""  # rdma: they are about InfiniBand and RoCE; plugin: a plug-in stays
    needed: bool = False  # the others need a setting that is missing


@dataclass(frozen=True)
class Conflict:
    """A conflict between settings, and which of them to remove first."""

    names: tuple[str, ...]
    says: str  # after the settings: "leave no network"
    why: str
    source: str
    without: tuple[str, ...]
    fails_from: Version | None = None  # NCCL fails since this release, () for all; None: never
    when: When = ()

    def fails(self, nccl: Version) -> bool | None:
        """Return whether NCCL fails, or None if its release is unknown or older than the source."""
        if self.fails_from is None:
            return False
        return True if nccl >= self.fails_from else None


@dataclass(frozen=True)
class Agreement:
    """The effect of different values on ranks; without such a row, values should be equal."""

    name: str
    weight: Weight
    effect: str
    source: str
    within_a_node: bool = False  # ranks of one node differ, rather than nodes
    among: str = ""  # only if one of the values is this, in capitals
    before: Version | None = None  # only with an NCCL before this release
    needs: Literal["", "rdma"] = ""  # only if ranks on several nodes could use RDMA


@dataclass(frozen=True)
class Variable:
    """A variable that some release reads; ``type`` selects its reader (settings/values.py)."""

    name: str
    owner: str  # the library that reads it (the file name); torch means only its distributed package
    type: str
    meaning: str  # its effect, as a sentence
    source: str
    status: Status = "active"  # in the newest release
    default: str | None = None  # in the newest release; None if unset
    history: tuple[tuple[str, str], ...] = ()  # (release, default since then)
    first: str | None = None  # first release that reads it; for torch, only if 2.14 or newer
    last: str | None = None  # last release that reads it, if removed
    replaced_by: str | None = None
    older_name: str | None = None  # an older name that is also read, with lower priority
    read_when: str | None = None  # for torch: its reader
    backend: Backend | None = None  # None: both, or neither is asked
    other_backend_reads: str | None = None  # the variable that torch's other class reads instead
    lost_on_nccl2: str | None = None  # a protection that nccl2 does not have
    values: tuple[str, ...] = ()
    case: Literal["exact", "any"] = "exact"
    otherwise: Literal["ignored", "refused", "hangs"] = "ignored"  # the effect of any other value
    scope: Scope | None = None  # None: derived from its name (settings/effects.py)
    needed_for: str | None = None  # who needs a value of it that slows others
    may_differ: Literal["", "yes", "in names"] = ""  # yes: no effect on others; in names: a host's own devices
    tried_with: Literal["nccl", "gloo"] | None = None  # the backend whose ranks read it in a trial
    effects: tuple[Effect, ...] = ()
    ranges: tuple[Range, ...] = ()
    silencers: tuple[Silencer, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    agreements: tuple[Agreement, ...] = ()

    @property
    def what_it_does(self) -> str:
        """The meaning, and the class of torch that it applies to."""
        older = {"nccl2": "newer", "nccl-legacy": "older"}
        only = f" Only torch's {older[self.backend]} class for NCCL reads it, {self.backend}." if self.backend else ""
        return f"{self.meaning}{only}"


@dataclass(frozen=True)
class NeverRead:
    """A name that no release reads, its intended meaning, and the variable that has this effect."""

    name: str
    meant: str
    source: str
    instead: str | None = None


@dataclass(frozen=True)
class Foreign:
    """A prefix of variables that belong to other software than NCCL, torch and gloo."""

    name: str
    reader: str
    source: str


@lru_cache(maxsize=1)
def variables() -> Mapping[str, Variable]:
    """Return the variables that some release reads, by name."""
    files = sorted((DATA / "variables").glob("*.ini"))
    return {row.name: row for path in files for row in _variables(path)}


@lru_cache(maxsize=1)
def never_read() -> Mapping[str, NeverRead]:
    """Return the names that no release reads, by name."""
    return {name: NeverRead(name, **_texts(keys)) for name, keys in _sections(DATA / "never_read.ini")}


@lru_cache(maxsize=1)
def foreign() -> tuple[Foreign, ...]:
    """Return the prefixes of other software."""
    return tuple(Foreign(name, **_texts(keys)) for name, keys in _sections(DATA / "foreign.ini"))


def _sections(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each title with its keys. configparser can read the files too, but takes several times as long."""
    title, key = "", ""
    keys: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            if title:
                yield title, keys
            title, keys = line[1:-1], {}
        elif line.startswith(" "):
            keys[key] += "\n" + line.strip()
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            key = key.rstrip()
            keys[key] = value.strip()
    yield title, keys


def _variables(path: Path) -> Iterator[Variable]:
    rows: dict[str, dict[str, Any]] = {}
    for title, keys in _sections(path):
        name, _, kind = title.partition(": ")
        if kind:
            field, row = _related(name, kind, keys)
            rows[name][field] = (*rows[name].get(field, ()), row)
        else:
            rows[name] = {"name": name, "owner": path.stem, **_own(keys)}
    return (Variable(**row) for row in rows.values())


def _own(keys: dict[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = _texts(keys)
    default = keys.get("default", "")
    if default.startswith("\n"):
        row["history"] = tuple(_by_release(default))
        row["default"] = row["history"][-1][1]
    if "values" in row:
        row["values"] = tuple(row["values"].split(", "))
    deprecated = row.pop("deprecated", None)
    row["status"] = "removed" if "last" in row else "deprecated" if deprecated else "active"
    return row


def _related(name: str, title: str, keys: dict[str, str]) -> tuple[str, object]:
    """Return the field of Variable and the row for a section of this kind."""
    mild, kind = title.endswith(", mild"), title.split(" ", maxsplit=1)[0].rstrip(",")
    row: dict[str, Any] = {key: _READ.get(key, _text)(value) for key, value in keys.items()}
    if "when" in keys:
        row["when"] = parse_when(name, keys["when"])
    if kind == "range":
        return "ranges", Range(name, mild=mild, **row)
    if kind in ("silences", "needed"):
        return "silencers", Silencer(name, mild=mild, needed=kind == "needed", **row)
    if kind == "conflict":
        names = tuple(dict.fromkeys(about for about, _ in row["when"]))
        return "conflicts", Conflict(names, **row)
    if kind == "agreement":
        return "agreements", Agreement(name, within_a_node=title.endswith("within a node"), **row)
    return "effects", Effect(name, kind, mild=mild, **row)  # type: ignore[arg-type]  # tests/settings reads the kinds


def _texts(keys: dict[str, str]) -> dict[str, str]:
    return {key: _text(value) for key, value in keys.items()}


def _text(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] == '"'
    if quoted:
        return value[1:-1]
    return " ".join(value.split()) if "\n" in value else value


def _by_release(value: str) -> Iterator[tuple[str, str]]:
    for line in value.strip().splitlines():
        since, _, what = line.partition(": ")
        yield since, what


def _takes(value: str) -> tuple[tuple[Version, int, int], ...]:
    lines = _by_release(value) if value.startswith("\n") else [("", value)]
    parts = ((since, *what.split("..")) for since, what in lines)
    return tuple((release(since), int(least), int(most)) for since, least, most in parts)


_READ: Mapping[str, Callable[[str], object]] = {
    "takes": _takes,
    "without": lambda value: tuple(value.split(", ")),
    "before": release,
    "fails_from": release,
}
