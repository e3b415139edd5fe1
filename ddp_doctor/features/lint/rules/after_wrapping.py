"""Rules on what a script does with a model after DistributedDataParallel wrapped it.

for p in model.module.backbone.parameters(): p.requires_grad = True     frozen while DDP looked: never averaged
model.module.head = nn.Linear(512, 10)                                  nor is a layer that was put in later
real, fake = model(x), model(z)                                         the second overwrites buffers of the first
model.predict(x)                                                        the wrapper has no such method
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from ddp_doctor.features.lint import modules, names, training
from ddp_doctor.features.lint.ranks import in_a_job
from ddp_doctor.features.lint.rule import Spot, always, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Loop, Value
from ddp_doctor.features.lint.wrapped import buffers
from ddp_doctor.model.choices import Consequence, Severity

#: Methods that iterate over the parameters or layers of a module.
_GOES_OVER = frozenset(("parameters", "named_parameters", "modules", "children", "named_modules", "named_children"))
_LOOPS = ("enumerate", "list", "tuple", "filter", "zip")
_DEEPEST = 12


class _Switch(NamedTuple):
    """A place where parameters are frozen or unfrozen, or a layer is replaced."""

    at: Value | ast.AST
    target: Value  # the module
    on: bool  # whether gradients are needed afterwards
    order: int
    root: int
    loops: tuple[Loop, ...]


@lint_rule("DDL175", "changed-after-wrapping", Consequence.WRONG)
def changed_after_wrapping(script: Script) -> Iterator[Spot]:
    """Parameters are unfrozen, or layers replaced, after DDP wrapped the model.

    Finds: `requires_grad = True` or `requires_grad_(True)` after DistributedDataParallel wrapped the model, for
        parameters that the script froze before, by any path to them (`model.module`, the model's earlier name, a method
        of its class). Also a new layer that is assigned into the wrapped model. Not reported if the model is wrapped
        again afterwards.
    Why: DDP registers the parameters that need gradients once, in its constructor. It never averages other parameters:
        each rank trains them on its own data, and the ranks drift apart without an error.
    Remedy: Unfreeze and replace layers before wrapping, or wrap the model again and create a new optimizer.
    See: https://pytorch.org/docs/stable/notes/ddp.html#internal-design
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    for wrap in script.wraps:
        inner = list(wrap.argument(0, "module").objects())
        again = (other.argument(0, "module") for other in script.wraps if wrap.precedes(other))
        if any({*inner, wrap} & {*model.objects(), *model.wrapper.objects()} for model in again):
            continue
        switches = [each for each in _switches(script) if each.root == wrap.root]
        frozen = [each for each in switches if not each.on and each.order < wrap.order and _is_of(script, each, wrap)]
        for switch in switches:
            if not switch.on or switch.order < wrap.order or not _trains_after(script, switch.order, switch.loops):
                continue
            if any(_overlap(script, switch, each, wrap) for each in frozen):
                yield Spot(
                    switch.at,
                    f"Unfreezes parameters after line {wrap.node.lineno} wrapped them in DDP: they are never averaged",
                    detail="Each rank trains them on its own data, so they differ between ranks.",
                    remedy="Unfreeze them before wrapping, or wrap the model again",
                )
        yield from _replaced(script, wrap, inner)


def _trains_after(script: Script, order: int, loops: tuple[Loop, ...]) -> bool:
    """Return False if all backward passes of the script certainly run before."""
    passes = list(script.methods("backward"))
    return not passes or any(each.order > order or {*each.loops} & {*loops} for each in passes)


def _replaced(script: Script, wrap: Call, inner: list[Value]) -> Iterator[Spot]:
    for assignment in script.assignments:
        if assignment.root != wrap.root or assignment.order < wrap.order or not assignment.owner:
            continue
        is_inside = assignment.owner is not wrap and any(part in (wrap, *inner) for part in _way(assignment.owner))
        is_inside = is_inside and _trains_after(script, assignment.order, assignment.place.loops)
        if is_inside and any(map(_is_trained_layer, assignment.value.makers())):
            yield Spot(
                assignment.node,
                f"This layer is put in after line {wrap.node.lineno} wrapped the model in DDP: it is never averaged",
                detail="If it replaces a layer, the next step fails. If it is added, its weights differ between ranks.",
                remedy="Replace layers before wrapping the model",
            )


def _is_trained_layer(made: Call) -> bool:
    layers = made.calls() if made.name == "torch.nn.Sequential" else (made,)
    return any(modules.LAYERS.match(layer.name) for layer in layers)


