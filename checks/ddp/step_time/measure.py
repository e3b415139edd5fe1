"""The measurements of one rank: rounds, a step under torch.profiler, bucket sizes (predicted, then measured), and tests
of a trace's advice: steps with the job's arguments of DDP, and with one of them changed.

All ranks take the same steps, regardless of their own results.

A gloo collective in the profile, in a separate thread (microseconds)::

    gloo:all_reduce   start 1021   end 4310   thread 3
    aten::mm          start 1100   end 1420   thread 1
"""

import gc
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

from ddp_doctor.checks.ddp.step_time.rounds import BUCKET_GAIN, LARGEST_ALONE
from ddp_doctor.checks.ddp.step_time.work import (
    Plan,
    ProcessorTime,
    built,
    in_turns,
    one_pass,
    quickest,
    samples_for,
    timed,
    wrap,
)
from ddp_doctor.facts.ddp.step_time import ArgumentTrial, Buckets, BucketTrial, Profile, Round, StepTimeFact
from ddp_doctor.knowledge.ddp import buckets
from ddp_doctor.knowledge.ddp.arguments import changed, copes_with_unused
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Skip
from ddp_doctor.model.intervals import Interval, Times
from ddp_doctor.model.recording import TraceAdvice
from ddp_doctor.model.work import Work
from ddp_doctor.probing.all_reduces import agreed, meet
from ddp_doctor.probing.rank_identity import finish, moment, seconds_between

_COLLECTIVES = ("gloo:", "nccl:", "mpi:", "ucc:")
_KERNELS = "nccl"  # ncclDevKernel_AllReduce_Sum_f32_RING_LL(…), ncclKernel_… before 2.19
_DDP = "DistributedDataParallel."
_DEAREST = 5
_WHAT = "torch.profiler"


def profiled(ctx: RankContext, work: Work, ddp: Any, missing: dict[str, str]) -> Profile | None:
    """Return a profile of one step of the model in DDP, or None with the reason in ``missing``."""
    if ctx.level is not Level.THOROUGH:
        missing[_WHAT] = "it takes a second to load; see --level thorough"
        return None
    profiler, reason = _open(ctx)
    meet(ctx)
    with ctx.step("step", "under torch.profiler"):
        started = ctx.clock()
        one_pass(work, ddp)  # even without a profiler, because all ranks step together
        finish(ctx.device)
        took = ctx.clock() - started
    if profiler is None:
        missing[_WHAT] = reason
        return None
    try:
        profiler.__exit__(None, None, None)
        events = profiler.events()
        trace = on_gpu(events) if ctx.device.startswith("cuda") else on_cpu(events)
    except Exception as error:  # noqa: BLE001 - other builds of torch may raise anything
        missing[_WHAT] = _error_text(error)
        return None
    busy = Times.union(trace.collectives)
    dearest = sorted(trace.own, key=lambda name: -trace.own[name])[:_DEAREST]
    return Profile(
        step_s=took,
        collectives_s=busy.total,
        covered_s=(busy & Times.union(trace.work)).total,
        operations={name: trace.own[name] for name in dearest},
    )


def _open(ctx: RankContext) -> tuple[Any, str]:
    try:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if ctx.device.startswith("cuda"):
            activities.append(ProfilerActivity.CUDA)
        profiler: Any = profile(activities=activities)
        profiler.__enter__()
    except Exception as error:  # noqa: BLE001 - a build without Kineto may raise anything
        return None, _error_text(error)
    return profiler, ""


def _error_text(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:200]


@dataclass
class _Trace:
    """The times of collectives and of the model's operations, and each operation's time without its children."""

    collectives: list[Interval] = field(default_factory=list)
    work: list[Interval] = field(default_factory=list)
    own: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def on_cpu(events: Iterable[Any]) -> _Trace:
    """Return the trace on a CPU, where gloo's collectives run in separate threads, parallel to torch's operations."""
    trace = _Trace()
    for event in events:
        name = str(event.name)
        if name.startswith(_COLLECTIVES):
            trace.collectives.append(_span(event))
        elif name.startswith("aten::"):
            trace.work.append(_span(event))
            trace.own[name] += float(event.self_cpu_time_total) / 1e6
    return trace


