"""Derive proofs from attempts without side effects, for the findings of live runs and replays."""

from collections.abc import Sequence
from itertools import combinations
from math import comb
from statistics import median

from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Finding, Proof, Remedy, Reproducer, Setting
from ddp_doctor.model.trial import Arm, Attempt, Experiment
from ddp_doctor.settings import trials
from ddp_doctor.wording import proofs


def with_proofs(findings: Sequence[Finding], experiments: Sequence[Experiment]) -> tuple[Finding, ...]:
    """Return the findings with the outcome of the fixes that were tested, the recommended fix first."""
    if not experiments:
        return tuple(findings)
    tried = {
        _key(experiment.code, experiment.settings, experiment.reproducer): experiment for experiment in experiments
    }
    return tuple(_with_proofs(finding, tried) for finding in findings)


def _with_proofs(finding: Finding, tried: dict[object, Experiment]) -> Finding:
    reproducer = finding.reproduced_by
    if reproducer is None:
        return finding
    experiments = [tried.get(_key(finding.code, remedy.settings, reproducer)) for remedy in finding.remedies]
    remedies = [
        remedy if experiment is None else remedy.model_copy(update={"proof": proof_of(experiment)})
        for remedy, experiment in zip(finding.remedies, experiments, strict=True)
    ]
    proved = any(remedy.proof.status == "proved" for remedy in remedies)
    return finding.model_copy(
        update={
            "remedies": _best_first(remedies, experiments),
            "confidence": Confidence.PROVED if proved else finding.confidence,
        }
    )


def _key(code: str, settings: Sequence[Setting], reproducer: Reproducer) -> object:
    values = tuple((setting.name, setting.value, setting.action, setting.node_rank) for setting in settings)
    return code, values, reproducer.kind, reproducer.ranks


def _best_first(remedies: Sequence[Remedy], experiments: Sequence[Experiment | None]) -> tuple[Remedy, ...]:
    """Return proved fixes before others; the first proved one comes first unless another is clearly faster."""
    rates = [_rates(experiment.attempts, "treatment") if experiment else [] for experiment in experiments]
    best: int | None = None
    for number, remedy in enumerate(remedies):
        if remedy.proof.status == "proved" and (best is None or _gains(rates[number], rates[best])):
            best = number
    order = sorted(range(len(remedies)), key=lambda number: (number != best, _RANK[remedies[number].proof.status]))
    return tuple(remedies[number] for number in order)


_RANK = {"proved": 0, "not_tried": 1, "disproved": 2}


def proof_of(experiment: Experiment) -> Proof:
    """Return what the attempts prove.

    Proved: each trial with the settings passed, and each trial without them hung, failed, or was clearly slower.
    Disproved: a trial with them did not pass, or a slow one is not faster with them. In other cases nothing is claimed.
    """
    attempts = experiment.attempts
    treated = [attempt for attempt in attempts if attempt.arm == "treatment"]
    controls = [attempt for attempt in attempts if attempt.arm == "control"]
    if experiment.reason is not None or not treated:
        return Proof(reason=experiment.reason or proofs.NOTHING_DONE)
    before, after = proofs.outcome(controls), proofs.outcome(treated)
    if any(attempt.outcome != "passed" for attempt in treated):
        return Proof(status="disproved", before=before or proofs.AS_FOUND, after=after)
    names = {setting.name for setting in experiment.settings if setting.action == "set"}
    unread = {name for attempt in treated for name in attempt.unread}
    if names and names <= unread:  # none of them was read, so something else changed
        return Proof(before=before, after=after, reason=proofs.NOT_READ.format(", ".join(sorted(unread))))
    if not controls:
        return Proof(before=before, after=after, reason=proofs.NOTHING_DONE)
    return _compared(experiment.reproducer, controls, treated, before, after)


def is_unclear(experiment: Experiment) -> bool:
    """Return True if the settings help in the median, and more trials could rule out chance."""
    return proof_of(experiment).reason == proofs.UNCLEAR


def _compared(
    reproducer: Reproducer, controls: Sequence[Attempt], treated: Sequence[Attempt], before: str, after: str
) -> Proof:
    passed = [attempt for attempt in controls if attempt.outcome == "passed"]
    price = proofs.price(reproducer, median(_rates(treated, "treatment"))) if _rates(treated, "treatment") else None
    if not passed:
        return Proof(status="proved", before=before, after=after, reason=price)
    slow, fast = _rates(controls, "control"), _rates(treated, "treatment")
    if len(passed) < len(controls):
        slow += [0.0] * (len(controls) - len(passed))  # on a link that loses packets, some never end
        if min(len(slow), len(fast)) < trials.LEAST_ROUNDS or not _gains(fast, slow):
            return Proof(before=before, after=after, reason=proofs.COMES_AND_GOES)
    if unclear := _why_unclear(slow, fast):
        return Proof(before=before, after=after, reason=unclear)
    if not _gains(fast, slow):
        is_slower = trials.GAIN * median(fast) <= median(slow)
        why = proofs.SLOWER if is_slower else proofs.NO_GAIN
        return Proof(status="disproved", before=before, after=after, reason=why)
    return Proof(status="proved", before=before, after=after, reason=price)


def _why_unclear(slow: Sequence[float], fast: Sequence[float]) -> str:
    """Return why trials that all passed are inconclusive; empty if they are conclusive."""
    if not slow or not fast:
        return proofs.NOT_SHOWN
    if min(len(slow), len(fast)) < trials.LEAST_ROUNDS:
        return proofs.TOO_FEW
    is_faster = median(fast) >= trials.GAIN * median(slow)
    return proofs.UNCLEAR if is_faster and not _gains(fast, slow) else ""


def _rates(attempts: Sequence[Attempt], arm: Arm) -> list[float]:
    return [attempt.bytes_per_s for attempt in attempts if attempt.arm == arm and attempt.bytes_per_s is not None]


def _gains(fast: Sequence[float], slow: Sequence[float]) -> bool:
    if not fast or not slow or median(fast) < trials.GAIN * median(slow):
        return False
    return min(fast) > max(slow) or _by_chance(fast, slow) < trials.BY_CHANCE


def _by_chance(fast: Sequence[float], slow: Sequence[float]) -> float:
    """Return the p-value of the exact one-sided Mann-Whitney test: the chance of such values on equal paths.

    1.0 for more values than a run ever takes: an edited recording must not cost minutes.
    """
    if max(len(fast), len(slow)) > trials.MOST_ROUNDS:
        return 1.0
    inversions = sum(one <= other for one in fast for other in slow)
    orders = combinations(range(len(fast) + len(slow)), len(fast))  # the places of the fast ones, 0 is the slowest
    highest = sum(range(len(slow), len(fast) + len(slow)))
    return sum(highest - sum(places) <= inversions for places in orders) / comb(len(fast) + len(slow), len(fast))
