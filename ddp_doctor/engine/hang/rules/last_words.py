"""The cause named in the last output of a rank, found with the signs and causes of ``logs``."""

from contextlib import suppress
from typing import NamedTuple

from ddp_doctor.features import CannotLoad, recorded
from ddp_doctor.model.finding import Evidence, Remedy
from ddp_doctor.model.trial import RankEvidence


class NamedCause(NamedTuple):
    """The parts of a finding that come from the cause that a rank named."""

    sentence: str  # " Cause: GPU memory ran out on rank 1 (ddp-doctor explain DDJ110)."
    evidence: tuple[Evidence, ...]
    remedies: tuple[Remedy, ...]


def named_cause(rank: RankEvidence, check: str) -> NamedCause | None:
    """Return the cause that a rank printed or raised before it ended, or None if it named none."""
    raised = f"{rank.raised.type}: {rank.raised.message}\n" if rank.raised else ""
    found = None
    with suppress(CannotLoad):
        found = recorded("logs").named_cause(f"rank{rank.rank}.log", f"{rank.output_tail}\n{raised}", check)
    if found is None:
        return None
    finding, lines = found
    evidence = tuple(Evidence(check=check, text=f"rank {rank.rank} printed: {line}") for line in lines)
    sentence = f" Cause from its output: {finding.title.rstrip('.')} (ddp-doctor explain {finding.code})."
    return NamedCause(sentence, evidence, tuple(map(_by_hand, finding.remedies)))


def _by_hand(remedy: Remedy) -> Remedy:
    """Return the fix with its settings as commands: some values are samples, which settings must not contain."""
    lines = [
        f"unset {each.name}" if each.value is None else f"export {each.name}={each.value}" for each in remedy.settings
    ]
    return remedy.model_copy(update={"settings": (), "commands": (*lines, *remedy.commands)})