def on_gpu(events: Iterable[Any]) -> _Trace:
    """Return the trace on a GPU: NCCL's kernels, recognized by name, and other kernels, but no work of the host.

    It skips the spans of ``record_function``, which torch also lists in GPU time; DDP's forward is one.
    """
    trace = _Trace()
    for event in events:
        name, (start, end) = str(event.name), _span(event)
        if not str(event.device_type).endswith("CUDA") or name.startswith((*_COLLECTIVES, _DDP)):
            continue
        if getattr(event, "is_user_annotation", False):  # torch 2.5 and newer have it
            continue
        if name.startswith(_KERNELS):
            trace.collectives.append((start, end))
        else:
            trace.work.append((start, end))
            trace.own[name[:80]] += end - start
    return trace


def _span(event: Any) -> Interval:
    return event.time_range.start / 1e6, event.time_range.end / 1e6


#: Sizes of the all-reduces for the curve of latency and bandwidth, and the repetitions of each.
_SIZES = ((4, 7), (16 << 10, 5), (128 << 10, 5), (buckets.MIB, 3))
#: Larger sizes grow by factors of 4 up to all gradients at once, so predictions stay on the curve. They stop before a
#: size that would take longer than this.
_LARGEST_S = 2.0


_USUAL = Plan()
#: For the user's model, whose batch size is fixed.
YOURS = Plan(budget_s=4.0, longest_s=15.0)


def measure(ctx: RankContext, work: Work, plan: Plan = _USUAL) -> StepTimeFact:
    """Measure steps with and without synchronization, the all-reduces, and bucket sizes. Raises Skip."""
    import torch

    compute_s = agreed(ctx, quickest(ctx, work, 3))
    for _ in range(0 if work.make is None else 2):  # small batches are slow for their size
        work = work.sized(samples_for(work, compute_s, plan.aim_s, LARGEST_ALONE))
        compute_s = agreed(ctx, quickest(ctx, work, 3))
    measured_curve = curve(ctx, work.gradient_bytes())
    larger = min(ctx.world_size, LARGEST_ALONE) if work.make is not None else 1
    expected = sum(map(measured_curve.seconds, buckets.bucket_bytes([work.gradient_bytes()], 25.0)))
    rounds, iterations = _how_many(ctx, plan, compute_s * (3 + larger) + compute_s + 2 * expected)
    ddp = wrap(ctx, work, None)
    processor = ProcessorTime(ctx)
    larger_work = work.sized((work.samples or 1) * larger) if larger > 1 else work
    measured = tuple(_rounds(ctx, work, larger_work, ddp, processor, rounds, iterations))
    missing: dict[str, str] = {}
    return StepTimeFact(
        ranks=ctx.world_size,
        device=ctx.device,
        model=work.name,
        parameters=sum(1 for _ in work.module.parameters()),
        gradient_bytes=work.gradient_bytes(),
        batch=work.samples,
        same_work=work.alike,
        larger=larger,
        threads=torch.get_num_threads(),
        cpus=tuple(sorted(os.sched_getaffinity(0))),
        on_cpu_share=processor.share,
        iterations=iterations,
        rounds=measured,
        curve=measured_curve,
        arguments=tuple(_tried(ctx, work, ddp, plan, advice) for advice in ctx.options.advice),
        buckets=bucket_sizes(ctx, work, ddp, measured_curve, plan, missing),
        profile=profiled(ctx, work, ddp, missing),
        not_measured=missing,
    )


def curve(ctx: RankContext, gradient_bytes: int) -> buckets.Curve:
    """Return the times of all-reduces over sizes, on the slowest rank."""
    points, sizes = [_point(ctx, *_SIZES[0])], list(_SIZES[1:])
    while 1.5 * sizes[-1][0] < gradient_bytes:  # up to the size of all gradients, without a small last step
        sizes.append((min(4 * sizes[-1][0], gradient_bytes), 3))
    for size, times in sizes:
        before, took = points[-1]
        if before > _SIZES[0][0] and took * size / before > _LARGEST_S:
            break
        points.append(_point(ctx, size, times))
    return buckets.Curve(points=tuple(points))


def _point(ctx: RankContext, size: int, times: int) -> tuple[int, float]:
    all_reduce = _communication(ctx, (size,))
    took = median(timed(ctx, "all_reduce", f"{size} B", all_reduce, 1) for _ in range(times))
    return size, agreed(ctx, took)


