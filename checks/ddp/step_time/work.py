"""What the steps compute, a module and batches for it, and for how long.

The doctor's own is a plain net of linear layers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ddp_doctor.checks.ddp.step_time.timing import agreed
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip

#: Width and depth: 4 MiB of gradients on a CPU, 64 MiB on a GPU, where more of it fits into 10 ms.
_CPU, _GPU = (256, 16), (1024, 16)
_SMALLEST_BATCH, _LARGEST_BATCH = 8, 1 << 16
#: What a batch may take of memory: of a CPU's this much, of a GPU's an eighth of what the rank may hold.
_CPU_BYTES, _GPU_SHARE = 256 << 20, 8
#: The net twice in DistributedDataParallel and once without: weights, gradients, buckets.
_GPU_LEAST_BYTES = 1 << 30


@dataclass(frozen=True)
class Plan:
    """How long to measure."""

    aim_s: float = 0.01  # of computing, where the batch can be chosen
    rounds: int = 5
    fewest: int = 3
    iterations: int = 2
    budget_s: float = 3.0  # for the rounds; fewer of them where they take longer
    longest_s: float = 6.0  # for the fewest of them; beyond it nothing is measured
    bucket_aim_s: float = 0.3  # the longest computation that bucket sizes are compared with


@dataclass(frozen=True)
class Work:
    """A module on this rank's device, a batch, and the loss of one for the other."""

    module: Any
    batch: Any
    loss: Callable[[Any, Any], Any]  # (module or what wraps it, batch) -> a tensor of one element
    name: str = ""  # of the user's own
    samples: int | None = None
    make: Callable[[int], Any] | None = None  # a batch of so many samples; None where that cannot be had
    most: int = _LARGEST_BATCH  # samples for which there is memory
    options: Mapping[str, Any] = field(default_factory=dict)  # for DDP
    copies: int = 2  # of the module in DDP, for which there is memory
    alike: bool = True  # every rank computes the same

    def sized(self, samples: int) -> "Work":
        """The same with another batch, where one can be made."""
        return self if self.make is None else replace(self, batch=self.make(samples), samples=samples)

    def gradient_bytes(self) -> int:
        """The bytes that DDP averages."""
        return sum(one.numel() * one.element_size() for one in self.module.parameters() if one.requires_grad)


def one_pass(work: Work, module: Any) -> None:
    """Forward and backward of a module or what wraps it; no optimiser, so that nothing changes."""
    module.zero_grad(set_to_none=True)
    work.loss(module, work.batch).backward()


def own(ctx: RankContext) -> Work:
    """The doctor's own, the same numbers on every rank: it is the same work."""
    import torch

    width, depth = _GPU if ctx.device.startswith("cuda") else _CPU
    layers: list[torch.nn.Module] = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]

    def make(samples: int) -> Any:
        generator = torch.Generator().manual_seed(1)
        return torch.randn(samples, width, generator=generator).to(ctx.device)

    most = _room(ctx) // (2 * depth * width * 4)  # what each layer keeps for backward
    work = Work(torch.nn.Sequential(*layers).to(ctx.device), None, _mean_square, make=make, most=most)
    return work.sized(_SMALLEST_BATCH)


def _room(ctx: RankContext) -> int:
    """The bytes that a batch may take on the rank that has least. Raises Skip, on all ranks, where it is little."""
    if not ctx.device.startswith("cuda"):
        return _CPU_BYTES
    free = -int(agreed(ctx, -ctx.gpu_memory_bytes))
    if free < _GPU_LEAST_BYTES:
        raise Skip("too little memory is free on a GPU")
    return free // _GPU_SHARE


def _mean_square(module: Any, batch: Any) -> Any:
    return module(batch).pow(2).mean()


def samples_for(work: Work, took_s: float, aim_s: float, times: int = 1) -> int:
    """How many samples keep it busy for ``aim_s``, by what its batch took; ``times`` as many must fit too."""
    wanted = (work.samples or _SMALLEST_BATCH) * aim_s / took_s
    return int(min(max(wanted, _SMALLEST_BATCH), work.most // times))
