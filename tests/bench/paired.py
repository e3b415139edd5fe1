"""The all-reduce check's own measurement and a bare loop, in turn, on the same ranks."""

import statistics
import time
from typing import ClassVar

from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Fact
from ddp_doctor.probing import all_reduces

SIZE = 4 << 20
ITERATIONS = 20  # as many as the check takes of this size
ROUNDS = 150  # of a noisy machine, whose rounds differ by half


class Paired(Fact):
    """Median seconds of one all-reduce, one entry a round."""

    KIND: ClassVar[str] = "bench-paired/1"

    ours: tuple[float, ...]
    bare: tuple[float, ...]


def probe(ctx: RankContext) -> Paired:
    """Interleaved rounds, after one of each to warm up; each is first in every other round."""
    rounds = [_round(ctx, ours_first=number % 2 == 0) for number in range(ROUNDS + 1)]
    ours, bare = zip(*rounds[1:], strict=True)
    return Paired(ours=ours, bare=bare)


def _round(ctx: RankContext, *, ours_first: bool) -> tuple[float, float]:
    if ours_first:
        return _ours(ctx), _bare_loop()
    bare = _bare_loop()
    return _ours(ctx), bare


def _ours(ctx: RankContext) -> float:
    return all_reduces.measure(ctx, SIZE).time_us / 1e6


def _bare_loop() -> float:
    """As a person would write it."""
    import torch
    import torch.distributed as dist

    tensor = torch.zeros(SIZE // 4)
    dist.all_reduce(tensor)
    times = []
    for _ in range(ITERATIONS):
        started = time.perf_counter()
        dist.all_reduce(tensor)
        times.append(time.perf_counter() - started)
    return statistics.median(times)
