"""gradient_sync: whether DistributedDataParallel gives every rank the mean of all ranks' gradients.

Raw input: on each rank, the ``.grad`` of a small DDP-wrapped model after ``backward()``::

    parameter weight3, 8195 elements, bucket cap 32 KiB, 2 ranks
      local gradient, rank 0    12. 4. 12. 4. …    (known in closed form: knowledge/ddp/gradient_code.py)
      local gradient, rank 1    4. 12. 4. 12. …
      .grad after backward()     8. 8. 8. 8. …      = the mean, on both ranks, bit for bit

The probe reads gradients after the first step (one large bucket), after a step inside ``no_sync()`` (each gradient must
be the rank's own), and after the next step (several buckets; the mean of both steps' gradients).

Why it matters: a wrong mean raises no error in training, and the loss still falls.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from ddp_doctor.facts.ddp.gradients import GradientSync, Phase
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.base import grouped
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Consequence, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.torch_calls import of_stock_ddp
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.ranks import rank_culprits, rank_of, ranks_at

#: Small enough that the model's parameters fill several buckets.
BUCKET_CAP_BYTES = 32 * 1024
_ONCE, _TWICE = 1, 2  # gradients after no_sync() are doubled, so a lost step changes the sum


#: A rank and a wrong gradient on it.
Off = tuple[int, gradient_code.OffGradient]


def off_in(recording: Recording, *phases: str) -> list[Off]:
    """Return the wrong gradients of all ranks in these phases."""
    ranks = recording.facts(GradientSync)
    return [(rank_of(rank), off) for rank in ranks for phase in phases for off in getattr(rank.fact, phase).off]


def lost_a_step(held: gradient_code.Reading) -> bool:
    """Return True if the accumulated gradient looks as if one of the two steps was not synchronized."""
    parts = {round(1 / 3, 4), round(2 / 3, 4)}  # the two steps' gradients are one and two times the code
    return held.holds == "own" or bool(parts & {held.scale, *held.shares.values()})


def by_cause(off: Iterable[Off]) -> list[list[Off]]:
    """Group wrong gradients by their contents, so that each cause gives one finding."""
    return list(grouped((gradient.held.model_dump_json(), (rank, gradient)) for rank, gradient in off).values())


def _ranks(off: Iterable[Off]) -> list[int]:
    return sorted({rank for rank, _ in off})


def drafts(recording: Recording, what: str, wrong: Sequence[Off]) -> Iterator[Draft]:
    """Yield a finding per cause. Its ranks are to blame, unless all ranks are wrong."""
    is_on_all = len(_ranks(wrong)) == recording.facts(GradientSync)[0].fact.world_size
    for off in by_cause(wrong):
        ranks = _ranks(off)
        yield draft(recording, what.format(ranks=ranks_at(recording, ranks)), off, () if is_on_all else ranks)


def draft(recording: Recording, what: str, off: Sequence[Off], blamed: Iterable[int]) -> Draft:
    """Return a finding about gradients with one cause; ``what`` starts the title."""
    names = sorted({gradient.parameter for _, gradient in off})
    rank, worst = max(off, key=lambda found: found[1].max_abs_error or 0.0)
    world_size = recording.facts(GradientSync)[0].fact.world_size
    where = ranks_at(recording, _ranks(off))
    return finding(
        rank_culprits(recording, GradientSync, blamed),
        f"{what}: {gradient_code.words(worst.held, world_size)}",
        worst.evidence(f"gradient of {worst.parameter} on rank {rank}"),
        *of_stock_ddp(recording, "gradient_sync"),
        confidence=Confidence.LIKELY,
        detail=f"Wrong in ddp-doctor's own model: {', '.join(names)} on {where}. Your code was not involved.",
    )


@rule("DD701", "gradient-is-not-the-mean", Consequence.WRONG, GradientSync)
def gradient_is_not_the_mean(recording: Recording) -> Iterator[Draft]:
    """Finds: After ``backward()``, all ranks hold the same gradient, but it is not the mean of their gradients. The
        ranks' gradients are coded, so a rank whose share is missing or counted twice is named.
    Why: Training reports no error: a missing rank's data is ignored, and a sum instead of a mean scales the learning
        rate.
    Remedy: This check does not run your code: with NCCL, repeat it with NCCL_PROTO=Simple; if a rank is named, without
        its GPU. Otherwise look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/notes/ddp.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-proto
    """
    agreed = [(rank, gradient) for rank, gradient in _ordinary(recording) if gradient.identical]
    # If all ranks hold rank 2's gradient, only rank 2 reads "own", but the cause is the same.
    for off in by_cause((rank, gradient) for rank, gradient in agreed if gradient.held.holds != "own"):
        held = off[0][1].held
        unsure = " (the faulty rank is unknown)" if held.holds == "other" else ""
        blamed = sorted(held.shares) if held.holds == "shares" else ()
        yield draft(recording, f"All ranks get the same wrong gradient{unsure}", off, blamed)


@rule("DD702", "gradients-differ-between-ranks", Consequence.WRONG, GradientSync)
def gradients_differ_between_ranks(recording: Recording) -> Iterator[Draft]:
    """Finds: After ``backward()`` the ranks hold different gradients. Ranks whose gradient is not the mean are named.
    Why: DDP broadcasts the parameters once and then relies on equal gradients. With different gradients, each rank
        trains a different model, and checkpoints contain only rank 0's.
    Remedy: This check does not run your code: with NCCL, repeat it with NCCL_PROTO=Simple; if a rank is named, without
        its GPU. Otherwise look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/notes/ddp.html
        https://github.com/pytorch/pytorch/issues/109191
    """
    differing = [(rank, gradient) for rank, gradient in _ordinary(recording) if gradient.identical is False]
    wrong = [(rank, gradient) for rank, gradient in differing if not gradient.equal]
    yield from drafts(recording, "Gradient on {ranks} is wrong", wrong)
    if differing and not wrong:
        title = "Gradients differ between ranks in their last bits: replicas drift apart"
        yield draft(recording, title, differing, []).model_copy(update={"title": title})


def _ordinary(recording: Recording) -> list[Off]:
    """Return the wrong gradients of the first step, and those of the last step that ``no_sync()`` does not explain."""
    first = off_in(recording, "step")
    known = {gradient.parameter for _, gradient in first}
    last = ((rank, gradient) for rank, gradient in off_in(recording, "resync") if gradient.parameter not in known)
    return first + [(rank, gradient) for rank, gradient in last if not lost_a_step(gradient.held)]


@rule("DD703", "no-sync-still-synchronises", Consequence.WRONG, GradientSync)
def no_sync_still_synchronises(recording: Recording) -> Iterator[Draft]:
    """Finds: After a step inside ``no_sync()`` a gradient is not exactly the rank's own.
    Why: Gradient accumulation relies on it. If all ranks still synchronize, every micro-step costs an all-reduce. If
        only some do, they wait for each other forever.
    Remedy: This check does not run your code: look for code that replaces ``no_sync`` in torch.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    # DD701 reports a gradient that is already missing in ordinary steps.
    before = {(gradient.parameter, gradient.held.holds) for _, gradient in off_in(recording, "step")}
    inside = off_in(recording, "no_sync")
    wrong = [(rank, gradient) for rank, gradient in inside if (gradient.parameter, gradient.held.holds) not in before]
    yield from drafts(recording, "Inside no_sync(), the gradient on {ranks} is not the local gradient", wrong)


