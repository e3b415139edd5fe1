"""NCCL's reported findings and decisions: paths between GPUs, NICs, channels, its tuning table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.planted.world import Ran

#: Parts of NCCL that have to speak; a send goes over the sender's own NIC, not over one of the receiver's rail.
SPEAKS = {"NCCL_DEBUG_SUBSYS": "INIT,GRAPH,NET,TUNING,P2P,SHM", "NCCL_P2P_PXN_LEVEL": "0"}
#: ``GPU/0-1b000 :GPU/0-1b000 (0/5000.0/LOC) GPU/0-43000 (2/48.0/PHB) … NET/0-0 (5/16.0/SYS)``; 2.21: GPU/1B000
_FROM = re.compile(r"NCCL INFO (GPU|NET)/(\S+) :(.*)")
_TO = re.compile(r"(GPU|NET)/(\S+) \(\d+/([\d.]+)/(\w+)\)")
_NIC = re.compile(r"\[(\d+)\](\w+):\d+/\w+")
#: Sends and receives between two ranks; rings and trees have Channel 00/0.
_BY_NIC = re.compile(r"Channel \d+/1 : (\d+)\[\d+\] -> (\d+)\[\d+\] \[(send|receive)\] via NET/IB/(\d+)(/GDRDMA)?")
_PATTERN = re.compile(
    r"Pattern (\d+), crossNic \d, nChannels (\d+), bw ([\d.]+)/([\d.]+), type (\w+/\w+), sameChannels (\d)"
)
_CHOSEN = re.compile(r"AllReduce: (\d+) Bytes -> Algo (\S+) proto (\S+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class Path:
    """NCCL's word for a way, and its rate in GB/s."""

    kind: str
    rate: float


@dataclass(frozen=True)
class ByNic:
    """Over which adapter a rank sends or receives, and whether the adapter reaches the GPU's memory itself."""

    nic: str
    gpudirect: bool


def bus_ids(buses: str) -> list[str]:
    """Return PCI addresses in NCCL's notation: ``00000000:1b:00.0`` is ``1b000``."""
    return [f"{int(bus.replace(':', '').replace('.', ''), 16):x}" for bus in buses.lower().split(",")]


End = int | str


def paths(said: str, gpus: Sequence[str]) -> dict[tuple[End, End], Path]:
    """Return the paths between GPUs of a machine, by their place in ``gpus``, and adapters by name.

    The rate of the slower direction counts: in the other direction NCCL may count a path over NVLink and the faster
    slot of another GPU, which no data use.
    """
    names: dict[tuple[str, str], End] = {("GPU", bus): place for place, bus in enumerate(gpus)}
    names |= {("NET", number): name for number, name in _names(said).items()}
    found: dict[tuple[End, End], Path] = {}
    for kind, start, line in _FROM.findall(said):
        for other_kind, end, rate, way in _TO.findall(line):
            one, other = names.get((kind, _bus(start))), names.get((other_kind, _bus(end)))
            if one is not None and other is not None and one != other:
                found[one, other] = Path(way, float(rate))
    return {
        (one, other): replace(path, rate=min(path.rate, found.get((other, one), path).rate))
        for (one, other), path in found.items()
    }


def _bus(text: str) -> str:
    return text.rpartition("-")[2].lower()


def _names(said: str) -> dict[str, str]:
    return dict(_NIC.findall(next((line for line in said.splitlines() if "NET/IB : Using" in line), "")))


def nics(ran: Ran) -> set[tuple[int, ByNic]]:
    """Each rank's sends to ranks of other hosts, and what it receives of them."""
    return {
        (rank, ByNic(_names(said)[number], bool(gpudirect)))
        for rank, said in enumerate(ran.said)
        for one, two, way, number, gpudirect in _BY_NIC.findall(said)
        if rank == int(one if way == "send" else two)
    }


@dataclass(frozen=True)
class Decided:
    """Channels, patterns of the search (number: channels, GB/s within and between nodes, types), tuning, choice."""

    most_gb_per_s: str
    channels: str
    patterns: tuple[tuple[str, ...], ...]
    trees: tuple[str, ...]  # children, rank, parent by channel: 1/-1/-1->0->-1
    allreduce: tuple[
        str, ...
    ]  # latency in µs and GB/s: Tree, Ring with LL, LL128, Simple each, then what else there is
    chosen: tuple[tuple[str, ...], ...]  # bytes, algorithm, protocol, first and last channel


def decided(said: str) -> Decided:
    """Return the decisions in one rank's log; the tuning table is in rank 0's."""
    most = re.search(r"System : maxBw ([\d.]+)", said)
    channels = re.search(r"(\d+ coll channels, .*per peer)", said)
    trees = re.search(r"NCCL INFO Trees (.*)", said)
    rows = re.findall(r"NCCL INFO +AllReduce \|(.*)\|", said)
    cells = (cell.strip().replace(" ", "") for row in rows for cell in row.split("|"))
    return Decided(
        most[1] if most else "",
        channels[1] if channels else "",
        tuple(dict.fromkeys(_PATTERN.findall(said))),
        tuple(re.findall(r"\[\d+\] (\S+->\d+->\S+)", trees[1] if trees else "")),
        tuple(cells),
        tuple(dict.fromkeys(_CHOSEN.findall(said))),
    )
