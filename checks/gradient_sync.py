"""gradient_sync: does DistributedDataParallel give every rank the mean of all ranks' gradients?

What the probe reads on each rank is the ``.grad`` of a small DDP-wrapped model after ``backward()``::

    parameter weight3, 8195 elements, bucket cap 32 KiB, 2 ranks
      local gradient, rank 0    12. 4. 12. 4. …    (known in closed form: knowledge/gradient_code.py)
      local gradient, rank 1    4. 12. 4. 12. …
      .grad after backward()     8. 8. 8. 8. …      = the mean, on both ranks, bit for bit

It looks after the first step (DDP's one big bucket), after a step inside ``no_sync()`` (the gradient must
stay the rank's own) and after the step that follows (several buckets; the mean of what both accumulated).

Why it matters: no training job notices a wrong mean, and the loss still falls.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from ddp_doctor.knowledge import gradient_code as code
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Confidence, Level, Severity, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, Seen
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rule
from ddp_doctor.phrases.ddp import remedies
from ddp_doctor.phrases.ranks import rank_culprits, ranks_at

#: Small enough that the model's parameters fill several buckets.
BUCKET_CAP_BYTES = 32 * 1024
_ONCE, _TWICE = 1, 2  # gradients after no_sync() are doubled, so that a lost step shows in the sum


class Phase(Frozen):
    """The gradients after one backward: those that are off, and the greatest error of all."""

    off: tuple[code.OffGradient, ...] = ()
    max_abs_error: float = 0.0


class GradientSync(Fact):
    """What one rank's gradients were after a step, inside ``no_sync()``, and after the next step."""

    KIND: ClassVar[str] = "gradient_sync/1"

    world_size: int
    parameters: int
    elements: int
    bucket_cap_bytes: int
    step: Phase
    no_sync: Phase
    resync: Phase
    ddp_construct_s: float
    forward_s: float
    backward_s: float  # of the last step: the buckets' all-reduces overlap with it
    all_gather_s: float


def probe(ctx: RankContext) -> GradientSync:
    """Wrap a model in DDP and compare its gradients with their closed form."""
    started = ctx.clock()
    model = wrap(ctx, coded_model(ctx))
    return measure(ctx, model, ctx.clock() - started)


def coded_model(ctx: RankContext) -> Any:
    """A torch module of five flat parameters, whose loss is linear in each of them."""
    import torch

    class Linear(torch.nn.Module):
        """loss = sum of parameter x input: the gradient of a parameter is its input, exactly."""

        def forward(self, *inputs: Any) -> Any:
            pairs = zip(self.parameters(), inputs, strict=True)
            return torch.stack([(parameter * given).sum() for parameter, given in pairs]).sum()

    model = Linear()
    least = max(256, ctx.world_size)  # each rank needs an element of its own
    for number, elements in enumerate((least, 3 * least + 1, 16 * least + 7, 32 * least + 3, least + 5)):
        zeros = torch.zeros(elements, dtype=torch.float32, device=ctx.device)
        model.register_parameter(f"weight{number}", torch.nn.Parameter(zeros))
    return model


def wrap(ctx: RankContext, module: Any) -> Any:
    """The module in DistributedDataParallel, with buckets of BUCKET_CAP_BYTES."""
    from torch.nn.parallel import DistributedDataParallel

    with ctx.step("ddp_construct", f"{len(list(module.parameters()))} parameters"):
        model = DistributedDataParallel(
            module, process_group=ctx.group, bucket_cap_mb=BUCKET_CAP_BYTES / 2**20
        )
        _finish(ctx)
    return model


def measure(ctx: RankContext, model: Any, ddp_construct_s: float = 0.0) -> GradientSync:
    """The three looks at a DDP-wrapped ``coded_model``."""
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
        elements=sum(one.numel() for one in parameters),
        bucket_cap_bytes=BUCKET_CAP_BYTES,
        step=_phase(ctx, model, step, _ONCE, identical),
        no_sync=_phase(ctx, model, own, _ONCE, None),
        resync=_phase(ctx, model, resync, _ONCE + _TWICE, identical),
        ddp_construct_s=ddp_construct_s,
        forward_s=seconds[0],
        backward_s=seconds[1],
        all_gather_s=all_gather_s,
    )


def _finish(ctx: RankContext) -> None:
    """Wait for the GPU inside the step that queued the work: a stuck kernel hangs here."""
    if ctx.device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(ctx.device)


def _one_step(ctx: RankContext, model: Any, scale: int, *, sync: bool) -> tuple[float, float]:
    """Forward and backward with this rank's inputs; seconds of each."""
    import torch

    inputs = [
        scale * code.local(number, torch.arange(len(one), device=one.device), ctx.group_rank, ctx.world_size)
        for number, one in enumerate(model.module.parameters())
    ]
    inputs = [one.to(torch.float32) for one in inputs]
    detail = f"gradients x {scale}" if sync else "inside no_sync()"
    with nullcontext() if sync else model.no_sync():
        started = ctx.clock()
        with ctx.step("forward", detail):
            loss = model(*inputs)
            _finish(ctx)
        forwarded = ctx.clock()
        with ctx.step("backward", detail):
            loss.backward()
            _finish(ctx)
    return forwarded - started, ctx.clock() - forwarded


