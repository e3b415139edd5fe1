"""Which expressions are ranks, and which conditions hold on some ranks only.

rank == 0, dist.get_rank() == 0, is_main_process(), local_rank in [-1, 0], args.rank % n == 0, not args.local_rank
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
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
#: Ranks of matrices, as LoRA's, and predicates: ``is_built_on_rank``.
_OTHER = re.compile(r"lora|low_?rank|matrix|tensor_?rank|^(is|has|use|num)_", re.IGNORECASE)
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
#: Words of conditions which ask whether the job is distributed at all.
_ASKS_FOR_THE_JOB = ("distributed", "ddp", "is_initialized", "world_size", "-1")
#: Names and conditions that are remembered: several rules ask about the same ones.
_MOST_KEPT = 500
#: The rank in the whole job, as torchrun, SLURM and MPI say it.
GLOBAL_RANKS = frozenset(("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"))
#: Calls around a rank that do not change the number.
_OF_ENVIRONMENT = ("os.environ.get", "os.getenv")
_TRANSPARENT = ("int", "str", *_OF_ENVIRONMENT)


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
    kinds = (_rank_kind(option, depth) for option in value.alternatives())
    return next(filter(None, kinds), None)


def _rank_kind(value: Value, depth: int) -> RankKind | None:
    if value.name == SPAWN_INDEX:
        return "spawn_index"
    if isinstance(value, Call):
        return _of_call(value, depth) if depth else None
    if value.kind in ("element", "attribute", "parameter"):
        return _by_name(value.attribute) or _by_name(_last_name(value.node))
    return _by_name(value.name.rpartition(".")[2]) if value.kind in ("name", "free") else None


def _of_call(call: Call, depth: int) -> RankKind | None:
    if call.name in _RANK_CALLS:
        return _RANK_CALLS[call.name]
    if call.name in _TRANSPARENT and call.args:
        text = call.args[0].constant
        return _by_name(text) if isinstance(text, str) else rank_kind(call.args[0], depth - 1)
    if found := rank_kind(call.returned, depth - 1):
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
    return "rank" if _GLOBAL.search(name) and not _OTHER.search(name) else None


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
        return not value.arguments
    if value.name in _OF_ENVIRONMENT and value.args:
        return value.args[0].constant in GLOBAL_RANKS
    inner = value.args[0] if value.name in _TRANSPARENT and value.args else value.returned
    return is_surely_global(inner, depth - 1)


def environment(value: Value) -> frozenset[str]:
    """The variables of the environment that a value is made of."""
    found = set[str]()
    for source in value.sources():
        if isinstance(source, Call) and source.name in _OF_ENVIRONMENT and source.args:
            found.add(str(source.args[0].constant))
        elif source.kind == "element" and source.owner.name == "os.environ":
            found.add(source.attribute)
    return frozenset(found)


def rank_test(value: Value, depth: int = 6) -> RankTest | None:
    """The ranks on which a condition holds; None if, as far as can be seen, it has the same result on all of them."""
    tests = (_test(option, depth) for option in value.alternatives() if depth)
    return next(filter(None, tests), None)


def _test(value: Value, depth: int) -> RankTest | None:
    if isinstance(value, Call):
        return _called(value, depth)
    if value.kind == "other":
        match value.node:
            case ast.Compare() as node if len(value.parts) == 2:
                return _compared(value.parts, (node.left, node.comparators[0]), node.ops[0])
            case ast.BoolOp() as node:
                return _combined(value, node, depth)
            case ast.UnaryOp(op=ast.Not()):
                inner = rank_test(value.parts[0], depth - 1)
                return inner and inner.negated()
        return None
    kind = _rank_kind(value, 2)  # ``if rank:``
    return RankTest(kind, "others") if kind else _main(value.attribute or value.name.rpartition(".")[2])


def _called(call: Call, depth: int) -> RankTest | None:
    """``is_main_process()``, by its name or by what it returns."""
    if call.name == "bool" and call.args:
        return rank_test(call.args[0], depth - 1)
    if found := rank_test(call.returned, depth - 1):
        return found
    kind = _of_call(call, 2)
    return RankTest(kind, "others") if kind else _main(call.method or call.name.rpartition(".")[2])


@lru_cache(maxsize=_MOST_KEPT)
def _main(name: str) -> RankTest | None:
    return RankTest("local_rank" if "local" in name.lower() else "rank", "zero") if _MAIN.search(name) else None


#: On which ranks a comparison of the rank with a number holds; None for a comparison that says nothing.
_HOLDS_ON: Mapping[tuple[type[ast.cmpop], float | None], Chosen | None] = {
    **dict.fromkeys(((ast.Eq, 0), (ast.Is, 0), (ast.LtE, 0), (ast.Lt, 1)), "zero"),
    **dict.fromkeys(((ast.NotEq, 0), (ast.IsNot, 0), (ast.Gt, 0), (ast.GtE, 1)), "others"),
    **dict.fromkeys(((ast.GtE, 0), (ast.Lt, 0)), None),
}


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
    holds_on = _HOLDS_ON.get((type(operator), number), "some")
    return RankTest(kind, holds_on) if holds_on else None


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
        others = (part.text.lower() for part in value.parts if rank_test(part, 2) is None)
        if sure and all(any(word in text for word in _ASKS_FOR_THE_JOB) for text in others):
            return sure[0]  # ``not args.distributed or rank == 0``: in a distributed run only the rank decides
    return tests[0]


def _number(value: Value) -> float | None:
    constant = value.constant
    if isinstance(constant, int | float) and not isinstance(constant, bool):
        return constant
    if isinstance(value.node, ast.UnaryOp) and isinstance(value.node.op, ast.USub) and value.parts:
        inner = _number(value.parts[0])
        return None if inner is None else -inner
    return None


@lru_cache(maxsize=_MOST_KEPT)
def rank_condition(condition: Condition) -> RankTest | None:
    """The test of a condition, negated if the condition did not hold."""
    test = rank_test(condition.test)
    return test if test is None or condition.holds else test.negated()


def chosen_ranks(conditions: tuple[Condition, ...]) -> RankTest | None:
    """The innermost condition of these that differs by rank; None where all ranks get there."""
    return next(filter(None, map(rank_condition, reversed(conditions))), None)
