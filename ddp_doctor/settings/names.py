"""Classify a variable's name: in the table, of a plug-in, misspelled, or unknown."""

import re
from difflib import SequenceMatcher
from functools import lru_cache

from ddp_doctor.settings.table import foreign, never_read, variables

#: Prefixes recorded from an environment, in addition to the names in the table.
PREFIXES = ("NCCL_", "TORCH_", "TORCHELASTIC_", "GLOO_", "PET_")

#: The TORCH_* prefixes of the distributed package; others belong to the compiler, the hub and so on.
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

#: Minimum similarity to treat one word as a misspelling of another: one letter of five
#: dropped, doubled or swapped. Below it ENABLE and DISABLE, or MIN and MAX, would be confused.
SAME_WORD = 0.8
#: Shorter words (IB, TC, P2P, MIN) differ by design and must match exactly.
SHORTEST_MISSPELLED_WORD = 4

#: Last words that give the unit of a value; users often forget them, and they add no other meaning.
UNITS = ("SEC", "MSEC", "MILSEC", "BYTES", "SIZE", "CNT", "NUM", "INDEX")

#: Words of invented names for the timeout of a process group. A name needs at least one word of the first set.
_OF_A_GROUP = {"DDP", "DIST", "DISTRIBUTED", "PG", "C10D", "COLLECTIVE", "NCCL", "GLOO", "FSDP", "RDZV", "RENDEZVOUS"}
_BESIDE = {"TORCH", "ELASTIC", "TORCHRUN", "PYTORCH", "PROCESS", "GROUP", "COMM", "INIT", "DEFAULT", "JOIN", "STORE"}
_UNITS_OF_TIME = {"S", "SEC", "SECS", "SECOND", "SECONDS", "MS", "MSEC", "MIN", "MINS", "MINUTES", "HOURS"}
_RENDEZVOUS = {"RDZV", "RENDEZVOUS", "JOIN", "TORCHELASTIC", "ELASTIC"}


def meant_by_timeout(name: str) -> str | None:
    """Return what a name with TIMEOUT suggests if no known program reads it, or None."""
    words = set(name.upper().split("_"))
    if "TIMEOUT" not in words or name in variables() or name in never_read():
        return None
    rest = words - _UNITS_OF_TIME - {"TIMEOUT"}
    invented = bool(rest) and rest <= _OF_A_GROUP | _BESIDE and (rest & _OF_A_GROUP or {"PROCESS", "GROUP"} <= rest)
    if not (invented or is_unknown(name)) or nearest(name):
        return None
    if words & _RENDEZVOUS:
        return "the rendezvous timeout, which torchrun --rdzv-conf join_timeout=... sets"
    return never_read()["NCCL_TIMEOUT"].meant


def is_recorded(name: str) -> bool:
    """Return True if this variable's value is recorded. NCCL's prefix is also recognized in lower case."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return False
    if name in variables() or name.startswith(PREFIXES) or name.upper().startswith("NCCL_"):
        return True
    return meant_by_timeout(name) is not None


def is_unknown(name: str) -> bool:
    """Return True if a name looks like the distributed package's but neither it nor a known plug-in reads it."""
    return (
        (name.upper().startswith(DISTRIBUTED_PREFIXES) or _without_nccl(name) in variables())
        and name not in variables()
        and name not in never_read()
        and not name.startswith(tuple(owner.name for owner in foreign()))
    )


@lru_cache(maxsize=8192)
def nearest(name: str) -> str | None:
    """Return the variable that ``name`` misspells, or None if that would be a guess.

    Recognized: the wrong case, a typo in one or more words, words in another order or split differently,
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
    """Return the full name of a TORCH_NCCL_* variable without its NCCL_."""
    return name.replace("TORCH_", "TORCH_NCCL_", 1)


def _is_misspelled(name: str, known: str) -> bool:
    words, meant = name.split("_")[1:], known.split("_")[1:]
    if sorted(words) == sorted(meant):
        return True
    if len(words) == len(meant):
        return all(_is_slip(word, right) for word, right in zip(words, meant, strict=True))
    return _is_slip("".join(words), "".join(meant), SAME_WORD + 0.15)


def _is_slip(word: str, meant: str, least: float = SAME_WORD) -> bool:
    if word == meant:
        return True
    shorter, both = min(len(word), len(meant)), len(word) + len(meant)
    if shorter < SHORTEST_MISSPELLED_WORD or 2 * shorter < least * both:  # no better ratio is possible
        return False
    digits = [character for character in word if character.isdigit()]
    return digits == [character for character in meant if character.isdigit()] and _similarity(word, meant) >= least


def _similarity(word: str, meant: str) -> float:
    return SequenceMatcher(None, word, meant, autojunk=False).ratio()


def is_of_rccl(name: str) -> bool:
    """Return True if RCCL reads the variable in a torch built for ROCm."""
    return name.upper().startswith(("NCCL_", "RCCL_"))
