"""Rules on what makes the training loop wait.

for images, target in loader:
    ...
    running += loss.item()         the host waits for the GPU in every step
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddp_doctor.lint import training
from ddp_doctor.lint.ranks import rank_condition
from ddp_doctor.lint.rule import Spot, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Condition, Value
from ddp_doctor.model.choices import Severity

_WAITS = ("item", "cpu", "tolist", "numpy")
#: What the host knows of a tensor without the GPU, and what has already been read.
_HOST_SIDE = re.compile(
    r"\.(shape|dtype|device|ndim|item|size|dim|numel|tolist|numpy|cpu)\b|\b(len|float|int|type)\("
)


@lint_rule("DDL138", "host-waits-in-every-step", Severity.INFO)
def waits(script: Script) -> Iterator[Spot]:
    """The training loop reads a number from the GPU in every step.

    What it finds
        `.item()`, `.cpu()`, `.tolist()`, `.numpy()` or `float()` of what the wrapped model computed, or a
        `print` or `add_scalar` of it, in the loop of its backward pass, without a condition that lets it through
        only now and then.

    Why it matters
        The host waits there until the GPU has done all that was queued, and queues nothing meanwhile: after it the GPU
        waits for the host. On one rank alone it makes that rank late, and the others wait for it in the next reduction.

    Remedy
        Add up on the GPU (`running += loss.detach()`), and read every hundred steps.

    References
        https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
    """
    if not training.uses_gpu(script):
        return
    reported = set[int]()
    passes = [backward for backward in training.backwards(script) if backward.loops]
    for call in script.calls if passes else ():
        pass_of = next(
            (backward for backward in passes if call.loops and backward.loops[-1] is call.loops[-1]), None
        )
        if pass_of is None or id(pass_of.loops[-1].node) in reported:
            continue
        if not any(training.forwards_in(script, value) for value in _read(call)) or training.no_gradients(
            call
        ):
            continue
        if all(map(_is_on_the_rank_alone, training.beyond(call, pass_of))):
            reported.add(id(pass_of.loops[-1].node))
            yield Spot(
                call,
                "The host waits here for the GPU in every step",
                remedy="Add up on the GPU with detach(), and read the number every hundred steps",
            )


def _is_on_the_rank_alone(condition: Condition) -> bool:
    return rank_condition(condition) is not None and not isinstance(condition.test.node, ast.BoolOp)


def _read(call: Call) -> Iterator[Value]:
    """The values that a call copies to the host."""
    if call.method in _WAITS and not call.args and call.receiver is not None:
        yield call.receiver
    elif call.name == "float" and call.args:
        yield call.args[0]
    elif call.name == "print" or call.method == "add_scalar":
        for argument in call.args:
            yield from _printed(argument)


def _printed(value: Value) -> Iterator[Value]:
    """The values that are made into text and may be tensors: both of f"{step} {loss}"."""
    if isinstance(value.node, ast.JoinedStr | ast.FormattedValue):
        for part in value.parts:
            yield from _printed(part)
    elif not any(
        _HOST_SIDE.search(option.text)
        for option in value.alternatives()
        if not isinstance(option.node, ast.Constant)
    ):
        yield value
