"""The path matrix of one host. Written by the probe, read by the rules."""

from collections.abc import Iterator
from itertools import combinations
from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.facts.node.nccl_log import NcclTransportFact
from ddp_doctor.knowledge.gpu.nvml import OS_MANAGED_MEMORY
from ddp_doctor.knowledge.topology import link_codes
from ddp_doctor.knowledge.topology.link_codes import NUMBERED, link_code
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

TopologySource = Literal["nvidia-smi", "nvml", "nccl-xml"]


class Nvlink(Frozen):
    """A link of a GPU. None: unknown."""

    index: int
    active: bool | None = None
    gb_per_s: float | None = None  # one way, as reported by the driver
    remote: Literal["gpu", "switch", "cpu"] | None = None
    remote_bus_id: str | None = None  # as /sys writes it: "0000:1b:00.0"
    errors: dict[str, int] = Field(default_factory=dict)  # "replay", "recovery", "crc": counted since reset
    errors_per_s: dict[str, float] = Field(default_factory=dict)  # rate of increase; empty: sampled only once


class GpuNvlinks(Frozen):
    """The links of one GPU. ``gpu`` is its name in a matrix, "GPU0"."""

    gpu: str
    name: str | None = None
    links: tuple[Nvlink, ...] = ()

    def active(self) -> int:
        """Return the number of links that carry data."""
        return sum(link.active is True for link in self.links)

    def inactive(self) -> tuple[int, ...]:
        """Return the numbers of the inactive links."""
        return tuple(link.index for link in self.links if link.active is False)

    def remotes(self) -> set[str | None]:
        """Return the kinds of devices that the active links lead to."""
        return {link.remote for link in self.links if link.active}


class NvlinksFact(Fact):
    """The links of a host's GPUs from one output. A pasted text may not contain all GPUs."""

    KIND: ClassVar[str] = "nvlinks/1"

    gpus: tuple[GpuNvlinks, ...]
    warnings: tuple[str, ...] = ()


Pairs = dict[str, dict[str, str]]


class PciDevice(Frozen):
    """A device and the bridges above it, from the root port down; ``root`` is its host bridge.

    ``name`` is its name in the matrix ("GPU0", "NIC1") or the interface's ("eno1"). ``numa_node`` is -1 if the firmware
    does not report it, and None if it is unknown.
    """

    bus_id: str
    name: str
    kind: Literal["gpu", "nic", "net"]
    root: str
    bridges: tuple[str, ...] = ()
    numa_node: int | None = None
    link_speed: str | None = None  # maximum speed, as in /sys or the file: "32.0 GT/s PCIe"
    link_width: int | None = None


class TopologyMatrix(Frozen):
    """A matrix with the names of its header and its codes as printed, without X and unknown links.

    ``nics`` maps a column to its device ("NIC0" to "mlx5_0"), or to itself if no usable name is known. Affinities are
    the printed strings, including "N/A", and None if the cell is blank or the column does not exist. nvidia-smi
    truncates long CPU lists, so they may be incomplete.
    """

    gpus: tuple[str, ...]
    nics: dict[str, str]
    links: dict[str, dict[str, str]]
    cpu_affinity: dict[str, str | None]
    numa_affinity: dict[str, str | None]
    gpu_numa_id: dict[str, str | None]
    warnings: tuple[str, ...] = ()

    def gpu_pairs(self) -> Iterator[tuple[str, str, str]]:
        """Yield each pair of GPUs and its code. Unknown pairs and pairs whose two rows disagree are skipped."""
        for first, second in combinations(self.gpus, 2):
            code = self.links[first].get(second)
            if code is not None and code == self.links[second].get(first):
                yield first, second, code

    def unknown_links(self) -> int:
        """Return the number of pairs of devices without a link in any row."""
        return sum(len(self.links) - 1 - len(row) for row in self.links.values()) // 2

    def hcas(self) -> dict[str, str]:
        """Return the NIC columns with a known device name, and that name."""
        return {nic: name for nic, name in self.nics.items() if not NUMBERED.fullmatch(name)}

    def nearest_hcas(self, gpu: str) -> tuple[str, tuple[str, ...]]:
        """Return the nearest code from this GPU to a named NIC, and those NICs; ("", ()) if none or unknown."""
        hcas, links = self.hcas(), self.links[gpu]
        codes = {name: links[nic] for nic, name in hcas.items() if nic in links}
        if not codes or len(codes) < len(hcas):
            return "", ()
        best = min(codes.values(), key=lambda code: link_code(code).distance)
        return best, tuple(name for name, code in codes.items() if code == best)

    def nearest_in_words(self) -> list[str]:
        """Return one phrase per GPU that has a NIC of known name."""
        near = [(gpu, *self.nearest_hcas(gpu)) for gpu in self.gpus]
        return [f"nearest NIC to {gpu}: {', '.join(names)} ({code})" for gpu, code, names in near if names]

    def candidate_hcas(self) -> tuple[str, ...]:
        """Return the bonded NICs, or if there are none the nearest to each GPU, in column order."""
        names = tuple(self.hcas().values())
        nearest = {name for gpu in self.gpus for name in self.nearest_hcas(gpu)[1]}
        return tuple(name for name in names if "bond" in name) or tuple(n for n in names if n in nearest)


