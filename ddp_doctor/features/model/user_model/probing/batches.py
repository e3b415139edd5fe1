"""The user's batches: as arguments of the model, the devices of tensors, and the loss of the model's output."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial
from typing import Any

from ddp_doctor.features.model.user_model.facts import Misplaced
from ddp_doctor.features.model.user_model.probing import sharding, user_code
from ddp_doctor.features.model.user_model.probing.user_code import SEED, Form, Loaded, Misuse, seed
from ddp_doctor.model.context import RankContext


def move(model: Any, device: str) -> bool:
    """Move a model that is entirely on the CPU to the device, as a script does before wrapping it."""
    import torch

    places = {tensor.device.type for _, (_, tensor) in _kinds(model)}
    if places != {"cpu"} or torch.device(device).type == "cpu":
        return False
    model.to(device)
    return True


def off_device(model: Any, device: str) -> tuple[Misplaced, ...]:
    """Return parameters, buffers and tensor attributes on other devices; .to() does not move attributes."""
    import torch

    found = [
        Misplaced(kind=kind, name=name, device=str(tensor.device))
        for kind, (name, tensor) in _kinds(model)
        if not on(tensor, device) and not sharding.is_dtensor(tensor)  # fully_shard may offload its shards
    ]
    # A CPU tensor with one number works with any device; a larger one raises at its first use on a GPU.
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and not on(value, device) and value.dim():
                whole = f"{prefix}.{name}" if prefix else name
                found.append(Misplaced(kind="attribute", name=whole, device=str(value.device)))
    return tuple(found)


def _kinds(model: Any) -> Iterator[tuple[Any, tuple[str, Any]]]:
    yield from (("parameter", parameter) for parameter in model.named_parameters())
    yield from (("buffer", buffer) for buffer in model.named_buffers())


#: Types whose repr describes them fully.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class Batch:
    """The result of make_batch on the rank's device, and the arguments of forward in it."""

    given: Any
    form: Form = field(default_factory=Form)
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Return every tensor with its place: ``[0]``, ``['ids']``; not tensors inside objects with a ``.to()``."""
        import torch

        return ((place, leaf) for place, leaf in self.parts() if isinstance(leaf, torch.Tensor))

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Return every tensor and other object that is not a tuple, list, mapping or data class, with its place."""
        is_nest = isinstance(self.given, Mapping) or user_code.is_several(self.given)
        yield from _parts(self.given if is_nest else (self.given,), _moves_itself)

    def forward(self, module: Any) -> Any:
        """Return the output of a model, or of its wrapper, for the batch."""
        return module(*self.args, **self.kwargs)

    def loss(self, output: Any) -> Any:
        """Return one number for the backward: the user's loss, or that of ``loss_of``. Raises Misuse."""
        import torch

        if self.form.loss is None:
            return loss_of(output)
        value = self.form.loss(output, self.given)
        if not isinstance(value, torch.Tensor):
            raise Misuse(
                f"loss(output, batch) returns type {type(value).__name__}; it must return a tensor with one element"
            )
        if value.numel() != 1:
            raise Misuse(f"loss(output, batch) returns a tensor of shape {list(value.shape)}; return its mean()")
        if not value.requires_grad and any(tensor.requires_grad for _, tensor in leaves(output)):
            raise Misuse("loss(output, batch) returns a tensor without a gradient; remove .item() and .detach()")
        return _real(value).reshape(())

    def changed(self, change: Callable[[Any], Any]) -> "Batch":
        """Return the batch with changed tensors. Raises Misuse if forward does not take it."""
        given = _mapped(self.given, change)
        return Batch(given, self.form, *user_code.arguments(given, self.form))

    def require_arguments(self, module: Any, raised: str) -> None:
        """Raise Misuse if forward, which has just ``raised``, works without the batch's last item."""
        if user_code.may_hold_a_target(self.given, self.form):
            try:
                module(*self.args[:-1])
            except Exception:  # noqa: BLE001 - the first exception is reported
                return
            raise user_code.no_argument(self.given, self.form, f"raises {raised} with the target, but not without it")


def _moves_itself(value: Any) -> bool:
    """Return True for an object with a ``.to()``: graph data, a tokenizer's encoding, a packed sequence."""
    import torch

    known = isinstance(value, torch.Tensor | torch.nn.Module | type)
    return not known and callable(getattr(value, "to", None))


def leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Return the tensors in nested tuples, lists, mappings and data classes, with their places."""
    import torch

    return ((place, leaf) for place, leaf in _parts(value) if isinstance(leaf, torch.Tensor))


def _parts(value: Any, is_one: Callable[[Any], bool] = lambda _: False, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the items of a nest with their places, without entering items for which ``is_one`` is true."""
    items: list[tuple[str, Any]] | None = None
    if not is_one(value):
        if isinstance(value, Mapping):
            items = [(f"[{key!r}]", item) for key, item in value.items()]
        elif isinstance(value, tuple | list):
            items = [(f"[{index}]", item) for index, item in enumerate(value)]
        elif is_dataclass(value) and not isinstance(value, type):
            items = [(f".{field.name}", getattr(value, field.name, None)) for field in fields(value)]
    if items is None:
        yield place or "the tensor", value
        return
    for name, item in items:
        yield from _parts(item, is_one, place + name)


def make(ctx: RankContext, loaded: Loaded, step: int) -> tuple[Batch, tuple[Misplaced, ...]]:
    """Make the batch of a step; move CPU tensors and objects with a ``.to()`` as a training loop does.

    Each rank has its own seed here, so random batches differ as in a job. Raises Misuse.
    """
    import torch

    assert loaded.make_batch is not None
    seed(SEED + 1000 * step + ctx.group_rank + 1)
    given = loaded.make_batch(step)
    form = user_code.form_of(loaded)
    batch = Batch({str(key): value for key, value in given.items()} if isinstance(given, Mapping) else given, form)
    if not any(isinstance(leaf, torch.Tensor) or _moves_itself(leaf) for _, leaf in batch.parts()):
        raise Misuse(
            f"make_batch({step}) returns type {type(given).__name__} without any tensor or object that has .to();"
            " return at least one tensor"
        )
    batch = batch.changed(partial(_moved, device=ctx.device))
    return batch, tuple(
        Misplaced(kind="input", name=place, device=str(tensor.device))
        for place, tensor in batch.tensors()
        if not on(tensor, ctx.device)
    )


def on(tensor: Any, device: str) -> bool:
    """Return True if a tensor is on the rank's device."""
    import torch

    return bool(tensor.device == torch.device(device))


def _moved(leaf: Any, device: str) -> Any:
    if _moves_itself(leaf):
        try:  # a .to() with another meaning may raise
            moved = leaf.to(device)
        except (AttributeError, TypeError, ValueError):
            return leaf
        return leaf if moved is None else moved
    return leaf.to(device) if leaf.device.type == "cpu" else leaf


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return the nest with changed tensors and objects with a ``.to()``; everything else stays the same."""
    import torch

    if isinstance(value, torch.Tensor) or _moves_itself(value):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(item, change) for item in value))
    if type(value) in (tuple, list):
        return type(value)(_mapped(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in fields(value):
            object.__setattr__(changed, field.name, _mapped(getattr(value, field.name, None), change))
        return changed
    return value


def common(ctx: RankContext, batch: Batch) -> Batch | None:
    """Return the batch with the first rank's values, or None if the ranks' batches differ in more than tensor values.

    This includes differences in plain numbers or strings, and any object that cannot be compared.
    """
    import torch.distributed as dist

    with ctx.step("compare_batches"):
        forms = ctx.exchange("form of the batch", _digest_of_form(batch))
    if len(set(forms)) > 1 or not forms[0]:
        return None
    with ctx.step("broadcast", f"{sum(1 for _ in batch.tensors())} tensors of the batch"):
        source = dist.get_global_rank(ctx.group, 0)

        def received(tensor: Any) -> Any:
            whole = tensor.detach().clone().contiguous()
            dist.broadcast(whole, source, group=ctx.group)
            return whole

        return batch.changed(received)


def _digest_of_form(batch: Batch) -> str:
    """Return a digest of everything but the tensor values, or "" with objects that cannot be compared."""
    import torch

    form: list[list[str]] = []
    for place, leaf in batch.parts():
        if isinstance(leaf, torch.Tensor):
            form.append([place, str(list(leaf.shape)), str(leaf.dtype)])
        elif isinstance(leaf, _PLAIN):
            form.append([place, type(leaf).__name__, repr(leaf)])
        else:
            return ""
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()


def loss_of(output: Any) -> Any:
    """Return a number for the backward: a scalar, ``.loss``, or the sum of the means of all floating-point outputs.

    Raises Misuse.
    """
    import torch

    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    value = named if isinstance(named, torch.Tensor) else output
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return _real(value).reshape(())
    # For a plain object, such as an instance of a data class, its fields are used.
    is_nest = isinstance(value, torch.Tensor | Mapping | tuple | list)
    means = [
        _real(tensor).mean()
        for _, tensor in leaves(value if is_nest else getattr(value, "__dict__", value))
        if tensor.is_floating_point() or tensor.is_complex()
    ]
    if not means:
        raise Misuse(
            f"the model returns type {type(output).__name__} without a floating-point tensor; return a loss function"
            " from the factory"
        )
    return torch.stack(means).sum()


def _real(tensor: Any) -> Any:
    return tensor.abs() if tensor.is_complex() else tensor
