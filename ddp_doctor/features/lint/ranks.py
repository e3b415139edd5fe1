"""Expressions that are ranks, and conditions that hold on some ranks only.

rank == 0, dist.get_rank() == 0, is_main_process(), local_rank in [-1, 0], args.rank % n == 0, not args.local_rank
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress, pairwise
from typing import Literal

from ddp_doctor.features.lint.values import Call, Condition, Value, written

RankKind = Literal["rank", "local_rank", "spawn_index"]
#: The first argument of a function that torch.multiprocessing.spawn starts.
SPAWN_INDEX = "torch.multiprocessing.spawn.index"

_LOCAL = re.compile(
    r"local_?rank|(^|_)lrank$|(^|_)local_?(proc|process)_?(id|index)$|^gpu_?rank$|local_process_index", re.IGNORECASE
)
_GLOBAL = re.compile(
    r"(^|_)(global_?|world_?|dist_?|ddp_?|my_?)?rank$|^process_index$|^proc_?id$|^process_id$", re.IGNORECASE
)
#: Other meanings of "rank": ranks of matrices, such as LoRA's, and predicates such as ``is_built_on_rank``.
_OTHER = re.compile(r"lora|low_?rank|matrix|tensor_?rank|^(is|has|use|num)_", re.IGNORECASE)
#: Names of conditions that hold only on the main rank.
_MAIN = re.compile(
    r"((^|_)(is|am|i_am)|^on)_?(the_?)?(local_?)?(main|master|primary|chief|leader|root|first|rank_?(zero|0)|zero_?rank)"
    r"(_?(process|proc|rank|node|worker))?$|^(main|master)_process$|^is_?(main|master)$|^rank_?zero$|^(is_)?local_?master$"
    r"|^is_((global|local)|(world|local)_process)_zero$|^(rank_?(zero|0)|main|master|main_process)_only$",
    re.IGNORECASE,
)
_WORLD_SIZE = re.compile(
    r"(^|_)(world_?size|n_?gpus?|num_?gpus?|ngpus_per_node|gpus_per_node|nprocs?)$|^world$", re.IGNORECASE
)
_RANK_CALLS: Mapping[str, RankKind] = {
    "torch.distributed.get_rank": "rank",
    "torch.distributed.get_node_local_rank": "local_rank",
    "torch.distributed.get_group_rank": "rank",
}
#: Size of the world that conditions are evaluated in. Ranks above the second number depend on this size.
_WORLD = 512
_MOST_NUMBERED = 50
_RANKS = tuple(range(_WORLD))
_ALL = frozenset(_RANKS)
#: Names that are true in every job.
_IN_A_JOB = re.compile(r"^((is_|use_)?(distributed|ddp)|is_(dist_)?(avail_and_)?initialized)$", re.IGNORECASE)
# fmt: off
_OPERATORS: Mapping[type[ast.operator | ast.cmpop], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.eq, ast.IsNot: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}
# fmt: on
#: Maximum number of names and conditions to cache: several rules evaluate the same ones.
_MOST_KEPT = 500
#: The rank in the entire job, as torchrun, SLURM and MPI set it.
GLOBAL_RANKS = frozenset(("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"))
#: Calls around a rank that do not change the number.
_OF_ENVIRONMENT = ("os.environ.get", "os.getenv")
_TRANSPARENT = ("int", "str", *_OF_ENVIRONMENT)


@dataclass(frozen=True, slots=True)
class RankTest:
    """A condition on the rank and the ranks that fulfill it, in a world of 512; None if unknown."""

    kind: RankKind
    ranks: frozenset[int] | None

    def negated(self) -> RankTest:
        """The opposite condition."""
        return self if self.ranks is None else RankTest(self.kind, _ALL - self.ranks)

    @property
    def differs(self) -> bool:
        """Return True if the result may differ between ranks."""
        return self.ranks not in (_ALL, frozenset())

    @property
    def who(self) -> str:
        """The ranks that fulfill the condition, for a sentence."""
        kind = "local rank" if self.kind == "local_rank" else "rank"
        ranks = sorted(self.ranks or _RANKS)
        missing = sorted(_ALL.difference(ranks))
        if _WORLD - 1 in (ranks[0], *missing[:1]):
            return f"the last {kind}" if ranks[0] else f"{kind}s other than the last"
        if len(ranks) <= 2 and ranks[-1] < _MOST_NUMBERED:
            return f"{kind}{'s' * (len(ranks) - 1)} {' and '.join(map(str, ranks))}"
        if 0 < len(missing) <= 2 and missing[-1] < _MOST_NUMBERED:
            return f"{kind}s other than {' and '.join(map(str, missing))}"
        if ranks in ([*range(0, _WORLD, 2)], [*range(1, _WORLD, 2)]):
            return f"odd {kind}s" if ranks[0] else f"even {kind}s"
        if ranks == [*range(ranks[0], ranks[-1] + 1)] and ranks[-1] < _MOST_NUMBERED:
            return f"{kind}s {ranks[0]} to {ranks[-1]}"
        return f"some {kind}s"


def rank_kind(value: Value, depth: int = 6) -> RankKind | None:
    """Return the kind of rank that a value is, or None; the result of a computation with a rank is not a rank."""
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
    """Return the last name of ``rank`` or ``args.rank``, which classifies a value of unknown origin."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@lru_cache(maxsize=_MOST_KEPT)
