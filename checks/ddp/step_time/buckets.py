"""Bucket sizes: the best one predicted, then measured beside the default."""

from functools import partial
from statistics import median
from typing import Any

from ddp_doctor.checks.ddp.step_time.rounds import BUCKET_GAIN
from ddp_doctor.checks.ddp.step_time.work import Plan, Work, built, one_pass, quickest, samples_for, timed, wrap
from ddp_doctor.facts.ddp.step_time import Buckets, BucketTrial
from ddp_doctor.knowledge.ddp import buckets
from ddp_doctor.model.context import RankContext
from ddp_doctor.probing.all_reduces import agreed, meet
from ddp_doctor.probing.rank_identity import finish

_PASSES = 3
#: Forward and backward together take this many times as long as the communication that is to hide in backward.
_BALANCED = 1.5


def bucket_sizes(
    ctx: RankContext, work: Work, ddp: Any, curve: buckets.Curve, plan: Plan, missing: dict[str, str]
) -> Buckets | None:
    """Predict all sizes; measure the best one and the default where the predicted gain is large enough.

    Where the batch can be chosen, computing is made to last as long as communication, at most
    ``plan.bucket_aim_s``: far from that, no bucket size matters.
    """
    if ctx.world_size == 1:
        missing["bucket sizes"] = "one rank has nobody to communicate with"
        return None
    if "bucket_cap_mb" in work.options:
        missing["bucket sizes"] = "the factory chooses bucket_cap_mb itself"
        return None
    if work.copies < 2:
        missing["bucket sizes"] = "the GPU has no memory for the model in a second DDP"
        return None
    aim_s = min(max(_BALANCED * curve.seconds(work.gradient_bytes()), plan.aim_s), plan.bucket_aim_s)
    for _ in range(0 if work.make is None else 2):  # small batches are slow for their size
        work = work.sized(int(agreed(ctx, samples_for(work, quickest(ctx, work, 2), aim_s))))
    backward = _passes(ctx, work)
    predicted = buckets.predictions(backward, curve)
    best = agreed(ctx, buckets.best(predicted), of_first=True)  # the ranks' predictions differ a little
    if best not in predicted:  # gradients that arrive in another order on that rank make other buckets
        predicted[best] = buckets.step_seconds(backward, curve, best)
    gain = 1 - predicted[best] / predicted[buckets.DEFAULT_CAP_MIB]
    trials: tuple[BucketTrial, ...] = ()
    if agreed(ctx, gain, of_first=True) >= BUCKET_GAIN:
        step_s = predicted[buckets.DEFAULT_CAP_MIB]
        rounds = max(plan.fewest, min(plan.rounds, int(plan.budget_s / (2 * step_s))))
        trials = _measured(ctx, work, ddp, (best, predicted), int(agreed(ctx, rounds, of_first=True)))
    return Buckets(
        batch=work.samples, compute_s=backward.forward_s + backward.backward_s, predicted_s=predicted, trials=trials
    )


def _passes(ctx: RankContext, work: Work) -> buckets.Backward:
    """The median of a few passes: forward, backward, and when each gradient was ready."""
    passes = []
    for number in range(_PASSES + 1):
        meet(ctx)
        with ctx.step("compute", f"pass {number + 1}, gradients marked"):
            passes.append(_one_pass(ctx, work))
    del passes[0]
    order = passes[0].gradients
    # Layers may be left out at random.
    passes = [backward for backward in passes if len(backward.gradients) == len(order)]
    ready = [median(backward.gradients[place].ready_s for backward in passes) for place in range(len(order))]
    return buckets.Backward(
        forward_s=median(backward.forward_s for backward in passes),
        backward_s=median(backward.backward_s for backward in passes),
        gradients=tuple(buckets.Gradient(gradient.size_bytes, at) for gradient, at in zip(order, ready, strict=True)),
    )


def _one_pass(ctx: RankContext, work: Work) -> buckets.Backward:
    marks: list[tuple[int, Any]] = []  # the bytes of each gradient, and the moment or the GPU's mark of it

    def mark(parameter: Any) -> None:
        marks.append((parameter.numel() * parameter.element_size(), _now(ctx)))

    hooks = [
        parameter.register_post_accumulate_grad_hook(mark)
        for parameter in work.module.parameters()
        if parameter.requires_grad
    ]
    try:
        work.module.zero_grad(set_to_none=True)
        begun = _now(ctx)
        loss = work.loss(work.module, work.batch)
        forwarded = _now(ctx)
        loss.backward()
        ended = _now(ctx)
        finish(ctx.device)
    finally:
        for hook in hooks:
            hook.remove()
    gradients = tuple(buckets.Gradient(size, _between(forwarded, at)) for size, at in marks)
    return buckets.Backward(_between(begun, forwarded), _between(forwarded, ended), gradients)


def _now(ctx: RankContext) -> Any:
    """This moment of the device: on a GPU a mark in its queue, for calls return before their work is done."""
    if not ctx.device.startswith("cuda"):
        return ctx.clock()
    import torch

    new_mark: Any = torch.cuda.Event  # untyped in torch's stubs
    mark = new_mark(enable_timing=True)
    mark.record()
    return mark


def _between(start: Any, end: Any) -> float:
    return end - start if isinstance(start, float) else float(start.elapsed_time(end)) / 1e3


def _measured(
    ctx: RankContext, work: Work, ddp: Any, promised: tuple[float, dict[float, float]], rounds: int
) -> tuple[BucketTrial, ...]:
    """Steps with the default and the best size in turns, each going first every other time."""
    best, predicted = promised
    caps = (buckets.DEFAULT_CAP_MIB, best)
    models = {buckets.DEFAULT_CAP_MIB: ddp, best: wrap(ctx, work, best)}
    took: dict[float, list[float]] = {cap: [] for cap in caps}

    def step(cap: float, detail: str) -> float:
        return timed(ctx, "step", f"{cap:g} MiB, {detail}", partial(one_pass, work, models[cap]), 1)

    for _ in range(2):  # DDP builds its buckets anew after the first step
        for cap in caps:
            step(cap, "warm-up")
    for number in range(rounds):
        for cap in caps if number % 2 == 0 else reversed(caps):
            took[cap].append(step(cap, f"round {number + 1} of {rounds}"))
    return tuple(
        BucketTrial(cap_mib=cap, predicted_s=predicted[cap], buckets_bytes=built(models[cap]), step_s=tuple(took[cap]))
        for cap in caps
    )
