"""Rules on the accumulation of gradients over several batches.

with model.no_sync():                      all micro-steps but the last, forward and backward
    criterion(model(x), y).backward()
criterion(model(x), y).backward()          the last one reduces what all of them gathered
optimizer.step()
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddp_doctor.lint import training
from ddp_doctor.lint.rule import Spot, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Value, written
from ddp_doctor.model.choices import Severity

_SWITCHED = ("no_sync", "require_backward_grad_sync", "set_requires_gradient_sync", "register_comm_hook")
_MICRO = re.compile(r"accum|micro", re.IGNORECASE)


@lint_rule("DDL124", "accumulation-without-no-sync", Severity.WARNING)
def without_no_sync(script: Script) -> Iterator[Spot]:
    """Gradients are accumulated over several backward passes, and each of them is reduced over all ranks.

    What it finds
        A backward pass through a wrapped model that is followed by a step of the optimizer only every so many batches,
        in a script that has no `no_sync()`.

    Why it matters
        DDP reduces the gradients in every backward pass. With k passes for each step, k - 1 of these reductions are
        wasted, and so is the time in which the ranks wait for them. The result is right.

    Remedy
        Run the passes before the last, forward and backward, inside of `with model.no_sync():`.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync
    """
    if script.uses(*_SWITCHED):
        return
    steps = list(training.optimizer_steps(script))
    clears = list(script.methods("zero_grad"))
    for call in training.backwards(script):
        if call.loops and (_steps_now_and_then(call, steps, clears) or _is_micro_step(call, steps, clears)):
            yield Spot(
                call,
                "Every accumulated backward pass reduces the gradients over all ranks, though only the last one has to",
                remedy="Run all but the last pass, forward and backward, inside of model.no_sync()",
                write=("with model.no_sync() if not last else contextlib.nullcontext():",),
            )


@lint_rule("DDL125", "forward-outside-no-sync", Severity.WARNING)
def forward_outside(script: Script) -> Iterator[Spot]:
    """The backward pass stands inside of no_sync(), and its forward before it.

    What it finds
        `with model.no_sync():` around a `backward()` whose forward ran outside of it.

    Why it matters
        Whether gradients are reduced is decided in the forward. A backward inside of `no_sync()` whose forward
        was outside reduces all the same: the context does nothing, and the accumulation costs as much as
        without it.

    Remedy
        Move the forward into the context.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync
    """
    for call in training.backwards(script):
        forwards = training.forwards_in(script, call.receiver)
        for context in _no_syncs(script, call):
            if all(id(context) not in map(id, forward.place.withs) for forward in forwards):
                yield Spot(
                    context,
                    f"no_sync() does nothing here: the forward in line {forwards[0].call.lineno} ran outside of it",
                    remedy="Move the forward into the context as well",
                )


@lint_rule("DDL126", "step-without-synchronisation", Severity.ERROR)
def never_synchronised(script: Script) -> Iterator[Spot]:
    """The optimizer steps on gradients that were never reduced.

    What it finds
        `optimizer.step()` inside of `with model.no_sync():`, or a script in which every backward pass through the
        wrapped model stands in such a context, the last one before the step too.

    Why it matters
        `no_sync()` leaves the gradients local until the next backward pass outside of it. If there is none before the
        step, every rank steps with its own gradients, and the models drift apart without any error.

    Remedy
        Run the last pass before the step outside of `no_sync()`.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync
    """
    if not any(script.methods("no_sync")) or any(map(training.reduces_gradients, script.calls)):
        return
    passes = [
        backward for backward in training.backwards(script) if training.surely_ddp(_model(script, backward))
    ]
    contexts = [next(_no_syncs(script, backward), None) for backward in passes]
    steps = list(training.optimizer_steps(script))
    if passes and steps and all(contexts):
        yield _unsynchronised(contexts[-1])
    for step in steps:
        for context in contexts:
            if context is not None and id(context) in map(id, step.place.withs):
                yield _unsynchronised(context)


def _unsynchronised(context: Value | None) -> Spot:
    assert context is not None
    return Spot(
        context,
        "The optimizer steps on gradients of this rank alone: the last backward is inside of no_sync() too",
        remedy="Run the last backward before the step outside of no_sync()",
    )


def _model(script: Script, call: Call) -> Value | None:
    found = training.forwards_in(script, call.receiver)
    return found[0].callee if found else None


def _no_syncs(script: Script, call: Call) -> Iterator[Value]:
    """The contexts around a call that surely are no_sync() of the wrapped model."""
    for context in call.place.withs:
        if isinstance(context, Call) and context.method == "no_sync" and script.is_ddp(context.receiver):
            yield context


def _steps_now_and_then(call: Call, steps: list[Call], clears: list[Call]) -> bool:
    """``if (i + 1) % k == 0: optimizer.step()`` in the loop of the backward pass, which runs in every iteration."""
    loop = call.loops[-1]
    here = [step for step in steps if loop in step.loops]
    return (
        bool(here)
        and all(any(map(training.only_now_and_then, training.beyond(step, call))) for step in here)
        and not any(loop in clear.loops and not training.beyond(clear, call) for clear in clears)
    )


def _is_micro_step(call: Call, steps: list[Call], clears: list[Call]) -> bool:
    """``for micro_step in range(accumulation): ... backward()``, with the step after that loop."""
    loop, outer = call.loops[-1], call.loops[:-1]
    if not isinstance(loop.node, ast.For) or not outer:
        return False
    words = f"{written(loop.node.target)} {written(loop.node.iter)}"
    return (
        bool(_MICRO.search(words))
        and any(loop not in step.loops and outer[-1] in step.loops for step in steps)
        and not any(loop in call.loops for call in (*steps, *clears))
    )
