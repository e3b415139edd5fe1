"""Rules on the way of a batch to the GPU.

loader = DataLoader(dataset, num_workers=4, pin_memory=True, sampler=sampler)
for images, target in loader:
    images = images.to(device, non_blocking=True)
    target = target.to(device, non_blocking=True)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddp_doctor.lint import names, training
from ddp_doctor.lint.devices import goes_to_gpu, moves_before
from ddp_doctor.lint.rule import Spot, lint_rule
from ddp_doctor.lint.script import Script
from ddp_doctor.lint.values import Call, Value, is_result
from ddp_doctor.model.choices import Severity

_LOSSES = re.compile(
    r"^torch\.nn\.(functional\.(cross_entropy|nll_loss|mse_loss|l1_loss|smooth_l1_loss|huber_loss|kl_div|"
    r"binary_cross_entropy|binary_cross_entropy_with_logits)|\w+Loss)$"
)
_DEFAULT_DEVICE = ("set_default_device", "set_default_tensor_type", "prefetch")


@lint_rule("DDL136", "batch-not-on-the-gpu", Severity.ERROR)
def batch_not_on_the_gpu(script: Script) -> Iterator[Spot]:
    """A batch, or its target, is still in host memory where the model on the GPU needs it.

    Finds: A loss of torch.nn whose target comes straight from a DataLoader, where the output is that of a model that
        DDP wrapped with `device_ids` or after it was moved to a GPU. A `target.to(device)` whose result nobody takes
        counts as none: tensors do not move in place. Inputs of the model are meant only where DDP was given no
        `device_ids`: with them it moves the inputs itself.
    Why: The first step raises "Expected all tensors to be on the same device".
    Remedy: Move the target and keep the result: `target = target.to(device, non_blocking=True)`.
    See: https://pytorch.org/docs/stable/generated/torch.Tensor.to.html
    """
    if not wraps_on_gpu(script) or has_default_device(script):
        return
    yield from _inputs_left_behind(script)
    for call in script.calls:
        output, target = call.argument(0, "input"), call.argument(1, "target")
        if target and is_loss(call) and training.forwards_in(script, output) and _is_untouched_batch(target):
            yield Spot(
                call,
                f"The target of this loss, {target.text}, is still in host memory, but the output is on the GPU",
                remedy="Move the target, and keep what .to() returns",
                write=("target = target.to(device, non_blocking=True)",),
            )


@lint_rule("DDL137", "gpu-waits-for-the-loader", Severity.INFO)
def gpu_waits_for_the_loader(script: Script) -> Iterator[Spot]:
    """A training loader prepares its batches in the training process, or in memory that is not pinned.

    Finds: A DataLoader for training without `num_workers`, or with workers and without `pin_memory=True`, in a DDP
        script on GPUs.
    Why: Without workers the GPU idles while Python reads and decodes the next batch. From memory that is not pinned,
        copies to the GPU cannot overlap with computation. In DDP all ranks wait for the slowest of these in every step.
    Remedy: Set `num_workers` to a few for each rank (together not more than the node's cores) and `pin_memory=True`,
        and copy with `non_blocking=True`. Data sets that are in memory already need no workers.
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
            title, option = "This loader reads its batches in the training process: the GPU waits", "num_workers"
        elif not pinned or pinned.constant is False:
            title = "The batches of this loader are not pinned: the CPU waits while they are copied to the GPU"
            option = "pin_memory=True"
        if option:
            yield Spot(call, title, remedy=f"Give the loader {option}", cost="Host memory and cores for the workers")


def _inputs_left_behind(script: Script) -> Iterator[Spot]:
    for call in script.calls:
        if call.method or not training.surely_ddp(call.callee):
            continue
        if any(_has_device_ids(wrap) or not _model_moves_no_input(wrap) for wrap in call.callee.makers()):
            continue
        if any(map(_is_untouched_batch, call.arguments)):
            yield Spot(
                call,
                "This batch is still in host memory, but the model is on the GPU",
                detail="DDP moves its inputs only where it is given device_ids.",
                remedy="Move the batch, and keep what .to() returns",
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


def has_default_device(script: Script) -> bool:
    """Whether tensors may be made on the GPU, or moved there, without being asked."""
    return script.uses_in_any_case(*_DEFAULT_DEVICE)


def wraps_on_gpu(script: Script) -> bool:
    """Whether every wrapped model is surely on a GPU."""
    return bool(script.wraps) and all(
        (_has_device_ids(wrap) and not wrap.has_stars)
        or any(goes_to_gpu(move) and not move.conditions for move in moves_before(script, wrap))
        for wrap in script.wraps
    )


def is_loss(call: Call) -> bool:
    """Whether a loss of torch.nn is computed: ``criterion(output, target)`` or ``F.cross_entropy(...)``."""
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
