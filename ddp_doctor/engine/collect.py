"""Running the probes that need no other node: all at once, each under its own deadline."""

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Status
from ddp_doctor.model.context import Context
from ddp_doctor.model.fact import CouldNotLook, Fact, Failed, Reading
from ddp_doctor.ranks.reading import read

#: Makes the Context of one probe; the argument is its deadline on the monotonic clock.
ContextMaker = Callable[[float], Context]


@dataclass
class _Probing:
    """One probe in its thread. A thread that does not come back is abandoned."""

    check: Check
    context: Context
    reading: Reading | None = None

    def run(self) -> None:
        self.reading = read_check(self.check, self.context)


def read_check(check: Check, context: Context) -> Reading:
    """Run one probe; whatever it raises becomes the reading's status and reason."""

    def probe(context: Context) -> Fact:
        try:
            return check.probe(context)
        except CouldNotLook:
            raise
        except Exception as error:
            raise Failed(f"the probe itself failed: {traceback.format_exc(limit=-3)}") from error

    return read(check.id, probe, context, context.node)


def collect(
    checks: Sequence[Check], make_context: ContextMaker, progress: Callable[[str], None]
) -> list[Reading]:
    """One reading per check, in order; a probe past its deadline is ``timed_out`` and abandoned."""
    started = time.monotonic()
    probings = [_Probing(check, make_context(started + check.deadline_s)) for check in checks]
    threads = [threading.Thread(target=probing.run, daemon=True) for probing in probings]
    for thread in threads:
        thread.start()
    readings = []
    for probing, thread in zip(probings, threads, strict=True):
        check = probing.check
        progress(check.id)
        thread.join(max(started + check.deadline_s - time.monotonic(), 0.0))
        readings.append(probing.reading or _timed_out(check, probing.context.node))
    return readings


def _timed_out(check: Check, node: int) -> Reading:
    return Reading(
        check=check.id,
        status=Status.TIMED_OUT,
        node=node,
        reason=f"no answer within {check.deadline_s:g} s",
        duration_s=check.deadline_s,
    )
