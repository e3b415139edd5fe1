"""logs: why a job failed, from its output and the dumps of its flight recorder."""

from ddp_doctor.features import Recorded, later
from ddp_doctor.features.jobs.facts import JobLogFact
from ddp_doctor.model.report import LogsReport

FEATURE = Recorded(
    report=LogsReport,
    about_rules=(
        "logs, attach    Causes of failed and stuck jobs, reported by `ddp-doctor logs` and `ddp-doctor attach`"
    ),
    rules=later("logs", ".report", "rules"),
    errors=later("logs", ".report", "errors"),
    facts=(JobLogFact,),
    has_all_reduces=True,
    diagnose=later("logs", ".report", "diagnose"),
    complete=later("logs", ".report", "complete"),
    summary=later("logs", ".report", "summary"),
    tables=later("logs", ".story", "tables"),
    story=later("logs", ".story", "story"),
    in_markdown="Ranks",
    waits=later("logs", ".report", "waits"),
    named_cause=later("logs", ".report", "named_cause"),
)
