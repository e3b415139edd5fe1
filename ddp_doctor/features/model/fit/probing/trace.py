"""One step of a model on fake tensors: allocations and releases, and the start and end of each unit.

Every unit has hooks where FSDP2 has its hooks (torch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_state.py), so the
strategies can be replayed on the same sequence of events::

    forward of unit 0, of unit 1, of unit 2 …     | backward of unit 2 …, of unit 1, of unit 0
    +4096 +4096 -4096 +512 …                      | +4096 -512 gradient of its second parameter …

Of repeated layers, only three run: the first, one from the middle, and the last. The middle layer stands for all layers
between, which have the same events.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from ddp_doctor.features.model.fit.probing import fake
from ddp_doctor.features.model.fit.probing.strategies import autocast, recompute
from ddp_doctor.features.model.user_model.probing.batches import Batch

Kind = Literal["bytes", "gradient", "pre_forward", "post_forward", "pre_backward", "post_backward", "backward"]
#: Minimum number of repeated layers to run only the first, a middle and the last one.
_LEAST_REPEATED = 5


@dataclass(frozen=True)
class Event:
    """An event: a change in bytes, of tensors that the forward keeps for the backward (``saved``) or of others."""

    kind: Kind
    bytes: int = 0
    saved: bool = False
    unit: int = -1  # index of the unit; for the whole model, the number of units


def run(model: Any, batch: Batch, units: Sequence[Any], own: Sequence[Sequence[Any]], how: "How") -> list[Event]:
    """Return the events of a forward and a backward. ``own`` are the parameters of each unit, then of the rest.

    Raises what the user's code raises on fake tensors.
    """
    repeated = _repeated(model, units)
    if repeated is None:
        return _run(model, batch, units, own, how)
    modules, first = repeated
    whole = list(modules)
    del modules[2:-1]
    with suppress(Exception):  # code that counts its layers fails; run all of them
        try:
            return _spread(_run(model, batch, units, own, how), first, first + len(whole) - 1)
        finally:
            for place, module in enumerate(whole[2:-1], 2):
                modules.insert(place, module)
    return _run(model, batch, units, own, how)


def of_parameters(own: Sequence[Sequence[Any]]) -> list[Event]:
    """Return the events of a step if only the parameters are known: one unit after the other, all gradients."""
    *units, root = range(len(own))
    events = [Event("pre_forward", unit=root)]
    for unit in units:
        events += [Event("pre_forward", unit=unit), Event("post_forward", unit=unit)]
    events += [Event("post_forward", unit=root), Event("backward"), Event("pre_backward", unit=root)]
    for unit in (*reversed(units), root):
        events.append(Event("pre_backward", unit=unit))
        for parameter in own[unit]:
            if parameter.requires_grad:
                events.append(Event("gradient", parameter.numel() * parameter.element_size(), unit=unit))
        events.append(Event("post_backward", unit=unit))
    return events


@dataclass(frozen=True)
class How:
    """Variations of a step."""

    checkpointing: bool = False
    autocast: bool = False


class _Recorder:
    def __init__(self) -> None:
        self.lives = fake.Lives()
        self.events: list[Event | int] = []  # or the index of an entry in ``lives``
        self._seen = 0

    def note(self, kind: Kind, unit: int = -1, size: int = 0) -> None:
        self.take()
        self.events.append(Event(kind, size, unit=unit))

    def gradient(self, unit: int, parameter: Any) -> None:
        self.note("gradient", unit, self.lives.handed_over(parameter.grad))

    def take(self) -> None:
        self.events += range(self._seen, len(self.lives.entries))
        self._seen = len(self.lives.entries)

    def done(self, saved: set[int]) -> list[Event]:
        self.take()
        found = []
        for event in self.events:
            if isinstance(event, int):
                made, size = self.lives.entries[event]
                event = Event("bytes", size, made in saved)  # noqa: PLW2901 - replaces the index
            found.append(event)
        return found


def _run(model: Any, batch: Batch, units: Sequence[Any], own: Sequence[Sequence[Any]], how: How) -> list[Event]:
    recorder = _Recorder()
    lives = recorder.lives
    for tensor in (*model.parameters(), *model.buffers()):
        lives.known(tensor)
    for _, tensor in batch.tensors():
        lives.made(tensor)
    with _prepared(model, units, own, how, recorder), fake.one_sequence(), fake.following(lives):
        output = batch.forward(model)
        loss = batch.loss(output)
        recorder.note("backward")
        saved = lives.alive()
        loss.backward()
        recorder.take()
        lives.watching = False
    return recorder.done(saved)


@contextmanager
def _prepared(
    model: Any, units: Sequence[Any], own: Sequence[Sequence[Any]], how: How, recorder: _Recorder
) -> Iterator[None]:
    """Add all hooks to the model for a block, and remove them afterwards."""
    modules = [*units, model]
    forwards = [vars(module).get("forward") for module in modules]
    with ExitStack() as undone:
        if how.checkpointing:
            recompute(units or [model], preserve_rng_state=False)
        if how.autocast:
            autocast(model)
        for index, module in enumerate(modules):
            for handle in _hooks(module, index, recorder):
                undone.callback(handle.remove)
        for index, parameters in enumerate(own):
            for parameter in parameters:
                if parameter.requires_grad:
                    handle = parameter.register_post_accumulate_grad_hook(partial(recorder.gradient, index))
                    undone.callback(handle.remove)
        try:
            yield
        finally:
            for module, forward in zip(modules, forwards, strict=True):
                vars(module).pop("forward", None)
                if forward is not None:
                    module.forward = forward
            for parameter in model.parameters():
                parameter.grad = None


def _hooks(module: Any, unit: int, recorder: _Recorder) -> Iterator[Any]:
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    function: Any = torch.autograd.Function

    class AfterBackward(function):  # type: ignore[misc]  # torch is imported in the function
        @staticmethod
        def forward(_ctx: Any, *tensors: Any) -> Any:
            return tensors

        @staticmethod
        def backward(_ctx: Any, *gradients: Any) -> Any:
            recorder.note("post_backward", unit)
            return gradients

    def gets_gradient(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and value.requires_grad

    def before(_module: Any, args: Any, kwargs: Any) -> Any:
        recorder.note("pre_forward", unit)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if gets_gradient(leaf)]
        if not given:
            return args, kwargs
        passed = dict(zip(map(id, given), AfterBackward.apply(*given), strict=True))
        return tree_map_only(torch.Tensor, lambda tensor: passed.get(id(tensor), tensor), (args, kwargs))

    def after(_module: Any, _args: Any, output: Any) -> None:
        recorder.note("post_forward", unit)
        for leaf in tree_leaves(output):
            if gets_gradient(leaf):
                leaf.register_hook(lambda _gradient: recorder.note("pre_backward", unit))

    yield module.register_forward_pre_hook(before, with_kwargs=True)
    yield module.register_forward_hook(after)


def _repeated(model: Any, units: Sequence[Any]) -> tuple[Any, int] | None:
    """Return the longest list of equal layers, each a unit with parameters of the same shapes, and its first unit."""
    import torch

    places = {id(unit): index for index, unit in enumerate(units)}
    found: tuple[Any, int] | None = None
    for modules in model.modules():
        if not isinstance(modules, torch.nn.ModuleList | torch.nn.Sequential) or len(modules) < _LEAST_REPEATED:
            continue
        at = [places.get(id(module), -1) for module in modules]
        alike = len({(type(module), tuple(p.shape for p in module.parameters())) for module in modules}) == 1
        in_a_row = at[0] >= 0 and at == list(range(at[0], at[0] + len(at)))
        if alike and in_a_row and (found is None or len(modules) > len(found[0])):
            found = modules, at[0]
    return found


def _spread(events: list[Event], first: int, last: int) -> list[Event]:
    """Return the events with the middle layer's repeated for each skipped layer. Raises KeyError and ValueError."""
    middle = first + 1
    places = {(event.kind, event.unit): index for index, event in reversed(list(enumerate(events)))}
    forward = places["pre_forward", middle], places["pre_forward", last]
    backward = places["pre_backward", middle], places["pre_backward", first]
    if not forward[0] < forward[1] < backward[0] < backward[1]:
        raise ValueError("the layers are not called in sequence")
    forwards = (events[places["pre_forward", unit] : places["post_forward", unit]] for unit in (first, middle, last))
    if len({tuple(event.bytes for event in events if event.bytes > 0) for events in forwards}) > 1:
        raise ValueError("the layers differ: a layer's input may be larger than the previous layer's input")

    def of(unit: int, segment: tuple[int, int]) -> list[Event]:
        return [replace(event, unit=unit) if event.unit == middle else event for event in events[slice(*segment)]]

    between = range(middle, last)
    return [
        *events[: forward[0]],
        *(event for unit in between for event in of(unit, forward)),
        *events[forward[1] : backward[0]],
        *(event for unit in reversed(between) for event in of(unit, backward)),
        *events[backward[1] :],
    ]
