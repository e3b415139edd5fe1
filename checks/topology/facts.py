"""One host's matrix of paths, as the probe writes it and the rules read it."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.knowledge import link_codes as codes
from ddp_doctor.model.fact import Fact
from ddp_doctor.parse.nccl_log import NcclTransportFact
from ddp_doctor.parse.nvlinks import GpuNvlinks
from ddp_doctor.parse.nvml_topology import Pairs
from ddp_doctor.parse.pci_tree import PciDevice
from ddp_doctor.parse.topo_matrix import TopologyMatrix

#: Where a matrix comes from.
Source = Literal["nvidia-smi", "nvml", "nccl-xml"]


class TopologyFact(TopologyMatrix, Fact):
    """One host's matrix, and what decides with it how far NCCL's P2P reaches.

    ``cpu_vendor`` is as /proc/cpuinfo says ("AuthenticAMD", "GenuineIntel", "ARM"), None where unknown;
    ``nccl_settings`` are the variables about P2P and HCAs that the job will inherit. What follows them is
    told by NVML and /sys alone, and empty where the matrix is nvidia-smi's. ``p2p`` holds the words of
    ``nvidia-smi topo -p2p`` by capability ("read", "write", "nvlink", "atomics"), and ``pci_links`` the
    driver's codes of ``topo -mp``, without NVLink.
    """

    KIND: ClassVar[str] = "topology/1"

    cpu_vendor: str | None = None
    cpu_model: int | None = None  # the number that /proc/cpuinfo prints, of family 6 alone
    nccl_settings: dict[str, str] = Field(default_factory=dict)
    source: Source | None = None
    nvlink_told: bool = True  # else the codes between GPUs are those over PCI alone
    pci: tuple[PciDevice, ...] = ()
    pci_links: Pairs = Field(default_factory=dict)
    p2p: dict[str, Pairs] = Field(default_factory=dict)
    nvlinks: tuple[GpuNvlinks, ...] = ()
    mig_gpus: tuple[str, ...] = ()  # in MIG mode, which takes NVLink out of use
    near_cpus: dict[str, str] = Field(default_factory=dict)  # all CPUs of a GPU's NUMA node: "0-31,64-95"
    allowed_cpus: str | None = None  # those that the doctor, and so the job, may run on
    job_gpus: tuple[str, ...] | None = None  # those of the job, where its environment tells

    def gpu_pairs(self) -> Iterator[tuple[str, str, str]]:
        """Each pair of GPUs and its code; none where NVLink may join any of them."""
        return super().gpu_pairs() if self.nvlink_told else iter(())

    def p2p_limit(self, log: NcclTransportFact) -> tuple[str, str]:
        """How far NCCL lets GPUs talk directly here, and what says so."""
        level = log.p2p_level or self.nccl_settings.get("NCCL_P2P_LEVEL")
        return codes.p2p_limit(len(self.gpus), self.cpu_vendor, level)

    def refuses_p2p(self, one: str, two: str) -> bool:
        """Whether the driver says that one of two GPUs may not read or write the other; NCCL asks it too."""
        ways = ((one, two), (two, one))
        words = {
            self.p2p.get(name, {}).get(a, {}).get(b, "OK") for name in ("read", "write") for a, b in ways
        }
        return words != {"OK"}

    def p2p_status(self, one: str, two: str) -> str | None:
        """What NVML says of reading and writing between two GPUs: "OK", else what is against it; None: not asked."""
        tables = [self.p2p.get(capability, {}) for capability in ("read", "write")]
        words = [table.get(a, {}).get(b) for table in tables for a, b in ((one, two), (two, one))]
        if None in words:
            return None
        return next((word for word in words if word != "OK"), "OK")


class TopologyHangFact(Fact):
    """Who was asked for the topology and did not answer."""

    KIND: ClassVar[str] = "topology-hang/1"

    asked: Literal["NVML", "nvidia-smi"]
    call: str  # the function of NVML, or the command
    gpu: int | None = None
    waited_s: float
