"""Remedies that set or unset environment variables."""

from collections.abc import Mapping

from ddp_doctor.model.finding import Proof, Remedy, Setting
from ddp_doctor.settings.wording import shown

#: Of a leftover, a misspelled name, or a value that is read otherwise.
FOLLOWS = Proof(reason="nothing to measure: it follows from which names and values are read")
#: Of a remedy that a trial can prove.
NO_TRIAL = Proof(reason="no trial of it was recorded")


def unset(pairs: Mapping[str, str], why: str, summary: str = "", proof: Proof = FOLLOWS) -> Remedy:
    """Take these variables, given with their values, out of the job's environment."""
    return Remedy(
        summary=summary or f"Take {' and '.join(pairs)} out of the job's environment",
        settings=tuple(Setting(name=name, action="unset", why=why) for name in pairs),
        cost="none, unless something else relies on it",
        undo="; ".join(f"export {shown(name, value)}" for name, value in pairs.items()),
        proof=proof,
    )


def set_to(name: str, value: str, why: str, instead_of: tuple[str, str], summary: str = "") -> Remedy:
    """Set a variable in the place of another name, or of its own old value."""
    old_name, old_value = instead_of
    settings = [Setting(name=name, value=value, why=why)]
    undo = f"export {shown(old_name, old_value)}"
    if old_name != name:
        settings.append(Setting(name=old_name, action="unset", why=why))
        undo = f"unset {name}; {undo}"
    return Remedy(
        summary=summary or f"Set {shown(name, value)} if that is meant, else unset it",
        settings=tuple(settings),
        cost="the setting takes effect, with what it costs",
        undo=undo,
        proof=FOLLOWS,
    )


def in_job_script(summary: str) -> Remedy:
    """A remedy that only the owner of the job script can spell out."""
    return Remedy(summary=summary, undo="put the former lines back", proof=FOLLOWS)
