"""``ddp-doctor logs``: why a job failed, from its output and the dumps of its flight recorder."""

import time
from collections.abc import Sequence

from ddp_doctor.app.job_reading import Progress, read_job
from ddp_doctor.app.outcome import Outcome, blank, judge
from ddp_doctor.engine.plan import Plan
from ddp_doctor.model.recording import Options


def logs(paths: Sequence[str], ignore: tuple[str, ...] = (), progress: Progress | None = None) -> Outcome:
    """Judge these files. Raises UsageError where nothing could be read."""
    started = time.monotonic()
    recording = blank(Options(command="logs", ignore=ignore), Plan(()))
    readings = read_job(paths, progress)
    duration_s = time.monotonic() - started
    return judge(recording.model_copy(update={"readings": readings, "duration_s": duration_s}))
