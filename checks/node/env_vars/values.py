"""DD115-DD118, DD121, DD122: values without effect, contradictory, misread, rejected or out of range."""

from collections.abc import Iterator

from ddp_doctor.checks.node.env_vars.in_force import InForce, differing, rule_of_nodes, setting_draft
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Reproducer
from ddp_doctor.remedies.kinds import NO_TRIAL, set_to, unset
from ddp_doctor.settings.effects import out_of_range, scope
from ddp_doctor.settings.interactions import conflicts, disagreeing, silenced
from ddp_doctor.settings.releases import default_at
from ddp_doctor.settings.table import variables
from ddp_doctor.settings.trials import read_by
from ddp_doctor.settings.values import misread
from ddp_doctor.settings.wording import shown
from ddp_doctor.views import settings_read
from ddp_doctor.views.forbidden_ways import settings_told
from ddp_doctor.views.settings_read import MisreadValue
from ddp_doctor.wording.nodes import name_list

#: The types in the table whose values are numbers or switches.
_NUMBERS = ("bool", "int", "size", "flag", "switch", "strict_bool", "strict_int", "python_int")


@rule_of_nodes("DD121", "value-read-otherwise", Consequence.RISK)
def value_read_otherwise(node: InForce) -> Iterator[Draft]:
    """A value does not do what it seems to say.

    Finds: NCCL_IB_DISABLE=true (read as 0), NCCL_BUFFSIZE=4M (4 bytes), NCCL_P2P_LEVEL=sys (ignored),
        NCCL_DEBUG_FILE with %r, patterns in interface names, quotes that became part of the value. Information if
        the value is empty, or if it affects only logs.
    Why: The library silently uses another value, or its default.
    Remedy: Unset a misread number or switch, unless you intend its apparent meaning; write names as the library
        reads them.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    reported = {name for found in conflicts(node.env, ()) if found.fails(()) for name in found.names}
    for value in settings_read.misread_values(node.env, node.installed):
        if value.found.fate == "misread" and value.variable.name not in reported:
            yield _value(value, Severity.INFO if value.found.harmless else None)


@rule_of_nodes("DD122", "value-refused", Consequence.FAILS)
def value_refused(node: InForce) -> Iterator[Draft]:
    """A value makes torch, gloo or torchrun stop.

    Finds: TORCH_NCCL_BLOCKING_WAIT=on, TORCH_DISTRIBUTED_DEBUG=1, GLOO_SOCKET_IFNAME=^lo, LOGLEVEL=debug. A warning
        if only torchrun, or another backend than this run's, reads it.
    Why: The job ends before its first step, or hangs in init_process_group (TORCH_FR_BUFFER_SIZE=many).
    Remedy: Unset the variable, or use an accepted value.
    See: torch/csrc/distributed/c10d/Utils.hpp, getCvarBool and getCvarInt
    """
    for value in settings_read.misread_values(node.env, node.installed):
        if value.found.fate != "misread":
            sure = value.stops(node.backend)
            draft = _value(value, None if sure else Severity.WARNING)
            if sure and read_by(value.variable.name) == node.backend:  # ranks fail to connect, which trials can show
                remedies = tuple(remedy.model_copy(update={"proof": NO_TRIAL}) for remedy in draft.remedies)
                draft = draft.model_copy(update={"remedies": remedies, "reproduced_by": Reproducer(kind="meet")})
            yield draft


def _value(wrong: MisreadValue, severity: Severity | None) -> Draft:
    variable, value, found = wrong.variable, wrong.value, wrong.found
    name = variable.name
    if found.instead is None:
        remedies = [unset({name: value}, found.becomes, f"Unset {name} or set a valid value")]
    elif variable.type in _NUMBERS:  # the intended effect never applied: offer the value in use first
        meant = f"Set {shown(name, found.instead)} only if that was intended"
        remedies = [unset({name: value}, found.becomes), set_to(name, found.instead, found.why, (name, value), meant)]
    else:
        remedies = [set_to(name, found.instead, found.why, (name, value))]
    when = f" It is read by: {variable.read_when}." if variable.read_when else ""
    saw = shown(name, value)
    return setting_draft(
        (name,), f"{saw} {found.becomes}", saw, variable.source, *remedies, detail=found.why + when, severity=severity
    )


@rule_of_nodes("DD115", "setting-without-effect-beside-another", Consequence.NO_EFFECT)
def setting_without_effect_beside_another(node: InForce) -> Iterator[Draft]:
    """Settings have no effect because another setting is set or missing.

    Finds: NCCL_P2P_LEVEL with NCCL_P2P_DISABLE=1, NCCL_IB_* with NCCL_IB_DISABLE=1 or NCCL_NET=Socket,
        NCCL_SOCKET_NTHREADS and NCCL_IB_* with AWS's plug-in, NCCL_DEBUG_SUBSYS without NCCL_DEBUG=INFO. Not
        reported if another rule recommends removing the stronger setting.
    Why: Someone relies on one of the two, and NCCL does not warn.
    Remedy: Decide which one you need, and unset the other.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    reported = settings_told(node.recording)
    told = set[str]()
    for row, idle_names in silenced(node.values):
        idle = (name for name in idle_names if name not in told)
        names = tuple(name for name in idle if misread(name, node.values[name], node.nccl) is None)
        if row.name in reported or not names:
            continue
        told.update(names)
        pairs = node.listed((*([row.name] if row.name in node.values else []), *names))
        verb = "has" if len(names) == 1 else "have"
        lacking = row.needed and not node.values.get(row.name)
        value = shown(row.name, node.values.get(row.name, ""))
        beside = f"unless {row.name} is set" if lacking else f"while {value} is set"
        yield setting_draft(
            names,
            f"{name_list(names)} {verb} no effect {beside}",
            pairs,
            row.source,
            node.without(names, "no effect"),
            *([] if row.needed or row.about == "plugin" else [node.without([row.name], "disables the other settings")]),
            detail=row.why,
        )