def _by_name(name: str) -> RankKind | None:
    if _LOCAL.search(name):
        return "local_rank"
    return "rank" if _GLOBAL.search(name) and not _OTHER.search(name) else None


def is_surely_global(value: Value, depth: int = 6) -> bool:
    """Return True if a value comes from get_rank() or is a launcher's rank in the job; a name is not enough."""
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
    """Return the names of the environment variables that a value depends on."""
    found = set[str]()
    for source in value.sources():
        if isinstance(source, Call) and source.name in _OF_ENVIRONMENT and source.args:
            found.add(str(source.args[0].constant))
        elif source.kind == "element" and source.owner.name == "os.environ":
            found.add(source.attribute)
    return frozenset(found)


def rank_test(value: Value) -> RankTest | None:
    """Return the ranks with a true condition; None if it appears to have the same result on all of them."""
    test = _tested(value)
    return test if test and test.differs else None


@lru_cache(maxsize=_MOST_KEPT)  # the trace and several rules ask
def _tested(value: Value) -> RankTest | None:
    return _rank_test(value)


def _rank_test(value: Value, depth: int = 6) -> RankTest | None:
    """Return the ranks of any condition, even if it holds on all ranks of a job or on none."""
    tests = [test for option in value.alternatives() if depth and (test := _test(option, depth))]
    if len({test.ranks for test in tests}) > 1:  # the ranks depend on the path through the script
        return RankTest(tests[0].kind, None)
    return tests[0] if tests else None


def _test(value: Value, depth: int) -> RankTest | None:
    if isinstance(value, Call):
        return _called(value, depth)
    if value.kind == "other":
        match value.node:
            case ast.Compare() as node:
                return _compared(value.parts, node)
            case ast.BoolOp() as node:
                return _of_operands(value, node, depth - 1)
            case ast.UnaryOp(op=ast.Not()):
                inner = _rank_test(value.parts[0], depth - 1)
                return inner and inner.negated()
        return _true_on(_numbers(value))
    return _true_on(_numbers(value)) or _main(value.attribute or value.name.rpartition(".")[2])


def _of_operands(value: Value, node: ast.BoolOp, depth: int) -> RankTest | None:
    tests = [test for part in value.parts if (test := _rank_test(part, depth))]
    is_and = isinstance(node.op, ast.And)
    found = _combined(tests, is_and=is_and)
    if found is None or len(tests) == len(value.parts):
        return found
    if found.ranks == (_ALL if is_and else frozenset[int]()):
        return None
    return found if is_and or _is_complement(node) else RankTest(found.kind, None)


def _is_complement(node: ast.BoolOp) -> bool:
    """Return True for ``not several or (several and rank == 0)``: the operand without a rank adds nothing."""
    first = node.values[0]
    return isinstance(first, ast.UnaryOp) and written(first.operand) in written(node.values[-1])