@lru_cache(maxsize=1)  # for each wrapped model
def _switches(script: Script) -> list[_Switch]:
    found = []
    for call in script.methods("requires_grad_"):
        flag = call.argument(0, "requires_grad")
        if not flag or isinstance(flag.constant, bool):
            module, on = _module_of(call.receiver), flag.constant is not False
            found.append(_Switch(call, module, on, call.order, call.root, call.loops))
    found += [
        _Switch(each.node, _module_of(each.owner), each.value.constant, each.order, each.root, each.place.loops)
        for each in script.assignments
        if each.name == "requires_grad" and isinstance(each.value.constant, bool)
    ]
    return found


def _module_of(value: Value) -> Value:
    """Return the module whose parameters a loop iterates over: ``net.head`` of ``for p in net.head.parameters()``."""
    for _ in range(_DEEPEST):
        if value.kind in ("loop", "element"):
            value = value.owner
        elif isinstance(value, Call) and value.method in _GOES_OVER:
            value = value.receiver
        elif isinstance(value, Call) and value.name in _LOOPS and value.args:
            value = value.args[-1]
        elif isinstance(value, Call) and value.returned:
            value = value.returned
        else:
            break
    return value


def _way(value: Value) -> Iterator[Value]:
    """Yield a part of a module, and the modules around it, the innermost first."""
    for _ in range(_DEEPEST):
        yield from value.objects()
        first = next(iter(value.objects()), value)
        if not first.owner:
            return
        value = first.owner


def _is_of(script: Script, switch: _Switch, wrap: Call) -> bool:
    whole = {wrap, *wrap.argument(0, "module").objects()}
    held = (each.owner for each in script.assignments if each.value in switch.target.objects())
    return any(part in whole for target in (switch.target, *held) for part in _way(target))


def _overlap(script: Script, first: _Switch, second: _Switch, wrap: Call) -> bool:
    """Return True if two switches affect the same parameters: one is of the entire model, or both are of one name."""
    whole = {wrap, *wrap.argument(0, "module").objects()}
    targets = [{*each.target.objects(), *each.target.wrapper.objects()} for each in (first, second)]
    parts = [
        {part.attribute for part in target} | {each.name for each in script.assignments if each.value in target}
        for target in targets
    ]
    return _is_of(script, first, wrap) and (
        any(target & whole for target in targets) or bool(parts[0] & parts[1] - {""})
    )


@lint_rule("DDL176", "second-forward-before-backward", Consequence.RISK)
def second_forward_before_backward(script: Script) -> Iterator[Spot]:
    """A wrapped model with BatchNorm runs twice before the backward pass of the first forward.

    Finds: Two forwards of one DDP model with BatchNorm layers in the same step, before the backward pass of the first,
        for example for the discriminator of a GAN or for two views of one batch. Not reported with
        `broadcast_buffers=False` or SyncBatchNorm.
    Why: DDP broadcasts the buffers at the start of each forward. The second forward overwrites statistics that the
        first saved for its backward pass. On GPUs, this raises "one of the variables needed for gradient computation
        has been modified by an inplace operation".
    Remedy: Concatenate both batches and run the model once, convert the model to SyncBatchNorm, or set
        `broadcast_buffers=False`.
    See: https://github.com/pytorch/pytorch/issues/22095
        https://github.com/pytorch/pytorch/issues/175024
    """
    if not training.uses_gpu(script) or script.uses_in_any_case("syncbatchnorm", "convert_sync"):
        return
    reported = set[ast.AST]()
    for backward in training.backwards(script):
        for first in training.forwards_in(script, backward.receiver):
            wraps = list(first.callee.makers())
            if first.loops != backward.loops or not all(_broadcasts_statistics(script, wrap) for wrap in wraps):
                continue
            for second in script.calls:
                is_between = first.precedes(second) and second.precedes(backward) and second.loops == first.loops
                if not is_between or second.node in reported or training.exclude_each_other(first, second):
                    continue
                if training.is_forward(script, second) and list(second.callee.makers()) == wraps:
                    reported.add(second.node)
                    yield Spot(
                        second,
                        f"A second forward before the backward of line {first.node.lineno}'s: DDP overwrites the"
                        " BatchNorm buffers that it needs",
                        remedy="Run the model once on both batches, or set broadcast_buffers=False",
                    )


