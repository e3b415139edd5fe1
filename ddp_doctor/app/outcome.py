"""What every use case returns: a recording and its report."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone

from ddp_doctor import __version__
from ddp_doctor.checks import CHECKS
from ddp_doctor.engine.diagnose import diagnose
from ddp_doctor.engine.plan import Plan
from ddp_doctor.engine.verdict import report as make_report
from ddp_doctor.model.check import Check
from ddp_doctor.model.recording import SCHEMA_VERSION, Options, Recording
from ddp_doctor.model.report import Report
from ddp_doctor.model.usage import UsageError

__all__ = ["Outcome", "Progress", "UsageError", "blank", "judge"]

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """A recording, its report, and the rules that failed themselves."""

    recording: Recording
    report: Report
    rule_failures: tuple[tuple[str, str], ...] = field(default=())
    spoken_by: str | None = None  # the head whose report this is, on the other nodes


def judge(recording: Recording, checks: Sequence[Check] = CHECKS) -> Outcome:
    """Diagnose a recording, fresh or old."""
    diagnosis = diagnose(recording)
    return Outcome(recording, make_report(recording, diagnosis, checks), diagnosis.failures)


def blank(options: Options, plan: Plan) -> Recording:
    """An empty recording of a run that begins now."""
    now = datetime.now(timezone.utc)
    return Recording(
        schema_version=SCHEMA_VERSION,
        tool_version=__version__,
        run_id=f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}",
        started_at=now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        options=options,
        not_run=plan.not_run,
    )
