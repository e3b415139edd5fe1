r"""Values that NCCL, torch, gloo and torchrun read differently from how they are written.

    NCCL_IB_DISABLE=true       strtoll finds no digit and yields 0: InfiniBand stays on, without a message
    NCCL_NVLS_ENABLE=off       the same, so it is off; NCCL 2.32 takes its default instead: it stays on
    NCCL_BUFFSIZE=4M           strtoll stops at the M: 4 bytes
    NCCL_P2P_LEVEL=sys         compared with SYS, case-sensitive: ignored
    NCCL_DEBUG_FILE=/l/%r.log  only %h and %p are filled in: all ranks write one file named %r.log
    TORCH_GLOO_LAZY_INIT=on    RuntimeError: Invalid value for environment variable
    TORCH_FR_BUFFER_SIZE=many  init_process_group hangs or aborts (torch 2.13)

``type`` in a row of the table of variables selects one of the readers below. Sources: NCCL 2.30.7
src/misc/param.cc (numbers, the same in 2.4.8 and 2.12.12), src/graph/paths.cc ncclGetLevel, src/debug.cc,
src/misc/socket.cc and src/os/linux.cc (interfaces), src/graph/tuning.cc parseList; the results of number parsers in
libnccl 2.21.5 to 2.32.3 for unusual values (tests/lab/test_nccl_parameters.py); torch 2.13
torch/csrc/distributed/c10d/Utils.hpp getCvarBool and getCvarInt, torch/distributed/argparse_util.py.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from ddp_doctor.knowledge.versions import Version
from ddp_doctor.settings.conditions import strtoll
from ddp_doctor.settings.releases import default_at
from ddp_doctor.settings.table import Variable, variables

Fate = Literal["misread", "refused", "hangs"]

#: Launch variables, which separate checks evaluate, and variables of libraries whose readers are not modeled.
_OTHERS = ("launch", "opaque")
_ON = {"true", "yes", "on", "y", "t", "enable", "enabled"}
_OFF = {"false", "no", "off", "n", "f", "disable", "disabled", "none"}
#: torch's booleans.
TRUE, FALSE = {"1", "true", "yes", "t", "y"}, {"0", "false", "no", "f", "n"}
_SCALE = {"K": 1024, "M": 1024**2, "G": 1024**3}
_LARGEST = 2**63
#: Since this release, NCCL keeps its default for a word instead of a number (libnccl 2.31.2 reads 0, 2.32.3 says
#: "Invalid value true for NCCL_IB_DISABLE, using default 0." at the level ATTN).
_WORDS_IGNORED_SINCE = (2, 32)
#: libnccl 2.21.5, 2.27.5 and 2.30.7 print nothing with NCCL_DEBUG=ATTN, on planted GPUs.
_ATTN_SINCE = (2, 32)
#: Typographic quotes of word processors, double and single, high and low.
_QUOTES = "\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb"
_AROUND = f" \t\r\n\"'{_QUOTES}"

#: NCCL's path types that may be in a level, up to SYS (src/include/graph.h).
LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")


@dataclass(frozen=True)
class Misread:
    """A value that is read differently from how it is written.

    ``becomes`` completes "NAME=value …"; ``instead`` is the value that was probably intended.
    """

    becomes: str
    why: str
    instead: str | None = None
    fate: Fate = "misread"
    harmless: bool = False  # it affects only logs, or the value has the effect of an unset variable


Reader = Callable[[Variable, str], Misread | None]


def misread(name: str, value: str, nccl: Version = ()) -> Misread | None:
    """Return how the value of a variable in the table is misread, or None if it is read as written.

    If the release of NCCL is unknown (``()``), the behavior of most releases is assumed.
    """
    variable = variables().get(name)
    if variable is None or variable.type in _OTHERS:
        return None
    reader = _READERS.get(variable.type, _text)
    if not value:
        return _empty(variable, reader)
    if name == "NCCL_DEBUG" and value.upper() == "ATTN" and nccl and nccl < _ATTN_SINCE:
        return Misread("is not a log level, so NCCL logs nothing", "NCCL has the level ATTN since 2.32.", "WARN")
    if is_ignored(name, value, nccl):
        return _ignored_word(variable, value, nccl)
    found = reader(variable, value)
    if found is None and reader not in (_number, _strict_int, _python_int, _omp_threads):
        found = _text(variable, value)  # the readers of numbers skip white space themselves
    bare = value.strip(_AROUND)
    if found is None or bare == value or reader(variable, bare) is not None:
        return found
    return replace(
        found, why=f"{found.why} The quotes or white space around the value are taken literally.", instead=bare
    )


def is_ignored(name: str, value: str, nccl: Version) -> bool:
    """Return True if this NCCL keeps the default because the value is not a number."""
    variable = variables().get(name)
    if variable is None or variable.owner != "nccl" or nccl < _WORDS_IGNORED_SINCE or not value:
        return False
    return _READERS.get(variable.type) is _number and strtoll(value)[0] is None


def _ignored_word(variable: Variable, value: str, nccl: Version) -> Misread | None:
    meant = _number_of_switch_word(value.strip())
    if meant is not None and meant == default_at(variable, nccl):
        return None
    why = "NCCL expects a number. Since 2.32 it ignores words, and reports that only at log level ATTN."
    return Misread("is ignored", why, meant)


def _number_of_switch_word(value: str) -> str | None:
    word = value.lower()
    return "1" if word in _ON else "0" if word in _OFF else None


def effective(name: str, value: str | None) -> str | None:
    """Return a value by its effect: None for an unset variable, its default or an empty value."""
    variable = variables().get(name)
    if value is None or not value.strip():
        return None
    plain = value.strip()
    if variable is None:
        return plain
    if variable.type == "strict_bool":
        plain = "1" if plain.lower() in TRUE else "0" if plain.lower() in FALSE else plain
    if variable.case == "any":
        plain = plain.upper()
    return None if variable.default is not None and plain.lower() == variable.default.strip().lower() else plain


def _empty(variable: Variable, reader: Reader) -> Misread | None:
    if variable.owner == "nccl":
        return Misread("is empty", "NCCL treats empty numbers as unset, but not always empty names.", harmless=True)
    return (
        None
        if reader in (_text, _flag, _switch, _interfaces)
        or (variable.type == "enum" and variable.otherwise == "ignored")
        else reader(variable, "")
    )


def _number(variable: Variable, value: str) -> Misread | None:
    """Read NCCL's integers and booleans: strtoll with base 0, which silently ignores trailing text."""
    number, suffix = strtoll(value)
    word, suffix = value.strip().lower(), suffix.strip()
    if number is None:
        why = "NCCL expects a number. A word without a leading digit is read as 0, and is ignored since 2.32."
        meant = _number_of_switch_word(value.strip())
        effects = {"DISABLE": ", so nothing is disabled", "ENABLE": ", so the feature is off"}
        effect = effects.get(variable.name.rpartition("_")[2], "")
        return None if meant == "0" else Misread(f"is read as 0{effect}", why, meant)
    if not -_LARGEST <= number < _LARGEST:
        return Misread("is too large and ignored", "NCCL keeps its default.")
    if suffix and not suffix.startswith("#"):
        scaled = str(number * _SCALE[suffix[0].upper()]) if suffix[0].upper() in _SCALE else None
        return Misread(f"is read as {number}", "NCCL reads the leading digits and ignores the rest.", scaled)
    if re.fullmatch(r"[+-]?0[0-7]+", word) and number != int(word):
        return Misread(f"is read as {number}", "A leading 0 makes the number octal.", str(int(word)))
    if variable.name == "NCCL_P2P_DISABLE" and number not in (0, 1):
        return Misread("does not disable P2P", "Only the number 1 disables P2P.", "1")
    return None


