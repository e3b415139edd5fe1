"""attach: whether running jobs make progress, and which rank holds them up."""

from ddp_doctor.features import Recorded, later
from ddp_doctor.features.jobs.facts import LiveJobFact, LiveRankFact
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.report import LogsReport


class LiveRank(Frozen):
    """A rank of a job that runs, as it was seen over some seconds."""

    job: str  # names its job among those of the host
    rank: int  # its number, or the position of its start if no number is known
    is_numbered: bool = True  # whether its number is known
    node: str  # its host
    pid: int  # of its process
    gpu: int | None = None  # its number, as nvidia-smi shows it where the driver lists the process, else CUDA's
    gpu_use: tuple[int, ...] = ()  # percent of the time in which that GPU was busy, in two samples; no sign of progress
    state: str | None = None  # R, S, D, T, t or Z as in /proc/PID/stat
    does: str  # in some words
    collective: str | None = None  # in which it is: all-reduce; null outside of one
    line: str | None = None  # of the job's own code: /home/me/train.py:31 in main
    moves: bool | None = None  # whether it gets on; null where that cannot be told
    blamed: bool = False  # whether it is to blame that others wait


class AttachReport(LogsReport):
    """What ``attach --json`` writes: the envelope, what keeps the jobs waiting, and what each rank does."""

    ranks: tuple[LiveRank, ...] = ()  # of all jobs that were looked at


FEATURE = Recorded(
    report=AttachReport,
    facts=(LiveJobFact, LiveRankFact),
    diagnose=later("attach", ".evaluation", "diagnose"),
    complete=later("attach", ".evaluation", "complete"),
    summary=later("attach", ".evaluation", "summary"),
    tables=later("attach", ".story", "tables"),
    story=later("attach", ".story", "story"),
    is_private=True,
)
