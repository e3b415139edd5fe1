"""Running the probes that need no other node: all at once, each under its own deadline."""

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Status
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import CouldNotLook, Reading

#: Makes the Context of one probe; the argument is its deadline on the monotonic clock.
ContextMaker = Callable[[float], Context]


@dataclass
class _Look:
    """One probe in its thread. A thread that does not come back is abandoned."""

    check: Check
    context: Context
    reading: Reading | None = None

    def run(self) -> None:
        self.reading = look(self.check, self.context)


def look(check: Check, context: Context) -> Reading:
    """Run one probe; whatever it raises becomes the reading's status and reason."""
    started_at, started = time.time(), time.monotonic()
    fact, status, reason = None, Status.COLLECTED, None
    try:
        fact = check.probe(context).recorded()
    except CouldNotLook as error:
        status, reason = error.status, str(error)
    except Exception:  # noqa: BLE001 - the border: a probe's own failure is a reading, not a crash
        status, reason = Status.FAILED, f"the probe itself failed: {traceback.format_exc(limit=-3)}"
    return Reading(
        check=check.id,
        status=status,
        node=context.node,
        fact=fact,
        reason=reason,
        started_at=started_at,
        duration_s=time.monotonic() - started,
        raw=getattr(context, "raw", None),
    )


def collect(
    checks: Sequence[Check], make_context: ContextMaker, progress: Callable[[str], None]
) -> list[Reading]:
    """One reading per check, in order; a probe past its deadline is ``timed_out`` and abandoned."""
    started = time.monotonic()
    looks = [_Look(check, make_context(started + check.deadline_s)) for check in checks]
    threads = [threading.Thread(target=one.run, daemon=True) for one in looks]
    for thread in threads:
        thread.start()
    readings = []
    for one, thread in zip(looks, threads, strict=True):
        progress(one.check.id)
        thread.join(max(started + one.check.deadline_s - time.monotonic(), 0.0))
        readings.append(one.reading or _timed_out(one.check, one.context.node))
    return readings


def _timed_out(check: Check, node: int) -> Reading:
    return Reading(
        check=check.id,
        status=Status.TIMED_OUT,
        node=node,
        reason=f"no answer within {check.deadline_s:g} s",
        duration_s=check.deadline_s,
    )
