"""The machines that are planted, and what the doctor predicts of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddp_doctor.views.transports import places
from tests.machines import servers
from tests.machines.whole import Whole, record


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
    Kind("H100 NVL", lambda: [servers.h100_nvl()], 4),
    Kind("DGX-1", lambda: [servers.v100_dgx1()], 8),
    Kind("GB200", lambda: [servers.gb200()], 4),
    Kind("two DGX H100", lambda: [servers.dgx_h100(node) for node in range(2)], 16),
)


def predicted(machines: Sequence[Whole]) -> dict[tuple[int, int], str]:
    """P2P, SHM or NET from one rank to another, as the doctor has it before anything runs."""
    found: dict[tuple[int, int], str] = {}
    for node, place in enumerate(places(record(machines))):
        first = node * len(place.fact.gpus)
        for pair in place.expected():
            one, two = (first + int(name.removeprefix("GPU")) for name in pair.gpus)
            found[one, two] = pair.choice.kind
    return found
