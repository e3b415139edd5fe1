"""Rules on autocast and GradScaler.

scaler = torch.amp.GradScaler("cuda")                  once, before the loop; for float16 only
with torch.autocast("cuda", dtype=torch.float16):
    loss = criterion(model(x), y)
scaler.scale(loss).backward()
scaler.unscale_(optimizer)                             before gradients are clipped
scaler.step(optimizer)
scaler.update()
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Literal

from ddp_doctor.features.lint import training
from ddp_doctor.features.lint.rule import Spot, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value, written
from ddp_doctor.model.choices import Consequence, Severity

_AUTOCASTS = ("torch.amp.autocast", "torch.cuda.amp.autocast")
_CLIPS = tuple(f"torch.nn.utils.{name}" for name in ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_"))
_SCALES = ("scaler", "loss_scale", "scale_loss")
#: Maximum number of scalers: rules compare each with all calls of its methods.
_MOST_SCALERS = 50
Precision = Literal["float16", "bfloat16", "unknown"]


def _without_a_library(script: Script) -> bool:
    return not script.libraries


@lint_rule("DDL139", "half-precision-without-loss-scaling", Consequence.RISK)
def half_precision_without_loss_scaling(script: Script) -> Iterator[Spot]:
    """A float16 autocast trains without a loss scaler.

    Finds: A backward pass through a forward that ran under a float16 autocast (the default on GPUs), or through a
        float16 model (`net.half()`), in a script without anything named like a scaler.
    Why: Gradients below 6e-8 are zero in float16, so parts of the model stop learning without a message. When reduced
        over many ranks, they are also the first to overflow.
    Remedy: Scale the loss with `torch.amp.GradScaler`. If the GPU supports bfloat16, you can use it instead, without a
        scaler.
    See: https://pytorch.org/docs/stable/amp.html#gradient-scaling
    """
    if script.uses_in_any_case(*_SCALES) or "apex" in script.modules:
        return
    for call in script.methods("backward"):
        for part in call.receiver.calls():
            for context in part.place.withs:
                if _autocast_type(context) == "float16":
                    yield Spot(
                        context,
                        "float16 autocast has no loss scaler: small gradients become zero",
                        remedy="Scale the loss with torch.amp.GradScaler, or use bfloat16 if the GPU supports it",
                        write=('scaler = torch.amp.GradScaler("cuda")',),
                    )
            half = _cast_to_half(part) if training.is_forward(script, part) else None
            if half is not None:
                yield Spot(
                    half,
                    "The float16 model has no loss scaler: small gradients and updates become zero",
                    remedy="Keep the weights in float32 and use autocast with GradScaler, or use bfloat16",
                )


@lint_rule("DDL140", "loss-scaling-with-bfloat16", Consequence.KNOWN, concerns=_without_a_library)
def loss_scaling_with_bfloat16(script: Script) -> Iterator[Spot]:
    """A GradScaler scales the loss of a bfloat16 autocast.

    Finds: An enabled GradScaler in a script whose autocasts all use bfloat16.
    Why: bfloat16 has the range of float32, so scaling has no benefit. In each step, the scaler reads back whether
        gradients were finite, and it skips steps while it searches for its scale.
    Remedy: Remove the scaler, or create it with `enabled=False`.
    See: https://pytorch.org/docs/stable/amp.html#gradient-scaling
    """
    types = {_autocast_type(cast) for cast in script.named(*_AUTOCASTS)}
    if types != {"bfloat16"}:
        return
    for call in script.named(*training.SCALERS):
        if call.is_enabled and not call.has_stars:
            yield Spot(
                call,
                "The loss scaler is unnecessary: bfloat16 has the range of float32",
                remedy="Remove the scaler, or create it with enabled=False",
            )


@lint_rule("DDL141", "loss-scale-never-updated", Consequence.WRONG, concerns=_without_a_library)
def loss_scale_never_updated(script: Script) -> Iterator[Spot]:
    """A GradScaler steps but is never updated.

    Finds: `scaler.step(optimizer)` of a GradScaler that the script never updates with `update()` and does not pass to
        another function.
    Why: `update()` ends the step. Without it, the scaler remembers that this optimizer has been unscaled, and the
        second step raises "step() has already been called since the last update()".
    Remedy: Call `scaler.update()` once in every step, after `scaler.step` of all optimizers.
    See: https://pytorch.org/docs/stable/amp.html#torch.cuda.amp.GradScaler.update
    """
    for scaler in _scalers(script):
        steps = [call for call in script.methods("step") if call.args and scaler in call.receiver.objects()]
        is_updated = any(scaler in call.receiver.objects() for call in script.methods("update"))
        if steps and not is_updated and not _is_passed_to_unknown(script, scaler):
            yield Spot(
                steps[0],
                "This scaler steps without update(): the second step fails",
                remedy="Call scaler.update() after scaler.step()",
                write=("scaler.update()",),
            )


@lint_rule("DDL142", "scaled-gradients-clipped", Consequence.WRONG, concerns=_without_a_library)
def scaled_gradients_clipped(script: Script) -> Iterator[Spot]:
    """Gradients are clipped while they are still multiplied by the loss scale.

    Finds: `clip_grad_norm_` between `scaler.scale(loss).backward()` and `scaler.step(optimizer)`, without `unscale_`
        before it.
    Why: The gradients are up to 65536 times too large at that point, and all of them exceed the threshold. After the
        scaler divides them, almost nothing is left, and the model hardly learns.
    Remedy: Call `scaler.unscale_(optimizer)` before clipping. `scaler.step` does not unscale again.
    See: https://pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping
    """
    for clip in script.named(*_CLIPS):
        beside = [call for call in script.methods("step", "backward") if call.place.function is clip.place.function]
        steps = [call for call in beside if call.method == "step" and call.args and clip.precedes(call)]
        behind = next((step for step in steps if training.is_scaler_of(step.receiver)), None)
        passes = [call for call in beside if call.method == "backward" and call.precedes(clip)]
        losses = [(backward, backward.receiver) for backward in reversed(passes)]
        scaled = [(backward, loss) for backward, loss in losses if isinstance(loss, Call) and loss.method == "scale"]
        before = next((backward for backward, loss in scaled if training.is_scaler_of(loss.receiver)), None)
        if not behind or not before:
            continue
        if training.exclude_each_other(clip, behind) or training.exclude_each_other(clip, before):
            continue
        if not any(before.precedes(call) and call.precedes(clip) for call in script.methods("unscale_")):
            yield Spot(
                clip,
                "Gradients are clipped while still multiplied by the loss scale",
                remedy="Unscale them first",
                write=("scaler.unscale_(optimizer)",),
            )


@lint_rule("DDL143", "loss-scaler-made-in-every-step", Consequence.RISK, concerns=_without_a_library)
def loss_scaler_made_in_every_step(script: Script) -> Iterator[Spot]:
    """Every step creates a new GradScaler.

    Finds: A GradScaler that is created in the loop or function in which it steps, once per batch. Severity is info if
        it is created once per epoch.
    Why: The scaler finds its scale over many steps: it halves it after each overflow and doubles it after 2000 steps
        without one. A new scaler starts at 65536 each time, so a model whose gradients overflow at that scale never
        takes a step.
    Remedy: Create one scaler before the loop, and save its state with the checkpoint.
    See: https://pytorch.org/docs/stable/notes/amp_examples.html#typical-mixed-precision-training
    """
    for scaler in _scalers(script):
        for step in script.methods("step"):
            if not scaler.loops or scaler.loops[-1] not in step.loops or scaler not in step.receiver.objects():
                continue
            is_every_step = scaler.loops[-1] is step.loops[-1]
            if not is_every_step and "epoch" not in written(getattr(scaler.loops[-1].node, "target", step.node)):
                continue  # a separate run
            yield Spot(
                scaler,
                "The loss scaler is created in every step: its scale never adapts"
                if is_every_step
                else "The loss scaler is created in every epoch: it searches its scale again and skips steps",
                remedy="Create the scaler once, before the loop",
                severity=None if is_every_step else Severity.INFO,
            )


@lint_rule("DDL150", "shared-loss-scaler-updated-twice", Consequence.RISK, concerns=_without_a_library)
def shared_loss_scaler_updated_twice(script: Script) -> Iterator[Spot]:
    """A GradScaler that several optimizers share is updated more than once in a step.

    Finds: Two `update()` calls of one GradScaler in the same iteration of a loop, both without a separate condition, if
        the scaler steps two optimizers.
    Why: Each update counts as a step, so the scale grows twice as fast. If one optimizer overflows, the scale is halved
        between the backward pass and the step of the other, whose gradients are then divided by the wrong number.
    Remedy: Call `scaler.update()` once, after the last optimizer's `scaler.step`, or give each optimizer its own
        scaler.
    See: https://pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers
    """
    for scaler in _scalers(script):
        updates = [call for call in script.methods("update") if call.loops and scaler in call.receiver.objects()]
        stepped = {
            next(iter(call.args[0].objects()), call)
            for call in script.methods("step")
            if call.args and scaler in call.receiver.objects()
        }
        for first, second in pairwise(updates):
            is_same_turn = first.loops == second.loops and first.conditions == second.conditions
            if len(stepped) > 1 and is_same_turn and first.node is not second.node:
                yield Spot(
                    second,
                    f"This scaler is updated twice in one step, also in line {first.node.lineno}",
                    remedy="Update it once, after the last optimizer's step, or use one scaler per optimizer",
                )
                break


def _autocast_type(value: Value) -> Precision:
    if not isinstance(value, Call) or value.name not in _AUTOCASTS:
        return "unknown"
    dtype = value.argument(1, "dtype")
    if value.has_stars or not value.is_enabled:
        return "unknown"
    if not dtype:
        is_cuda = value.name == _AUTOCASTS[1] or value.argument(0, "device_type").constant == "cuda"
        return "float16" if is_cuda else "unknown"
    names = {option.name for option in dtype.alternatives()}
    if names <= {"torch.float16", "torch.half"}:
        return "float16"
    return "bfloat16" if names == {"torch.bfloat16"} else "unknown"


def _cast_to_half(forward: Call) -> Call | None:
    for call in forward.callee.calls():
        is_cast = call.method == "to" and call.argument(0, "dtype").name in ("torch.float16", "torch.half")
        if not call.conditions and (is_cast or call.method == "half"):
            return call
    return None


def _scalers(script: Script) -> Iterator[Call]:
    """Return the scalers that a script makes; only the first ones in a generated script."""
    return islice(script.named(*training.SCALERS), _MOST_SCALERS)


def _is_passed_to_unknown(script: Script, scaler: Call) -> bool:
    for call in script.calls:
        if call.local is None and any(scaler in given.objects() for given in call.arguments):
            return True
    return any(
        assignment.value is scaler and assignment.owner.attribute != "self" and assignment.owner.kind == "name"
        for assignment in script.assignments
    )