def _grads(model: Any) -> list[Any]:
    """Copies of all gradients; None where a parameter has none."""
    grads = [parameter.grad for parameter in model.module.parameters()]
    return [None if grad is None else grad.detach().clone() for grad in grads]


def _identical(ctx: RankContext, grads: Sequence[Any]) -> list[bool]:
    """For each gradient, whether all ranks hold the same bits (by a 64-bit checksum)."""
    import torch
    import torch.distributed as dist

    none = torch.zeros((), dtype=torch.int64, device=ctx.device)
    mine = torch.stack([none if grad is None else code.checksum(grad) for grad in grads])
    everyone = [torch.empty_like(mine) for _ in range(ctx.world_size)]
    with ctx.step("all_gather", f"{mine.numel()} int64 checksums"):
        dist.all_gather(everyone, mine, group=ctx.group)
        same = (torch.stack(everyone) == mine).all(dim=0).tolist()
    return [bool(one) for one in same]


def _phase(
    ctx: RankContext, model: Any, grads: Sequence[Any], scale: int, identical: Iterator[bool] | None
) -> Phase:
    """Compare all gradients; without ``identical`` each must be the rank's own, else the mean."""
    off, worst = [], 0.0
    for number, (name, parameter) in enumerate(model.module.named_parameters()):
        same = None if identical is None else next(identical)
        place = code.Place(name, number, parameter.numel(), ctx.group_rank, ctx.ranks)
        one = code.compare(place, grads[number], scale, same)
        worst = max(worst, one.max_abs_error or 0.0)
        if not one.equal or same is False:
            off.append(one)
    return Phase(off=tuple(off), max_abs_error=worst)


@dataclass(frozen=True)
class _Off:
    """An off gradient and the rank that has it."""

    rank: int
    world_size: int
    gradient: code.OffGradient


def _off(seen: Sequence[Seen[GradientSync]], *phases: str) -> list[_Off]:
    looks = ((one, getattr(one.fact, phase)) for one in seen for phase in phases)
    return [_Off(one.rank or 0, one.fact.world_size, off) for one, look in looks for off in look.off]


def _ordinary(recording: Recording) -> list[_Off]:
    """What is off after the first step, and what of the last step ``no_sync()`` cannot explain."""
    seen = recording.facts(GradientSync)
    first = _off(seen, "step")
    known = {one.gradient.parameter for one in first}
    last = [one for one in _off(seen, "resync") if one.gradient.parameter not in known]
    return first + [one for one in last if not _lost_a_step(one.gradient.held)]


def _lost_a_step(held: code.Reading) -> bool:
    """Whether the accumulated gradient looks as if one of the two steps was not synchronised."""
    parts = {round(1 / 3, 4), round(2 / 3, 4)}  # the steps' gradients are _ONCE and _TWICE the code
    return held.holds == "own" or bool(parts & {held.scale, *held.shares.values()})


def _by_cause(off: Iterable[_Off]) -> list[list[_Off]]:
    """Group by what the gradients hold: one cause, one finding."""
    groups: dict[str, list[_Off]] = defaultdict(list)
    for one in off:
        groups[one.gradient.held.model_dump_json()].append(one)
    return list(groups.values())


def _ranks(off: Iterable[_Off]) -> list[int]:
    return sorted({one.rank for one in off})


def _minority(off: Sequence[_Off], wrong: Sequence[_Off]) -> list[int]:
    """The ranks to blame: none where no rank is right, for that is no rank's fault."""
    return [] if len(_ranks(wrong)) == wrong[0].world_size else _ranks(off)


def _who(recording: Recording, off: Sequence[_Off]) -> str:
    return ranks_at(recording, _ranks(off))


def _draft(recording: Recording, what: str, off: Sequence[_Off], blamed: Iterable[int]) -> Draft:
    names = sorted({one.gradient.parameter for one in off})
    worst = max(off, key=lambda one: one.gradient.max_abs_error or 0.0)
    return Draft(
        title=f"{what}: {code.words(worst.gradient.held, worst.world_size)}",
        detail=f"Off are {', '.join(names)} of the probe's model, on {_who(recording, off)}. Each rank's share"
        " is known in closed form, and none of your code took part.",
        confidence=Confidence.POSSIBLE if worst.gradient.held.holds == "other" else Confidence.LIKELY,
        culprits=rank_culprits(recording, GradientSync, blamed),
        evidence=(_evidence(worst),),
        remedies=remedies(recording.world.backend if recording.world else "", "gradient_sync"),
    )


def _evidence(off: _Off) -> Evidence:
    return Evidence(
        check="gradient_sync",
        text=f"worst element of the gradient of {off.gradient.parameter} on rank {off.rank}",
        value=off.gradient.got,
        expected=off.gradient.expected,
        expected_from="closed form of the ranks' known gradients, in float64",
    )


