"""DDT126, DDT128, DDT129: collectives beside the gradients' buckets."""

from collections.abc import Iterator

from ddp_doctor.checks.ddp.trace.told import code, setting, told
from ddp_doctor.facts.trace import TraceFact
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.trace.collect import READS
from ddp_doctor.views.trace.advice import RUNTIME, barriers, in_small_calls, small_calls
from ddp_doctor.views.trace.usual import exposed_in, waited_in


@rule("DDT126", "small-collectives", Severity.WARNING, TraceFact)
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
            f"{number:.0f} small collectives in each step",
            Evidence(text="collectives of less than 64 KiB beside gradients' buckets, in a step", value=number),
            found.time("in them, or idle while their results are read", in_small_calls),
            remedies=(
                code("Join the numbers, reduce once: all_reduce(torch.stack([loss, hits, count]))"),
                code(
                    "Reduce every Nth step, add up on the rank in between, and read with .item() as seldom",
                    cost="numbers of fewer steps",
                ),
            ),
        )


@rule("DDT128", "buffers-broadcast", Severity.WARNING, TraceFact)
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
        "DistributedDataParallel(model, broadcast_buffers=False)",
        cost="each rank keeps its own running statistics; what rank 0 saves are its own",
        undo="leave broadcast_buffers out",
    )
    for found in told(recording, "DDT128"):
        yield found.draft(
            "The model's buffers are sent before each forward",
            found.time("packing, sending and copying back buffers", lambda step, _: step.buffers_us),
            remedies=(keep,),
        )


@rule("DDT129", "barrier-in-step", Severity.WARNING, TraceFact)
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
            remedies=(code("Take torch.distributed.barrier() out of the loop", cost="none: backward is a meeting"),),
        )
