"""The tables of the report: all-reduces as nccl-tests prints them, and the GPUs at work."""

from collections.abc import Sequence
from typing import NamedTuple

from ddp_doctor.model.report import Measurement

#: The rows a person wants on the screen; the JSON has all.
_SHOWN = 8


Row = tuple[int, float, float, float, int]


def rows(measurements: Sequence[Measurement]) -> list[Row]:
    """(bytes, time in us, algbw in GB/s, busbw in GB/s, wrong elements) per size, smallest first."""
    by_size: dict[int, dict[str, float]] = {}
    for measurement in measurements:
        if measurement.name.startswith("allreduce_") and "bytes" in measurement.labels:
            by_size.setdefault(int(measurement.labels["bytes"]), {})[measurement.name] = measurement.value
    return [
        (
            size,
            values["allreduce_time"] * 1e6,
            values["allreduce_algbw"] / 1e9,
            values["allreduce_busbw"] / 1e9,
            int(values.get("allreduce_wrong", 0)),
        )
        for size, values in sorted(by_size.items())
    ]


def chosen(all_rows: list[Row]) -> list[Row]:
    """At most eight rows: the smallest, and the largest ones."""
    return all_rows if len(all_rows) <= _SHOWN else all_rows[:1] + all_rows[1 - _SHOWN :]


class GpuRow(NamedTuple):
    """One rank's GPU; None is not measured."""

    rank: int
    gpu: int | None
    matmul_tflop_per_s: float | None
    copy_gb_per_s: float | None
    from_host_gb_per_s: float | None
    to_host_gb_per_s: float | None


def gpu_rows(measurements: Sequence[Measurement]) -> list[GpuRow]:
    """One row a rank, in order."""
    by_rank: dict[int, dict[str, Measurement]] = {}
    for measurement in measurements:
        if measurement.name in _GPU_RATES:
            by_rank.setdefault(int(measurement.labels["rank"]), {})[measurement.name] = measurement
    return [_gpu_row(rank, rates) for rank, rates in sorted(by_rank.items())]


#: Names of the check gpu_speed, and what makes the table's unit of the report's.
_GPU_RATES = {
    "matmul_rate": 1e12,
    "hbm_copy_bandwidth": 1e9,
    "pcie_h2d_bandwidth": 1e9,
    "pcie_d2h_bandwidth": 1e9,
}


def _gpu_row(rank: int, rates: dict[str, Measurement]) -> GpuRow:
    gpu = next(iter(rates.values())).labels.get("gpu")
    values = [rates[name].value / unit if name in rates else None for name, unit in _GPU_RATES.items()]
    return GpuRow(rank, None if gpu is None else int(gpu), *values)


def chosen_gpus(all_rows: list[GpuRow]) -> list[GpuRow]:
    """All GPUs of one node; of many, the eight that multiply most slowly, because all ranks wait for them."""
    if len(all_rows) <= _ONE_NODE:
        return all_rows
    return sorted(all_rows, key=lambda row: row.matmul_tflop_per_s or 0.0)[:_SHOWN]


#: The most GPUs of a usual node.
_ONE_NODE = 16
