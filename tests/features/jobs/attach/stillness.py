"""Waiting until ranks really hang, because no fixed time is long enough on a busy machine."""

from collections import deque
from collections.abc import Iterable

from ddp_doctor.sources import proc
from tests.waiting import wait_until


def wait_until_still(pids: Iterable[int], ended: Iterable[int] = ()) -> None:
    """Wait until no main thread of ``pids`` has run between 50 samples in a row, and each of ``ended`` is a zombie."""
    pids, ended = list(pids), list(ended)
    seen: deque[list[tuple[str, ...]]] = deque(maxlen=50)
    assert pids

    def is_still() -> bool:
        seen.append([_counts(pid) for pid in pids])
        is_asleep = all(now == seen[0] for now in seen) and not any(state == "R" for state, *_ in seen[0])
        return len(seen) == 50 and is_asleep and [proc.stat_fields(pid)[0] for pid in ended] == ["Z"] * len(ended)

    wait_until(is_still, "the ranks hang")


def _counts(pid: int) -> tuple[str, ...]:
    status = proc.status(pid)
    return tuple(
        status[key][:1] if key == "State" else status[key]
        for key in ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
    )
