"""Synchronized steps of the model in DDP; their gradients are compared with the mean of the ranks' own."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddp_doctor.features.model.user_model import gradient_tolerance
from ddp_doctor.features.model.user_model.facts import Bucket, Buckets, OffGradient
from ddp_doctor.features.model.user_model.names import MOST_NAMES, Names
from ddp_doctor.features.model.user_model.probing.batches import Batch
from ddp_doctor.features.model.user_model.probing.passes import (
    Pass,
    as_wrapped,
    clear,
    sample,
    take_gradients,
    trainable,
)
from ddp_doctor.features.model.user_model.probing.user_code import SEED, seed, trouble
from ddp_doctor.model.context import RankContext

#: Learning rate of the gradient descent step.
_LEARNING_RATE = 1e-3
_MOST_BUCKETS = 32


class StepFailed(RuntimeError):
    """A synchronized step raised on this rank. Its peers wait inside their steps, so this rank must not continue."""

    @classmethod
    def of(cls, error: Exception) -> "StepFailed":
        """Describe an exception that the user's code or torch raised."""
        what = trouble("backward", error)
        at = f" at {Path(what.where).name}" if what.where else ""
        return cls(f"{what.type}{at}: {what.message}")


def wrap(ctx: RankContext, model: Any, options: Mapping[str, Any]) -> Any:
    """Wrap the model in DDP as a training script does."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    device = torch.device(ctx.device)
    where: dict[str, Any] = {"device_ids": [device.index or 0]} if device.type == "cuda" else {}
    with ctx.step("ddp_construct", type(model).__name__):
        return DistributedDataParallel(model, process_group=ctx.group, **where, **options)


def restore_buffers(model: Any, saved: Sequence[Any]) -> None:
    """Restore the buffers, including those that the model has replaced since."""
    import torch

    with torch.no_grad(), suppress(RuntimeError):  # a buffer may have another shape by now
        for buffer, value in zip(model.buffers(), saved, strict=False):
            buffer.copy_(value)


def synchronized(ctx: RankContext, ddp: Any, batch: Batch, step: int) -> tuple[Pass, float, float]:
    """Run one step as a job does; return its gradients and the seconds of forward and backward. Raises StepFailed."""
    done, started = Pass(), ctx.clock()
    ddp.train()
    clear(ddp)
    seed(SEED + step)
    try:
        with as_wrapped(ddp.module) as named:
            with ctx.step("forward", f"synchronized, batch {step}"):
                loss = batch.loss(batch.forward(ddp))
            middle = ctx.clock()
            with ctx.step("backward", f"synchronized, batch {step}"):
                loss.backward()
    except Exception as error:  # noqa: BLE001 - the user's code with DDP may raise anything
        raise StepFailed.of(error) from None
    ended = ctx.clock()
    take_gradients(named, done)
    return done, middle - started, ended - middle


def compare(ctx: RankContext, step: int, model: Any, own: Pass, got: Pass, spread: float) -> list[OffGradient]:
    """Return the synchronized gradients that differ from the float64 mean of the ranks' own gradients.

    ``spread`` is the largest relative difference between two passes of one rank, over all ranks.
    """
    import torch
    import torch.distributed as dist

    local = torch.cat(own.gradients)
    sums = torch.stack([local, local.abs()])
    with ctx.step("all_reduce", f"float64 {list(sums.shape)} sum of the gradients"):
        shared = sums.to(ctx.device)
        dist.all_reduce(shared, group=ctx.group)
    mean, size = shared.cpu() / ctx.world_size
    found, start = [], 0
    for (name, parameter), mine, given in zip(trainable(model), own.gradients, got.gradients, strict=True):
        part = slice(start, start + len(mine))
        start += len(mine)
        # Rounding of the parameter's type, relative to its largest mean absolute gradient.
        rounding = gradient_tolerance.relative(str(parameter.dtype).removeprefix("torch."))
        largest = float(size[part].max()) if len(mine) else 0.0
        allowed = largest * (rounding + 2 * spread) + gradient_tolerance.SMALLEST
        error = (given - mean[part]).abs().nan_to_num(nan=torch.inf)
        if len(mine) and bool(mean[part].isfinite().all()) and bool((error > allowed).any()):
            worst = int((error - allowed).argmax())
            values = (given[worst], mean[part][worst], mine[worst])
            got_, wanted, own_ = (float(value) if bool(value.isfinite()) else None for value in values)
            found.append(OffGradient(parameter=name, step=step, got=got_, expected=wanted, own=own_))
    return found


def spread_of(former: Pass, latter: Pass) -> tuple[bool, float]:
    """Return whether two passes gave bitwise equal gradients, and their largest relative difference."""
    worst, same = 0.0, True
    for first, second in zip(former.gradients, latter.gradients, strict=True):
        if bool(((first == second) | (first.isnan() & second.isnan())).all()):
            continue
        same = False
        largest = float(first.abs().max())
        error = float((first - second).abs().max()) / largest if largest else 1.0
        worst = max(worst, error if error - error == 0.0 else 1.0)
    return same, worst


def descend(model: Any) -> None:
    """Run one step of plain gradient descent."""
    import torch

    with torch.no_grad():
        for _, parameter in trainable(model):
            if parameter.grad is not None:
                parameter.add_(parameter.grad.to(parameter.dtype), alpha=-_LEARNING_RATE)


def drifted(ctx: RankContext, model: Any) -> Names:
    """Return the parameters whose sampled elements are not bitwise equal to the first rank's."""
    import hashlib

    import torch

    samples = (sample(parameter, parameter, 4096).view(torch.uint8) for _, parameter in trainable(model))
    marks = [hashlib.sha256(bytes(sampled.tolist())).hexdigest()[:16] for sampled in samples]
    with ctx.step("compare_parameters", "after the steps"):
        texts = ctx.exchange("parameters-after", " ".join(marks))
    first = texts[0].split()
    names = [name for (name, _), mine, theirs in zip(trainable(model), marks, first, strict=True) if mine != theirs]
    return counted(names)


