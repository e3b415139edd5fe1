"""The transports that NCCL should use between GPUs and nodes, and the transports that its log shows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ddp_doctor.facts.node.env_vars import EnvVars
from ddp_doctor.facts.node.gpus import Gpu, GpusFact
from ddp_doctor.facts.node.kernel import KernelFact
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
    """A pair of GPUs: its code, what NCCL should use, and NCCL's estimate of the speed."""

    gpus: GpuPair
    code: str
    choice: nccl_paths.Choice
    rate_gb_per_s: float | None


@dataclass(frozen=True)
class Used:
    """The log's transports of one pair of GPUs, in the order of its lines, and the ranks on them."""

    gpus: GpuPair
    ranks: tuple[int, int]
    transports: tuple[Transport, ...]

    def kinds(self) -> frozenset[str]:
        """Return the kinds of transport that were set up between the two."""
        return frozenset(transport.kind for transport in self.transports)


@dataclass(frozen=True)
class Place:
    """The facts about one node: its matrix, its GPUs, its settings and its version of NCCL."""

    seen: FactAt[TopologyFact]
    gpus: Mapping[str, Gpu]
    node: nccl_paths.Node
    beside: Mapping[str, float | None] = field(default_factory=dict)  # GB/s of the NIC at a GPU; None: unknown

    @property
    def fact(self) -> TopologyFact:
        """The matrix."""
        return self.seen.fact

    def expected(self, node: nccl_paths.Node | None = None) -> Iterator[Expected]:
        """Yield each pair, with the node's settings or the settings of another ``node``."""
        node = node or self.node
        for first, second, code in self.fact.gpu_pairs():
            if {first, second} & set(self.fact.mig_gpus):
                continue  # a slice has no NVLink, and may belong to another job
            choice = nccl_paths.choose(node, self._pair(first, second, code))
            yield Expected((first, second), code, choice, self.rate((first, second), code, choice.kind))

    def _pair(self, first: str, second: str, code: str) -> nccl_paths.Pair:
        nics = [
            [self.fact.links[gpu][nic] for nic in self.fact.nics if nic in self.fact.links[gpu]]
            for gpu in (first, second)
        ]
        through = nccl_paths.bridged(self.fact.gpus, self.fact.links, first, second) > 0
        is_faster: bool | None = False  # compares the NICs at both GPUs with the link between their sockets
        if nccl_paths.near(nics):
            slowest = link_rates.slowest(self.beside.get(gpu) for gpu in (first, second))
            between = self.rate((first, second), code, "SHM")
            is_faster = None if slowest is None or between is None else slowest > between
        return nccl_paths.Pair(code, self.fact.p2p_status(first, second), through, is_faster)

    def rate(self, pair: GpuPair, code: str, kind: nccl_paths.Kind) -> float | None:
        """Return the rate of the path's slowest part in one direction, or None for the network or unknown parts."""
        if kind == "NET":
            return None
        links = link_codes.nvlinks(code) or nccl_paths.bridged(self.fact.gpus, self.fact.links, *pair)
        if links and kind == "P2P":
            return link_rates.slowest(self._nvlinks_rate(gpu, links) for gpu in pair)
        parts = [self.slot(gpu) for gpu in pair]
        if self._leaves_its_numa_node(pair, code):
            parts.append(self._between_sockets())
        slowest = link_rates.slowest(parts)
        through_cpu = kind == "P2P" and not link_codes.allowed(code, "PXB")
        return link_rates.through_cpu(slowest, self.fact.cpu_vendor) if through_cpu else slowest

    def rate_to_nic(self, gpu: str, nic: str, code: str, port: float | None) -> float | None:
        """Return the rate of the slowest part of the path from a GPU to a NIC's port, or None if a part is unknown."""
        parts = [self.slot(gpu), port]
        of_nic = self._pcie_rate(nic)
        if of_nic is not None:
            parts.append(of_nic)
        if link_codes.crosses_sockets(code):
            parts.append(self._between_sockets())
        return link_rates.slowest(parts)

    def _between_sockets(self) -> float | None:
        fact = self.fact
        return link_rates.between_sockets(fact.cpu_vendor, fact.cpu_family, fact.cpu_model, self.node.version)

    def _nvlinks_rate(self, name: str, links: int) -> float | None:
        """Return the rate of this many NVLinks of a GPU: by its generation, or by the speed that the driver reports."""
        gpu = self.gpus.get(name)
        known = link_rates.nvlink(gpu.compute_capability, links, self.node.version) if gpu else None
        active = (link for gpu in self.fact.nvlinks if gpu.gpu == name for link in gpu.links if link.active)
        speed = min((link.gb_per_s for link in active if link.gb_per_s is not None), default=None)
        return known if known is not None else link_rates.nvlink_of_speed(speed, links)

    def slot(self, name: str) -> float | None:
        """Return the rate of a GPU's PCIe slot, from NVML or /sys."""
        gpu = self.gpus.get(name)
        known = link_rates.pcie(gpu.pcie_generation_max, gpu.pcie_width_max) if gpu else None
        return known if known is not None else self._pcie_rate(name)

    def _pcie_rate(self, name: str) -> float | None:
        device = next((device for device in self.fact.pci if device.name == name), None)
        if device is None:
            return None
        return link_rates.pcie(link_rates.pcie_generation(device.link_speed), device.link_width)

    def _leaves_its_numa_node(self, pair: GpuPair, code: str) -> bool:
        """Return True if the path through host memory crosses sockets; for NVLink, the NUMA affinity decides."""
        if not link_codes.nvlinks(code):
            return link_codes.crosses_sockets(code)
        first, second = (self.fact.numa_affinity.get(gpu) for gpu in pair)
        return first is None or first != second


