"""Where the model's tensors are, and where they have to be."""

from collections.abc import Iterator
from typing import Any

from ddp_doctor.facts.ddp.user_model import Misplaced
from ddp_doctor.probing.user_model.batches import on


def move(model: Any, device: str) -> bool:
    """Bring a model that is on the CPU as a whole to the device, as a script does before it wraps it."""
    import torch

    places = {tensor.device.type for _, tensor in _state(model)}
    if places != {"cpu"} or torch.device(device).type == "cpu":
        return False
    model.to(device)
    return True


def off_device(model: Any, device: str) -> tuple[Misplaced, ...]:
    """What is elsewhere: parameters and buffers, and tensors that are attributes, which .to() does not move."""
    found = [
        Misplaced(kind=kind, name=name, device=str(tensor.device))
        for kind, (name, tensor) in _kinds(model)
        if not on(tensor, device)
    ]
    return (*found, *_attributes(model, device))


def _kinds(model: Any) -> Iterator[tuple[Any, tuple[str, Any]]]:
    yield from (("parameter", parameter) for parameter in model.named_parameters())
    yield from (("buffer", buffer) for buffer in model.named_buffers())


def _state(model: Any) -> Iterator[tuple[str, Any]]:
    return (named_tensor for _, named_tensor in _kinds(model))


def _attributes(model: Any, device: str) -> Iterator[Misplaced]:
    """A CPU tensor of one number goes with any device; a larger one raises at its first use on a GPU."""
    import torch

    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and not on(value, device) and value.dim():
                whole = f"{prefix}.{name}" if prefix else name
                yield Misplaced(kind="attribute", name=whole, device=str(value.device))
