"""Runs that were appended to one file, and the line where each of them ends.

    torch.distributed.elastic.multiprocessing.errors.ChildFailedError:       a launcher of the first run ends
    W0711 10:03:02 run.py:793] Setting OMP_NUM_THREADS environment variable  the launcher of the next one starts
    slurmstepd: error: *** JOB 11 ON n1 CANCELLED AT 2026-08-21T02:31:05 ***
    slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-08-21T02:35:44 ***  the end of another job

Launchers of several nodes also end one after another, so an end without a later start does not divide the file, unless
ranks still fail far below it. A start whose clock is before the end is from another node, whose output was appended.
"""

import re
from collections.abc import Iterator

_ENDS = re.compile(
    r"\*\*\* JOB (?P<job>\d+) ON \S+ CANCELLED AT |errors\.ChildFailedError\b|exits with return code = -?[1-9]"
)
_STARTS = re.compile(
    r"Setting OMP_NUM_THREADS environment variable for each process|values were not passed to `accelerate launch`"
    r"|Starting elastic_operator with launch configs|\] WORLD INFO DICT: |GLOBAL_RANK: 0, MEMBER: 1/"
)
RUN_WORDS = (
    b"CANCELLED AT ", b"errors.ChildFailedError", b"exits with return code = ",
    b"Setting OMP_NUM_THREADS env", b"values were not passed to `acc", b"Starting elastic_operator with",
    b"] WORLD INFO DICT: ", b"GLOBAL_RANK: 0, MEM",
)  # fmt: skip
#: Maximum number of lines per process after the end of a launcher that still belong to its run.
_LONGEST_END = 300


class Runs:
    """The runs of one file, by the lines that end and start them."""

    def __init__(self) -> None:
        self._end: tuple[int, str] | None = None  # the last end: its line and stream
        self._end_s = 0.0  # … and the last clock before it
        self._job: tuple[int, str] | None = None  # the last end of a SLURM job: its line and the job

    def note(self, text: str, stream: str, number: int, at_s: float) -> Iterator[int]:
        """Take a line; yield the last line of a run that is known to have ended by now."""
        if ends := _ENDS.search(text):
            job = ends["job"]
            if job and self._job is not None and self._job[1] != job:
                yield self._job[0]
            self._job = (number, job) if job else self._job
            self._end, self._end_s = (number, "" if job else stream), at_s
        elif self._end is not None and self._end[1] in ("", stream) and _STARTS.search(text):
            if at_s >= self._end_s:
                yield number - 1
            self._end = None

    def is_over(self, line: int, processes: int) -> int | None:
        """Return the line of the last end if it is so far above ``line`` that another run printed ``line``."""
        far = self._end is not None and line - self._end[0] > _LONGEST_END * max(processes, 1)
        return self._end[0] if far and self._end is not None else None
