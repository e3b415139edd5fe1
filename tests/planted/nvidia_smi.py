#!/usr/bin/env python3
"""nvidia-smi of a planted machine: as much as the doctor and tests/gpu read of it, from the planted NVML and /sys.

Takes ``-L``, ``topo -m`` and ``--query-gpu=FIELD,... --format=csv,noheader,nounits``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

import pynvml as nvml  # noqa: TID253  a program of its own

MIB = 2**20
FIELDS: dict[str, Callable[[object], object]] = {
    "index": nvml.nvmlDeviceGetIndex,
    "uuid": nvml.nvmlDeviceGetUUID,
    "name": nvml.nvmlDeviceGetName,
    "pci.bus_id": lambda gpu: nvml.nvmlDeviceGetPciInfo(gpu).busId,
    "compute_cap": lambda gpu: "{}.{}".format(*nvml.nvmlDeviceGetCudaComputeCapability(gpu)),
    "driver_version": lambda _gpu: nvml.nvmlSystemGetDriverVersion(),
    "memory.total": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).total // MIB,
    "memory.used": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2).used // MIB,
    "ecc.mode.current": lambda gpu: _able(nvml.nvmlDeviceGetEccMode(gpu)[0]),
    "ecc.errors.uncorrected.volatile.total": lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, 1, 0),
    "pcie.link.gen.current": nvml.nvmlDeviceGetCurrPcieLinkGeneration,
    "pcie.link.gen.max": nvml.nvmlDeviceGetMaxPcieLinkGeneration,
    "pcie.link.width.current": nvml.nvmlDeviceGetCurrPcieLinkWidth,
    "pcie.link.width.max": nvml.nvmlDeviceGetMaxPcieLinkWidth,
    "persistence_mode": lambda gpu: _able(nvml.nvmlDeviceGetPersistenceMode(gpu)),
    "compute_mode": lambda gpu: ("Default", "", "Prohibited", "Exclusive_Process")[nvml.nvmlDeviceGetComputeMode(gpu)],
    "enforced.power.limit": lambda gpu: f"{nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3:.2f}",
    "clocks.max.sm": lambda gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
}
#: nvmlGpuTopologyLevel_t.
LEVELS = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_SYS = Path("/sys")


def main(arguments: Sequence[str]) -> None:
    nvml.nvmlInit()
    gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    match [argument.partition("=") for argument in arguments]:
        case [("-L", *_)]:
            for gpu in gpus:
                print("GPU {}: {} (UUID: {})".format(*(FIELDS[name](gpu) for name in ("index", "name", "uuid"))))
        case [("topo", *_), ("-m", *_)]:
            _print_matrix(gpus)
        case [("--query-gpu", _, fields), ("--format", _, "csv,noheader,nounits")]:
            for gpu in gpus:
                print(", ".join(_cell(name, gpu) for name in fields.split(",")))
        case _:
            sys.exit(f"planted: nvidia-smi {' '.join(arguments)} is not planted")


def _cell(field: str, gpu: object) -> str:
    try:
        return str(FIELDS[field](gpu))
    except nvml.NVMLError_NotSupported:
        return "[N/A]"


def _able(is_on: int) -> str:
    return "Enabled" if is_on else "Disabled"


def _print_matrix(gpus: Sequence[object]) -> None:
    """Ways between GPUs are NVML's; those to adapters are counted in /sys."""
    folders = (file.resolve() for file in sorted((_SYS / "class/infiniband").glob("mlx5_*")))
    nics = [file for file in folders if (file / "../..").resolve().name != "virtual"]
    devices: list[object] = [*gpus, *nics]
    names = [*(f"GPU{at}" for at in range(len(gpus))), *(f"NIC{at}" for at in range(len(nics)))]
    print("", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID", sep="\t")
    for name, device in zip(names, devices, strict=True):
        ways = [" X " if device is other else _way(device, other) for other in devices]
        print(name, *ways, *(() if isinstance(device, Path) else _near(device)), sep="\t")
    print("\nLegend:\n\n  X    = Self\n\nNIC Legend:\n")
    for at, nic in enumerate(nics):
        print(f"  NIC{at}: {nic.name}")


def _way(one: object, two: object) -> str:
    if isinstance(one, Path) or isinstance(two, Path):
        return _way_in_sys(_bridges(one), _bridges(two))
    links = sum(_leads_to(one, link, two) for link in range(nvml.NVML_NVLINK_MAX_LINKS))
    return f"NV{links}" if links else LEVELS[nvml.nvmlDeviceGetTopologyCommonAncestor(one, two)]


def _leads_to(one: object, link: int, two: object) -> bool:
    """Return True if this NVLink goes to the other GPU, or if the same link of both goes to a switch."""
    try:
        kinds = [nvml.nvmlDeviceGetNvLinkRemoteDeviceType(gpu, link) for gpu in (one, two)]
        if not (nvml.nvmlDeviceGetNvLinkState(one, link) and nvml.nvmlDeviceGetNvLinkState(two, link)):
            return False
    except nvml.NVMLError:
        return False
    if kinds == [nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH] * 2:
        return True
    return bool(nvml.nvmlDeviceGetNvLinkRemotePciInfo(one, link).busId == nvml.nvmlDeviceGetPciInfo(two).busId)


def _bridges(device: object) -> tuple[str, list[str]]:
    bus_id = nvml.nvmlDeviceGetPciInfo(device).busId[4:].lower() if not isinstance(device, Path) else ""
    folder = (device / "device" if isinstance(device, Path) else _SYS / "bus/pci/devices" / bus_id).resolve()
    return (folder / "numa_node").read_text(), list(folder.relative_to(_SYS / "devices").parts[:-1])


def _way_in_sys(one: tuple[str, list[str]], two: tuple[str, list[str]]) -> str:
    (node, first), (other, second) = one, two
    shared = len([*takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))])
    if shared == 0:
        return "NODE" if node == other else "SYS"
    if shared == 1:
        return "PHB"
    return "PIX" if max(len(first), len(second)) - shared <= 1 else "PXB"


def _near(gpu: object) -> tuple[str, str, str]:
    """CPUs, NUMA node of those, and the GPU's own."""
    try:
        cpus = _listed(nvml.nvmlDeviceGetCpuAffinity(gpu, 2))
        nodes = _listed(nvml.nvmlDeviceGetMemoryAffinity(gpu, 2, nvml.NVML_AFFINITY_SCOPE_NODE))
    except nvml.NVMLError_NotSupported:
        cpus = nodes = "N/A"
    try:
        return cpus, nodes, str(nvml.nvmlDeviceGetNumaNodeId(gpu))
    except nvml.NVMLError_NotSupported:
        return cpus, nodes, "N/A"


def _listed(words: Sequence[int]) -> str:
    """``0-31,64-95`` of a bitmap in words of 64."""
    found = [at for at in range(64 * len(words)) if words[at // 64] >> at % 64 & 1]
    starts = [at for at in found if at - 1 not in found]
    ends = [at for at in found if at + 1 not in found]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


if __name__ == "__main__":
    main(sys.argv[1:])
