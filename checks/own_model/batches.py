"""The user's batches: as arguments of the model, on its device, and the loss of what it returns."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_doctor.checks.own_model.facts import Misplaced
from ddp_doctor.checks.own_model.load import SEED, Loaded, seed
from ddp_doctor.checks.own_model.user_code import Misuse
from ddp_doctor.model.context import RankContext


@dataclass(frozen=True)
class Batch:
    """The arguments of one forward."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Every tensor with its place: ``[0]``, ``['ids']``."""
        yield from leaves(self.args)
        yield from leaves(self.kwargs)


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in nested tuples, lists and mappings."""
    import torch

    if isinstance(value, torch.Tensor):
        yield place or "the tensor", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{place}[{key!r}]")
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{place}[{index}]")


def make(ctx: RankContext, loaded: Loaded, step: int) -> tuple[Batch, tuple[Misplaced, ...]]:
    """The batch of a step: tensors on the CPU are moved to the device, as a training loop does.

    Each rank has a seed of its own here, so that random batches differ as a job's do. Raises Misuse.
    """
    assert loaded.make_batch is not None
    seed(SEED + 1000 * step + ctx.group_rank + 1)
    given = loaded.make_batch(step)
    batch = _arguments(given)
    if not any(True for _ in batch.tensors()):
        raise Misuse(f"make_batch({step}) returns a {type(given).__name__} without a tensor")
    batch = Batch(_moved(batch.args, ctx.device), _moved(dict(batch.kwargs), ctx.device))
    return batch, tuple(
        Misplaced(kind="input", name=place, device=str(tensor.device))
        for place, tensor in batch.tensors()
        if not on(tensor, ctx.device)
    )


def _arguments(given: Any) -> Batch:
    if isinstance(given, Mapping):
        return Batch(kwargs={str(key): value for key, value in given.items()})
    return Batch(args=tuple(given)) if isinstance(given, tuple | list) else Batch(args=(given,))


def on(tensor: Any, device: str) -> bool:
    """Whether a tensor is on the rank's device."""
    import torch

    return bool(tensor.device == torch.device(device))


def _moved(value: Any, device: str) -> Any:
    return _mapped(value, lambda tensor: tensor.to(device) if tensor.device.type == "cpu" else tensor)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest with other tensors; what is no tensor, tuple, list or mapping stays as it is."""
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, change) for item in value))
    if type(value) in (tuple, list):
        return type(value)(_mapped(item, change) for item in value)
    return value


def common(ctx: RankContext, batch: Batch) -> Batch | None:
    """The batch with the values of the first rank's; None where the ranks' have different forms."""
    form = json.dumps([[place, list(one.shape), str(one.dtype)] for place, one in batch.tensors()])
    with ctx.step("compare_batches"):
        forms = ctx.exchange("form of the batch", form)
    if len(set(forms)) > 1:
        return None
    with ctx.step("broadcast", f"{len(json.loads(form))} tensors of the batch"):
        return _of_first_rank(ctx, batch)


def _of_first_rank(ctx: RankContext, batch: Batch) -> Batch:
    import torch.distributed as dist

    source = dist.get_global_rank(ctx.group, 0)

    def received(tensor: Any) -> Any:
        whole = tensor.detach().clone().contiguous()
        dist.broadcast(whole, source, group=ctx.group)
        return whole

    return Batch(_mapped(batch.args, received), _mapped(dict(batch.kwargs), received))


def loss_of(output: Any) -> Any:
    """A number to go backward from: a scalar, ``.loss``, or the means of all floating-point outputs.

    Raises Misuse.
    """
    import torch

    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    value = named if isinstance(named, torch.Tensor) else output
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return _real(value).reshape(())
    means = [
        _real(tensor).mean()
        for _, tensor in leaves(getattr(value, "__dict__", value) if _is_plain_object(value) else value)
        if tensor.is_floating_point() or tensor.is_complex()
    ]
    if not means:
        raise Misuse(f"the model returns a {type(output).__name__} without a floating-point tensor")
    return torch.stack(means).sum()


def _is_plain_object(value: Any) -> bool:
    """Such as an instance of a data class, whose fields are looked at."""
    import torch

    return not isinstance(value, torch.Tensor | Mapping | tuple | list)


def _real(tensor: Any) -> Any:
    return tensor.abs() if tensor.is_complex() else tensor
