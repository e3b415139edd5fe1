"""The topology of this host: NVML and /sys combined into a matrix, or nvidia-smi's matrix.

The matrix equals the output of ``nvidia-smi topo -m`` with two differences. nvidia-smi lists only Mellanox RDMA
devices, in its own order; here all RDMA devices are listed by name. If the driver does not know the path between two
GPUs, it is taken from /sys.

NVML's answer comes from sources/child_nvml_topology.py::

    {"error": null, "gpus": [{"index": 0, "bus_id": "00000000:1B:00.0", "cpu_affinity": "0-31,64-95", …}],
     "ancestors": [[0, 1, 50]], "p2p": {"read": [[0, 1, 0], [1, 0, 0]], …}}

The levels are nvmlGpuTopologyLevel_t, the statuses nvmlGpuP2PStatus_t (nvml.h); the words are those of
``nvidia-smi topo -m`` and ``topo -p2p``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from pydantic import Field, field_validator

from ddp_doctor.checks.node.topology.formats.topo_matrix import TopologyError, parse_matrix
from ddp_doctor.facts.node.gpus import Gpu, sysfs_bus_id
from ddp_doctor.facts.node.topology import (
    GpuNvlinks,
    Nvlink,
    Pairs,
    PciDevice,
    TopologyFact,
    TopologyHangFact,
    TopologyMatrix,
)
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import Absent, Failed, TookTooLong
from ddp_doctor.parse.pci import link_code
from ddp_doctor.parse.visible_devices import job_gpus
from ddp_doctor.probing import host_gpus, pci_devices
from ddp_doctor.probing.kernel_files import text_of

#: INTERNAL is two GPUs on one board, as on a Tesla K80, which nvidia-smi prints as PIX.
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
#: Not supported by the chipset, the GPU or the topology; disabled by a registry key; not supported.
STATUSES = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS"}
UNKNOWN_STATUS = "U"


class WiredGpu(Gpu):
    """The location and links of one GPU; a field is None if NVML does not report it."""

    cpu_affinity: str | None = None  # "" if it has no CPUs that the process may use
    numa_affinity: str | None = None
    gpu_numa_id: int | None = None
    nvlinks: tuple[Nvlink, ...] = ()

    @property
    def column(self) -> str:
        """The GPU's name in a matrix."""
        return f"GPU{self.index}"

    @field_validator("nvlinks")
    @classmethod
    def _of_one_spelling(cls, links: tuple[Nvlink, ...]) -> tuple[Nvlink, ...]:
        """Return bus ids in the spelling of /sys; NVML fills unknown ids with zeros or ones."""
        plain = [sysfs_bus_id(link.remote_bus_id or "") for link in links]
        known = [bus_id if bus_id.strip("0f:.") else None for bus_id in plain]
        return tuple(
            link.model_copy(update={"remote_bus_id": bus_id}) for link, bus_id in zip(links, known, strict=True)
        )


class NvmlTopology(Frozen):
    """The child's complete answer."""

    gpus: tuple[WiredGpu, ...] = ()
    ancestors: tuple[tuple[int, int, int], ...] = ()
    p2p: dict[str, tuple[tuple[int, int, int], ...]] = Field(default_factory=dict)
    elapsed_s: float = 0.0
    error: str | None = None
    call: str = ""
    gpu: int | None = None
    text: str = ""

    def ours(self) -> tuple[WiredGpu, ...]:
        """Return the GPUs that answer, without inaccessible and lost GPUs."""
        return tuple(gpu for gpu in self.gpus if gpu.error is None)

    def nvlinks(self) -> tuple[GpuNvlinks, ...]:
        """Return the links of each GPU that has any."""
        return tuple(GpuNvlinks(gpu=gpu.column, name=gpu.name, links=gpu.nvlinks) for gpu in self.ours() if gpu.nvlinks)

    def pci_codes(self) -> Pairs:
        """Return the PCI-only paths between two GPUs, as ``nvidia-smi topo -mp`` prints them."""
        codes: Pairs = {}
        for gpu, peer, level in self.ancestors:
            if level in LEVELS:
                codes.setdefault(f"GPU{gpu}", {})[f"GPU{peer}"] = LEVELS[level]
                codes.setdefault(f"GPU{peer}", {})[f"GPU{gpu}"] = LEVELS[level]
        return codes

    def p2p_words(self) -> dict[str, Pairs]:
        """Return whether a GPU may read, write, … another, with the words of ``nvidia-smi topo -p2p``."""
        words: dict[str, Pairs] = {}
        for capability, statuses in self.p2p.items():
            for gpu, peer, status in statuses:
                row = words.setdefault(capability, {}).setdefault(f"GPU{gpu}", {})
                row[f"GPU{peer}"] = STATUSES.get(status, UNKNOWN_STATUS)
        return words


