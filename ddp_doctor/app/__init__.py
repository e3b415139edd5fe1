"""The use cases behind the commands. They return values, print nothing, and parse no options."""

from ddp_doctor.app.attach import attach
from ddp_doctor.app.attach_nodes import attach_to_hosts, attach_to_slurm_job, be_agent
from ddp_doctor.app.inspection import (
    judge_settings,
    live_settings,
    live_topology,
    prolog,
    read_settings,
    read_topology,
)
from ddp_doctor.app.logs import logs
from ddp_doctor.app.outcome import Outcome, Progress, UsageError, judge, judge_with_absent, not_started
from ddp_doctor.app.recordings import load_recording, replay
from ddp_doctor.app.redaction import redacted
from ddp_doctor.app.running import run
from ddp_doctor.starters.request import RunRequest

__all__ = [
    "Outcome",
    "Progress",
    "RunRequest",
    "UsageError",
    "attach",
    "attach_to_hosts",
    "attach_to_slurm_job",
    "be_agent",
    "judge",
    "judge_settings",
    "judge_with_absent",
    "live_settings",
    "live_topology",
    "load_recording",
    "logs",
    "not_started",
    "prolog",
    "read_settings",
    "read_topology",
    "redacted",
    "replay",
    "run",
]
