"""The use cases behind the commands. They return values, do not print, and do not parse options.

The use cases about a run and recordings are imported from their modules, ``running``, ``recordings`` and ``redaction``,
because a prolog has no time for their imports.
"""

from ddp_doctor.app.inspection import judge_settings, live_settings, live_topology, prolog, read_settings, read_topology
from ddp_doctor.app.outcome import Outcome, Progress, UsageError, judge, judge_with_absent, not_started

__all__ = [
    "Outcome",
    "Progress",
    "UsageError",
    "judge",
    "judge_settings",
    "judge_with_absent",
    "live_settings",
    "live_topology",
    "not_started",
    "prolog",
    "read_settings",
    "read_topology",
]