def counted(names: Sequence[str]) -> Names:
    """Return the first of these names, and their number."""
    return Names(names=tuple(names[:MOST_NAMES]), count=len(names))


def buckets(ddp: Any) -> tuple[Buckets | None, str | None]:
    """Return DDP's gradient buckets from its logging data, or None and the reason if torch does not report them."""
    names = [name for name, _ in trainable(ddp.module)]
    try:
        logged = ddp._get_ddp_logging_data()  # noqa: SLF001 - DDP's layout has no public access
        rebuilt = _numbers(logged.get("rebuilt_bucket_sizes", ""))
        sizes = rebuilt or _numbers(logged.get("bucket_sizes", ""))
        indices = str(logged.get("rebuilt_per_bucket_param_indices", "")) if rebuilt else ""
        cap = int(logged.get("bucket_cap_bytes", 0))
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        return None, f"this torch does not tell DDP's buckets ({type(error).__name__})"
    if not sizes:
        return None, "this torch does not tell DDP's buckets"
    members = [_numbers(part) for part in indices.split(",")]
    if len(members) != len(sizes):
        members = [[] for _ in sizes]
    buckets = []
    for size, places in list(zip(sizes, members, strict=True))[:_MOST_BUCKETS]:
        within = [names[place] for place in places if place < len(names)]
        first, last = (within[0], within[-1]) if within else ("", "")
        buckets.append(Bucket(bytes=size, parameters=len(within), first=first, last=last))
    packed = Buckets(
        cap_bytes=cap, rebuilt=bool(rebuilt), count=len(sizes), largest_bytes=max(sizes), buckets=tuple(buckets)
    )
    return packed, None


def _numbers(text: object) -> list[int]:
    return [int(word) for word in str(text).replace(",", " ").split() if word.isdigit()]
