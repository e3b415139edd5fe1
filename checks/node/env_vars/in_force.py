"""The settings in force on each node, their effect on its hardware, and the findings about them."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import wraps
from itertools import combinations

from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.facts.node.nccl import NcclFact
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.topology.link_codes import DEFAULT_P2P_LIMIT, allowed, nvlinks
from ddp_doctor.knowledge.topology.nccl_paths import bridged
from ddp_doctor.knowledge.versions import Version, release
from ddp_doctor.model.choices import Confidence, Consequence, Severity, Status
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Proof, Remedy, Setting
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.model.rule import Rule, RuleFunction, rule
from ddp_doctor.remedies.kinds import FOLLOWS, NO_TRIAL, unset
from ddp_doctor.settings.nccl_conf import files_read, set_by_files
from ddp_doctor.settings.releases import Installed
from ddp_doctor.settings.table import variables
from ddp_doctor.settings.values import is_ignored
from ddp_doctor.settings.wording import shown
from ddp_doctor.views.settings_read import installed, judged, read_by_another_backend, with_rccl
from ddp_doctor.views.software import nccl_backends
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import node_culprits, node_names

#: The maximum number of values in the evidence if the nodes' values differ.
VALUES_SHOWN = 8


def setting_draft(
    names: Iterable[str],
    title: str,
    text: str,
    expected_from: str,
    *remedies: Remedy,
    detail: str = "",
    severity: Severity | None = None,
    confidence: Confidence = Confidence.PROVED,
) -> Draft:
    """Return a finding about variables on one or more nodes; ``text`` is the evidence."""
    return finding(
        (Culprit(kind="setting", name=name) for name in names),
        title,
        Evidence(text=text, expected_from=expected_from),
        *remedies,
        confidence=confidence,
        detail=detail,
        severity=severity,
    )


def _on_nodes(recording: Recording, alike: Mapping[Draft, list[FactAt[EnvVars]]]) -> Draft:
    """Merge drafts about the same variables into one that names their nodes, with the first draft's text."""
    (draft, group), *more_drafts = alike.items()
    others = [node for _, nodes in more_drafts for node in nodes]
    culprits = tuple(
        node.model_copy(update={"kind": culprit.kind, "name": culprit.name})
        for node in node_culprits(recording, [*group, *others])
        for culprit in draft.culprits
    )
    title, evidence = draft.title, draft.evidence
    if recording.several_nodes:
        also = f"; similar on {node_names(recording, others)}" if others else ""
        where = f"on {node_names(recording, group)}{also}"
        title = f"{title} {where}" if title.endswith(")") and not also else f"{title} ({where})"
    if others:
        evidence = tuple(
            evidence_here.model_copy(update={"text": f"{node_names(recording, of_draft)}: {evidence_here.text}"})
            for draft_here, of_draft in list(alike.items())[:VALUES_SHOWN]
            for evidence_here in draft_here.evidence
        )
    return draft.model_copy(update={"title": title, "culprits": culprits, "evidence": evidence})


#: NVLink SHARP and LL128 over a NIC behind another GPU require Hopper or newer (NCCL user guide, NCCL_NVLS_ENABLE).
_HOPPER = (9, 0)
#: LL128 requires Volta or newer (NCCL src/graph/tuning.cc).
_VOLTA = (7, 0)


@dataclass(frozen=True)
class Hardware:
    """The hardware of a node; None means not checked or unknown."""

    gpus: int | None = None  # of the job
    nvls: bool | None = None  # NVSwitches that can reduce
    rdma: bool | None = None  # active ports that NCCL's own transport drives
    matrix: bool = False  # the paths are known, so the rules about paths apply
    ll128: bool | None = None  # NCCL uses LL128 by default


