"""DD123-DD125: values that work as intended but cost time or risk the job's data."""

from collections.abc import Iterator

from ddp_doctor.checks.node.env_vars.hosts import is_shared_host_id
from ddp_doctor.checks.node.env_vars.in_force import InForce, differing, rule_of_nodes, setting_draft
from ddp_doctor.knowledge.topology.nccl_paths import GDR_LEVEL
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Proof, Reproducer
from ddp_doctor.remedies.kinds import NO_TRIAL
from ddp_doctor.settings.effects import (
    MANY_RANKS,
    effects,
    has_the_efa_plugin,
    is_a_choice,
    is_needed_by_a_plugin,
    logs_each_call,
    said_for_plugin,
    scope,
)
from ddp_doctor.settings.interactions import PROTOCOLS, conflicts, ib_is_off, left, newer_names, silenced
from ddp_doctor.settings.releases import status_at
from ddp_doctor.settings.table import Effect, Scope, variables
from ddp_doctor.settings.values import misread
from ddp_doctor.views.network import staged

#: Large enough to measure bandwidth, and quick on any link of a GPU node.
_REPRODUCER = Reproducer(kind="all_reduce", size_bytes=64 * 2**20)
_STEP = Proof(reason="its cost shows in the job's steps, not in one collective")
_AT_RANDOM = Proof(reason="its fault is random, and a short trial cannot show it")


@rule_of_nodes("DD123", "debugging-setting-left-on", Consequence.COST)
def debugging_setting_left_on(node: InForce) -> Iterator[Draft]:
    """A debugging setting slows every step of the job.

    Finds: CUDA_LAUNCH_BLOCKING=1, TORCH_DISTRIBUTED_DEBUG=DETAIL, NCCL_DEBUG=TRACE, NCCL_DEBUG=INFO with the
        subsystem COLL, CALL or ALL. Information if it costs little; other uses of NCCL_DEBUG=INFO only with many
        ranks.
    Why: Such settings stay in scripts and images after debugging. Kernels no longer overlap with communication, or
        every rank checks or logs each collective.
    Remedy: Unset it, unless you are debugging.
    See: https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications
    """
    if node.recording.command.is_of_root:
        return  # the job's settings do not exist yet
    differ = differing(node.recording)
    logs_calls = logs_each_call(node.values)
    for name, effect in _effects_of_kind(node, "debug"):
        if name == "NCCL_DEBUG_SUBSYS" or name in differ:  # reported with NCCL_DEBUG, which it needs
            continue
        if name == "NCCL_DEBUG" and effect.mild and not logs_calls and (node.ranks or MANY_RANKS) < MANY_RANKS:
            continue
        names = (name, "NCCL_DEBUG_SUBSYS") if name == "NCCL_DEBUG" and logs_calls else (name,)
        yield setting_draft(
            names,
            f"Debugging setting is still active: {node.listed(names)}",
            node.listed(names),
            effect.source,
            node.without(names, "for debugging", proof=_STEP),
            detail="Every rank logs a line for every collective." if len(names) > 1 else effect.why,
            severity=Severity.INFO if effect.mild and len(names) == 1 else None,
        )


