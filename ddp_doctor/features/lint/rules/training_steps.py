"""Rules on the steps of the training loop: gradients accumulated over several batches, and calls that make a step wait.

with model.no_sync():                      all micro-steps but the last, forward and backward
    criterion(model(x), y).backward()
criterion(model(x), y).backward()          the last one reduces what all of them gathered
optimizer.step()
running += loss.item()                     the host waits for the GPU in every step
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from ddp_doctor.features.lint import names, training
from ddp_doctor.features.lint.ranks import rank_condition, ranks_under
from ddp_doctor.features.lint.rule import Spot, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import NOTHING, Call, Value, written
from ddp_doctor.model.choices import Consequence, Severity

_SWITCH = "require_backward_grad_sync"
_SWITCHED = ("no_sync", _SWITCH, "set_requires_gradient_sync", "register_comm_hook")
_MICRO = re.compile(r"accu|micro", re.IGNORECASE)
_DATA = re.compile(r"load|dataset|epoch", re.IGNORECASE)


@lint_rule("DDL124", "accumulation-without-no-sync", Consequence.COST)
def accumulation_without_no_sync(script: Script) -> Iterator[Spot]:
    """Gradients are accumulated over several backward passes, and each pass reduces them over all ranks.

    Finds: A backward pass through a wrapped model, if the optimizer steps only once every few batches, or after a loop
        over parts of a batch, and the script has no `no_sync()`.
    Why: DDP reduces the gradients in every backward pass. With k passes per step, k - 1 of these reductions are wasted,
        and so is the time that ranks wait for them. The result is correct.
    Remedy: Run all passes except the last, forward and backward, inside `with model.no_sync():`.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync
    """
    if script.uses(*_SWITCHED):
        return
    steps = list(training.optimizer_steps(script))
    clears = list(script.methods("zero_grad"))
    reported = list[Call]()
    for call in training.backwards(script):
        if any(training.exclude_each_other(call, other) for other in reported):
            continue  # the same pass, with a loss scaler and without
        if call.loops and (_steps_now_and_then(call, steps, clears) or _is_micro_step(script, call, steps, clears)):
            reported.append(call)
            model = written(training.forwards_in(script, call.receiver)[0].node.func)
            yield Spot(
                call,
                "Every accumulated backward pass reduces gradients over all ranks, but only the last must",
                remedy=f"Run all passes except the last, forward and backward, inside {model}.no_sync()",
                write=(
                    f"last = {_last_pass(call, steps)}",
                    f"with contextlib.nullcontext() if last else {model}.no_sync():",
                ),
            )


@lint_rule("DDL125", "forward-outside-no-sync", Consequence.COST)
def forward_outside_no_sync(script: Script) -> Iterator[Spot]:
    """The backward pass is inside no_sync(), but its forward is outside.

    Finds: `with model.no_sync():`, even under a condition, around a `backward()` whose forward ran outside it. Severity
        is error for `model.require_backward_grad_sync` that is set between the forward and the backward.
    Why: The forward decides whether gradients are reduced. If only the backward is inside `no_sync()`, DDP still
        reduces the gradients. The context has no effect, and the accumulation costs as much as without it. A switch
        that is set too late applies to the next pass: only the first pass of a step is reduced, and the ranks drift
        apart (seen: two ranks with gradients of 111.5 and 221.5 instead of 166.5).
    Remedy: Move the forward into the context, and set the switch before the forward.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync
    """
    for call in training.backwards(script):
        forwards = training.forwards_in(script, call.receiver)
        line = forwards[0].node.lineno
        for context in call.place.withs:
            inside = any(context in forward.place.withs for forward in forwards)
            for option in () if inside else filter(partial(_is_no_sync, script), context.objects()):
                yield Spot(
                    option,
                    f"no_sync() has no effect: the forward in line {line} is outside of it",
                    remedy="Also move the forward into the context",
                )
        for switch in _late_switches(script, forwards, call):
            yield Spot(
                switch,
                f"require_backward_grad_sync is set after the forward in line {line} has read it",
                detail="Only the first pass of each step is reduced, so the gradients differ between ranks.",
                remedy="Set it before the forward",
                severity=Severity.ERROR,
            )


@lint_rule("DDL126", "step-without-synchronisation", Consequence.WRONG)
def step_without_synchronisation(script: Script) -> Iterator[Spot]:
    """The optimizer steps on gradients that were never reduced.

    Finds: `optimizer.step()` inside `with model.no_sync():`, or a script in which every backward pass through the
        wrapped model is in such a context, including the last one before the step.
    Why: `no_sync()` leaves the gradients local until the next backward pass outside it. If none follows before the
        step, every rank steps with its own gradients, and the models drift apart without an error.
    Remedy: Run the last pass before the step outside `no_sync()`.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync
    """
    if not any(script.methods("no_sync")) or any(map(training.reduces_gradients, script.calls)):
        return
    passes = [
        backward
        for backward in training.backwards(script)
        if training.surely_ddp(training.forwards_in(script, backward.receiver)[0].callee)
    ]
    contexts = [next(_no_syncs(script, backward), NOTHING) for backward in passes]
    steps = list(training.optimizer_steps(script))
    unsynchronized = contexts[-1:] if steps and all(contexts) else []
    unsynchronized += [context for step in steps for context in contexts if context in step.place.withs]
    for context in unsynchronized:
        yield Spot(
            context,
            "The optimizer uses gradients of this rank only: the last backward is also inside no_sync()",
            remedy="Run the last backward before the step outside no_sync()",
        )


def _no_syncs(script: Script, call: Call) -> Iterator[Value]:
    contexts = (context for context in call.place.withs if getattr(context, "method", "") == "no_sync")
    return (context for context in contexts if _is_no_sync(script, context))


def _is_no_sync(script: Script, context: Value) -> bool:
    """Return True for ``model.no_sync()``, or ``context()`` if ``context = nullcontext if last else model.no_sync``."""
    called = context.callee.alternatives() if isinstance(context, Call) else ()
    return any(each.attribute == "no_sync" and script.is_ddp(each.owner) for each in called)


def _late_switches(script: Script, forwards: list[Call], backward: Call) -> Iterator[ast.AST]:
    """Yield assignments of ``require_backward_grad_sync`` only between the forward and backward of a pass."""
    switches = [
        each
        for each in script.assignments
        if each.name == _SWITCH and each.root == backward.root and script.is_ddp(each.owner)
        if backward.loops and each.place.loops[-1:] == backward.loops[-1:] and each.value.constant is not True
    ]
    orders = [forward.order for forward in forwards]
    if not any(each.order < min(orders) for each in switches):
        yield from (each.node for each in switches if max(orders) < each.order < backward.order)


def _steps_now_and_then(call: Call, steps: list[Call], clears: list[Call]) -> bool:
    """Return True for ``if (i + 1) % k == 0: optimizer.step()`` in a loop whose backward runs in every iteration."""
    loop = call.loops[-1]
    here = [step for step in steps if loop in step.loops]
    return (
        bool(here)
        and all(any(training.counts(each.test) for each in training.beyond(step, call)) for step in here)
        and not any(loop in clear.loops and not training.beyond(clear, call) for clear in clears)
    )


def _is_micro_step(script: Script, call: Call, steps: list[Call], clears: list[Call]) -> bool:
    """Return True for ``for micro_step in range(accumulation): ... backward()`` with the step after that loop."""
    loop, outer = call.loops[-1], call.loops[:-1]
    if not isinstance(loop.node, ast.For) or not outer or any(loop in each.loops for each in (*steps, *clears)):
        return False
    words = f"{written(loop.node.target)} {written(loop.node.iter)}"
    behind = [step for step in steps if loop not in step.loops and outer[-1] in step.loops]
    if _MICRO.search(words) or not behind:
        return bool(behind)
    step = next((step for step in behind if step.order > call.order and _is_of_optimizer(step)), None)
    if step is None or _DATA.search(words) or training.passed_on(loop.over).name == names.LOADER:
        return False
    is_cleared = any(call.order < clear.order < step.order for clear in clears)
    return not is_cleared and all(loop in forward.loops for forward in training.forwards_in(script, call.receiver))


def _last_pass(call: Call, steps: list[Call]) -> str:
    """Return the test of the last backward pass before a step, as the script would write it."""
    loop = call.loops[-1]
    asked = (each for step in steps if loop in step.loops for each in training.beyond(step, call))
    if found := next((each for each in asked if training.counts(each.test)), None):
        return found.test.text if found.holds else f"not ({found.test.text})"
    over = loop.over
    if isinstance(loop.node, ast.For) and over.name == "range" and isinstance(over, Call) and len(over.args) == 1:
        return f"{written(loop.node.target)} == {written(over.node.args[0])} - 1"
    return "...  # True in the last pass before optimizer.step()"


def _is_of_optimizer(step: Call) -> bool:
    """Return True unless the object may be something else that makes steps, such as a scheduler."""
    made = [maker.name for maker in step.receiver.makers()]
    return "optim" in written(step.node.func) or any(
        name.startswith("torch.optim.") and ".lr_scheduler" not in name for name in made
    )


_WAITS = ("item", "cpu", "tolist", "numpy")
#: Properties that the host knows without the GPU, and values that were already read.
_HOST_SIDE = re.compile(r"\.(shape|dtype|device|ndim|item|size|dim|numel|tolist|numpy|cpu)\b|\b(len|float|int|type)\(")


@lint_rule("DDL138", "host-waits-in-every-step", Consequence.KNOWN)
def host_waits_in_every_step(script: Script) -> Iterator[Spot]:
    """The training loop reads a number from the GPU in every step.

    Finds: `.item()`, `.cpu()`, `.tolist()`, `.numpy()` or `float()` of a result of the wrapped model, or a `print` or
        `add_scalar` of it, in the loop of its backward pass, without a condition that allows it only in some steps.
    Why: The host waits until the GPU has finished all queued work, and queues nothing during that time. Then the GPU
        waits for the host. If only one rank does this, it is late, and the others wait for it in the next reduction.
    Remedy: Accumulate on the GPU (`running += loss.detach()`), and read the value every hundred steps.
    See: https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    """
    if not training.uses_gpu(script):
        return
    reported = set[int]()
    passes = {id(backward.loops[-1]): backward for backward in training.backwards(script) if backward.loops}
    for call in script.calls if passes else ():
        pass_of = passes.get(id(call.loops[-1])) if call.loops else None
        if pass_of is None or id(pass_of.loops[-1].node) in reported:
            continue
        if not any(training.forwards_in(script, value) for value in _values_read_by_host(call)):
            continue
        if training.no_gradients(call):
            continue
        conditions = training.beyond(call, pass_of)
        if all(rank_condition(each) and not isinstance(each.test.node, ast.BoolOp) for each in conditions):
            reported.add(id(pass_of.loops[-1].node))
            who = ranks_under(conditions)
            yield Spot(
                call,
                f"This {call.method or call.name}() waits for the GPU in every step{f' on {who.who}' if who else ''}",
                remedy="Add up the detached values on the GPU, and read their sum every 100 steps",
            )


def _values_read_by_host(call: Call) -> Iterator[Value]:
    if call.method in _WAITS and not call.args:
        yield call.receiver
    elif call.name == "float" and call.args:
        yield call.args[0]
    elif call.name == "print" or call.method == "add_scalar":
        for argument in call.args:
            yield from _printed(argument)


def _printed(value: Value) -> Iterator[Value]:
    """Return the values in a formatted text that may be tensors: both of f"{step} {loss}"."""
    if isinstance(value.node, ast.JoinedStr | ast.FormattedValue):
        for part in value.parts:
            yield from _printed(part)
    elif not any(
        _HOST_SIDE.search(option.text) for option in value.alternatives() if not isinstance(option.node, ast.Constant)
    ):
        yield value