def _how_many(ctx: RankContext, plan: Plan, round_s: float) -> tuple[int, int]:
    """Return the rounds, and the iterations in each, that fit in the time. Raises Skip if the minimum does not fit."""
    left = min(plan.longest_s, ctx.remaining() / 4)
    if agreed(ctx, plan.fewest * round_s - left) > 0:
        raise Skip(
            f"even the shortest measurement would take {plan.fewest * round_s:.0f} s, but only {left:.0f} s are left"
        )
    if plan.rounds * plan.iterations * round_s <= plan.budget_s:
        return plan.rounds, plan.iterations
    return max(plan.fewest, min(plan.rounds, int(plan.budget_s / round_s))), 1


def _rounds(
    ctx: RankContext, work: Work, larger: Work, ddp: Any, processor: ProcessorTime, rounds: int, iterations: int
) -> Iterator[Round]:
    """Yield interleaved rounds, so that a disturbance affects all kinds of work equally."""
    all_reduce = _communication(ctx, built(ddp) or (work.gradient_bytes(),))

    def compute() -> None:
        processor.of(lambda: one_pass(work, work.module))

    def step() -> None:
        one_pass(work, ddp)

    for _ in range(2):  # DDP rebuilds its buckets after the first step
        timed(ctx, "step", "warm-up", step, 1)
    for number in range(rounds):
        of = f"round {number + 1} of {rounds}"
        yield Round(
            compute_s=timed(ctx, "compute", of, compute, iterations),
            step_s=timed(ctx, "step", of, step, iterations),
            communicate_s=timed(ctx, "all_reduce", of, all_reduce, iterations),
            again_s=timed(ctx, "compute", of, compute, iterations),
            alone_s=_alone(ctx, work, of, iterations),
            alone_larger_s=_alone(ctx, larger, of, 1),
        )


def _alone(ctx: RankContext, work: Work, of: str, times: int) -> float | None:
    """Compute on the first rank; the other ranks wait in their next meeting."""
    first = ctx.group_rank == 0
    took = timed(ctx, "compute_alone", of, lambda: one_pass(work, work.module) if first else None, times)
    return took if first else None


