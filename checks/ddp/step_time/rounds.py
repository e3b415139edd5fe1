"""The rounds of all ranks together (a step is as slow as its slowest rank), and step times in findings."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from ddp_doctor.facts.ddp.step_time import StepTimeFact
from ddp_doctor.knowledge.ddp.buckets import MIB
from ddp_doctor.model.base import grouped
from ddp_doctor.model.finding import Remedy
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.remedies.kinds import in_code, remedy

#: Maximum batch on one rank, as a multiple of the usual batch, because the time grows with it.
LARGEST_ALONE = 4

#: Communication that takes longer than computation cannot be hidden, even with perfect overlap.
RATIO_BOUND = 1.0
#: The same bound if other work disturbs the ranks, because gloo's communication also needs processors. With two ranks
#: on two busy processors and an unlimited link, communication took 1.5 times as long as computation
#: (docs/explanation/step-time.md).
RATIO_BOUND_DISTURBED = 5.0
#: A step that waits for a third of its time would be 1.5 times as fast without the wait (judgment).
EXPOSED_SHARE = 0.33
#: A user's model that computes for less than this per step has a test batch, not a job's: waiting is then only info.
#: Two gloo ranks on one machine need 0.3 ms for any average (judgment).
SMALLEST_STEP_S = 0.001
#: The share of a step that communication may take with gradient accumulation.
AIM_SHARE = 0.20

#: A rank is slow if its fastest timing is this many times its peers' slowest median. In 24 runs of 2 to 4 healthy ranks
#: on two busy processors, the ratio was at most 0.96 (docs/explanation/step-time.md).
SLOW_RANK = 1.25
#: A rank that had a processor for a smaller share of the time was delayed by another program.
ON_CPU_SHARE = 0.9

#: A smaller gain is not worth a setting, even without noise (judgment).
BUCKET_GAIN = 0.05
#: A prediction counts if it is within this factor of the measurement, for the default and for the advised size.
PREDICTED_WITHIN = 1.35


_COMPUTED = "the number follows from measured times; no trial shows its effect on training"
_DDP_NOTES = "https://pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"


def of(model: str) -> str:
    """Return `` of train.models:make``, or "" for ddp-doctor's own model."""
    return f" of {model}" if model else ""


def ms(seconds: float) -> str:
    """Return ``43 ms``, ``4.3 ms``, ``0.43 ms``."""
    return f"{seconds * 1e3:.{_places(seconds)}f} ms"


def spread(seconds: Sequence[float]) -> str:
    """Return the median and the range: ``43 ms (40 to 47)``."""
    places = _places(median(seconds))
    least, most = (f"{bound * 1e3:.{places}f}" for bound in (min(seconds), max(seconds)))
    return f"{median(seconds) * 1e3:.{places}f} ms ({least} to {most})"


def limits(seconds: Sequence[float]) -> str:
    """Return ``40 to 47 ms``."""
    places = _places(median(seconds))
    return f"{min(seconds) * 1e3:.{places}f} to {max(seconds) * 1e3:.{places}f} ms"


def _places(seconds: float) -> int:
    """Return the decimal places of a time in ms, for two or three digits in total."""
    return 0 if seconds >= 0.01 else 1 if seconds >= 0.001 else 2


def more_computing(totals: "Summary", exposed_s: float, computing_s: float) -> tuple[Remedy, ...]:
    """Return fixes: how much to compute between two synchronizations, for ddp-doctor's model per MiB of gradients."""
    wanted_s = (1 / AIM_SHARE - 1) * exposed_s
    if not totals.fact.model:  # the run does not show how much the user's own model computes
        more = in_code(
            f"Compute {ms(wanted_s / (totals.fact.gradient_bytes / MIB))} or more per MiB of"
            f" gradients between two synchronizations, so that at most {AIM_SHARE:.0%} of the"
            " time is waiting: use a larger batch, or accumulate gradients over several steps"
            " inside model.no_sync(), unless the job already does",
            cost="a larger batch and fewer updates; learning rate and schedule may need tuning",
            undo="restore the previous batch, and synchronize in every step",
            untried=_COMPUTED,
            references=(_DDP_NOTES,),
        )
        return (more,)
    times = max(ceil(wanted_s / computing_s), 2)
    share = exposed_s / (exposed_s + times * computing_s)
    accumulate = in_code(
        f"Accumulate gradients: with one synchronization in {times} steps, waiting is"
        f" {share:.0%} of the time; run the other steps inside model.no_sync(), forward and"
        " backward, and step the optimizer once",
        cost=f"a batch {times} times as large and {times} times fewer updates; learning rate"
        " and schedule may need tuning",
        undo="update and synchronize in every step",
        untried=_COMPUTED,
        references=(_DDP_NOTES,),
    )
    larger_batch = in_code(
        f"Use a batch {times} times as large per rank if memory allows; gradients keep their"
        " size while computing grows",
        cost="memory, and the same training change as gradient accumulation",
        undo="restore the previous batch",
        untried=_COMPUTED,
    )
    return accumulate, larger_batch


