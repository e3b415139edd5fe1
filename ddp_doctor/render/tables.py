"""The tables of the report in a few lines each: all-reduces, GPUs at work, a training step, DDP's buckets.

A training step of 2 ranks, 4 MiB of gradients
 computing     step  waiting  communication  overlap  weak  strong
   10.1 ms  14.3 ms   4.2 ms         7.9 ms      47%   69%     62%
   buckets of 25 MiB: predicted 643 ms, measured 607 ms
   buckets of 0.25 MiB: predicted 494 ms, measured 489 ms

 bucket      size  parameters  in the order in which they are ready
      0  1.00 MiB          12  head.bias to layers.7.bias
      1  24.8 MiB          91  layers.6.weight to embedding.weight
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ddp_doctor.model.report import Measurement
from ddp_doctor.render.layout import Captioned, Table, folded
from ddp_doctor.render.text import amount

#: The rows of a table where every check has a line, and on a screen; the JSON has all.
_SHOWN, _SHOWN_ON_SCREEN = 8, 5


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


def size_lines(measurements: Sequence[Measurement], width: int | None, *, all_rows: bool) -> list[str]:
    """What is measured, the titles, and the smallest and the largest sizes; nothing where none was measured."""
    most = _SHOWN if all_rows else _SHOWN_ON_SCREEN
    known = rows(measurements)
    shown = known if len(known) <= most else known[:1] + known[1 - most :]
    cells = [
        (f"{size}", f"{time_us:.1f}", f"{algbw:.2f}", f"{busbw:.2f}", f"{wrong}")
        for size, time_us, algbw, busbw, wrong in shown
    ]
    titles = ("size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong")
    table = Table(titles, cells, range(len(titles))).lines(width) if cells else []
    is_ours = not any("type" in measurement.labels for measurement in measurements)
    caption = folded(f"all_reduce{', float32 sum' * is_ours}, the slowest rank:", width, indent=1)
    notes = [
        line
        for text in untested(measurements, each=all_rows)
        for line in folded(text, width, indent=1, hang=3).split("\n")
    ]
    return [caption, *table, *notes] if table else []


def untested(measurements: Sequence[Measurement], *, each: bool = False) -> Iterator[str]:
    """The sizes that were left out, what was short, and where ``each`` is told how much would do."""
    for measurement in measurements:
        if measurement.name == "allreduce_untested_from":
            yield f"{amount(measurement.value, 'B')} and above: not tested, {_shortage(measurement, each=each)}"


def _shortage(untested: Measurement, *, each: bool) -> str:
    labels = untested.labels
    if labels.get("short_of") == "memory":
        most, where = amount(float(labels["needs_bytes"]), "B"), labels.get("needs_on", "a host")
        return f"memory was short; all sizes need {most} free on {where}"
    if labels.get("short_of") != "time":
        return "time or memory was short"  # a recording of before this was told
    if "budget_s" in labels:
        would_do = f"; --budget {labels['budget_s']:g} would do"
        return f"time was short{would_do if each and 'reaches_bytes' not in labels else ''}"
    if each and "needs_s" in labels:
        return f"time was short; the next size needs {labels['needs_s']:.0f} s, more than this check has"
    return "time was short"


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
_GPU_RATES = {"matmul_rate": 1e12, "hbm_copy_bandwidth": 1e9, "pcie_h2d_bandwidth": 1e9, "pcie_d2h_bandwidth": 1e9}


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


def gpu_table(measurements: Sequence[Measurement], *, all_rows: bool = False) -> Captioned | None:
    """What each rank's GPU did at work, of many the slowest; None where none was measured."""
    known = gpu_rows(measurements)
    if not known:
        return None
    shown = known if all_rows else chosen_gpus(known)
    which = f"The {len(shown)} slowest of {len(known)} GPUs" if len(shown) < len(known) else "Each rank's GPU"
    cells = [
        (
            f"{row.rank}",
            "" if row.gpu is None else f"{row.gpu}",
            *("-" if rate is None else f"{rate:.1f}" for rate in row[2:]),
        )
        for row in shown
    ]
    titles = ("rank", "GPU", "matmul\n(TFLOP/s)", "copy\n(GB/s)", "from host\n(GB/s)", "to host\n(GB/s)")
    return Captioned(f"{which} at work:", Table(titles, cells, range(len(titles))))


def gpu_lines(measurements: Sequence[Measurement], width: int | None) -> tuple[str, ...]:
    """The same for a screen."""
    table = gpu_table(measurements)
    return table.lines(width) if table else ()


