"""The collective of each rank of a job that timed out, and how far the rank had got, by process group."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, prod

from ddp_doctor.features.jobs.facts import JobLogFact, SignSeen

#: torch's names of operations (torch 2.15 c10d/ProcessGroup.hpp, opTypeToString) that have another usual spelling.
_NAMES = {
    "ALLREDUCE": "all-reduce",
    "ALLGATHER": "all-gather",
    "_ALLGATHER_BASE": "all-gather",
    "ALLTOALL": "all-to-all",
    "ALLTOALL_BASE": "all-to-all",
    "_REDUCE_SCATTER_BASE": "reduce-scatter",
}


#: torch's names of the default group, whose ranks are the job's ranks.
_DEFAULT_GROUP = re.compile(r"0? ?\(?default_pg\)?|0")
#: Ranks and their last collective in torch's desync report (torch 2.4 to 2.15, c10d/TraceUtils.h).
_HAD_CALLED = re.compile(r"\[([\d, ]{1,4000})\] finished collective #(\d{1,18}), but didn't join")
#: Maximum number of ranks read from one line.
_MOST_RANKS = 100_000


@dataclass(frozen=True)
class Wait:
    """A rank in one process group: the collective that timed out, and the last one that it had called."""

    rank: int
    signs: tuple[SignSeen, ...] = ()
    seq: int | None = None
    op: str = ""  # as torch prints it: ALLREDUCE
    numel: str = ""  # number of elements of its input
    enqueued: int | None = None

    @property
    def reached(self) -> float:
        """The last collective that it is known to have called; infinity if unknown."""
        known = [number for number in (self.enqueued, self.seq) if number is not None]
        return known[0] if known else inf

    @property
    def collective(self) -> str:
        """The collective that timed out: ``all-reduce 17 of 1024 elements``."""
        size = f" of {self.numel} element{'s' if self.numel != '1' else ''}" if self.numel else ""
        return f"{collective_name(self.op)} {self.seq}{size}"


def collective_name(op: str) -> str:
    """Return ``all-reduce`` for ALLREDUCE, all_reduce and nccl:all_reduce."""
    return _NAMES.get(op) or op.rpartition(":")[2].strip("_").lower().replace("_", "-") or "collective"


def elements_of(shape: str) -> str:
    """Return ``6`` for "2, 3"; "" if no shape is printed."""
    sizes = [int(size) for size in shape.replace(" ", "").split(",") if re.fullmatch(r"\d{1,18}", size)]
    return str(prod(sizes)) if sizes else ""


def waits(fact: JobLogFact) -> Mapping[str, Mapping[int, Wait]]:
    """Return the waits by process group and rank. If a rank timed out several times, the lowest number counts."""
    groups: dict[str, dict[int, Wait]] = defaultdict(dict)
    signs = [sign for sign in fact.signs if sign.sign == "watchdog-timeout" or "enqueued" in sign.values]
    # Some releases print the group not with the timeout but in the line after it, with the same number.
    spellings = {sign.values["group"] for sign in signs if "group" in sign.values}
    default = max(filter(_DEFAULT_GROUP.fullmatch, spellings), key=len, default="")
    by_number: dict[tuple[int, str], set[str]] = defaultdict(set)
    for sign in signs:
        if {"work", "group"} <= sign.values.keys():
            for rank in _ranks(sign):
                by_number[rank, sign.values["work"]].add(_group(sign, default))
    known = {_group(sign, default) for sign in signs if "group" in sign.values}
    only = next(iter(known)) if len(known) == 1 else ""
    for sign in signs:
        for rank in _ranks(sign):
            of_line = by_number.get((rank, sign.values.get("seq", "")), {only})
            group = _group(sign, default) or (next(iter(of_line)) if len(of_line) == 1 else "")
            of_group = groups[group]
            of_group[rank] = _with(of_group.get(rank, Wait(rank)), sign)
    if len(known) < 2:  # the report gives rank numbers within a group that it does not name
        for sign in fact.signs:
            for ranks, number in _HAD_CALLED.findall(sign.values.get("report", "")):
                for rank in map(int, re.findall(r"\d{1,7}", ranks)[:_MOST_RANKS]):
                    groups[only].setdefault(rank, Wait(rank, (sign,), enqueued=int(number)))
    return groups


def _group(sign: SignSeen, default: str) -> str:
    group = sign.values.get("group", "")
    return default if group and _DEFAULT_GROUP.fullmatch(group) else group


def _ranks(sign: SignSeen) -> list[int]:
    return sorted({*sign.ranks, *([] if sign.rank is None else [sign.rank])})


def _with(wait: Wait, sign: SignSeen) -> Wait:
    values, signs = sign.values, (*wait.signs, sign)
    if values.get("enqueued", "").lstrip("-").isdigit():  # -1: none yet
        wait = replace(wait, enqueued=int(values["enqueued"]))
    if not values.get("seq", "").isdigit() or (wait.seq is not None and wait.seq <= int(values["seq"])):
        return replace(wait, signs=signs)
    op, numel = values.get("op", ""), values.get("numel") or elements_of(values.get("shape", ""))
    return replace(wait, signs=signs, seq=int(values["seq"]), op=op, numel=numel)
