"""The answer of sources/child_nvml_topology.py, as typed values, and what nvidia-smi calls them.

    {"error": null, "gpus": [{"index": 0, "bus_id": "00000000:1B:00.0", "cpu_affinity": "0-31,64-95", …}],
     "ancestors": [[0, 1, 50]], "p2p": {"read": [[0, 1, 0], [1, 0, 0]], …}}

The levels are nvmlGpuTopologyLevel_t, the statuses nvmlGpuP2PStatus_t (nvml.h); the words are those of
``nvidia-smi topo -m`` and ``topo -p2p``.
"""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field, field_validator

from ddp_doctor.facts.node.gpus import BusId, sysfs_bus_id
from ddp_doctor.facts.node.topology import GpuNvlinks, Nvlink, Pairs
from ddp_doctor.model.base import Frozen

#: INTERNAL is two GPUs on one board, as on a Tesla K80, which nvidia-smi prints as PIX.
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
#: Of the chipset, the GPU and the topology not supported, disabled by a registry key, not supported.
STATUSES = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS"}
UNKNOWN_STATUS = "U"


class WiredGpu(Frozen):
    """One GPU's place and links; None where NVML does not say."""

    index: int
    name: str | None = None
    uuid: str | None = None
    minor_number: int | None = None
    bus_id: BusId | None = None
    mig_enabled: bool | None = None
    mig_uuids: tuple[str, ...] = ()
    cpu_affinity: str | None = None  # "" where none of its CPUs is ours
    numa_affinity: str | None = None
    gpu_numa_id: int | None = None
    nvlinks: tuple[Nvlink, ...] = ()
    error: str | None = None
    unavailable: dict[str, str] = Field(default_factory=dict)

    @property
    def column(self) -> str:
        """Its name in a matrix."""
        return f"GPU{self.index}"

    @field_validator("nvlinks")
    @classmethod
    def _of_one_spelling(cls, links: tuple[Nvlink, ...]) -> tuple[Nvlink, ...]:
        """Bus ids as /sys writes them; NVML has zeros or ones where it does not tell."""
        return tuple(
            link.model_copy(update={"remote_bus_id": _told(link.remote_bus_id)})
            if link.remote_bus_id
            else link
            for link in links
        )


def _told(bus_id: str) -> str | None:
    plain = sysfs_bus_id(bus_id)
    return plain if plain.translate({ord(sign): None for sign in "0f:."}) else None


class NvmlTopology(Frozen):
    """All that the child found out."""

    gpus: tuple[WiredGpu, ...] = ()
    ancestors: tuple[tuple[int, int, int], ...] = ()
    p2p: dict[str, tuple[tuple[int, int, int], ...]] = Field(default_factory=dict)
    elapsed_s: float = 0.0
    error: str | None = None
    call: str = ""
    gpu: int | None = None
    text: str = ""

    def ours(self) -> tuple[WiredGpu, ...]:
        """The GPUs that answer: not those of others, nor lost ones."""
        return tuple(gpu for gpu in self.gpus if gpu.error is None)

    def nvlinks(self) -> tuple[GpuNvlinks, ...]:
        """The links of each GPU that has any."""
        return tuple(
            GpuNvlinks(gpu=gpu.column, name=gpu.name, links=gpu.nvlinks) for gpu in self.ours() if gpu.nvlinks
        )

    def pci_codes(self) -> Pairs:
        """The way between two GPUs over PCI alone, as ``nvidia-smi topo -mp`` has it."""
        codes: Pairs = {}
        for one, two, level in self.ancestors:
            if level in LEVELS:
                codes.setdefault(f"GPU{one}", {})[f"GPU{two}"] = LEVELS[level]
                codes.setdefault(f"GPU{two}", {})[f"GPU{one}"] = LEVELS[level]
        return codes

    def p2p_words(self) -> dict[str, Pairs]:
        """Whether one GPU may read, write, … another, in the words of ``nvidia-smi topo -p2p``."""
        words: dict[str, Pairs] = {}
        for capability, statuses in self.p2p.items():
            for one, two, status in statuses:
                row = words.setdefault(capability, {}).setdefault(f"GPU{one}", {})
                row[f"GPU{two}"] = STATUSES.get(status, UNKNOWN_STATUS)
        return words


def parse_nvml_topology(text: str) -> NvmlTopology:
    """The child's answer. Raises ValueError where ``text`` is not one."""
    return NvmlTopology.model_validate_json(text)


def bonded(gpus: Sequence[WiredGpu], p2p: Mapping[str, Pairs]) -> Iterator[tuple[str, str, int]]:
    """Pairs of GPUs and how many NVLinks join them, as nvidia-smi counts.

    Links that lead straight to the other GPU, else those that both have to an NVSwitch. Where NVML does not
    say what a link leads to, two GPUs that it calls NVLink peers are taken for joined by all they have.
    """
    peers = p2p.get("nvlink", {})
    for at, one in enumerate(gpus):
        for two in gpus[at + 1 :]:
            straight = min(_to_gpu(one, two), _to_gpu(two, one))
            switched = min(_of_kind(one, "switch"), _of_kind(two, "switch"))
            told = peers.get(one.column, {}).get(two.column) == "OK"
            unknown = min(_of_kind(one, None), _of_kind(two, None)) if told else 0
            if links := straight or switched or unknown:
                yield one.column, two.column, links


def _to_gpu(gpu: WiredGpu, other: WiredGpu) -> int:
    known = other.bus_id is not None
    return sum(link.active is True and known and link.remote_bus_id == other.bus_id for link in gpu.nvlinks)


def _of_kind(gpu: WiredGpu, kind: str | None) -> int:
    return sum(link.active is True and link.remote == kind for link in gpu.nvlinks)
