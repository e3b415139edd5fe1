"""What the steps compute, in DDP with its buckets, and timed blocks that all ranks begin together."""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.work import Work
from ddp_doctor.probing.all_reduces import agreed, meet
from ddp_doctor.probing.rank_identity import finish

#: Width and depth: 4 MiB of gradients on a CPU, 64 MiB on a GPU, where more of it fits into 10 ms.
_CPU, _GPU = (256, 16), (1024, 16)
_SMALLEST_BATCH = 8
#: The memory that a batch may take: this much on a CPU, an eighth of the rank's share on a GPU.
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


def one_pass(work: Work, module: Any) -> None:
    """Forward and backward of a module or what wraps it; no optimizer, so that nothing changes."""
    module.zero_grad(set_to_none=True)
    work.loss(module, work.batch).backward()


def own(ctx: RankContext) -> Work:
    """The doctor's own work, with the same numbers on every rank. Raises Skip on all of them."""
    import torch

    width, depth = _GPU if ctx.device.startswith("cuda") else _CPU
    layers: list[torch.nn.Module] = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]

    def make(samples: int) -> Any:
        generator = torch.Generator().manual_seed(1)
        return torch.randn(samples, width, generator=generator).to(ctx.device)

    room = _CPU_BYTES  # on the rank with the least memory
    if ctx.device.startswith("cuda"):
        free = -int(agreed(ctx, -ctx.gpu_memory_bytes))
        if free < _GPU_LEAST_BYTES:
            raise Skip(
                f"on one of the GPUs, ddp-doctor may use only {free >> 20} MiB of memory, but this test needs"
                f" {_GPU_LEAST_BYTES >> 20} MiB"
            )
        room = free // _GPU_SHARE
    most = room // (2 * depth * width * 4)  # what each layer keeps for backward
    module = torch.nn.Sequential(*layers).to(ctx.device)
    work = Work(module, None, lambda module, batch: module(batch).pow(2).mean(), make=make, most=most)
    return work.sized(_SMALLEST_BATCH)


def samples_for(work: Work, took_s: float, aim_s: float, times: int = 1) -> int:
    """How many samples keep it busy for ``aim_s``, by what its batch took; ``times`` as many must fit too."""
    wanted = (work.samples or _SMALLEST_BATCH) * aim_s / took_s
    return int(min(max(wanted, _SMALLEST_BATCH), work.most // times))


def timed(ctx: RankContext, name: str, detail: str, once: Callable[[], object], times: int) -> float:
    """Seconds of one call of ``once``, the mean of several, begun when all ranks had come."""
    meet(ctx)
    with ctx.step(name, detail):
        started = ctx.clock()
        for _ in range(times):
            once()
        finish(ctx.device)
        return (ctx.clock() - started) / times


def quickest(ctx: RankContext, work: Work, times: int) -> float:
    """Seconds of the quickest of several passes without synchronization."""
    return min(timed(ctx, "compute", "to fit the batch", lambda: one_pass(work, work.module), 1) for _ in range(times))


def in_turns(
    ctx: RankContext, work: Work, models: dict[str, Any], rounds: int, times: int = 1
) -> dict[str, tuple[float, ...]]:
    """Seconds of a step of each in every round, each of them going first in its turn."""
    took: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(2):  # DDP builds its buckets anew after the first step
        for name, model in models.items():
            timed(ctx, "step", f"{name}, warm-up", partial(one_pass, work, model), 1)
    for number in range(rounds):
        for name in models if number % 2 == 0 else reversed(models):
            detail = f"{name}, round {number + 1} of {rounds}"
            took[name].append(timed(ctx, "step", detail, partial(one_pass, work, models[name]), times))
    return {name: tuple(seconds) for name, seconds in took.items()}


class ProcessorTime:
    """The share of the computing time in which this thread had a processor."""

    def __init__(self, ctx: RankContext) -> None:
        self._ctx = ctx
        self._wall = self._on_cpu = 0.0

    def of(self, once: Callable[[], object]) -> None:
        """Call ``once`` and count its times."""
        wall, on_cpu = self._ctx.clock(), time.thread_time()
        once()
        self._wall += self._ctx.clock() - wall
        self._on_cpu += time.thread_time() - on_cpu

    @property
    def share(self) -> float | None:
        """None where nothing was counted, or a GPU computes."""
        if self._wall <= 0.0 or self._ctx.device.startswith("cuda"):
            return None
        return min(self._on_cpu / self._wall, 1.0)


def wrap(ctx: RankContext, work: Work, cap_mib: float | None) -> Any:
    """A copy of the module in DDP; without a cap, with DDP's default buckets.

    A copy, because the reducers of two wrappers would both act on the gradients of one module. Raises Skip, on
    all ranks, where one of them cannot copy it.
    """
    from torch.nn.parallel import DistributedDataParallel

    module, problem = None, ""
    try:
        module = deepcopy(work.module)
    except Exception as error:  # noqa: BLE001 - the user's code may rule it out: a lock, a file, a tensor's history
        problem = f"{type(error).__name__} on this rank"
    if agreed(ctx, float(bool(problem))):
        raise Skip(
            f"this test needs a copy of the model, but the model cannot be copied ({problem or 'on another rank'})"
        )
    given = {**work.options, **({} if cap_mib is None else {"bucket_cap_mb": cap_mib})}
    with ctx.step("ddp_construct", f"buckets of {cap_mib:g} MiB" if cap_mib else "buckets as usual"):
        return DistributedDataParallel(module, process_group=ctx.group, **given)


def built(ddp: Any) -> tuple[int, ...]:
    """The bytes of the buckets, in the order of their all-reduces; none where DDP does not report them."""
    read_log = getattr(ddp, "_get_ddp_logging_data", None)  # an inner call of torch that a release may remove
    if read_log is None:
        return ()
    data = read_log()
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return tuple(int(part) for part in str(text).split(",") if part.strip().isdigit())
