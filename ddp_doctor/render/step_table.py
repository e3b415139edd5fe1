"""The time of a training step and what it is made of, in a few lines.

  computing       step    waiting  communication  overlap   weak  strong
    10.1 ms    14.3 ms     4.2 ms         7.9 ms     47 %   69 %    62 %  2 ranks, 4 MiB of gradients
buckets of 25 MiB: predicted 643 ms, measured 607 ms
buckets of 0.25 MiB: predicted 494 ms, measured 489 ms
"""

from collections.abc import Iterator, Mapping, Sequence

from ddp_doctor.model.report import Measurement
from ddp_doctor.render.quantity import amount

_TIMES = (("computing", "step_compute", 10), ("step", "step_time", 10), ("waiting", "step_exposed", 10))
_COMMUNICATION = (("communication", "step_communicate", 14),)
_SHARES = (
    ("overlap", "step_overlap", 8),
    ("weak", "step_weak_scaling", 6),
    ("strong", "step_strong_scaling", 7),
)


def lines(measurements: Sequence[Measurement]) -> tuple[str, ...]:
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
