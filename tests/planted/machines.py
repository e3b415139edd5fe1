"""The machines that are planted, and what the doctor predicts of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_doctor.views.network import to_network
from ddp_doctor.views.transports import Expected, ToNetwork, places
from tests.machines import servers
from tests.machines.whole import Whole, record
from tests.nvml_stand_in.machine import BUSES
from tests.planted.graph import bus_ids, nics, paths
from tests.planted.world import Ran


@dataclass(frozen=True)
class Kind:
    """A machine of tests/machines, or two of them, and with how many ranks NCCL is run on it."""

    name: str
    build: Callable[[], Sequence[Whole]]
    ranks: int


MACHINES = (
    Kind("DGX H100", lambda: [servers.dgx_h100()], 8),
    Kind("HGX A100 with RoCE", lambda: [servers.hgx_a100_roce()], 8),
    Kind("four A100 PCIe", lambda: [servers.a100_pcie()], 4),
    Kind("four A10G without P2P", lambda: [servers.a10g_pcie()], 4),
    Kind("H100 NVL", lambda: [servers.h100_nvl()], 4),
    Kind("DGX-1", lambda: [servers.v100_dgx1()], 8),
    Kind("GB200", lambda: [servers.gb200()], 4),
    Kind("two hosts of two sockets", lambda: [servers.nic_beside_each_gpu(node) for node in range(2)], 4),
    Kind("two DGX H100", lambda: [servers.dgx_h100(node) for node in range(2)], 16),
)


@dataclass(frozen=True)
class Prediction:
    """The predictions before a run: for pairs of ranks within a node, and each rank's way to the network."""

    pairs: Mapping[tuple[int, int], Expected]
    network: Mapping[int, ToNetwork]


def predicted(machines: Sequence[Whole], release: str) -> Prediction:
    """Return the prediction for NCCL's ``release`` with one rank per GPU."""
    major, minor, patch = map(int, release.split("."))
    code = (major * 100 + minor) * 100 + patch
    recording = record([replace(machine, nccl_version=code) for machine in machines])
    pairs: dict[tuple[int, int], Expected] = {}
    network: dict[int, ToNetwork] = {}
    first = 0
    for place in places(recording):
        for pair in place.expected():
            one, two = (first + int(name.removeprefix("GPU")) for name in pair.gpus)
            pairs[one, two] = pair
        network |= {first + int(way.gpu.removeprefix("GPU")): way for way in to_network(recording, place)}
        first += len(place.fact.gpus)
    return Prediction(pairs, network)


Difference = tuple[str, str]  # of what, and in words


def compared(machines: Sequence[Whole], foreseen: Prediction, ran: Ran) -> tuple[Counter[str], list[Difference]]:
    """Return the number of answers per question, and the answers that differ from NCCL's."""
    asked: Counter[str] = Counter()
    differ: list[Difference] = []
    for question, about, doctor, nccl in _answers(machines, foreseen, ran):
        asked[question] += 1
        if doctor != nccl:
            differ.append((question, f"{about}: predicted {doctor}, NCCL {nccl}"))
    return asked, differ


def _answers(machines: Sequence[Whole], foreseen: Prediction, ran: Ran) -> Iterator[tuple[str, object, object, object]]:
    """Yield question, subject, ddp-doctor's answer and NCCL's; an unsure answer is a separate question."""
    each, ways = len(ran.said) // len(machines), ran.via()
    seen = [
        paths(ran.said[node * each], bus_ids((machine.nvml or {}).get("NVML_STAND_IN_BUSES", _BUSES)))
        for node, machine in enumerate(machines)
    ]
    for (one, two), pair in foreseen.pairs.items():
        unsure = "" if pair.choice.sure else ", unsure"
        yield f"transport{unsure}", (one, two), pair.choice.kind, ways.get((one, two), "").partition("/")[0]
        path = seen[one // each].get((one % each, two % each))
        if path and pair.rate_gb_per_s is not None:
            yield f"rate{unsure}", (one, two, pair.code), round(pair.rate_gb_per_s, 1), path.rate
    for rank, by in sorted(nics(ran), key=str):
        way = foreseen.network.get(rank)
        if way is None:
            yield "NIC", rank, None, by.nic
            continue
        yield "NIC", rank, by.nic if by.nic in way.nics else way.nics, by.nic
        yield "GPUDirect", (rank, by.nic), way.gpudirect, by.gpudirect
    for rank, way in foreseen.network.items():
        for nic in way.nics if len(machines) > 1 else ():
            path = seen[rank // each].get((rank % each, nic))
            if path is not None:
                yield "path to NIC", (rank, nic, way.code), way.nccl_path, path.kind
                yield "rate to NIC", (rank, nic, way.code), way.rate_gb_per_s, path.rate


#: The bus ids of the stand-in's GPUs.
_BUSES = ",".join(f"00000000:{bus}:00.0" for bus in BUSES)
