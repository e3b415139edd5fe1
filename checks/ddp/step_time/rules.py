"""DD810 - DD812, DD820: communication that is not hidden, ranks that compute slowly, a better bucket size."""

from collections.abc import Iterator, Sequence
from statistics import median

from ddp_doctor.checks.ddp.step_time import rounds
from ddp_doctor.checks.ddp.step_time.rounds import Summary, crowded, mostly_disturbed, summary, too_few_processors
from ddp_doctor.facts.collectives import GpuSpeedFact
from ddp_doctor.facts.ddp.step_time import BucketTrial, StepTimeFact
from ddp_doctor.knowledge.ddp.buckets import MIB
from ddp_doctor.knowledge.gpu.gpu_speed import SLOWER_SHARE
from ddp_doctor.knowledge.severity import of_slowdown
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Proof, Remedy
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import NOBODY, finding, likely, proved
from ddp_doctor.wording.ranks import capital, rank_at, rank_culprits, ranks_at


@rule("DD810", "step-waits-for-communication", Consequence.SLOWER, StepTimeFact)
def waits_for_communication(recording: Recording) -> Iterator[Draft]:
    """A step's all-reduces take longer than its computation, and it waits for them.

    Finds: Reported if communication takes at least as long as computation, and if, in every round, a third of the step
        or more is waiting time that the machine's own noise does not explain. With ddp-doctor's small model, severity
        is info about the network. With your own model, it is warning, unless the model computes for less than 1 ms.
    Why: All ranks wait in every step, regardless of the bucket sizes.
    Remedy: Compute more between two synchronizations: accumulate gradients, or use a larger batch on each rank. Both
        change the training.
    See: https://pytorch.org/docs/stable/notes/ddp.html; Li et al., PyTorch Distributed, VLDB 2020;
        docs/explanation/step-time.md
    """
    totals = summary(recording)
    if totals is None or too_few_processors(recording):
        return
    disturbed = mostly_disturbed(recording.facts(StepTimeFact))
    if totals.ratio < (rounds.RATIO_BOUND_DISTURBED if disturbed else rounds.RATIO_BOUND):
        return
    exposed, computing = median(totals.exposed), median(totals.computing)
    if min(totals.exposed) <= totals.noise_s or exposed < rounds.EXPOSED_SHARE * median(totals.step):
        return
    yield proved(
        NOBODY,
        f"A step{rounds.of(totals.fact.model)} spends {exposed / median(totals.step):.0%} of its"
        f" time waiting: communication takes {totals.ratio:.1f} times as long as computing",
        _evidence_of_waiting(totals),
        *rounds.more_computing(totals, exposed, computing),
        detail=f"{_whose(totals)} has {totals.fact.gradient_bytes / MIB:.3g} MiB of gradients, which take"
        f" {rounds.ms(median(totals.communicate))} to average on these {totals.fact.ranks} ranks.",
        severity=_severity_of_waiting(totals, median(totals.step) / computing),
    )


def _severity_of_waiting(totals: Summary, times: float) -> Severity:
    """Return the severity of a step that takes this many times as long, or info if a job would not train this model."""
    is_a_jobs = totals.fact.model and median(totals.computing) >= rounds.SMALLEST_STEP_S
    return of_slowdown(times) if is_a_jobs else Severity.INFO


def _whose(totals: Summary) -> str:
    return f"Your model {totals.fact.model}" if totals.fact.model else "ddp-doctor's small model"


def _evidence_of_waiting(totals: Summary) -> tuple[Evidence, ...]:
    kinds = (
        ("forward and backward without synchronization", totals.computing),
        ("the same in DistributedDataParallel", totals.step),
        ("only the all-reduces of its buckets", totals.communicate),
    )
    return tuple(
        Evidence(text=f"{what}, {len(times)} rounds, {rounds.limits(times)}", value=median(times), unit="s")
        for what, times in kinds
    )


@rule("DD811", "all-ranks-slower-than-one", Consequence.SLOWER, StepTimeFact)
def slower_than_one(recording: Recording) -> Iterator[Draft]:
    """Your model trains faster on a single rank than on all of them.

    Finds: Reported if one rank, while the others waited, processed the batches of all ranks, one after another, in less
        time than all ranks needed for a step, in every round. Only for your own model: ddp-doctor's model cannot show
        this.
    Why: More GPUs or nodes cost more and give less.
    Remedy: Use fewer ranks, or more computation between two synchronizations.
    See: docs/explanation/step-time.md
    """
    totals = summary(recording)
    alone = totals.one_rank_for_all if totals else ()
    if totals is None or not alone or not totals.fact.model or totals.fact.ranks < 2 or crowded(recording):
        return
    if max(alone) >= min(totals.step):
        return
    yield proved(
        NOBODY,
        f"A single rank is {median(totals.step) / median(alone):.2g} times faster than these {totals.fact.ranks} ranks",
        _evidence_of_waiting(totals),
        rounds.FEWER_RANKS,
        detail=f"{_whose(totals)}: {rounds.spread(alone)} instead of"
        f" {rounds.spread(totals.step)} for the same samples.",
        severity=_severity_of_waiting(totals, median(totals.step) / median(alone)),
    )


