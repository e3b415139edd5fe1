"""The kinds of fixes: settings of environment variables and manual actions; and why a fix was not tested."""

from collections.abc import Mapping
from functools import partial

from ddp_doctor.model.finding import Finding, Proof, Remedy, Scope, Setting
from ddp_doctor.settings.interactions import does_not_go_with
from ddp_doctor.settings.table import never_read, variables
from ddp_doctor.settings.wording import shown
from ddp_doctor.wording.nodes import name_list


def remedy(
    summary: str,
    *commands: str,
    scope: Scope = "node",
    cost: str = "",
    undo: str = "",
    untried: str = "",
    references: tuple[str, ...] = (),
    container: tuple[str, ...] = (),
) -> Remedy:
    """Return a fix with its commands. ``untried`` is why no trial proves it, ``container`` as in Remedy."""
    return Remedy(
        summary=summary,
        commands=commands,
        scope=scope,
        cost=cost,
        undo=undo,
        proof=Proof(reason=untried or None),
        references=references,
        container=container,
    )


#: For administrators of the machines.
by_administrator = partial(remedy, untried="requires an administrator")
#: For operators of the GPUs: to inspect, reset or replace one.
by_operator = partial(remedy, untried="requires an operator or a different allocation")
#: For installers of software.
by_installation = partial(remedy, untried="ddp-doctor does not change installations")
#: For authors of the training script.
in_code = partial(remedy, scope="code", untried="ddp-doctor does not run the job's code")
#: Why no trial proves a change of the script that would change training.
CHANGES_TRAINING = "changes training code, which ddp-doctor does not run"


#: For a leftover, a misspelled name, or a value that is read differently.
FOLLOWS = Proof(reason="nothing to measure: it follows from the names and values that are read")
#: For a fix that a trial can prove.
NO_TRIAL = Proof(reason="the recording has no trial")


def unset(pairs: Mapping[str, str], why: str, summary: str = "", proof: Proof = FOLLOWS) -> Remedy:
    """Return a fix that removes these variables, given with their values, from the job's environment."""
    return Remedy(
        summary=summary or f"Unset {name_list(list(pairs))} in the job's environment",
        settings=tuple(Setting(name=name, action="unset", why=why) for name in pairs),
        undo="; ".join(f"export {shown(name, value)}" for name, value in pairs.items()),
        proof=proof,
    )


def set_to(name: str, value: str, why: str, instead_of: tuple[str, str], summary: str = "") -> Remedy:
    """Return a fix that sets a variable instead of another name, or instead of its own old value."""
    old_name, old_value = instead_of
    settings = [Setting(name=name, value=value, why=why)]
    undo = f"export {shown(old_name, old_value)}"
    if old_name != name:
        settings.append(Setting(name=old_name, action="unset", why=why))
        undo = f"unset {name}; {undo}"
    return Remedy(
        summary=summary or f"Set {shown(name, value)} if that was intended; otherwise, unset {old_name}",
        settings=tuple(settings),
        undo=undo,
        proof=FOLLOWS,
    )


def in_job_script(summary: str) -> Remedy:
    """Return a fix that only the owner of the job script can write out."""
    return Remedy(summary=summary, undo="restore the previous lines", proof=FOLLOWS)


_NO_REPRODUCER = "no trial can show this fault"
_NO_RANKS = "this command starts no ranks; `ddp-doctor run` tests it"


def completed(finding: Finding, *, had_ranks: bool) -> Finding:
    """Return the finding with the conflicts, proofs and references of its fixes completed."""
    if not any(remedy.settings for remedy in finding.remedies):
        return finding
    why_not = None if finding.reproduced_by else _NO_REPRODUCER if had_ranks else _NO_RANKS
    remedies = tuple(_completed(remedy, why_not) if remedy.settings else remedy for remedy in finding.remedies)
    return finding.model_copy(update={"remedies": remedies})


def _completed(remedy: Remedy, why_not: str | None) -> Remedy:
    wanted = {setting.name: setting.value or "" for setting in remedy.settings if setting.action == "set"}
    conflicts = dict.fromkeys((*remedy.conflicts, *does_not_go_with(wanted)))
    rows = [variables().get(setting.name) or never_read().get(setting.name) for setting in remedy.settings]
    return remedy.model_copy(
        update={
            "conflicts": tuple(conflicts),
            "proof": Proof(reason=why_not) if why_not and remedy.proof == NO_TRIAL else remedy.proof,
            "references": remedy.references or tuple(dict.fromkeys(row.source for row in rows if row is not None)),
        }
    )
