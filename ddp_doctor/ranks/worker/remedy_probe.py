"""The probe of a trial that tests a fix: the smallest test that shows the fault, on fresh ranks."""

import re
from contextlib import suppress

from ddp_doctor.facts.collectives import TrialMeasurement
from ddp_doctor.knowledge.collectives import ALL_REDUCE, TABLE
from ddp_doctor.probing.all_reduces import agreed
from ddp_doctor.probing.collectives import timed
from ddp_doctor.probing.exchanges import exchange
from ddp_doctor.ranks.worker.rank_context import LiveRankContext

#: Its name in a trial, among the checks.
TRYING = "trying"
PROBE = f"{__name__}:probe"
#: Timed repetitions in one trial; the spread is measured between trials, whose processes are fresh.
_REPETITIONS = 2
#: Seconds of repetitions on fast paths: the fastest one had no competing process.
_SPELL_S = 0.3
_MOST_CALLS = 50
#: If the first of these bytes take this long, the path is slow for any size: a full test would use up the trial.
_FIRST_BYTES = 4 << 20
_LONG_S = 0.1
_LOG_READ = 8 << 20


def probe(ctx: LiveRankContext) -> TrialMeasurement:
    """Run the trial's ``reproducer``."""
    reproducer = ctx.trial.reproducer
    assert reproducer is not None
    met = timed(ctx, TABLE[ALL_REDUCE], reproducer.size_bytes if reproducer.kind == "meet" else 4, 1)
    rate, wrong = None, met.wrong
    if reproducer.kind == "all_reduce" and not wrong:
        measured = timed(ctx, TABLE[ALL_REDUCE], reproducer.size_bytes, _REPETITIONS)
        rate, wrong = measured.size_bytes / (measured.time_us / 1e6), measured.wrong
    elif reproducer.kind == "all_reduces" and not wrong:
        size = min(reproducer.size_bytes, _FIRST_BYTES)
        first = timed(ctx, TABLE[ALL_REDUCE], size, 1)
        if size < reproducer.size_bytes and agreed(ctx, first.time_us) < _LONG_S * 1e6:
            size = reproducer.size_bytes
            first = timed(ctx, TABLE[ALL_REDUCE], size, 1)
        calls = int(min(_SPELL_S / (agreed(ctx, first.time_us) / 1e6), _MOST_CALLS))
        others = timed(ctx, TABLE[ALL_REDUCE], size, max(calls, 1), warmup=0)
        rate = first.size_bytes / (min(first.min_us, others.min_us) / 1e6)
        wrong = first.wrong + others.wrong
    elif reproducer.kind == "exchange" and not wrong:
        peer = 1 - ctx.group_rank
        swapped = exchange(ctx, peer, ctx.ranks[peer], reproducer.size_bytes)
        rate, wrong = swapped.bandwidth_gb_per_s * 1e9, swapped.wrong_bytes
    return TrialMeasurement(bytes_per_s=rate, wrong=wrong, unread=_unread(ctx))


def _unread(ctx: LiveRankContext) -> tuple[str, ...]:
    """Return the settings that NCCL did not read: it logs "NAME set by environment to VALUE" or "NAME set to VALUE"."""
    set_here = (setting.name for setting in ctx.trial.settings if setting.action == "set")
    names = dict.fromkeys(name for name in set_here if name.startswith("NCCL_"))
    path = ctx.env.get("NCCL_DEBUG_FILE")
    if ctx.backend != "nccl" or not names or path is None:
        return ()
    log = ""
    with suppress(OSError), open(path.replace("%%", "%"), encoding="utf-8", errors="replace") as file:
        log = file.read(_LOG_READ)
    return tuple(name for name in names if not re.search(rf"\b{name} set (?:by environment )?to\b", log))
