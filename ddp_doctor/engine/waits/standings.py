"""The position of each rank of a job, from any evidence: the input of the judge of waits (judge.py)."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

#: Ranks at ``outside`` are known to wait for no rank; nothing is known of ranks at ``unknown``.
State = Literal["gone", "stopped", "kernel", "waits", "outside", "unknown"]
#: Ranks in these states will not continue.
UNABLE: tuple[State, ...] = ("gone", "stopped", "kernel")


@dataclass(frozen=True, eq=False)
class Group:
    """A process group, compared by identity."""

    name: str
    members: tuple[int, ...] = ()
    members_are_known: bool = True
    words: str = ""  # its name in texts


class Call(NamedTuple):
    """A collective that a rank has called; a transfer between two ranks has no operation."""

    group: Group
    seq: int | None = None  # its number in the group, or None if the evidence has no numbers
    op: str = ""
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    alike: object = None  # what ranks in one call must agree on; None: they may differ
    may_be_left: bool = False  # some ranks may leave it while others still wait in it


class Wait(NamedTuple):
    """A rank in a call, and the ranks that have not entered it."""

    rank: int
    call: Call
    missing: frozenset[int] = frozenset()
    place: int = 0  # its index in the order of the rank's queued calls


@dataclass(frozen=True)
class Standing:
    """The position of one rank. ``moves``: True if it makes progress, None if unknown."""

    rank: int
    state: State
    waits: tuple[Wait, ...] = ()
    calls: tuple[Call, ...] = ()  # numbered calls, including finished ones
    moves: bool | None = False
    is_seen: bool = False  # it was seen at its position while others waited
    node: str | None = None
    behind: tuple[Call, ...] = ()  # calls that it has not completed although other members have