FEWER_RANKS = remedy(
    "Start fewer ranks (first try ranks of one node), or change the work of each rank between two synchronizations",
    scope="job",
    cost="fewer samples per step if the batch per rank stays the same",
    undo="start the previous number of ranks",
    untried=_COMPUTED,
)


Seconds = tuple[float, ...]


@dataclass(frozen=True)
class Summary:
    """The seconds of each round, on the slowest rank of that round."""

    fact: StepTimeFact  # the first rank's, because only it timed a single rank
    compute: Seconds
    again: Seconds
    step: Seconds
    communicate: Seconds
    alone: Seconds
    alone_larger: Seconds

    @property
    def computing(self) -> Seconds:
        """Forward and backward: the mean of both timings of a round."""
        return tuple((first + second) / 2 for first, second in zip(self.compute, self.again, strict=True))

    @property
    def noise_s(self) -> float:
        """The maximum difference between two timings of the same computation within a round."""
        return max(abs(first - second) for first, second in zip(self.compute, self.again, strict=True))

    @property
    def exposed(self) -> Seconds:
        """The time that synchronization adds to a step, per round; negative values are noise."""
        return tuple(step - alone for step, alone in zip(self.step, self.computing, strict=True))

    @property
    def ratio(self) -> float:
        """Communication time divided by computation time."""
        return median(self.communicate) / median(self.computing)

    @property
    def overlap(self) -> float | None:
        """The share of communication that overlaps with computation, or None if there is too little to measure."""
        communicate = median(self.communicate)
        if communicate <= self.noise_s:
            return None
        return min(max(1 - median(self.exposed) / communicate, 0.0), 1.0)

    @property
    def weak_scaling(self) -> float | None:
        """The time of one rank's step alone divided by that of all ranks, each with the same batch."""
        return median(self.alone) / median(self.step) if self.alone else None

    @property
    def one_rank_for_all(self) -> Seconds:
        """The maximum time of one rank for the batches of all ranks, as larger batches one after another."""
        times = self.fact.ranks / self.fact.larger
        return tuple(times * seconds for seconds in self.alone_larger)

    @property
    def strong_scaling(self) -> float | None:
        """The speedup of all ranks over one rank for the same work, divided by the number of ranks."""
        if not self.alone_larger:
            return None
        return median(self.one_rank_for_all) / median(self.step) / self.fact.ranks


def summary(recording: Recording) -> Summary | None:
    """Return the rounds of all ranks together, or None if not all ranks measured them."""
    ranks = recording.facts(StepTimeFact)
    if not ranks or len(ranks) != ranks[0].fact.ranks:
        return None
    first = next(
        (rank.fact for rank in ranks if rank.fact.rounds and rank.fact.rounds[0].alone_s is not None), ranks[0].fact
    )
    if not all(rank.fact.rounds for rank in ranks):
        return None
    return Summary(
        fact=first,
        compute=slowest([[timing.compute_s for timing in rank.fact.rounds] for rank in ranks]),
        again=slowest([[timing.again_s for timing in rank.fact.rounds] for rank in ranks]),
        step=slowest([[timing.step_s for timing in rank.fact.rounds] for rank in ranks]),
        communicate=slowest([[timing.communicate_s for timing in rank.fact.rounds] for rank in ranks]),
        alone=tuple(timing.alone_s for timing in first.rounds if timing.alone_s is not None),
        alone_larger=tuple(timing.alone_larger_s for timing in first.rounds if timing.alone_larger_s is not None),
    )


def slowest(ranks: Iterable[Sequence[float]]) -> Seconds:
    """Return the slowest rank's time in each round."""
    return tuple(map(max, zip(*ranks, strict=False)))


def crowded(recording: Recording) -> bool:
    """Return True if ranks lack processors or share them with other programs, so their times mean little."""
    return too_few_processors(recording) or mostly_disturbed(recording.facts(StepTimeFact))


def too_few_processors(recording: Recording) -> bool:
    """Return True if the ranks of any node have more threads than processors."""
    nodes = grouped((rank.node, rank.fact) for rank in recording.facts(StepTimeFact) if rank.fact.device == "cpu")
    for facts in nodes.values():
        cpus = {cpu for fact in facts for cpu in fact.cpus}
        if cpus and sum(fact.threads for fact in facts) > len(cpus):
            return True
    return False


def mostly_disturbed(ranks: Sequence[FactAt[StepTimeFact]]) -> bool:
    """Return True if most ranks shared their processor with another program."""
    shares = [rank.fact.on_cpu_share for rank in ranks if rank.fact.on_cpu_share is not None]
    return bool(shares) and median(shares) < ON_CPU_SHARE
