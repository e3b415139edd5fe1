"""attach: whether running jobs make progress, and which rank holds them up."""

from ddp_doctor.features import Recorded, later
from ddp_doctor.features.jobs.facts import LiveJobFact, LiveRankFact
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.report import LogsReport


class LiveRank(Frozen):
    """A rank of a running job, observed for some seconds."""

    job: str  # name of the job, unique on the host
    rank: int  # rank number, or position in start order if the rank is unknown
    is_numbered: bool = True  # whether the rank number is known
    node: str  # host name
    pid: int  # process ID
    gpu: int | None = None  # index as in nvidia-smi if the driver lists the process; otherwise CUDA's index
    gpu_use: tuple[int, ...] = ()  # percent of time the GPU was busy, in two samples; does not show progress
    state: str | None = None  # R, S, D, T, t or Z as in /proc/PID/stat
    does: str  # short description of its activity
    collective: str | None = None  # the collective it is in, such as all-reduce; null outside of collectives
    line: str | None = None  # of the job's own code: /home/me/train.py:31 in main
    moves: bool | None = None  # whether it makes progress; null if unknown
    blamed: bool = False  # whether it is reported as the cause that other ranks wait


class AttachReport(LogsReport):
    """The JSON of ``attach --json``: the envelope, the causes of waiting and the activity of each rank."""

    ranks: tuple[LiveRank, ...] = ()  # ranks of all observed jobs


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
