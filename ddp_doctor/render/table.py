"""The all-reduce table as nccl-tests prints it: size, time, algbw, busbw, #wrong."""

from collections.abc import Sequence

from ddp_doctor.model.report import Measurement

#: The rows a person wants on the screen; the JSON has all.
_SHOWN = 8


Row = tuple[int, float, float, float, int]


def rows(measurements: Sequence[Measurement]) -> list[Row]:
    """(bytes, time in us, algbw in GB/s, busbw in GB/s, wrong elements) per size, smallest first."""
    by_size: dict[int, dict[str, float]] = {}
    for one in measurements:
        if one.name.startswith("allreduce_") and "bytes" in one.labels:
            by_size.setdefault(int(one.labels["bytes"]), {})[one.name] = one.value
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
