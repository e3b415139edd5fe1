"""Texts about the tests of a fix: "390 MB/s (median of 5, 381 to 402)"."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median

from ddp_doctor.model.finding import Reproducer, Setting
from ddp_doctor.model.trial import Attempt
from ddp_doctor.settings.trials import OF_LAUNCHER
from ddp_doctor.settings.wording import shown
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, name_list

NOTHING_DONE = "no time for a test"
NO_GAIN = "it makes no difference"
SLOWER = "it is slower"
UNCLEAR = "tested, but the results are too close to tell"
TOO_FEW = "tested, but the time was too short for enough trials"
NOT_SHOWN = "tested, but the fault did not appear again: the trials without the fix also passed"
COMES_AND_GOES = "tested, but some trials without the fix also passed"
NOT_READ = "tested, but NCCL's log does not show that it read {}"
AS_FOUND = "as found"
#: The reason of a variable that was not set while the other variables of its fix were tested.
NOT_ITSELF = "not tested by itself, because torchrun reads it before it starts ranks"
#: The start of a reason that a status already states.
SAID_ALREADY = "tested, but "
_LONGEST_REASON = 200
_MOST_ENDS = 3


def in_force(settings: Iterable[Setting]) -> str:
    """Return the setup of a trial, such as ``A=1, B=2 on node1, without C``; many nodes with one value are counted."""
    nodes: dict[str, list[str]] = {}
    known = list(settings)
    for setting in [setting for setting in known if setting.name not in OF_LAUNCHER] or known:
        what = f"without {setting.name}" if setting.action == "unset" else shown(setting.name, setting.value or "")
        nodes.setdefault(what, []).extend([setting.node] if setting.node else [])
    where = {
        what: name_list(names) if len(names) <= NAMES_IN_A_SENTENCE else f"{len(names)} nodes"
        for what, names in nodes.items()
    }
    return ", ".join(f"{what} on {names}" if names else what for what, names in where.items())


def rate(bytes_per_s: float) -> str:
    """Return ``1.18 GB/s`` or ``12 MB/s``, in the units of other figures in the report."""
    if bytes_per_s >= 1e9:
        return f"{bytes_per_s / 1e9:.{1 if bytes_per_s >= 1e10 else 2}f} GB/s"
    return f"{bytes_per_s / 1e6:.{0 if bytes_per_s >= 1e7 else 2}f} MB/s"


def outcome(attempts: Sequence[Attempt]) -> str:
    """Return the result of the trials of one kind, or "" if there were none."""
    passed = [attempt for attempt in attempts if attempt.outcome == "passed"]
    if attempts and len(passed) == len(attempts):
        rates = [attempt.bytes_per_s for attempt in passed if attempt.bytes_per_s is not None]
        if len(rates) > 1:
            least, most = rate(min(rates)), rate(max(rates))
            number, _, unit = least.partition(" ")
            spread = f"{number if most.endswith(unit) else least} to {most.removesuffix(f' {unit}')}"
            return f"{rate(median(rates))} (median of {len(rates)}, {spread})"
        times = f" ({len(passed)} of {len(passed)})" if len(passed) > 1 else ""
        return rate(rates[0]) if rates else f"passes{times}"
    ends = Counter(_end(attempt) for attempt in attempts)
    several = len(attempts) > 1
    endings = [f"{end}{f' ({times} of {len(attempts)})' if several else ''}" for end, times in ends.items()]
    return ", ".join(endings[:_MOST_ENDS]) + (" and others" if endings[_MOST_ENDS:] else "")


def _end(attempt: Attempt) -> str:
    if attempt.outcome == "hung":
        return f"no end in {attempt.duration_s:.1f} s"
    return f"fails: {attempt.reason[:_LONGEST_REASON]}" if attempt.outcome == "failed" else "passes"


def price(reproducer: Reproducer, bytes_per_s: float) -> str | None:
    """Return the slowdown compared with ranks without the fault, or None if there is none or it is unknown."""
    healthy = reproducer.healthy_bytes_per_s
    if not healthy or bytes_per_s >= healthy:
        return None
    percent = 100 * (1 - bytes_per_s / healthy)
    return f"{percent:.0f}% slower than {reproducer.healthy or 'without the fault'} ({rate(healthy)})"
