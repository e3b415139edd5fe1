"""Gradients of a model that is itself in half precision: how exact their mean is, and its range."""

from collections.abc import Callable
from typing import Any

from ddp_doctor.checks.ddp.mixed_precision import scaled
from ddp_doctor.facts.ddp.gradients import Half
from ddp_doctor.knowledge.ddp import gradient_code, gradient_shares
from ddp_doctor.model.context import RankContext

_ELEMENTS = 64
#: Three quarters of the largest power of 2 in the format: two of them overflow, their mean does not.
LARGE = {"float16": 1.5 * 2.0**15, "bfloat16": 1.5 * 2.0**127}
_LINE = 300


def measure(ctx: RankContext, dtype: str, wrapped: Callable[[RankContext, Any], Any] = scaled.wrap) -> Half:
    """A step with coded gradients and one with large ones."""
    seen = Half(dtype=dtype, large=LARGE[dtype], tolerance=gradient_shares.tolerance(ctx.world_size, dtype))
    refused = _refused(ctx, dtype)
    if refused:
        return seen.model_copy(update={"not_looked": refused})
    module, elements = _linear(ctx, dtype), max(_ELEMENTS, ctx.world_size)
    with ctx.step("ddp_construct", dtype):
        model = wrapped(ctx, module)
    place = gradient_code.Place("weight", 0, elements, ctx.group_rank, ctx.ranks)
    owed = gradient_shares.Expectation(place, (1.0,) * ctx.world_size, seen.tolerance)
    one = gradient_shares.compare(owed, _gradient(ctx, model, _coded(ctx, elements)), identical=None)
    large = _gradient(ctx, model, [LARGE[dtype]] * elements).double().max()
    wrong = not one.equal and seen.tolerance <= gradient_shares.MOST_TOLERANCE
    return seen.model_copy(
        update={
            "off": one if wrong else None,
            "relative_error": None if one.max_abs_error is None else one.max_abs_error / one.expected,
            "large_mean": float(large) if bool(large.isfinite()) else None,
        }
    )


def _refused(ctx: RankContext, dtype: str) -> str:
    """Why the backend does not reduce this dtype, "" where it does: it refuses before it sends."""
    import torch
    import torch.distributed as dist

    one = torch.ones(1, dtype=getattr(torch, dtype), device=ctx.device)
    try:
        with ctx.step("all_reduce", f"1 {dtype}"):
            dist.all_reduce(one, group=ctx.group)
    except (RuntimeError, TypeError) as refused:  # gloo's, NCCL's
        return f"the backend does not reduce {dtype}: {refused}"[:_LINE]
    return ""


def _linear(ctx: RankContext, dtype: str) -> Any:
    import torch

    class Linear(torch.nn.Module):
        """loss = sum of weight x batch: the gradient is the batch."""

        weight: torch.nn.Parameter

        def forward(self, batch: Any) -> Any:
            return (self.weight * batch).sum()

    module, elements = Linear(), max(_ELEMENTS, ctx.world_size)
    zeros = torch.zeros(elements, dtype=getattr(torch, dtype), device=ctx.device)
    module.weight = torch.nn.Parameter(zeros)
    return module


def _coded(ctx: RankContext, elements: int) -> list[float]:
    return [float(gradient_code.local(0, index, ctx.group_rank, ctx.world_size)) for index in range(elements)]


def _gradient(ctx: RankContext, model: Any, values: list[float]) -> Any:
    import torch

    weight = model.module.weight
    batch = torch.tensor(values, dtype=weight.dtype, device=weight.device)
    model.zero_grad()
    with ctx.step("forward", str(weight.dtype)):
        loss = model(batch)
    with ctx.step("backward", str(weight.dtype)):
        loss.backward()
    return weight.grad.detach()
