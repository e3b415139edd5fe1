"""What the steps of a test compute: the doctor's own module or the user's, a batch and the loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: Samples of the largest batch.
_LARGEST_BATCH = 1 << 16


@dataclass(frozen=True)
class Work:
    """A module on this rank's device, a batch, and the loss of one for the other."""

    module: Any
    batch: Any
    loss: Callable[[Any, Any], Any]  # (module or what wraps it, batch) -> a tensor of one element
    name: str = ""  # of the user's own
    samples: int | None = None
    make: Callable[[int], Any] | None = None  # a batch of so many samples; None where no such batch can be made
    most: int = _LARGEST_BATCH  # samples for which there is memory
    options: Mapping[str, Any] = field(default_factory=dict)  # for DDP
    unused: bool = False  # some parameter gets no gradient on some rank
    copies: int = 2  # of the module in DDP, for which there is memory
    alike: bool = True  # every rank computes the same

    def sized(self, samples: int) -> "Work":
        """The same with another batch, where one can be made."""
        return self if self.make is None else replace(self, batch=self.make(samples), samples=samples)

    def gradient_bytes(self) -> int:
        """The bytes that DDP averages."""
        return sum(parameter.nbytes for parameter in self.module.parameters() if parameter.requires_grad)
