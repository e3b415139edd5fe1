"""Steps of a model with a strategy, and a rank's peak memory for tensors in these steps."""

from bisect import bisect
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from ddp_doctor.features.model.fit.probing import subject
from ddp_doctor.features.model.fit.probing.strategies import wrap
from ddp_doctor.features.model.user_model.probing import batches
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import FitOptions
from ddp_doctor.probing.rank_identity import finish

if TYPE_CHECKING:
    import torch

STEPS = 3


def peak_bytes(device: str, run: Callable[[], None]) -> int:
    """Return the peak bytes beyond those allocated before. Raises what ``run`` raises.

    On a CPU, torch's profiler measures it, because resident memory would include libraries.
    """
    import torch

    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    return allocated(profiler)


def allocated(profiler: "torch.profiler.profile") -> int:
    """Return the peak bytes on a CPU of allocations since the profiler started.

    It is the profiler's "Total Allocated" except for gloo's staging buffers. torch counts only on threads where the
    profiler runs, so a buffer that gloo's own thread frees is never subtracted. Here it ends with its collective, for
    which the rank waits.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))  # exported events have addresses, in-memory ones do not
        events = from_json(path.read_bytes())["traceEvents"]
    memory = sorted((event for event in events if event["name"] == "[memory]"), key=lambda event: event["ts"])
    calls = _spans(events, "c10d::")
    flattened = _spans(events, "aten::flatten_dense_tensors")  # DDP's constructor sends the result in the next call
    there: dict[int, int] = {}
    staged: dict[int, float] = {}  # address to the end of its call
    taken = most = 0
    for event in memory:
        at, address, size = event["ts"], event["args"]["Addr"], event["args"]["Bytes"]
        for ended in [address for address, end in staged.items() if end < at]:
            taken -= there.pop(ended, 0)
            del staged[ended]
        taken -= there.pop(address, 0)
        staged.pop(address, None)
        if size < 0:
            continue
        there[address] = size
        taken += size
        after = bisect(calls, (at, float("inf")))
        if any(begin <= at <= end for begin, end in calls[max(after - 1, 0) : after]):
            staged[address] = calls[after - 1][1]
        elif any(begin <= at <= end for begin, end in flattened) and after < len(calls):
            staged[address] = calls[after][1]
        most = max(most, taken)
    return most


def _spans(events: Sequence[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    named = (event for event in events if str(event["name"]).startswith(name) and "dur" in event)
    return sorted((event["ts"], event["ts"] + event["dur"]) for event in named)


def run_steps(
    ctx: RankContext, strategy: str, steps_s: list[float], *, checkpointing: bool, most_s: float = inf
) -> None:
    """Make a new model, wrap it and run steps; append the seconds of each to ``steps_s``. All ranks must call it.

    No step starts after ``most_s``. Raises what the user's code and torch raise.
    """
    import torch

    started = ctx.clock()

    options = ctx.options.fit or FitOptions()
    loaded = subject.factory_of(ctx.model, options.batch, options.seq)()
    batches.move(loaded.model, ctx.device)
    with ctx.step("wrap", ctx.part):
        model, optimizer = wrap(
            loaded.model,
            strategy,
            units=subject.units_of(loaded.model, loaded.units),
            checkpointing=checkpointing,
            precision=options.precision,
            optimizer=loaded.optimizer or torch.optim.AdamW,
            ranks_per_node=ctx.world_size,
            options=loaded.options,
        )
    for number in range(1, STEPS + 1):
        with ctx.step("measured_step", f"{ctx.part}, {number} of {STEPS}"):
            began = ctx.clock()
            batch, _ = batches.make(ctx, loaded, 0)
            if options.precision == "bf16":
                batch = batch.changed(lambda leaf: leaf.bfloat16() if torch.is_floating_point(leaf) else leaf)
            batch.loss(batch.forward(model)).backward()
            optimizer.step()
            optimizer.zero_grad()
            finish(ctx.device)
            steps_s.append(ctx.clock() - began)
            if number < STEPS and most_s < inf:
                late = ctx.clock() - started + steps_s[-1] > most_s
                if "late" in ctx.exchange(f"{ctx.part} after step {number}", "late" if late else ""):
                    return