def parse_nvml_topology(text: str) -> NvmlTopology:
    """Return the child's answer. Raises ValueError if ``text`` is not one."""
    return NvmlTopology.model_validate_json(text)


def bonded(gpus: Sequence[WiredGpu], p2p: Mapping[str, Pairs]) -> Iterator[tuple[str, str, int]]:
    """Yield pairs of GPUs and the number of NVLinks between them, as nvidia-smi counts.

    Links that lead directly to the other GPU count, otherwise the links that both have to an NVSwitch. If NVML does not
    report where a link leads, two GPUs that it calls NVLink peers count as connected by all their links.
    """
    peers = p2p.get("nvlink", {})
    for gpu, peer in combinations(gpus, 2):
        straight = min(_to_gpu(gpu, peer), _to_gpu(peer, gpu))
        switched = min(_of_kind(gpu, "switch"), _of_kind(peer, "switch"))
        is_ok = peers.get(gpu.column, {}).get(peer.column) == "OK"
        unknown = min(_of_kind(gpu, None), _of_kind(peer, None)) if is_ok else 0
        if links := straight or switched or unknown:
            yield gpu.column, peer.column, links


def _to_gpu(gpu: WiredGpu, peer: WiredGpu) -> int:
    known = peer.bus_id is not None
    return sum(link.active is True and known and link.remote_bus_id == peer.bus_id for link in gpu.nvlinks)


def _of_kind(gpu: WiredGpu, kind: str | None) -> int:
    return sum(link.active is True and link.remote == kind for link in gpu.nvlinks)


_NONE = "N/A"


@dataclass(frozen=True)
class Bus:
    """The devices in /sys: GPUs by column, RDMA devices by name."""

    gpus: Mapping[str, PciDevice]
    nics: Mapping[str, PciDevice]


def live_matrix(answer: NvmlTopology, bus: Bus) -> TopologyMatrix:
    """Return the matrix of the GPUs that answer. Raises LookupError if a path between two is unknown."""
    gpus = {gpu.column: gpu for gpu in answer.ours()}
    hidden = [gpu for gpu in gpus if gpu not in bus.gpus]
    nics = {} if hidden else {device.name: device for device in bus.nics.values()}
    links: Pairs = {name: {} for name in (*gpus, *nics)}
    for gpu, peer, code in _between_gpus(answer, bus):
        links[gpu][peer] = links[peer][gpu] = code
    for (name, place), (nic, device) in (*product(bus.gpus.items(), nics.items()), *combinations(nics.items(), 2)):
        links[name][nic] = links[nic][name] = link_code(place, device)
    return TopologyMatrix(
        gpus=tuple(gpus),
        nics={device.name: name for name, device in bus.nics.items() if device.name in nics},
        links={name: {peer: row[peer] for peer in links if peer != name} for name, row in links.items()},
        cpu_affinity={name: _affinity(gpu.cpu_affinity) for name, gpu in gpus.items()},
        numa_affinity={name: _affinity(gpu.numa_affinity) for name, gpu in gpus.items()},
        gpu_numa_id={name: _NONE if gpu.gpu_numa_id is None else str(gpu.gpu_numa_id) for name, gpu in gpus.items()},
        warnings=(f"{', '.join(hidden)} cannot be seen in /sys, so the NICs near the GPUs are not known",)
        if hidden and bus.nics
        else (),
    )


def _between_gpus(answer: NvmlTopology, bus: Bus) -> Iterator[tuple[str, str, str]]:
    gpus = answer.ours()
    joined = {(gpu, peer): f"NV{links}" for gpu, peer, links in bonded(gpus, answer.p2p_words())}
    levels = answer.pci_codes()
    columns = [gpu.column for gpu in gpus]
    for gpu, peer in combinations(columns, 2):
        code = joined.get((gpu, peer)) or levels.get(gpu, {}).get(peer)
        if code is None and not (gpu in bus.gpus and peer in bus.gpus):
            raise LookupError(f"neither NVML nor /sys shows the path between {gpu} and {peer}")
        yield gpu, peer, code or link_code(bus.gpus[gpu], bus.gpus[peer])


