"""Rules on collectives that fail, and on the return values of collectives.

try:
    loss.backward()
except RuntimeError:                 this rank goes on with the next batch, the others wait in this backward
    continue
if dist.all_reduce(flag):            None: the result is in flag
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterable, Iterator

from ddp_doctor.features.lint import names, training
from ddp_doctor.features.lint.collectives import collectives
from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.rules.placement import is_on_cpu
from ddp_doctor.features.lint.rules.start_up import before_the_group
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Guard, Value, written
from ddp_doctor.model.choices import Consequence

#: Exceptions that all ranks get at the same time, or that a step does not raise.
_OF_ALL_RANKS = frozenset(
    (
        *("KeyboardInterrupt", "SystemExit", "GeneratorExit", "StopIteration", "StopAsyncIteration"),
        *("ImportError", "ModuleNotFoundError", "NotImplementedError", "AttributeError", "NameError"),
    )
)
_ENDS = ("exit", "quit", "sys.exit", "os._exit", "os.abort")


@lint_rule("DDL151", "failed-step-skipped", Consequence.RISK)
def failed_step_skipped(script: Script) -> Iterator[Spot]:
    """A rank continues with the next step after a failed one, while other ranks wait in the failed step.

    Finds: `except RuntimeError: continue`, or any handler that neither raises again nor ends the process, around the
        backward pass of a wrapped model in a loop. Also if the handler only leaves a function that the loop calls, or
        if it surrounds a forward and skips the backward. Not reported if the handler runs its own backward pass, or if
        the code leaves the `try` as soon as it succeeds (a retry).
    Why: One rank runs out of memory or reads a broken sample, and the others do not. They are in the all-reduce of this
        step while it starts the next. All ranks wait until the timeout, or gradients of two steps are mixed.
    Remedy: Let the exception end the process, so that torchrun restarts all ranks from a checkpoint. If batches may be
        too large, test this before the loop. If samples may be broken, drop them in the data set.
    See: https://pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce
        https://pytorch.org/docs/stable/elastic/run.html
    """
    for call in collectives(script):
        for guard in call.place.guards if call.method == "backward" else ():
            yield from _swallowed(script, guard, call)
    for call in script.calls:
        if call.place.guards and training.is_forward(script, call) and not training.no_gradients(call):
            yield from _skipped_backwards(script, call)


def _swallowed(script: Script, guard: Guard, backward: Call) -> Iterator[Spot]:
    if not guard.loops or backward.loops[: len(guard.loops)] != guard.loops:
        return
    is_in_function = guard.node not in ast.walk(guard.loops[-1].node)
    last = (guard.node.orelse or guard.node.body)[-1]
    if isinstance(last, ast.Break) or (isinstance(last, ast.Return) and not is_in_function):
        return  # ``while True: try: step(); break``: a rank that fails repeats the same step
    for handler, caught in zip(guard.node.handlers, guard.caught, strict=True):
        inside = set(ast.walk(handler))
        if any(call.node in inside for call in script.methods("backward")):
            continue
        if _catches_error_of_one_rank(caught) and _stays_in_loop(handler.body, is_in_function=is_in_function):
            yield _spot(script, handler, backward)


def _spot(script: Script, handler: ast.ExceptHandler, missed: Call) -> Spot:
    name = collectives(script).get(missed, "backward of the DDP model")
    return Spot(
        handler,
        f"A failing rank continues here and skips the {name} in line {missed.node.lineno}: other ranks hang",
        remedy="Raise the exception again, so that all ranks restart from the last checkpoint",
        write=("raise",),
    )


def _skipped_backwards(script: Script, forward: Call) -> Iterator[Spot]:
    guard = forward.place.guards[-1]
    for handler, caught in zip(guard.node.handlers, guard.caught, strict=True):
        if not guard.loops or not isinstance(handler.body[-1], ast.Continue) or not _catches_error_of_one_rank(caught):
            continue
        for call in collectives(script):
            if call.place.in_handler or guard in call.place.guards:
                continue
            if forward.precedes(call) and guard.loops[-1] in call.loops:
                yield _spot(script, handler, call)
                break


def _catches_error_of_one_rank(caught: Value) -> bool:
    parts = caught.parts if caught.kind == "tuple" else (caught,)
    names_of_errors = [option.name for part in parts for option in part.alternatives() if option.kind == "name"]
    return not caught or any(
        (name.startswith("torch.") or hasattr(builtins, name)) and name not in _OF_ALL_RANKS for name in names_of_errors
    )


def _stays_in_loop(body: Iterable[ast.stmt], *, is_in_function: bool) -> bool:
    return bool(_ends(body, is_in_function=is_in_function) - {"leaves"})


def _ends(body: Iterable[ast.stmt], *, is_in_function: bool) -> set[str]:
    """Return how these statements may end: ``stays`` in the loop, ``leaves`` it, or ``falls`` through."""
    found = set[str]()
    for statement in body:
        called = statement.value if isinstance(statement, ast.Expr) else None
        exits = isinstance(called, ast.Call) and written(called.func) in _ENDS
        if exits or isinstance(statement, ast.Raise | ast.Break):
            return found | {"leaves"}
        if isinstance(statement, ast.Return | ast.Continue):
            return found | {"stays" if is_in_function or isinstance(statement, ast.Continue) else "leaves"}
        if isinstance(statement, ast.If):
            ways = [_ends(way, is_in_function=is_in_function) for way in (statement.body, statement.orelse)]
            found |= set.union(*ways) - {"falls"}
            if not any("falls" in way for way in ways):
                return found
    return found | {"falls"}


#: Arguments after these may be ``async_op``, which makes the call return a handle.
_BEFORE_ASYNC_OP = 3
_OPERATORS = (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.AugAssign)
_NEEDS_A_NUMBER = ("float", "int", "bool", "abs", "round", "sum", "max", "min", "len", "math.isnan", "math.isfinite")


@lint_rule("DDL152", "result-of-a-collective-used", Consequence.FAILS, concerns=always)
def result_of_a_collective_used(script: Script) -> Iterator[Spot]:
    """The script uses the return value of a collective, which is None.

    Finds: `if dist.all_reduce(flag):`, `loss = dist.all_reduce(loss)` followed by a computation with it, `.item()` of
        the result, and the same for every collective of torch.distributed that writes its result to an argument. Not
        reported with `async_op`, which returns a handle, or for a comparison with None.
    Why: A condition is never true, so no rank ever stops, saves or logs. Arithmetic, `.item()` and `float()` raise an
        exception on all ranks.
    Remedy: Call the collective on a separate line, and use the tensor that you passed to it.
    See: https://pytorch.org/docs/stable/distributed.html#collective-functions
    """
    alone = {node.value for node in script.nodes if isinstance(node, ast.Expr)}
    returned = {}
    for call in script.named(*(f"torch.distributed.{name}" for name in names.COLLECTIVES if name != "new_group")):
        is_plain = call.lacks(None, "async_op") and len(call.args) <= _BEFORE_ASYNC_OP
        if is_plain and call.node not in alone and not any(argument.constant is True for argument in call.args):
            returned[id(call)] = call
    used = _used_values(script, returned.values()) if returned else []
    asked = {id(value) for value, is_asked_for_none in used if is_asked_for_none}
    for value, _ in used:
        if id(value) not in asked and id(value) in returned:
            call = returned.pop(id(value))
            name = call.name.rpartition(".")[2]
            yield Spot(
                call,
                f"{name} returns None: its result is in its argument",
                remedy=f"Call {name} on its own line, and use the tensor passed to it",
            )


def _used_values(script: Script, returned: Collection[Call]) -> list[tuple[Value, bool]]:
    """Return values used in conditions, calculations and method calls; True if only compared with None."""
    places = [*(call.place for call in script.calls), *(leave.place for leave in script.leaves)]
    tests = dict.fromkeys(condition.test for place in places for condition in place.conditions)
    tests |= dict.fromkeys(loop.test for place in places for loop in place.loops if loop.test)
    numbers = (call.args for call in script.calls if call.name in _NEEDS_A_NUMBER)
    taken = [*tests, *(call.receiver for call in script.calls), *(value for given in numbers for value in given)]
    waiting = [
        *taken,
        *(value for call in script.calls for value in call.arguments),
        *(assignment.value for assignment in script.assignments),
        *(leave.value for leave in script.leaves),
    ]
    expressions: dict[Value, None] = {}
    while waiting:
        part = waiting.pop()
        if part not in expressions and part.kind in ("other", "element", "choice"):
            expressions[part] = None
            waiting += part.parts
    by_node = {call.node: call for call in returned}
    tests_of = (node.test for node in script.nodes if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert))
    named = (by_node[node] for test in tests_of for node in _operands_of_test(test) if node in by_node)
    return [
        *((call, False) for call in named),
        *((option, False) for value in taken for option in value.alternatives()),
        *(used for expression in expressions for used in _operands(expression)),
    ]


def _operands_of_test(test: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a test, inside of ``not``, ``and`` and ``or``."""
    yield test
    inner = test.values if isinstance(test, ast.BoolOp) else [test.operand] if isinstance(test, ast.UnaryOp) else []
    for part in inner:
        yield from _operands_of_test(part)


