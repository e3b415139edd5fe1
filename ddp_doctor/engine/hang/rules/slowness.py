"""Ranks that delay the others without hanging."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from ddp_doctor.engine.hang.judgment import Met, by_step, clocks
from ddp_doctor.engine.hang.rules.common import cases, names, step_words
from ddp_doctor.facts.node.host import Host
from ddp_doctor.knowledge.deadlines import LATE_RANK_S, RANKS_PER_CORE
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Consequence
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.rule import rule
from ddp_doctor.model.trial import Step, TrialRecord
from ddp_doctor.remedies.kinds import remedy
from ddp_doctor.wording.findings import NOBODY, likely
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE
from ddp_doctor.wording.ranks import rank_culprit, rank_list


@dataclass(frozen=True)
class _Late:
    """The delay of one rank, compared with the typical rank, when it entered a step."""

    rank: int
    node: int
    delay_s: float
    step: Step


@rule("DD619", "rank-comes-late", Consequence.SLOWER, explained_by=("DD660", "DD661", "DD662", "DD663"))
def late(recording: Recording) -> Iterator[Draft]:
    """A rank delays the others but does not hang.

    Finds: Reports a rank that needed much longer than its peers between two collectives. All ranks run the same code,
        so only that rank loses the time. The duration of a collective does not count, because the rank's link may cause
        it. The time for which a rank was ready to run but had no processor does not count either: DD661 reports it. If
        other work keeps the CPUs of all nodes busy, a rank may be later by a factor of up to the number of processes
        that share a CPU.
    Why: DDP runs at the speed of its slowest rank.
    Remedy: Compare that rank's CPU core, GPU clock and the other programs on its node with its peers'.
    See: docs/explanation/hangs.md
    """
    allowed_s = LATE_RANK_S * _crowd(recording)
    for trial in recording.trials:
        late = _late_ranks(trial, allowed_s) if trial.outcome == "finished" else []
        if not late or len(late) * 2 > len(trial.ranks):
            continue  # a slow machine, not a slow rank
        groups = list(grouped((rank.node, rank) for rank in late).values())
        for group in groups if len(groups) <= NAMES_IN_A_SENTENCE else [late]:
            yield _late_draft(recording, group, allowed_s)


def _late_draft(recording: Recording, late: Sequence[_Late], allowed_s: float) -> Draft:
    """Return one finding for the late ranks of a node: a cause that slows one of them usually slows its neighbors."""
    worst = max(late, key=lambda rank: rank.delay_s)
    ranks = tuple(sorted(rank.rank for rank in late))
    alone = "only this rank" if len(ranks) == 1 else "only these ranks"
    return likely(
        (rank_culprit(recording, number) for number in ranks),
        f"{names(recording, ranks)} entered {step_words(worst.step)} of check {worst.step.check}"
        f" {worst.delay_s:.1f} s after the other ranks",
        Evidence(
            check=worst.step.check,
            text=f"delay of rank {worst.rank} at {step_words(worst.step)}",
            value=round(worst.delay_s, 2),
            unit="s",
            expected=allowed_s,
            expected_from="at most, between ranks that run the same code",
        ),
        remedy("Compare this rank's CPU core, clocks and the other programs on its node with other ranks"),
        detail=f"All ranks run the same code, so {alone} lost the time.",
        nodes=tuple({rank.node for rank in late}),
    )


def _crowd(recording: Recording) -> float:
    """Return how many times longer ranks may take because they share cores, or because all nodes are busy.

    If only one node is busy, its ranks are reported as late.
    """
    world = recording.world or World()
    hosts = list(recording.facts(Host))
    shares = (len(world.ranks_of(host.node)) / (host.fact.usable_cpus * RANKS_PER_CORE) for host in hosts)
    least_busy = min((host.fact.load_per_cpu for host in hosts), default=0.0)
    return max((1.0, least_busy, *shares))


def _late_ranks(trial: TrialRecord, allowed_s: float) -> list[_Late]:
    """Return the ranks that entered a step long after the others, each with its worst step.

    Empty if the nodes' clocks cannot be compared: a node that began early would look late.
    """
    steps, nodes = by_step(trial), {rank.node for rank in trial.evidence}
    known = clocks(steps, nodes)
    if len(nodes) > 1 and not known:
        return []
    ahead = {node: clock.ahead_s for node, clock in known.items()}
    worst: dict[int, _Late] = {}
    kept = _kept_in_the_step_before(trial, steps, ahead)
    for key, entered in steps.items():
        typical = median_low(step.entered_at - ahead.get(node, 0.0) for _, node, step in entered)
        for rank, node, step in entered:
            delay = step.entered_at - ahead.get(node, 0.0) - typical - kept.get((rank, key), 0.0) - step.queued_s
            if delay >= allowed_s and (rank not in worst or delay > worst[rank].delay_s):
                worst[rank] = _Late(rank, node, delay, step)
    return list(worst.values())


def _kept_in_the_step_before(
    trial: TrialRecord, met: Met, ahead: Mapping[int, float]
) -> dict[tuple[int, tuple[str, int]], float]:
    """Return how long after the typical rank each rank left the step before each of its steps.

    The rank is not the cause of that time: a slow link delays the receiver after the sender has left.
    """
    typical: dict[tuple[str, int], float] = {}
    for key, entered in met.items():
        left = [step.left_at - ahead.get(node, 0.0) for _, node, step in entered if step.left_at is not None]
        if left:
            typical[key] = median_low(left)
    kept = {}
    for rank in trial.evidence:
        for before, step in pairwise(rank.steps):
            if before.left_at is not None:
                later = before.left_at - ahead.get(rank.node, 0.0) - typical[before.check, before.seq]
                kept[rank.rank, (step.check, step.seq)] = max(later, 0.0)
    return kept


@rule("DD620", "check-moves-too-slowly", Consequence.COST)
def slow(recording: Recording) -> Iterator[Draft]:
    """A check still made progress when its extended deadline had passed.

    Finds: Reports ranks that continued from step to step, too slowly to finish in time. No rank hangs.
    Why: The job would run much slower than it should.
    Remedy: Check the load of the machine first, then the measured bandwidths.
    See: docs/explanation/hangs.md
    """
    for case in cases(recording, "slow"):
        trial = case.trial
        yield likely(
            NOBODY,
            f"Check {trial.judged_check} is slow, not hung: still running after {trial.waited_s:.0f} s",
            case.waiting_evidence or (Evidence(check=trial.judged_check or "", text="ranks still entered new steps"),),
            remedy("Run again on an idle machine, or with --budget and fewer checks", scope="job"),
            detail=f"{rank_list(case.judgment.waiting).capitalize()} entered new steps until the end.",
        )
