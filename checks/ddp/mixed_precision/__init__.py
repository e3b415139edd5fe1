"""mixed_precision: do all ranks skip a step together, and does half precision keep the mean?

With a GradScaler each rank decides for itself whether its gradients are finite. Only DDP makes them decide the
same: an infinity on one rank reaches all ranks through the all-reduce::

    step   gradient of rank 1   stepped, all ranks   scale afterwards
    1      finite               yes                  4
    2      inf                  no                   2    (backoff_factor 0.5)
    3      finite               yes                  2

The steps run under autocast, on weights in float32; the gradient of the first is compared with its closed
form. At level thorough, models that are themselves in float16 and bfloat16 show what their gradients' mean
loses to rounding, and whether it overflows where only the sum would: DDP divides first, so 49152 on every
rank has the mean 49152 in float16, whose sum (98304 on two ranks) is beyond 65504.

Why it matters: a rank that skips alone trains another model from then on, and no error is raised.
"""

from collections.abc import Callable
from typing import Any

from ddp_doctor.checks.ddp.mixed_precision import half_rules, scaler_rules
from ddp_doctor.facts.ddp.gradients import Half, MixedPrecision, Scaled, ScaledStep
from ddp_doctor.knowledge.ddp import gradient_code, gradient_shares
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.rule import rules_in
from ddp_doctor.probing.all_reduces import not_reduced

ELEMENTS = 64
#: Far below the default of 65536, so that the largest scaled gradient of 1000 ranks still fits into float16.
SCALE = 4.0
MOST_RANKS = 1000
_RATE = 2.0**-6
_LINE = 300
_INFINITE = (False, True, False)
Wrap = Callable[[RankContext, Any], Any]


class Descent:
    """Plain gradient descent with an optimizer's interface: torch.optim takes a second to import."""

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


def measure_scaled(
    ctx: RankContext, dtype: str, wrapped: Wrap = wrap, scaler: Callable[[str], Any] = scaler_of
) -> Scaled:
    """A step, one with an infinite gradient on the last rank, and another step."""
    kind, last = ctx.device.partition(":")[0], ctx.ranks[-1]
    measured = Scaled(dtype=dtype, infinite_rank=last)
    if ctx.world_size > MOST_RANKS:
        return measured.model_copy(update={"not_looked": f"{ctx.world_size} ranks need larger gradients"})
    module, lacks = _product(ctx), ""
    scale: Any = None
    try:
        scale = scaler(kind)
        lacks = _why_no_autocast(module, _given(ctx, infinite=False), kind, dtype)
    except (AttributeError, TypeError) as lacking:
        lacks = f"this torch has no GradScaler for {kind}: {lacking}"
    with ctx.step("exchange", f"can scale {dtype}"):  # a rank that cannot must not leave the others waiting
        reasons = [reason for reason in ctx.exchange(f"can scale {dtype}", lacks) if reason]
    if reasons:
        return measured.model_copy(update={"not_looked": reasons[0]})
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
    return measured.model_copy(update={"scale": SCALE, "tolerance": relative, "off": off, "steps": tuple(steps)})


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
    """The batch whose gradient is the code; on the last rank it is infinite if ``infinite`` is set."""
    import torch

    index = torch.arange(ELEMENTS * ctx.world_size, device=ctx.device)
    batch = gradient_code.local(0, index, ctx.group_rank, ctx.world_size).to(torch.float32)
    if infinite and ctx.group_rank == ctx.world_size - 1:
        batch[0] = torch.inf
    return batch.reshape(1, -1)


def _why_no_autocast(module: Any, batch: Any, kind: str, dtype: str) -> str:
    """ "" where torch computes this module in the format, else why not: an older GPU lacks bfloat16."""
    import torch

    reason = ""
    try:
        with torch.no_grad(), torch.autocast(kind, getattr(torch, dtype)):
            if module(batch).dtype is getattr(torch, dtype):
                return ""
    except RuntimeError as refused:
        reason = f": {refused}".partition("\n")[0]
    return f"torch does not autocast to {dtype} on {kind}{reason}"[:_LINE]


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
    expected = gradient_shares.Expectation(place, (1.0,) * ctx.world_size, relative)
    compared = gradient_shares.compare(expected, None if grad is None else grad.detach().reshape(-1), identical=None)
    return None if compared.equal else compared


#: Three quarters of the largest power of 2 in the format: two of them overflow, their mean does not.
LARGE = {"float16": 1.5 * 2.0**15, "bfloat16": 1.5 * 2.0**127}


def measure_half(ctx: RankContext, dtype: str, wrapped: Wrap = wrap) -> Half:
    """A step with coded gradients and one with large ones."""
    measured = Half(dtype=dtype, large=LARGE[dtype], tolerance=gradient_shares.tolerance(ctx.world_size, dtype))
    refused = not_reduced(ctx, dtype)
    if refused:
        return measured.model_copy(update={"not_looked": refused})
    module, elements = _linear(ctx, dtype), max(ELEMENTS, ctx.world_size)
    with ctx.step("ddp_construct", dtype):
        model = wrapped(ctx, module)
    place = gradient_code.Place("weight", 0, elements, ctx.group_rank, ctx.ranks)
    expected = gradient_shares.Expectation(place, (1.0,) * ctx.world_size, measured.tolerance)
    compared = gradient_shares.compare(expected, _gradient(ctx, model, _coded(ctx, elements)), identical=None)
    large = _gradient(ctx, model, [LARGE[dtype]] * elements).double().max()
    wrong = not compared.equal and measured.tolerance <= gradient_shares.MOST_TOLERANCE
    return measured.model_copy(
        update={
            "off": compared if wrong else None,
            "relative_error": None if compared.max_abs_error is None else compared.max_abs_error / compared.expected,
            "large_mean": float(large) if bool(large.isfinite()) else None,
        }
    )


def _linear(ctx: RankContext, dtype: str) -> Any:
    import torch

    class Linear(torch.nn.Module):
        """loss = sum of weight x batch: the gradient is the batch."""

        weight: torch.nn.Parameter

        def forward(self, batch: Any) -> Any:
            return (self.weight * batch).sum()

    module, elements = Linear(), max(ELEMENTS, ctx.world_size)
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


def probe(ctx: RankContext) -> MixedPrecision:
    """Take scaled steps, and at level thorough steps in half precision."""
    thorough = ctx.level.includes(Level.THOROUGH)
    first, second = ("float16", "bfloat16") if ctx.device.startswith("cuda") else ("bfloat16", "float16")
    return MixedPrecision(
        world_size=ctx.world_size,
        scaled=tuple(measure_scaled(ctx, dtype) for dtype in ((first, second) if thorough else (first,))),
        halves=tuple(measure_half(ctx, dtype) for dtype in ((first, second) if thorough else ())),
    )


CHECK = Check(
    id="mixed_precision",
    title="Ranks skip and scale steps together",
    where=Where.RANK,
    probe=probe,
    facts=(MixedPrecision,),
    rules=rules_in(half_rules, scaler_rules),
    level=Level.STANDARD,
    min_ranks=2,
    cost_s=0.05,
)