class TopologyFact(TopologyMatrix, Fact):
    """The matrix of one host, and the other data that decide how far NCCL's P2P reaches.

    ``cpu_vendor`` is as in /proc/cpuinfo ("AuthenticAMD", "GenuineIntel", "ARM"), or None if unknown. ``nccl_settings``
    are the variables about P2P and HCAs that the job will inherit. The fields after them come from NVML and /sys, and
    are empty if the matrix is nvidia-smi's. ``p2p`` holds the words of ``nvidia-smi topo -p2p`` by capability ("read",
    "write", "nvlink", "atomics"). ``pci_links`` holds the driver's codes of ``topo -mp``, without NVLink.
    """

    KIND: ClassVar[str] = "topology/1"

    cpu_vendor: str | None = None
    cpu_family: int | None = None  # as /proc/cpuinfo prints it
    cpu_model: int | None = None  # as /proc/cpuinfo prints it, only for family 6
    nccl_settings: dict[str, str] = Field(default_factory=dict)
    source: TopologySource | None = None
    nvlink_told: bool = True  # False: the codes between GPUs are only for PCI
    pci: tuple[PciDevice, ...] = ()
    pci_links: Pairs = Field(default_factory=dict)
    p2p: dict[str, Pairs] = Field(default_factory=dict)
    nvlinks: tuple[GpuNvlinks, ...] = ()
    mig_gpus: tuple[str, ...] = ()  # in MIG mode, which disables NVLink
    c2c_gpus: tuple[str, ...] = ()  # attached to their CPU by C2C, according to NCCL's file
    models: dict[str, str] = Field(default_factory=dict)  # names of GPUs in other output in the same text
    near_cpus: dict[str, str] = Field(default_factory=dict)  # all CPUs of a GPU's NUMA node: "0-31,64-95"
    allowed_cpus: str | None = None  # that ddp-doctor, and so the job, may run on
    job_gpus: tuple[str, ...] | None = None  # GPUs of the job, if its environment names them

    def gpu_pairs(self) -> Iterator[tuple[str, str, str]]:
        """Yield each pair of GPUs and its code; nothing if NVLink may connect any of them."""
        return super().gpu_pairs() if self.nvlink_told else iter(())

    def is_on_c2c(self, gpu: str, model: str | None) -> bool:
        """Return True if the GPU is attached to its CPU by C2C. Its memory is then a separate NUMA node."""
        is_grace = any(name in (model or "") for name in OS_MANAGED_MEMORY)
        return is_grace or gpu in self.c2c_gpus or (self.gpu_numa_id.get(gpu) or "").isdecimal()

    def p2p_limit(self, log: NcclTransportFact) -> tuple[str, str]:
        """Return how far NCCL lets GPUs communicate directly on this host, and the source of that limit."""
        level = log.p2p_level or self.nccl_settings.get("NCCL_P2P_LEVEL")
        return link_codes.p2p_limit(len(self.gpus), self.cpu_vendor, level)

    def refuses_p2p(self, first: str, second: str) -> bool:
        """Return True if the driver reports that one of two GPUs may not read or write the other. NCCL also asks it."""
        ways = ((first, second), (second, first))
        words = {self.p2p.get(name, {}).get(a, {}).get(b, "OK") for name in ("read", "write") for a, b in ways}
        return words != {"OK"}

    def p2p_status(self, first: str, second: str) -> str | None:
        """Return NVML's P2P status between two GPUs: "OK" or the first other word. None if not queried."""
        tables = [self.p2p.get(capability, {}) for capability in ("read", "write")]
        words = [table.get(a, {}).get(b) for table in tables for a, b in ((first, second), (second, first))]
        if None in words:
            return None
        return next((word for word in words if word != "OK"), "OK")


class TopologyHangFact(Fact):
    """The query of the topology that did not answer."""

    KIND: ClassVar[str] = "topology-hang/1"

    asked: Literal["NVML", "nvidia-smi"]
    call: str  # the function of NVML, or the command
    gpu: int | None = None
    waited_s: float


class P2pStatusFact(Fact):
    """A table of statuses. ``capability`` holds the letters asked for ("r", "w", "rw"), or None if unknown.

    ``statuses["GPU0"]["GPU1"]`` is the word as printed (OK, CNS, GNS, TNS, DR, NS, U). A GPU's own cell is omitted.
    """

    KIND: ClassVar[str] = "p2p-status/1"

    capability: str | None = None
    gpus: tuple[str, ...]
    statuses: dict[str, dict[str, str]]
    warnings: tuple[str, ...] = ()

    def pairs(self) -> Iterator[tuple[str, str, tuple[str, ...]]]:
        """Yield each pair of GPUs and the words of both directions, or one word if they agree."""
        for first, second in combinations(self.gpus, 2):
            words = (self.statuses[first][second], self.statuses[second][first])
            yield first, second, tuple(dict.fromkeys(words))


class RocmTopologyFact(Fact):
    """The tables of one host, cells as printed, without a GPU's own cell. Tables that were not shown are empty."""

    KIND: ClassVar[str] = "rocm-topology/1"

    gpus: tuple[str, ...]
    link_type: dict[str, dict[str, str]] = Field(default_factory=dict)  # PCIE, XGMI
    weight: dict[str, dict[str, str]] = Field(default_factory=dict)
    hops: dict[str, dict[str, str]] = Field(default_factory=dict)
    access: dict[str, dict[str, str]] = Field(default_factory=dict)  # True, False
    numa_node: dict[str, int] = Field(default_factory=dict)
    numa_affinity: dict[str, int] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
