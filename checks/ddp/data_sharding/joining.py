"""Uneven inputs: the first rank has one batch more than the others, under ``DDP.join()``."""

import math
from typing import Any

from ddp_doctor.checks.ddp.data_sharding.expected_shares import joined_mean
from ddp_doctor.facts.ddp.data_sharding import Joined
from ddp_doctor.model.context import RankContext


def planned_steps(ctx: RankContext) -> int:
    """How many batches this rank has."""
    return 2 if ctx.group_rank == 0 else 1


def agreed_steps(ctx: RankContext) -> tuple[int, ...]:
    """How many each has, by group rank; asked where no rank can hang."""
    with ctx.step("exchange", "steps"):
        said = ctx.exchange("steps", str(planned_steps(ctx)))
    return tuple(int(one) for one in said)


def joined(ctx: RankContext, steps: tuple[int, ...]) -> tuple[Joined, ...]:
    """The weight after these steps, for both ways to divide, in one DDP: to make it is the dear part."""
    model = wrap(ctx)
    gradients = [float(place + 1) for place in range(len(steps))]
    return tuple(
        Joined(
            by_initial_world_size=by_initial,
            expected=-joined_mean(steps, gradients, by_initial),
            weight=_train(ctx, model, steps[ctx.group_rank], by_initial),
        )
        for by_initial in (True, False)
    )


def _train(ctx: RankContext, model: Any, steps: int, by_initial: bool) -> float | None:
    """The weight, from 0, after gradient descent at rate 1; the gradient of a batch is this rank's group rank + 1."""
    import torch

    torch.nn.init.zeros_(model.module.weight)
    batch = torch.full((1, 1), float(ctx.group_rank + 1), device=ctx.device)
    with ctx.step("join", f"by_initial={by_initial}"):
        with model.join(divide_by_initial_world_size=by_initial):
            for _ in range(steps):
                model.zero_grad()
                model(batch).sum().backward()
                with torch.no_grad():
                    model.module.weight -= model.module.weight.grad
        weight = model.module.weight.item()
    return float(weight) if math.isfinite(weight) else None


def wrap(ctx: RankContext) -> Any:
    """One weight in DistributedDataParallel."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    module = torch.nn.Linear(1, 1, bias=False)
    with ctx.step("ddp_construct", "join"):
        return DistributedDataParallel(module.to(ctx.device), process_group=ctx.group)
