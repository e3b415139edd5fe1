"""Ranks that make the others wait, though not for ever."""

from collections.abc import Iterator

from ddp_doctor.engine.trial_rules.common import judged, names, step_words, waiting_evidence
from ddp_doctor.knowledge.deadlines import LATE_RANK_S
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.model.trial import Step, TrialRecord
from ddp_doctor.phrases import ranks as words


@rule("DD619", "rank-comes-late", Severity.WARNING)
def late(recording: Recording) -> Iterator[Draft]:
    """A rank that makes the others wait, though not for ever.

    What it finds
        A rank that needed much longer than its peers between two collectives; all ranks run the
        same code, so the time is lost on that rank alone.

    Why it matters
        DDP runs at the speed of its slowest rank.

    Remedy
        Compare that rank's core, GPU clock and neighbours with its peers'.

    References
        docs/explanation/hangs.md
    """
    for trial in recording.trials:
        if trial.outcome == "finished":
            yield from _late_in(recording, trial)


def _late_in(recording: Recording, trial: TrialRecord) -> Iterator[Draft]:
    delays: dict[int, tuple[float, Step]] = {}
    keys = {(step.check, step.seq) for one in trial.evidence for step in one.steps}
    for key in keys:
        entered = {o.rank: s for o in trial.evidence for s in o.steps if (s.check, s.seq) == key}
        times = sorted(step.entered_at for step in entered.values())
        typical = times[(len(times) - 1) // 2]
        for rank, step in entered.items():
            delay = step.entered_at - typical
            if delay >= LATE_RANK_S and delay > delays.get(rank, (0.0, step))[0]:
                delays[rank] = (delay, step)
    if not delays or len(delays) * 2 > len(trial.ranks):
        return  # a slow machine, not a slow rank
    for rank, (delay, step) in delays.items():
        yield Draft(
            title=f"{names(recording, (rank,))} entered {step_words(step)} of {step.check} {delay:.1f} s after"
            " the others",
            detail="All ranks run the same code, so this rank alone lost the time.",
            culprits=(words.rank_culprit(recording, rank),),
            evidence=(
                Evidence(
                    check=step.check,
                    text=f"rank {rank} came last to {step_words(step)}",
                    value=round(delay, 2),
                    unit="s",
                    expected=LATE_RANK_S,
                    expected_from="ranks that run the same code enter within this time of each other",
                ),
            ),
            remedies=(
                Remedy(
                    summary="Compare this rank's core, clocks and neighbours with its peers'", scope="node"
                ),
            ),
        )


@rule("DD620", "check-moves-too-slowly", Severity.WARNING)
def slow(recording: Recording) -> Iterator[Draft]:
    """A check that still moved when its extended deadline had passed.

    What it finds
        Ranks that went on from step to step, too slowly to end in time; nobody hangs.

    Why it matters
        The job would run, far slower than it should.

    Remedy
        Look at the load of the machine first; then at the measured bandwidths.

    References
        docs/explanation/hangs.md
    """
    for trial, judgement in judged(recording, "slow"):
        yield Draft(
            title=f"{trial.judged_check} still moved after {trial.waited_s:.0f} s: slow, not hung",
            detail=f"{words.rank_list(judgement.waiting).capitalize()} went on from step to step until the end.",
            evidence=waiting_evidence(trial, judgement)
            or (Evidence(check=trial.judged_check or "", text="steps were still being entered"),),
            remedies=(Remedy(summary="Run again on an idle machine, or with --budget and fewer checks"),),
        )