def _level(_: Variable, value: str) -> Misread | None:
    if value in LEVELS or value[0] in "0123456789":  # 0 to 4 are the names of NCCL before 2.7
        return None
    meant = value.upper() if value.upper() in LEVELS else None
    return Misread("is ignored", f"NCCL accepts {', '.join(LEVELS)} in upper case.", meant)


def _enum(variable: Variable, value: str) -> Misread | None:
    known = value if variable.case == "exact" else value.upper()
    if known in variable.values:
        return None
    why = f"Valid values: {', '.join(variable.values)}."
    meant = next((word for word in variable.values if word.upper() == value.upper()), None)
    if variable.otherwise == "ignored":
        becomes = "is not a log level, so NCCL logs nothing" if variable.name == "NCCL_DEBUG" else "is ignored"
        return Misread(becomes, why, meant, harmless=variable.owner in ("torch", "cuda"))
    return _refused(variable, why, meant)


def _words(variable: Variable, value: str) -> Misread | None:
    """Read comma-separated lists of names, for NCCL_ALGO and NCCL_PROTO also by function (``^LL;AllReduce:Tree``)."""
    known = {word.upper() for word in variable.values}
    lists = [part.rpartition(":")[2].removeprefix("^") for part in value.split(";")]
    strange = [word for words in lists for word in words.split(",") if word and word.upper() not in known]
    if not strange:
        return None
    why = f"NCCL accepts {', '.join(variable.values)}."
    if variable.name == "NCCL_DEBUG_SUBSYS":
        return Misread(f"names an unknown subsystem: {strange[0]!r}", why, harmless=True)
    return Misread(f"fails in init with NCCL 2.24 and later: unknown word {strange[0]!r}", why)


