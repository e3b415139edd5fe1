"""DD801, DD802: GPUs of one model that are not equally fast."""

from collections.abc import Hashable, Iterator, Sequence

from ddp_doctor.checks.collectives.gpu_speed import state, wording
from ddp_doctor.checks.collectives.gpu_speed.comparable import (
    COPY,
    MATMUL,
    Compared,
    Measured,
    beside_others,
    judged,
    model,
    rank_of,
)
from ddp_doctor.checks.collectives.gpu_speed.throttling import slowed_by_hardware
from ddp_doctor.facts.collectives import GpuSpeedFact
from ddp_doctor.knowledge.gpu import gpu_speed
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.views.gpus import power_limited
from ddp_doctor.wording.findings import possible, proved
from ddp_doctor.wording.gpus import LINES_OF_EVIDENCE
from ddp_doctor.wording.ranks import capital, pair_culprit, rank_at, ranks_at

_DETAIL = "In DDP every rank waits for the slowest one, in every step."
#: Rates that are too low, by model, and the GPUs of that model that are fast.
Slow = list[Compared]


@rule("DD801", "gpu-slower-than-its-peers", Severity.WARNING, GpuSpeedFact)
def slower_than_peers(recording: Recording) -> Iterator[Draft]:
    """A GPU that works more slowly than the others of its model.

    What it finds
        Among three or more GPUs of one model, over all nodes, those whose matrix products or memory copies
        are 10 % or more below the median of the others; an error from three times on. Its clock, power and
        temperature under that load stand beside its peers'. GPUs that others use, slices, and GPUs of two
        ranks are not compared, and a GPU whose hardware holds it down has a finding of its own (DD805). Where
        its lowered power limit is a finding (DD318) and holds it down, what that costs is information.

    Why it matters
        Every rank waits for the slowest in every step: one GPU in a thousand slows all of them.

    Remedy
        By what differs: its power limit, clocks that somebody set; else the GPU or its cooling.

    References
        huggingface/gpu-fryer (10 % under the best GPU); NVIDIA/DCGM issue 122 (an A100 2.9 times slower
        beside seven within 1 %); docs/explanation/measurements.md
    """
    explained, limited = slowed_by_hardware(recording), power_limited(recording)
    for slow in _by_model(_slow(recording, sure=True)):
        left = [one for one in slow if rank_of(one.seen) not in explained]
        grades: dict[Severity, Slow] = {Severity.ERROR: [], Severity.WARNING: [], Severity.INFO: []}
        for rank in dict.fromkeys(rank_of(one.seen) for one in left):
            rates = [one for one in left if rank_of(one.seen) == rank]
            grades[_grade(rates, limited)] += rates
        for severity, those in grades.items():
            if those:
                yield _slower_draft(recording, those, severity)


def _grade(rates: Slow, limited: frozenset[tuple[int, str]]) -> Severity:
    """How grave the slow rates of one GPU are; ``limited`` are the GPUs whose power limit is a finding."""
    if any(one.factor >= gpu_speed.MUCH_SLOWER for one in rates):
        return Severity.ERROR
    seen = rates[0].seen
    capped = seen.fact.load.clock_events.get("sw_power_cap", 0.0) >= gpu_speed.IN_FORCE_SHARE
    own = (seen.node, seen.fact.gpu_uuid) in limited
    return Severity.INFO if own and capped and {one.metric for one in rates} == {MATMUL} else Severity.WARNING


def _slower_draft(recording: Recording, slow: Slow, severity: Severity) -> Draft:
    gpus, told = _gpus(slow), severity is Severity.INFO
    who = capital(ranks_at(recording, map(rank_of, gpus)))
    return proved(
        _culprits(recording, gpus),
        f"{who}: {_how_slow(slow)} than on the other {slow[0].others} {slow[0].seen.fact.gpu_name}",
        (*_rates(recording, slow), *state.evidence(recording, gpus, gpus)),
        *(() if told else state.remedies(recording, gpus)),
        detail=f"This is what the lowered power limit costs (DD318). {_DETAIL}" if told else _DETAIL,
        severity=severity,
    )