_FEWEST_RANKS = 3
_FEWEST_TIMINGS = 6
_INSPECT = remedy(
    "Check other programs on the node, the CPUs of the rank, clocks and temperature",
    "ps -eo pid,ni,psr,pcpu,comm --sort=-pcpu | head",
    "lscpu --extended",
)


@rule("DD812", "rank-computes-slower-than-its-peers", Consequence.SLOWER, StepTimeFact)
def computes_slower(recording: Recording) -> Iterator[Draft]:
    """A rank's forward and backward pass takes longer than the others', without synchronization.

    Finds: Among three or more ranks, reports ranks that needed at least a quarter more time than the median of the
        others, for the same work, in every sample. On a CPU, severity is at most warning. If a rank lost its processor
        during the test, severity is info, because another program ran on it. If there are more ranks than processors,
        or no rank had its own processor, no rank is named. If the speed of a GPU explains it, DD801 reports it.
    Why: In DDP every rank waits for the slowest in every step, and its peers look slow as well.
    Remedy: Check other programs on its host, its CPU binding, clocks and temperature.
    See: docs/explanation/step-time.md
    """
    ranks = recording.facts(StepTimeFact)
    if not all(rank.fact.same_work for rank in ranks):
        return
    if len(ranks) < _FEWEST_RANKS or too_few_processors(recording) or mostly_disturbed(ranks):
        return
    timings = {
        rank.rank or 0: [took for timing in rank.fact.rounds for took in (timing.compute_s, timing.again_s)]
        for rank in ranks
    }
    others = {rank: _others(rank, timings) for rank in timings}
    # The rank's fastest timing divided by the others' slowest median; 0 with too few timings.
    factors = {
        rank: min(took) / max(others[rank]) if len(took) >= _FEWEST_TIMINGS else 0.0 for rank, took in timings.items()
    }
    slow = sorted(rank for rank, factor in factors.items() if factor >= rounds.SLOW_RANK)
    if 2 * len(slow) >= len(ranks):  # with two halves, it is unknown which is right
        return
    slow = [rank for rank in slow if rank not in _with_slow_gpu(recording)]
    if not slow:
        return
    by_rank = {rank.rank or 0: rank for rank in ranks}
    worst = max(slow, key=lambda rank: factors[rank])
    shares = [by_rank[rank].fact.on_cpu_share for rank in slow]
    disturbed = all(share is not None and share < rounds.ON_CPU_SHARE for share in shares)
    typical = median(timings[worst]) / median(others[worst])
    yield likely(
        rank_culprits(recording, StepTimeFact, slow),
        f"{capital(ranks_at(recording, slow))} {'takes' if len(slow) == 1 else 'take'}"
        f" {typical:.1f} times as long as other ranks for the same"
        f" work{rounds.of(by_rank[worst].fact.model)}",
        (
            Evidence(
                text=f"forward and backward on {rank_at(recording, rank)}, {len(others[rank])} samples,"
                f" {rounds.limits(timings[rank])}, its peers {rounds.limits(others[rank])}",
                value=median(timings[rank]),
                unit="s",
                expected=median(others[rank]),
                expected_from="median of the other ranks, for the same work at the same time",
            )
            for rank in slow[:4]
        ),
        _INSPECT,
        detail=_detail_of_rank([by_rank[rank] for rank in slow], disturbed=disturbed),
        severity=_severity_of_rank(by_rank[worst].fact, factors[worst], disturbed=disturbed),
    )


def _others(rank: int, timings: dict[int, list[float]]) -> list[float]:
    """Return the median of the other ranks, for each timing."""
    return [median(at) for at in zip(*(took for peer, took in timings.items() if peer != rank), strict=False)]


def _with_slow_gpu(recording: Recording) -> set[int]:
    """Return the ranks whose GPU multiplies more slowly than the others, which another rule reports."""
    rates = {
        rank.rank or 0: rank.fact.matmul_tflop_per_s.median
        for rank in recording.facts(GpuSpeedFact)
        if rank.fact.matmul_tflop_per_s is not None
    }
    usual = median(rates.values()) if rates else 0.0
    return {rank for rank, rate in rates.items() if rate < (1 - SLOWER_SHARE) * usual}


