"""One step under torch.profiler: how long collectives ran, and how much of that the model covered.

An event of a gloo collective, in its own thread (microseconds)::

    gloo:all_reduce   start 1021   end 4310   thread 3
    aten::mm          start 1100   end 1420   thread 1
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ddp_doctor.checks.ddp.step_time.timing import finish, meet
from ddp_doctor.checks.ddp.step_time.work import Work, one_pass
from ddp_doctor.facts.ddp.step_time import Profile
from ddp_doctor.model.choices import Level
from ddp_doctor.model.context import RankContext

Span = tuple[float, float]
_COLLECTIVES = ("gloo:", "nccl:", "mpi:", "ucc:")
_KERNELS = "nccl"  # ncclDevKernel_AllReduce_Sum_f32_RING_LL(…), ncclKernel_… before 2.19
_DDP = "DistributedDataParallel."
_DEAREST = 5
_WHAT = "torch.profiler"


def profiled(ctx: RankContext, work: Work, ddp: Any, missing: dict[str, str]) -> Profile | None:
    """A step of the model in DDP as the profiler tells it; None, with the reason, where it tells nothing."""
    if ctx.level is not Level.THOROUGH:
        missing[_WHAT] = "it takes a second to load; see --level thorough"
        return None
    profiler, reason = _open(ctx)
    meet(ctx)
    with ctx.step("step", "under torch.profiler"):
        started = ctx.clock()
        one_pass(work, ddp)  # where no profiler runs too: the ranks step together
        finish(ctx)
        took = ctx.clock() - started
    if profiler is None:
        missing[_WHAT] = reason
        return None
    try:
        profiler.__exit__(None, None, None)
        read = on_gpu if ctx.device.startswith("cuda") else on_cpu
        return _summed_up(read(profiler.events()), took)
    except Exception as error:  # noqa: BLE001 - whatever another build of torch says, it is the reason
        missing[_WHAT] = _words(error)
        return None


def _open(ctx: RankContext) -> tuple[Any, str]:
    """A running profiler, or why there is none."""
    try:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if ctx.device.startswith("cuda"):
            activities.append(ProfilerActivity.CUDA)
        profiler: Any = profile(activities=activities)
        profiler.__enter__()
    except Exception as error:  # noqa: BLE001 - a build without Kineto raises what it likes
        return None, _words(error)
    return profiler, ""


def _words(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:200]


@dataclass
class _Seen:
    """When collectives ran, when the model did, and how long each of its operations took by itself."""

    collectives: list[Span] = field(default_factory=list)
    work: list[Span] = field(default_factory=list)
    own: dict[str, float] = field(default_factory=lambda: defaultdict(float))


def on_cpu(events: Iterable[Any]) -> _Seen:
    """gloo's collectives run in threads of its own, beside the operations of torch."""
    seen = _Seen()
    for event in events:
        name = str(event.name)
        if name.startswith(_COLLECTIVES):
            seen.collectives.append(_span(event))
        elif name.startswith("aten::"):
            seen.work.append(_span(event))
            seen.own[name] += float(event.self_cpu_time_total) / 1e6
    return seen


def on_gpu(events: Iterable[Any]) -> _Seen:
    """Kernels: the names of NCCL's tell them from the model's. What the host only queues is not looked at.

    Nor are the spans of ``record_function``, which torch also shows in the GPU's time (DDP's forward is one).
    """
    seen = _Seen()
    for event in events:
        name, (start, end) = str(event.name), _span(event)
        if not str(event.device_type).endswith("CUDA") or name.startswith((*_COLLECTIVES, _DDP)):
            continue
        if getattr(event, "is_user_annotation", False):  # torch 2.5 and newer tell
            continue
        if name.startswith(_KERNELS):
            seen.collectives.append((start, end))
        else:
            seen.work.append((start, end))
            seen.own[name[:80]] += end - start
    return seen


def _span(event: Any) -> Span:
    return event.time_range.start / 1e6, event.time_range.end / 1e6


def _summed_up(seen: _Seen, took: float) -> Profile:
    busy = joined(seen.collectives)
    dearest = sorted(seen.own, key=lambda name: -seen.own[name])[:_DEAREST]
    return Profile(
        step_s=took,
        collectives_s=sum(end - start for start, end in busy),
        covered_s=common(busy, joined(seen.work)),
        operations={name: seen.own[name] for name in dearest},
    )


def joined(spans: Iterable[Span]) -> list[Span]:
    """The spans in order, those that overlap made one."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def common(one: list[Span], other: list[Span]) -> float:
    """How long spans of both run at the same time; each list is in order and without overlap."""
    total, here, there = 0.0, 0, 0
    while here < len(one) and there < len(other):
        total += max(0.0, min(one[here][1], other[there][1]) - max(one[here][0], other[there][0]))
        if one[here][1] < other[there][1]:
            here += 1
        else:
            there += 1
    return total
