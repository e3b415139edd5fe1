"""DD810, DD811: a step that waits for communication, and ranks that make it slower than one alone."""

from collections.abc import Iterator
from math import ceil
from statistics import median

from ddp_doctor.checks.ddp.step_time import thresholds, wording
from ddp_doctor.checks.ddp.step_time.summary import (
    Summary,
    crowded,
    mostly_disturbed,
    summary,
    too_few_processors,
)
from ddp_doctor.facts.ddp.step_time import StepTimeFact
from ddp_doctor.knowledge.ddp.buckets import MIB
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.wording.findings import NOBODY, proved


@rule("DD810", "step-waits-for-communication", Severity.WARNING, StepTimeFact)
def waits_for_communication(recording: Recording) -> Iterator[Draft]:
    """A step whose all-reduces take longer than its computing, and which waits for them.

    What it finds
        Communication takes at least as long as computing, and in every round a third of the step or more is
        waiting that the machine's own noise does not explain. With the doctor's small model it is
        information about the network; with your own, a warning, unless it computes for less than 1 ms.

    Why it matters
        All ranks wait in every step, whatever the sizes of buckets are.

    Remedy
        Compute more between two synchronisations: accumulate gradients, or a larger batch on each rank. Both
        change the training.

    References
        https://pytorch.org/docs/stable/notes/ddp.html; Li et al., PyTorch Distributed, VLDB 2020;
        docs/explanation/step-time.md
    """
    seen = summary(recording)
    if seen is None or too_few_processors(recording):
        return
    disturbed = mostly_disturbed(recording.facts(StepTimeFact))
    if seen.ratio < (thresholds.RATIO_BOUND_DISTURBED if disturbed else thresholds.RATIO_BOUND):
        return
    exposed, computing = median(seen.exposed), median(seen.computing)
    if min(seen.exposed) <= seen.noise_s or exposed < thresholds.EXPOSED_SHARE * median(seen.step):
        return
    yield proved(
        NOBODY,
        f"Communication takes {seen.ratio:.1f} times as long as computing{wording.of(seen.fact.model)}:"
        f" {exposed / median(seen.step):.0%} of a step is waiting",
        _evidence(seen),
        *_remedies(seen, exposed, computing),
        detail=f"{_whose(seen)} has {seen.fact.gradient_bytes / MIB:.3g} MiB of gradients, which take"
        f" {wording.ms(median(seen.communicate))} to average on these {seen.fact.ranks} ranks.",
        severity=_severity(seen),
    )


def _severity(seen: Summary) -> Severity | None:
    """The rule's own for a model that a job would train."""
    is_a_jobs = seen.fact.model and median(seen.computing) >= thresholds.SMALLEST_STEP_S
    return None if is_a_jobs else Severity.INFO


def _remedies(seen: Summary, exposed_s: float, computing_s: float) -> tuple[Remedy, ...]:
    """How much more must be computed between two synchronisations; of the doctor's model, for each MiB of gradients."""
    wanted_s = (1 / thresholds.AIM_SHARE - 1) * exposed_s
    if not seen.fact.model:
        return (wording.compute_more(wanted_s / (seen.fact.gradient_bytes / MIB), thresholds.AIM_SHARE),)
    times = max(ceil(wanted_s / computing_s), 2)
    share = exposed_s / (exposed_s + times * computing_s)
    return wording.accumulate(times, share), wording.larger_batch(times)


def _whose(seen: Summary) -> str:
    return f"Your model {seen.fact.model}" if seen.fact.model else "The doctor's small model"


def _evidence(seen: Summary) -> tuple[Evidence, ...]:
    kinds = (
        ("forward and backward without synchronisation", seen.computing),
        ("the same in DistributedDataParallel", seen.step),
        ("the all-reduces of its buckets alone", seen.communicate),
    )
    return tuple(
        Evidence(text=f"{what}, {len(times)} rounds, {wording.limits(times)}", value=median(times), unit="s")
        for what, times in kinds
    )


@rule("DD811", "all-ranks-slower-than-one", Severity.WARNING, StepTimeFact)
def slower_than_one(recording: Recording) -> Iterator[Draft]:
    """Your model trains faster on one rank alone than on all of them.

    What it finds
        One rank, while the others waited, did the batches of all ranks, one after another, in less time than
        all ranks needed for a step, in every round. Only with a model of your own: the doctor's says nothing about it.

    Why it matters
        More GPUs or nodes cost more and give less.

    Remedy
        Fewer ranks, or more computing between two synchronisations.

    References
        docs/explanation/step-time.md
    """
    seen = summary(recording)
    if (
        seen is None
        or not seen.fact.model
        or crowded(recording)
        or seen.fact.ranks < 2
        or not seen.alone_larger
    ):
        return
    alone = seen.one_rank_for_all
    if max(alone) >= min(seen.step):
        return
    yield proved(
        NOBODY,
        f"One rank alone does the work of all {seen.fact.ranks}{wording.of(seen.fact.model)} in"
        f" {median(alone) / median(seen.step):.0%} of their time",
        _evidence(seen),
        wording.FEWER_RANKS,
        detail=f"{_whose(seen)}: {wording.spread(alone)} against {wording.spread(seen.step)} for the same samples.",
        severity=_severity(seen),
    )
