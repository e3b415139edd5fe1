"""Steps under autocast, with a GradScaler on each rank: one of them with an infinite gradient."""

from collections.abc import Callable
from typing import Any

from ddp_doctor.facts.ddp.gradients import Scaled, ScaledStep
from ddp_doctor.knowledge.ddp import gradient_code, gradient_shares
from ddp_doctor.model.context import RankContext

ELEMENTS = 64
#: Far below the default of 65536, so that the largest scaled gradient of 1000 ranks still fits into float16.
SCALE = 4.0
MOST_RANKS = 1000
_RATE = 2.0**-6
_LINE = 300
_INFINITE = (False, True, False)
Wrap = Callable[[RankContext, Any], Any]


class Descent:
    """Plain gradient descent with the face of an optimizer: torch.optim takes a second to import."""

    def __init__(self, parameters: list[Any]) -> None:
        self.param_groups = [{"params": parameters}]
        self.steps = 0

    def step(self) -> None:
        """Take one step; a GradScaler calls it only where all gradients are finite."""
        self.steps += 1
        for parameter in self.param_groups[0]["params"]:
            parameter.data.add_(parameter.grad, alpha=-_RATE)


def wrap(ctx: RankContext, module: Any) -> Any:
    """The module in DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module, process_group=ctx.group)


def scaler_of(device: str) -> Any:
    """A GradScaler for this kind of device. Raises AttributeError or TypeError where torch has none."""
    import torch

    return torch.amp.GradScaler(device, init_scale=SCALE)


def measure(
    ctx: RankContext, dtype: str, wrapped: Wrap = wrap, scaler: Callable[[str], Any] = scaler_of
) -> Scaled:
    """A step, one with an infinite gradient on the last rank, and another step."""
    kind, last = ctx.device.partition(":")[0], ctx.ranks[-1]
    seen = Scaled(dtype=dtype, infinite_rank=last)
    if ctx.world_size > MOST_RANKS:
        return seen.model_copy(update={"not_looked": f"{ctx.world_size} ranks need larger gradients"})
    module, lacks = _product(ctx), ""
    scale: Any = None
    try:
        scale = scaler(kind)
        lacks = _why_no_autocast(module, _given(ctx, infinite=False), kind, dtype)
    except (AttributeError, TypeError) as lacking:
        lacks = f"this torch has no GradScaler for {kind}: {lacking}"
    with ctx.step("exchange", f"can scale {dtype}"):  # a rank that cannot must not leave the others waiting
        said = [one for one in ctx.exchange(f"can scale {dtype}", lacks) if one]
    if said:
        return seen.model_copy(update={"not_looked": said[0]})
    with ctx.step("ddp_construct", f"autocast {dtype}"):
        model = wrapped(ctx, module)
    descent, steps, off = Descent(list(module.parameters())), [], None
    relative = 2 * gradient_shares.ROUNDING[dtype] + gradient_code.tolerance(ctx.world_size)
    for number, infinite in enumerate(_INFINITE):
        model.zero_grad()
        _backward(ctx, model, scale, dtype, infinite=infinite)
        scale.unscale_(descent)
        if number == 0:
            off = _off(ctx, module.weight.grad, relative)
        before = descent.steps
        scale.step(descent)
        scale.update()
        bits = int(gradient_code.checksum(module.weight.detach().reshape(-1)))
        stepped = descent.steps > before
        steps.append(ScaledStep(infinite=infinite, stepped=stepped, scale=scale.get_scale(), bits=bits))
    return seen.model_copy(update={"scale": SCALE, "tolerance": relative, "off": off, "steps": tuple(steps)})


def _product(ctx: RankContext) -> Any:
    import torch

    class Product(torch.nn.Module):
        """loss = batch x weight, which autocast computes in half precision."""

        weight: torch.nn.Parameter

        def forward(self, batch: Any) -> Any:
            return batch @ self.weight

    module = Product()
    module.weight = torch.nn.Parameter(torch.zeros(ELEMENTS * ctx.world_size, 1, device=ctx.device))
    return module


def _given(ctx: RankContext, *, infinite: bool) -> Any:
    """The batch that makes the code the gradient; infinite on the last rank, where it is to be."""
    import torch

    index = torch.arange(ELEMENTS * ctx.world_size, device=ctx.device)
    batch = gradient_code.local(0, index, ctx.group_rank, ctx.world_size).to(torch.float32)
    if infinite and ctx.group_rank == ctx.world_size - 1:
        batch[0] = torch.inf
    return batch.reshape(1, -1)


def _why_no_autocast(module: Any, batch: Any, kind: str, dtype: str) -> str:
    """ "" where torch computes this module in the format, else why not: an older GPU lacks bfloat16."""
    import torch

    said = ""
    try:
        with torch.no_grad(), torch.autocast(kind, getattr(torch, dtype)):
            if module(batch).dtype is getattr(torch, dtype):
                return ""
    except RuntimeError as refused:
        said = f": {refused}".partition("\n")[0]
    return f"torch does not autocast to {dtype} on {kind}{said}"[:_LINE]


def _backward(ctx: RankContext, model: Any, scale: Any, dtype: str, *, infinite: bool) -> None:
    import torch

    kind, detail = ctx.device.partition(":")[0], "with an infinite gradient" if infinite else dtype
    batch = _given(ctx, infinite=infinite)
    with ctx.step("forward", detail), torch.autocast(kind, getattr(torch, dtype)):
        loss = model(batch).sum()
    with ctx.step("backward", detail):
        scale.scale(loss).backward()


def _off(ctx: RankContext, grad: Any, relative: float) -> gradient_code.OffGradient | None:
    place = gradient_code.Place("weight", 0, ELEMENTS * ctx.world_size, ctx.group_rank, ctx.ranks)
    owed = gradient_shares.Expectation(place, (1.0,) * ctx.world_size, relative)
    one = gradient_shares.compare(owed, None if grad is None else grad.detach().reshape(-1), identical=None)
    return None if one.equal else one
