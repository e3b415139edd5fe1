"""How DDP packs the gradients of the user's model, in a few lines.

bucket        size  parameters
     0    1.00 MiB          12  head.bias to layers.7.bias
     1    24.8 MiB          91  layers.6.weight to embedding.weight
"""

from collections.abc import Iterator, Sequence

from ddp_doctor.model.report import Measurement

#: The rows a person wants on the screen: the first, which is ready first, and the last, which ends the backward.
_SHOWN = 6


def lines(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """The heading first; nothing where no model of the user's was wrapped."""
    rows = [measurement for measurement in measurements if measurement.name == "user_model_bucket"]
    if not rows:
        return ()
    known = any(row.labels.get("first") for row in rows)
    how = (
        "in the order in which they are ready" if known else "in the order of construction, last layer first"
    )
    heading = f"{'bucket':>8} {'size':>12} {'parameters':>11}  {how}"
    return (heading, *_shown(rows))


def _shown(rows: Sequence[Measurement]) -> Iterator[str]:
    count = int(rows[0].labels["buckets"])
    if count <= _SHOWN:
        yield from map(_row, rows)
        return
    yield from map(_row, rows[: _SHOWN - 2])
    is_last = int(rows[-1].labels["bucket"]) == count - 1
    left = count - (_SHOWN - 2) - is_last
    yield f"{'...':>8} {left} more"
    if is_last:
        yield _row(rows[-1])


def _row(row: Measurement) -> str:
    names = [str(row.labels.get(end, "")) for end in ("first", "last")]
    which = " to ".join(dict.fromkeys(name for name in names if name))
    number = row.labels.get("parameters") or "-"
    return f"{row.labels['bucket']:>8} {_size(row.value):>12} {number:>11}  {which}".rstrip()


def _size(count: float) -> str:
    return f"{count / 2**20:.3g} MiB" if count >= 2**20 / 100 else f"{count / 2**10:.3g} KiB"