@rule("DD701", "gradient-is-not-the-mean", Severity.ERROR, GradientSync)
def gradient_is_not_the_mean(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        After ``backward()`` all ranks hold the same gradient, and it is not the mean of theirs. The ranks'
        gradients are coded, so that a rank whose share is missing or counted twice is named.

    Why it matters
        Nothing tells: a missing rank's data is never learnt from, a sum multiplies the learning rate.

    Remedy
        None of your own code runs in this check: with NCCL, repeat it with NCCL_PROTO=Simple; if a rank is
        named, without its GPU. Otherwise look for code that replaces parts of torch.

    References
        https://pytorch.org/docs/stable/notes/ddp.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-proto
    """
    agreed = [one for one in _ordinary(recording) if one.gradient.identical]
    # If all hold rank 2's gradient, it is "own" on rank 2 alone: the same cause, seen from there.
    for off in _by_cause(one for one in agreed if one.gradient.held.holds != "own"):
        held = off[0].gradient.held
        unsure = ", and it is unsure which rank is off" if held.holds == "other" else ""
        blamed = sorted(held.shares) if held.holds == "shares" else ()
        yield _draft(recording, f"All ranks get the same wrong gradient{unsure}", off, blamed)


@rule("DD702", "gradients-differ-between-ranks", Severity.ERROR, GradientSync)
def gradients_differ_between_ranks(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        After ``backward()`` the ranks hold different gradients. Ranks whose gradient is not the mean are
        named. If all are the mean within float32 rounding and only last bits differ, it is a warning.

    Why it matters
        DDP broadcasts the parameters once and then relies on equal gradients. With different ones each
        rank trains another model, and checkpoints hold rank 0's only.

    Remedy
        None of your own code runs in this check: with NCCL, repeat it with NCCL_PROTO=Simple; if a rank is
        named, without its GPU. Otherwise look for code that replaces parts of torch.

    References
        https://pytorch.org/docs/stable/notes/ddp.html
        https://github.com/pytorch/pytorch/issues/109191
    """
    differing = [one for one in _ordinary(recording) if one.gradient.identical is False]
    wrong = [one for one in differing if not one.gradient.equal]
    for off in _by_cause(wrong):
        what = f"The gradient on {_who(recording, off)} is not the mean that DDP owes it"
        yield _draft(recording, what, off, _minority(off, wrong))
    if differing and not wrong:
        title = "Gradients differ between ranks in their last bits: the replicas will drift apart"
        update = {"title": title, "severity": Severity.WARNING, "confidence": Confidence.POSSIBLE}
        yield _draft(recording, title, differing, []).model_copy(update=update)


@rule("DD703", "no-sync-still-synchronises", Severity.ERROR, GradientSync)
def no_sync_still_synchronises(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        After a step inside ``no_sync()`` a gradient is not exactly the rank's own.

    Why it matters
        Gradient accumulation relies on it. If the ranks synchronise all the same, every micro-step pays for
        an all-reduce; if only some do, they wait for each other for ever.

    Remedy
        None of your own code runs in this check: look for code that replaces ``no_sync`` in torch.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    # Without a gradient in ordinary steps, none is to be expected here: that is DD701's finding.
    seen = recording.facts(GradientSync)
    before = {(one.gradient.parameter, one.gradient.held.holds) for one in _off(seen, "step")}
    off_inside = _off(seen, "no_sync")
    wrong = [one for one in off_inside if (one.gradient.parameter, one.gradient.held.holds) not in before]
    for off in _by_cause(wrong):
        what = f"no_sync() does not leave {_who(recording, off)} its own gradient"
        yield _draft(recording, what, off, _minority(off, wrong))


@rule("DD704", "step-after-no-sync-not-synchronised", Severity.ERROR, GradientSync)
def step_after_no_sync_not_synchronised(recording: Recording) -> Iterator[Draft]:
    """
    What it finds
        An ordinary step gives the mean, but the step after ``no_sync()`` lacks what one of the two steps
        contributed, or is not synchronised at all.

    Why it matters
        With gradient accumulation every optimiser step then differs between ranks, or loses micro-steps.

    Remedy
        None of your own code runs in this check: look for code that replaces ``no_sync`` in torch.

    References
        https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    seen = recording.facts(GradientSync)
    before = {one.gradient.parameter for one in _off(seen, "step", "no_sync")}
    after = [one for one in _off(seen, "resync") if one.gradient.parameter not in before]
    wrong = [one for one in after if _lost_a_step(one.gradient.held)]
    for off in _by_cause(wrong):
        what = f"The step after no_sync() is not synchronised on {_who(recording, off)}"
        yield _draft(recording, what, off, _minority(off, wrong))


def _measurements(recording: Recording) -> Iterator[Measurement]:
    facts = [seen.fact for seen in recording.facts(GradientSync)]
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
    level=Level.QUICK,
    measurements=_measurements,
)
