"""The function that decides from standings which rank blocks which: it never blames a healthy rank."""

import pytest

from ddp_doctor.engine.waits.judge import judge
from ddp_doctor.engine.waits.standings import Call, Group, Standing, State, Wait
from ddp_doctor.model.choices import Confidence

WORLD = Group("0", (0, 1, 2, 3))
PAIR = Group("1", (0, 1))
ALL_REDUCE = Call(WORLD, 7, "all_reduce", alike="all_reduce")
BROADCAST = Call(WORLD, 7, "broadcast", alike="broadcast")


def waits(rank: int, *missing: int, call: Call = ALL_REDUCE, moves: bool = False) -> Standing:
    return Standing(rank, "waits", (Wait(rank, call, frozenset(missing)),), (call,) if call.seq else (), moves)


def at(rank: int, state: State = "outside", *, moves: bool | None = False, is_seen: bool = False) -> Standing:
    return Standing(rank, state, moves=moves, is_seen=is_seen)


def unnumbered(op: str, *, may_be_left: bool = False) -> Call:
    return Call(WORLD, None, op, alike=op, may_be_left=may_be_left)


SITUATIONS: dict[str, tuple[list[Standing], str | None, tuple[int, ...]]] = {
    "nobody waits": ([at(0), at(1)], None, ()),
    "a stopped rank, whatever the others do": (
        [waits(0, 2), waits(1, call=BROADCAST), at(2, "stopped")], "unable", (2,)),
    "a rank that should wait moves": ([waits(0, 1), waits(1, moves=True)], "gets-on", ()),
    "another call on one rank": ([waits(0), waits(1), waits(2, call=BROADCAST)], "different-calls", (2,)),
    "different calls of two halves": ([waits(0), waits(1, call=BROADCAST)], "different-calls", ()),
    "a rank that stands outside": ([waits(0, 3), waits(1, 3), waits(2, 3), at(3)], "outside", (3,)),
    "as many outside as in it": ([waits(0, 2, 3), waits(1, 2, 3), at(2), at(3)], "outside", ()),
    "as many, and those outside were seen there": ([waits(0, 1), at(1, is_seen=True)], "outside", (1,)),
    "one in it, and several outside": ([waits(0, 1, 2), at(1), at(2)], "one-more", (0,)),
    "two in it, and more outside": ([waits(0, 2, 3, 4), waits(1, 2, 3, 4), *map(at, (2, 3, 4))], "outside", ()),
    "a rank at work": ([waits(0, 2), waits(1, 2), at(2, moves=True)], "at-work", (2,)),
    "a rank of which nobody knows whether it gets on": ([waits(0, 1), at(1, moves=None)], "not-known", ()),
    "a rank of which nothing is known": ([waits(0, 2), waits(1, 2), at(2, "unknown")], "unreachable", (2,)),
    "two of which nothing is known": (
        [*(waits(rank, 3, 4) for rank in range(3)), at(3, "unknown"), at(4, "unknown")], "unreachable", ()),
    "two that wait for each other in two groups": (
        [waits(0, 1), waits(1, 0, call=Call(PAIR, 3, "all_reduce", alike=1))], "circle", ()),
    "another call without a number": (
        [waits(0, call=unnumbered("a")), waits(1, call=unnumbered("a")), waits(2, call=unnumbered("b"))],
        "different-calls", (2,)),
    "another call, which others may have left": (
        [waits(0, call=unnumbered("a", may_be_left=True)), *(waits(r, call=unnumbered("b")) for r in (1, 2))],
        "different-calls", ()),
    "a rank behind in a call that others completed, before a circle": (
        [Standing(0, "waits", waits(0, 1).waits, behind=(ALL_REDUCE,)),
         waits(1, 0, call=Call(PAIR, 3, "all_reduce", alike=1)), waits(2, 0)], "stuck-gpu", (0,)),
    "most ranks behind": (
        [*(Standing(r, "waits", waits(r).waits, behind=(ALL_REDUCE,)) for r in (0, 1)), waits(2)], "all-in-one", ()),
    "a circle of ranks that wait for an idle rank": (
        [waits(0, 1), waits(1, 0, call=Call(PAIR, 3, "all_reduce", alike=1)), waits(2, 3), waits(4, 3), at(3)],
        "outside", (3,)),
    "all in one call": ([waits(0), waits(1), waits(2)], "all-in-one", ()),
}  # fmt: skip


@pytest.mark.parametrize(("standings", "kind", "suspects"), SITUATIONS.values(), ids=SITUATIONS.keys())
def test_ranks_are_blamed_by_their_standings(standings: list[Standing], kind: str | None, suspects: tuple[int, ...]):
    ruling = judge(standings)

    assert (ruling and ruling.kind, ruling.suspects if ruling else ()) == (kind, suspects)


@pytest.mark.parametrize(("seq", "sure"), [(3, Confidence.PROVED), (None, Confidence.POSSIBLE)])
def test_circle_with_transfers_is_only_possible(seq: int | None, sure: Confidence):
    ruling = judge([waits(0, 1), waits(1, 0, call=Call(PAIR, seq))])

    assert ruling is not None
    assert (ruling.kind, ruling.sure) == ("circle", sure)
