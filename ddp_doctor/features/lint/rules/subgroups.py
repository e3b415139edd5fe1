"""Rules on messages between two ranks, and on groups of some ranks.

dist.send(x, dst=(rank + 1) % world)       every rank sends first, and no rank receives
dist.recv(y, src=(rank - 1) % world)
dist.new_group([2 * node, 2 * node + 1])   each rank creates only its own group
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddp_doctor.features.lint.ranks import SPAWN_INDEX, is_surely_global, rank_condition, rank_kind
from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value
from ddp_doctor.model.choices import Consequence

_SEND, _RECEIVE = "torch.distributed.send", "torch.distributed.recv"
_STARTED = tuple(f"torch.distributed.{name}" for name in ("isend", "irecv", "batch_isend_irecv"))
_NEW_GROUP = "torch.distributed.new_group"


@lint_rule("DDL186", "all-ranks-send-first", Consequence.HANGS, concerns=always)
def all_ranks_send_first(script: Script) -> Iterator[Spot]:
    """Every rank sends before it receives, or receives before it sends.

    Finds: `send` to a neighbor in a ring, `(rank + 1) % world_size`, or to the other of two ranks, `1 - rank`, followed
        by `recv`, or the reverse, without a condition. Not reported: `isend`, `irecv`, `batch_isend_irecv`, and an
        order that differs between ranks.
    Why: `send` returns after the other rank has received, and `recv` after it has sent. If all ranks begin with the
        same call, each waits for another one until the timeout.
    Remedy: Start both with `isend` and `irecv` and wait for both, pass them to `batch_isend_irecv`, or reverse the
        order on odd ranks.
    See: https://pytorch.org/docs/stable/distributed.html#point-to-point-communication
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html
    """
    first: dict[tuple[int, int], Call] = {}
    for call in sorted(script.named(_SEND, _RECEIVE, *_STARTED), key=lambda call: call.order):
        before = first.setdefault((call.root, id(call.place.function)), call)
        if {before.name, call.name} == {_SEND, _RECEIVE} and _is_on_all_ranks(before) and _is_on_all_ranks(call):
            do, does_not = ("send", "receives") if before.name == _SEND else ("receive", "sends")
            yield Spot(
                before,
                f"All ranks {do} here before any of them {does_not} in line {call.node.lineno}: they hang",
                remedy="Start both without waiting, or reverse the order on odd ranks",
                write=("works = [dist.isend(x, dst), dist.irecv(y, src)]", "for work in works:", "    work.wait()"),
            )


def _is_on_all_ranks(call: Call) -> bool:
    """Return True if every rank makes this call, each with another rank."""
    return not call.conditions and _is_one_for_each(call.argument(1, "dst", "src"))


def _is_one_for_each(peer: Value) -> bool:
    """Return True for ``(rank + 1) % world_size``, ``rank ^ 1`` and ``1 - rank``."""
    node = peer.node
    if peer.kind != "other" or not isinstance(node, ast.BinOp) or not any(map(rank_kind, peer.sources())):
        return False
    is_other_of_two = isinstance(node.op, ast.Sub) and peer.parts[0].constant == 1
    return is_other_of_two or isinstance(node.op, ast.Mod | ast.BitXor)


@lint_rule("DDL187", "group-created-by-its-members-only", Consequence.WRONG, concerns=always)
def group_created_by_its_members_only(script: Script) -> Iterator[Spot]:
    """Ranks create different groups in one call of new_group.

    Finds: `new_group` with ranks that depend on the rank that calls it, and `new_group` with different ranks in both
        branches of a condition on the rank. Not reported with `use_local_synchronization=True`, or for groups of
        one rank.
    Why: All ranks of the job must create all groups in the same order, including groups without them. Groups that are
        created by one call share their name, and their ranks find each other by that name: rank 0 of one group meets
        rank 1 of another. Sums then contain the wrong ranks without an error, or the job hangs.
    Remedy: Create every group on every rank, in a loop, and keep the group of the calling rank.
        `torch.distributed.new_subgroups` does so for groups of equal size.
    See: https://pytorch.org/docs/stable/distributed.html#torch.distributed.new_group
    """
    groups = list(script.named(_NEW_GROUP))
    for call in groups:
        ranks = call.argument(0, "ranks")
        is_alone = ranks.kind == "tuple" and len(ranks.parts) == 1  # such a group exchanges nothing
        if not ranks or is_alone or not call.lacks(None, "use_local_synchronization"):
            continue
        if any(map(_is_own_rank, ranks.sources())) or any(_is_other_branch(call, other) for other in groups):
            yield Spot(
                call,
                "Ranks create different groups in one call: their collectives mix data of both groups, or hang",
                remedy="Create all groups on all ranks, in the same order",
                write=(
                    "group = None",
                    "for ranks in all_ranks:",
                    "    made = dist.new_group(ranks)",
                    "    group = made if rank in ranks else group",
                ),
            )


def _is_own_rank(value: Value) -> bool:
    """Return True for the rank of the process itself; ``root_rank`` may be the same on all ranks."""
    return value.name == SPAWN_INDEX or is_surely_global(value)


def _is_other_branch(call: Call, other: Call) -> bool:
    """Return True if the other ranks create a group of different ranks in the opposite branch."""
    is_same = other.argument(0, "ranks").text == call.argument(0, "ranks").text
    return not is_same and any(
        mine.test is its.test and mine.holds != its.holds and rank_condition(mine)
        for mine in call.conditions
        for its in other.conditions
    )
