"""The all-reduce by size as rows with a bar each, beside the rate that it should reach, where one is known."""

from dataclasses import dataclass

from ddp_doctor.model.recording import Recording
from ddp_doctor.model.report import Report
from ddp_doctor.render import tables
from ddp_doctor.render.text import amount
from ddp_doctor.render.used_transports import slowest_p2p


@dataclass(frozen=True)
class Size:
    """One size of a message: its cells, and how long its bar is in percent."""

    size: str
    time: str
    algbw: str
    busbw: str
    wrong: int
    percent: float


@dataclass(frozen=True)
class Bandwidth:
    """All sizes; ``expected`` in words, at ``expected_percent`` of the bars' width."""

    sizes: tuple[Size, ...]
    untested: tuple[str, ...]
    expected: str = ""
    expected_percent: float = 0.0


def table(report: Report, recording: Recording) -> Bandwidth | None:
    """The bus bandwidths of the slowest rank; None where none was measured."""
    rows, untested = tables.rows(report.measurements), tuple(tables.untested(report.measurements))
    if not rows:
        return Bandwidth((), untested) if untested else None
    expected, source = _expected(report, recording)
    widest = max(*(busbw for *_, busbw, _ in rows), expected) or 1.0
    sizes = tuple(
        Size(
            amount(size, "B"),
            amount(float(f"{time_us:.4g}") / 1e6, "s"),
            f"{algbw:.2f}",
            f"{busbw:.2f}",
            wrong,
            100 * busbw / widest,
        )
        for size, time_us, algbw, busbw, wrong in rows
    )
    words = f"{expected:.3g} GB/s, {source}" if expected else ""
    return Bandwidth(sizes, untested, words, 100 * expected / widest)


def _expected(report: Report, recording: Recording) -> tuple[float, str]:
    """GB/s that large messages should reach, and who says so; a finding's before the constants of NCCL."""
    for finding in report.findings:
        for item in finding.evidence:
            if item.check == "allreduce" and item.unit == "GB/s" and item.expected:
                return item.expected, item.expected_from or finding.code
    rate = slowest_p2p(recording)
    return (rate, "NCCL's own constants for the slowest pair of GPUs") if rate else (0.0, "")
