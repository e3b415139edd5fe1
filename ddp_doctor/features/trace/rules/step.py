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
    """Every rank waits for its loader in each step.

    Finds: Reported if the main thread of each rank spends a tenth of the step or more in the __next__ of its DataLoader
        while nothing computes or communicates. The cost is at most that time. Severity is info below a fifth, because a
        profiler lengthens loading, and error if it makes the step three times as long. If only one rank waits,
        slow-data-loading is reported instead.
    Why: Processors that load data cost less than GPUs that wait for it.
    Remedy: Use workers, or more of them (the trace shows whether there are workers, not how many to use), and do less
        work per sample.
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
    """The optimizer updates parameters one by one, in many small kernels.

    Finds: Reported if Optimizer.step takes a tenth of the step or more, with at least four kernels (operators on a CPU)
        per parameter. The cost is at most the optimizer's time. On a GPU, this includes idle time in Optimizer.step. If
        the tenth is only reached with that idle time, severity is info: communication may hide the launches, and a
        profiler lengthens them.
    Why: foreach uses a few kernels for all parameters, and fused uses one.
    Remedy: Set fused=True, or foreach=True.
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
    """Calls in the step make the host wait for the GPU, and then the GPU waits for the host.

    Finds: On a GPU trace, reports .item(), nonzero, copies to the CPU and synchronizations in each step that leave the
        GPU idle. The cost is at most the time the host waits in them, or the GPU's idle time without the profiler's
        part if that is shorter. Severity is warning from a fifth of the step, info below. On a CPU trace, such calls
        take microseconds and are reported as info.
    Why: A host that runs ahead of the GPU hides its launches. Each wait loses this lead.
    Remedy: Read numbers every Nth step, or a step later. Use masks instead of nonzero. Stacks (with_stack=True) show
        the lines.
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
    """The host waits while batches are copied to the GPU.

    Finds: Reports a copy in each step from pageable memory, or from pinned memory without non_blocking. In it, the host
        waits until the GPU has finished the previous step, and then the GPU idles until new work is launched. The cost
        is at most the time the host waits, or the GPU's idle time without the profiler's part if that is shorter, plus
        the time of copies from pageable memory while nothing else runs. Severity is info unless these copies take a
        tenth of the step, because a trace does not show how far ahead the host would be.
    Why: With pinned memory and non_blocking=True, the host launches the next step during the copy.
    Remedy: Set both pin_memory=True and non_blocking=True. One without the other has no effect.
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
    """The GPU of every rank idles because its host launches work late.

    Finds: Reported if the GPU of each rank idles for a fifth of the step or more although the host does not wait for
        it. The cost is at most all of the GPU's idle time that its host causes. Severity is info below 0.1 ms of idle
        time per kernel, because the host then does little except launch, and a profiler makes launches up to twice as
        long.
    Why: A GPU that waits for Python costs as much as a GPU that computes.
    Remedy: Use fewer and larger kernels, and only launch kernels in the step.
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
