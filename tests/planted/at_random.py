"""Random machines, reproducible by number: CPUs, PCIe switches, GPUs, NVLinks, adapters.

NVML's data is derived from the same places in the tree: the common ancestor of two GPUs as in nvidia-smi's legend, and
the slower of a GPU's own link and its slot's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from random import Random

from ddp_doctor.checks.node.topology.live import LEVELS
from ddp_doctor.facts.node.topology import PciDevice
from ddp_doctor.parse.pci import link_code
from tests import rdma_trees
from tests.machines import parts
from tests.machines.board import CPUS, PCI, Above, Board
from tests.machines.whole import Whole

#: The stand-in's word for a model, its PCIe generation and how many NVLinks it has.
_MODELS = (("v100", 3, 6), ("a100", 4, 12), ("a100_pcie", 4, 0), ("geforce", 4, 0), ("", 5, 18), ("h100_nvl", 5, 12))
_INTEL = (79, 85, 106, 143, 173, 207)
_AMD = ((23, 49), (25, 1), (25, 17), (26, 2))
_RATES = ("100 Gb/sec (4X EDR)", "200 Gb/sec (4X HDR)", "400 Gb/sec (4X NDR)")
_SPEEDS = {2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
_SWITCH, _CHIPSET, _REDIRECTS = 8, 1, 0x1D


@dataclass(frozen=True)
class Seat:
    bus_id: str
    above: Above
    node: int


@dataclass
class Complex:
    """A PCIe root: root ports, or a switch, or a switch with another below it."""

    bus: int
    node: int
    kind: str
    taken: int = 0

    def seat(self) -> Seat:
        at, self.taken = self.taken, self.taken + 1
        root, port = f"pci0000:{self.bus:02x}", f"0000:{self.bus:02x}:01.0"
        if self.kind == "ports":
            return Seat(f"0000:{self.bus + 1 + at:02x}:00.0", (root, f"0000:{self.bus:02x}:{at + 1:02x}.0"), self.node)
        above = (root, port, f"0000:{self.bus + 1:02x}:00.0")
        if self.kind == "switches" and at % 2:
            below = (
                f"0000:{self.bus + 2:02x}:10.0",
                f"0000:{self.bus + 3:02x}:00.0",
                f"0000:{self.bus + 4:02x}:{at:02x}.0",
            )
            return Seat(f"0000:{self.bus + 5 + at:02x}:00.0", (*above, *below), self.node)
        return Seat(f"0000:{self.bus + 5 + at:02x}:00.0", (*above, f"0000:{self.bus + 2:02x}:{at:02x}.0"), self.node)


def hosts(number: int) -> tuple[list[Whole], int]:
    """Return one machine (every third time two equal ones) and the number of ranks, one per GPU."""
    two = number % 3 == 0
    machines = [at_random(number, node, gpus=2 if two else None) for node in range(2 if two else 1)]
    return machines, sum(len((machine.nvml or {})["NVML_STAND_IN_BUSES"].split(",")) for machine in machines)


def at_random(number: int, node: int = 0, gpus: int | None = None) -> Whole:
    dice = Random(number)
    model, generation, links = dice.choice(_MODELS)
    gpus = gpus or dice.choice((2, 4))
    board = Board(as_root=True)
    parts.linux(board, _cpu(dice), node=node)
    complexes = [
        Complex(0x10 * at, dice.randrange(2), dice.choice(("ports", "switch", "switches"))) for at in range(1, 5)
    ]
    places = sorted((dice.choice(complexes).seat() for _ in range(gpus)), key=lambda seat: seat.bus_id)
    acs = dice.choice((0, 0, _REDIRECTS))
    slots = [_seat_gpu(dice, board, seat, generation, acs) for seat in places]
    refused = _adapters(dice, board, complexes, node)
    parts.driver(board, range(gpus), is_open=dice.random() < 0.5, peermem=dice.random() < 0.5)
    nvml = {
        "NVML_STAND_IN": ",".join(filter(None, (model, {2: "two", 4: "four"}[gpus]))),
        "NVML_STAND_IN_BUSES": ",".join(f"0000{seat.bus_id}" for seat in places),
        "NVML_STAND_IN_PCIE": ",".join(f"{speed}x{width}" for speed, width in slots),
        "NVML_STAND_IN_WIRING": _wiring(dice, places, links),
    }
    return Whole(board, f"node{node}", nvml=nvml, uuids=str(node), refused=refused)


def _cpu(dice: Random) -> str:
    if dice.random() < 0.5:
        return f"vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {dice.choice(_INTEL)}\n"
    family, model = dice.choice(_AMD)
    return f"vendor_id\t: AuthenticAMD\ncpu family\t: {family}\nmodel\t\t: {model}\n"


def _seat_gpu(dice: Random, board: Board, seat: Seat, generation: int, acs: int) -> tuple[int, int]:
    """Return NVML's generation and width: the lower values of the GPU and its slot."""
    board.seat(seat.bus_id, seat.above, node=seat.node, cpus=CPUS[seat.node], acs=acs)
    of_slot = dice.choice((generation, generation, generation - 1)), dice.choice((16, 16, 8))
    link(board, seat.bus_id, generation, 16)
    link(board, seat.above[-1], *of_slot)
    return of_slot