@rule_of_nodes("DD124", "old-cure-left-on", Consequence.COST)
def old_cure_left_on(node: InForce) -> Iterator[Draft]:
    """A debugging setting that disables a fast path is still set.

    Finds: NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1, NCCL_SHM_DISABLE=1, NCCL_NET_GDR_LEVEL=LOC, NCCL_NVLS_ENABLE=0,
        few channels, small buffers, NCCL_PROTO=LL. Information for an NCCL_ALGO or NCCL_PROTO that may be intended.
        Not reported if the machine has no such path to lose, if a plug-in needs the setting, or if the rules on
        paths (DD434) and RDMA (DD436) report it.
    Why: The setting is a diagnosis, not a fix. It was right on one machine with one release, and is copied from
        script to script for years.
    Remedy: Unset it and measure again. If the fault returns, fix the fault.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    if node.recording.command.is_of_root:
        return
    forbids = any(found.forbidding_level for found in staged(node.recording))  # DD437 reports it
    reported = differing(node.recording) | ({GDR_LEVEL} if forbids else set())
    elsewhere = {name for found in conflicts(node.values, node.nccl) for name in found.names}
    elsewhere |= reported | {name for name, _ in _effects_of_kind(node, "unsafe") if _risks(node, name)}
    for name, effect in _effects_of_kind(node, "slows"):
        if name in elsewhere or not _machine_has_what_it_gives_up(node, name):
            continue
        unread = node.backend not in ("nccl", "")
        spares = scope(name) == "nvls" and node.hardware.gpus is None  # memory; some users set it for that
        mild = effect.mild or is_a_choice(name, node.values[name]) or unread or spares
        needed = variables()[name].needed_for
        cost = needed or "a hang or wrong data may return if it was set to prevent them"
        unset = f"Unset {name}{', unless the job needs it' if needed else ''}, then measure again"
        without = node.without([name], "NCCL then chooses by itself", unset, NO_TRIAL)
        yield setting_draft(
            (name,),
            f"{node.listed([name])} {'may slow' if needed else 'slows'} the job",
            node.listed([name]),
            effect.source,
            without.model_copy(update={"cost": cost}),
            detail=said_for_plugin(name, node.values)
            or f"{effect.why} {needed or 'If it was set to avoid a fault, that fault still exists'}.",
            severity=Severity.INFO if mild else None,
            confidence=Confidence.POSSIBLE if node.hardware.gpus is None else Confidence.LIKELY,
        ).model_copy(update={"reproduced_by": _REPRODUCER if node.backend == "nccl" else None})


def _machine_has_what_it_gives_up(node: InForce, name: str) -> bool:
    here, of, alone = node.hardware, scope(name), node.nnodes == 1
    costs_rdma = here.rdma is not False
    if node.nnodes is not None:  # in a run, DD436 evaluates the known ports
        costs_rdma = node.nnodes > 1 and here.rdma is here.gpus is None
    if is_needed_by_a_plugin(name, node.values) or (of != "job" and here.gpus == 0):
        return False
    leaves_none_out = name == "NCCL_PROTO" and left(node.values[name], "AllReduce", PROTOCOLS) == PROTOCOLS
    tests: dict[Scope, bool] = {
        "job": True,
        "paths": not here.matrix and here.gpus != 1,  # DD434 evaluates the matrix
        "rdma": costs_rdma and not has_the_efa_plugin(node.values),
        "gpudirect": not alone and here.rdma is not False and not ib_is_off(node.values),
        "network": not alone,
        "nvls": bool(here.nvls) if here.gpus is not None else here.nvls is not False,
        "collectives": not (alone and here.gpus == 1) and not leaves_none_out,
    }
    return tests[of]


@rule_of_nodes("DD125", "setting-risks-wrong-data-or-hangs", Consequence.RISK)
def setting_risks_wrong_data_or_hangs(node: InForce) -> Iterator[Draft]:
    """A setting can cause wrong data, or lets a fault hang the job.

    Finds: NCCL_PROTO that forces LL128 when NCCL would not choose it (other links than NVLink, GPUs before Volta or
        of different generations), disabled checks and handlers, NCCL_COMM_ID in a torch job.
    Why: Wrong gradients look like a bad model. If a rank dies without a handler, the others keep waiting.
    Remedy: Unset it.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-proto
    """
    if node.recording.command.is_of_root:
        return
    differ = differing(node.recording)
    for name, effect in _effects_of_kind(node, "unsafe"):
        if name in differ or not _risks(node, name) or is_shared_host_id(node.recording, name):
            continue
        unknown = name == "NCCL_PROTO" and node.hardware.ll128 is None and node.hardware.gpus is not None
        unread = node.backend not in ("nccl", "") and name.startswith(("NCCL_", "TORCH_NCCL_"))
        yield setting_draft(
            (name,),
            f"{node.listed([name])} can cause wrong data or hangs",
            node.listed([name]),
            effect.source,
            node.without([name], "unsafe", proof=_AT_RANDOM),
            detail=effect.why,
            severity=Severity.INFO if effect.mild or unknown or unread else None,
            confidence=Confidence.POSSIBLE if node.hardware.gpus is None else Confidence.LIKELY,
        )


def _risks(node: InForce, name: str) -> bool:
    here = node.hardware
    if name == "NCCL_PROTO":
        return (
            here.ll128 is not True
            and (here.gpus is None or here.gpus > 1)
            and not is_needed_by_a_plugin(name, node.values)
        )
    if scope(name) == "gpudirect":
        return node.nnodes != 1 and here.rdma is not False and here.gpus != 0
    return not (name.startswith(("NCCL_", "TORCH_NCCL_")) and here.gpus == 0)


def _effects_of_kind(node: InForce, kind: str) -> Iterator[tuple[str, Effect]]:
    """Yield settings with an effect of this kind, except misread, unread and ineffective ones."""
    idle_names = {idler for _, idlers in silenced(node.values) for idler in idlers}
    for name, value in node.values.items():
        found = next((effect for effect in effects(name, value) if effect.kind == kind), None)
        if found is None or name in idle_names or newer_names().get(name) in node.values:
            continue
        known, wrong = variables()[name], misread(name, value)
        at = node.installed.of(known)
        if (wrong is None or wrong.harmless) and (not at or status_at(known, at) == "read"):
            yield name, found