def _affinity(text: str | None) -> str | None:
    """Return the affinity as nvidia-smi prints it: N/A if unknown, blank if no CPU of it is usable."""
    return _NONE if text is None else text or None


_COMMAND = "nvidia-smi topo -m"


class CannotAsk(Exception):
    """NVML is not available or reports no GPU; the message explains why."""


def ask_nvml(ctx: Context, limit_s: float) -> TopologyFact | TopologyHangFact:
    """Return the topology that NVML and /sys report. Raises CannotAsk."""
    left_s = ctx.deadline - ctx.clock() - 1.0
    result = ctx.child("nvml_topology", f"{max(min(limit_s, left_s), 0.1):.1f}")
    try:
        answer = parse_nvml_topology(result.stdout)
    except ValueError:
        if result.status == "timed_out":
            raise TookTooLong("the program that queries NVML timed out without output") from None
        last_line = result.stderr.strip().rpartition("\n")[2][:200] or result.status
        raise CannotAsk(f"the program that queries NVML gave no answer: {last_line}") from None
    ctx.keep(result.stdout)
    if answer.error == "timed_out" and answer.call:
        return TopologyHangFact(asked="NVML", call=answer.call, gpu=answer.gpu, waited_s=answer.elapsed_s)
    if not answer.ours():
        errors = [answer.error, *(gpu.error for gpu in answer.gpus)]
        why = ", ".join(dict.fromkeys(error for error in errors if error)) or "NVML lists no GPU"
        raise CannotAsk(f"{answer.call or 'NVML'}: {why} {answer.text}".rstrip())
    devices = {gpu.column: pci_devices.gpu_device(ctx, gpu.column, gpu.bus_id) for gpu in answer.ours() if gpu.bus_id}
    bus = Bus({name: device for name, device in devices.items() if device}, pci_devices.rdma_devices(ctx))
    try:
        matrix = live_matrix(answer, bus)
    except LookupError as error:
        raise Failed(str(error)) from None
    nics = {device.bus_id for device in bus.nics.values()}
    others = [device for device in pci_devices.net_devices(ctx) if device.bus_id not in nics]
    near_cpus = {name: pci_devices.near_cpus(ctx, device.bus_id) for name, device in bus.gpus.items()}
    own_lines = (line.partition(":") for line in (text_of(ctx, "/proc/self/status") or "").splitlines())
    allowed = (value.strip() for name, _, value in own_lines if name == "Cpus_allowed_list")
    return TopologyFact(
        **dict(matrix),
        source="nvml",
        pci=(*bus.gpus.values(), *bus.nics.values(), *others),
        pci_links=answer.pci_codes(),
        p2p=answer.p2p_words(),
        nvlinks=answer.nvlinks(),
        mig_gpus=tuple(gpu.column for gpu in answer.ours() if gpu.mig_enabled),
        near_cpus={name: cpus for name, cpus in near_cpus.items() if cpus},
        allowed_cpus=next(allowed, None),
        job_gpus=tuple(f"GPU{gpu.index}" for gpu in job_gpus(answer.ours(), ctx.env)),
    )


def ask_nvidia_smi(ctx: Context, limit_s: float, why_not_nvml: str) -> TopologyFact | TopologyHangFact:
    """Return the matrix that nvidia-smi prints. Raises if it prints none."""
    started = ctx.clock()
    result = ctx.run(_COMMAND.split(), limit_s)
    if result.status == "missing":
        why = f"NVML gives no topology ({why_not_nvml}), and nvidia-smi is not installed here"
        raise Failed(why) if host_gpus.gpu_is_given(ctx) else Absent(why)
    raw = result.stdout + result.stderr
    ctx.keep(raw)
    if result.status == "timed_out":
        return TopologyHangFact(asked="nvidia-smi", call=_COMMAND, waited_s=ctx.clock() - started)
    try:
        return TopologyFact(**dict(parse_matrix(raw)), source="nvidia-smi")
    except TopologyError as error:
        first_line = next((line.strip()[:200] for line in raw.splitlines() if line.strip()), "nothing")
        if not host_gpus.gpu_is_due(ctx):
            raise Absent(f"no NVIDIA GPU on this machine; nvidia-smi prints: {first_line}") from None
        raise Failed(f"{_COMMAND} gave no topology ({error}); it prints: {first_line}") from None
