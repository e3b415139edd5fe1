"""Rules on BatchNorm under DDP.

model = resnet50()                                               statistics of each rank's own batch
model = SyncBatchNorm.convert_sync_batchnorm(resnet50())         statistics of the batches of all ranks
"""

from __future__ import annotations

from collections.abc import Iterator

from ddp_doctor.features.lint import training
from ddp_doctor.features.lint.rule import Spot, lint_rule
from ddp_doctor.features.lint.script import Script
from ddp_doctor.features.lint.values import Call, Value
from ddp_doctor.knowledge.thresholds import SMALL_BATCH
from ddp_doctor.model.choices import Consequence

_NO_NEED = ("syncbatchnorm", "syncbn", "sync_bn", "convert_sync", "frozenbatchnorm")


@lint_rule("DDL123", "small-batches-normalised-alone", Consequence.RISK)
def small_batches_normalised_alone(script: Script) -> Iterator[Spot]:
    """BatchNorm sees a small batch on each rank and is not synchronized.

    Finds: BatchNorm layers, or a torchvision model that has them, with a visible batch size below 16 per rank and no
        SyncBatchNorm anywhere in the script.
    Why: DDP does not synchronize the statistics of BatchNorm: each rank normalizes with the mean and variance of its
        own batch. With few samples these are noisy and reduce the accuracy, regardless of the number of ranks.
        Detection and segmentation models are known to suffer from this.
    Remedy: Convert the model before wrapping it: `SyncBatchNorm.convert_sync_batchnorm(model)`. This costs two small
        collectives per layer in every step. GroupNorm and LayerNorm need no synchronization.
    See: https://pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html
        https://arxiv.org/abs/1803.08494
    """
    if not script.wraps or script.uses_in_any_case(*_NO_NEED):
        return
    sizes = [size for call in training.loaders(script) if (size := _batch_size(script, call)) is not None]
    layer = next((call for call in script.calls if training.keeps_batch_statistics(call)), None)
    if layer is None or not sizes or max(sizes) >= SMALL_BATCH:
        return
    yield Spot(
        layer,
        f"BatchNorm uses only {max(sizes)} samples per rank, without synchronized statistics",
        remedy="Convert the model to SyncBatchNorm before wrapping it",
        write=("model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)",),
        cost="two small collectives per BatchNorm layer and step",
    )


@lint_rule("DDL169", "statistics-left-apart", Consequence.RISK)
def statistics_left_apart(script: Script) -> Iterator[Spot]:
    """The ranks' BatchNorm statistics diverge because DDP does not share buffers.

    Finds: DistributedDataParallel with `broadcast_buffers=False` or `forward_sync_buffers=False`, in a script with
        BatchNorm layers or a torchvision model that has them, without SyncBatchNorm and without code that iterates over
        buffers.
    Why: BatchNorm's running mean and variance are buffers, and each rank then computes them from its own shard. In
        `eval()` the ranks use different statistics, and the checkpoint of rank 0 fits only rank 0's data.
    Remedy: Remove the option, or convert the model to SyncBatchNorm, which keeps the same statistics on all ranks.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        pytorch torch/nn/parallel/distributed.py forward_sync_buffers
    """
    if script.uses_in_any_case(*_NO_NEED, "distribute_bn") or any(script.methods("buffers", "named_buffers")):
        return  # the script may share buffers itself
    for wrap in script.wraps if any(map(training.keeps_batch_statistics, script.calls)) else ():
        options = (wrap.argument(4, "broadcast_buffers"), wrap.argument(None, "forward_sync_buffers"))
        if any(option.constant is False for option in options):
            yield Spot(
                wrap,
                "Each rank keeps its own BatchNorm statistics, so ranks evaluate differently",
                remedy="Set broadcast_buffers=True, or convert the model to SyncBatchNorm",
            )


def _batch_size(script: Script, loader: Call) -> int | None:
    """Return the batch size in the script, or the default of the command line option that sets it."""
    size = loader.argument(training.BATCH_SIZE, "batch_size")
    known = [_number(option) or _default_of_option(script, option) for option in size.alternatives()]
    return max(number for number in known if number) if known and all(known) else None


def _number(value: Value) -> int | None:
    constant = value.constant
    return constant if isinstance(constant, int) and not isinstance(constant, bool) else None


def _default_of_option(script: Script, value: Value) -> int | None:
    if value.kind != "attribute":
        return None
    for call in script.methods("add_argument"):
        options = {str(argument.constant).lstrip("-").replace("-", "_") for argument in call.args}
        if value.attribute in options and (default := call.argument(None, "default")):
            return _number(default)
    return None