def link(board: Board, bus_id: str, generation: int, width: int) -> None:
    """The PCIe link of a device that is seated, as fast as it can be."""
    for state in ("current", "max"):
        board.tree.write(f"{PCI}/{bus_id}/{state}_link_speed", f"{_SPEEDS[generation]}\n")
        board.tree.write(f"{PCI}/{bus_id}/{state}_link_width", f"{width}\n")


def _adapters(dice: Random, board: Board, complexes: list[Complex], node: int) -> dict[str, OSError]:
    """Up to three, each fifth with its port down; the first works."""
    tree = rdma_trees.Tree()
    tree.verbs("mlx5")
    seats = sorted((dice.choice(complexes).seat() for _ in range(dice.randint(1, 3))), key=lambda seat: seat.bus_id)
    for at, seat in enumerate(seats):
        tree.hca(f"mlx5_{at}", seat.bus_id, at)
        works = at == 0 or dice.random() < 0.8
        state, phys = ("4: ACTIVE", "5: LinkUp") if works else ("1: DOWN", "3: Disabled")
        tree.port(f"mlx5_{at}", rate=dice.choice(_RATES), state=state, phys=phys)
    return board.rdma(tree, {f"mlx5_{at}": (it.bus_id, it.above, it.node) for at, it in enumerate(seats)}, node)


def _wiring(dice: Random, places: list[Seat], links: int) -> str:
    """Return the stand-in's input: sockets, and ancestor, P2P status and NVLinks of each pair."""
    joined = dice.choice((_none, _pairs, _ring, _all, _switch))(len(places), links) if links else {}
    status = _CHIPSET if not joined and dice.random() < 0.25 else 0
    devices = [
        PciDevice(bus_id=it.bus_id, name="", kind="gpu", root=it.above[0], bridges=it.above[1:], numa_node=it.node)
        for it in places
    ]
    levels = {code: level for level, code in LEVELS.items() if level}
    told = [f"{gpu}@{seat.node}" for gpu, seat in enumerate(places)]
    for one, two in combinations(range(len(places)), 2):
        level = levels[link_code(devices[one], devices[two])]
        told.append(f"{one}:{two}={level}/{status}/{joined.get((one, two), 0)}")
    told += [f"{one}:{two}=0/0/{of_switch}" for (one, two), of_switch in joined.items() if two == _SWITCH]
    return " ".join(told)


Joined = dict[tuple[int, int], int]


def _none(_gpus: int, _links: int) -> Joined:
    return {}


def _pairs(gpus: int, links: int) -> Joined:
    return {(one, one + 1): links for one in range(0, gpus, 2)}


def _ring(gpus: int, links: int) -> Joined:
    ends: Iterator[tuple[int, int]] = ((one, (one + 1) % gpus) for one in range(gpus))
    return {(min(pair), max(pair)): links // 2 for pair in ends}


def _all(gpus: int, links: int) -> Joined:
    return dict.fromkeys(combinations(range(gpus), 2), links // (gpus - 1))


def _switch(gpus: int, links: int) -> Joined:
    return {(one, _SWITCH): links for one in range(gpus)}
