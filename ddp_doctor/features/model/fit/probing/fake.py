"""Tensors without memory: what of torch makes them, and follows how long they live, is private and stands here.

A fake tensor (torch/_subclasses/fake_tensor.py) has a shape, a type and a device, and each operation on it says what it
would return. Nothing is allocated and nothing computed, so a model of any size runs in the memory of its names.
"""

import logging
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any


def mode() -> Any:
    """A context in which all new tensors are fake; real ones that a model holds are taken as fake ones."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    # It prints a traceback for what it raises, and what it raises is reported.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    return FakeTensorMode(allow_non_fake_inputs=True)


def limits() -> tuple[type[BaseException], ...]:
    """What a fake tensor raises where an operation needs values, or does not say what it returns."""
    from torch._subclasses import fake_tensor

    names = (
        "UnsupportedOperatorException",
        "DataDependentOutputException",
        "DynamicOutputShapeException",
        "UnsupportedFakeTensorException",
    )
    return (NotImplementedError, *(getattr(fake_tensor, name) for name in names if hasattr(fake_tensor, name)))


@contextmanager
def conversions() -> Iterator[None]:
    """Let ``model.to(...)`` work on fake parameters, tied ones too; torch 2.13 raises "Couldn't swap Linear.weight"."""
    import torch

    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")  # what deepcopy does
    module_type: Any = torch.nn.Module
    original = module_type._apply  # noqa: SLF001 - to(), cuda(), half() and all others end there
    changed: dict[int, tuple[Any, Any]] = {}  # with the old one, whose id is then no other's

    def _apply(module: Any, change: Any, recurse: bool = True) -> Any:
        for child in module.children() if recurse else ():
            child._apply(change)  # noqa: SLF001 - this function
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            with torch.no_grad():
                applied = change(parameter)
            if applied is not parameter:
                new = torch.nn.Parameter(applied, requires_grad=parameter.requires_grad)
                setattr(module, name, changed.setdefault(id(parameter), (parameter, new))[1])
        for name, buffer in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            setattr(module, name, change(buffer))
        return module

    module_type._apply = _apply  # noqa: SLF001 - as above
    try:
        yield
    finally:
        module_type._apply = original  # noqa: SLF001 - as above


def faked(model: Any, fake_mode: Any) -> None:
    """Give the model new fake parameters and buffers on the CPU; views of a copied fake one seem to be new memory."""
    import torch

    def fake(tensor: Any) -> Any:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")

    with conversions(), fake_mode:
        model._apply(fake)  # noqa: SLF001 - what to() and the like call


@contextmanager
def foreach() -> Iterator[None]:
    """Let optimizers handle fake parameters of a GPU all at once, as they do with real ones.

    They look for the exact type; where torch has no such list any more, they are handled one by one.
    """
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim import optimizer

    types = getattr(optimizer, "_foreach_supported_types", [])
    types.append(FakeTensor)
    try:
        yield
    finally:
        types.remove(FakeTensor)


@contextmanager
def one_sequence() -> Iterator[None]:
    """Let models of transformers take each sample for one sequence, as they do with real ones where it is.

    On fake tensors they cannot look whether several are packed into one, and make masks of the square of its length.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    original = getattr(masks, "find_packed_sequence_indices", None)
    if original is not None:
        masks.find_packed_sequence_indices = lambda *_args, **_kwargs: None
    try:
        yield
    finally:
        if original is not None:
            masks.find_packed_sequence_indices = original


class Lives:
    """How much is allocated after each operation, in bytes: one entry for each storage made or freed."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []  # (the entry that made it, its bytes; negative where it is freed)
        self._made: dict[int, tuple[int, Any]] = {}  # by the storage's address; the reference tells when it is freed
        self.watching = True

    def known(self, tensor: Any) -> None:
        """A tensor that is not counted."""
        self._keep(tensor, -1)

    def made(self, tensor: Any) -> None:
        """A tensor that an operation returned; a view of another one is nothing new."""
        if self._keep(tensor, len(self.entries)):
            self.entries.append((len(self.entries), tensor.untyped_storage().nbytes()))

    def handed_over(self, tensor: Any) -> int:
        """Count it no more; its bytes."""
        storage = tensor.untyped_storage()
        entry, reference = self._made.get(storage._cdata, (-1, None))  # noqa: SLF001 - as below
        if entry >= 0:
            self.entries.append((entry, -storage.nbytes()))
        self._made[storage._cdata] = (-1, reference)  # noqa: SLF001 - as below
        return int(storage.nbytes())

    def now(self) -> int:
        """Bytes that are there."""
        return sum(size for _, size in self.entries)

    def highest(self, since: int) -> int:
        """The most bytes that were there after an entry from ``since`` on, or before it."""
        return max(list(accumulate(size for _, size in self.entries))[max(since - 1, 0) :], default=0)

    def alive(self) -> set[int]:
        """The entries that made what is there now."""
        return {entry for entry, _ in self._made.values() if entry >= 0}

    def _keep(self, tensor: Any, entry: int) -> bool:
        storage = tensor.untyped_storage()
        address = storage._cdata  # noqa: SLF001 - storages have no other identity
        if address in self._made:
            return False
        self._made[address] = (entry, weakref.ref(storage, partial(self._freed, address, storage.nbytes())))
        return True

    def _freed(self, address: int, size: int, _: Any) -> None:
        entry, _reference = self._made.pop(address)
        if entry >= 0 and self.watching:
            self.entries.append((entry, -size))


def following(lives: Lives) -> Any:
    """A context in which all tensors that operations return are noted."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    mode_type: Any = TorchDispatchMode

    class Following(mode_type):  # type: ignore[misc]  # torch is imported in the function
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            returned = func(*args, **(kwargs or {}))
            for leaf in tree_leaves(returned):
                if isinstance(leaf, torch.Tensor):
                    lives.made(leaf)
            return returned

    return Following()
