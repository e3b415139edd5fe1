"""attach: whether running jobs make progress, and which rank holds them up."""

from ddp_doctor.features import Recorded, later
from ddp_doctor.features.jobs.attach.report import AttachReport
from ddp_doctor.features.jobs.live_facts import LiveJobFact, LiveRankFact

FEATURE = Recorded(
    report=AttachReport,
    facts=(LiveJobFact, LiveRankFact),
    diagnose=later(f"{__name__}.evaluation", "diagnose"),
    complete=later(f"{__name__}.evaluation", "complete"),
    summary=later(f"{__name__}.evaluation", "summary"),
    tables=later(f"{__name__}.story", "tables"),
    story=later(f"{__name__}.story", "story"),
    is_private=True,
)
