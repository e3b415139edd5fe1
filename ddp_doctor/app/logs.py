"""``ddp-doctor logs``: why a job failed, from its output and the dumps of its flight recorder."""

import time
from collections.abc import Callable, Mapping, Sequence

from ddp_doctor.app.outcome import Outcome, blank, judge
from ddp_doctor.engine.plan import Plan
from ddp_doctor.model.choices import Command
from ddp_doctor.model.recording import Options


def logs(
    paths: Sequence[str],
    ignore: tuple[str, ...] = (),
    progress: Callable[[int, int], None] | None = None,
    starts: Mapping[str, int] | None = None,
) -> Outcome:
    """Judge these files; ``progress`` is told the bytes read and all bytes. Raises UsageError if none can be read.

    ``starts``: where, in bytes, to begin in a file that holds the words of others before.
    """
    from ddp_doctor.app.job_reading import read_job  # no other command has to wait for its tables

    started = time.monotonic()
    recording = blank(Options(command=Command.LOGS, ignore=ignore), Plan(()))
    readings = read_job(paths, progress, starts or {})
    duration_s = time.monotonic() - started
    return judge(recording.model_copy(update={"readings": readings, "duration_s": duration_s}))