def _broadcasts_statistics(script: Script, wrap: Call) -> bool:
    options = (wrap.argument(4, "broadcast_buffers"), wrap.argument(None, "forward_sync_buffers"))
    if wrap.has_stars or any(options):
        return False
    inner = wrap.argument(0, "module")
    is_local = [made.local for made in inner.makers() if isinstance(made.local, ast.ClassDef)]
    layers = [*inner.calls(), *(call for call in script.calls if call.place.cls in is_local)]
    return buffers(script, inner) == "buffers" and any(map(training.keeps_batch_statistics, layers))


#: Conditions on the kind of model.
_ASKS = re.compile(r"hasattr|isinstance|module|type\(")


@lint_rule("DDL181", "attribute-of-the-wrapper", Consequence.FAILS)
def attribute_of_the_wrapper(script: Script) -> Iterator[Spot]:
    """A method or attribute of the model is accessed on its DDP wrapper.

    Finds: A method or attribute of a model that DistributedDataParallel certainly wraps, if neither
        DistributedDataParallel nor torch.nn.Module has it and the script never sets it on the wrapper. Not reported
        after `hasattr` or `isinstance`, or inside `try`.
    Why: The wrapper does not forward attributes: "'DistributedDataParallel' object has no attribute 'predict'".
    Remedy: Use the model inside: `model.module.predict(...)`. Move a loss that is trained to `forward`.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    if not script.wraps:
        return
    reported, set_names = set[str](), {each.name for each in script.assignments if script.is_ddp(each.owner)}
    for call in script.calls:
        place = call.place
        for value in (call.callee, call.receiver, *call.arguments):
            if value.kind != "attribute" or value.attribute in names.OF_DDP or value.attribute.startswith("_"):
                continue
            if value.attribute in set_names or place.guards or not training.surely_ddp(value.owner):
                continue
            if not all(map(call.comes_after, value.owner.makers())):
                continue
            if any(
                in_a_job(each.test) is (not each.holds) or _ASKS.search(each.test.text) for each in place.conditions
            ):
                continue
            if value.attribute not in reported:
                reported.add(value.attribute)
                wrapper = value.text.removesuffix(f".{value.attribute}") if "." in value.text else "model"
                yield Spot(
                    value if value.node is not call.callee.node else call,
                    f"DistributedDataParallel has no attribute {value.attribute}: it raises AttributeError",
                    remedy=f"Use {wrapper}.module.{value.attribute}",
                )


_CHECKPOINTS = tuple(f"torch.utils.checkpoint.{name}" for name in ("checkpoint", "checkpoint_sequential"))


@lint_rule("DDL185", "reentrant-checkpoint-with-search", Consequence.FAILS, concerns=always)
def reentrant_checkpoint_with_search(script: Script) -> Iterator[Spot]:
    """Reentrant activation checkpointing is combined with find_unused_parameters=True.

    Finds: `torch.utils.checkpoint.checkpoint(..., use_reentrant=True)`, or the call without the argument (warning), in
        a script whose DDP has `find_unused_parameters=True` and no `static_graph=True`. Also the same combination in
        Transformers' arguments (`gradient_checkpointing=True` with `ddp_find_unused_parameters=True`, warning).
    Why: Both the search and the inner backward pass of the checkpoint mark a parameter as ready. All ranks fail in the
        first backward pass: "Expected to mark a variable ready only once".
    Remedy: Set `use_reentrant=False`, or omit `find_unused_parameters`.
    See: https://pytorch.org/docs/stable/checkpoint.html
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    searching = [wrap for wrap in script.wraps if wrap.argument(None, "find_unused_parameters").constant is True]
    if searching and not any(wrap.argument(None, "static_graph") for wrap in script.wraps):
        for call in script.named(*_CHECKPOINTS):
            flag = call.argument(None, "use_reentrant")
            if not call.has_stars and (not flag or flag.constant is True):
                yield _reentrant(call, f"the search in line {searching[0].node.lineno}", is_sure=bool(flag))
    for call in script.named("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments"):
        options = (call.argument(None, name) for name in ("gradient_checkpointing", "ddp_find_unused_parameters"))
        if all(option.constant is True for option in options) and call.lacks(None, "gradient_checkpointing_kwargs"):
            yield _reentrant(call, "ddp_find_unused_parameters=True", is_sure=False)


def _reentrant(call: Call, search: str, *, is_sure: bool) -> Spot:
    return Spot(
        call,
        f"Reentrant checkpointing fails with {search}: a parameter is marked ready twice",
        remedy="Set use_reentrant=False, or remove find_unused_parameters",
        severity=None if is_sure else Severity.WARNING,
    )