_TIMES = (
    ("computing", "step_compute"),
    ("step", "step_time"),
    ("waiting", "step_exposed"),
    ("communication", "step_communicate"),
)
_SHARES = (("overlap", "step_overlap"), ("weak", "step_weak_scaling"), ("strong", "step_strong_scaling"))


def step_table(measurements: Sequence[Measurement]) -> Captioned | None:
    """The times of a training step and how it scales; None where no steps were measured."""
    by_name = {measurement.name: measurement for measurement in measurements}
    whole = by_name.get("step_time")
    if whole is None:
        return None
    titles = tuple(title for title, _ in (*_TIMES, *_SHARES))
    cells = [_time(by_name, name) for _, name in _TIMES] + [_share(by_name, name) for _, name in _SHARES]
    return Captioned(
        f"A training step of {_of_what(whole)}:",
        Table(titles, [tuple(cells)], range(len(titles))),
        (*_notes(whole), *_buckets(measurements)),
    )


def step_lines(measurements: Sequence[Measurement], width: int | None = None) -> tuple[str, ...]:
    """The same for a screen."""
    table = step_table(measurements)
    return table.lines(width) if table else ()


def _time(by_name: Mapping[str, Measurement], name: str) -> str:
    measurement = by_name.get(name)
    return "-" if measurement is None else amount(_three_digits(max(measurement.value, 0.0)), "s")


def _three_digits(value: float) -> float:
    """Three of them: more is noise."""
    return float(f"{value:.3g}")


def _share(by_name: Mapping[str, Measurement], name: str) -> str:
    measurement = by_name.get(name)
    return "-" if measurement is None else f"{measurement.value:.0%}"


def _of_what(whole: Measurement) -> str:
    mib = float(whole.labels.get("gradient_bytes", 0)) / 2**20
    return f"{whole.labels.get('ranks', '?')} ranks, {mib:.3g} MiB of gradients"


def _notes(whole: Measurement) -> Iterator[str]:
    if whole.labels.get("shared_processors") == "yes":
        yield "other ranks or other work shared the processors: scaling says nothing here"


def _buckets(measurements: Sequence[Measurement]) -> Iterator[str]:
    predicted = {
        measurement.labels["bucket_cap_mib"]: measurement.value
        for measurement in measurements
        if measurement.name == "step_predicted"
    }
    for measurement in measurements:
        if measurement.name == "step_measured":
            cap = measurement.labels["bucket_cap_mib"]
            predicted_s = amount(_three_digits(predicted[cap]), "s")
            measured = amount(_three_digits(measurement.value), "s")
            yield f"buckets of {cap:g} MiB: predicted {predicted_s}, measured {measured}"


#: The rows a person wants on the screen: the first, which is ready first, and the last, which ends the backward.
_BUCKETS_SHOWN = 6


def bucket_table(measurements: Sequence[Measurement]) -> Table | None:
    """DDP's buckets; None where no model of the user's was wrapped."""
    buckets = [measurement for measurement in measurements if measurement.name == "user_model_bucket"]
    if not buckets:
        return None
    known = any(bucket.labels.get("first") for bucket in buckets)
    how = "in the order in which they are ready" if known else "in the order of construction, last layer first"
    return Table(("bucket", "size", "parameters", how), list(_shown_buckets(buckets)), range(3))


def bucket_lines(measurements: Sequence[Measurement], width: int | None = None) -> tuple[str, ...]:
    """The same for a screen, the heading first."""
    table = bucket_table(measurements)
    return tuple(table.lines(width)) if table else ()


_Cells = tuple[str, str, str, str]


def _shown_buckets(buckets: Sequence[Measurement]) -> Iterator[_Cells]:
    count = int(buckets[0].labels["buckets"])
    if count <= _BUCKETS_SHOWN:
        yield from map(_bucket_row, buckets)
        return
    yield from map(_bucket_row, buckets[: _BUCKETS_SHOWN - 2])
    is_last = int(buckets[-1].labels["bucket"]) == count - 1
    left = count - (_BUCKETS_SHOWN - 2) - is_last
    yield ("...", f"{left} more", "", "")
    if is_last:
        yield _bucket_row(buckets[-1])


def _bucket_row(bucket: Measurement) -> _Cells:
    names = [str(bucket.labels.get(end, "")) for end in ("first", "last")]
    which = " to ".join(dict.fromkeys(name for name in names if name))
    return (str(bucket.labels["bucket"]), _size(bucket.value), str(bucket.labels.get("parameters") or "-"), which)


def _size(count: float) -> str:
    return f"{count / 2**20:.3g} MiB" if count >= 2**20 / 100 else f"{count / 2**10:.3g} KiB"
