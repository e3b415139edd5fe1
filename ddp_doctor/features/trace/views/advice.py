"""Changes that would make the step faster, with upper bounds. The rules DDT120 to DDT149 report them."""

from collections.abc import Iterator
from statistics import fmean, median

from ddp_doctor.features.trace import numbers
from ddp_doctor.features.trace.facts import TraceCall, TraceStep
from ddp_doctor.features.trace.reading.collect import COPIES, READS
from ddp_doctor.features.trace.views.parts import Calls, Measure, Usual, exposed_in, idle, is_bucket, is_map, waited_in
from ddp_doctor.features.trace.views.windows import Window
from ddp_doctor.knowledge.ddp.buckets import FIRST_BUCKET_BYTES, MIB
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import Recording, TraceAdvice, once_a_recording

#: Runtime calls that wait, outside of operators that read or copy.
RUNTIME = tuple(f"{name}{what}Synchronize" for name in ("cuda", "hip") for what in ("Stream", "Device", "Event"))


@once_a_recording
def advice(_recording: Recording, window: Window) -> tuple[TraceAdvice, ...]:
    """Return all advice, the largest bound first."""
    usual = Usual(window)
    if not usual.step_us:
        return ()
    found = [each for source in (_settings, _host, _collectives) for each in source(usual)]
    worth = [each for each in found if each.at_most >= numbers.WORTH_A_LINE or each.code in _NEEDLESS]
    if not {each.code for each in worth} & _OF_COMMUNICATION:
        worth += _exposed(usual)
    return tuple(sorted(worth, key=lambda each: -each.at_most))


#: These have no use, so they are reported whatever they cost.
_NEEDLESS = ("DDT123", "DDT129")
#: Exposed communication is not reported in addition to one of these.
_OF_COMMUNICATION = frozenset(("DDT121", "DDT122", "DDT123", "DDT124", "DDT126", "DDT129", "DDT134"))


def _advice(
    code: str, at_most: float, setting: str = "", *, value: bool | float | None = None, had: float | None = None
) -> TraceAdvice:
    return TraceAdvice(code=code, at_most=at_most, setting=setting, value=value, had=had)


def _settings(usual: Usual) -> Iterator[TraceAdvice]:
    buckets, averaged = usual.buckets, _averaging(usual)
    if buckets.tiny:
        fewer = 1 - buckets.by_default / buckets.count
        yield _advice("DDT121", usual.at_most(_times(averaged, fewer)), "bucket_cap_mb", had=buckets.cap_mib)
    late = _late_start(usual)
    if searches(usual):
        cost = _sum(lambda step, _: step.searched_us or 0.0, _sent(usual, exposed_in(is_map)), late)
        if unused(usual) == 0:
            yield _advice("DDT123", usual.at_most(cost), "find_unused_parameters", value=False)
        elif usual.at_most(cost) >= numbers.SEARCH_SHARE:
            yield _advice("DDT134", usual.at_most(cost), "static_graph", value=True)
    elif starts_late(usual):
        yield _advice("DDT122", usual.at_most(late), "bucket_cap_mb", had=buckets.cap_mib)
    elif by_hand(usual):
        yield _advice("DDT122", usual.at_most(_sent(usual, exposed_in(lambda call: call.kind == "all_reduce"))))
    if (passes := accumulated(usual)) > 1:
        cost = _sum(averaged, lambda step, _: step.copied_back_us)
        yield _advice("DDT124", usual.at_most(_times(cost, 1 - 1 / passes)))
    back = usual.at_most(lambda step, _: min(step.copied_back_us, idle(step)) if usual.on_gpu else step.copied_back_us)
    if back >= numbers.COPIED_BACK_SHARE:
        yield _advice("DDT130", back, "gradient_as_bucket_view", value=True)


def _of_job(measure: Measure) -> Measure:
    """Scale a measure to a step without the profiler, which makes only operators and launches longer."""

    def longer(step: TraceStep, calls: Calls) -> float:
        length = step.length_us
        return measure(step, calls) * length / (length - _of_profiler(step))

    return longer


def _sent(usual: Usual, measure: Measure) -> Measure:
    """Scale a measure of communication, but not on a CPU trace: there it needs processors, like the profiler."""
    return _of_job(measure) if usual.on_gpu else measure


def _of_profiler(step: TraceStep) -> float:
    computing = 0.0 if step.kernels else step.compute_us + step.optimizer_us
    return numbers.PROFILER_SHARE * (step.host_us + computing)