def _operands(value: Value) -> Iterator[tuple[Value, bool]]:
    """Yield the operands of an operator, and whether it compares them with None."""
    node = value.node
    if value.kind == "element":
        yield from ((option, False) for option in value.parts[0].alternatives())
    elif value.kind == "other" and isinstance(node, _OPERATORS):
        is_identity = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot)
        yield from ((option, is_identity) for part in value.parts for option in part.alternatives())


#: The position of the tensor among the arguments of a collective.
_TENSOR_AT = {
    **dict.fromkeys(("all_reduce", "broadcast", "reduce"), 0),
    **dict.fromkeys(("all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"), 1),
    **dict.fromkeys(("gather", "scatter"), 0),
}


@lint_rule("DDL174", "cpu-tensor-over-nccl", Consequence.FAILS)
def cpu_tensor_over_nccl(script: Script) -> Iterator[Spot]:
    """A collective over NCCL gets a tensor in host memory.

    Finds: `all_reduce`, `broadcast`, `all_gather` and other collectives of the default group with a tensor that was
        certainly created on the CPU or moved to it, in a script whose group uses only NCCL. Not reported for a backend
        such as `cpu:gloo,cuda:nccl`, for the default backend, if a default device is set, or before the group starts
        (DDL109).
    Why: NCCL supports only tensors on GPUs. All ranks fail with "No backend type associated with device type cpu".
    Remedy: Create the tensor on the rank's GPU, or start the group with `cpu:gloo,cuda:nccl`.
    See: https://pytorch.org/docs/stable/distributed.html#which-backend-to-use
    """
    starts = list(script.named(names.INIT))
    backends = {str(start.argument(0, "backend").constant).lower() for start in starts}
    if backends != {"nccl"} or script.uses_in_any_case("set_default_device", "set_default_tensor_type"):
        return
    for call in collectives(script):
        at = _TENSOR_AT.get(call.name.rpartition(".")[2]) if call.name.startswith("torch.distributed.") else None
        if at is None or call.has_stars or not call.lacks(None, "group") or call in before_the_group(script):
            continue
        tensor = call.argument(at, "tensor", "input_tensor", "input")
        if tensor and is_on_cpu(tensor):
            yield Spot(
                call,
                f"This {call.name.rpartition('.')[2]} over NCCL is given a CPU tensor: it raises RuntimeError",
                remedy="Make the tensor on the rank's GPU",
                write=('tensor = tensor.to("cuda")',),
            )
