"""DDT108, DDT121 - DDT124, DDT126, DDT128 - DDT130, DDT133, DDT134: averaging gradients, and other collectives."""

from collections.abc import Iterator, Sequence
from statistics import median

from ddp_doctor.features.trace.facts import Interval, TraceFact
from ddp_doctor.features.trace.numbers import LATE_SHARE, SLOW_TRANSFER_SHARE, TRANSFER_BYTES
from ddp_doctor.features.trace.reading.collect import READS
from ddp_doctor.features.trace.rules.told import by_trace, code, setting, told
from ddp_doctor.features.trace.views.advice import RUNTIME, accumulated, barriers, by_hand, in_small_calls, small_calls
from ddp_doctor.features.trace.views.parts import exposed_in, is_bucket, is_map, median_parts, waited_in
from ddp_doctor.features.trace.views.windows import Meeting, windows
from ddp_doctor.knowledge.collectives import ALL_REDUCE, TABLE
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.intervals import Times
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import NOBODY, in_units, likely

_SHOWS = "averaging gradients while nothing else runs, including waiting for other ranks"
_NO_SYNC = code(
    "Average once per update: put `with model.no_sync():` around forward and backward of all passes except the last",
    cost="memory; the gradients are the same",
)
_LEAVE_CAP_OUT = setting(
    "Remove bucket_cap_mb, for a first bucket of 1 MiB and then 25 MiB; with"
    " bucket_cap_mb=25, the first bucket also has 25 MiB and starts late",
    undo="restore the previous bucket_cap_mb",
)


@rule("DDT121", "tiny-buckets", Consequence.SLOWER, TraceFact)
def tiny_buckets(recording: Recording) -> Iterator[Draft]:
    """Gradients that travel in many small buckets, each of which pays the latency.

    Finds: A backward pass sends three times as many all-reduces as it would with the default sizes, of less than 1 MiB
        each. At most: the time in which they alone run (on a CPU trace also what is hidden, because gloo takes the same
        processors), less as many calls as the default makes. It needs the sizes of collectives: record_shapes=True
        with gloo, torch 2.2 or newer with NCCL.
    Why: Below about 1 MiB an all-reduce takes as long as one of a single byte.
    Remedy: Leave bucket_cap_mb out. `ddp-doctor run --model MODULE:FACTORY --from-trace REPORT.json` tries it.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        docs/explanation/traces.md
    """
    for found in told(recording, "DDT121"):
        buckets = found.usual.buckets
        each = in_units(buckets.size_bytes / buckets.count)
        yield found.draft(
            f"Gradients are averaged in {buckets.count:.0f} small buckets of about {each}",
            Evidence(
                text=f"all-reduces per backward pass, {in_units(buckets.size_bytes)} in total",
                value=buckets.count,
                expected=float(buckets.by_default),
                expected_from="DistributedDataParallel without bucket_cap_mb",
            ),
            found.time(_SHOWS, exposed_in(is_bucket)),
            remedies=(_LEAVE_CAP_OUT,),
        )


_USE_DDP = code(
    "Use DistributedDataParallel(model), which averages gradients in buckets during"
    " backward; by hand, join the gradients (torch._utils._flatten_dense_tensors) and call"
    " all_reduce(..., async_op=True) from hooks",
    cost="as much memory for buckets as for gradients",
)


@rule("DDT122", "no-overlap", Consequence.SLOWER, TraceFact)
def no_overlap(recording: Recording) -> Iterator[Draft]:
    """Communication that begins when backward is over, or nearly, so that nothing hides it.

    Finds: The first bucket has half of the gradients or 16 MiB and more, and is sent when half of backward is over or
        more; or gradients are averaged after backward, without DistributedDataParallel. At most: of the time in which
        their all-reduces alone run as much as backward is long; what is averaged by hand is counted in full. With gloo
        a large bucket is information, for it takes the processors that compute, and hides little. Where
        find_unused_parameters is on, that is told instead: its buckets never follow the order of gradients.
    Why: With buckets that are sent as they fill, all but the last one may be hidden behind backward.
    Remedy: Leave bucket_cap_mb out (naming its default of 25 makes the first bucket larger), or use
        DistributedDataParallel.
    See: https://pytorch.org/docs/stable/notes/ddp.html
        docs/explanation/traces.md
    """
    for found in told(recording, "DDT122"):
        usual = found.usual
        shows = exposed_in(lambda call: call.kind == "all_reduce")
        if by_hand(usual):
            calls = usual.count(lambda _, calls: sum(call.kind == "all_reduce" for call in calls))
            title = f"Gradients are averaged after backward, in {calls:.0f} all-reduces"
        else:
            first, every = usual.buckets.first_bytes, usual.buckets.size_bytes
            size = f"{in_units(first)} of the {in_units(every)} of gradients" if every else "all gradients"
            title = f"The first gradient bucket starts late: it holds {size}"
        yield found.draft(
            title,
            found.time(_SHOWS, shows),
            found.time("backward", lambda step, _: step.backward_us),
            remedies=(_USE_DDP if by_hand(usual) else _LEAVE_CAP_OUT,),
            severity=None if usual.on_gpu or by_hand(usual) else Severity.INFO,
        )