@dataclass(frozen=True)
class ToNetwork:
    """A GPU and the NICs that NCCL uses for it, by the names of their devices.

    NCCL uses the NICs with the most bandwidth, and the nearest of these (src/graph/topo.cc, ncclTopoGetLocal; NCCL
    2.21.5 to 2.32.3 on planted GPUs, 2026-11-23). If they are far, and another GPU that is joined by NVLink reaches a
    near NIC by GPUDirect RDMA, NCCL uses that GPU (PXN, src/graph/paths.cc, since 2.12): then ``code`` is "PXN", and
    NICs and rate are the other GPU's.
    """

    gpu: str
    nics: tuple[str, ...]
    code: str
    gpudirect: bool | None
    why: str
    rate_gb_per_s: float | None  # of one of these NICs

    @property
    def nccl_path(self) -> str:
        """NCCL's name of the path: without GPUDirect RDMA it crosses the CPU, even if the NIC is near."""
        path = self.code if self.code == "PXN" else link_codes.link_code(self.code).nccl_path
        return "PHB" if path in {"PIX", "PXB"} and self.gpudirect is False else path


def ways_to_nics(recording: Recording, place: Place) -> dict[str, dict[str, ToNetwork]]:
    """Return the paths that NCCL may use without another GPU, by GPU and NIC."""
    fact, rdma = place.fact, next(iter(recording.at(RdmaFact, place.seen.node)), None)
    ports = {hca.name: port for hca, port in rdma.chosen()} if rdma and rdma.unused_by is None else {}
    kernels = recording.at(KernelFact, place.seen.node)
    unknown = (None, "whether module or dma-buf are there is not known")
    kernel = kernels[0].gpudirect_rdma() if kernels else unknown
    ways: dict[str, dict[str, ToNetwork]] = {}
    for gpu in fact.gpus:
        model = place.gpus[gpu].name if gpu in place.gpus else fact.models.get(gpu)
        c2c = fact.is_on_c2c(gpu, model)
        for nic, name in fact.hcas().items():
            code = fact.links[gpu].get(nic)
            if code is None or (rdma is not None and name not in ports):
                continue
            speed = ports[name].rate_gbit_per_s if name in ports else None
            rate = place.rate_to_nic(gpu, nic, code, speed / 8 if speed else None)
            able, why = nccl_paths.gpudirect(place.node, code, model, kernel=kernel, c2c=c2c)
            ways.setdefault(gpu, {})[name] = ToNetwork(gpu, (name,), code, able, why, rate)
    return ways


