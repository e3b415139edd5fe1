"""DD105-DD107: settings that name a missing interface or RDMA device, or two networks."""

from collections.abc import Iterator
from functools import partial

from ddp_doctor.checks.node.env_vars.in_force import InForce, rule_of_nodes, setting_draft
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.interface_choice import GLOO_IFNAME, NCCL_IFNAME, Choice
from ddp_doctor.knowledge.network.nccl_hca import HCA
from ddp_doctor.model.choices import Confidence, Consequence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.interfaces import backend_name
from ddp_doctor.remedies.kinds import unset
from ddp_doctor.settings.values import misread
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.network import chosen
from ddp_doctor.wording.findings import proved
from ddp_doctor.wording.nodes import by_cause, first_names, host, name_list, node_culprit, node_names

_INTERFACES_SHOWN = 8
_READERS = ((GLOO_IFNAME, "gloo"), (NCCL_IFNAME, "nccl"))
_DOCS = "NCCL src/misc/socket.cc, ncclFindInterfaces; torch ProcessGroupGloo.cpp, createDefaultDevice"


@rule("DD105", "setting-names-absent-interface", Consequence.FAILS, InterfacesFact)
def setting_names_absent_interface(recording: Recording) -> Iterator[Draft]:
    """NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names no interface that this machine can use.

    Finds: No running interface with an address matches, by NCCL's grammar (prefixes, =, ^) or gloo's (exact names).
        A warning if gloo finds none and the run uses NCCL, information in the opposite case. For the run's own
        backend, DD521 reports it between nodes, and the rank tests report it if ranks started.
    Why: The process group of that backend cannot start. NCCL jobs also create gloo groups for barriers with a
        timeout, objects and checkpoints.
    Remedy: Name an interface of this machine, or unset the variable.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    world = recording.world
    if world is None or recording.command.is_of_root:
        return
    matters = recording.trials or world.nnodes > 1
    for name, backend in _READERS:
        own = backend == world.backend
        if own and matters:
            continue
        severity = None if own else Severity.WARNING if backend == "gloo" else Severity.INFO
        detail = "Every rank would fail in init_process_group()."
        if not own:
            uses = "This run uses" if recording.trials else "Ranks here would use"
            detail = f"{uses} {backend_name(world.backend)}, which does not read {name}."
        groups = by_cause(recording.facts(InterfacesFact), partial(_absent, name, backend))
        for (value, error, missing), group in groups.items():
            first = group[0]
            names = [there.name for there in first.fact.interfaces if there.running and there.addresses]
            usable = first_names(names, _INTERFACES_SHOWN) or "none"
            nodes = node_names(recording, group)
            fails = f"{backend_name(backend)} cannot start with {shown(name, value)}"
            title = f"{nodes}: {fails}: {error}"
            if missing:
                has, it = ("has", "it") if len(group) == 1 else ("have", host(recording, first.node))
                title = f"{nodes} {has} no interface {' or '.join(map(repr, missing))} ({it} has {usable}): {fails}"
            yield proved(
                (node_culprit(recording, node.node, kind="setting", name=name) for node in group),
                title,
                Evidence(check="interfaces", text=f"running, with an address: {usable}", expected_from=_DOCS),
                unset({name: value}, "no such interface here"),
                detail=detail,
                severity=severity,
            )


def _absent(name: str, backend: str, fact: InterfacesFact) -> tuple[str, str, tuple[str, ...]] | None:
    """Return a setting's value that matches no interface, the reason, and the unmatched names."""
    choice: Choice = chosen(fact, backend)
    value = fact.settings.get(name, "")
    wrong = misread(name, value) if value else None
    if choice.error is None or choice.setting != name or (wrong and not wrong.harmless):
        return None
    return value, choice.error, _not_there(value, backend, fact)


def _not_there(value: str, backend: str, fact: InterfacesFact) -> tuple[str, ...]:
    """Return the names in the setting without an interface. NCCL needs one of them, gloo all."""
    names = [interface.name for interface in fact.interfaces]
    wanted = () if value.startswith("^") else value.removeprefix("=").split(",")
    if backend == "gloo":
        return tuple(name for name in wanted if name and name not in names)
    return () if any(nccl_hca.takes(value, name) for name in names) else tuple(filter(None, wanted))


@rule_of_nodes("DD106", "setting-names-absent-rdma-device", Consequence.NO_EFFECT)
def setting_names_absent_rdma_device(node: InForce) -> Iterator[Draft]:
    """NCCL_IB_HCA names devices that this machine does not have, without effect on this run.

    Finds: A name in NCCL_IB_HCA that matches no RDMA device exactly or as a prefix, in a run of one node or of
        another backend; any name on a machine without RDMA devices. DD571 reports NCCL jobs of several nodes with
        RDMA.
    Why: NCCL does not warn: a job of several nodes uses the devices that match, or TCP.
    Remedy: Name devices of this node, or unset the variable.
    See: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    facts = node.recording.at(RdmaFact, node.seen.node)
    several = node.backend == "nccl" and (node.nnodes or 1) > 1
    if several if facts else node.hardware.rdma is not False:
        return
    names = [hca.name for fact in facts for hca in fact.hcas]
    missing = nccl_hca.absent(node.values.get(HCA, ""), names)
    if missing:
        yield setting_draft(
            (HCA,),
            f"{HCA} matches no RDMA device of this host: {name_list(missing)}",
            f"{shown(HCA, node.values[HCA])}; RDMA devices of this host: {name_list(names) or 'none'}",
            "NCCL src/transport/net_ib/init.cc and src/misc/utils.cc, matchIfList",
            node.without([HCA], "NCCL finds active ports by itself"),
            detail="NCCL does not warn. Between nodes it uses the devices that match, or TCP.",
        )


@rule_of_nodes("DD107", "gloo-and-nccl-use-different-interfaces", Consequence.KNOWN)
def gloo_and_nccl_use_different_interfaces(node: InForce) -> Iterator[Draft]:
    """GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name different interfaces.

    Finds: No interface that both settings allow, unless the run has one node. This is often intended: a slow
        network for gloo, a fast one for NCCL.
    Why: Both networks must reach all nodes. A firewall or route may be right for only one of them, and a job that
        uses both backends fails in the untested one.
    Remedy: No change is needed if this is intended.
    See: https://docs.pytorch.org/docs/stable/distributed.html
    """
    gloo, nccl = node.values.get(GLOO_IFNAME, ""), node.values.get(NCCL_IFNAME, "")
    if node.nnodes == 1 or not gloo or len(nccl) < 2 or misread(GLOO_IFNAME, gloo) or misread(NCCL_IFNAME, nccl):
        return
    if not any(nccl_hca.takes(nccl, name) for name in gloo.split(",") if name):
        names = (GLOO_IFNAME, NCCL_IFNAME)
        yield setting_draft(
            names,
            f"gloo and NCCL use different interfaces: {node.listed(names)}",
            node.listed(names),
            "gloo takes exact names, NCCL prefixes: torch ProcessGroupGloo.cpp, NCCL src/misc/utils.cc",
            detail="Both networks must reach all nodes.",
            confidence=Confidence.LIKELY,
        )