_STATIC = setting(
    "Set static_graph=True, which records unused parameters in the first step, if they are the same in every step",
    cost="an error if the graph changes between steps",
    undo="remove static_graph",
)


@rule("DDT123", "find-unused-parameters-needless", Consequence.SLOWER, TraceFact)
def find_unused_needless(recording: Recording) -> Iterator[Draft]:
    """find_unused_parameters=True although every parameter gets a gradient in every step.

    Finds: Each step looks for unused parameters, and as many gradients go into buckets as there are parameters, by the
        map of used ones that is all-reduced, or by what is copied back. At most: the search, the map's all-reduce, and
        what the gradients' communication could begin earlier.
    Why: With it DDP walks the graph in every step, sends a map with every backward, and never puts its buckets into the
        order in which gradients are ready, so they are sent late.
    Remedy: Leave it out. A step that leaves a parameter out then ends with an error, or static_graph=True helps.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        docs/explanation/traces.md
    """
    leave_out = setting(
        "Remove find_unused_parameters",
        cost="an error if a parameter gets no gradient in a step",
        undo="DistributedDataParallel(model, find_unused_parameters=True)",
    )
    for found in told(recording, "DDT123"):
        gradients = found.usual.count(lambda step, _: step.reduced)
        yield found.draft(
            f"find_unused_parameters=True is unnecessary: all {gradients:.0f} gradients are used",
            found.time("searching for unused parameters", lambda step, _: step.searched_us or 0.0),
            found.time("sending the map of used parameters while nothing else runs", exposed_in(is_map)),
            found.time(_SHOWS, exposed_in(is_bucket)),
            remedies=(leave_out, _STATIC),
        )


@rule("DDT134", "unused-parameters-searched", Consequence.COST, TraceFact)
def unused_searched(recording: Recording) -> Iterator[Draft]:
    """find_unused_parameters=True that is needed, and costs a tenth of the step or more at most.

    Finds: Each step looks for unused parameters, and some are unused, or the trace does not tell. At most: as in
        find-unused-parameters-needless.
    Why: If the same parameters are unused in every step, DDP need not look for them.
    Remedy: static_graph=True, or take the parameters that are never used out of the model.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        docs/explanation/traces.md
    """
    for found in told(recording, "DDT134"):
        yield found.draft(
            "Each step searches for unused parameters and finds some",
            found.time("sending the map of used parameters while nothing else runs", exposed_in(is_map)),
            remedies=(_STATIC,),
        )


@rule("DDT124", "no-sync-missing", Consequence.SLOWER, TraceFact)
def no_sync_missing(recording: Recording) -> Iterator[Draft]:
    """Gradients that are accumulated over several passes, and averaged in each of them.

    Finds: For each Optimizer.step there are two forwards and backwards or more, and each backward averages gradients.
        At most: of the averaging and of copying gradients back the part of all passes but the last.
    Why: Only the sum matters to the optimizer: all but the last averaging are for nothing.
    Remedy: model.no_sync() around all passes but the last.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        docs/explanation/traces.md
    """
    for found in told(recording, "DDT124"):
        passes = accumulated(found.usual)
        yield found.draft(
            f"Gradients are averaged in each of {passes:.0f} backward passes per update",
            Evidence(
                text="backward passes that average gradients, per update",
                value=passes,
                expected=1.0,
                expected_from="no_sync() of DistributedDataParallel",
            ),
            found.time(_SHOWS, exposed_in(is_bucket)),
            remedies=(_NO_SYNC,),
        )


