"""DD126: settings that only torch's other class behind "nccl" reads."""

from collections.abc import Iterable, Iterator

from ddp_doctor.checks.node.env_vars.drafts import setting_draft
from ddp_doctor.checks.node.env_vars.in_force import InForce, say
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Remedy, Setting
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.settings import FOLLOWS, set_to, unset
from ddp_doctor.settings.table import Variable, variables
from ddp_doctor.settings.values import effective
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.nccl_backend import SWITCH


@rule("DD126", "setting-of-the-other-nccl-backend", Severity.WARNING, EnvVars)
def of_the_other_backend(recording: Recording) -> Iterable[Draft]:
    """A variable that torch reads in nccl-legacy alone, where the job's "nccl" is nccl2, or the other way round.

    What it finds
        TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC, TORCH_NCCL_DESYNC_DEBUG, TORCH_NCCL_NAN_CHECK, TORCH_NCCL_PROPAGATE_ERROR and
        the like with another value than their default, on nodes where init_process_group("nccl") builds nccl2, as the
        ranks recorded it, or as torch's own list of backends and TORCH_DIST_USE_NCCL2 tell. Information only where
        nobody relies on a protection, and in runs over gloo. Silent where the class is not known.

    Why it matters
        nccl2, which torch 2.15 takes for "nccl", has no heartbeat monitor, no report of the rank that fell behind and
        no word to the other ranks, and reads few of the old variables. A job that counts on them has them no longer,
        and nothing says so.

    Remedy
        Set what does the same for any backend where there is such a variable, else unset it. TORCH_DIST_USE_NCCL2=0
        brings the older class back, for as long as torch has it.

    References
        torch 2.15 torch/distributed/distributed_c10d.py, _register_builtin_nccl_backend
    """
    nccl_is_meant = recording.options.command == "env"  # whose world has no ranks, and so no NCCL
    return say(recording, lambda node: _unread(node, nccl_is_meant or node.backend in ("nccl", "")))


def _unread(node: InForce, uses_nccl: bool) -> Iterator[Draft]:
    if node.hardware.gpus == 0:
        return
    for name, value in node.unread.items():
        known = variables()[name]
        meant = known.replaced_by or name  # of an older name, which has no default of its own
        wanted = effective(meant, value)
        if wanted is None:
            continue
        relied_on = variables()[meant].lost_on_nccl2 if node.installed.backend == "nccl2" else None
        yield setting_draft(
            (name,),
            f'{shown(name, value)} does nothing: {known.backend} reads it, and "nccl" is {node.installed.backend} here',
            shown(name, value),
            known.source,
            *_remedies(node, known, value, variables()[meant].other_backend_reads, wanted),
            detail=relied_on or "What it asks for does not happen.",
            severity=None if relied_on and uses_nccl else Severity.INFO,
            confidence=Confidence.LIKELY,
        )


def _remedies(node: InForce, known: Variable, value: str, other: str | None, wanted: str) -> Iterator[Remedy]:
    env, why = node.seen.fact.variables, f"only {known.backend} reads it"
    if other is not None and other not in env and node.installed.reads(other):
        yield set_to(
            other, wanted, f"does the same, and {why}", (known.name, value), f"Set {shown(other, wanted)}"
        )
    yield unset({known.name: value}, why)
    if node.installed.reads(SWITCH):
        yield _other_class(known.backend == "nccl2", env.get(SWITCH))


def _other_class(is_newer: bool, before: str | None) -> Remedy:
    """Have "nccl" stand for the class that reads the variable; 0 and 1 mean that in torch 2.14 and in 2.15."""
    name, value = ("nccl2", "1") if is_newer else ("nccl-legacy", "0")
    older = "torch leaves the older class behind, and later releases may lack it"
    return Remedy(
        summary=f'Have "nccl" stand for {name}, with {shown(SWITCH, value)} on all ranks',
        settings=(Setting(name=SWITCH, value=value, why=f"{name} reads the variable"),),
        cost="the ranks run on another class, which reads other variables" if is_newer else older,
        undo=f"unset {SWITCH}" if before is None else f"export {shown(SWITCH, before)}",
        proof=FOLLOWS,
    )
