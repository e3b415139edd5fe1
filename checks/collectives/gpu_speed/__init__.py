"""GPU speed: how fast is each rank's GPU at work, and in which state is it meanwhile?

Raw input: none; measured on every rank on its own GPU, which NVML is asked about all the while:

    rank 3 cuda:3 NVIDIA H100 80GB HBM3: copies 2541 GB/s, bfloat16 products 702 TFLOP/s, host to device 55.2,
    device to host 54.9 GB/s; SM clock 1560 of 1980 MHz, sw_power_cap, 697 of 700 W, 61 °C, PCIe 5 x16

In DDP every rank waits for the slowest, in every step. The slow rank looks like all others; only its peers wait
longer. An idle GPU shows little, because it lowers power, clocks and PCIe lanes. All GPUs multiply
and copy at the same time, as in a job; copies to and from the host take turns on each node, because GPUs
below one switch share its link. The memory taken is bounded (knowledge/gpu/gpu_speed.py).
"""

from collections.abc import Iterator

from ddp_doctor.checks.collectives.gpu_speed import comparison, host_links, slow_gpus
from ddp_doctor.checks.collectives.gpu_speed.measure import measure
from ddp_doctor.facts.collectives import GpuSpeedFact
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Where
from ddp_doctor.model.context import RankContext
from ddp_doctor.model.fact import Absent
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.model.rule import rules_in
from ddp_doctor.views.gpus import gpus_by_rank


def probe(ctx: RankContext) -> GpuSpeedFact:
    """Measure this rank's GPU. Raises Absent where the ranks run on the CPU."""
    if not ctx.device.startswith("cuda"):
        raise Absent("the ranks run on the CPU")
    return measure(ctx)


#: The report's names of the fact's rates, and the report's unit.
_RATES = (
    ("hbm_copy_bandwidth", "copy_gb_per_s", 1e9, "B/s"),
    ("matmul_rate", "matmul_tflop_per_s", 1e12, "FLOP/s"),
    ("pcie_h2d_bandwidth", "host_to_device_gb_per_s", 1e9, "B/s"),
    ("pcie_d2h_bandwidth", "device_to_host_gb_per_s", 1e9, "B/s"),
)


def measurements(recording: Recording) -> Iterator[Measurement]:
    """The median of each rate, for each rank and its GPU."""
    indices = gpus_by_rank(recording)
    for rank in recording.facts(GpuSpeedFact):
        labels: dict[str, str | int | float] = {"rank": rank.rank or 0, "node": rank.node}
        index = indices.get(rank.rank or 0)
        if index is not None:
            labels["gpu"] = index
        for name, field, factor, unit in _RATES:
            measured = getattr(rank.fact, field)
            if measured is not None:
                yield Measurement(name=name, value=measured.median * factor, unit=unit, labels=labels)


CHECK = Check(
    id="gpu_speed",
    title="Each GPU at work is as fast as its peers",
    where=Where.RANK,
    probe=probe,
    facts=(GpuSpeedFact,),
    rules=rules_in(comparison, host_links, slow_gpus),
    level=Level.STANDARD,
    cost_s=1.5,
    deadline_s=20.0,
    measurements=measurements,
)
