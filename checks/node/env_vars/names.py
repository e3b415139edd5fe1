"""DD111-DD114: variables that nothing reads: misspelled, never read, or of an older or a newer release."""

from collections.abc import Iterable

from ddp_doctor.checks.node.env_vars import environment
from ddp_doctor.checks.node.env_vars.in_force import say
from ddp_doctor.facts.env_vars import EnvVars
from ddp_doctor.facts.software import Software
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule


@rule("DD111", "variable-misspelled", Severity.WARNING, EnvVars)
def variable_misspelled(recording: Recording) -> Iterable[Draft]:
    """A variable that nothing reads and that is one slip away from one that is read.

    What it finds
        A wrong letter or case, words in another order, a forgotten part. Names of known plug-ins are left alone.

    Why it matters
        The setting has no effect, and nothing says so.

    Remedy
        Set the variable that is read, and unset the other.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    return say(recording, lambda one: environment.misspelled(one.seen.fact, one.installed))


@rule("DD112", "variable-read-by-nothing", Severity.WARNING, EnvVars)
def variable_read_by_nothing(recording: Recording) -> Iterable[Draft]:
    """A variable that is passed on from script to script although no release ever read it.

    What it finds
        Names such as NCCL_TIMEOUT. Information only for names that nobody knows: a plug-in may read those.

    Why it matters
        The setting has no effect, and somebody relies on it.

    Remedy
        Unset it, and set what was meant.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    return say(recording, lambda one: environment.unread(one.seen.fact))


@rule("DD113", "variable-obsolete", Severity.WARNING, EnvVars)
def variable_obsolete(recording: Recording) -> Iterable[Draft]:
    """A variable from an older release.

    What it finds
        Names that the loaded NCCL, or this torch, does not read any more; where that is not known, those that neither
        torch 2.4 or later nor an NCCL bundled with it reads. Information only where it still does. Silent where
        the name that took its place is not read yet.

    Why it matters
        The setting has no effect, now or after the next upgrade.

    Remedy
        Set what replaced it, and unset the old name.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    return say(recording, lambda one: environment.obsolete(one.seen.fact, one.installed))


@rule("DD114", "variable-not-yet-read", Severity.WARNING, EnvVars, Software)
def variable_not_yet_read(recording: Recording) -> Iterable[Draft]:
    """A variable of a newer NCCL than the one that is loaded, or of a newer torch.

    What it finds
        A name of NCCL's or torch's that later releases read and the one that is here does not. Information only where
        its value is the default, or where it is about logs.

    Why it matters
        The setting has no effect, and somebody relies on it: most often it was taken from the documentation,
        which is of the newest release.

    Remedy
        Unset it, or install a torch that reads it, or with the NCCL that does.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    return say(recording, lambda one: environment.not_yet_read(one.seen.fact, one.installed))
