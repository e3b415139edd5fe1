"""What NCCL should use between GPUs and nodes, what it did use by its log, and which settings forbid a way.

DD434, DD436 and DD437 report the settings that forbid a way; the rules on settings leave them alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.facts.node.nccl_log import NcclTransportFact, Transport
from ddp_doctor.facts.node.rdma import RdmaFact
from ddp_doctor.facts.node.software import Software
from ddp_doctor.facts.node.topology import TopologyFact
from ddp_doctor.knowledge.topology import link_codes, link_rates, nccl_paths
from ddp_doctor.knowledge.versions import release
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import FactAt, Recording, once_a_recording
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.parse.nccl_log import parse_nccl_log, settings_in, version_in
from ddp_doctor.views.gpus import gpu_of

GpuPair = tuple[str, str]


@dataclass(frozen=True)
class Expected:
    """One pair of GPUs: its code, what NCCL should use, and how fast NCCL holds that to be."""

    gpus: GpuPair
    code: str
    choice: nccl_paths.Choice
    rate_gb_per_s: float | None


@dataclass(frozen=True)
class Used:
    """What the log says of one pair of GPUs, in the order of its lines, and the ranks on them."""

    gpus: GpuPair
    ranks: tuple[int, int]
    transports: tuple[Transport, ...]

    def kinds(self) -> frozenset[str]:
        """The kinds of transport that were set up between the two."""
        return frozenset(transport.kind for transport in self.transports)


@dataclass(frozen=True)
class Place:
    """What is known about one node: its matrix, its GPUs, its settings and its version of NCCL."""

    seen: FactAt[TopologyFact]
    gpus: Mapping[str, Gpu]
    node: nccl_paths.Node

    @property
    def fact(self) -> TopologyFact:
        """The matrix."""
        return self.seen.fact

    def expected(self, node: nccl_paths.Node | None = None) -> Iterator[Expected]:
        """Each pair, with these settings or, given a ``node``, with others."""
        node = node or self.node
        for first, second, code in self.fact.gpu_pairs():
            if {first, second} & set(self.fact.mig_gpus):
                continue  # a slice has no NVLink, and may be another's
            choice = nccl_paths.choose(node, self._pair(first, second, code))
            yield Expected((first, second), code, choice, self.rate((first, second), code, choice.kind))

    def _pair(self, first: str, second: str, code: str) -> nccl_paths.Pair:
        nics = [
            [self.fact.links[gpu][nic] for nic in self.fact.nics if nic in self.fact.links[gpu]]
            for gpu in (first, second)
        ]
        through = nccl_paths.bridged(self.fact.gpus, self.fact.links, first, second) > 0
        return nccl_paths.Pair(code, self.fact.p2p_status(first, second), through, nccl_paths.near(nics))

    def rate(self, pair: GpuPair, code: str, kind: nccl_paths.Kind) -> float | None:
        """The slowest part of the path, in one direction; None where a part is not known, and for the network."""
        if kind == "NET":
            return None
        links = link_codes.nvlinks(code) or nccl_paths.bridged(self.fact.gpus, self.fact.links, *pair)
        if links and kind == "P2P":
            return link_rates.slowest(self._nvlinks(gpu, links) for gpu in pair)
        parts = [self.slot(gpu) for gpu in pair]
        if self._leaves_its_numa_node(pair, code):
            parts.append(self._between_sockets())
        slowest = link_rates.slowest(parts)
        through_cpu = kind == "P2P" and not link_codes.allowed(code, "PXB")
        return link_rates.through_cpu(slowest, self.fact.cpu_vendor) if through_cpu else slowest

    def rate_to_nic(self, gpu: str, nic: str, code: str, port: float | None) -> float | None:
        """The slowest part of the path from a GPU to a NIC's port; None where a part is not known."""
        parts = [self.slot(gpu), port]
        of_nic = self._pcie(nic)
        if of_nic is not None:
            parts.append(of_nic)
        if link_codes.crosses_sockets(code):
            parts.append(self._between_sockets())
        return link_rates.slowest(parts)

    def _between_sockets(self) -> float | None:
        fact = self.fact
        return link_rates.between_sockets(fact.cpu_vendor, fact.cpu_family, fact.cpu_model, self.node.version)

    def _nvlinks(self, name: str, links: int) -> float | None:
        """What so many NVLinks of a GPU carry: by its generation, else by the speed that the driver reports."""
        gpu = self.gpus.get(name)
        known = link_rates.nvlink(gpu.compute_capability, links) if gpu else None
        active = (link for gpu in self.fact.nvlinks if gpu.gpu == name for link in gpu.links if link.active)
        speed = min((link.gb_per_s for link in active if link.gb_per_s is not None), default=None)
        return known if known is not None else link_rates.nvlink_of_speed(speed, links)

    def slot(self, name: str) -> float | None:
        """What a GPU's PCIe slot carries: as NVML says it, else as /sys does."""
        gpu = self.gpus.get(name)
        known = link_rates.pcie(gpu.pcie_generation_max, gpu.pcie_width_max) if gpu else None
        return known if known is not None else self._pcie(name)

    def _pcie(self, name: str) -> float | None:
        """What the slot of a GPU or NIC carries as /sys says it."""
        device = next((device for device in self.fact.pci if device.name == name), None)
        if device is None:
            return None
        return link_rates.pcie(link_rates.pcie_generation(device.link_speed), device.link_width)

    def _leaves_its_numa_node(self, pair: GpuPair, code: str) -> bool:
        """Whether the way through host memory crosses sockets; not known from NVLink's code, but from the affinity."""
        if not link_codes.nvlinks(code):
            return link_codes.crosses_sockets(code)
        first, second = (self.fact.numa_affinity.get(gpu) for gpu in pair)
        return first is None or first != second