@rule("DD802", "gpus-of-one-model-unequally-fast", Severity.WARNING, GpuSpeedFact)
def unequally_fast(recording: Recording) -> Iterator[Draft]:
    """GPUs of one model that differ in speed, with nobody to tell which is as it should be.

    What it finds
        Two GPUs of one model, or as many slow ones as fast ones, whose matrix products or memory copies are
        10 % or more apart; an error from three times on. Cards of different makers differ by some of it.

    Why it matters
        The faster ones wait for the slower ones in every step.

    Remedy
        Compare clocks, power limits and temperatures under load.

    References
        docs/explanation/measurements.md
    """
    explained = slowed_by_hardware(recording)
    for slow in _by_model(_slow(recording, sure=False)):
        below = _gpus(slow)
        above = [seen for seen in judged(recording) if model(seen) == model(below[0]) and seen not in below]
        if above and not any(rank_of(seen) in explained for seen in below):
            yield _unsure_draft(recording, slow, below, above)


def _unsure_draft(
    recording: Recording, slow: Slow, below: Sequence[Measured], above: Sequence[Measured]
) -> Draft:
    ranks = [rank_of(seen) for seen in below], [rank_of(seen) for seen in above]
    pair = len(below) == len(above) == 1
    both = "both" if pair else "all"
    worst = max(one.factor for one in slow)
    return possible(
        (pair_culprit(recording, ranks[0][0], ranks[1][0]),) if pair else _culprits(recording, below),
        f"{capital(ranks_at(recording, ranks[0]))}: {_how_slow(slow)} than on "
        f"{ranks_at(recording, ranks[1])}, {both} {slow[0].seen.fact.gpu_name}; unsure which is at fault",
        (*_rates(recording, slow), *state.evidence(recording, [*below, *above], below)),
        *state.remedies(recording, below),
        detail=_DETAIL,
        severity=Severity.ERROR if worst >= gpu_speed.MUCH_SLOWER else Severity.WARNING,
    )


def _slow(recording: Recording, *, sure: bool) -> Slow:
    """The slow ones; ``sure``: those that stand against a clear majority of others."""
    found: Slow = []
    for group in [*beside_others(recording, MATMUL), *beside_others(recording, COPY)]:
        slow = [one for one in group if one.is_below(gpu_speed.SLOWER_SHARE)]
        is_clear = len(group) >= gpu_speed.FEWEST_TO_JUDGE and 2 * len(slow) < len(group)
        if is_clear is sure:
            found += slow
    return found


def _by_model(slow: Slow) -> list[Slow]:
    models: dict[Hashable, Slow] = {}
    for one in slow:
        models.setdefault(model(one.seen), []).append(one)
    return list(models.values())


def _gpus(slow: Slow) -> list[Measured]:
    """Each GPU once, by rank."""
    gpus = {rank_of(one.seen): one.seen for one in slow}
    return [gpus[rank] for rank in sorted(gpus)]


def _culprits(recording: Recording, gpus: Sequence[Measured]) -> tuple[Culprit, ...]:
    return tuple(wording.gpu_culprit(recording, rank_of(seen), seen.fact.gpu_uuid) for seen in gpus)


def _how_slow(slow: Slow) -> str:
    """ "matrix products 41 % slower and copies within its memory up to 12 % slower"."""
    parts = []
    for metric in dict.fromkeys(one.metric for one in slow):
        factors = [one.factor for one in slow if one.metric is metric]
        up_to = "up to " if len(factors) > 1 else ""
        parts.append(f"{metric.words} {up_to}{wording.slower(max(factors))}")
    return " and ".join(parts)


def _rates(recording: Recording, slow: Slow) -> Iterator[Evidence]:
    for one in slow[:LINES_OF_EVIDENCE]:
        more = f" in {one.seen.fact.matmul_dtype}" if one.metric is MATMUL else ""
        yield Evidence(
            text=f"{rank_at(recording, rank_of(one.seen))}, {one.metric.words}{more}, "
            f"median of {one.rate.repetitions} ({one.rate.least:.4g} to {one.rate.most:.4g})",
            value=round(one.rate.median, 2),
            unit=one.metric.unit,
            expected=round(one.typical, 2),
            expected_from=f"median of the other {one.others} of this run"
            if one.others > 1
            else "the other one of this run",
        )
