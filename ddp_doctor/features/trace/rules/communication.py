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
    """Gradients are sent in many small buckets, and each bucket adds latency.

    Finds: Reports a backward pass that sends at least three times as many all-reduces as with the default sizes, each
        smaller than 1 MiB. The cost is at most the time when only these all-reduces run, minus the time of as many
        calls as the default makes. On a CPU trace this includes hidden all-reduces, because gloo uses the same
        processors. The rule needs the sizes of collectives: record_shapes=True with gloo, torch 2.2 or newer with NCCL.
    Why: Below about 1 MiB an all-reduce takes as long as an all-reduce of a single byte.
    Remedy: Remove bucket_cap_mb. `ddp-doctor run --model MODULE:FACTORY --from-trace REPORT.json` tests this.
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
    """Communication starts at or near the end of backward, so backward does not hide it.

    Finds: Reports a first bucket with half of the gradients or at least 16 MiB that is sent after half of backward or
        later, and gradients that are averaged after backward without DistributedDataParallel. The cost is at most the
        time when only these all-reduces run, or the length of backward if that is shorter. Averaging without
        DistributedDataParallel counts in full. With gloo a large bucket is info, because gloo uses the processors that
        compute and hides little. With find_unused_parameters, DDT123 or DDT134 is reported instead, because the buckets
        then never follow the order of gradients.
    Why: If buckets are sent as they fill, backward can hide all except the last.
    Remedy: Remove bucket_cap_mb (setting its default of 25 makes the first bucket larger), or use
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
    """find_unused_parameters=True is set although every parameter gets a gradient in every step.

    Finds: Reports a search for unused parameters in each step if as many gradients go into buckets as there are
        parameters. The number of parameters comes from the all-reduced map of used parameters, or from the gradients
        that are copied back. The cost is at most the search, the map's all-reduce, and the head start that the
        gradients' communication could get.
    Why: DDP traverses the graph in every step, sends a map with every backward, and never sorts its buckets into the
        order of the gradients, so it sends them late.
    Remedy: Remove find_unused_parameters. A step without a gradient for some parameter then ends with an error. If that
        happens, try static_graph=True.
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
    """find_unused_parameters=True is needed, and may cost a tenth of the step or more.

    Finds: Reports a search for unused parameters in each step if some parameters are unused, or if the trace does not
        show whether any are. The cost is limited as for find-unused-parameters-needless.
    Why: If the same parameters are unused in every step, DDP does not need to search for them.
    Remedy: Set static_graph=True, or remove the parameters that are never used from the model.
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
    """Gradients are accumulated over several passes, but averaged in each pass.

    Finds: Reports two or more forward and backward passes per Optimizer.step if each backward averages gradients. The
        cost is at most the time to average and copy back gradients in all passes except the last.
    Why: The optimizer only needs the sum, so only the last pass has to average.
    Remedy: Use model.no_sync() for all passes except the last.
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
    """Gradients are copied out of the buckets after they are averaged.

    Finds: Reported if these copies take at least 8% of the step. On a GPU trace, only copies that leave the GPU idle
        count. The cost is at most that time.
    Why: With gradient_as_bucket_view=True gradients are views of the buckets. This saves the copies and as much memory
        as the gradients use.
    Remedy: Set gradient_as_bucket_view=True.
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
    """Communication takes a large part of the step although the buckets have good sizes.

    Finds: Reported if only the averaging of gradients runs for two fifths of the step or more on every rank, and no
        other rule explains it. The cost is at most all of that time, but only more computing between two updates saves
        nearly as much. With the file of only one rank, the time may include waiting for other ranks.
    Why: All ranks wait in every step. No setting fixes this: there is too much to send for the amount of computing.
    Remedy: Accumulate gradients with no_sync, use a larger batch per rank, halve the bytes with a compression hook, or
        use fewer ranks. With few large buckets, a smaller bucket_cap_mb hides more of it.
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
            severity=Severity.WARNING,  # a bound, not a measured slowdown
        )


@rule("DDT126", "small-collectives", Consequence.SLOWER, TraceFact)
def small_collectives(recording: Recording) -> Iterator[Draft]:
    """Each step has many small collectives in addition to DistributedDataParallel's.

    Finds: Reports four or more collectives per step that are smaller than 64 KiB, or shorter than 0.1 ms if sizes are
        not recorded. Gradient buckets, barriers and the broadcast of buffers do not count. The cost is at most the time
        when only these collectives run. On a GPU, this includes its idle time while the host reads their results.
    Why: Each of them adds latency and waits for all ranks. If its result is read, the host also waits.
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
    """Rank 0 sends the model's buffers to all ranks before each forward.

    Finds: Reports broadcasts in DistributedDataParallel.forward, with the packing before and the copying after them.
        The cost is at most the host's time from the first to the last of these. On a GPU trace, only the GPU's idle
        time and the exposed broadcasts count.
    Why: Each step sends BatchNorm statistics and copies them one by one, although each rank can keep its own.
    Remedy: Set broadcast_buffers=False if ranks may have different buffers until the model is saved. Otherwise, use
        SyncBatchNorm.
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
    """A barrier runs in every step.

    Finds: Reports a barrier of torch.distributed in each step, at any cost. The cost is at most the time when only the
        barrier runs on the last rank to enter it. On a GPU, this includes its idle time because the host waited. The
        wait for a late rank is not counted, because backward would wait for it without the barrier.
    Why: Ranks already wait for each other when they average gradients. On a GPU, a barrier makes the host wait until
        all work is done, so the next launches are late.
    Remedy: Remove the barrier. If ranks wait for a file, keep it only around that.
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
    """All-reduces are much slower than the bandwidth that was measured before.

    Finds: Needs --against REPORT, the report of a run on the same nodes. Reports all-reduces of 16 MiB or more that
        reach less than a tenth of the bus bandwidth of the report's largest all-reduce, if transfer takes at least a
        tenth of the step. Time spent waiting for late ranks does not count. A trace does not show the type of the link,
        so the rule needs the report.
    Why: The network is slow, not a rank. Most slow collectives in traces only wait for a late rank.
    Remedy: Measure these nodes again, and check for other jobs on the same network.
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
    """Return B/s of the large all-reduces of a median step, overlapping ones counted together, or None without any."""
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
