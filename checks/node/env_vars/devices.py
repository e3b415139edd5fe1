"""DD105-DD107: settings that name an interface or an RDMA device that is not here, or two networks."""

from collections.abc import Iterable, Iterator
from functools import partial

from ddp_doctor.checks.node.env_vars.in_force import InForce, drafts_per_cause, setting_draft
from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.interfaces import InterfacesFact
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.knowledge.network import nccl_hca
from ddp_doctor.knowledge.network.interface_choice import GLOO_IFNAME, NCCL_IFNAME, Choice, nccl_matcher
from ddp_doctor.knowledge.network.nccl_hca import HCA
from ddp_doctor.model.choices import Confidence, Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.remedies.kinds import unset
from ddp_doctor.settings.values import misread
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.network import chosen
from ddp_doctor.wording.nodes import by_cause, name_list, node_culprits, node_names

_INTERFACES_SHOWN = 8
_READERS = ((GLOO_IFNAME, "gloo"), (NCCL_IFNAME, "nccl"))
_DOCS = "NCCL src/misc/socket.cc, ncclFindInterfaces; torch ProcessGroupGloo.cpp, createDefaultDevice"


@rule("DD105", "setting-names-absent-interface", Severity.ERROR, InterfacesFact)
def absent_interface(recording: Recording) -> Iterator[Draft]:
    """NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME leaves its backend no interface of this machine.

    What it finds
        By NCCL's grammar (prefixes, =, ^) and gloo's (exact names): no running interface with an address. A
        warning where NCCL is the run's backend and gloo finds none, information the other way round. Between
        nodes DD521 tells of the run's own backend, and where ranks were started what became of them does.

    Why it matters
        The process group of that backend cannot start. NCCL jobs make gloo groups too: for barriers with a
        time-out, for objects, for checkpoints.

    Remedy
        An interface that is here, or no setting.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-socket-ifname
    """
    world = recording.world
    if world is None or recording.options.command == "prolog":
        return
    matters = recording.trials or world.nnodes > 1
    for name, backend in _READERS:
        own = backend == world.backend
        if own and matters:
            continue
        severity = None if own else Severity.WARNING if backend == "gloo" else Severity.INFO
        groups = by_cause(recording.facts(InterfacesFact), partial(_absent, name, backend))
        for (value, error), group in groups.items():
            other = None if own else world.backend
            yield _absent_draft(recording, group, (name, value, backend, other), error, severity)


def _absent(name: str, backend: str, fact: InterfacesFact) -> tuple[str, str] | None:
    """The value, and why it leaves no interface."""
    choice: Choice = chosen(fact, backend)
    value = fact.settings.get(name, "")
    wrong = misread(name, value) if value else None
    if choice.error is None or choice.setting != name or (wrong and not wrong.harmless):
        return None
    return value, choice.error


def _absent_draft(
    recording: Recording,
    group: list[FactAt[InterfacesFact]],
    setting: tuple[str, str, str, str | None],
    error: str,
    severity: Severity | None,
) -> Draft:
    name, value, backend, other = setting
    here = [
        interface.name for interface in group[0].fact.interfaces if interface.running and interface.addresses
    ]
    more = f" and {len(here) - _INTERFACES_SHOWN} more" if len(here) > _INTERFACES_SHOWN else ""
    return Draft(
        title=f"{shown(name, value)} leaves no interface of {node_names(recording, group)}: {error}",
        detail=f"This run's backend is {other}: it does not read {name}. A process group of {backend} could not start."
        if other
        else "The process group of that backend cannot start with it.",
        confidence=Confidence.PROVED,
        culprits=tuple(
            culprit.model_copy(update={"kind": "setting", "name": name})
            for culprit in node_culprits(recording, group)
        ),
        evidence=(
            Evidence(
                check="interfaces",
                text=f"running, with an address: {', '.join(here[:_INTERFACES_SHOWN]) or 'none'}{more}",
                expected_from=_DOCS,
            ),
        ),
        remedies=(unset({name: value}, "no such interface here"),),
        severity=severity,
    )


@rule("DD106", "setting-names-absent-rdma-device", Severity.INFO, EnvVars)
def absent_device(recording: Recording) -> Iterator[Draft]:
    """NCCL_IB_HCA names devices that this machine does not have, where that does no harm yet.

    What it finds
        A name in it that no RDMA device has or begins with, in a run of one node or of another backend; and any
        on a machine without RDMA devices. In an NCCL job of several nodes with RDMA DD571 tells.

    Why it matters
        NCCL says nothing: a job of several nodes takes the devices that do match, or TCP.

    Remedy
        The names that the node has, or no setting.

    References
        https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-ib-hca
    """
    facts = {node.node: node.fact for node in recording.facts(RdmaFact)}
    world = recording.world
    several = world is not None and world.backend == "nccl" and max(world.nnodes, world.foreign_nodes) > 1

    def judge(node: InForce) -> Iterator[Draft]:
        fact = facts.get(node.seen.node)
        if (fact is None and node.hardware.rdma is not False) or (fact is not None and several):
            return
        missing = _missing(node.values.get(HCA, ""), [hca.name for hca in fact.hcas] if fact else [])
        if missing:
            here = name_list([hca.name for hca in fact.hcas]) if fact and fact.hcas else "none"
            yield setting_draft(
                (HCA,),
                f"{shown(HCA, node.values[HCA])} names {name_list(missing)}, which this machine does not have",
                f"RDMA devices here: {here}",
                "NCCL src/transport/net_ib/init.cc and src/misc/utils.cc, matchIfList",
                node.without([HCA], "NCCL finds active ports itself"),
                detail="A job of several nodes takes what does match, or TCP, without a word.",
            )

    return drafts_per_cause(recording, judge)


def _missing(value: str, names: list[str]) -> list[str]:
    if not value or nccl_hca.is_exclusion(value):
        return []
    exact = nccl_hca.is_exact(value)
    return [
        word
        for word, _ in nccl_hca.entries(value)
        if not any(name == word if exact else name.startswith(word) for name in names)
    ]


@rule("DD107", "gloo-and-nccl-use-different-interfaces", Severity.INFO, EnvVars)
def different_networks(recording: Recording) -> Iterable[Draft]:
    """GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name different interfaces.

    What it finds
        An interface in the one that the other does not allow, unless the run has one node. It is often meant: a
        slow network for gloo, a fast one for NCCL.

    Why it matters
        Both must reach all nodes. A firewall or a route that is right for one network need not be for the other,
        and a job that uses both backends fails in the one that nobody tested.

    Remedy
        None where it is meant.

    References
        https://docs.pytorch.org/docs/stable/distributed.html
    """
    return drafts_per_cause(recording, _two_interfaces)


def _two_interfaces(node: InForce) -> Iterator[Draft]:
    gloo, nccl = node.values.get(GLOO_IFNAME, ""), node.values.get(NCCL_IFNAME, "")
    if (
        node.nnodes == 1
        or not gloo
        or len(nccl) < 2
        or misread(GLOO_IFNAME, gloo)
        or misread(NCCL_IFNAME, nccl)
    ):
        return
    if not any(nccl_matcher(nccl)(name) for name in gloo.split(",") if name):
        names = (GLOO_IFNAME, NCCL_IFNAME)
        yield setting_draft(
            names,
            f"gloo and NCCL are told to use different interfaces: {node.listed(names)}",
            node.listed(names),
            "gloo takes exact names, NCCL prefixes: torch ProcessGroupGloo.cpp, NCCL src/misc/utils.cc",
            detail="Both networks must reach all nodes.",
            confidence=Confidence.LIKELY,
        )
