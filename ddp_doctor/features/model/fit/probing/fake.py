"""Tensors without memory. All private functions of torch that create them and track their lifetime are used only here.

A fake tensor (torch/_subclasses/fake_tensor.py) has a shape, a type and a device, and each operation on it returns the
result's shape. Nothing is allocated or computed, so a model of any size needs only memory for its Python objects.
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
    """Return a context in which all new tensors are fake, and in which a model's real tensors count as fake ones."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    # It prints a traceback for each exception, but exceptions are reported anyway.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    return FakeTensorMode(allow_non_fake_inputs=True)


def limits() -> tuple[type[BaseException], ...]:
    """Return the exceptions of a fake tensor if an operation needs values or has no known result."""
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
    """Let ``model.to(...)`` work on fake and tied parameters; torch 2.13 raises "Couldn't swap Linear.weight"."""
    import torch

    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")  # emitted by deepcopy
    module_type: Any = torch.nn.Module
    original = module_type._apply  # noqa: SLF001 - to(), cuda(), half() and all others call it
    changed: dict[int, tuple[Any, Any]] = {}  # also holds the old one, so that no new object gets its id

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
    """Give the model new fake parameters and buffers on the CPU, because views of copied ones count as new memory."""
    import torch

    def fake(tensor: Any) -> Any:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")

    with conversions(), fake_mode:
        model._apply(fake)  # noqa: SLF001 - to() and the like call it


@contextmanager
def foreach() -> Iterator[None]:
    """Let optimizers handle fake GPU parameters all at once, as they do with real ones.

    They check for the exact type. If a torch release has no such list, they are handled one by one.
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
    """Let transformers models treat each sample as one sequence, as they do with real samples that are one.

    With fake tensors, they cannot detect whether a sample packs several sequences, and make masks of its length
    squared.
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
    """The allocated bytes after each operation: one entry for each storage that is made or freed."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []  # (the entry that made it, its bytes, negative if freed)
        self._made: dict[int, tuple[int, Any]] = {}  # by the storage's address; the reference reports its release
        self.watching = True

    def known(self, tensor: Any) -> None:
        """Exclude a tensor from the count."""
        self._keep(tensor, -1)

    def made(self, tensor: Any) -> None:
        """Count a tensor that an operation returned; views of a known tensor add nothing."""
        if self._keep(tensor, len(self.entries)):
            self.entries.append((len(self.entries), tensor.untyped_storage().nbytes()))

    def handed_over(self, tensor: Any) -> int:
        """Stop counting a tensor, and return its bytes."""
        storage = tensor.untyped_storage()
        entry, reference = self._made.get(storage._cdata, (-1, None))  # noqa: SLF001 - as below
        if entry >= 0:
            self.entries.append((entry, -storage.nbytes()))
        self._made[storage._cdata] = (-1, reference)  # noqa: SLF001 - as below
        return int(storage.nbytes())

    def now(self) -> int:
        """Return the bytes that are allocated now."""
        return sum(size for _, size in self.entries)

    def highest(self, since: int) -> int:
        """Return the maximum bytes after any entry from ``since`` on, or immediately before it."""
        return max(list(accumulate(size for _, size in self.entries))[max(since - 1, 0) :], default=0)

    def alive(self) -> set[int]:
        """Return the entries whose storage still exists."""
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
    """Return a context that records all tensors that operations return."""
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