def _called(call: Call, depth: int) -> RankTest | None:
    """Return the ranks with true ``is_main_process()``, by its name or its result."""
    if call.name == "bool" and call.args:
        return _rank_test(call.args[0], depth - 1)
    found = _rank_test(call.returned, depth - 1) or _true_on(_numbers(call))
    return found or _main(call.method or getattr(call.local, "name", "") or call.name.rpartition(".")[2])


@lru_cache(maxsize=_MOST_KEPT)
def _main(name: str) -> RankTest | None:
    kind: RankKind = "local_rank" if "local" in name.lower() else "rank"
    if _IN_A_JOB.search(name):
        return RankTest(kind, _ALL)
    if name in ("is_last_process", "on_last_process"):
        return RankTest(kind, frozenset({_WORLD - 1}))
    return RankTest(kind, frozenset({0})) if _MAIN.search(name) else None


#: The kind of rank in an expression, and its value on each rank; None if there is no rank, or the values are unknown.
_Numbers = tuple[RankKind | None, tuple[float, ...] | None]


def _numbers(value: Value, node: ast.expr | None = None, depth: int = 4) -> _Numbers:
    is_literal = isinstance(node or value.node, ast.Constant)
    if not is_literal and (kind := rank_kind(value) or (_by_name(_last_name(node)) if node else None)):
        return kind, _RANKS
    number = _WORLD if not is_literal and is_world_size(value) else _number(value)
    if number is not None:
        return None, (number,) * _WORLD if abs(number) < _MOST_NUMBERED or number == _WORLD else None
    inner = value.node
    if not (depth and isinstance(inner, ast.BinOp) and value.kind == "other" and len(value.parts) == 2):
        return None, None
    left, right = (_numbers(*each, depth - 1) for each in zip(value.parts, (inner.left, inner.right), strict=True))
    if isinstance(inner.op, ast.Mod) and left[0] and (not any(right) or is_world_size(value.parts[1])):
        return "local_rank", left[1]  # ``rank % n`` numbers the ranks within each node
    return _computed(inner.op, left, right)


def _computed(operation: ast.operator | ast.cmpop, left: _Numbers, right: _Numbers) -> _Numbers:
    compute, kind = _OPERATORS.get(type(operation)), left[0] or right[0]
    if compute is None or left[1] is None or right[1] is None or (left[0] and right[0]):
        return kind, None
    if isinstance(operation, ast.Mod | ast.FloorDiv) and 0 in right[1]:
        return kind, None
    return kind, tuple(map(compute, left[1], right[1]))


def _true_on(found: _Numbers) -> RankTest | None:
    """Return the ranks with a true value, as in ``if rank:`` or ``if rank % 2:``, or None if no rank is involved."""
    kind, values = found
    ranks = None if values is None else frozenset(compress(_RANKS, values))
    return RankTest(kind, ranks) if kind else None


def _compared(values: tuple[Value, ...], node: ast.Compare) -> RankTest | None:
    pairs = pairwise(zip(values, (node.left, *node.comparators), strict=False))
    tests = [_compared_pair(*pair, operation) for pair, operation in zip(pairs, node.ops, strict=False)]
    return _combined([test for test in tests if test], is_and=True)


def _compared_pair(
    left: tuple[Value, ast.expr], right: tuple[Value, ast.expr], operation: ast.cmpop
) -> RankTest | None:
    kind, ranks = first = _numbers(*left)
    if isinstance(operation, ast.In | ast.NotIn):
        among = _members(*right) if kind else None
        values = None if among is None or ranks is None else tuple(map(among.__contains__, ranks))
        test = _true_on((kind, values))
        return test.negated() if test and isinstance(operation, ast.NotIn) else test
    second = _numbers(*right)
    if right[0].kind == "constant" and second[1] is None:  # ``rank is None``
        return None
    return _true_on(_computed(operation, first, second)) or _size_test(left[0], right[0], operation)


def _size_test(left: Value, right: Value, operation: ast.cmpop) -> RankTest | None:
    """Return a test of the world size: ``world_size > 1`` holds in every job, ``world_size == 8`` only in some."""
    number, compare = _number(right), _OPERATORS.get(type(operation))
    if number is None or compare is None or not is_world_size(left):
        return None
    results = {bool(compare(size, number)) for size in (2, 3, _WORLD)}
    return RankTest("rank", _ALL if results.pop() else frozenset()) if len(results) == 1 else None


