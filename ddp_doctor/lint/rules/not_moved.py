"""A rule on what stays in host memory beside a model on the GPU.

model = Net().to(device); model.head = nn.Linear(512, 10)     the new layer is where layers are made: on the CPU
self.blocks = [nn.Linear(8, 8), nn.Linear(8, 8)]              no ModuleList: .to() and DDP do not know these
nn.CrossEntropyLoss(weight=torch.tensor(counts))              the weights are part of the loss, and nothing moves it
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from ddp_doctor.lint import modules, training
from ddp_doctor.lint.devices import moved, moves_before, moves_to_device
from ddp_doctor.lint.rule import Spot, lint_rule
from ddp_doctor.lint.rules.placement import has_default_device, is_loss, wraps_on_gpu
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Value
from ddp_doctor.model.choices import Severity

_MAKERS = frozenset(
    f"torch.{name}"
    for name in (
        *("tensor", "as_tensor", "from_numpy", "ones", "zeros", "full", "rand", "randn", "arange", "linspace"),
        *("eye", "Tensor", "FloatTensor"),
    )
)
#: Where ``weight`` is among the arguments. Source: torch/nn/modules/loss.py and torch/nn/functional.py of torch 2.13.
_WEIGHT_AT = {
    **{f"torch.nn.{name}": 0 for name in ("CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss")},
    **{
        f"torch.nn.functional.{name}": 2
        for name in ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
    },
}
#: Methods whose result is a number, or a tensor of one, which goes with tensors of any device.
_NO_TENSOR = frozenset(("item", "tolist", "numpy", "size", "dim", "numel", "sum", "mean", "max", "min", "prod"))
#: Functions that are given a model and move nothing.
_KEEPS_IN_PLACE = ("torch.", "print", "len", "id", "type", "isinstance", "hasattr", "copy.", "sum", "super")
_MODULES = re.compile(r"^(torch\.nn\.[A-Z]\w+|torchvision\.models\.\w+(\.\w+)?)$")


@lint_rule("DDL167", "part-left-on-the-cpu", Severity.ERROR)
def part_left_on_the_cpu(script: Script) -> Iterator[Spot]:
    """A part of the model, or the weights of its loss, stay in host memory while the model is on the GPU.

    Finds: A part of a wrapped model that nothing moves, where another part is moved and the whole never is
        (`model.encoder = model.encoder.to(device)`). Beside a model that is wrapped with `device_ids` or after it was
        moved to a GPU: a layer that was put into the model after it was moved; layers in a plain list and tensors that
        are plain attributes, which `.to()` does not move; and a tensor from host memory as `weight` or `pos_weight` of
        a loss.
    Why: DDP refuses a model with parameters on two devices, and an operation on tensors of two devices raises "Expected
        all tensors to be on the same device". What stands in a plain list is not trained either: neither `parameters()`
        nor DDP knows it.
    Remedy: Put the model together first, then move it, then wrap it. Make lists of layers a `ModuleList`, tensors
        buffers (`register_buffer`), and move the loss like the model: `criterion.to(device)`.
    See: https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer
        https://pytorch.org/docs/stable/generated/torch.nn.ModuleList.html
    """
    if has_default_device(script):
        return
    for wrap in script.wraps:
        yield from _moved_one_by_one(script, wrap)
    if not wraps_on_gpu(script):
        return
    yield from _weights(script)
    for wrap in script.wraps:
        yield from _put_in_late(script, wrap)
        for module in modules.wrapped_modules(script, wrap):
            yield from _plain_attributes(script, module)


def _weights(script: Script) -> Iterator[Spot]:
    for call in script.calls:
        output = call.argument(0, "input") if is_loss(call) else None
        if output is None or not training.forwards_in(script, output):
            continue
        if any(made.method == "cpu" for made in training.calls_in(output)):
            continue
        losses = [call] if call.name in _WEIGHT_AT else list(call.callee.objects()) if call.callee else []
        for loss in losses:
            if isinstance(loss, Call) and _has_weight_on_cpu(loss) and not _may_be_moved(script, loss):
                yield _spot(loss, "The weights of this loss are in host memory, but the output is on the GPU")


def _has_weight_on_cpu(loss: Call) -> bool:
    given = (loss.argument(_WEIGHT_AT.get(loss.name), "weight"), loss.argument(None, "pos_weight"))
    return any(weight is not None and _is_on_cpu(weight) for weight in given)


def _may_be_moved(script: Script, loss: Call) -> bool:
    if any(True for _ in moved(script, loss)) or (loss.place.cls is not None and loss.place.cls.bases):
        return True
    return any(assignment.owner is not None and loss in assignment.owner.objects() for assignment in script.assignments)


def _put_in_late(script: Script, wrap: Call) -> Iterator[Spot]:
    """``model.head = nn.Linear(512, 10)`` between ``.to(device)`` and DDP."""
    model, moves = wrap.argument(0, "module"), moves_before(script, wrap)
    if model is None or not moves:
        return
    made = {id(option) for option in model.objects()}
    for assignment in script.assignments:
        if assignment.owner is None or assignment.root != wrap.root or assignment.order > wrap.order:
            continue
        is_late = all(move.root == wrap.root and move.order < assignment.order for move in moves)
        if not is_late or not _is_new_module(assignment.value) or any(True for _ in moved(script, assignment.value)):
            continue
        owners = (option for source in assignment.owner.sources() for option in source.objects())
        if any(id(option) in made for option in owners):
            yield _spot(
                assignment.value,
                f"This layer is put into the model after line {moves[0].call.lineno} moved it to the GPU",
            )


def _moved_one_by_one(script: Script, wrap: Call) -> Iterator[Spot]:
    """``nn.Sequential(encoder.to(device), head)``, ``model.encoder = model.encoder.to(device)``."""
    model = wrap.argument(0, "module")
    if model is None or moves_before(script, wrap):
        return
    for whole in model.objects():
        if not isinstance(whole, Call) or not _is_new_module(whole) or _may_be_moved_elsewhere(script, whole):
            continue
        parts = _trained_parts(script, whole)
        if any(
            _is_among(
                part, _receivers(script, (move for move in script.methods("to", "cuda") if moves_to_device(move)))
            )
            for part in parts
        ):
            for part in (each for each in parts if not _is_among(each, _receivers(script))):
                yield _spot(part, "This part of the model stays in host memory, but others are moved to the GPU")
        if not parts:
            yield from _moved_alone(script, whole)


def _trained_parts(script: Script, whole: Call) -> list[Value]:
    if whole.local is None and whole.name != "torch.nn.Sequential":
        return []
    by_name = {assignment.name: assignment.value for assignment in script.assignments if assignment.owner is whole}
    given = (option for part in (*whole.arguments, *by_name.values()) for option in part.objects())
    new = {id(option): option for option in given if _is_new_module(option) and _has_parameters(script, option)}
    return list(new.values())


def _moved_alone(script: Script, whole: Call) -> Iterator[Spot]:
    """``model.fc = model.fc.to(device)`` of a model whose other layers were just made too."""
    inner = [move for move in script.methods("to", "cuda") if _owner_of(move.receiver) is whole]
    names_of_parts = {move.receiver.attribute for move in inner if move.receiver is not None}
    if len(names_of_parts) == 1 and moves_to_device(inner[0]):
        yield _spot(inner[0], "Only this part of the model is moved to the GPU: the rest stays in host memory")


def _owner_of(value: Value | None) -> Value | None:
    return value.owner if value is not None and value.kind == "attribute" else None


def _has_parameters(script: Script, value: Value) -> bool:
    made = {id(value), *(id(source) for source in value.sources())}
    layers = [*value.sources(), *(each.value for each in script.assignments if id(each.owner) in made)]
    return any(isinstance(layer, Call) and modules.LAYERS.match(layer.name) for layer in layers)


def _is_among(part: Value, moved_things: Iterable[Value]) -> bool:
    return any(part in (source, source.owner) for source in moved_things)


def _sequential_part(value: Value) -> Value | None:
    """The part of a Sequential at a position: ``layers[0]``."""
    owner, number = value.owner, value.attribute
    is_element = value.kind == "element" and number.isdecimal()
    if not isinstance(owner, Call) or not is_element or owner.name != "torch.nn.Sequential":
        return None
    return owner.args[int(number)] if int(number) < len(owner.args) else None


def _receivers(script: Script, moves: Iterable[Call] | None = None) -> Iterator[Value]:
    """What is moved, and what that is made of; of a Sequential the one part that is meant."""
    for move in script.methods("to", "cuda", "to_empty") if moves is None else moves:
        receiver = move.receiver and (_sequential_part(move.receiver) or move.receiver)
        yield from receiver.sources() if receiver is not None else ()


def _may_be_moved_elsewhere(script: Script, whole: Call) -> bool:
    loops = (source for source in _receivers(script) if source.kind in ("loop", "element"))
    if any(whole in source.sources() for source in loops):
        return True
    return any(
        call.local is None
        and not call.method
        and not call.name.startswith(_KEEPS_IN_PLACE)
        and any(whole in given.objects() for given in call.arguments)
        for call in script.calls
    )


def _plain_attributes(script: Script, module: modules.Module) -> Iterator[Spot]:
    for assignment in script.assignments:
        if assignment.place.cls is not module.definition or not modules.is_own_attribute(assignment.target):
            continue
        value, name = assignment.value, assignment.name
        uses = list(modules.uses(module.definition, name))
        if isinstance(value.node, ast.List | ast.Tuple | ast.ListComp | ast.Dict | ast.DictComp):
            is_built_from = any(use.is_in_init for use in uses)
            layers = [
                *value.sources(),
                *(
                    given
                    for call in (call for call in script.methods("append") if call.receiver is value)
                    for given in call.args
                ),
            ]
            if uses and not is_built_from and any(map(_is_layer, layers)):
                yield _spot(value, "These layers stand in a plain list: neither .to() nor DDP knows them")
        elif _is_on_cpu(value) and not _is_number(value) and _is_used_unmoved(uses):
            yield _spot(value, f"self.{name} is a plain tensor: .to() does not move it with the model")


def _is_used_unmoved(uses: Sequence[modules.Use]) -> bool:
    return any(use.is_operand for use in uses) and not any(use.is_rebound or use.is_moved for use in uses)


def _spot(at: Value, title: str) -> Spot:
    return Spot(at, title, remedy="Make it part of the model, or move it to the model's device")


def _is_layer(value: Value) -> bool:
    return isinstance(value, Call) and (bool(modules.LAYERS.match(value.name)) or isinstance(value.local, ast.ClassDef))


def _is_new_module(value: Value) -> bool:
    if not isinstance(value, Call) or not value.lacks(None, "device"):
        return False
    is_module = bool(_MODULES.match(value.name)) or isinstance(value.local, ast.ClassDef)
    return is_module and not any("device" in context.text for context in value.place.withs)


def _is_on_cpu(value: Value, depth: int = 8) -> bool:
    options = list(value.alternatives())
    return bool(options) and bool(depth) and all(_made_on_cpu(option, depth - 1) for option in options)


def _made_on_cpu(value: Value, depth: int) -> bool:
    if isinstance(value, Call):
        if value.name in _MAKERS:
            return value.lacks(None, "device") and not any("device" in each.text for each in value.place.withs)
        return (
            value.receiver is not None
            and not moves_to_device(value)
            and value.method not in _NO_TENSOR
            and _is_on_cpu(value.receiver, depth)
        )
    sides = training.operation(value)
    return sides is not None and any(_is_on_cpu(side, depth) for side in sides[1:])


def _is_number(value: Value) -> bool:
    """``torch.tensor(0.5)``, which goes with tensors of any device."""
    given = value.args[0] if isinstance(value, Call) and value.args else None
    return given is not None and given.kind != "tuple" and value.name in ("torch.tensor", "torch.as_tensor")
