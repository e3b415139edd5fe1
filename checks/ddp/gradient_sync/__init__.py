"""gradient_sync: does DistributedDataParallel give every rank the mean of all ranks' gradients?

What the probe reads on each rank is the ``.grad`` of a small DDP-wrapped model after ``backward()``::

    parameter weight3, 8195 elements, bucket cap 32 KiB, 2 ranks
      local gradient, rank 0    12. 4. 12. 4. …    (known in closed form: knowledge/ddp/gradient_code.py)
      local gradient, rank 1    4. 12. 4. 12. …
      .grad after backward()     8. 8. 8. 8. …      = the mean, on both ranks, bit for bit

The probe reads gradients after the first step (DDP's one big bucket), after a step inside ``no_sync()`` (the
gradient must stay the rank's own) and after the next step (several buckets; the mean of both steps' gradients).

Why it matters: no training job notices a wrong mean, and the loss still falls.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from ddp_doctor.checks.ddp.gradient_sync import rules
from ddp_doctor.facts.ddp.gradients import GradientSync, Phase
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in

#: Small enough that the model's parameters fill several buckets.
BUCKET_CAP_BYTES = 32 * 1024
_ONCE, _TWICE = 1, 2  # gradients after no_sync() are doubled, so that a lost step shows in the sum


def coded_model(ctx: RankContext) -> Any:
    """A torch module of five flat parameters, whose loss is linear in each of them."""
    import torch

    class Linear(torch.nn.Module):
        """loss = sum of parameter x input: the gradient of a parameter is its input, exactly."""

        def forward(self, *inputs: Any) -> Any:
            pairs = zip(self.parameters(), inputs, strict=True)
            return torch.stack([(parameter * given).sum() for parameter, given in pairs]).sum()

    model = Linear()
    least = max(256, ctx.world_size)  # each rank needs an element of its own
    for number, elements in enumerate((least, 3 * least + 1, 16 * least + 7, 32 * least + 3, least + 5)):
        zeros = torch.zeros(elements, dtype=torch.float32, device=ctx.device)
        model.register_parameter(f"weight{number}", torch.nn.Parameter(zeros))
    return model


def wrap(ctx: RankContext, module: Any) -> Any:
    """The module in DistributedDataParallel, with buckets of BUCKET_CAP_BYTES."""
    from torch.nn.parallel import DistributedDataParallel

    with ctx.step("ddp_construct", f"{len(list(module.parameters()))} parameters"):
        return DistributedDataParallel(module, process_group=ctx.group, bucket_cap_mb=BUCKET_CAP_BYTES / 2**20)


def measure(ctx: RankContext, model: Any, ddp_construct_s: float = 0.0) -> GradientSync:
    """The gradients of a DDP-wrapped ``coded_model`` after three steps."""
    _one_step(ctx, model, _ONCE, sync=True)
    step = _grads(model)
    model.zero_grad()
    _one_step(ctx, model, _ONCE, sync=False)
    own = _grads(model)
    seconds = _one_step(ctx, model, _TWICE, sync=True)
    resync = _grads(model)
    started = ctx.clock()
    identical = iter(_identical(ctx, [*step, *resync]))
    all_gather_s = ctx.clock() - started
    parameters = list(model.module.parameters())
    return GradientSync(
        world_size=ctx.world_size,
        parameters=len(parameters),
        elements=sum(parameter.numel() for parameter in parameters),
        bucket_cap_bytes=BUCKET_CAP_BYTES,
        step=_phase(ctx, model, step, _ONCE, identical),
        no_sync=_phase(ctx, model, own, _ONCE, None),
        resync=_phase(ctx, model, resync, _ONCE + _TWICE, identical),
        ddp_construct_s=ddp_construct_s,
        forward_s=seconds[0],
        backward_s=seconds[1],
        all_gather_s=all_gather_s,
    )


def _one_step(ctx: RankContext, model: Any, scale: int, *, sync: bool) -> tuple[float, float]:
    """Forward and backward with this rank's inputs; seconds of each."""
    import torch

    inputs = [
        scale
        * gradient_code.local(
            number, torch.arange(len(parameter), device=parameter.device), ctx.group_rank, ctx.world_size
        )
        for number, parameter in enumerate(model.module.parameters())
    ]
    inputs = [given.to(torch.float32) for given in inputs]
    detail = f"gradients x {scale}" if sync else "inside no_sync()"
    with nullcontext() if sync else model.no_sync():
        started = ctx.clock()
        with ctx.step("forward", detail):
            loss = model(*inputs)
        forwarded = ctx.clock()
        with ctx.step("backward", detail):
            loss.backward()
    return forwarded - started, ctx.clock() - forwarded


def _grads(model: Any) -> list[Any]:
    """Copies of all gradients; None where a parameter has none."""
    grads = [parameter.grad for parameter in model.module.parameters()]
    return [None if grad is None else grad.detach().clone() for grad in grads]


def _identical(ctx: RankContext, grads: Sequence[Any]) -> list[bool]:
    """For each gradient, whether all ranks hold the same bits (by a 64-bit checksum)."""
    import torch
    import torch.distributed as dist

    none = torch.zeros((), dtype=torch.int64, device=ctx.device)
    mine = torch.stack([none if grad is None else gradient_code.checksum(grad) for grad in grads])
    everyone = [torch.empty_like(mine) for _ in range(ctx.world_size)]
    with ctx.step("all_gather", f"{mine.numel()} int64 checksums"):
        dist.all_gather(everyone, mine, group=ctx.group)
        same = (torch.stack(everyone) == mine).all(dim=0).tolist()
    return [bool(is_same) for is_same in same]


def _phase(ctx: RankContext, model: Any, grads: Sequence[Any], scale: int, identical: Iterator[bool] | None) -> Phase:
    """Compare all gradients; without ``identical`` each must be the rank's own, else the mean."""
    off, worst = [], 0.0
    for number, (name, parameter) in enumerate(model.module.named_parameters()):
        same = None if identical is None else next(identical)
        place = gradient_code.Place(name, number, parameter.numel(), ctx.group_rank, ctx.ranks)
        gradient = gradient_code.compare(place, grads[number], scale, same)
        worst = max(worst, gradient.max_abs_error or 0.0)
        if not gradient.equal or same is False:
            off.append(gradient)
    return Phase(off=tuple(off), max_abs_error=worst)


def probe(ctx: RankContext) -> GradientSync:
    """Wrap a model in DDP and compare its gradients with their closed form."""
    started = ctx.clock()
    model = wrap(ctx, coded_model(ctx))
    return measure(ctx, model, ctx.clock() - started)


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Seconds of the slowest rank for wrapping, forward and backward."""
    facts = [rank.fact for rank in recording.facts(GradientSync)]
    labels: dict[str, str | int | float] = {"ranks": len(facts)}
    for name in ("ddp_construct", "forward", "backward") if facts else ():
        slowest = max(getattr(fact, f"{name}_s") for fact in facts)
        yield Measurement(name=f"gradient_sync_{name}", value=slowest, unit="s", labels=labels)


CHECK = Check(
    id="gradient_sync",
    title="DDP averages gradients",
    where=Where.RANK,
    probe=probe,
    facts=(GradientSync,),
    rules=rules_in(rules),
    is_essential=True,
    level=Level.QUICK,
    measurements=measurements,
)
