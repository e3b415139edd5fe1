"""The short tables of the report: all-reduces, GPU speed, a training step, DDP's buckets, groups of nodes.

A training step of 2 ranks, 4 MiB of gradients
 computing     step  waiting  communication  overlap  weak  strong
   10.1 ms  14.3 ms   4.2 ms         7.9 ms      47%   69%     62%
   buckets of 25 MiB: predicted 643 ms, measured 607 ms
   buckets of 0.25 MiB: predicted 494 ms, measured 489 ms

 bucket      size  parameters  in order of readiness
      0  1.00 MiB          12  head.bias to layers.7.bias
      1  24.8 MiB          91  layers.6.weight to embedding.weight

 round  what          groups  failed  seconds
     0  nodes alone        8       0      4.1
   2-4  pairs              4       1     36.2
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from ddp_doctor.facts.collectives import IsolationFact
from ddp_doctor.model.base import grouped
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Measurement
from ddp_doctor.render.layout import Table, folded
from ddp_doctor.render.text import amount
from ddp_doctor.views.rates import FAILED

#: Number of rows in the full report (-v) and on a screen; the JSON has all.
_SHOWN, _SHOWN_ON_SCREEN = 8, 5
#: GB/s; less prints as 0.00.
_LEAST_RATE = 0.005


Row = tuple[int, float, float, float, int]


def rows(measurements: Sequence[Measurement]) -> list[Row]:
    """Return (bytes, time in us, algbw in GB/s, busbw in GB/s, wrong elements) per size, smallest first."""
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


def rows_with_rate(measurements: Sequence[Measurement]) -> list[Row]:
    """Return the rows without rates that round to 0.00 GB/s, unless all do or elements are wrong."""
    known = rows(measurements)
    return [row for row in known if row[3] >= _LEAST_RATE or row[4]] or known


def gb_per_s(rate: float) -> str:
    """Return ``1.18``, ``0.0023``: two decimals, or as many as a low rate needs."""
    return f"{rate:.2f}" if rate >= _LEAST_RATE else f"{rate:.2g}"


def size_lines(measurements: Sequence[Measurement], width: int | None, *, all_rows: bool) -> list[str]:
    """Return the table of all-reduces, on a screen with the smallest and the largest sizes; empty if none ran."""
    most = _SHOWN if all_rows else _SHOWN_ON_SCREEN
    known = rows_with_rate(measurements)
    if known and not any(busbw for _, _, _, busbw, _ in known):
        return [" all_reduce: one rank sends nothing, so there is no bandwidth."]
    shown = known if len(known) <= most else known[:1] + known[1 - most :]
    cells = [
        (f"{size}", f"{time_us:.1f}", gb_per_s(algbw), gb_per_s(busbw), f"{wrong}")
        for size, time_us, algbw, busbw, wrong in shown
    ]
    titles = ("size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong")
    table = Table(titles, cells, range(len(titles))).lines(width) if cells else []
    is_ours = not any("type" in each.labels for each in measurements if each.name.startswith("allreduce_"))
    caption = folded(f"all_reduce{', float32 sum' * is_ours}, the slowest rank:", width, indent=1)
    notes = [
        line
        for text in untested(measurements, each=all_rows)
        for line in folded(text, width, indent=1, hang=3).split("\n")
    ]
    return [caption, *table, *notes] if table else []


def untested(measurements: Sequence[Measurement], *, each: bool = False) -> Iterator[str]:
    """Yield the sizes that were not tested and what was short; with ``each``, how much would be enough."""
    for measurement in measurements:
        if measurement.name == "allreduce_untested_from":
            yield f"{amount(measurement.value, 'B')} and above: not tested, {_shortage(measurement, each=each)}"


def _shortage(untested: Measurement, *, each: bool) -> str:
    labels = untested.labels
    if labels.get("short_of") == "memory":
        most, where = amount(float(labels["needs_bytes"]), "B"), labels.get("needs_on", "a host")
        return f"not enough memory; all sizes need {most} free on {where}"
    if labels.get("short_of") != "time":
        return "not enough time or memory"  # an older recording without the reason
    if "budget_s" in labels:
        enough = f"; --budget {labels['budget_s']:g} is enough"
        return f"not enough time{enough if each and 'reaches_bytes' not in labels else ''}"
    if each and "needs_s" in labels:
        return f"not enough time; the next size needs {labels['needs_s']:.0f} s, which is more than this check has"
    return "not enough time"


def lines(table: Table | None, width: int | None = None) -> tuple[str, ...]:
    """Return the lines of a table on a screen; empty without a table."""
    return tuple(table.lines(width)) if table else ()


#: nccl-tests' columns (src/common.cu).
_COLUMNS = ("size\n(B)", "count\n(elements)", "type", "redop", "root")
_IN_PLACE = {False: "out of place", True: "in place"}
_OF_EACH_WAY = ("time\n(us)", "algbw\n(GB/s)", "busbw\n(GB/s)", "#wrong")


def collectives_tables(measurements: Sequence[Measurement], *, all_rows: bool) -> Iterator[Table]:
    """Yield the table of nccl-tests for each collective, or one table with the largest size of each.

    The notes below a table have what nccl-tests does not print.
    """
    by_row: dict[tuple[str, str, int], dict[bool, dict[str, Measurement]]] = {}
    for measured in measurements:
        if "redop" in measured.labels:
            name, _, what = measured.name.rpartition("_")
            key = name, str(measured.labels.get("group", "")), int(measured.labels["bytes"])
            by_row.setdefault(key, {}).setdefault(measured.labels["in_place"] == "yes", {})[what] = measured
    tables = grouped(((name, group), ways) for (name, group, _), ways in sorted(by_row.items()))
    if not all_rows:
        largest = [((name, group), next(iter(ways[-1].values()))) for (name, group), ways in tables.items()]
        rows = [
            (f"{name} {group}".strip(), str(way["time"].labels["bytes"]), *_numbers(way))
            for (name, group), way in largest
        ]
        names = ("collective", "size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong")
        if rows:
            yield Table(names, rows, range(1, 6), "Collectives, largest size of each:")
        return
    for (name, group), of_sizes in tables.items():
        every = (way for ways in of_sizes for way in ways.values())
        worst = max(every, key=lambda way: way["longest"].value / way["median"].value)
        size, rank = amount(float(worst["time"].labels["bytes"]), "B"), worst["longest"].labels["rank"]
        times = ", ".join(f"{what} {three_digits(worst[what].value)}" for what in ("median", "p99", "longest"))
        note = f"largest spread at {size}: {times}, on rank {rank}"
        tested = [in_place for in_place in (False, True) if any(in_place in ways for ways in of_sizes)]
        titles = (*_COLUMNS, *_OF_EACH_WAY * len(tested))
        caption = f"{name} {group}".strip() + f", {' and '.join(_IN_PLACE[in_place] for in_place in tested)}:"
        rows = [_nccl_tests_row(ways, tested) for ways in of_sizes]
        yield Table(titles, rows, range(len(titles)), caption, (note,))


def _nccl_tests_row(ways: dict[bool, dict[str, Measurement]], tested: Sequence[bool]) -> tuple[str, ...]:
    labels = next(iter(ways.values()))["time"].labels
    cells = [str(labels[name]) for name in ("bytes", "count", "type", "redop", "root")]
    for in_place in tested:
        way = ways.get(in_place)
        cells += ["-"] * len(_OF_EACH_WAY) if way is None else _numbers(way)
    return tuple(cells)


def _numbers(way: dict[str, Measurement]) -> tuple[str, ...]:
    rates = (gb_per_s(way[name].value / 1e9) for name in ("algbw", "busbw"))
    return f"{way['time'].value * 1e6:.1f}", *rates, f"{way['wrong'].value:.0f}"


#: Measurements of the check gpu_speed, and the divisor from the report's unit to the table's.
_GPU_RATES = {"matmul_rate": 1e12, "hbm_copy_bandwidth": 1e9, "pcie_h2d_bandwidth": 1e9, "pcie_d2h_bandwidth": 1e9}
#: Maximum number of GPUs of a usual node.
_ONE_NODE = 16


def gpu_table(measurements: Sequence[Measurement]) -> Table | None:
    """Return the speed of each rank's GPU, or of the eight slowest if there are many; None if none was measured."""
    rates: dict[int, dict[str, float]] = {}
    gpus: dict[int, str] = {}
    for measurement in measurements:
        if measurement.name in _GPU_RATES:
            rank = int(measurement.labels["rank"])
            rates.setdefault(rank, {})[measurement.name] = measurement.value / _GPU_RATES[measurement.name]
            gpus.setdefault(rank, str(measurement.labels.get("gpu", "")))
    if not rates:
        return None
    shown, which = sorted(rates), "Each rank's GPU"
    if len(rates) > _ONE_NODE:
        shown = sorted(shown, key=lambda rank: rates[rank].get("matmul_rate", 0.0))[:_SHOWN]
        which = f"The {_SHOWN} slowest of {len(rates)} GPUs"
    cells = [
        (f"{rank}", gpus[rank], *(f"{rates[rank][name]:.1f}" if name in rates[rank] else "-" for name in _GPU_RATES))
        for rank in shown
    ]
    titles = ("rank", "GPU", "matmul\n(TFLOP/s)", "copy\n(GB/s)", "from host\n(GB/s)", "to host\n(GB/s)")
    return Table(titles, cells, range(len(titles)), f"{which} under load:")


