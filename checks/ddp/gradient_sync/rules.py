"""DD701 - DD704: gradients that are not the mean, differ between ranks, or ignore no_sync()."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.facts.ddp.gradients import GradientSync
from ddp_doctor.knowledge.ddp import gradient_code
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.torch_calls import of_stock_ddp
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.ranks import rank_culprits, ranks_at


@dataclass(frozen=True)
class Off:
    """An off gradient and the rank that has it."""

    rank: int
    world_size: int
    gradient: gradient_code.OffGradient


def off_in(ranks: Sequence[FactAt[GradientSync]], *phases: str) -> list[Off]:
    """What is off in these phases of all ranks."""
    phases_of_ranks = ((rank, getattr(rank.fact, phase)) for rank in ranks for phase in phases)
    return [Off(rank.rank or 0, rank.fact.world_size, off) for rank, phase in phases_of_ranks for off in phase.off]


def lost_a_step(held: gradient_code.Reading) -> bool:
    """Whether the accumulated gradient looks as if one of the two steps was not synchronised."""
    parts = {round(1 / 3, 4), round(2 / 3, 4)}  # the steps' gradients are once and twice the code
    return held.holds == "own" or bool(parts & {held.scale, *held.shares.values()})


def by_cause(off: Iterable[Off]) -> list[list[Off]]:
    """Group by what the gradients hold: one cause, one finding."""
    return list(grouped((found.gradient.held.model_dump_json(), found) for found in off).values())


def _ranks(off: Iterable[Off]) -> list[int]:
    return sorted({found.rank for found in off})


def minority(off: Sequence[Off], wrong: Sequence[Off]) -> list[int]:
    """The ranks to blame: none where no rank is right, because then no single rank is at fault."""
    return [] if len(_ranks(wrong)) == wrong[0].world_size else _ranks(off)


def who(recording: Recording, off: Sequence[Off]) -> str:
    """The ranks with these gradients, for a sentence."""
    return ranks_at(recording, _ranks(off))


def draft(recording: Recording, what: str, off: Sequence[Off], blamed: Iterable[int]) -> Draft:
    """A finding about gradients with one cause; ``what`` begins the title."""
    names = sorted({found.gradient.parameter for found in off})
    worst = max(off, key=lambda found: found.gradient.max_abs_error or 0.0)
    return finding(
        rank_culprits(recording, GradientSync, blamed),
        f"{what}: {gradient_code.words(worst.gradient.held, worst.world_size)}",
        worst.gradient.evidence(f"gradient of {worst.gradient.parameter} on rank {worst.rank}"),
        *of_stock_ddp(recording, "gradient_sync"),
        confidence=Confidence.POSSIBLE if worst.gradient.held.holds == "other" else Confidence.LIKELY,
        detail=f"Wrong: {', '.join(names)} of the doctor's own model, on {who(recording, off)}. None of your code"
        " took part.",
    )


@rule("DD701", "gradient-is-not-the-mean", Severity.ERROR, GradientSync)
def gradient_is_not_the_mean(recording: Recording) -> Iterator[Draft]:
    """Finds: After ``backward()`` all ranks hold the same gradient, and it is not the mean of theirs. The ranks'
        gradients are coded, so that a rank whose share is missing or counted twice is named.
    Why: Nothing tells: a missing rank's data is never learnt from, a sum multiplies the learning rate.
    Remedy: None of your own code runs in this check: with NCCL, repeat it with NCCL_PROTO=Simple; if a rank is named,
        without its GPU. Otherwise look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/notes/ddp.html
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-proto
    """
    agreed = [found for found in _ordinary(recording) if found.gradient.identical]
    # If all ranks hold rank 2's gradient, only rank 2 reads "own": the cause is the same.
    for off in by_cause(found for found in agreed if found.gradient.held.holds != "own"):
        held = off[0].gradient.held
        unsure = ", and it is unsure which rank is off" if held.holds == "other" else ""
        blamed = sorted(held.shares) if held.holds == "shares" else ()
        yield draft(recording, f"All ranks get the same wrong gradient{unsure}", off, blamed)


@rule("DD702", "gradients-differ-between-ranks", Severity.ERROR, GradientSync)
def gradients_differ_between_ranks(recording: Recording) -> Iterator[Draft]:
    """Finds: After ``backward()`` the ranks hold different gradients. Ranks whose gradient is not the mean are named.
        If all are the mean within float32 rounding and only last bits differ, it is a warning.
    Why: DDP broadcasts the parameters once and then relies on equal gradients. With different ones each rank trains
        another model, and checkpoints hold rank 0's only.
    Remedy: None of your own code runs in this check: with NCCL, repeat it with NCCL_PROTO=Simple; if a rank is named,
        without its GPU. Otherwise look for code that replaces parts of torch.
    See: https://pytorch.org/docs/stable/notes/ddp.html
        https://github.com/pytorch/pytorch/issues/109191
    """
    differing = [found for found in _ordinary(recording) if found.gradient.identical is False]
    wrong = [found for found in differing if not found.gradient.equal]
    for off in by_cause(wrong):
        what = f"The gradient on {who(recording, off)} is wrong"
        yield draft(recording, what, off, minority(off, wrong))
    if differing and not wrong:
        title = "Gradients differ between ranks in their last bits: the replicas will drift apart"
        update = {"title": title, "severity": Severity.WARNING, "confidence": Confidence.POSSIBLE}
        yield draft(recording, title, differing, []).model_copy(update=update)


def _ordinary(recording: Recording) -> list[Off]:
    """What is off after the first step, and what is off after the last step that ``no_sync()`` does not explain."""
    ranks = recording.facts(GradientSync)
    first = off_in(ranks, "step")
    known = {found.gradient.parameter for found in first}
    last = [found for found in off_in(ranks, "resync") if found.gradient.parameter not in known]
    return first + [found for found in last if not lost_a_step(found.gradient.held)]


@rule("DD703", "no-sync-still-synchronises", Severity.ERROR, GradientSync)
def no_sync_still_synchronises(recording: Recording) -> Iterator[Draft]:
    """Finds: After a step inside ``no_sync()`` a gradient is not exactly the rank's own.
    Why: Gradient accumulation relies on it. If the ranks synchronise all the same, every micro-step pays for an
        all-reduce; if only some do, they wait for each other for ever.
    Remedy: None of your own code runs in this check: look for code that replaces ``no_sync`` in torch.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    # A gradient that is missing in ordinary steps is missing here too: DD701 reports it.
    ranks = recording.facts(GradientSync)
    before = {(found.gradient.parameter, found.gradient.held.holds) for found in off_in(ranks, "step")}
    off_inside = off_in(ranks, "no_sync")
    wrong = [found for found in off_inside if (found.gradient.parameter, found.gradient.held.holds) not in before]
    for off in by_cause(wrong):
        what = f"Inside no_sync() the gradient on {who(recording, off)} is not the rank's own"
        yield draft(recording, what, off, minority(off, wrong))


@rule("DD704", "step-after-no-sync-not-synchronised", Severity.ERROR, GradientSync)
def step_after_no_sync_not_synchronised(recording: Recording) -> Iterator[Draft]:
    """Finds: An ordinary step gives the mean, but the step after ``no_sync()`` lacks what one of the two steps
        contributed, or is not synchronised at all.
    Why: With gradient accumulation every optimiser step then differs between ranks, or loses micro-steps.
    Remedy: None of your own code runs in this check: look for code that replaces ``no_sync`` in torch.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
    """
    ranks = recording.facts(GradientSync)
    before = {found.gradient.parameter for found in off_in(ranks, "step", "no_sync")}
    after = [found for found in off_in(ranks, "resync") if found.gradient.parameter not in before]
    wrong = [found for found in after if lost_a_step(found.gradient.held)]
    for off in by_cause(wrong):
        what = f"In the step after no_sync() the gradient on {who(recording, off)} is wrong"
        yield draft(recording, what, off, minority(off, wrong))
