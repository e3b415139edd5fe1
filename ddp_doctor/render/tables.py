"""The tables of the report in a few lines each: all-reduces, GPUs at work, a training step, DDP's buckets.

  computing       step    waiting  communication  overlap   weak  strong
    10.1 ms    14.3 ms     4.2 ms         7.9 ms     47 %   69 %    62 %  2 ranks, 4 MiB of gradients
buckets of 25 MiB: predicted 643 ms, measured 607 ms
buckets of 0.25 MiB: predicted 494 ms, measured 489 ms

bucket        size  parameters
     0    1.00 MiB          12  head.bias to layers.7.bias
     1    24.8 MiB          91  layers.6.weight to embedding.weight
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddp_doctor.model.report import Measurement
from ddp_doctor.render.text import amount

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


_TIMES = (("computing", "step_compute", 10), ("step", "step_time", 10), ("waiting", "step_exposed", 10))
_COMMUNICATION = (("communication", "step_communicate", 14),)
_SHARES = (
    ("overlap", "step_overlap", 8),
    ("weak", "step_weak_scaling", 6),
    ("strong", "step_strong_scaling", 7),
)


def step_lines(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """The heading first; nothing where no steps were measured."""
    by_name = {measurement.name: measurement for measurement in measurements}
    whole = by_name.get("step_time")
    if whole is None:
        return ()
    heading = "".join(f"{title:>{width}} " for title, _, width in (*_TIMES, *_COMMUNICATION, *_SHARES))
    cells = [_time(by_name, name, width) for _, name, width in (*_TIMES, *_COMMUNICATION)]
    cells += [_share(by_name, name, width) for _, name, width in _SHARES]
    return (heading.rstrip(), f"{''.join(cells)} {_of_what(whole)}", *_notes(whole), *_buckets(measurements))


def _time(by_name: Mapping[str, Measurement], name: str, width: int) -> str:
    measurement = by_name.get(name)
    return f"{'-' if measurement is None else amount(_digits(max(measurement.value, 0.0)), 's'):>{width}} "


def _digits(value: float) -> float:
    """Three of them: more is noise."""
    return float(f"{value:.3g}")


def _share(by_name: Mapping[str, Measurement], name: str, width: int) -> str:
    measurement = by_name.get(name)
    return f"{'-' if measurement is None else f'{measurement.value:.0%}':>{width}} "


def _of_what(whole: Measurement) -> str:
    mib = float(whole.labels.get("gradient_bytes", 0)) / 2**20
    return f"{whole.labels.get('ranks', '?')} ranks, {mib:.3g} MiB of gradients"


def _notes(whole: Measurement) -> Iterator[str]:
    if whole.labels.get("shared_processors") == "yes":
        yield "  other ranks or other work shared the processors: scaling says nothing here"


def _buckets(measurements: Sequence[Measurement]) -> Iterator[str]:
    predicted = {
        measurement.labels["bucket_cap_mib"]: measurement.value
        for measurement in measurements
        if measurement.name == "step_predicted"
    }
    for measurement in measurements:
        if measurement.name == "step_measured":
            cap = measurement.labels["bucket_cap_mib"]
            predicted_s = amount(_digits(predicted[cap]), "s")
            measured = amount(_digits(measurement.value), "s")
            yield f"  buckets of {cap:g} MiB: predicted {predicted_s}, measured {measured}"


#: The rows a person wants on the screen: the first, which is ready first, and the last, which ends the backward.
_BUCKETS_SHOWN = 6


def bucket_lines(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """The heading first; nothing where no model of the user's was wrapped."""
    rows = [measurement for measurement in measurements if measurement.name == "user_model_bucket"]
    if not rows:
        return ()
    known = any(row.labels.get("first") for row in rows)
    how = (
        "in the order in which they are ready" if known else "in the order of construction, last layer first"
    )
    heading = f"{'bucket':>8} {'size':>12} {'parameters':>11}  {how}"
    return (heading, *_shown_buckets(rows))


def _shown_buckets(rows: Sequence[Measurement]) -> Iterator[str]:
    count = int(rows[0].labels["buckets"])
    if count <= _BUCKETS_SHOWN:
        yield from map(_bucket_row, rows)
        return
    yield from map(_bucket_row, rows[: _BUCKETS_SHOWN - 2])
    is_last = int(rows[-1].labels["bucket"]) == count - 1
    left = count - (_BUCKETS_SHOWN - 2) - is_last
    yield f"{'...':>8} {left} more"
    if is_last:
        yield _bucket_row(rows[-1])


def _bucket_row(row: Measurement) -> str:
    names = [str(row.labels.get(end, "")) for end in ("first", "last")]
    which = " to ".join(dict.fromkeys(name for name in names if name))
    number = row.labels.get("parameters") or "-"
    return f"{row.labels['bucket']:>8} {_size(row.value):>12} {number:>11}  {which}".rstrip()


def _size(count: float) -> str:
    return f"{count / 2**20:.3g} MiB" if count >= 2**20 / 100 else f"{count / 2**10:.3g} KiB"
