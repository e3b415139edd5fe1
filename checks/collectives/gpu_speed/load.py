"""From single looks at a GPU to its state under load."""

from collections import Counter
from collections.abc import Sequence
from statistics import median_low
from typing import TypeVar

from ddp_doctor.facts.collectives import GpuLoad
from ddp_doctor.model.context import GpuWatched

N = TypeVar("N", int, float)

#: What a GPU is at work on while it is looked at.
MATMUL, COPY, HOST_COPY = "matmul", "copy", "host_copy"


def summed_up(watched: GpuWatched) -> GpuLoad:
    """Clocks and their limits during the matrix products; the PCIe link at its best in any phase.

    A copy within the GPU leaves the link idle, which then saves power, so the highest value counts.
    """
    busy = [sample for sample in watched.samples if sample.phase == MATMUL]
    told = [one.clock_events for one in busy if one.clock_events is not None]
    in_force = Counter(name for names in told for name in names)
    clocks = _known([one.sm_clock_mhz for one in busy])
    return GpuLoad(
        looks=len(busy),
        reason=watched.reason,
        mig_enabled=watched.mig_enabled,
        confidential=watched.confidential,
        sm_clock_mhz=median_low(clocks) if clocks else None,
        sm_clock_max_mhz=watched.sm_clock_max_mhz,
        clock_events={name: round(count / len(told), 2) for name, count in in_force.items()},
        temperature_c=_highest([sample.temperature_c for sample in watched.samples]),
        power_w=_highest([one.power_w for one in busy]),
        power_limit_w=watched.power_limit_w,
        pcie_generation=_highest([sample.pcie_generation for sample in watched.samples]),
        pcie_generation_max=watched.pcie_generation_max,
        pcie_width=_highest([sample.pcie_width for sample in watched.samples]),
        pcie_width_max=watched.pcie_width_max,
    )


def _known(values: Sequence[N | None]) -> list[N]:
    return [value for value in values if value is not None]


def _highest(values: Sequence[N | None]) -> N | None:
    return max(_known(values), default=None)