def hardware_of(recording: Recording, node: int) -> Hardware:
    """Return the hardware that the node's readings show."""
    topology = next(iter(recording.at(TopologyFact, node)), None)
    gpus = next(iter(recording.at(GpusFact, node)), None)
    rdma = next(iter(recording.at(RdmaFact, node)), None)
    cards = gpus.of_the_job() if gpus else ()
    job = _gpus_of_job(topology)
    count = len(cards) if gpus and not gpus.nvml_error else len(job) if topology else None
    if count is None and node in _nodes_without(recording, "topology"):
        count = 0
    able = [gpu for gpu in cards if gpu.fabric_state == "completed" and _capability(gpu) >= _HOPPER]
    return Hardware(
        gpus=count,
        nvls=len(able) > 1 if cards else None,
        rdma=bool(rdma.candidates()) if rdma else False if node in _nodes_without(recording, "rdma") else None,
        matrix=topology is not None,
        ll128=_is_ll128_safe(recording, topology, cards) if topology and topology.nvlink_told and cards else None,
    )


@once_a_recording
def _nodes_without(recording: Recording, subject: str) -> set[int]:
    """Return the nodes without the hardware of this check."""
    return {reading.node for reading in recording.of_check(subject) if reading.status is Status.ABSENT}


def _gpus_of_job(topology: TopologyFact | None) -> tuple[str, ...]:
    if topology is None:
        return ()
    mine = topology.job_gpus if topology.job_gpus is not None else topology.gpus
    return tuple(gpu for gpu in mine if gpu in topology.links and gpu not in topology.mig_gpus)


def _capability(gpu: Gpu) -> tuple[int, ...]:
    return release(gpu.compute_capability or "")


def _is_ll128_safe(recording: Recording, topology: TopologyFact, cards: tuple[Gpu, ...]) -> bool | None:
    """Return whether NCCL uses LL128 by default (src/graph/tuning.cc), or None if unknown."""
    kinds = {_capability(gpu) for gpu in cards}
    if () in kinds:
        return None
    if min(kinds) < _VOLTA or (len(kinds) > 1 and min(kinds) < _HOPPER):
        return False
    job, links = _gpus_of_job(topology), topology.links
    far = [
        (a, b) for a, b in combinations(job, 2) if not nvlinks(links[a].get(b, "")) and not bridged(job, links, a, b)
    ]
    if far:
        return False
    if not recording.several_nodes:
        return True
    near = [
        any(allowed(links[gpu][nic], DEFAULT_P2P_LIMIT) for nic in topology.nics if nic in links[gpu]) for gpu in job
    ]
    if not topology.nics:  # a plug-in may have its own devices
        return None
    return any(near) if min(kinds) >= _HOPPER else all(near)


@dataclass(frozen=True)
class InForce:
    """The settings of a node, and what decides their effect.

    ``places`` gives the file and line of settings from files: "/etc/nccl.conf:3". ``installed`` has the
    releases that decide which variables are read; ``backend`` is the run's, or "". ``unread`` are the settings that
    only torch's other class behind "nccl" reads: they have no effect.
    """

    recording: Recording
    seen: FactAt[EnvVars]
    values: Mapping[str, str]
    places: Mapping[str, str]
    installed: Installed
    unread: Mapping[str, str]
    backend: str
    nnodes: int | None
    ranks: int | None
    hardware: Hardware

    @property
    def env(self) -> Mapping[str, str]:
        """The environment without settings from files."""
        return self.seen.fact.variables

    @property
    def nccl(self) -> Version:
        """The release of NCCL that is loaded, or () if unknown."""
        return self.installed.nccl

    def listed(self, names: Iterable[str]) -> str:
        """Format settings: ``A=1, B=2 (/etc/nccl.conf:3)``."""
        return ", ".join(
            shown(name, self.values[name]) + (f" ({self.places[name]})" if name in self.places else "")
            for name in names
            if name in self.values
        )

    def without(self, names: Iterable[str], why: str, summary: str = "", proof: Proof | None = None) -> Remedy:
        """Remove these settings from the environment; if a file sets them, override them with the default."""
        pairs = {name: self.values[name] for name in names if name in self.values}
        in_files = {name: self.places[name] for name in pairs if name in self.places}
        if not in_files:
            return unset(pairs, why, summary, proof or FOLLOWS)
        return Remedy(
            summary=f"Remove {' and '.join(in_files)} from {' and '.join(dict.fromkeys(in_files.values()))}",
            settings=tuple(_overruled(name, why, in_files) for name in pairs),
            cost="breaks anything that relies on it; the environment overrides the file until it is corrected",
            undo="restore the line",
            proof=proof or NO_TRIAL,
        )

    def key(self) -> object:
        """The key that is equal for nodes with the same findings."""
        fact = self.seen.fact
        pairs = [frozenset(some.items()) for some in (self.values, self.places, self.unread, fact.unreadable)]
        return *pairs, fact.launcher, fact.in_kubernetes, fact.is_written, self.installed, self.hardware


