"""The cause that the last words of a rank name, by the signs and causes by which ``logs`` judges a job's output."""

from typing import NamedTuple

from ddp_doctor.model.finding import Evidence, Remedy
from ddp_doctor.model.trial import RankEvidence

#: Some libraries print times without a year; here only their order counts.
_LEAP_YEAR = 2000


class NamedCause(NamedTuple):
    """What a finding about a rank takes from the cause that the rank named."""

    sentence: str  # " Cause: GPU memory ran out on rank 1 (ddp-doctor explain DDJ110)."
    evidence: tuple[Evidence, ...]
    remedies: tuple[Remedy, ...]


def named_cause(rank: RankEvidence, check: str) -> NamedCause | None:
    """The cause that a rank printed or raised before it ended; None where its words name none."""
    from ddp_doctor.engine.causes.findings import finding_of
    from ddp_doctor.engine.causes.judge import cause_in  # its tables take longer than a prolog, and few ranks die
    from ddp_doctor.parse.job_log.assemble import fact_of_text

    raised = f"{rank.raised.type}: {rank.raised.message}\n" if rank.raised else ""
    fact = fact_of_text(f"rank{rank.rank}.log", f"{rank.output_tail}\n{raised}", _LEAP_YEAR)
    judged = cause_in(fact)
    if judged is None:
        return None
    finding = finding_of(judged, check)
    evidence = tuple(Evidence(check=check, text=f"rank {rank.rank} printed: {line.text}") for line in judged.lines[:1])
    sentence = f" Cause from its output: {finding.title.rstrip('.')} (ddp-doctor explain {judged.cause.code})."
    return NamedCause(sentence, evidence, tuple(map(_by_hand, finding.remedies)))


def _by_hand(remedy: Remedy) -> Remedy:
    """A remedy whose settings are lines to type: some have samples for values, which no form of settings may hold."""
    lines = [
        f"unset {each.name}" if each.value is None else f"export {each.name}={each.value}" for each in remedy.settings
    ]
    return remedy.model_copy(update={"settings": (), "commands": (*lines, *remedy.commands)})