def _names(variable: Variable, value: str) -> Misread | None:
    """Read NCCL's interface and HCA lists: prefixes; ``^`` (not), ``=`` (exactly) or ``^=`` only at the front."""
    if len(value) == 1 and variable.name != "NCCL_IB_HCA":
        return Misread("is ignored", "NCCL accepts names of at least two characters.")
    if value.startswith("=^"):
        return Misread("matches no device", "The correct order of the two signs is ^=.", f"^={value[2:]}")
    mark, names = re.match(r"\^?=?", value), re.sub(r"^\^?=?", "", value)
    front = mark.group() if mark else ""
    if re.search(r"(^|,)[\^=]", names):
        why = "^ and = only work at the start of the list. Before a later name they become part of that name."
        return Misread("matches unintended devices", why, front + re.sub(r"(^|,)[\^=]+", r"\1", names))
    if variable.name != "NCCL_IB_HCA" and any(map(_is_address, names.split(","))):
        return Misread(
            "matches no interface",
            "The value is an address, but NCCL expects interface names. It finds no interface and init fails.",
        )
    if re.search(rf"[*?!/\[\s{_QUOTES}]", names):
        why = "NCCL takes names literally as prefixes, without patterns, slashes, quotes or white space."
        meant = front + _as_list(re.sub(rf"[*/{_QUOTES}]", "", names))
        some = any(not re.search(rf"[*?!/\[\s{_QUOTES}]", name) for name in names.split(","))
        becomes = "matches unintended devices" if some else "matches no device"
        return Misread(becomes, why, None if meant == value or "!" in value else meant)
    return None


def _as_list(names: str) -> str:
    """Normalize ``mlx5_0 mlx5_1`` and ``eth0, eth1`` to a comma-separated list."""
    return re.sub(r"[\s,]+", ",", names.strip(" \t\r\n,"))


def _is_address(name: str) -> bool:
    """Return True for an address instead of an interface name; ``eth0:1`` and ``ib0`` are names."""
    return (
        re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){3}(/[0-9]+)?|[0-9a-fA-F]*:[0-9a-fA-F:]*:[0-9a-fA-F]*", name) is not None
    )


def _interfaces(variable: Variable, value: str) -> Misread | None:
    """Read gloo's interface list: exact names."""
    if any(map(_is_address, value.split(","))):
        return _refused(variable, "The value is an address, but gloo expects interface names.", None)
    strange = re.search(rf"[\^=*?!\s{_QUOTES}]", value)
    if strange is None:
        return None
    meant = _as_list(re.sub(rf"[={_QUOTES}]", "", value))
    why = "Gloo expects exact interface names, without the signs of NCCL_SOCKET_IFNAME."
    return _refused(variable, why, None if re.search(r"[\^*?!]", value) else meant)


