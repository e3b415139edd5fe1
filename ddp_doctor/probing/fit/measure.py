"""Steps of a model under a strategy, and the most memory that tensors took meanwhile on a rank."""

from collections.abc import Callable

from ddp_doctor.model.context import RankContext
from ddp_doctor.model.recording import FitOptions
from ddp_doctor.probing.fit import subject
from ddp_doctor.probing.fit.strategies import wrap
from ddp_doctor.probing.rank_identity import finish
from ddp_doctor.probing.user_model import batches

STEPS = 3


def peak_bytes(device: str, run: Callable[[], None]) -> int:
    """Bytes beyond what was there before. Raises what ``run`` raises.

    On a CPU the allocations that torch's profiler sees are added up; resident memory would count libraries, too.
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
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    events = [event for event in results.events() if event.name() == "[memory]"] if results is not None else []
    taken = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        taken += event.nbytes()
        most = max(most, taken)
    return most


def run_steps(ctx: RankContext, strategy: str, steps_s: list[float], *, checkpointing: bool) -> None:
    """Make the model anew, wrap it and make steps; the seconds of each go to ``steps_s``. All ranks call it together.

    Raises what the user's code and torch raise.
    """
    import torch

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
