"""Is the result of an all-reduce right, in every type, and the same twice?"""

from typing import TYPE_CHECKING

from ddp_doctor.facts.collectives import ELEMENTS, Wrong
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext

if TYPE_CHECKING:
    import torch


def correctness(ctx: RankContext) -> tuple[list[str], list[Wrong]]:
    """The types and operations that were tested, and the wrong results among them."""
    import torch
    import torch.distributed as dist

    ops = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
    ops["product"] = dist.ReduceOp.PRODUCT
    tested, wrong = [], []
    for dtype, op in payload.exact_cases(ctx.world_size, few=_is_crowded(ctx)):
        value = payload.share(op, ctx.group_rank, ctx.world_size, dtype)
        tensor = torch.full((ELEMENTS,), value, dtype=getattr(torch, dtype), device=ctx.device)
        with ctx.step("all_reduce", f"{dtype} [{ELEMENTS}] {op}"):
            dist.all_reduce(tensor, op=ops[op])
            found = compare(tensor, dtype, op, ctx)
        tested.append(f"{dtype} {op}")
        if found is not None:
            wrong.append(found)
    return tested, wrong


def _is_crowded(ctx: RankContext) -> bool:
    """Many CPU ranks on one node: each collective costs what a whole check costs elsewhere."""
    return ctx.world_size > payload.CROWD and ctx.device == "cpu" and ctx.level is Level.QUICK


def compare(tensor: "torch.Tensor", dtype: str, op: str, ctx: RankContext) -> Wrong | None:
    """What is wrong with a reduced tensor, None where it is right."""
    expected = payload.expected(op, ctx.world_size, dtype)
    # A product of floats may exceed the largest integer that torch compares with.
    off = (tensor != (float(expected) if tensor.is_floating_point() else expected)).nonzero()
    if len(off) == 0:
        return None
    first = tensor[off[0]]
    got, alike = first.item(), bool((tensor[off] == first).all().item())  # integers as integers
    throughout = alike and len(off) == ELEMENTS
    blamed = payload.blame(op, got, ctx.world_size, dtype) if throughout else ()
    return Wrong(
        dtype=dtype,
        op=op,
        elements=len(off),
        expected=float(expected),
        got=float(got),
        alike=alike,
        blamed=tuple(ctx.ranks[rank] for rank in blamed),
    )


def is_repeatable(ctx: RankContext) -> bool:
    """Whether the same inputs give the same bits twice; the inputs are not exact in fp32."""
    import torch
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(1000 + ctx.group_rank)
    given = torch.rand(ELEMENTS, generator=generator).to(ctx.device)
    results = []
    for _ in range(2):
        tensor = given.clone()
        with ctx.step("all_reduce", f"float32 [{ELEMENTS}] sum"):
            dist.all_reduce(tensor)
        results.append(tensor)
    return bool(torch.equal(results[0], results[1]))
