"""The matrix of this host, put together from what NVML says of its GPUs and /sys of its NICs.

What ``nvidia-smi topo -m`` would print, but for two things. Its NICs are RDMA devices of Mellanox alone,
in an order of its own; here all RDMA devices stand, by name. And where the driver does not know the way
between two GPUs, /sys says it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddp_doctor.checks.node.topology.formats.nvml_topology import NvmlTopology, bonded
from ddp_doctor.facts.node.topology import Pairs, PciDevice, TopologyMatrix
from ddp_doctor.parse.pci import link_code

_NONE = "N/A"


@dataclass(frozen=True)
class Bus:
    """What /sys shows: GPUs by column, RDMA devices by name."""

    gpus: Mapping[str, PciDevice]
    nics: Mapping[str, PciDevice]


def live_matrix(answer: NvmlTopology, bus: Bus) -> TopologyMatrix:
    """The matrix of the GPUs that answer. Raises LookupError where a way between two is not known at all."""
    gpus = {gpu.column: gpu for gpu in answer.ours()}
    hidden = [gpu for gpu in gpus if gpu not in bus.gpus]
    nics = {} if hidden else {device.name: device for device in bus.nics.values()}
    links: Pairs = {name: {} for name in (*gpus, *nics)}
    for one, two, code in (*_between_gpus(answer, bus), *_to_nics(bus.gpus, nics)):
        links[one][two] = links[two][one] = code
    return TopologyMatrix(
        gpus=tuple(gpus),
        nics={device.name: name for name, device in bus.nics.items() if device.name in nics},
        links={name: {other: row[other] for other in links if other != name} for name, row in links.items()},
        cpu_affinity={name: _affinity(gpu.cpu_affinity) for name, gpu in gpus.items()},
        numa_affinity={name: _affinity(gpu.numa_affinity) for name, gpu in gpus.items()},
        gpu_numa_id={
            name: _NONE if gpu.gpu_numa_id is None else str(gpu.gpu_numa_id) for name, gpu in gpus.items()
        },
        warnings=_warnings(hidden, bus),
    )


def _between_gpus(answer: NvmlTopology, bus: Bus) -> Iterator[tuple[str, str, str]]:
    gpus = answer.ours()
    joined = {(one, two): f"NV{links}" for one, two, links in bonded(gpus, answer.p2p_words())}
    levels = answer.pci_codes()
    columns = [gpu.column for gpu in gpus]
    for at, one in enumerate(columns):
        for two in columns[at + 1 :]:
            code = joined.get((one, two)) or levels.get(one, {}).get(two)
            if code is None and not (one in bus.gpus and two in bus.gpus):
                raise LookupError(f"neither NVML nor /sys tells the way between {one} and {two}")
            yield one, two, code or link_code(bus.gpus[one], bus.gpus[two])


def _to_nics(gpus: Mapping[str, PciDevice], nics: Mapping[str, PciDevice]) -> Iterator[tuple[str, str, str]]:
    for nic, device in nics.items():
        for gpu, other in gpus.items():
            yield gpu, nic, link_code(other, device)
        for earlier, other in nics.items():
            if earlier == nic:
                break
            yield earlier, nic, link_code(other, device)


def _affinity(text: str | None) -> str | None:
    """As nvidia-smi prints it: N/A where there is none, blank where none of it is ours."""
    return _NONE if text is None else text or None


def _warnings(hidden: list[str], bus: Bus) -> tuple[str, ...]:
    if not hidden or not bus.nics:
        return ()
    return (f"{', '.join(hidden)} cannot be seen in /sys, so the NICs near the GPUs are not known",)
