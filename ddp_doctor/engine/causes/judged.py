"""What the judge of failed jobs returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddp_doctor.facts.job_log import LogLine
from ddp_doctor.knowledge.job_causes.kinds import JobCause
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Culprit


@dataclass(frozen=True)
class Judged:
    """One cause of a job's failure: how sure, by which lines, whose. ``values`` fill the title's braces.

    ``next_check`` stands in for the cause's own where the evidence tells a better one.
    """

    cause: JobCause
    confidence: Confidence
    lines: tuple[LogLine, ...]
    culprits: tuple[Culprit, ...] = ()
    who: str = ""
    detail: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    next_check: str = ""
    job: str = ""  # the name of a job that runs
    pid: int | None = None  # of the process to blame, where it runs

    def with_pid(self, command: str) -> str:
        """With the number of the process in place of PID, where it is known."""
        return command if self.pid is None else command.replace("--pid PID", f"--pid {self.pid}")


def place_of(line: LogLine) -> str:
    """``job.out:12``."""
    return f"{line.file}:{line.line}" if line.line else line.file
