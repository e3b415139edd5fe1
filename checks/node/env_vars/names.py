"""DD111-DD114, DD126: variables without effect: misspelled, of another release or of another backend class."""

from collections.abc import Iterator, Mapping

from ddp_doctor.checks.node.env_vars.in_force import InForce, rule_of_nodes, setting_draft
from ddp_doctor.facts.node.software import Software
from ddp_doctor.knowledge.versions import dotted
from ddp_doctor.model.choices import Command, Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Remedy, Setting
from ddp_doctor.remedies.kinds import FOLLOWS, set_to, unset
from ddp_doctor.settings.effects import effects, out_of_range
from ddp_doctor.settings.interactions import disagreeing
from ddp_doctor.settings.names import is_unknown, meant_by_timeout, nearest
from ddp_doctor.settings.releases import RELEASES, Installed, is_gone, status_at
from ddp_doctor.settings.table import Variable, never_read, variables
from ddp_doctor.settings.values import effective, misread
from ddp_doctor.settings.wording import listed, shown
from ddp_doctor.views.software import SWITCH
from ddp_doctor.wording.nodes import name_list

#: The maximum number of unknown names in the evidence.
_STRANGE_SHOWN = 8


@rule_of_nodes("DD111", "variable-misspelled", Consequence.RISK)
def variable_misspelled(node: InForce) -> Iterator[Draft]:
    """A variable that no library reads is nearly the name of one that is read.

    Finds: A wrong letter or case, words in a different order, a missing part. Names of known plug-ins are ignored.
    Why: The setting has no effect, and no message reports it.
    Remedy: Set the variable that is read, and unset the other.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    env = node.env
    for name, value in env.items():
        meant = nearest(name) if is_unknown(name) else None
        if meant is None:
            continue
        wrong = misread(meant, value)
        better = wrong.instead if wrong and wrong.instead else value
        why = f"no program reads {name}"
        yield setting_draft(
            (name,),
            f"{name} has no effect: typo for {meant}",
            shown(name, value),
            f"not among the variables of {RELEASES}",
            set_to(meant, better, why, (name, value))
            if meant not in env and node.installed.reads(meant)
            else unset({name: value}, why),
            detail=f"{shown(meant, env[meant])} stays in effect." if meant in env else f"{meant} keeps its default.",
            confidence=Confidence.LIKELY,
            severity=Severity.INFO if env.get(meant) == value else None,
        )


@rule_of_nodes("DD112", "variable-read-by-nothing", Consequence.NO_EFFECT)
def variable_read_by_nothing(node: InForce) -> Iterator[Draft]:
    """A variable is set that no release ever read.

    Finds: Names such as NCCL_TIMEOUT, DDP_TIMEOUT or TORCH_DIST_INIT_TIMEOUT, and unknown names, which a plug-in
        may read.
    Why: The setting has no effect, and someone may rely on it.
    Remedy: Unset it, and set the variable that has the intended effect.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for name, value in node.env.items():
        never = never_read().get(name)
        if never:
            yield setting_draft(
                (name,),
                f"{name} has no effect: no library reads it",
                shown(name, value),
                never.source,
                unset({name: value}, "no library reads it", _see(name, never.instead)),
                detail=f"The name suggests {never.meant}.",
            )
    unknown = {name: value for name, value in node.env.items() if name not in never_read() and is_unknown(name)}
    timeouts = {name: meant for name in node.env if (meant := meant_by_timeout(name))}
    for name, meant in timeouts.items():
        yield setting_draft(
            (name,),
            f"{name} has no effect: no known program reads it",
            shown(name, node.env[name]),
            f"not among the variables of {RELEASES}",
            unset({name: node.env[name]}, "no known program reads it"),
            detail=f"The name suggests {meant}. Only a plug-in or your own code could read it.",
            confidence=Confidence.LIKELY,
        )
    strange = {
        name: value
        for name, value in unknown.items()
        if not name.startswith("PET_") and name not in timeouts and not nearest(name)
    }
    if strange:
        are = "is not a known variable" if len(strange) == 1 else "are not known variables"
        yield setting_draft(
            strange,
            f"{name_list(list(strange))} {are}",
            listed(dict(list(strange.items())[:_STRANGE_SHOWN])),
            f"not among the variables of {RELEASES}",
            detail=f"A plug-in may read {'it' if len(strange) == 1 else 'them'}.",
            confidence=Confidence.POSSIBLE,
        )


def _see(name: str, instead: str | None) -> str:
    return f"Unset {name} (see {instead})" if instead else f"Unset {name}"