def _overruled(name: str, why: str, in_files: Mapping[str, str]) -> Setting:
    known = variables().get(name)
    default = known.default if known else None
    if name not in in_files or default is None:
        return Setting(name=name, action="unset", why=why)
    return Setting(name=name, value=default, why=why)


@once_a_recording
def settings_of_nodes(recording: Recording) -> list[InForce]:
    """Yield the settings of each node, in node order."""
    found = []
    releases, rccl = installed(recording), with_rccl(recording)
    backends = nccl_backends(recording)
    environments = {node.node: node.fact.variables for node in recording.facts(EnvVars)}
    files = {node.node: node for node in recording.facts(NcclFact)}
    world = recording.world
    for seen in judged(recording):
        own = seen.fact.variables
        has_files = seen.node in files and seen.node not in rccl  # RCCL reads ~/.rccl.conf
        added = set_by_files(files_read(recording, files[seen.node])) if has_files else {}
        of_nccl = {name for name in added if name in variables() and variables()[name].owner == "nccl"}
        ours = {name: value for name, value in added.items() if name not in own and name in of_nccl}
        unread = {
            name: value
            for name, value in environments[seen.node].items()
            if read_by_another_backend(name, backends.get(seen.node))
        }
        values = {**own, **{name: value for name, (value, _) in ours.items()}}
        nccl = releases[seen.node].nccl
        found.append(
            InForce(
                recording=recording,
                seen=seen,
                values={name: value for name, value in values.items() if not is_ignored(name, value, nccl)},
                places={name: place for name, (_, place) in ours.items()},
                installed=releases[seen.node],
                unread=unread,
                backend=world.backend if world else "",
                nnodes=max(world.nnodes, world.foreign_nodes) if world else None,
                ranks=world.world_size if world else None,
                hardware=hardware_of(recording, seen.node),
            )
        )
    return found


#: A function that yields the findings about one node.
OfNode = Callable[[InForce], Iterable[Draft]]


def rule_of_nodes(code: str, name: str, consequence: Consequence, *needs: type[Fact]) -> Callable[[OfNode], Rule]:
    """Make a Rule from a function for one node, which may need facts (``needs``) in addition to its settings."""
    return lambda of_node: rule(code, name, consequence, EnvVars, *needs)(_one_per_cause(of_node))


def _one_per_cause(of_node: OfNode) -> RuleFunction:
    """Merge the drafts of all nodes: one draft about a variable, with the nodes that have it.

    A line of a job script applies to all nodes, and is one draft even if its values differ (RANK=0, RANK=1). Nodes
    with the same settings are evaluated once, because there may be thousands.
    """

    @wraps(of_node)
    def of_all(recording: Recording) -> Iterator[Draft]:
        known: dict[object, tuple[Draft, ...]] = {}
        groups: dict[Hashable, dict[Draft, list[FactAt[EnvVars]]]] = {}
        for node in settings_of_nodes(recording):
            key = node.key()
            if key not in known:
                known[key] = tuple(of_node(node))
            met: Counter[Hashable] = Counter()
            for draft in known[key]:
                names = tuple(culprit.name for culprit in draft.culprits)
                about = (names, draft.severity, draft.evidence[0].expected_from)
                groups.setdefault((about, met[about]), {}).setdefault(draft, []).append(node.seen)
                met[about] += 1
        yield from (_on_nodes(recording, alike) for alike in groups.values())

    return of_all


@once_a_recording
def differing(recording: Recording) -> frozenset[str]:
    """Return the settings that differ between nodes; the agreement check reports them."""
    sets = {frozenset(node.values.items()) for node in settings_of_nodes(recording)}
    return frozenset(name for pairs in sets for name, _ in pairs - frozenset.intersection(*sets))