def _communication(ctx: RankContext, sizes: Sequence[int]) -> Any:
    """Return a function that all-reduces all buckets at once, as DDP does."""
    import torch
    import torch.distributed as dist

    tensors = [torch.zeros(max(size // 4, 1), device=ctx.device) for size in sizes]

    def once() -> None:
        for work in [dist.all_reduce(tensor, group=ctx.group, async_op=True) for tensor in tensors]:
            work.wait()

    with ctx.step("all_reduce", f"{len(sizes)} buckets"):
        once()  # the first call allocates memory
    return once


#: The rounds of a proof (see advised.py).
_FEWEST, _ROUNDS = 5, 9
#: Several short steps are timed together, as in a training loop.
_AT_ONCE_S, _AT_ONCE = 0.05, 10


def _tried(ctx: RankContext, work: Work, ddp: Any, plan: Plan, advice: TraceAdvice) -> ArgumentTrial:
    """Compare a change of ``--from-trace`` with ``ddp``, which has the job's arguments."""
    options = changed(work.options, advice)
    step_s = agreed(ctx, timed(ctx, "step", "before a change", partial(one_pass, work, ddp), 1))
    longest_s = -agreed(ctx, -min(plan.longest_s, ctx.remaining() / 4))
    why_not = ""
    if ctx.world_size == 1:
        why_not = "one rank has no peer to communicate with"
    elif options == work.options:
        why_not = "neither the trace nor the factory shows the job's value"
    elif work.copies < 2:
        why_not = "the GPU has no memory for the model in a second DDP"
    elif work.unused and not copes_with_unused(options):
        why_not = "some parameters get no gradient, which DDP would wait for"
    elif 2 * _FEWEST * step_s > longest_s:
        why_not = f"{2 * _FEWEST} steps would take {2 * _FEWEST * step_s:.0f} s"
    if why_not:
        return ArgumentTrial(advice=advice, not_tried=why_not)
    models = {"as the job": ddp, "changed": wrap(ctx, replace(work, options=options), None)}
    times = max(1, min(_AT_ONCE, int(_AT_ONCE_S / step_s)))
    rounds = max(_FEWEST, min(_ROUNDS, int(plan.budget_s / (2 * times * step_s))))
    took = in_turns(ctx, work, models, rounds, times)
    del models
    gc.collect()  # the next test needs its memory
    return ArgumentTrial(advice=advice, without_s=took["as the job"], with_s=took["changed"])


_PASSES = 3
#: Forward and backward take this many times as long as the communication that backward should hide.
_BALANCED = 1.5


def bucket_sizes(
    ctx: RankContext, work: Work, ddp: Any, curve: buckets.Curve, plan: Plan, missing: dict[str, str]
) -> Buckets | None:
    """Predict all sizes; measure the best one and the default if the predicted gain is large enough.

    If the batch can be chosen, computation takes ``_BALANCED`` times as long as communication, at most
    ``plan.bucket_aim_s``. With a very different ratio, the bucket size does not matter.
    """
    if ctx.world_size == 1:
        missing["bucket sizes"] = "one rank has no peer to communicate with"
        return None
    if ctx.options.advice:
        missing["bucket sizes"] = "what the trace advises is tried instead"
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
    best = agreed(ctx, buckets.best(predicted), of_first=True)  # the ranks' predictions differ slightly
    if best not in predicted:  # another order of the gradients gives other buckets
        predicted[best] = buckets.step_seconds(backward, curve, best)
    gain = 1 - predicted[best] / predicted[buckets.DEFAULT_CAP_MIB]
    trials: tuple[BucketTrial, ...] = ()
    if agreed(ctx, gain, of_first=True) >= BUCKET_GAIN:
        step_s = predicted[buckets.DEFAULT_CAP_MIB]
        rounds = max(plan.fewest, min(plan.rounds, int(plan.budget_s / (2 * step_s))))
        rounds = int(agreed(ctx, rounds, of_first=True))
        models = {buckets.DEFAULT_CAP_MIB: ddp, best: wrap(ctx, work, best)}
        took = in_turns(ctx, work, {f"{cap:g} MiB": model for cap, model in models.items()}, rounds)
        trials = tuple(
            BucketTrial(
                cap_mib=cap, predicted_s=predicted[cap], buckets_bytes=built(model), step_s=took[f"{cap:g} MiB"]
            )
            for cap, model in models.items()
        )
    return Buckets(
        batch=work.samples, compute_s=backward.forward_s + backward.backward_s, predicted_s=predicted, trials=trials
    )


def _passes(ctx: RankContext, work: Work) -> buckets.Backward:
    """Return the medians of a few passes: forward, backward, and the time when each gradient was ready."""
    passes = []
    for number in range(_PASSES + 1):
        meet(ctx)
        with ctx.step("compute", f"pass {number + 1}, gradients marked"):
            passes.append(_one_pass(ctx, work))
    del passes[0]
    order = passes[0].gradients
    # A model may skip layers at random.
    passes = [backward for backward in passes if len(backward.gradients) == len(order)]
    ready = [median(backward.gradients[place].ready_s for backward in passes) for place in range(len(order))]
    return buckets.Backward(
        forward_s=median(backward.forward_s for backward in passes),
        backward_s=median(backward.backward_s for backward in passes),
        gradients=tuple(buckets.Gradient(gradient.size_bytes, at) for gradient, at in zip(order, ready, strict=True)),
    )


def _one_pass(ctx: RankContext, work: Work) -> buckets.Backward:
    marks: list[tuple[int, Any]] = []  # the bytes of each gradient, and its moment, which is an event on a GPU

    def mark(parameter: Any) -> None:
        marks.append((parameter.numel() * parameter.element_size(), moment(ctx)))

    hooks = [
        parameter.register_post_accumulate_grad_hook(mark)
        for parameter in work.module.parameters()
        if parameter.requires_grad
    ]
    try:
        work.module.zero_grad(set_to_none=True)
        begun = moment(ctx)
        loss = work.loss(work.module, work.batch)
        forwarded = moment(ctx)
        loss.backward()
        ended = moment(ctx)
        finish(ctx.device)
    finally:
        for hook in hooks:
            hook.remove()
    gradients = tuple(buckets.Gradient(size, seconds_between(forwarded, at)) for size, at in marks)
    return buckets.Backward(seconds_between(begun, forwarded), seconds_between(forwarded, ended), gradients)