@rule_of_nodes("DD116", "settings-contradict-each-other", Consequence.RISK)
def settings_contradict_each_other(node: InForce) -> Iterator[Draft]:
    """Settings contradict each other, or leave NCCL no way to work.

    Finds: Minimums above maximums, more sockets than allowed, P2P and shared memory both off. An error if NCCL must
        fail: NCCL_NET=IB with NCCL_IB_DISABLE=1, an NCCL_ALGO or NCCL_PROTO that leaves a collective of DDP without
        an algorithm (since 2.24, NCCL_ALGO=Tree does). Not reported if the topology rules report the cost of
        disabling P2P and shared memory.
    Why: NCCL fails in init or in the first collective, or silently uses one of the two.
    Remedy: Unset one of them.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    differ = differing(node.recording)
    for found in conflicts(node.values, node.nccl):
        if differ.intersection(found.names):
            continue
        if scope(found.names[0]) == "paths" and (node.hardware.matrix or (node.hardware.gpus or 2) < 2):
            continue
        fails = found.fails(node.nccl)
        severity = Severity.ERROR if node.backend in ("nccl", "") else Severity.WARNING  # other backends do not read it
        yield setting_draft(
            found.names,
            f"{node.listed(found.names)} {found.says}",
            node.listed(found.names),
            found.source,
            *(node.without([name], found.says) for name in found.without),
            detail=found.why,
            severity=severity if fails else None,
            confidence=Confidence.PROVED if fails is not None else Confidence.POSSIBLE,
        )


@rule_of_nodes("DD117", "old-and-new-name-disagree", Consequence.RISK)
def old_and_new_name_disagree(node: InForce) -> Iterator[Draft]:
    """One setting has different values under its old and new names.

    Finds: TORCH_NCCL_* with its old name NCCL_*, NCCL_MAX_NCHANNELS with NCCL_MAX_NRINGS and similar pairs, with
        different effects.
    Why: The new name takes precedence, regardless of their order. Editing the old one has no effect.
    Remedy: Unset the old name.
    See: torch/csrc/distributed/c10d/Utils.hpp, getCvarString
    """
    for old, new in disagreeing(node.values, node.installed).items():
        yield setting_draft(
            (old,),
            f"{node.listed((old,))} is ignored: its newer name is set ({node.listed((new,))})",
            node.listed((new, old)),
            "torch/csrc/distributed/c10d/Utils.hpp and NCCL src/graph/connect.cc",
            node.without([old], f"{new} is set"),
            detail="Both names are the same setting, and the newer name wins.",
        )


@rule_of_nodes("DD118", "value-out-of-range", Consequence.RISK)
def value_out_of_range(node: InForce) -> Iterator[Draft]:
    """A number is outside the range of its setting.

    Finds: NCCL_IB_TIMEOUT above 31 (no timeout at all), NCCL_IB_RETRY_CNT above 7, NCCL_IB_TC above 255,
        NCCL_SOCKET_NTHREADS above 16, channels that NCCL does not have, modes that do not exist.
    Why: NCCL or the network card uses a different number, with little or no warning.
    Remedy: Use a number within the range, or unset the variable.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    for name, value in node.values.items():
        known = out_of_range(name, node.values, node.nccl)
        wrong = misread(name, value, node.nccl)
        if known is not None and (wrong is None or wrong.harmless):
            variable = variables()[name]
            default = (default_at(variable, node.nccl) if node.nccl else variable.default) or ""
            # Not the largest if there is a default: NCCL_IB_TIMEOUT=31 waits for hours.
            number, why = (default, "the default") if default.isdecimal() else (str(known.most), "the maximum")
            within = set_to(name, number, why, (name, value), f"Set {shown(name, number)} ({why})")
            yield setting_draft(
                (name,),
                f"{shown(name, value)} {known.says}",
                node.listed([name]),
                known.row.source,
                node.without([name], "out of range"),
                *([within] if value.strip().isdecimal() and int(value) > known.most else []),
                detail=known.row.beyond,
                severity=Severity.INFO if known.row.mild else None,
            )
