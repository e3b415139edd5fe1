"""The work of the steps, in DDP with its buckets, and timed blocks that all ranks start together."""

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

#: Width and depth: 4 MiB of gradients on a CPU, 64 MiB on a GPU, which does more work in 10 ms.
_CPU, _GPU = (256, 16), (1024, 16)
_SMALLEST_BATCH = 8
#: Memory for a batch: this much on a CPU, an eighth of the rank's share on a GPU.
_CPU_BYTES, _GPU_SHARE = 256 << 20, 8
#: The network twice in DistributedDataParallel and once without: weights, gradients, buckets.
_GPU_LEAST_BYTES = 1 << 30


@dataclass(frozen=True)
class Plan:
    """The time and the repetitions of the measurement."""

    aim_s: float = 0.01  # of computation, if the batch can be chosen
    rounds: int = 5
    fewest: int = 3
    iterations: int = 2
    budget_s: float = 3.0  # for the rounds; long rounds are fewer
    longest_s: float = 6.0  # for the fewest rounds; if they take longer, nothing is measured
    bucket_aim_s: float = 0.3  # the longest computation for comparing bucket sizes


def one_pass(work: Work, module: Any) -> None:
    """Run forward and backward of a module or its wrapper, without an optimizer, so that no parameter changes."""
    module.zero_grad(set_to_none=True)
    work.loss(module, work.batch).backward()


def own(ctx: RankContext) -> Work:
    """Return ddp-doctor's own work, with the same values on every rank. Raises Skip on all ranks."""
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
    most = room // (2 * depth * width * 4)  # each layer keeps its output for backward
    module = torch.nn.Sequential(*layers).to(ctx.device)
    work = Work(module, None, lambda module, batch: module(batch).pow(2).mean(), make=make, most=most)
    return work.sized(_SMALLEST_BATCH)


def samples_for(work: Work, took_s: float, aim_s: float, times: int = 1) -> int:
    """Return how many samples take ``aim_s``, from its batch's time; ``times`` as many must also fit in memory."""
    wanted = (work.samples or _SMALLEST_BATCH) * aim_s / took_s
    return int(min(max(wanted, _SMALLEST_BATCH), work.most // times))


def timed(ctx: RankContext, name: str, detail: str, once: Callable[[], object], times: int) -> float:
    """Return the mean seconds of several calls of ``once``, started when all ranks have arrived."""
    meet(ctx)
    with ctx.step(name, detail):
        started = ctx.clock()
        for _ in range(times):
            once()
        finish(ctx.device)
        return (ctx.clock() - started) / times


def quickest(ctx: RankContext, work: Work, times: int) -> float:
    """Return the seconds of the fastest of several passes without synchronization."""
    return min(timed(ctx, "compute", "to fit the batch", lambda: one_pass(work, work.module), 1) for _ in range(times))


def in_turns(
    ctx: RankContext, work: Work, models: dict[str, Any], rounds: int, times: int = 1
) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each model's step in every round; the first model alternates."""
    took: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(2):  # DDP rebuilds its buckets after the first step
        for name, model in models.items():
            timed(ctx, "step", f"{name}, warm-up", partial(one_pass, work, model), 1)
    for number in range(rounds):
        for name in models if number % 2 == 0 else reversed(models):
            detail = f"{name}, round {number + 1} of {rounds}"
            took[name].append(timed(ctx, "step", detail, partial(one_pass, work, models[name]), times))
    return {name: tuple(seconds) for name, seconds in took.items()}


class ProcessorTime:
    """The share of the computation time in which this thread had a processor."""

    def __init__(self, ctx: RankContext) -> None:
        self._ctx = ctx
        self._wall = self._on_cpu = 0.0

    def of(self, once: Callable[[], object]) -> None:
        """Call ``once`` and add its times."""
        wall, on_cpu = self._ctx.clock(), time.thread_time()
        once()
        self._wall += self._ctx.clock() - wall
        self._on_cpu += time.thread_time() - on_cpu

    @property
    def share(self) -> float | None:
        """The share, or None if nothing was counted, or a GPU computes."""
        if self._wall <= 0.0 or self._ctx.device.startswith("cuda"):
            return None
        return min(self._on_cpu / self._wall, 1.0)


def wrap(ctx: RankContext, work: Work, cap_mib: float | None) -> Any:
    """Wrap a copy of the module in DDP; without a cap, with DDP's default buckets.

    It is a copy, because the reducers of two wrappers would both act on the gradients of one module. Raises Skip on all
    ranks if one of them cannot copy it.
    """
    from torch.nn.parallel import DistributedDataParallel

    module, problem = None, ""
    try:
        module = deepcopy(work.module)
    except Exception as error:  # noqa: BLE001 - the user's code may prevent it: a lock, a file, a tensor's history
        problem = f"{type(error).__name__} on this rank"
    if agreed(ctx, float(bool(problem))):
        raise Skip(
            f"this test needs a copy of the model, but the model cannot be copied ({problem or 'on another rank'})"
        )
    given = {**work.options, **({} if cap_mib is None else {"bucket_cap_mb": cap_mib})}
    with ctx.step("ddp_construct", f"buckets of {cap_mib:g} MiB" if cap_mib else "buckets as usual"):
        return DistributedDataParallel(module, process_group=ctx.group, **given)


def built(ddp: Any) -> tuple[int, ...]:
    """Return the bytes of the buckets, in the order of their all-reduces; empty if DDP does not report them."""
    read_log = getattr(ddp, "_get_ddp_logging_data", None)  # a private method that a release may remove
    if read_log is None:
        return ()
    data = read_log()
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or ""
    return tuple(int(part) for part in str(text).split(",") if part.strip().isdigit())