@rule("DDT130", "gradients-copied-back", Consequence.COST, TraceFact)
def copied_back(recording: Recording) -> Iterator[Draft]:
    """Gradients that are copied out of the buckets after they were averaged.

    Finds: Copying them back takes a twentieth of the step or more; on a GPU trace only as far as the GPU idles for it.
        At most: that time.
    Why: With gradient_as_bucket_view=True gradients are views of the buckets, which saves the copies and as much memory
        as the gradients take.
    Remedy: gradient_as_bucket_view=True.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        docs/explanation/traces.md
    """
    view = setting(
        "Set DistributedDataParallel(model, gradient_as_bucket_view=True)",
        cost="detach_() on gradients raises an error",
        undo="remove gradient_as_bucket_view",
    )
    for found in told(recording, "DDT130"):
        number = found.usual.count(lambda step, _: step.copied_back)
        yield found.draft(
            f"{number:.0f} gradients are copied back from buckets",
            found.time("copying gradients back", lambda step, _: step.copied_back_us),
            remedies=(view,),
        )


@rule("DDT133", "communication-exposed", Consequence.COST, TraceFact)
def communication_exposed(recording: Recording) -> Iterator[Draft]:
    """Communication that takes much of the step although its buckets are as they should be.

    Finds: Averaging gradients runs alone for two fifths of the step or more on every rank, and none of the other rules
        tells a reason. At most: all of it, which only computing more between two updates comes near to. With one rank's
        file alone it may be waiting for others.
    Why: All ranks wait in every step. No setting mends it: there is too much to send for what is computed.
    Remedy: Accumulate gradients with no_sync, a larger batch on each rank, half the bytes by a compression hook, or
        fewer ranks. With few large buckets a smaller bucket_cap_mb hides more of it.
    See: https://pytorch.org/docs/stable/ddp_comm_hooks.html
        docs/explanation/traces.md
    """
    updates = "a larger batch per update; learning rate and schedule may need tuning"
    for found in told(recording, "DDT133"):
        smaller = setting(
            f"Set DistributedDataParallel(model, bucket_cap_mb={found.advice.value}), so that"
            " communication starts earlier",
            cost="more all-reduces; slower if latency is high",
            undo="remove bucket_cap_mb",
        )
        hook = code(
            "Halve the bytes: model.register_comm_hook(None,"
            " torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook)",
            cost="gradients averaged with 8 bits of precision",
        )
        yield found.draft(
            "Gradient averaging does not overlap with backward, although the bucket sizes are fine",
            found.time(_SHOWS, exposed_in(is_bucket)),
            found.time("computing", lambda step, _: step.compute_us),
            remedies=(
                *([smaller] if found.advice.setting else []),
                code("Accumulate gradients over several passes, all except the last in model.no_sync()", cost=updates),
                code(
                    "Use a larger batch per rank, which does not enlarge the gradients", cost=f"memory, and {updates}"
                ),
                *([hook] if not any(fact.hook for fact in found.window.ranks) else []),
                code("Use fewer ranks, if possible only ranks of one node", cost="fewer samples per step"),
            ),
            severity=Severity.WARNING,  # it is a bound: no measured slowdown
        )


@rule("DDT126", "small-collectives", Consequence.SLOWER, TraceFact)
def small_collectives(recording: Recording) -> Iterator[Draft]:
    """Many small collectives in a step, beside those of DistributedDataParallel.

    Finds: Four collectives or more of less than 64 KiB in each step (where sizes are not recorded: that take less than
        0.1 ms), beside gradients' buckets, barriers and the broadcast of buffers. At most: the time in which they alone
        run, and on a GPU what it idles while the host reads their results.
    Why: Each of them pays the latency and is a meeting of all ranks; if its result is read, the host waits as well.
    Remedy: Join the numbers in one tensor, reduce every Nth step, and read the result a step later.
    See: https://pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce
        docs/explanation/traces.md
    """
    for found in told(recording, "DDT126"):
        number = found.usual.count(small_calls)
        yield found.draft(
            f"Each step runs {number:.0f} small collectives",
            Evidence(text="collectives below 64 KiB besides gradient buckets, per step", value=number),
            found.time("in them, or idle while their results are read", in_small_calls),
            remedies=(
                code("Join the numbers and reduce once: all_reduce(torch.stack([loss, hits, count]))"),
                code(
                    "Reduce every Nth step, accumulate on the rank in between, and call .item() equally rarely",
                    cost="logs of fewer steps",
                ),
            ),
        )


