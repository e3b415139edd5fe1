"""Which expressions are ranks, and which conditions hold on some ranks only.

rank == 0, dist.get_rank() == 0, is_main_process(), local_rank in [-1, 0], args.rank % n == 0, not args.local_rank
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ddp_doctor.lint.expressions import SPAWN_INDEX
from ddp_doctor.lint.values import Call, Condition, Value

RankKind = Literal["rank", "local_rank", "spawn_index"]
#: On which ranks something runs: on rank 0 alone, on all others, or on some that are not known.
Chosen = Literal["zero", "others", "some"]

_LOCAL = re.compile(
    r"local_?rank|(^|_)lrank$|(^|_)local_?(proc|process)_?(id|index)$|^gpu_?rank$|local_process_index", re.IGNORECASE
)
_GLOBAL = re.compile(
    r"(^|_)(global_?|world_?|dist_?|ddp_?|my_?)?rank$|^process_index$|^proc_?id$|^process_id$", re.IGNORECASE
)
#: Sizes and lists of ranks hold the same on all of them.
_MAIN = re.compile(
    r"((^|_)(is|am|i_am)|^on)_?(the_?)?(local_?)?(main|master|primary|chief|leader|root|first|rank_?(zero|0)|zero_?rank)"
    r"(_?(process|proc|rank|node|worker))?$|^(main|master)_process$|^is_?(main|master)$|^rank_?zero$|^(is_)?local_?master$",
    re.IGNORECASE,
)
_OPPOSITE: Mapping[Chosen, Chosen] = {"zero": "others", "others": "zero", "some": "some"}
_RANK_CALLS: Mapping[str, RankKind] = {
    "torch.distributed.get_rank": "rank",
    "torch.distributed.get_node_local_rank": "local_rank",
    "torch.distributed.get_group_rank": "rank",
}
#: Names and conditions that are remembered: several rules ask about the same ones.
_MOST_KEPT = 500
#: The rank in the whole job, as torchrun, SLURM and MPI say it.
GLOBAL_RANKS = frozenset(("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"))
#: Calls around a rank that do not change the number.
_TRANSPARENT = ("int", "str", "os.environ.get", "os.getenv")


@dataclass(frozen=True, slots=True)
class RankTest:
    """A condition that differs by rank, and on which ranks it holds."""

    kind: RankKind
    holds_on: Chosen

    def negated(self) -> RankTest:
        """The opposite condition."""
        return RankTest(self.kind, _OPPOSITE[self.holds_on])


def rank_kind(value: Value, depth: int = 6) -> RankKind | None:
    """Which kind of rank a value is, if any; an expression that computes with a rank is not one."""
    for option in value.alternatives():
        found = _rank_kind(option, depth)
        if found is not None:
            return found
    return None


def _rank_kind(value: Value, depth: int) -> RankKind | None:
    if value.name == SPAWN_INDEX:
        return "spawn_index"
    if isinstance(value, Call):
        return _of_call(value, depth) if depth else None
    if value.kind in ("element", "attribute", "parameter"):
        return _by_name(value.attribute) or _by_name(_last_name(value.node))
    return _by_name(value.name.rpartition(".")[2]) if value.kind in ("name", "free") else None


def _of_call(call: Call, depth: int) -> RankKind | None:
    known = _RANK_CALLS.get(call.name)
    if known is not None:
        return known
    if call.name in _TRANSPARENT and call.args:
        first = call.args[0]
        text = first.constant
        return _by_name(text) if isinstance(text, str) else rank_kind(first, depth - 1)
    if call.returned is not None and (found := rank_kind(call.returned, depth - 1)):
        return found
    name = call.method or call.name.rpartition(".")[2]
    return _by_name(name.removeprefix("get_")) if name.startswith("get_") else None


def _last_name(node: ast.AST) -> str:
    """The last name of ``rank`` or ``args.rank``: it tells what a value is that nothing else is known of."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _operand_kind(value: Value, node: ast.expr) -> RankKind | None:
    return rank_kind(value) or _by_name(_last_name(node))


