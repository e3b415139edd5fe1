"""What rules need not say of a remedy made of settings: what it does not go with, its source, why it is not tried."""

from collections.abc import Iterator

from ddp_doctor.model.finding import Finding, Proof, Remedy
from ddp_doctor.remedies.settings import NO_TRIAL
from ddp_doctor.settings.interactions import does_not_go_with
from ddp_doctor.settings.table import never_read, variables

_NO_REPRODUCER = "no trial is known that would show this fault"
_NO_RANKS = "this command starts no ranks; `ddp-doctor run` tries it"


def completed(finding: Finding, *, had_ranks: bool) -> Finding:
    """The finding with remedies that say all there is to say of their settings."""
    if not any(remedy.settings for remedy in finding.remedies):
        return finding
    why_not = None if finding.reproduced_by else _NO_REPRODUCER if had_ranks else _NO_RANKS
    remedies = tuple(
        _completed(remedy, why_not) if remedy.settings else remedy for remedy in finding.remedies
    )
    return finding.model_copy(update={"remedies": remedies})


def _completed(remedy: Remedy, why_not: str | None) -> Remedy:
    wanted = {setting.name: setting.value or "" for setting in remedy.settings if setting.action == "set"}
    conflicts = dict.fromkeys((*remedy.conflicts, *does_not_go_with(wanted)))
    return remedy.model_copy(
        update={
            "conflicts": tuple(conflicts),
            "proof": Proof(reason=why_not) if why_not and remedy.proof == NO_TRIAL else remedy.proof,
            "references": remedy.references or tuple(dict.fromkeys(_sources(remedy))),
        }
    )


def _sources(remedy: Remedy) -> Iterator[str]:
    """Where the table of variables read what it says of the settings of a remedy."""
    for setting in remedy.settings:
        row = variables().get(setting.name) or never_read().get(setting.name)
        if row is not None:
            yield row.source