@once_a_recording
def places(recording: Recording) -> list[Place]:
    """Return the nodes with a matrix, each with the values that decide its transports."""
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
        used = len(matrix.fact.job_gpus or matrix.fact.gpus)
        if recording.world is not None and recording.on_nccl and recording.trials:
            used = len(recording.world.ranks_of(matrix.node))  # NCCL sees only the GPUs of the job's ranks
        node = nccl_paths.Node(
            gpus=used, cpu_vendor=matrix.fact.cpu_vendor, version=release(version) if version else (), settings=settings
        )
        place = Place(matrix, by_name, node)
        found.append(replace(place, beside=_nic_rate_beside_gpus(ways_to_nics(recording, place))))
    return found


def _nic_rate_beside_gpus(ways: Mapping[str, Mapping[str, ToNetwork]]) -> dict[str, float | None]:
    """Return GB/s of the fastest NIC within PXB that reaches each GPU's memory; None if unknown."""
    found: dict[str, float | None] = {}
    for gpu, nics in ways.items():
        near = [way for way in nics.values() if link_codes.allowed(way.nccl_path, "PXB")]
        rates = [way.rate_gb_per_s if way.gpudirect else None for way in near]
        found[gpu] = max((rate for rate in rates if rate is not None), default=0.0) if None not in rates else None
    return found


@once_a_recording
def first_trial(recording: Recording) -> TrialRecord | None:
    """Return the first trial with transports; later ones may test other settings."""
    over_nccl = (trial for trial in recording.trials if trial.backend == "nccl" and trial.launcher == "forkserver")
    return next((trial for trial in over_nccl if any(" via " in rank.output_tail for rank in trial.evidence)), None)


@once_a_recording
def texts(recording: Recording) -> Mapping[int, str]:
    """Return NCCL's log on each node in the first trial with transports."""
    trial = first_trial(recording)
    tails = grouped((rank.node, rank.output_tail) for rank in (trial.evidence if trial else ()))
    return {node: "\n".join(logs) for node, logs in tails.items()}


@once_a_recording
def log_of(recording: Recording, node: int) -> NcclTransportFact:
    """Return the transports that NCCL logged on one node."""
    return parse_nccl_log(texts(recording).get(node, ""))


def only_p2p(recording: Recording, node: int) -> bool:
    """Return True if the log of a node has no other transport, without parsing the logs of thousands of nodes."""
    text = texts(recording).get(node, "")
    return not any(words in text for words in (" via SHM", " via direct shared", " via NET"))


def used_within(recording: Recording, place: Place) -> list[Used]:
    """Return the log's transports between GPUs of one node, if it is clear which ranks have which GPUs."""
    trial, log = first_trial(recording), log_of(recording, place.seen.node)
    # A communicator without all ranks has its own numbers of ranks.
    if trial is None or not set(log.comm_sizes) <= {len(trial.ranks)}:
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


def numbers_of_gpus(recording: Recording, trial: TrialRecord, log: NcclTransportFact, node: int) -> dict[int, int]:
    """Return NVML's index of the GPU of each rank of a node: by its UUID, or from the brackets in the log."""
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
    """Return the columns of two GPUs, the lower number first."""
    if first is None or second is None or first == second:
        return None
    names = (f"GPU{min(first, second)}", f"GPU{max(first, second)}")
    return names if set(names) <= set(fact.gpus) else None