@lru_cache(maxsize=_MOST_KEPT)
def _by_name(name: str) -> RankKind | None:
    if _LOCAL.search(name):
        return "local_rank"
    return "rank" if _GLOBAL.search(name) else None


def is_surely_global(value: Value, depth: int = 6) -> bool:
    """Whether a value comes from get_rank() or is a launcher's rank in the job; a name alone proves nothing."""
    found = [_is_global(option, depth) for option in value.alternatives() if option.kind != "constant"]
    return bool(found) and all(found)


def _is_global(value: Value, depth: int) -> bool:
    if value.kind == "element":
        return value.attribute in GLOBAL_RANKS and value.parts[0].name == "os.environ"
    if not isinstance(value, Call) or not depth:
        return False
    if value.name == "torch.distributed.get_rank":
        return not value.args and not value.keywords
    if value.name in _TRANSPARENT and value.args:
        first = value.args[0]
        return (
            first.constant in GLOBAL_RANKS
            if "environ" in value.name or "getenv" in value.name
            else is_surely_global(first, depth - 1)
        )
    return value.returned is not None and is_surely_global(value.returned, depth - 1)


def environment(value: Value) -> frozenset[str]:
    """The variables of the environment that a value is made of."""
    found = set[str]()
    for source in behind(value):
        if isinstance(source, Call) and source.name in ("os.environ.get", "os.getenv") and source.args:
            found.add(str(source.args[0].constant))
        elif source.kind == "element" and source.owner is not None and source.owner.name == "os.environ":
            found.add(source.attribute)
    return frozenset(found)


def behind(value: Value) -> Iterator[Value]:
    """What a value is made of, also inside the local functions that returned it."""
    for source in value.sources():
        yield source
        if isinstance(source, Call) and source.returned is not None:
            yield from source.returned.sources()


def rank_test(value: Value, depth: int = 6) -> RankTest | None:
    """The ranks on which a condition holds; None if, as far as can be seen, it has the same result on all of them."""
    for option in value.alternatives():
        found = _test(option, depth) if depth else None
        if found is not None:
            return found
    return None


def _test(value: Value, depth: int) -> RankTest | None:
    node = value.node
    if isinstance(value, Call):
        return _called(value, depth)
    if value.kind == "other":
        if isinstance(node, ast.Compare) and len(value.parts) == 2:
            return _compared(value.parts, (node.left, node.comparators[0]), node.ops[0])
        if isinstance(node, ast.BoolOp):
            return _combined(value, node, depth)
        return _not(value, node, depth) if isinstance(node, ast.UnaryOp) else None
    kind = _rank_kind(value, 2)
    if kind is not None:
        return RankTest(kind, "others")  # ``if rank:``
    return _main(value.attribute or value.name.rpartition(".")[2])


def _not(value: Value, node: ast.UnaryOp, depth: int) -> RankTest | None:
    inner = rank_test(value.parts[0], depth - 1) if isinstance(node.op, ast.Not) else None
    return inner.negated() if inner else None


def _called(call: Call, depth: int) -> RankTest | None:
    """``is_main_process()``, by its name or by what it returns."""
    if call.name == "bool" and call.args:
        return rank_test(call.args[0], depth - 1)
    if call.returned is not None and (found := rank_test(call.returned, depth - 1)):
        return found
    kind = _of_call(call, 2)
    return RankTest(kind, "others") if kind else _main(call.method or call.name.rpartition(".")[2])


@lru_cache(maxsize=_MOST_KEPT)
def _main(name: str) -> RankTest | None:
    if not _MAIN.search(name):
        return None
    return RankTest("local_rank" if "local" in name.lower() else "rank", "zero")


