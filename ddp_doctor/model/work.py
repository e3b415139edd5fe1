"""The work of a test's training steps: ddp-doctor's own module or the user's, a batch and the loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: Samples of the largest batch.
_LARGEST_BATCH = 1 << 16


@dataclass(frozen=True)
class Work:
    """A module on this rank's device, a batch, and the loss of the module for a batch."""

    module: Any
    batch: Any
    loss: Callable[[Any, Any], Any]  # (module or its wrapper, batch) -> a tensor of one element
    name: str = ""  # of the user's model; empty for ddp-doctor's
    samples: int | None = None
    make: Callable[[int], Any] | None = None  # makes a batch of this many samples; None: the batch size is fixed
    most: int = _LARGEST_BATCH  # maximum number of samples that fit in memory
    options: Mapping[str, Any] = field(default_factory=dict)  # options of DDP
    unused: bool = False  # some parameters get no gradient on some rank
    copies: int = 2  # number of copies of the module in DDP that fit in memory
    alike: bool = True  # every rank computes the same

    def sized(self, samples: int) -> "Work":
        """Return the work with a batch of this many samples, or unchanged if the batch size is fixed."""
        return self if self.make is None else replace(self, batch=self.make(samples), samples=samples)

    def gradient_bytes(self) -> int:
        """Return the number of bytes that DDP averages."""
        return sum(parameter.nbytes for parameter in self.module.parameters() if parameter.requires_grad)