@rule("DDT128", "buffers-broadcast", Consequence.SLOWER, TraceFact)
def buffers_broadcast(recording: Recording) -> Iterator[Draft]:
    """Buffers of the model that rank 0 sends to all before each forward.

    Finds: Broadcasts in DistributedDataParallel.forward, with the packing before and the copying after them. At most:
        the time from the first to the last of that on the host; on a GPU as far as it idles meanwhile.
    Why: Statistics of BatchNorm that each rank would keep by itself are sent in every step, copied one by one.
    Remedy: broadcast_buffers=False, if ranks may differ in them until they are saved; SyncBatchNorm if not.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
        docs/explanation/traces.md
    """
    keep = setting(
        "Set DistributedDataParallel(model, broadcast_buffers=False)",
        cost="separate running statistics per rank; rank 0 saves its own",
        undo="remove broadcast_buffers",
    )
    for found in told(recording, "DDT128"):
        yield found.draft(
            "Model buffers are broadcast before each forward",
            found.time("packing, sending and copying back buffers", lambda step, _: step.buffers_us),
            remedies=(keep,),
        )


@rule("DDT129", "barrier-in-step", Consequence.SLOWER, TraceFact)
def barrier_in_step(recording: Recording) -> Iterator[Draft]:
    """A barrier in every step.

    Finds: A barrier of torch.distributed in each step, whatever it costs. At most: the time in which it alone runs, on
        the rank that is there last, and on a GPU what it idles because the host waited. The waiting for a rank that is
        late is not counted: without the barrier it is waited for in backward.
    Why: The gradients' averaging already makes ranks meet. On a GPU a barrier lets the host wait until all work is
        done, so that the next launches come late.
    Remedy: Take it out; where a file has to be there, only around that.
    See: https://pytorch.org/docs/stable/distributed.html#torch.distributed.barrier
        docs/explanation/traces.md
    """
    alone = exposed_in(lambda call: call.kind == "barrier")
    for found in told(recording, "DDT129"):
        number = found.usual.count(barriers)
        yield found.draft(
            f"{number:.0f} barrier{'s' if number > 1 else ''} in each step",
            found.time("in barriers while nothing else runs", alone),
            found.time("the host waits for the GPU", lambda step, _: waited_in(step, *READS, *RUNTIME)),
            remedies=(code("Remove torch.distributed.barrier() from the loop"),),
        )


@rule("DDT108", "slow-transfer", Consequence.SLOWER, TraceFact)
def slow_transfer(recording: Recording) -> Iterator[Draft]:
    """All-reduces whose transfer is far slower than the bandwidth that was measured before.

    Finds: With --against REPORT, the report of a run on the same nodes: all-reduces of 16 MiB or more, without any
        waiting for ranks that come late, reach less than a tenth of the bus bandwidth of the report's largest one, and
        transfer is at least a tenth of the step. A trace alone does not tell which link there is.
    Why: It is the network, and no rank: what looks like it in a trace mostly is a rank that comes late.
    Remedy: Measure these nodes again; other jobs on the same network.
    See: docs/explanation/traces.md
    """
    expected = recording.options.expected_busbw
    for window in windows(recording) if expected else ():
        share = max((one.transfer / one.step for one in median_parts(recording, window)), default=0.0)
        rate = _busbw(window.met.meetings) if window.is_whole else None
        if not expected or rate is None or rate >= SLOW_TRANSFER_SHARE * expected or share < LATE_SHARE:
            continue
        yield likely(
            NOBODY,
            f"Transfer is slow{window.where}: all-reduces reach {rate / 1e9:.3g} of"
            f" {expected / 1e9:.3g} GB/s and take {share:.0%} of the step",
            Evidence(
                text="bus bandwidth of a step's all-reduces, after the last rank has entered",
                value=rate,
                unit="B/s",
                expected=expected,
                expected_from="the largest all-reduce in the report of --against",
            ),
            by_trace(
                "Measure these nodes again with the job's settings, and check what else uses the network",
                "ddp-doctor run",
            ),
        )


def _busbw(meetings: Sequence[Meeting]) -> float | None:
    """Return B/s of the large all-reduces of a median step, counting overlapping ones together; None without them."""
    large = (one for one in meetings if one.kind == ALL_REDUCE and (one.size_bytes or 0) >= TRANSFER_BYTES)
    rates = []
    for of_step in grouped((one.step, one) for one in large).values():
        moved = sum(TABLE[ALL_REDUCE].bus_factor(len(one.spans)) * (one.size_bytes or 0) for one in of_step)
        busy = Times.union(map(_transfer, of_step)).total
        rates.append(moved / (busy / 1e6) if busy else float("inf"))
    return median(rates) if rates else None


def _transfer(meeting: Meeting) -> Interval:
    """Return the time from the last rank's arrival to the end, by the clock of the first rank that took part."""
    end = meeting.spans[min(meeting.spans)][1]
    return end - min(end - begin for begin, end in meeting.spans.values()), end