@rule("DD704", "step-after-no-sync-not-synchronised", Consequence.WRONG, GradientSync)
def step_after_no_sync_not_synchronised(recording: Recording) -> Iterator[Draft]:
    """Finds: An ordinary step gives the mean, but the step after ``no_sync()`` lacks the contribution of one of the two
        steps, or is not synchronized at all.
    Why: With gradient accumulation, every optimizer step then differs between ranks, or loses micro-steps.
    Remedy: This check does not run your code: look for code that replaces ``no_sync`` in torch.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    before = {gradient.parameter for _, gradient in off_in(recording, "step", "no_sync")}
    after = ((rank, gradient) for rank, gradient in off_in(recording, "resync") if gradient.parameter not in before)
    wrong = [(rank, gradient) for rank, gradient in after if lost_a_step(gradient.held)]
    yield from drafts(recording, "In the step after no_sync(), the gradient on {ranks} is wrong", wrong)


def coded_model(ctx: RankContext) -> Any:
    """Return a torch module with five flat parameters, whose loss is linear in each of them."""
    import torch

    class Linear(torch.nn.Module):
        """A model whose loss is the sum of parameter x input, so a parameter's gradient is exactly its input."""

        def forward(self, *inputs: Any) -> Any:
            pairs = zip(self.parameters(), inputs, strict=True)
            return torch.stack([(parameter * given).sum() for parameter, given in pairs]).sum()

    model = Linear()
    least = max(256, ctx.world_size)  # at least one element per rank
    for number, elements in enumerate((least, 3 * least + 1, 16 * least + 7, 32 * least + 3, least + 5)):
        zeros = torch.zeros(elements, dtype=torch.float32, device=ctx.device)
        model.register_parameter(f"weight{number}", torch.nn.Parameter(zeros))
    return model


def wrap(ctx: RankContext, module: Any) -> Any:
    """Wrap the module in DistributedDataParallel with buckets of BUCKET_CAP_BYTES."""
    from torch.nn.parallel import DistributedDataParallel

    with ctx.step("ddp_construct", f"{len(list(module.parameters()))} parameters"):
        return DistributedDataParallel(module, process_group=ctx.group, bucket_cap_mb=BUCKET_CAP_BYTES / 2**20)


