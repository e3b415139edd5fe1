"""The maximum rates of paths between two GPUs, or a GPU and a network: NCCL's own constants.

GB/s, one way. NCCL weighs paths by these numbers before any measurement. They are somewhat below what a single transfer
reaches on such a link (src/graph/topo.h and topo.cc, ncclTopoNVLinkBw, ncclTopoAddPci, ncclTopoGetInterCpuBw, and
netdevices' speed in Mbit/s over 8000). An unknown rate stays unknown here, although NCCL itself assumes Gen3 for an
unknown PCIe speed and 10 Gbit/s for an unknown network.
"""

from collections.abc import Iterable, Mapping

from ddp_doctor.knowledge.versions import release

#: Below this size an all-reduce is bound by latency: eight A100 reach 73% of their best busbw at 64 MiB, eight H200
#: 72%, eight B200 47% (stas00/ml-engineering, network benchmarks).
LEAST_BYTES = 64 << 20
#: A third of the rate that NCCL's own constants give for the slowest link. Compared with peers, such a difference is an
#: error. The constants are not measurements, so here it is a warning.
FAR_BELOW = 3.0
#: Settings that keep NCCL from moving more at once, or from another way to move it (NCCL user guide, environment
#: variables); without them it chooses by message size and links.
BOUNDING = (*("NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS", "NCCL_NTHREADS", "NCCL_BUFFSIZE"), *("NCCL_ALGO", "NCCL_PROTO"))

#: One NVLink by compute capability, newest first: 18 links of an H100 are 371. NCCL 2.21.5 treats Blackwell as Hopper,
#: 2.27.5 knows it (on simulated GPUs, 2026-11-23).
_NVLINK = (((10, 0), 40.1), ((9, 0), 20.6), ((8, 7), 20.0), ((8, 6), 12.0), ((7, 0), 20.0), ((6, 0), 18.0))
_KNOWS_BLACKWELL = (2, 27)
#: The same by the link speed that the driver prints, fastest first: 53.125 (Blackwell), 26.562 (Hopper), 25.781
#: (Ampere, Volta), 19.531 (Pascal), 14.062 (the bridge of an RTX A6000).
_NVLINK_SPEEDS = ((50.0, 40.1), (26.0, 20.6), (25.0, 20.0), (19.0, 18.0), (14.0, 12.0))
#: PCIe, 16 lanes, by generation.
_PCIE = {1: 3.0, 2: 6.0, 3: 12.0, 4: 24.0, 5: 48.0, 6: 96.0}
_LANES = 16
_GENERATIONS = {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "16": 4, "32.0": 5, "32": 5, "64.0": 6}
#: Between the sockets, by vendor: first NCCL release, first family or model, and rate, newest first. Seen in NCCL
#: 2.21.5, 2.27.5, 2.30.7 and 2.32.3 on simulated GPUs, 2026-11-23: a rate is dated by the first of them that has it.
_BETWEEN_SOCKETS: Mapping[str, tuple[tuple[tuple[int, ...], int, float], ...]] = {
    # Zen 5, Zen 3 and 4; others
    "AuthenticAMD": (((), 27, 16.0), ((2, 32), 26, 32.0), ((2, 32), 25, 24.0), ((), 0, 16.0)),
    # of family 6: Emerald Rapids, Granite Rapids, Sapphire Rapids, Skylake, older
    "GenuineIntel": (
        *(((2, 27), 0xCF, 40.0), ((2, 27), 0xB0, 22.0), ((2, 32), 0xAD, 40.0), ((2, 27), 0x8F, 22.0)),
        *(((), 0x55, 10.0), ((), 0, 6.0)),
    ),
    "ARM": (((), 0, 6.0),),
}
#: Intel's CPUs split peer traffic into small packets, so NCCL rates P2P through them lower.
_INTEL_P2P = 5 / 6


def nvlink(capability: str | None, links: int, version: tuple[int, ...] = ()) -> float | None:
    """Return the rate of ``links`` NVLinks at a compute capability ("9.0"); ``version`` is NCCL's, () if recent."""
    generation = release(capability or "")
    if len(generation) != 2:
        return None
    rates = _NVLINK[1:] if version and version < _KNOWS_BLACKWELL else _NVLINK
    # NCCL uses the slower rate only for 86, and the rate of 80 for 87 and 89.
    return next((rate * links for since, rate in rates if generation >= since), None)


def nvlink_of_speed(gb_per_s: float | None, links: int) -> float | None:
    """Return the rate of ``links`` NVLinks that each have this speed according to the driver."""
    if gb_per_s is None:
        return None
    return next((rate * links for since, rate in _NVLINK_SPEEDS if gb_per_s >= since), None)


def pcie_generation(speed: str | None) -> int | None:
    """Return the generation of a speed as /sys prints it: 5 for "32.0 GT/s PCIe"."""
    return _GENERATIONS.get((speed or "").partition(" GT/s")[0])


def pcie(generation: int | None, width: int | None) -> float | None:
    """Return the rate of a slot of this generation and width."""
    if generation not in _PCIE or not width:
        return None
    return _PCIE[generation] * width / _LANES


def between_sockets(
    vendor: str | None, family: int | None, model: int | None, version: tuple[int, ...] = ()
) -> float | None:
    """Return the rate between NUMA nodes; ``model`` is Intel's in family 6, ``version`` NCCL's, () if recent."""
    number = {"GenuineIntel": model, "AuthenticAMD": family or 0, "ARM": 0}.get(vendor or "")
    if number is None:
        return None
    rows = _BETWEEN_SOCKETS[vendor or ""]
    return next(rate for since, first, rate in rows if number >= first and (not version or version >= since))


def through_cpu(rate: float | None, vendor: str | None) -> float | None:
    """Return the rate that P2P through the CPU leaves of a rate."""
    return rate * _INTEL_P2P if rate is not None and vendor == "GenuineIntel" else rate


def network(speed_mbps: int | None) -> float | None:
    """Return the rate of a port of this speed."""
    return speed_mbps / 8000 if speed_mbps and speed_mbps > 0 else None


def slowest(rates: Iterable[float | None]) -> float | None:
    """Return the rate of a path, which is its slowest part, or None if the rate of a part is unknown."""
    known = list(rates)
    return min(rate for rate in known if rate is not None) if known and None not in known else None
