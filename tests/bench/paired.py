"""The doctor's own measurement of a collective and a bare loop, in turn, on the same ranks."""

import statistics
import time
from collections.abc import Callable
from typing import ClassVar

from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Fact
from ddp_doctor.probing import all_reduces

SIZE = 4 << 20
ITERATIONS = 20  # as many as the check uses for this size
ROUNDS = 150  # of a noisy machine, whose rounds differ by half
NAMES = ("all_reduce", "all_gather", "all_to_all")


class Paired(Fact):
    """Median seconds of one call, one entry a round, by collective."""

    KIND: ClassVar[str] = "bench-paired/1"

    ours: dict[str, tuple[float, ...]]
    bare: dict[str, tuple[float, ...]]


def probe(ctx: RankContext) -> Paired:
    """Interleaved rounds, after one of each to warm up; each is first in every other round."""
    ours, bare = {}, {}
    for name in NAMES:
        rounds = [_round(ctx, name, ours_first=number % 2 == 0) for number in range(ROUNDS + 1)]
        ours[name], bare[name] = zip(*rounds[1:], strict=True)
    return Paired(ours=ours, bare=bare)


def _round(ctx: RankContext, name: str, *, ours_first: bool) -> tuple[float, float]:
    if ours_first:
        return _ours(ctx, name), _bare_loop(name)
    bare = _bare_loop(name)
    return _ours(ctx, name), bare


def _ours(ctx: RankContext, name: str) -> float:
    return all_reduces.measure(ctx, SIZE, TABLE[name]).time_us / 1e6


def _bare_loop(name: str) -> float:
    import torch
    import torch.distributed as dist

    given, taken = torch.zeros(SIZE // 4), torch.zeros(SIZE // 4)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(given),
        "all_gather": lambda: dist.all_gather_into_tensor(taken, given[: len(taken) // dist.get_world_size()]),
        "all_to_all": lambda: dist.all_to_all_single(taken, given),
    }
    call = calls[name]
    call()
    times = []
    for _ in range(ITERATIONS):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