def measure(ctx: RankContext, model: Any, ddp_construct_s: float = 0.0) -> GradientSync:
    """Return the gradients of a DDP-wrapped ``coded_model`` after three steps."""
    _one_step(ctx, model, _ONCE, sync=True)
    step = _grads(model)
    model.zero_grad()
    _one_step(ctx, model, _ONCE, sync=False)
    own = _grads(model)
    seconds = _one_step(ctx, model, _TWICE, sync=True)
    resync = _grads(model)
    started = ctx.clock()
    identical = iter(_identical(ctx, [*step, *resync]))
    all_gather_s = ctx.clock() - started
    parameters = list(model.module.parameters())
    return GradientSync(
        world_size=ctx.world_size,
        parameters=len(parameters),
        elements=sum(parameter.numel() for parameter in parameters),
        bucket_cap_bytes=BUCKET_CAP_BYTES,
        step=_phase(ctx, model, step, _ONCE, identical),
        no_sync=_phase(ctx, model, own, _ONCE, None),
        resync=_phase(ctx, model, resync, _ONCE + _TWICE, identical),
        ddp_construct_s=ddp_construct_s,
        forward_s=seconds[0],
        backward_s=seconds[1],
        all_gather_s=all_gather_s,
    )


def _one_step(ctx: RankContext, model: Any, scale: int, *, sync: bool) -> tuple[float, float]:
    """Run forward and backward with this rank's inputs; return the seconds of each."""
    import torch

    inputs = []
    for number, parameter in enumerate(model.module.parameters()):
        places = torch.arange(len(parameter), device=parameter.device)
        code = gradient_code.local(number, places, ctx.group_rank, ctx.world_size)
        inputs.append((scale * code).to(torch.float32))
    detail = f"gradients x {scale}" if sync else "inside no_sync()"
    with nullcontext() if sync else model.no_sync():
        started = ctx.clock()
        with ctx.step("forward", detail):
            loss = model(*inputs)
        forwarded = ctx.clock()
        with ctx.step("backward", detail):
            loss.backward()
    return forwarded - started, ctx.clock() - forwarded


def _grads(model: Any) -> list[Any]:
    grads = [parameter.grad for parameter in model.module.parameters()]
    return [None if grad is None else grad.detach().clone() for grad in grads]


def _identical(ctx: RankContext, grads: Sequence[Any]) -> list[bool]:
    """Return, for each gradient, whether all ranks hold the same bits (by a 64-bit checksum)."""
    import torch
    import torch.distributed as dist

    none = torch.zeros((), dtype=torch.int64, device=ctx.device)
    mine = torch.stack([none if grad is None else gradient_code.checksum(grad) for grad in grads])
    everyone = [torch.empty_like(mine) for _ in range(ctx.world_size)]
    with ctx.step("all_gather", f"{mine.numel()} int64 checksums"):
        dist.all_gather(everyone, mine, group=ctx.group)
        same = (torch.stack(everyone) == mine).all(dim=0).tolist()
    return [bool(is_same) for is_same in same]


def _phase(ctx: RankContext, model: Any, grads: Sequence[Any], scale: int, identical: Iterator[bool] | None) -> Phase:
    """Compare all gradients with the mean, or without ``identical`` with the rank's own."""
    off, worst = [], 0.0
    for number, (name, parameter) in enumerate(model.module.named_parameters()):
        same = None if identical is None else next(identical)
        place = gradient_code.Place(name, number, parameter.numel(), ctx.group_rank, ctx.ranks)
        gradient = gradient_code.compare(place, scale, grads[number], same, own=same is None)
        worst = max(worst, gradient.max_abs_error or 0.0)
        if not gradient.equal or same is False:
            off.append(gradient)
    return Phase(off=tuple(off), max_abs_error=worst)


def probe(ctx: RankContext) -> GradientSync:
    """Wrap a model in DDP and compare its gradients with their closed form."""
    started = ctx.clock()
    model = wrap(ctx, coded_model(ctx))
    return measure(ctx, model, ctx.clock() - started)


def measurements(recording: Recording) -> Iterator[Measurement]:
    """Yield the slowest rank's seconds for wrapping, forward and backward."""
    facts = [rank.fact for rank in recording.facts(GradientSync)]
    labels: dict[str, str | int | float] = {"ranks": len(facts)}
    for name in ("ddp_construct", "forward", "backward") if facts else ():
        slowest = max(getattr(fact, f"{name}_s") for fact in facts)
        yield Measurement(name=f"gradient_sync_{name}", value=slowest, unit="s", labels=labels)


CHECK = Check(
    id="gradient_sync",
    title="DDP averages gradients",
    where=Where.RANK,
    probe=probe,
    facts=(GradientSync,),
    rules=(
        gradient_is_not_the_mean,
        gradients_differ_between_ranks,
        no_sync_still_synchronises,
        step_after_no_sync_not_synchronised,
    ),
    is_essential=True,
    measurements=measurements,
)
