"""Ranks that met and disagree, or met and cannot reach each other."""

from collections.abc import Iterator

from ddp_doctor.engine.trial_rules.common import (
    check_of,
    confidence,
    culprits,
    judged,
    names,
    of_rank,
    pairs_of_topology,
    proof_words,
    rank_evidence,
    step_words,
    try_without_p2p,
    waiting_evidence,
)
from ddp_doctor.launch.hang import Judgement, open_step
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.phrases import ranks as words


@rule("DD614", "ranks-call-different-collectives", Severity.ERROR)
def mismatch(recording: Recording) -> Iterator[Draft]:
    """Ranks that met in one place with different operations, shapes or types.

    What it finds
        At one sequence number the ranks called different operations, or one operation with
        different shapes or types; torch's flight recorder tells what each really enqueued.

    Why it matters
        The result is a hang, a broken connection or a wrong sum, and no message names the rank.

    Remedy
        Make the ranks agree: usually a branch, a data-dependent shape or an uneven last batch.

    References
        TORCH_DISTRIBUTED_DEBUG=DETAIL compares every collective at a price
    """
    for trial, judgement in judged(recording, "mismatch"):
        calls = _calls(trial, judgement)
        theirs = sorted({calls[rank] for rank in judgement.waiting if rank in calls})
        mine = sorted({calls[rank] for rank in judgement.suspects if rank in calls})
        if judgement.suspects and mine:
            title = (
                f"{names(recording, judgement.suspects)} called {', '.join(mine)} where"
                f" {words.rank_list(judgement.waiting)} called {', '.join(theirs)} in {check_of(trial, judgement)}"
            )
        else:
            every = "; ".join(f"rank {rank} called {call}" for rank, call in sorted(calls.items()))
            title = f"The ranks call different collectives in {check_of(trial, judgement)}"
            title += f": {every}" if every else ""
        yield Draft(
            title=title,
            detail="Collectives must be called by all ranks in the same order with the same shape and type."
            f"{proof_words(recording, trial, judgement)}",
            confidence=confidence(recording, trial, judgement) if judgement.suspects else Confidence.POSSIBLE,
            culprits=culprits(recording, judgement.suspects),
            evidence=(*_flight_evidence(trial, judgement), *waiting_evidence(trial, judgement)),
            remedies=(Remedy(summary="Make that rank take the same path as the others", scope="code"),),
        )


def _calls(trial: TrialRecord, judgement: Judgement) -> dict[int, str]:
    """What each rank called by its flight recorder; without any recorder, what it had announced."""
    if judgement.flights:
        return {rank: f"{entry.op}{_sizes(entry.sizes)}" for rank, entry in judgement.flights}
    steps = {one.rank: open_step(one) for one in trial.evidence}
    return {rank: f"{step.name} {step.detail}".strip() for rank, step in steps.items() if step is not None}


def _sizes(sizes: tuple[tuple[int, ...], ...]) -> str:
    return " ".join(str(list(size)) for size in sizes)


def _flight_evidence(trial: TrialRecord, judgement: Judgement) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            check=check_of(trial, judgement),
            text=f"rank {rank}: collective {entry.seq} is {entry.op} {_sizes(entry.sizes)}"
            f" {' '.join(entry.dtypes)} (flight recorder)",
        )
        for rank, entry in judgement.flights
    )


@rule("DD615", "link-between-two-ranks-hangs", Severity.ERROR)
def pair(recording: Recording) -> Iterator[Draft]:
    """A pair of ranks that both entered a transfer which never ended.

    What it finds
        Two ranks that run, that both entered the same send and receive, and that never left it.

    Why it matters
        Neither process is to blame: what connects them is. One such pair hangs every collective.

    Remedy
        GPUs: test with NCCL_P2P_DISABLE=1, and repair ACS, the IOMMU or the link. CPU: look at the
        firewall and the interface between the two.

    References
        NCCL user guide, Troubleshooting: GPU Direct and PCI Access Control Services
    """
    explained = pairs_of_topology(recording)
    seen: dict[tuple[int, int], tuple[TrialRecord, Judgement]] = {}
    for trial, judgement in judged(recording, "pair"):
        seen.update((pair, (trial, judgement)) for pair in judgement.pairs if pair not in explained)
    common = _common_rank(set(seen))
    if common is not None:
        yield _many_pairs(recording, common, seen)
        return
    for (one, other), (trial, judgement) in seen.items():
        yield Draft(
            title=f"The link between {words.rank_at(recording, one)} and {words.rank_at(recording, other)}"
            f" hangs: both entered {step_words(judgement.step)} of {check_of(trial, judgement)} and neither left it",
            detail="Both processes run, so what connects them is to blame. All other pairs were tested without it.",
            confidence=Confidence.LIKELY,
            culprits=(words.pair_culprit(recording, one, other),),
            evidence=tuple(rank_evidence(trial, judgement, of_rank(trial, rank)) for rank in (one, other)),
            remedies=(try_without_p2p(recording),),
        )


def _common_rank(pairs: set[tuple[int, int]]) -> int | None:
    """The one rank that is an end of all of at least two stuck pairs: two observers name it."""
    if len(pairs) < 2:
        return None
    shared = set.intersection(*(set(pair) for pair in pairs))
    return shared.pop() if len(shared) == 1 else None


def _many_pairs(
    recording: Recording, common: int, seen: dict[tuple[int, int], tuple[TrialRecord, Judgement]]
) -> Draft:
    others = sorted(rank for pair in seen for rank in pair if rank != common)
    evidence = [
        rank_evidence(trial, judgement, of_rank(trial, common))
        for trial, judgement in list(seen.values())[:1]
    ]
    return Draft(
        title=f"{names(recording, (common,))} exchanges nothing with {words.rank_list(others)}: each of these"
        " links hangs with both ends inside the transfer",
        detail=f"{len(seen)} stuck pairs share this rank, and pairs without it work.",
        confidence=Confidence.LIKELY,
        culprits=(words.rank_culprit(recording, common),),
        evidence=tuple(evidence),
        remedies=(try_without_p2p(recording),),
    )