def _detail_of_rank(slow: Sequence[FactAt[StepTimeFact]], *, disturbed: bool) -> str:
    waited = "In DDP, every rank waits for the slowest rank in every step."
    if slow[0].fact.model:
        waited += " All had the same batch. Work of the model on this rank only (logging, checks) also counts."
    if not disturbed:
        return waited
    share = min(rank.fact.on_cpu_share or 0.0 for rank in slow)
    return f"It had a CPU {share:.0%} of the time, because another program ran there. {waited}"


def _severity_of_rank(fact: StepTimeFact, factor: float, *, disturbed: bool) -> Severity:
    """Return the severity; at most warning on a CPU, because a virtual machine does not see its host's steal time."""
    return Severity.INFO if disturbed else Severity.WARNING if fact.device == "cpu" else of_slowdown(factor)


def measured(recording: Recording) -> tuple[BucketTrial, BucketTrial] | None:
    """Return the default and the best predicted size, with the slowest rank's step in each round.

    None if no size was worth measuring.
    """
    tried = [rank.fact.buckets for rank in recording.facts(StepTimeFact)]
    if not tried or any(buckets is None or len(buckets.trials) != 2 for buckets in tried):
        return None
    default, best = zip(*(buckets.trials for buckets in tried if buckets is not None), strict=True)
    both = [
        trials[0].model_copy(update={"step_s": rounds.slowest(trial.step_s for trial in trials)})
        for trials in (default, best)
    ]
    return (both[0], both[1]) if all(size.step_s for size in both) else None


@rule("DD820", "buckets-hide-too-little", Consequence.KNOWN, StepTimeFact)
def hide_too_little(recording: Recording) -> Iterator[Draft]:
    """Steps are faster with a different gradient bucket size than the default.

    Finds: The best size according to the measured times of all-reduces was tested alternately with the default of 25
        MiB. Reported if it won in every round, by 5% or more and by more than the variation of either, and both took
        about as long as predicted. With ddp-doctor's model, this is only a hint, because the best size depends on the
        model's gradients.
    Why: Large buckets start late and leave communication that nothing hides. Small ones pay the latency often.
    Remedy: Set bucket_cap_mb of DistributedDataParallel.
    See: https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html;
        docs/explanation/step-time.md
    """
    both = measured(recording)
    if both is None or too_few_processors(recording):
        return
    off = [median(size.step_s) / size.predicted_s for size in both]
    if not 1 / rounds.PREDICTED_WITHIN <= min(off) <= max(off) <= rounds.PREDICTED_WITHIN:
        return
    default, best = both
    gain = 1 - median(best.step_s) / median(default.step_s)
    if gain < rounds.BUCKET_GAIN or max(best.step_s) >= min(default.step_s):
        return
    fact = recording.facts(StepTimeFact)[0].fact
    whose = f"your model {fact.model}" if fact.model else "ddp-doctor's model"
    yield finding(
        NOBODY,
        f"Buckets of {best.cap_mib:g} MiB make a step{rounds.of(fact.model)} {gain:.0%} shorter than the"
        f" default of {default.cap_mib:g} MiB",
        (
            Evidence(
                text=f"step with buckets of {size.cap_mib:g} MiB, {len(size.step_s)} rounds,"
                f" {rounds.limits(size.step_s)}",
                value=median(size.step_s),
                unit="s",
                expected=size.predicted_s,
                expected_from="latency and bandwidth of the measured all-reduces, and the gradients' sizes",
            )
            for size in both
        ),
        _remedy(default, best, fact),
        confidence=Confidence.PROVED if fact.model else Confidence.POSSIBLE,
        detail=f"Measured with {whose}, {fact.gradient_bytes / MIB:.3g} MiB of gradients: {_words(best)};"
        f" default {default.cap_mib:g}: {_words(default)}.",
    )


def _words(size: BucketTrial) -> str:
    """Return ``predicted 41 ms, measured 43 ms (40 to 47)``."""
    return f"predicted {rounds.ms(size.predicted_s)}, measured {rounds.spread(size.step_s)}"


def _remedy(default: BucketTrial, best: BucketTrial, fact: StepTimeFact) -> Remedy:
    where = "" if fact.model else "; for your own model, try sizes in the same proportion to its gradients"
    return Remedy(
        summary=f"DistributedDataParallel(..., bucket_cap_mb={best.cap_mib:g}){where}",
        scope="code",
        cost="more and smaller all-reduces; slower steps if latency grows"
        if best.cap_mib < default.cap_mib
        else "later communication; more of it is exposed if bandwidth shrinks",
        undo="remove bucket_cap_mb",
        proof=Proof(
            status="proved" if fact.model else "not_tried",
            before=rounds.spread(default.step_s),
            after=rounds.spread(best.step_s),
            reason=None if fact.model else "it was measured with ddp-doctor's model, not with yours",
        ),
    )
