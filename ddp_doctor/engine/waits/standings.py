"""Where each rank of a job stands, whatever shows it: what the judge of waits (judge.py) reads."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

#: Of those at ``outside`` it is known that they wait for nobody; of those at ``unknown`` nothing is.
State = Literal["gone", "stopped", "kernel", "waits", "outside", "unknown"]
#: Of these ranks nothing is to be expected.
UNABLE: tuple[State, ...] = ("gone", "stopped", "kernel")


@dataclass(frozen=True, eq=False)
class Group:
    """A process group, compared by identity."""

    name: str
    members: tuple[int, ...] = ()
    members_are_known: bool = True
    words: str = ""  # how a person names it


class Call(NamedTuple):
    """A collective that a rank has called; a transfer between two ranks has no operation."""

    group: Group
    seq: int | None = None  # its number in the group; None where the evidence counts none
    op: str = ""
    sizes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    alike: object = None  # what ranks that meet must agree in; None: they may differ
    may_be_left: bool = False  # some ranks may leave it while others still wait in it


class Wait(NamedTuple):
    """A rank in a call, and who has not come to it."""

    rank: int
    call: Call
    missing: frozenset[int] = frozenset()
    place: int = 0  # in the order in which the rank queued what it waits in


@dataclass(frozen=True)
class Standing:
    """Where one rank stands. ``moves``: whether it gets on; None where it cannot be told."""

    rank: int
    state: State
    waits: tuple[Wait, ...] = ()
    calls: tuple[Call, ...] = ()  # with numbers, those that have ended too
    moves: bool | None = False
    is_seen: bool = False  # it was seen to stand where it does, while others waited
    node: str | None = None
    behind: tuple[Call, ...] = ()  # it has called them and not completed them, and other members have completed them