def _averaging(usual: Usual) -> Measure:
    """Measure the cost of averaging gradients. On a CPU trace hidden communication also takes processors."""
    sent = _sent(usual, exposed_in(is_bucket))
    return sent if usual.on_gpu else _sum(sent, lambda step, _: step.hidden_us)


def _late_start(usual: Usual) -> Measure:
    """Measure the possible head start of communication: at most all, and at most since the first MiB of gradients."""
    later = 1 - min(FIRST_BUCKET_BYTES / usual.buckets.size_bytes, 1.0) if usual.buckets.size_bytes else 1.0
    sent = _sent(usual, exposed_in(is_bucket))
    return lambda step, calls: later * min(sent(step, calls), step.backward_us / max(step.passes, 1))


def starts_late(usual: Usual) -> bool:
    """Return True if the first bucket is so large that at least the first half of backward sends nothing."""
    buckets = usual.buckets
    large = buckets.first_bytes >= max(min(numbers.LARGE_FIRST_BYTES, buckets.size_bytes / 2), 2 * FIRST_BUCKET_BYTES)
    if not large and (buckets.count != 1 or buckets.size_bytes):  # and not the only bucket, whatever its size
        return False
    return usual.count(lambda step, _: _begins(step)) >= numbers.LATE_START


def _begins(step: TraceStep) -> float:
    """Return the share of backward that is over when the first all-reduce is called."""
    length = step.backward_us / max(step.passes, 1)
    if not length or step.first_reduce_us is None or step.backward_end_us is None:
        return 0.0
    return 1 - (step.backward_end_us - step.first_reduce_us) / length


def by_hand(usual: Usual) -> bool:
    """Return True if gradients are averaged after backward, without DistributedDataParallel."""

    def after_backward(_: TraceStep, calls: Calls) -> float:
        return sum(call.size_bytes or 0 for call in calls if call.kind == "all_reduce" and not call.during)

    passes_back = usual.count(lambda step, _: step.backward_us) > 0
    return not usual.is_ddp and passes_back and usual.count(after_backward) > 2 * FIRST_BUCKET_BYTES


def searches(usual: Usual) -> bool:
    """Return True if each step searches for unused parameters."""
    return usual.count(lambda step, _: step.searched_us is not None) > 0


def unused(usual: Usual) -> float | None:
    """Return the maximum number of parameters without a gradient in a step; None if unknown."""

    def left_out(step: TraceStep, calls: Calls) -> float:
        maps = [call.size_bytes for call in calls if is_map(call) and call.size_bytes]
        every = sum(maps) / 4 if maps else step.copied_back
        return every - step.reduced if every and step.reduced else float("inf")

    most = max(usual.of_ranks(left_out, max))
    return None if most == float("inf") else most


def accumulated(usual: Usual) -> float:
    """Return the number of backward passes per update if each of them averages gradients; otherwise 1."""

    def passes(step: TraceStep, _: Calls) -> float:
        return step.passes / step.updates if step.updates and step.averaged >= step.passes else 1.0

    return usual.count(passes)


def _host(usual: Usual) -> Iterator[TraceAdvice]:
    if usual.least(_loading, fmean) >= numbers.INPUT_SHARE:
        yield _advice("DDT120", usual.at_most(_of_job(_loading), fmean))
    if optimizer_kernels(usual) >= numbers.MANY_KERNELS:
        most = usual.at_most(_updating if usual.on_gpu else lambda step, _: step.optimizer_us)
        if most >= numbers.OPTIMIZER_SHARE:
            yield _advice("DDT125", most)
    if not usual.on_gpu:
        return
    yield _advice("DDT127", usual.at_most(_of_job(_reading)))
    yield _advice("DDT131", usual.at_most(_of_job(_copying)))
    if usual.least(_launching) >= numbers.LAUNCH_SHARE:
        yield _advice("DDT132", usual.at_most(lambda step, _: step.host_us))


def _loading(step: TraceStep, _: Calls) -> float:
    return step.loading_us


def _updating(step: TraceStep, _: Calls) -> float:
    return step.optimizer_us + min(step.optimizer_host_us, step.host_us)


def _launching(step: TraceStep, _: Calls) -> float:
    """Measure the time when the GPU idles although the host does not wait for it."""
    return step.host_us - sum(sync.wait_us for sync in step.syncs) if step.kernels >= numbers.FEWEST_KERNELS else 0.0