@rule_of_nodes("DD113", "variable-obsolete", Consequence.NO_EFFECT)
def variable_obsolete(node: InForce) -> Iterator[Draft]:
    """A variable from an older release is set.

    Finds: Names that the loaded NCCL, or this torch, no longer reads; if that is unknown, names that neither torch
        2.4 or later nor an NCCL bundled with it reads. Not reported if this release does not read the new name yet.
    Why: The setting has no effect, now or after the next upgrade.
    Remedy: Set its replacement, and unset the old name.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    env, installed = node.env, node.installed
    for name, value in env.items():
        old = variables().get(name)
        if old is None or old.status == "active" or name in disagreeing(env, installed):
            continue
        at, library = installed.of(old), _library(old)
        gone = status_at(old, at) != "read" if at else is_gone(old)
        here = f" in {library} {dotted(at)}" if at else ""
        title = f"{name} is deprecated, but still read"
        if gone:
            title = f"{name} has no effect{here}" + (f": removed after {library} {old.last}" if old.last else "")
        elif old.last:
            title = f"{name} is deprecated: {library} after {old.last} does not read it"
        if not gone and (effects(name, value) or out_of_range(name, env, installed.nccl)):
            continue  # reported as a variable to remove, because of its effect
        if not gone and old.replaced_by and not installed.reads(old.replaced_by):
            continue  # this release reads the old name
        yield setting_draft((name,), title, shown(name, value), old.source, _renamed(env, old, value, installed))


def _library(variable: Variable) -> str:
    return "NCCL" if variable.owner == "nccl" else "torch"


@rule_of_nodes("DD114", "variable-not-yet-read", Consequence.NO_EFFECT, Software)
def variable_not_yet_read(node: InForce) -> Iterator[Draft]:
    """A variable is set that only a newer NCCL or torch reads.

    Finds: A variable of NCCL or torch that later releases read and the installed release does not.
    Why: The setting has no effect, and someone relies on it. Usually it comes from the documentation, which
        describes the newest release.
    Remedy: Unset it, or install a torch that reads it or includes an NCCL that does.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    installed = node.installed
    for name, value in node.env.items():
        new = variables().get(name)
        at = installed.of(new) if new else ()
        if not at or new is None or status_at(new, at) != "not yet":
            continue
        library = _library(new)
        since = f"supported since {library} {new.first}"
        a_torch = "a torch with NCCL" if library == "NCCL" else "torch"
        yield setting_draft(
            (name,),
            f"{name} has no effect in {library} {dotted(at)}: supported since {new.first}",
            shown(name, value),
            new.source,
            unset({name: value}, since, f"Unset {name}, or install {a_torch} {new.first} or newer"),
        )


def _renamed(env: Mapping[str, str], old: Variable, value: str, installed: Installed) -> Remedy:
    new = variables().get(old.replaced_by or "")
    if new and new.type == old.type and new.name not in env and installed.reads(new.name):
        summary = f"Replace {old.name} with {new.name}"
        return set_to(new.name, value, f"replaces {old.name}", (old.name, value), summary)
    return unset({old.name: value}, "obsolete", _see(old.name, old.replaced_by))


@rule_of_nodes("DD126", "setting-of-the-other-nccl-backend", Consequence.RISK)
def setting_of_the_other_nccl_backend(node: InForce) -> Iterator[Draft]:
    """Only the other of torch's NCCL backends, nccl-legacy or nccl2, reads a variable.

    Finds: TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC, TORCH_NCCL_DESYNC_DEBUG, TORCH_NCCL_NAN_CHECK,
        TORCH_NCCL_PROPAGATE_ERROR and similar variables with a non-default value, on nodes where
        init_process_group("nccl") builds nccl2. The class comes from the ranks' recording, or from torch's list of
        backends and TORCH_DIST_USE_NCCL2. Information if no protection is lost, and in runs over gloo. Not reported
        if the class is unknown.
    Why: nccl2, which is "nccl" in torch 2.15, has no heartbeat monitor, does not report the rank that fell behind,
        does not notify the other ranks, and reads few of the old variables. A job silently loses these protections.
    Remedy: Set the variable with the same effect for any backend if there is one, otherwise unset it.
        TORCH_DIST_USE_NCCL2=0 selects the older class, as long as torch has it.
    See: torch 2.15 torch/distributed/distributed_c10d.py, _register_builtin_nccl_backend
    """
    if node.hardware.gpus == 0:
        return
    # ``env`` has no ranks, and therefore no NCCL.
    uses_nccl = node.recording.command is Command.ENV or node.backend in ("nccl", "")
    for name, value in node.unread.items():
        known = variables()[name]
        meant = known.replaced_by or name  # an older name has no default
        wanted = effective(meant, value)
        if wanted is None:
            continue
        relied_on = variables()[meant].lost_on_nccl2 if node.installed.backend == "nccl2" else None
        yield setting_draft(
            (name,),
            f"{shown(name, value)} has no effect: only torch's NCCL backend {known.backend}"
            f" reads it, but {node.installed.backend} is in use",
            shown(name, value),
            known.source,
            *_remedies(node, known, value, variables()[meant].other_backend_reads, wanted),
            detail=relied_on or "",
            severity=None if relied_on and uses_nccl else Severity.INFO,
            confidence=Confidence.LIKELY,
        )


def _remedies(node: InForce, known: Variable, value: str, other: str | None, wanted: str) -> Iterator[Remedy]:
    env, why = node.env, f"only {known.backend} reads it"
    if other is not None and other not in env and node.installed.reads(other):
        instead = f"every backend reads {other}; only {known.backend} reads {known.name}"
        yield set_to(other, wanted, instead, (known.name, value), f"Set {shown(other, wanted)}")
    yield unset({known.name: value}, why)
    if node.installed.reads(SWITCH):
        # 0 and 1 mean that in torch 2.14 and in 2.15.
        backend, switch = ("nccl2", "1") if known.backend == "nccl2" else ("nccl-legacy", "0")
        older = "an older backend class, which later torch releases may not have"
        yield Remedy(
            summary=f'Set {shown(SWITCH, switch)} on all ranks, which makes {backend} the "nccl" backend',
            settings=(Setting(name=SWITCH, value=switch, why=f"{backend} reads the variable"),),
            cost="a different backend class, which reads other variables" if switch == "1" else older,
            undo=f"export {shown(SWITCH, env[SWITCH])}" if SWITCH in env else f"unset {SWITCH}",
            proof=FOLLOWS,
        )