@once_a_recording
def places(recording: Recording) -> list[Place]:
    """The nodes with a matrix, each with what decides its transports."""
    found = []
    gpus = {node.node: node.fact for node in recording.facts(GpusFact)}
    software = {node.node: node.fact for node in recording.facts(Software)}
    variables = {node.node: node.fact.variables for node in recording.facts(EnvVars)}
    logs = texts(recording)
    for matrix in recording.facts(TopologyFact):
        known, text = gpus.get(matrix.node), logs.get(matrix.node, "")
        installed = software[matrix.node].nccl_loaded if matrix.node in software else None
        version = version_in(text) or installed
        settings = {**matrix.fact.nccl_settings, **variables.get(matrix.node, {}), **settings_in(text)}
        by_name = {f"GPU{gpu.index}": gpu for gpu in known.gpus} if known else {}
        node = nccl_paths.Node(
            gpus=_gpus_of_job(recording, matrix),
            cpu_vendor=matrix.fact.cpu_vendor,
            version=release(version) if version else (),
            settings=settings,
        )
        found.append(Place(matrix, by_name, node))
    return found


def _gpus_of_job(recording: Recording, node: FactAt[TopologyFact]) -> int:
    """How many GPUs NCCL sees on a node: those of the job's ranks alone."""
    if recording.world is not None and recording.world.backend == "nccl" and recording.trials:
        return len(recording.world.ranks_of(node.node))
    return len(node.fact.job_gpus or node.fact.gpus)


@once_a_recording
def first_trial(recording: Recording) -> TrialRecord | None:
    """The first trial with transports; further ones may try other settings."""
    over_nccl = (
        trial for trial in recording.trials if trial.backend == "nccl" and trial.launcher == "forkserver"
    )
    return next(
        (trial for trial in over_nccl if any(" via " in rank.output_tail for rank in trial.evidence)), None
    )


def first_trial_ended(recording: Recording) -> bool:
    """Whether the trial that the log is of came to its end, so that its transports carry data."""
    trial = first_trial(recording)
    return trial is not None and trial.outcome == "finished"


@once_a_recording
def texts(recording: Recording) -> Mapping[int, str]:
    """NCCL's log on each node in the first trial with transports."""
    trial = first_trial(recording)
    tails = grouped((rank.node, rank.output_tail) for rank in (trial.evidence if trial else ()))
    return {node: "\n".join(logs) for node, logs in tails.items()}


@once_a_recording
def log_of(recording: Recording, node: int) -> NcclTransportFact:
    """What NCCL logged on one node."""
    return parse_nccl_log(texts(recording).get(node, ""))


def only_p2p(recording: Recording, node: int) -> bool:
    """Whether the log of a node has no other transport; found without parsing it all, for thousands of nodes."""
    text = texts(recording).get(node, "")
    return not any(words in text for words in (" via SHM", " via direct shared", " via NET"))


def used_within(recording: Recording, place: Place) -> list[Used]:
    """What the log says of the pairs of GPUs of one node, where it is clear which ranks have which."""
    trial, log = first_trial(recording), log_of(recording, place.seen.node)
    if trial is None or not _is_of_the_world(log, trial.ranks):
        return []
    numbers = numbers_of_gpus(recording, trial, log, place.seen.node)
    found: dict[tuple[GpuPair, tuple[int, int]], list[Transport]] = {}
    for transport in log.transports:
        ends = (transport.from_rank, transport.to_rank)
        low, high = sorted(trial.ranks[end] for end in ends) if max(ends) < len(trial.ranks) else (-1, -1)
        gpus = _pair(place.fact, numbers.get(low), numbers.get(high))
        if gpus is not None:
            found.setdefault((gpus, (low, high)), []).append(transport)
    return [Used(gpus, ranks, tuple(transports)) for (gpus, ranks), transports in found.items()]


def _is_of_the_world(log: NcclTransportFact, ranks: Sequence[int]) -> bool:
    """Whether all communicators are of all ranks: a smaller one numbers its ranks anew."""
    return set(log.comm_sizes) <= {len(ranks)}