def optimizer_kernels(usual: Usual) -> float:
    """Return the kernels per parameter; an unknown number of parameters counts as a hundred."""
    parameters = usual.count(lambda step, _: step.reduced / max(step.averaged, 1)) or 100
    return usual.count(lambda step, _: step.optimizer_kernels / max(step.updates, 1)) / parameters


def _reading(step: TraceStep, calls: Calls) -> float:
    """Measure the waiting of reads, at most the GPU's idle time: without waiting, the GPU would idle less."""
    copies = () if step.pageable or step.pinned_blocking else COPIES
    runtime = () if any(call.kind == "barrier" for call in calls) else RUNTIME
    return min(waited_in(step, *READS, *copies, *runtime), idle(step) - _of_profiler(step))


def _copying(step: TraceStep, _: Calls) -> float:
    waited = waited_in(step, *COPIES) if step.pageable or step.pinned_blocking else 0.0
    return min(waited, idle(step) - _of_profiler(step)) + min(step.pageable_us, step.other_us)


def _collectives(usual: Usual) -> Iterator[TraceAdvice]:
    if usual.count(small_calls) >= numbers.FEWEST_SMALL and not by_hand(usual):
        yield _advice("DDT126", usual.at_most(_of_job(in_small_calls)))
    yield _advice("DDT128", usual.at_most(_in_buffers), "broadcast_buffers", value=False)
    if usual.count(barriers) >= 1:
        yield _advice("DDT129", usual.at_most(_of_job(_in_barriers)))


def small_calls(step: TraceStep, calls: Calls) -> float:
    """Count the small collectives of a step other than the buckets of DistributedDataParallel."""
    return len(_small(step, calls))


def _small(step: TraceStep, calls: Calls) -> list[TraceCall]:
    """Return collectives that cost only latency; without sizes, by the usual duration of their kind."""
    alike = grouped(((call.kind, call.during), call) for call in calls if _may_be_small(step, call))
    return [
        call
        for each in alike.values()
        for usual_us in (median(call.end_us - call.begin_us for call in each),)
        for call in each
        if (usual_us < numbers.SMALL_US if call.size_bytes is None else call.size_bytes < numbers.SMALL_BYTES)
    ]


def _may_be_small(step: TraceStep, call: TraceCall) -> bool:
    of_buffers = call.kind == "broadcast" and call.during == "forward"
    return not (call.kind in ("barrier", "collective") or of_buffers or (step.reduced and call.averages))


def in_small_calls(step: TraceStep, calls: Calls) -> float:
    """Measure small collectives: their exposed time, their calls, and the GPU's idle time while results are read."""
    small = _small(step, calls)
    called = 0.0 if step.kernels else sum(call.begin_us - (call.called_us or call.begin_us) for call in small)
    alone = min(called + sum(call.exposed_us for call in small), step.exposed_us)
    return alone + min(waited_in(step, *READS, *RUNTIME), idle(step))


def _in_buffers(step: TraceStep, calls: Calls) -> float:
    sent = exposed_in(lambda call: call.kind == "broadcast" and call.during == "forward")
    return min(step.buffers_us, idle(step) + sent(step, calls)) if step.kernels else step.buffers_us


def barriers(_: TraceStep, calls: Calls) -> float:
    """Count the barriers of a step."""
    return sum(call.kind == "barrier" for call in calls)


def _in_barriers(step: TraceStep, calls: Calls) -> float:
    exposed = exposed_in(lambda call: call.kind == "barrier")
    return exposed(step, calls) + min(waited_in(step, *RUNTIME), idle(step))


def _exposed(usual: Usual) -> Iterator[TraceAdvice]:
    """Yield advice about exposed communication that has no other fault."""
    most = usual.at_most(_sent(usual, exposed_in(is_bucket)))
    if most >= numbers.EXPOSED_SHARE:
        mib = usual.buckets.size_bytes / MIB
        smaller = float(round(mib / 8)) if mib >= 8 and usual.buckets.count <= 3 else None
        yield _advice("DDT133", most, "bucket_cap_mb" if smaller else "", value=smaller)


def _sum(*measures: Measure) -> Measure:
    return lambda step, calls: sum(measure(step, calls) for measure in measures)


def _times(measure: Measure, factor: float) -> Measure:
    return lambda step, calls: factor * measure(step, calls)
