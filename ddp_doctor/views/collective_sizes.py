"""Measurements of collectives by size, as nccl-tests prints them."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import mean

from ddp_doctor.facts.collectives import SizeResult
from ddp_doctor.knowledge.collectives import TABLE
from ddp_doctor.model.base import grouped
from ddp_doctor.model.report import Measurement


def mean_us(results: Sequence[SizeResult]) -> float:
    """Return the mean over ranks of their mean time, as nccl-tests prints it."""
    return mean(result.mean_us or result.time_us for result in results)


def measured(results: Iterable[tuple[str, int, int, SizeResult]]) -> Iterator[Measurement]:
    """Yield what nccl-tests prints, over all ranks, from tuples of collective, number of ranks, rank and result.

    The 99th percentile and the longest time are from the rank with the longest time.
    """
    by_size = grouped(
        ((name, size.group, size.in_place, size.size_bytes, ranks), (rank, size)) for name, ranks, rank, size in results
    )
    for (name, group, in_place, size_bytes, ranks), of_ranks in by_size.items():
        row, results_of = TABLE[name], [result for _, result in of_ranks]
        time_s = mean_us(results_of) / 1e6
        algbw = size_bytes / time_s
        factor = results_of[0].busbw_gb_per_s / results_of[0].algbw_gb_per_s
        slowest, worst = max(of_ranks, key=lambda of_rank: of_rank[1].max_us)
        labels: dict[str, str | int | float] = {
            "bytes": size_bytes,
            "ranks": ranks,
            "count": worst.count or 0,
            "type": "float",
            "redop": "sum" if row.reduces else "none",
            "root": 0 if row.has_root else -1,
            "in_place": "yes" if in_place else "no",
            **({"group": group} if group else {}),
        }
        for what, value, unit in (
            ("time", time_s, "s"),
            ("algbw", algbw, "B/s"),
            ("busbw", algbw * factor, "B/s"),
            ("wrong", sum(result.wrong for result in results_of), "elements"),
            ("median", max(result.time_us for result in results_of) / 1e6, "s"),
        ):
            yield Measurement(name=f"{row.name}_{what}", value=value, unit=unit, labels=labels)
        for what, seconds in (("p99", worst.p99_us or worst.max_us), ("longest", worst.max_us)):
            yield Measurement(
                name=f"{row.name}_{what}", value=seconds / 1e6, unit="s", labels=labels | {"rank": slowest}
            )
