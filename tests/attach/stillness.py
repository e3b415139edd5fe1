"""When ranks that are to hang do hang, which no time tells on a busy machine."""

import time
from collections.abc import Iterable

from ddp_doctor.sources import proc


def wait_until_still(pids: Iterable[int], ended: Iterable[int] = (), patience_s: float = 120.0) -> None:
    """Until no main thread of ``pids`` runs or has run for half a second, and each of ``ended`` is a zombie."""
    pids, ended, end = list(pids), list(ended), time.monotonic() + patience_s
    before: list[tuple[str, ...]] = []
    assert pids
    while True:
        now = [_counts(pid) for pid in pids]
        states = [proc.stat_fields(pid)[0] for pid in ended]
        if now == before and not any(state == "R" for state, *_ in now) and states == ["Z"] * len(ended):
            return
        assert time.monotonic() < end, (now, states)
        before = now
        time.sleep(0.5)


def _counts(pid: int) -> tuple[str, ...]:
    """The state of a main thread, and how often it has run."""
    status = proc.status(pid)
    return tuple(
        status[key][:1] if key == "State" else status[key]
        for key in ("State", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
    )
