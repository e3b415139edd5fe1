"""Rules on data that stays in host memory while the model is on the GPU, and on copies of a batch to the GPU.

loader = DataLoader(dataset, num_workers=4, pin_memory=True, sampler=sampler)
for images, target in loader:
    images = images.to(device, non_blocking=True)
    target = target.to(device, non_blocking=True)
model = Net().to(device); model.head = nn.Linear(512, 10)     the new layer is where layers are made: on the CPU
self.blocks = [nn.Linear(8, 8), nn.Linear(8, 8)]              no ModuleList: .to() and DDP do not know these
nn.CrossEntropyLoss(weight=torch.tensor(counts))              the weights are part of the loss, and nothing moves it
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from ddp_doctor.features.lint import modules, names, training
from ddp_doctor.features.lint.devices import goes_to_gpu, moved, moves_before, moves_to_device
from ddp_doctor.features.lint.rule import Spot, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import NOTHING, Call, Value, is_result
from ddp_doctor.model.choices import Consequence

_LOSSES = re.compile(
    r"^torch\.nn\.(functional\.(cross_entropy|nll_loss|mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div|"
    r"binary_cross_entropy|binary_cross_entropy_with_logits)|\w+Loss)$"
)
#: Calls that may make tensors on the GPU, or move them to it, implicitly.
_DEFAULT_DEVICE = ("set_default_device", "set_default_tensor_type", "prefetch")


@lint_rule("DDL136", "batch-not-on-the-gpu", Consequence.FAILS)
def batch_not_on_the_gpu(script: Script) -> Iterator[Spot]:
    """A batch, or its target, is still in host memory when the model on the GPU needs it.

    Finds: A loss of torch.nn whose target comes directly from a DataLoader, if its output comes from a model that DDP
        wrapped with `device_ids` or after it was moved to a GPU. A `target.to(device)` whose result is not used does
        not count, because tensors do not move in place. Inputs of the model are reported only if DDP has no
        `device_ids`: with them, DDP moves the inputs itself.
    Why: The first step raises "Expected all tensors to be on the same device".
    Remedy: Move the target and keep the result: `target = target.to(device, non_blocking=True)`.
    See: https://pytorch.org/docs/stable/generated/torch.Tensor.to.html
    """
    if not _wraps_on_gpu(script) or script.uses_in_any_case(*_DEFAULT_DEVICE):
        return
    yield from _inputs_left_behind(script)
    for call in script.calls:
        output, target = call.argument(0, "input"), call.argument(1, "target")
        if target and _is_loss(call) and training.forwards_in(script, output) and _is_untouched_batch(target):
            yield Spot(
                call,
                f"The target of this loss, {target.text}, is in host memory, but the output is on the GPU",
                remedy="Move the target, and keep the result of .to()",
                write=("target = target.to(device, non_blocking=True)",),
            )


@lint_rule("DDL137", "gpu-waits-for-the-loader", Consequence.KNOWN)
def gpu_waits_for_the_loader(script: Script) -> Iterator[Spot]:
    """A training loader prepares its batches in the training process, or in unpinned memory.

    Finds: A DataLoader for training without `num_workers`, or with workers and without `pin_memory=True`, in a DDP
        script on GPUs.
    Why: Without workers, the GPU idles while Python reads and decodes the next batch. Without pinned memory, copies to
        the GPU cannot overlap with computation. In DDP, all ranks wait for the slowest loader in every step.
    Remedy: Set `num_workers` to a few per rank (in total not more than the node's cores) and `pin_memory=True`, and
        copy with `non_blocking=True`. Data sets that are already in memory need no workers.
    See: https://pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading
        https://pytorch.org/docs/stable/data.html#memory-pinning
    """
    if not script.wraps or not training.uses_gpu(script):
        return
    for call in training.loaders(script):
        made = call.argument(0, "dataset").calls()
        if call.has_stars or any(dataset.name.endswith(("TensorDataset", "FakeData")) for dataset in made):
            continue
        workers = call.argument(training.WORKERS, "num_workers")
        pinned = call.argument(training.PIN_MEMORY, "pin_memory")
        title, option = "", ""
        if not workers or workers.constant == 0:
            title = "This loader has no workers: the GPU waits while the process reads each batch"
            option = "num_workers"
        elif not pinned or pinned.constant is False:
            title = "This loader does not pin its batches: copies to the GPU cannot overlap with steps"
            option = "pin_memory=True"
        if option:
            yield Spot(
                call, title, remedy=f"Set {option} in the loader", cost="host memory and CPU cores for the workers"
            )


def _inputs_left_behind(script: Script) -> Iterator[Spot]:
    for call in script.calls:
        if call.method or not training.surely_ddp(call.callee):
            continue
        if any(_has_device_ids(wrap) or not _model_moves_no_input(wrap) for wrap in call.callee.makers()):
            continue
        if any(map(_is_untouched_batch, call.arguments)):
            yield Spot(
                call,
                "This batch is in host memory, but the model is on the GPU",
                detail="DDP moves its inputs only if device_ids is set.",
                remedy="Move the batch, and keep the result of .to()",
                write=("images = images.to(device, non_blocking=True)",),
            )


def _has_device_ids(wrap: Call) -> bool:
    return wrap.has_stars or bool(wrap.given(1, "device_ids"))


def _model_moves_no_input(wrap: Call) -> bool:
    def moves_nothing(call: Call) -> bool:
        if isinstance(call.local, ast.ClassDef):
            return not _may_move_tensors(call.local)
        return call.name.startswith(("torch.nn.", "torchvision.models."))

    return is_result(wrap.argument(0, "module"), moves_nothing)


def _may_move_tensors(definition: ast.AST) -> bool:
    return any(
        (isinstance(node, ast.keyword) and node.arg == "device")
        or (isinstance(node, ast.Attribute) and node.attr in ("cuda", "to"))
        for node in ast.walk(definition)
    )


def _wraps_on_gpu(script: Script) -> bool:
    """Return True if every wrapped model is certainly on a GPU."""
    return bool(script.wraps) and all(
        (_has_device_ids(wrap) and not wrap.has_stars)
        or any(goes_to_gpu(move) and not move.conditions for move in moves_before(script, wrap))
        for wrap in script.wraps
    )


def _is_loss(call: Call) -> bool:
    """Return True if a value is the result of a loss of torch.nn: ``criterion(output, target)``,
    ``F.cross_entropy(...)``."""
    if _LOSSES.match(call.name):
        return not call.name.endswith("Loss")
    return not call.method and is_result(call.callee, lambda made: bool(_LOSSES.match(made.name)))


def _is_untouched_batch(value: Value) -> bool:
    def is_plain_loader(call: Call) -> bool:
        if call.name != names.LOADER or not call.lacks(training.COLLATE, "collate_fn"):
            return False
        made = call.argument(0, "dataset").calls()
        return not any(dataset.local is not None and _may_move_tensors(dataset.local) for dataset in made)

    options = list(value.alternatives())
    return bool(options) and all(
        option.kind in ("element", "loop") and is_result(training.looped_over(option), is_plain_loader)
        for option in options
    )


_MAKERS = frozenset(
    f"torch.{name}"
    for name in (
        *("tensor", "as_tensor", "from_numpy", "ones", "zeros", "full", "rand", "randn", "arange", "linspace"),
        *("eye", "Tensor", "FloatTensor"),
    )
)
#: Functions that make a tensor on the device of another tensor.
_LIKE = frozenset(f"torch.{name}_like" for name in ("zeros", "ones", "empty", "full", "rand", "randn"))
#: Position of the argument ``weight``. Source: torch/nn/modules/loss.py and torch/nn/functional.py of torch 2.13.
_WEIGHT_AT = {
    **{f"torch.nn.{name}": 0 for name in ("CrossEntropyLoss", "NLLLoss", "BCELoss", "BCEWithLogitsLoss")},
    **{
        f"torch.nn.functional.{name}": 2
        for name in ("cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")
    },
}
#: Methods that return a number or a one-element tensor, which combines with tensors of any device.
_NO_TENSOR = frozenset(("item", "tolist", "numpy", "size", "dim", "numel", "sum", "mean", "max", "min", "prod"))
#: Functions that receive a model and do not move anything.
_KEEPS_IN_PLACE = ("torch.", "print", "len", "id", "type", "isinstance", "hasattr", "copy.", "sum", "super")
_MODULES = re.compile(r"^(torch\.nn\.[A-Z]\w+|torchvision\.models\.\w+(\.\w+)?)$")


@lint_rule("DDL167", "part-left-on-the-cpu", Consequence.FAILS)
def part_left_on_the_cpu(script: Script) -> Iterator[Spot]:
    """A part of the model, or the weights of its loss, stays in host memory while the model is on the GPU.

    Finds: A part of a wrapped model that is never moved, if another part is moved and the entire model is not
        (`model.encoder = model.encoder.to(device)`). For a model that is wrapped with `device_ids` or after it was
        moved to a GPU, also a layer that was added after the move, layers in a plain list and tensors that are plain
        attributes, which `.to()` does not move, and a tensor in host memory as `weight` or `pos_weight` of a loss.
    Why: DDP refuses a model with parameters on two devices, and an operation on tensors of two devices raises "Expected
        all tensors to be on the same device". Layers in a plain list are not trained either: neither `parameters()` nor
        DDP finds them.
    Remedy: Assemble the model first, then move it, then wrap it. Turn lists of layers into a `ModuleList` and tensors
        into buffers (`register_buffer`), and move the loss like the model: `criterion.to(device)`.
    See: https://pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer
        https://pytorch.org/docs/stable/generated/torch.nn.ModuleList.html
    """
    if script.uses_in_any_case(*_DEFAULT_DEVICE):
        return
    for wrap in script.wraps:
        yield from _moved_one_by_one(script, wrap)
    if not _wraps_on_gpu(script):
        return
    yield from _weights(script)
    for wrap in script.wraps:
        yield from _put_in_late(script, wrap)
        for module in modules.wrapped_modules(script, wrap):
            yield from _plain_attributes(script, module)


def _weights(script: Script) -> Iterator[Spot]:
    for call in script.calls:
        output = call.argument(0, "input")
        if not _is_loss(call) or not training.forwards_in(script, output):
            continue
        if any(made.method == "cpu" for made in output.calls()):
            continue
        for loss in [call] if call.name in _WEIGHT_AT else call.callee.makers():
            weights = (loss.argument(_WEIGHT_AT.get(loss.name), "weight"), loss.argument(None, "pos_weight"))
            if any(map(is_on_cpu, weights)) and not _may_be_moved(script, loss):
                yield _spot(loss, "The weights of this loss are in host memory, but the output is on the GPU")


def _may_be_moved(script: Script, loss: Call) -> bool:
    if any(moved(script, loss)) or (loss.place.cls is not None and loss.place.cls.bases):
        return True
    return any(loss in assignment.owner.objects() for assignment in script.assignments)


def _put_in_late(script: Script, wrap: Call) -> Iterator[Spot]:
    """Yield layers added after the move: ``model.head = nn.Linear(512, 10)`` between ``.to(device)`` and DDP."""
    moves, made = moves_before(script, wrap), set(wrap.argument(0, "module").objects())
    for assignment in script.assignments if moves else ():
        if not assignment.owner or assignment.root != wrap.root or assignment.order > wrap.order:
            continue
        is_late = all(move.root == wrap.root and move.order < assignment.order for move in moves)
        if not is_late or not _is_new_module(assignment.value) or any(moved(script, assignment.value)):
            continue
        if not made.isdisjoint(option for source in assignment.owner.sources() for option in source.objects()):
            line = moves[0].node.lineno
            yield _spot(assignment.value, f"This layer is added after line {line} moved the model to the GPU")


def _moved_one_by_one(script: Script, wrap: Call) -> Iterator[Spot]:
    """Yield parts that are not moved although others are: ``nn.Sequential(encoder.to(device), head)``."""
    if moves_before(script, wrap):
        return
    for whole in wrap.argument(0, "module").makers():
        if not _is_new_module(whole) or _may_be_moved_elsewhere(script, whole):
            continue
        parts = _trained_parts(script, whole)
        moves = [move for move in script.methods("to", "cuda") if moves_to_device(move)]
        if any(_is_among(part, _receivers(moves)) for part in parts):
            moves = [*script.methods("to", "cuda", "to_empty")]
            for part in (each for each in parts if not _is_among(each, _receivers(moves))):
                yield _spot(part, "This part of the model stays in host memory, but other parts move to the GPU")
        if not parts:
            yield from _moved_alone(script, whole)


def _trained_parts(script: Script, whole: Call) -> list[Value]:
    if whole.local is None and whole.name != "torch.nn.Sequential":
        return []
    by_name = {assignment.name: assignment.value for assignment in script.assignments if assignment.owner is whole}
    given = (option for part in (*whole.arguments, *by_name.values()) for option in part.objects())
    return [option for option in dict.fromkeys(given) if _is_new_module(option) and _has_parameters(script, option)]


def _moved_alone(script: Script, whole: Call) -> Iterator[Spot]:
    """Yield a new model of which only one layer is moved: ``model.fc = model.fc.to(device)``."""
    moves = script.methods("to", "cuda")
    inner = [move for move in moves if move.receiver.kind == "attribute" and move.receiver.owner is whole]
    if len({move.receiver.attribute for move in inner}) == 1 and moves_to_device(inner[0]):
        yield _spot(inner[0], "Only this part of the model moves to the GPU: the rest stays in host memory")


def _has_parameters(script: Script, value: Value) -> bool:
    made = set(value.sources())
    layers = [*made, *(assignment.value for assignment in script.assignments if assignment.owner in made)]
    return any(isinstance(layer, Call) and modules.LAYERS.match(layer.name) for layer in layers)


def _is_among(part: Value, moved_things: Iterable[Value]) -> bool:
    return any(part in (source, source.owner) for source in moved_things)


def _receivers(moves: Iterable[Call]) -> Iterator[Value]:
    """Yield the moved values and their sources; for ``layers[0]`` of a Sequential only that layer."""
    for move in moves:
        receiver, owner, number = move.receiver, move.receiver.owner, move.receiver.attribute
        is_element = receiver.kind == "element" and number.isdecimal()
        if is_element and isinstance(owner, Call) and owner.name == "torch.nn.Sequential":
            receiver = owner.args[int(number)] if int(number) < len(owner.args) else receiver
        yield from receiver.sources()


def _may_be_moved_elsewhere(script: Script, whole: Call) -> bool:
    moves = script.methods("to", "cuda", "to_empty")
    loops = (source for source in _receivers(moves) if source.kind in ("loop", "element"))
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
            appended = [call.args for call in script.methods("append") if call.receiver is value]
            layers = [*value.sources(), *(given for args in appended for given in args)]
            if uses and not any(use.is_in_init for use in uses) and any(map(_is_layer, layers)):
                yield _spot(value, "These layers are in a plain list: .to() and DDP ignore them")
        elif is_on_cpu(value) and not _is_number(value):
            is_moved = any(use.is_rebound or use.is_moved for use in uses)
            if not is_moved and any(use.is_operand for use in uses):
                yield _spot(value, f"self.{name} is a plain tensor: .to() does not move it with the model")


def _spot(at: Value, title: str) -> Spot:
    return Spot(at, title, remedy="Make it part of the model, or move it to the model's device")


def _is_layer(value: Value) -> bool:
    return isinstance(value, Call) and (bool(modules.LAYERS.match(value.name)) or isinstance(value.local, ast.ClassDef))


def _is_new_module(value: Value) -> bool:
    if not isinstance(value, Call) or not value.lacks(None, "device"):
        return False
    is_module = bool(_MODULES.match(value.name)) or isinstance(value.local, ast.ClassDef)
    return is_module and not any("device" in context.text for context in value.place.withs)


def is_on_cpu(value: Value, depth: int = 8) -> bool:
    """Return True if a value is certainly a tensor in host memory."""
    options = list(value.alternatives())
    return bool(options) and bool(depth) and all(_made_on_cpu(option, depth - 1) for option in options)


def _made_on_cpu(value: Value, depth: int) -> bool:
    if isinstance(value, Call):
        if value.method == "cpu" or value.name in _LIKE:
            return value.method == "cpu" or (
                value.lacks(None, "device") and is_on_cpu(value.argument(0, "input"), depth)
            )
        if value.name in _MAKERS:
            return value.lacks(None, "device") and not any("device" in each.text for each in value.place.withs)
        keeps_its_place = not moves_to_device(value) and value.method not in _NO_TENSOR
        return keeps_its_place and is_on_cpu(value.receiver, depth)
    _, left, right = training.operation(value)
    return is_on_cpu(left, depth) or is_on_cpu(right, depth)


def _is_number(value: Value) -> bool:
    """Return True for ``torch.tensor(0.5)``, which combines with tensors of any device."""
    given = value.args[0] if isinstance(value, Call) and value.args else NOTHING
    return bool(given) and given.kind != "tuple" and value.name in ("torch.tensor", "torch.as_tensor")
