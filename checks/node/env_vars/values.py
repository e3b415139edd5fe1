"""DD121, DD122: values that do something else than they say, or that stop the job."""

from collections.abc import Iterable, Iterator

from ddp_doctor.checks.node.env_vars.drafts import setting_draft
from ddp_doctor.checks.node.env_vars.in_force import say
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.settings import NO_TRIAL, set_to, unset
from ddp_doctor.settings.interactions import conflicts
from ddp_doctor.settings.releases import Installed
from ddp_doctor.settings.trials import read_by
from ddp_doctor.settings.wording import shown
from ddp_doctor.views import settings_read
from ddp_doctor.views.settings_read import MisreadValue


@rule("DD121", "value-read-otherwise", Severity.WARNING, EnvVars)
def value_read_otherwise(recording: Recording) -> Iterable[Draft]:
    """A value that does not do what it says.

    What it finds
        NCCL_IB_DISABLE=true (read as 0), NCCL_BUFFSIZE=4M (4 bytes), NCCL_P2P_LEVEL=sys (ignored),
        NCCL_DEBUG_FILE with %r, patterns among interface names, quotes that became part of the value.
        Information only where the value is empty, or logs alone suffer.

    Why it matters
        The library takes something else, or its default, and says nothing.

    Remedy
        Write the value as the library reads it.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    return say(recording, lambda node: _misread_values(node.seen.fact, node.installed))


def _misread_values(seen: EnvVars, installed: Installed) -> Iterator[Draft]:
    """Values that do not do what they say."""
    told = {name for found in conflicts(seen.variables, ()) if found.fails(()) for name in found.names}
    for value in settings_read.misread_values(seen.variables, installed):
        if value.found.fate == "misread" and value.variable.name not in told:
            yield _value(value, Severity.INFO if value.found.harmless else None)


@rule("DD122", "value-refused", Severity.ERROR, EnvVars)
def value_refused(recording: Recording) -> Iterable[Draft]:
    """A value on which torch, gloo or torchrun stops.

    What it finds
        TORCH_NCCL_BLOCKING_WAIT=on, TORCH_DISTRIBUTED_DEBUG=1, GLOO_SOCKET_IFNAME=^lo, LOGLEVEL=debug.
        A warning only where torchrun, or another backend than this run's, reads it.

    Why it matters
        The job ends before its first step, or hangs in init_process_group (TORCH_FR_BUFFER_SIZE=many).

    Remedy
        Write one of the values that are accepted, or unset the variable.

    References
        torch/csrc/distributed/c10d/Utils.hpp, getCvarBool and getCvarInt
    """
    return say(recording, lambda node: _refused_values(node.backend, node.seen.fact, node.installed))


def _refused_values(backend: str, seen: EnvVars, installed: Installed) -> Iterator[Draft]:
    """Values on which torch stops or hangs; a warning where only another backend, or torchrun, reads them."""
    for value in settings_read.misread_values(seen.variables, installed):
        if value.found.fate != "misread":
            sure = value.stops(backend)
            draft = _value(value, None if sure else Severity.WARNING)
            yield _reproduced_by_ranks(draft) if sure and read_by(value.variable.name) == backend else draft


def _reproduced_by_ranks(draft: Draft) -> Draft:
    """The same as trials can show it: with such a value the ranks do not even meet."""
    remedies = tuple(remedy.model_copy(update={"proof": NO_TRIAL}) for remedy in draft.remedies)
    return draft.model_copy(update={"remedies": remedies, "reproduced_by": Reproducer(kind="meet")})


def _value(wrong: MisreadValue, severity: Severity | None) -> Draft:
    variable, value, found = wrong.variable, wrong.value, wrong.found
    name = variable.name
    if found.instead is None:
        remedy = unset({name: value}, found.becomes, f"unset {name}, or give it a value that is read")
    else:
        remedy = set_to(name, found.instead, found.why, (name, value))
    when = f" It is read by: {variable.read_when}." if variable.read_when else ""
    saw = shown(name, value)
    return setting_draft(
        (name,),
        f"{saw} {found.becomes}",
        saw,
        variable.source,
        remedy,
        detail=found.why + when,
        severity=severity,
    )
