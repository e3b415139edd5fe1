"""Timed blocks that all ranks begin together, and what the ranks agree upon."""

import time
from collections.abc import Callable

from ddp_doctor.model.context import RankContext


def finish(ctx: RankContext) -> None:
    """Wait for the GPU: calls return before their work is done."""
    if ctx.device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(ctx.device)


def agreed(ctx: RankContext, value: float, *, of_first: bool = False) -> float:
    """The largest value of all ranks, or that of the first: what follows must be the same everywhere."""
    import torch
    import torch.distributed as dist

    mine = value if not of_first or ctx.group_rank == 0 else float("-inf")
    tensor = torch.tensor([mine], dtype=torch.float64, device=ctx.device)
    with ctx.step("all_reduce", "float64 [1] max"):
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=ctx.group)
        return float(tensor.item())


def meet(ctx: RankContext) -> None:
    """Nobody goes on before the last rank has come."""
    agreed(ctx, 0.0)


def timed(ctx: RankContext, name: str, detail: str, once: Callable[[], object], times: int) -> float:
    """Seconds of one call of ``once``, the mean of several, begun when all ranks had come."""
    meet(ctx)
    with ctx.step(name, detail):
        started = ctx.clock()
        for _ in range(times):
            once()
        finish(ctx)
        return (ctx.clock() - started) / times


class ProcessorTime:
    """How much of the time of computing this thread had a processor."""

    def __init__(self, ctx: RankContext) -> None:
        self._ctx = ctx
        self._wall = self._on_cpu = 0.0

    def of(self, once: Callable[[], object]) -> None:
        """Do it, and count."""
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
