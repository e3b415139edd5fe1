"""DDT120, DDT125, DDT127, DDT131, DDT132: parts of a step other than computing and communication."""

from collections.abc import Iterator

from ddp_doctor.features.trace.facts import TraceFact
from ddp_doctor.features.trace.numbers import HOST_WARNING_SHARE, LAUNCH_US
from ddp_doctor.features.trace.reading.collect import COPIES, READS
from ddp_doctor.features.trace.rules.told import code, told
from ddp_doctor.features.trace.views.advice import RUNTIME, optimizer_kernels
from ddp_doctor.features.trace.views.parts import Usual, waited_in
from ddp_doctor.features.trace.views.windows import windows
from ddp_doctor.knowledge.severity import WARNING_SHARE
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import NOBODY, finding


@rule("DDT120", "input-bound", Consequence.SLOWER, TraceFact)
def input_bound(recording: Recording) -> Iterator[Draft]:
    """Steps in which every rank waits for its loader.

    Finds: On each rank the main thread is in the __next__ of its DataLoader, and nothing computes or communicates, for
        a tenth of the step or more. At most: that time. Below a fifth it is information, for a profiler makes it
        longer; an error where it makes the step three times as long. Of one rank alone slow-data-loading tells it.
    Why: The processors that load are cheaper than those that wait for them.
    Remedy: Workers where there are none, more of them where there are some (the trace tells which, not how many), and
        less work for each sample.
    See: https://pytorch.org/docs/stable/data.html#multi-process-data-loading
        docs/explanation/traces.md
    """
    cost = "host memory and CPU cores"
    for found in told(recording, "DDT120"):
        alone = any(fact.loader == "main" for fact in found.window.ranks)
        who = "the main thread loads, without workers" if alone else "its workers are too few or too slow"
        more = "Use DataLoader(..., num_workers=4, persistent_workers=True, pin_memory=True)"
        yield found.draft(
            "Steps wait for data",
            found.time(f"waiting for the loader while nothing else runs; {who}", lambda step, _: step.loading_us),
            found.time("time in the loader, in total", lambda step, _: step.loader_us),
            remedies=(
                code(more if alone else f"{more} with more workers than now, or a larger prefetch_factor", cost=cost),
                code("Do less work per sample: decode and resize once, and store the result", cost="storage space"),
            ),
            warns_from=HOST_WARNING_SHARE,
        )


@rule("DDT125", "optimizer-bound", Consequence.SLOWER, TraceFact)
def optimizer_bound(recording: Recording) -> Iterator[Draft]:
    """An optimizer that updates one parameter after the other, in many small kernels.

    Finds: Optimizer.step takes a tenth of the step or more, with four kernels (on a CPU operators) or more for each
        parameter. At most: the optimizer's time; on a GPU with what it idles meanwhile, which is information, for the
        launches may hide behind communication, and a profiler makes them long.
    Why: foreach has some kernels for all parameters together, fused one.
    Remedy: fused=True, or foreach=True.
    See: https://pytorch.org/docs/stable/optim.html
        docs/explanation/traces.md
    """
    for found in told(recording, "DDT125"):
        computes = found.usual.least(lambda step, _: step.optimizer_us)
        name = next((fact.optimizer for fact in found.window.ranks if fact.optimizer), "") or "Adam"
        yield found.draft(
            f"{name} updates parameters one by one"
            f" with {found.usual.count(lambda step, _: step.optimizer_kernels):.0f}"
            f" {'kernels' if found.usual.on_gpu else 'operators'}",
            Evidence(
                text="of them per parameter",
                value=round(optimizer_kernels(found.usual), 1),
                expected=1.0,
                expected_from="foreach or fused",
            ),
            found.time("the host in Optimizer.step", lambda step, _: step.optimizer_host_us),
            remedies=(
                code(
                    f"Use torch.optim.{name}(..., fused=True), which updates in one kernel",
                    cost="different last digits",
                ),
                code(
                    f"Use torch.optim.{name}(..., foreach=True) on a GPU, which updates in a few kernels", cost="memory"
                ),
            ),
            severity=Severity.INFO if found.usual.on_gpu and computes < WARNING_SHARE else None,
        )


_READ_LATER = code(
    "Keep the number on the GPU (total += loss.detach()), and read it every Nth step",
    cost="logs that are some steps old",
)