def numbers_of_gpus(
    recording: Recording, trial: TrialRecord, log: NcclTransportFact, node: int
) -> dict[int, int]:
    """NVML's index of the GPU of each rank of a node: by its UUID, else as the log's brackets have it."""
    printed: dict[int, set[int]] = {}
    for transport in log.transports:
        ends = ((transport.from_rank, transport.from_gpu), (transport.to_rank, transport.to_gpu))
        for end, gpu in ends:
            if gpu is not None and end < len(trial.ranks):
                printed.setdefault(trial.ranks[end], set()).add(gpu)
    found = {}
    for rank in (rank.rank for rank in trial.evidence if rank.node == node):
        known, brackets = gpu_of(recording, rank), printed.get(rank, set())
        if known is not None or len(brackets) == 1:
            found[rank] = known if known is not None else next(iter(brackets))
    return found


def _pair(fact: TopologyFact, first: int | None, second: int | None) -> GpuPair | None:
    """The columns of two GPUs, the lower number first."""
    if first is None or second is None or first == second:
        return None
    names = (f"GPU{min(first, second)}", f"GPU{max(first, second)}")
    return names if set(names) <= set(fact.gpus) else None


_BETWEEN_GPUS = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_P2P_LEVEL")


@dataclass(frozen=True)
class Loss:
    """What one setting costs one pair of GPUs."""

    having: Expected
    without: Expected

    @property
    def factor(self) -> float:
        """How many times faster the way without the setting is; 1 where it is not known."""
        fast, slow = self.without.rate_gb_per_s, self.having.rate_gb_per_s
        return fast / slow if fast and slow else 1.0


@dataclass(frozen=True)
class Forbidden:
    """One setting that costs the GPUs of some nodes the same."""

    name: str
    value: str
    seen: tuple[FactAt[TopologyFact], ...]
    losses: tuple[Loss, ...]

    @property
    def worst(self) -> Loss:
        """The pair that loses most."""
        return max(self.losses, key=lambda loss: loss.factor)

    @property
    def is_slower(self) -> bool:
        """Whether it is known that a pair is slower for it: by NCCL's constants, or since it takes the network."""
        return self.worst.factor > 1 or self.worst.having.choice.kind == "NET"


@once_a_recording
def between_gpus(recording: Recording) -> list[Forbidden]:
    """The settings that keep pairs of GPUs from a faster way, each with the nodes on which it costs the same."""
    if recording.options.command == "prolog":
        return []  # the job's settings are not there yet
    groups: dict[tuple[str, str, tuple[GpuPair, ...]], list[tuple[Place, list[Loss]]]] = {}
    for place in places(recording):
        for name in _BETWEEN_GPUS:
            losses = _losses(place, name)
            if losses:
                cause = (name, place.node.settings[name], tuple(loss.having.gpus for loss in losses))
                groups.setdefault(cause, []).append((place, losses))
    return [
        Forbidden(name, value, tuple(place.seen for place, _ in group), tuple(group[0][1]))
        for (name, value, _), group in groups.items()
    ]


def _losses(place: Place, name: str) -> list[Loss]:
    """The pairs that use another path because of this setting alone, where the path without it is certain."""
    if name not in place.node.settings:
        return []
    others = {setting: value for setting, value in place.node.settings.items() if setting != name}
    after = {pair.gpus: pair for pair in place.expected(replace(place.node, settings=others))}
    losses = [Loss(pair, after[pair.gpus]) for pair in place.expected()]
    order = ("P2P", "SHM", "NET")
    return [
        loss
        for loss in losses
        if loss.without.choice.sure
        and order.index(loss.having.choice.kind) > order.index(loss.without.choice.kind)
    ]


def may_use_rdma(recording: Recording) -> bool:
    """Whether the recording is of a job on NCCL over several nodes."""
    world = recording.world
    several = world is not None and world.nnodes > 1 and world.backend == "nccl"
    return several and recording.options.command != "prolog"


def rdma_in_use(facts: Sequence[FactAt[RdmaFact]]) -> bool:
    """Whether some node uses its RDMA ports."""
    return any(node.fact.unused_by is None and node.fact.chosen() for node in facts)


def forbidding_rdma(fact: RdmaFact) -> tuple[str, bool] | None:
    """The setting ``NAME=value`` that keeps a node from its RDMA ports, and whether all it gives up is RoCE."""
    ports = fact.candidates()
    if fact.unused_by is None or not ports:
        return None
    return fact.unused_by, all(port.is_roce for _, port in ports)


@once_a_recording
def settings_told(recording: Recording) -> frozenset[str]:
    """The settings of which DD434 and DD436 say, above information, what they keep NCCL from."""
    names = {forbidden.name for forbidden in between_gpus(recording) if forbidden.is_slower}
    if may_use_rdma(recording):
        facts = recording.facts(RdmaFact)
        mixed = rdma_in_use(facts)
        causes = {cause for node in facts if (cause := forbidding_rdma(node.fact)) is not None}
        names |= {setting.partition("=")[0] for setting, roce in causes if mixed or not roce}
    return frozenset(names)
