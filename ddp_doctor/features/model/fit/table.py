"""The memory that a rank needs under each strategy, and what fits.

net:make on 8 ranks, AdamW, fp32, batch of 4, compared with 80 GiB (--memory):
 strategy         check-           peak     of  fits      sent  batch
                  pointing               memory      per step  up to
 ddp              no           95.1 GiB   137%  no    25.1 GiB      -
 ddp              yes          88.2 GiB   127%  no    25.1 GiB      -
 zero1            no           61.0 GiB    88%  yes   25.1 GiB     11
   of memory: includes 15% that CUDA's caching allocator keeps beyond the peak
"""

from collections.abc import Iterator

from ddp_doctor.features.model.fit.facts import FitFact
from ddp_doctor.features.model.fit.report import FitEstimate, FitReport
from ddp_doctor.features.model.fit.views import FIT_MEASURED, NO_TIME, size
from ddp_doctor.knowledge.ddp.strategies import RESERVE
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Recording
from ddp_doctor.render.layout import Table
from ddp_doctor.render.tables import three_digits
from ddp_doctor.render.text import one_line
from ddp_doctor.wording.nodes import name_list

_TITLES = ("strategy", "check-\npointing", "peak", "of\nmemory", "fits", "sent\nper step", "batch\nup to")
#: Samples; larger numbers are shown as more than this.
_MANY = 9999
_FITS = {True: "yes", False: "no", None: "?"}


def tables(report: FitReport, recording: Recording, *, each: bool) -> Iterator[Table]:  # noqa: ARG001 - it has few rows
    """Yield the table of all strategies with their measurements; no table without estimates."""
    fact = recording.first(FitFact)
    if fact is None:
        return
    batch = f"batch of {fact.batch}" if fact.batch is not None else "no batch"
    if fact.tokens is not None:
        given = recording.options.fit is not None and recording.options.fit.seq is not None
        batch += f" with {fact.tokens:,} tokens{' (--seq)' if given else ' (assumed; set --seq)'}"
    against = f"{size(report.memory_bytes)} ({report.memory_of})" if report.memory_bytes else "an unknown memory size"
    caption = (
        f"{one_line(fact.model)} on {fact.ranks} rank{'s' if fact.ranks > 1 else ''},"
        f" {one_line(fact.optimizer)}, {fact.precision}, {batch}, compared with {against}:"
    )
    measured = any(each.measured_bytes is not None for each in report.estimates)
    rows = [(*_row(each, report.memory_bytes), *(_measured(each) if measured else ())) for each in report.estimates]
    titles = (*_TITLES, *(("measured\npeak", "measured\nstep") if measured else ()))
    yield Table(titles, rows, range(2, len(titles)), caption, (*_notes(fact, report), *_not_measured(recording)))


def _not_measured(recording: Recording) -> Iterator[str]:
    """Yield the strategies that ran out of time, with the reason."""
    late = [each for each in recording.of_check(FIT_MEASURED) if not each.rank and _is_late(each)]
    for why, parts in grouped((each.reason or "", each.part) for each in late).items():
        yield f"not measured: {name_list(parts)}: {one_line(why)}"


def _is_late(reading: Reading) -> bool:
    return reading.status is Status.TIMED_OUT or (reading.reason or "").startswith(NO_TIME)


def _row(each: FitEstimate, memory_bytes: int | None) -> tuple[str, ...]:
    share = f"{each.needed_bytes / memory_bytes:.0%}" if memory_bytes else "-"
    batch = "-" if each.batch is None else f"{each.batch}" if each.batch < _MANY else f">{_MANY}"
    return (
        each.strategy,
        "yes" if each.checkpointing else "no",
        size(each.peak_bytes),
        share,
        _FITS[each.fits],
        size(each.sent_bytes),
        batch,
    )


def _measured(each: FitEstimate) -> tuple[str, ...]:
    if each.measured_out_of_memory:
        return "out of memory", "-"
    peak = "-" if each.measured_bytes is None else size(each.measured_bytes)
    return peak, "-" if each.step_s is None else three_digits(each.step_s)


def _notes(fact: FitFact, report: FitReport) -> Iterator[str]:
    yield (
        f"of memory: includes {RESERVE:.0%} that CUDA's caching allocator keeps beyond the peak, but not the CUDA"
        " context and NCCL's buffers"
    )
    if fact.units:
        yield f"sharded: {one_line(fact.units)}, the repeated layers; the factory's dict can name other units"
    if offloaded := max((each.host_bytes for each in report.estimates), default=0):
        yield f"zero3-offload: {size(offloaded)} per rank are in host memory"
    yield from (f"not estimated: {one_line(each)}" for each in fact.left_out)