def _members(value: Value, node: ast.expr) -> Container[float] | None:
    """Return the numbers of a literal or of a range, or None: a list with a name may have changed."""
    numbers = [_number(part) for part in (value.args if isinstance(value, Call) else value.parts)]
    known = [number for number in numbers if number is not None and number < _MOST_NUMBERED]
    if len(known) < len(numbers) or not known:
        return None
    if isinstance(value, Call):
        return range(*known) if value.name == "range" and len(known) < 4 and 0 not in known[2:] else None
    return known if isinstance(value.node, ast.Tuple) or value.node is node else None


def _combined(tests: Sequence[RankTest], *, is_and: bool) -> RankTest | None:
    """Combine tests. Operands with an unknown result do not count: ``a and rank == 0`` holds at most on rank 0."""
    neutral = _ALL if is_and else frozenset[int]()
    decided = [test for test in tests if test.ranks != neutral]
    known = [test for test in decided if test.ranks is not None]
    if any(test.ranks == _ALL - neutral for test in known):
        return RankTest("rank", _ALL - neutral)
    if not decided:
        return tests[0] if tests else None
    if not known or (not is_and and len(known) < len(decided)):
        return RankTest(decided[0].kind, None)
    first = known[0]
    if any(test.kind != first.kind for test in known):
        return first if is_and else RankTest(first.kind, None)
    combine = frozenset[int].intersection if is_and else frozenset[int].union
    return RankTest(first.kind, combine(*(test.ranks for test in known if test.ranks is not None)))


def _number(value: Value) -> int | None:
    constant = value.constant
    if isinstance(constant, str) and constant.isdecimal() and len(constant) < _MOST_NUMBERED:
        return int(constant)
    if isinstance(constant, int) and not isinstance(constant, bool):
        return constant
    if isinstance(value.node, ast.UnaryOp) and isinstance(value.node.op, ast.USub) and value.parts:
        inner = _number(value.parts[0])
        return None if inner is None else -inner
    return None


def is_world_size(value: Value, depth: int = 4) -> bool:
    """Return True if a value is the number of ranks, or of a node's GPUs."""
    return any(_is_world_size(option, depth) for option in value.alternatives())


def _is_world_size(value: Value, depth: int) -> bool:
    if isinstance(value, Call):
        if value.name.endswith("get_world_size") or value.method == "get_world_size":
            return True
        first = value.args[0] if value.args else None
        if first is None or not depth or value.name not in ("int", "float", "max", "os.environ.get", "os.getenv"):
            return False
        if isinstance(first.constant, str):
            return first.constant == "WORLD_SIZE"
        return is_world_size(first, depth - 1)
    if value.kind == "name":
        return _is_size(value.name.rpartition(".")[2])
    return value.kind in ("attribute", "parameter", "element") and _is_size(value.attribute)


@lru_cache(maxsize=_MOST_KEPT)
def _is_size(name: str) -> bool:
    return bool(_WORLD_SIZE.search(name))


@lru_cache(maxsize=_MOST_KEPT)
def _held(condition: Condition) -> RankTest | None:
    test = _tested(condition.test)
    return test if test is None or condition.holds else test.negated()


@lru_cache(maxsize=_MOST_KEPT)
def rank_condition(condition: Condition) -> RankTest | None:
    """Return the test of a condition, negated if the condition did not hold."""
    test = _held(condition)
    return test if test and test.differs else None


def in_a_job(test: Value) -> bool | None:
    """Return True if a condition holds on all ranks of every job, False if on none, or None if unknown."""
    found = _tested(test)
    return None if found is None or found.ranks is None or found.differs else bool(found.ranks)


def ranks_under(conditions: Iterable[Condition]) -> RankTest | None:
    """Return the ranks that may fulfill all of these conditions; None if they do not depend on the rank."""
    return _combined([test for test in map(_held, conditions) if test], is_and=True)


def chosen_ranks(conditions: tuple[Condition, ...]) -> RankTest | None:
    """Return the innermost of these conditions that differs by rank, or None if all ranks get past them."""
    return next(filter(None, map(rank_condition, reversed(conditions))), None)