_TIMES = {
    "computing": "step_compute",
    "step": "step_time",
    "waiting": "step_exposed",
    "communication": "step_communicate",
}
_SHARES = {"overlap": "step_overlap", "weak": "step_weak_scaling", "strong": "step_strong_scaling"}


def step_table(measurements: Sequence[Measurement]) -> Table | None:
    """Return the times of a training step and how it scales; None if no steps were measured."""
    values = {measurement.name: measurement.value for measurement in measurements}
    whole = next((measurement for measurement in reversed(measurements) if measurement.name == "step_time"), None)
    if whole is None:
        return None
    cells = {title: three_digits(max(values[name], 0.0)) for title, name in _TIMES.items() if name in values}
    # Ranks that share processors with other work do not show how the step scales.
    shares = _SHARES if whole.labels.get("shared_processors") != "yes" else {"overlap": "step_overlap"}
    cells |= {title: f"{values[name]:.0%}" for title, name in shares.items() if name in values}
    mib = float(whole.labels.get("gradient_bytes", 0)) / 2**20
    caption = f"A training step of {whole.labels.get('ranks', '?')} ranks, {mib:.3g} MiB of gradients:"
    notes = []
    of_caps = [(measurement.labels.get("bucket_cap_mib"), measurement) for measurement in measurements]
    predicted = {cap: measurement.value for cap, measurement in of_caps if measurement.name == "step_predicted"}
    for cap, measurement in of_caps:
        if measurement.name == "step_measured":
            both = f"predicted {three_digits(predicted[cap])}, measured {three_digits(measurement.value)}"
            notes.append(f"buckets of {cap:g} MiB: {both}")
    return Table(tuple(cells), [tuple(cells.values())], range(len(cells)), caption, tuple(notes))