def _compared(values: tuple[Value, ...], nodes: tuple[ast.expr, ast.expr], operator: ast.cmpop) -> RankTest | None:
    (left, right), kind = values, _operand_kind(values[0], nodes[0])
    if kind is None and isinstance(operator, ast.Eq | ast.NotEq):  # 0 == rank
        kind = _operand_kind(right, nodes[1])
        left, right = (right, left) if kind is not None else (left, right)
    if kind is None:
        return _modulo(left, right, operator)
    if isinstance(operator, ast.In | ast.NotIn):
        chosen: Chosen = "zero" if {0, -1} >= {_number(part) for part in right.parts} else "some"
        test = RankTest(kind, chosen)
        return test if isinstance(operator, ast.In) else test.negated()
    number = 0.0 if right.constant == "0" else _number(right)
    says_nothing = right.kind == "constant" and number is None  # rank is None
    if says_nothing or (number is not None and number < 0):
        return None  # -1 means "not distributed": all ranks give the same answer
    return _ordered(kind, number, operator)


def _ordered(kind: RankKind, number: float | None, operator: ast.cmpop) -> RankTest | None:
    zero: set[object] = {(ast.Eq, 0), (ast.Is, 0), (ast.LtE, 0), (ast.Lt, 1)}
    others: set[object] = {(ast.NotEq, 0), (ast.IsNot, 0), (ast.Gt, 0), (ast.GtE, 1)}
    compared = (type(operator), number)
    if compared in zero:
        return RankTest(kind, "zero")
    if compared in others:
        return RankTest(kind, "others")
    holds_on_all = compared in ((ast.GtE, 0), (ast.Lt, 0))
    return None if holds_on_all else RankTest(kind, "some")


def _modulo(left: Value, right: Value, operator: ast.cmpop) -> RankTest | None:
    node = left.node
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and len(left.parts) == 2):
        return None
    kind = _operand_kind(left.parts[0], node.left)
    if kind is None or not isinstance(operator, ast.Eq | ast.NotEq):
        return None
    test = RankTest("local_rank", "zero" if _number(right) == 0 else "some")  # one of each node
    return test if isinstance(operator, ast.Eq) else test.negated()


def _combined(value: Value, node: ast.BoolOp, depth: int) -> RankTest | None:
    """``a and rank == 0`` holds at most on rank 0; ``a or rank == 0`` on others only where ``a`` does."""
    tests = [test for part in value.parts if (test := rank_test(part, depth - 1)) is not None]
    if not tests:
        return None
    if isinstance(node.op, ast.Or) and len(tests) < len(value.parts):
        sure = [test for test in tests if test.holds_on != "some"]
        return sure[0] if sure and _others_are_no_ranks(value) else tests[0]
    return tests[0]


def _others_are_no_ranks(value: Value) -> bool:
    """``not args.distributed or rank == 0``: in a distributed run only the rank decides."""
    return all(rank_test(part, 2) is not None or _says_undistributed(part) for part in value.parts)


def _says_undistributed(value: Value) -> bool:
    text = value.text.lower()
    return "distributed" in text or "ddp" in text or "is_initialized" in text or "world_size" in text or "-1" in text


def _number(value: Value) -> float | None:
    constant = value.constant
    if isinstance(constant, bool) or not isinstance(constant, int | float):
        node = value.node
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and value.parts:
            inner = _number(value.parts[0])
            return None if inner is None else -inner
        return None
    return constant


@lru_cache(maxsize=_MOST_KEPT)
def rank_condition(condition: Condition) -> RankTest | None:
    """The test of a condition, negated if the condition did not hold."""
    test = rank_test(condition.test)
    return test if test is None or condition.holds else test.negated()


def chosen_ranks(conditions: tuple[Condition, ...]) -> RankTest | None:
    """The innermost condition of these that differs by rank; None where all ranks get there."""
    for condition in reversed(conditions):
        test = rank_condition(condition)
        if test is not None:
            return test
    return None
