"""logs: why a job failed, from its output and the dumps of its flight recorder."""

from ddp_doctor.features import Recorded, later
from ddp_doctor.features.jobs.facts import JobLogFact
from ddp_doctor.model.report import LogsReport

FEATURE = Recorded(
    report=LogsReport,
    about_rules=(
        "logs, attach    Causes of failed and stuck jobs, reported by `ddp-doctor logs` and `ddp-doctor attach`"
    ),
    rules=later(f"{__name__}.report", "rules"),
    errors=later(f"{__name__}.report", "errors"),
    facts=(JobLogFact,),
    has_all_reduces=True,
    diagnose=later(f"{__name__}.report", "diagnose"),
    complete=later(f"{__name__}.report", "complete"),
    summary=later(f"{__name__}.report", "summary"),
    tables=later(f"{__name__}.story", "tables"),
    story=later(f"{__name__}.story", "story"),
    in_markdown="Ranks",
    waits=later("ddp_doctor.features.jobs.causes.wait_graph", "judged"),
    named_cause=later(f"{__name__}.report", "named_cause"),
)