def _log_file(_: Variable, value: str) -> Misread | None:
    unknown = [sign for sign in re.findall(r"%(.)", value) if sign not in "hp%"]
    if unknown:
        why = "NCCL replaces only %h (host) and %p (process), so the ranks of a host overwrite one file."
        meant = re.sub(r"%[^hp%]", "%p", value)
        return Misread(f"keeps %{unknown[0]} in the file name", why, meant)
    if value.startswith("~"):
        return Misread("keeps its ~", "NCCL does not expand ~ and cannot open the file.")
    if value.startswith("/dev/") or re.search(r"%[hp]", value):
        return None
    why = "Each rank truncates the file at start. %h and %p give each rank its own file."
    return Misread("is one file for all ranks", why, f"{value}.%h.%p", harmless=True)


def _strict_bool(variable: Variable, value: str) -> Misread | None:
    if value.lower() in TRUE | FALSE:
        return None
    why = "torch accepts only 1, true, yes, t, y and 0, false, no, f, n."
    return _refused(variable, why, _number_of_switch_word(value))


def _strict_int(variable: Variable, value: str) -> Misread | None:
    found = re.match(r"\s*([+-]?[0-9]+)", value)
    if found is None or abs(int(found[1])) >= 2**31:
        return _refused(variable, "torch expects a number.", None)
    if value[found.end() :].strip():
        return Misread(f"is read as {int(found[1])}", "torch reads the leading digits and ignores the rest.")
    return None


def _python_int(variable: Variable, value: str) -> Misread | None:
    if re.fullmatch(r"\s*[+-]?[0-9]+(_[0-9]+)*\s*", value):
        return None
    return _refused(variable, "Python's int() must accept the value.", _number_of_switch_word(value))


def _like(pattern: str, why: str) -> Reader:
    """Return a reader for a variable of torchrun that accepts only this pattern."""
    return lambda variable, value: None if re.fullmatch(pattern, value) else _refused(variable, why, None)


def _flag(variable: Variable, value: str) -> Misread | None:
    word = value.lower()
    if word in _OFF or value in ("0", "1"):
        return None
    why = f"Only {variable.name}=1 enables the feature; any other value disables it."
    return Misread("counts as off", why, "1" if word in _ON else None)


def _switch(_: Variable, value: str) -> Misread | None:
    """Read a switch with one effective value: 0 or 1, the opposite of unset (torch 2.14 and 2.15 differ)."""
    if value in ("0", "1"):
        return None
    return Misread("counts as unset", "torch accepts only a plain 0 or 1.", _number_of_switch_word(value))


def _omp_threads(_: Variable, value: str) -> Misread | None:
    if re.fullmatch(r"\s*[1-9][0-9]*\s*(,\s*[1-9][0-9]*\s*)*", value):
        return None
    why = "libgomp rejects the value, and torchrun sets 1 only if the variable is unset, so each rank uses all cores."
    return Misread("is ignored", why)


def _text(variable: Variable, value: str) -> Misread | None:
    if value == value.strip(_AROUND):
        return None
    return Misread("includes the surrounding characters", f"{variable.name} is read literally.")


def _refused(variable: Variable, why: str, instead: str | None) -> Misread:
    if variable.otherwise == "hangs":
        return Misread("is invalid: init_process_group hangs or aborts in torch 2.13", why, instead, fate="hangs")
    becomes = "stops torchrun" if variable.owner == "torchrun" else "is invalid and raises an error"
    return Misread(becomes, why, instead, fate="refused")


_READERS: dict[str, Reader] = {
    "bool": _number,
    "int": _number,
    "size": _number,
    "level": _level,
    "enum": _enum,
    "words": _words,
    "names": _names,
    "interfaces": _interfaces,
    "log_file": _log_file,
    "strict_bool": _strict_bool,
    "strict_int": _strict_int,
    "python_int": _python_int,
    "node_range": _like(r"[0-9]+(:[0-9]+)?", "Valid values: a number of nodes, or MIN:MAX."),
    "process_count": _like(r"[0-9]+|auto|cpu|gpu|xpu", "Valid values: a number, auto, cpu, gpu or xpu."),
    "flag": _flag,
    "switch": _switch,
    "omp_threads": _omp_threads,
}