def advice_table(measurements: Sequence[Measurement]) -> Table | None:
    """Return the tests of a trace's advice, with and without each change; None if there are none."""
    without, changed = (
        [each for each in measurements if each.name == name] for name in ("step_as_the_job", "step_changed")
    )
    rows = [
        (
            str(before.labels["change"]),
            _spread(before),
            _spread(after),
            f"{1 - after.value / before.value:.0%}",
            f"{before.labels['at_most']:.0%}",
        )
        for before, after in zip(without, changed, strict=True)
    ]
    titles = ("changed", "step before", "step with the change", "gain", "expected at most")
    return Table(titles, rows, range(1, 5), "Advice of the trace, each tested with and without:") if rows else None


def _spread(measured: Measurement) -> str:
    least, most = (three_digits(float(measured.labels[bound])) for bound in ("least", "most"))
    return f"{three_digits(measured.value)} ({least} to {most})"


def three_digits(seconds: float) -> str:
    """Return the time with three digits: more is noise."""
    return amount(float(f"{seconds:.3g}"), "s")


#: Number of rows on a screen: the first buckets, which are ready first, and the last one, which ends the backward.
_BUCKETS_SHOWN = 6


def bucket_table(measurements: Sequence[Measurement]) -> Table | None:
    """Return DDP's buckets, or None if no user model was wrapped."""
    buckets = [measurement for measurement in measurements if measurement.name == "user_model_bucket"]
    if not buckets:
        return None
    known = any(bucket.labels.get("first") for bucket in buckets)
    how = "in order of readiness" if known else "in order of construction, last layer first"
    rows = []
    for bucket in buckets:
        number, *ends = (str(bucket.labels.get(label, "")) for label in ("bucket", "first", "last"))
        size = f"{bucket.value / 2**20:.3g} MiB" if bucket.value >= 2**20 / 100 else f"{bucket.value / 2**10:.3g} KiB"
        which = " to ".join(dict.fromkeys(filter(None, ends)))
        rows.append((number, size, str(bucket.labels.get("parameters") or "-"), which))
    count = int(buckets[0].labels["buckets"])
    if count > _BUCKETS_SHOWN:
        first, last = rows[: _BUCKETS_SHOWN - 2], rows[-1:] if rows[-1][0] == str(count - 1) else []
        rows = [*first, ("...", f"{count - len(first) - len(last)} more", "", ""), *last]
    return Table(("bucket", "size", "parameters", how), rows, range(3))


_ROUNDS = ("round", "what", "groups", "failed", "seconds")


def isolation_table(recording: Recording) -> Table | None:
    """Return the rounds of tests of groups of nodes, equal rounds in one row; None if there are none."""
    fact = recording.first(IsolationFact)
    if fact is None or not fact.tests:
        return None
    by_round = [list(tests) for _, tests in groupby(fact.tests, key=lambda test: test.round)]
    rows = []
    for _, alike in groupby(by_round, key=lambda tests: [test.nodes for test in tests]):
        rounds = list(alike)
        first, last = rounds[0][0].round, rounds[-1][0].round
        tests = [test for one in rounds for test in one]
        seconds = max(test.at_s + test.duration_s for test in tests) - min(test.at_s for test in tests)
        failed = sum(test.outcome in (*FAILED, "lost") for test in tests)
        number = f"{first}" if first == last else f"{first}-{last}"
        sizes = sorted({len(test.nodes) for test in rounds[0]})
        what = ", ".join({1: "nodes alone", 2: "pairs"}.get(size, f"{size} nodes together") for size in sizes)
        rows.append((number, what, f"{len(rounds[0])}", f"{failed}", f"{seconds:.1f}"))
    notes = (f"stopped early: {fact.stopped}",) if fact.stopped else ()
    return Table(_ROUNDS, rows, (0, 2, 3, 4), "Groups of nodes, each tested separately:", notes)