@rule("DDT127", "sync-points", Consequence.SLOWER, TraceFact)
def sync_points(recording: Recording) -> Iterator[Draft]:
    """Calls in the step that make the host wait for the GPU, so that the GPU then waits for the host.

    Finds: On a GPU trace .item(), nonzero, a copy to the CPU or a synchronization in each step, after which the GPU has
        nothing to do. At most: what the host waits in them, and not more than the GPU idles, less what of that the
        profiler makes; a warning from a fifth on. On a CPU trace such calls cost microseconds: they are told as a fact.
    Why: A host that is ahead of the GPU hides its launches. Each waiting spends what it was ahead.
    Remedy: Read numbers every Nth step, or a step later; masks in place of nonzero. Stacks (with_stack=True) name the
        lines.
    See: https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization
        docs/explanation/traces.md
    """
    for found in told(recording, "DDT127"):
        step = found.window.ranks[0].steps[-1]
        syncs = [sync for sync in step.syncs if sync.name in (*READS, *RUNTIME)] or list(step.syncs)
        names = " and ".join(dict.fromkeys(sync.name for sync in syncs))
        yield found.draft(
            f"Host waits for the GPU in {sum(sync.count for sync in syncs)} calls of {names} per step",
            found.time("waiting in these calls", lambda step, _: waited_in(step, *READS, *RUNTIME)),
            found.time("the GPU is idle", lambda step, _: step.host_us + step.loading_us),
            *(Evidence(text=f"{sync.name} in {sync.where}", value=float(sync.count)) for sync in syncs if sync.where),
            remedies=(_READ_LATER,),
            warns_from=HOST_WARNING_SHARE,
        )
    for usual in (Usual(window) for window in windows(recording)):
        reads = usual.count(lambda step, _: sum(sync.count for sync in step.syncs if sync.name in READS))
        if reads >= 1 and not usual.on_gpu:
            yield finding(
                NOBODY,
                "Host reads a number from a tensor in each step: harmless on a CPU, but it waits for a GPU",
                [Evidence(text="calls of .item(), nonzero and similar per step", value=reads)],
                _READ_LATER,
                confidence=Confidence.PROVED,
                severity=Severity.INFO,
            )


@rule("DDT131", "copies-hold-up-the-host", Consequence.SLOWER, TraceFact)
def copies_wait(recording: Recording) -> Iterator[Draft]:
    """Batches that are copied to the GPU while the host waits.

    Finds: In each step a copy from pageable memory, or from pinned memory without non_blocking, in which the host waits
        until the GPU is done with the step before; then the GPU idles until new work is launched. At most: what the
        host waits in them and not more than the GPU idles, less what of that the profiler makes, and what copies from
        pageable memory take alone. Information unless that alone is a tenth of the step: how far a host would be ahead
        a trace does not show.
    Why: From pinned memory, and with non_blocking=True, the host goes on and launches the next step meanwhile.
    Remedy: pin_memory=True and non_blocking=True; one of them alone does nothing.
    See: https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html
        docs/explanation/traces.md
    """
    for found in told(recording, "DDT131"):
        pageable = found.usual.count(lambda step, _: step.pageable)
        copying = found.usual.least(lambda step, _: min(step.pageable_us, step.other_us))
        yield found.draft(
            f"Host waits for copies to the GPU from {'pageable' if pageable else 'pinned'} memory",
            found.time("the host waits in these copies", lambda step, _: waited_in(step, *COPIES)),
            found.time("the GPU is idle", lambda step, _: step.host_us + step.loading_us),
            found.time("copies from pageable memory", lambda step, _: step.pageable_us),
            remedies=(
                code(
                    "Use DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)",
                    cost="pinned host memory for all prefetched batches",
                ),
            ),
            severity=None if copying >= WARNING_SHARE else Severity.INFO,
        )


@rule("DDT132", "launches-late", Consequence.SLOWER, TraceFact)
def launches_late(recording: Recording) -> Iterator[Draft]:
    """A GPU that idles because the host launches its work late, on every rank.

    Finds: On each rank the GPU has nothing to do for a fifth of the step or more, beyond what the host waits for it. At
        most: all that time. With less than 0.1 ms of it for each kernel it is information, for then the host does
        little else than launch, and a profiler makes that up to twice as long.
    Why: A GPU that waits for Python costs as much as one that computes.
    Remedy: Fewer and larger kernels; nothing but launches in the step.
    See: https://pytorch.org/docs/stable/generated/torch.compile.html
        docs/explanation/traces.md
    """
    for found in told(recording, "DDT132"):
        usual = found.usual
        each_us = usual.count(lambda step, _: step.host_us) / usual.count(lambda step, _: step.kernels)
        python = each_us >= LAUNCH_US
        yield found.draft(
            f"GPU waits for {'Python between launches' if python else 'launches of small kernels'}",
            found.time("the GPU is idle", lambda step, _: step.host_us),
            found.time("the host launches kernels", lambda step, _: step.launch_us),
            Evidence(text="kernels per step", value=usual.count(lambda step, _: step.kernels)),
            remedies=(
                code(
                    "Launch fewer kernels: torch.compile(model) or CUDA graphs", cost="compile time; static shapes only"
                ),
                code("Move logging, metrics and Python loops out of the step; a trace with_stack=True shows them"),
                code("Use a larger batch, which does more work per launch", cost="memory, and changed training"),
            ),
            severity=Severity.WARNING if python else Severity.INFO,
        )
