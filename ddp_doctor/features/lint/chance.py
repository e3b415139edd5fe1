"""Values that may differ between steps or ranks even though the script gives all ranks the same data.

random.random() < 0.5, rng.integers(2)      drawn: another number on each rank, unless all have one seed
step % 2 == 0, epoch > 5                    counted: the same on all ranks, another from step to step
time.time() - start > limit                 by the clock: no two ranks read the same
batch is None                               by the batch: its samples could not be read, those of another rank could
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Literal

from ddp_doctor.features.lint import training
from ddp_doctor.features.lint.ranks import rank_kind
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value, written

#: Functions that return another number on each call and on each rank.
_GENERATORS = ("random.Random", "numpy.random.default_rng", "numpy.random.RandomState", "torch.Generator")
_CLOCKS = frozenset(
    (
        *(f"time.{name}" for name in ("time", "monotonic", "perf_counter", "process_time", "time_ns", "monotonic_ns")),
        *(f"datetime.{name}" for name in ("now", "utcnow", "datetime.now", "datetime.utcnow")),
    )
)
#: Functions and methods that return their numeric argument, or its only element.
_SAME_NUMBER = frozenset(("int", "float", "bool", "abs", "round", "min", "max", "torch.tensor"))
_READS = frozenset(("item", "total_seconds", "timestamp"))
_RANDOM = re.compile(
    r"^(random|numpy\.random|torch\.(rand|bernoulli|multinomial))|(^|[._])(rng|random)\w*\.\w+$|\.get_rank$"
)


def flags(script: Script, module: ast.ClassDef, parameters: ast.arguments) -> Iterator[tuple[str, bool]]:
    """Yield parameters of a forward that vary between steps of the training loop, and True for those that may be None,
    as in ``model(x, random.random() < 0.5)``."""
    calls = dict.fromkeys(
        call for backward in training.backwards(script) for call in training.forwards_in(script, backward.receiver)
    )
    wrapped = {call: [wrap.argument(0, "module") for wrap in call.callee.makers()] for call in calls}
    forwards = [
        call
        for call, models in wrapped.items()
        if not call.has_stars and any(made.local is module for model in models for made in model.makers())
    ]
    by_position = [argument.arg for argument in (*parameters.posonlyargs, *parameters.args)][1:]
    parameter_names = [*by_position, *(argument.arg for argument in parameters.kwonlyargs)]
    for position, name in enumerate(parameter_names) if forwards else ():
        at = position if name in by_position else None
        given = [(call, call.argument(at, name)) for call in forwards]
        if any(_differ_by_branch(script, first, second) for first, second in combinations(given, 2)):
            yield name, True
        elif any(varies(script, value) for _, value in given):
            yield name, any(option.is_none for _, value in given for option in value.alternatives())


def _differ_by_branch(script: Script, first: tuple[Call, Value], second: tuple[Call, Value]) -> bool:
    (first_call, left), (second_call, right) = first, second
    is_written = not (left and right) or left.kind == right.kind == "constant"
    if not is_written or left.text == right.text:
        return False
    sides = {id(condition.test): condition.holds for condition in first_call.conditions}
    return any(
        sides.get(id(condition.test), condition.holds) != condition.holds and varies(script, condition.test)
        for condition in second_call.conditions
    )


def varies(script: Script, value: Value, depth: int = 4) -> bool:
    """Return True if a flag is random or depends on a loop counter: ``random.random() < 0.5``, ``step % 2 == 0``."""
    decided = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp)
    for option in value.alternatives() if depth else ():
        if isinstance(option, Call) and (is_drawn(option) or any(map(is_drawn, option.sources()))):
            return True
        if isinstance(option.node, decided) and any(
            _is_loop_counter(part) or varies(script, part, depth - 1) for part in option.parts
        ):
            return True
    return value.kind == "choice" and _is_drawn_choice(script, value, depth)


def _is_drawn_choice(script: Script, value: Value, depth: int) -> bool:
    """Return True for ``flag = True if random.random() < 0.5 else False``, also in the branches of a statement."""
    options = {id(option) for option in value.alternatives()}
    tests = set(map(id, ast.walk(value.node.test))) if isinstance(value.node, ast.IfExp) else set[int]()
    if any(id(call.node) in tests and is_drawn(call) for call in script.calls if tests):
        return True
    return any(
        varies(script, condition.test, depth - 1)
        for assignment in script.assignments
        if id(assignment.value) in options
        for condition in assignment.place.conditions
    )


def is_drawn(value: Value) -> bool:
    """Return True if a call returns another number each time: ``random.random()``, ``rng.integers(2)``."""
    if not isinstance(value, Call):
        return False
    if _generator_of(value):
        return "seed" not in value.method
    return bool(_RANDOM.search(value.name or written(value.node.func))) and value.name not in _GENERATORS


def reads_clock(value: Value) -> bool:
    """Return True if a call reads the clock: ``time.time()``."""
    return isinstance(value, Call) and value.name in _CLOCKS


def _generator_of(value: Call) -> Call | None:
    return next((made for made in value.receiver.makers() if made.name in _GENERATORS), None)


#: The cause of a test's differences between ranks, as titles name it.
Reason = Literal["its own batch", "chance", "its own clock"]


def of_one_rank(script: Script, test: Value) -> tuple[Reason, Value] | None:
    """Return why a test may differ between ranks without comparing data, and the part that differs, or None."""
    for part in operands(test):
        if reads_clock(part):
            return "its own clock", part
        if isinstance(part, Call) and is_drawn(part) and not rank_kind(part) and not is_seeded_alike(script, part):
            return "chance", part
        if _asks_for_a_batch(part):
            return "its own batch", part
    return None


def operands(value: Value, depth: int = 8) -> Iterator[Value]:
    """Yield the values that decide a test: operands, including inside ``int()``, but not the origins of a shape."""
    for option in value.alternatives() if depth else ():
        yield option
        parts: tuple[Value, ...] = option.parts if option.kind == "other" else ()
        if isinstance(option, Call) and option.returned:
            parts = (option.returned,)
        elif isinstance(option, Call) and option.name in _SAME_NUMBER:
            parts = option.args
        elif isinstance(option, Call) and option.method in _READS:
            parts = (option.receiver,)
        for part in parts:
            yield from operands(part, depth - 1)


def _asks_for_a_batch(value: Value) -> bool:
    """Return True for ``batch is None``, ``not batch`` or ``len(images) == 0`` of a loader's batch in a loop."""
    node = value.node
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and value.kind == "other":
        return value.parts[0].kind == "loop" and _is_batch(value.parts[0])
    if value.kind != "other" or len(value.parts) != 2 or not isinstance(node, ast.Compare):
        return False
    left, right = value.parts
    if isinstance(node.ops[0], ast.Is | ast.IsNot):
        return right.is_none and _is_batch(left)
    is_length = isinstance(left, Call) and left.name == "len" and bool(left.args)
    return is_length and right.constant == 0 and _is_batch(left.parts[0])


def _is_batch(value: Value) -> bool:
    """Return True if a loop, or ``next``, takes the value from a loader or from something unknown."""
    source, part = training.looped_over(value), value
    while part.kind == "element":
        part = part.owner
    if source is value or (part.kind != "loop" and part.name != "next"):
        return False
    return source.kind in ("parameter", "attribute", "free") or training.is_from_a_loader(value)


def is_seeded_alike(script: Script, drawn: Call) -> bool:
    """Return True if all ranks may draw the same numbers: somewhere a seed is set that does not contain a rank."""
    generator = _generator_of(drawn)
    if generator and generator.arguments:
        return not any(map(rank_kind, generator.sources()))
    return any(
        call.arguments and not any(rank_kind(part) for given in call.arguments for part in given.sources())
        for call in script.calls
        if "seed" in (call.method or call.name.rpartition(".")[2]).lower()
    )


def _is_loop_counter(value: Value) -> bool:
    owner = value.owner if value.kind == "element" and value.attribute == "0" else value
    over = owner.owner if owner.kind == "loop" else None
    return isinstance(over, Call) and over.name == ("range" if owner is value else "enumerate")
