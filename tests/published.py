"""Bandwidths that people have published, and the fit of the costs of a collective to them.

    python -m tests.published

prints the fitted costs, and of each curve how many of its points fall into the band that the others give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddp_doctor.knowledge.network import expected_speed
from ddp_doctor.knowledge.network.expected_speed import Costs, Machine, Plan, band, busbw, rows_of

FILE = Path(expected_speed.__file__).parent / "data/published_bandwidth.ini"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
#: Bundled with torch when most of the curves were measured; publishers seldom name their release.
_RELEASE = "2.27.5"
#: Start of the search for costs.
_SOMEWHERE = Costs(20.0, 1.0)


@dataclass(frozen=True)
class Point:
    machine: Machine
    collective: str
    size_bytes: int
    measured: float

    @cached_property
    def plan(self) -> Plan:
        """Return NCCL's choice, whatever it costs."""
        [row] = rows_of(self.machine, self.collective)
        return row.plan(self.collective, self.size_bytes, nvls=self.machine.nvls)

    def predicted(self, costs: Costs) -> float:
        return busbw(self.plan, self.machine, self.collective, self.size_bytes, costs)

    def is_within(self, costs: Costs) -> bool | None:
        """Return True if it is within the band of these costs; None without a band."""
        if band(self.machine, self.collective, self.size_bytes) is None:
            return None
        off = abs(math.log(self.measured / self.predicted(costs)))
        return off <= math.log(expected_speed.width(self.size_bytes)) / 2


@dataclass(frozen=True)
class Curve:
    name: str
    points: tuple[Point, ...]
    source: str


def curves() -> list[Curve]:
    parser = ConfigParser()
    parser.read(FILE)
    return [Curve(name, tuple(_points(parser[name])), parser[name]["source"]) for name in parser.sections()]


def _points(told: Mapping[str, str]) -> Iterator[Point]:
    count, _, mbps = told.get("nics", "0 0").partition(" ")
    for point in told["points"].split(", "):
        first, measured = point.split()
        ranks, size = (told["ranks"], first) if "ranks" in told else (first, told["size"])
        machine = Machine(
            *(told["gpu"], told["link"], int(ranks), _RELEASE, int(told.get("nodes", 1))),
            (int(mbps) * 1000,) * int(count),
            told.get("network", ""),
            told.get("nvls") != "no",
        )
        size_bytes = int(size[:-1]) * _UNITS[size[-1]]
        yield Point(machine, told.get("collective", "all_reduce"), size_bytes, float(measured))


def fitted(to: Sequence[Curve], start: Costs = _SOMEWHERE) -> Costs:
    """The costs whose logarithms of predicted over measured have the least squares; a search along each in turn."""
    points = [point for curve in to for point in curve.points if point.machine.nodes == 1]

    def error(launch_us: float, latency: float) -> float:
        costs = Costs(launch_us, latency)
        return sum(math.log(point.measured / point.predicted(costs)) ** 2 for point in points)

    best, factor = (start.launch_us, start.latency), 2.0
    while factor > 1.001:
        launch_us, latency = best
        near = [(launch_us * one, latency * two) for one in (1 / factor, 1, factor) for two in (1 / factor, 1, factor)]
        found = min(near, key=lambda it: error(*it))
        best, factor = found, factor if found != best else math.sqrt(factor)
    return Costs(*best)


def left_out(all_of_them: Sequence[Curve]) -> Iterator[tuple[Curve, int, int]]:
    """Each curve, how many of its points fall into the band that is fitted to the others, and how many have one."""
    nearly = fitted(all_of_them)
    for curve in all_of_them:
        costs = fitted([other for other in all_of_them if other is not curve], nearly)
        judged = [within for point in curve.points if (within := point.is_within(costs)) is not None]
        yield curve, sum(judged), len(judged)


if __name__ == "__main__":
    published = curves()
    print(fitted(published))
    for one, within, judged in left_out(published):
        print(f"{one.name}: {within} of {judged}, {len(one.points) - judged} without a band")
