"""DDT108: transfer that is slower than what a preflight measured on the same nodes."""

from collections.abc import Iterator, Sequence
from statistics import median

from ddp_doctor.facts.trace import Interval, TraceFact
from ddp_doctor.knowledge.collectives import ALL_REDUCE, TABLE
from ddp_doctor.knowledge.trace import LATE_SHARE, SLOW_TRANSFER_SHARE, TRANSFER_BYTES
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.rule import rule
from ddp_doctor.parse.trace.intervals import Times
from ddp_doctor.remedies.kinds import by_trace
from ddp_doctor.views.trace.arrivals import Meeting
from ddp_doctor.views.trace.parts import median_parts
from ddp_doctor.views.trace.windows import windows
from ddp_doctor.wording.findings import NOBODY, likely


@rule("DDT108", "slow-transfer", Severity.WARNING, TraceFact)
def slow_transfer(recording: Recording) -> Iterator[Draft]:
    """All-reduces whose transfer is far slower than the bandwidth that was measured before.

    Finds: With --against REPORT, the report of a run on the same nodes: all-reduces of 16 MiB or more, without any
        waiting for ranks that come late, reach less than a tenth of the bus bandwidth of the report's largest one, and
        transfer is at least a tenth of the step. A trace alone does not tell which link there is.
    Why: It is the network, and no rank: what looks like it in a trace mostly is a rank that comes late.
    Remedy: Measure these nodes again; other jobs on the same network.
    See: docs/explanation/traces.md
    """
    expected = recording.options.expected_busbw
    for window in windows(recording) if expected else ():
        share = max((one.transfer / one.step for one in median_parts(recording, window)), default=0.0)
        rate = _busbw(window.met.meetings) if window.is_whole else None
        if not expected or rate is None or rate >= SLOW_TRANSFER_SHARE * expected or share < LATE_SHARE:
            continue
        yield likely(
            NOBODY,
            f"Transfer itself is slow{window.where}: all-reduces reach {rate / 1e9:.3g} GB/s of the"
            f" {expected / 1e9:.3g} that were measured, and transfer is {share:.0%} of the step",
            Evidence(
                text="bus bandwidth of the all-reduces of a step, from when the last rank has come",
                value=rate,
                unit="B/s",
                expected=expected,
                expected_from="the largest all-reduce in the report of --against",
            ),
            by_trace(
                "Measure these nodes again, beside the job's own settings; look at what else uses the network",
                "ddp-doctor run",
            ),
        )


def _busbw(meetings: Sequence[Meeting]) -> float | None:
    """B/s of the large all-reduces of a median step, those that run at the same time together; None without them."""
    large = (one for one in meetings if one.kind == ALL_REDUCE and (one.size_bytes or 0) >= TRANSFER_BYTES)
    rates = []
    for of_step in grouped((one.step, one) for one in large).values():
        moved = sum(TABLE[ALL_REDUCE].bus_factor(len(one.spans)) * (one.size_bytes or 0) for one in of_step)
        busy = Times.union(map(_transfer, of_step)).total
        rates.append(moved / (busy / 1e6) if busy else float("inf"))
    return median(rates) if rates else None


def _transfer(meeting: Meeting) -> Interval:
    """From when the last rank has come to the end, by the clock of the first one that is there."""
    end = meeting.spans[min(meeting.spans)][1]
    return end - min(end - begin for begin, end in meeting.spans.values()), end
