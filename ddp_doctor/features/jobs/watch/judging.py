"""A child of the watcher that evaluates the job and prints its findings; its memory is freed when it exits."""

import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING

from ddp_doctor.features.jobs.watch.evidence import Output
from ddp_doctor.ranks import process

if TYPE_CHECKING:
    from ddp_doctor.app import Outcome

#: The code of a child that was killed because its time was up; no process exits with it.
CUT_SHORT = 256
#: The exit code of a child that failed (EX_SOFTWARE, sysexits.h).
_FAILED = 70
#: The exit code if a rank ended while it was sampled.
ENDED = 2
#: The exit codes if ranks wait for a rank that is not known to hang; SLOW if this was just reported.
WAITS, SLOW = 4, 5
#: The cause that ``logs`` reports for output without an end, which the watcher has seen.
_NO_END = "end-not-shown"
#: … and the causes for the end of a stall that the watcher has already reported.
_OF_A_STAND_STILL = (_NO_END, "job-failed-cause-not-proven", "scheduler-cancelled")
_LARGEST_SEEN_BYTES = 1 << 20


class Judging:
    """A child process that runs ``what``, which returns its exit code, with ``stderr`` as its stderr."""

    def __init__(self, what: Callable[[], int], seconds: float, stderr: int = 2) -> None:
        self._end_s = time.monotonic() + seconds
        self.code: int | None = None
        watcher = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            code = _FAILED
            try:
                process.die_with_parent(watcher)
                process.set_name("ddp-watch-judge")
                os.dup2(stderr, 2)
                code = what()
                sys.stderr.flush()
            except BaseException:  # noqa: BLE001 - nothing is above this
                traceback.print_exc()
            os._exit(code)

    def has_ended(self) -> bool:
        """Return True if it has exited, or was killed because its time is up; ``code`` is then set."""
        if self.code is None:
            with suppress(ChildProcessError):
                if time.monotonic() >= self._end_s:
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
                    self.code = CUT_SHORT
                elif (ended := os.waitpid(self._pid, os.WNOHANG))[0]:
                    self.code = os.waitstatus_to_exitcode(ended[1])
        return self.code is not None

    @property
    def has_failed(self) -> bool:
        """Return True if it failed or was killed, for example by the kernel for lack of memory."""
        return self.code is not None and (self.code < 0 or self.code == _FAILED)

    def stop(self) -> None:
        """Kill it if it still runs."""
        self._end_s = 0.0
        self.has_ended()

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code."""
        while not self.has_ended():
            time.sleep(0.02)
        assert self.code is not None
        return self.code


@dataclass(frozen=True)
class Pictures:
    """The activity of all ranks in the last sample, passed from one child to the next in a file without a name.

    ``after_s``: how long all ranks must do the same before it is reported, once. At ``now_s`` (monotonic), a rank has
    not moved for ``still_s``.
    """

    file: int
    after_s: float
    now_s: float
    still_s: float

    def stand_for(self, picture: str) -> float:
        """Return for how many seconds all ranks have done this if it must be reported now, otherwise 0.0."""
        text = os.pread(self.file, _LARGEST_SEEN_BYTES, 0)
        seen = _Seen(**json.loads(text)) if text else _Seen()
        if seen.picture != picture or seen.since_s < self.now_s - self.still_s:
            seen.picture, seen.since_s = picture, self.now_s
        stood_s = self.now_s - seen.since_s
        is_told = stood_s >= self.after_s and picture not in seen.told
        seen.told += [picture] * is_told
        written = json.dumps(asdict(seen)).encode()
        if len(written) <= _LARGEST_SEEN_BYTES:
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, written, 0)
        return stood_s if is_told else 0.0


@dataclass
class _Seen:
    picture: str = ""
    since_s: float = 0.0
    told: list[str] = field(default_factory=list)


def judge_the_end(
    files: Sequence[str], outputs: Sequence[Output], env: Mapping[str, str], say: Callable[[], None], *, was_told: bool
) -> int:
    """Call ``say``, print why the job failed, as ``logs`` does, and return its exit code; 0 and 2 print nothing.

    2 is a usage error: nothing could be read. ``was_told``: the stall that the job ended in was already reported.
    """
    from ddp_doctor.features.jobs.logs.use_case import logs
    from ddp_doctor.model.choices import ExitCode, UsageError
    from ddp_doctor.model.report import LogsReport

    # if tasks share a file, read it from the lowest start
    starts = dict(sorted(outputs, key=itemgetter(1), reverse=True))
    try:
        outcome = logs((*files, *starts), starts=starts)
    except UsageError:
        return ExitCode.USAGE.value
    causes = outcome.report.causes if isinstance(outcome.report, LogsReport) else ()
    if all(cause.name in (_OF_A_STAND_STILL if was_told else (_NO_END,)) for cause in causes):
        return ExitCode.HEALTHY.value
    say()
    _show(outcome, env)
    return outcome.report.exit_code


def judge_what_runs(
    pids: Sequence[int],
    env: Mapping[str, str],
    say: Callable[[str], None],
    why: str,
    *,
    node: int | None = None,
    only_if_sure: bool = False,
    pictures: Pictures | None = None,
) -> int:
    """Print what keeps these ranks waiting, as ``attach`` does; return its exit code, or ENDED, WAITS or SLOW.

    If ranks wait for a rank that is not known to hang, print one line, once all ranks have done the same for as long as
    ``pictures`` requires, or at once without ``pictures``. If the cause is unknown, print one line, or nothing if
    ``only_if_sure``. The output begins with ``why``, the reason for the check.

    ``node``: the number of this node in a SLURM step of several nodes. The first node checks the ranks of all nodes, or
    only these if SLURM does not allow it. On another node, print nothing if all of these ranks wait.
    """
    from ddp_doctor.app import folders
    from ddp_doctor.features.jobs.text import says
    from ddp_doctor.features.jobs.views.live import live_jobs
    from ddp_doctor.model.choices import ExitCode, UsageError

    ran = [pid for pid in pids if not process.has_ended(pid)]
    try:
        outcome, alone = _looked(pids, env, in_step=node == 0)
    except UsageError:  # they have just ended
        return ENDED
    code = outcome.report.exit_code
    if any(map(process.has_ended, ran)):  # the job is about to end
        return ENDED
    if node and all(rank.waits for job in live_jobs(outcome.recording) for rank in job.ranks):
        return ExitCode.HEALTHY.value
    if code == ExitCode.UNHEALTHY.value:
        say(f"{why}{alone}:")
        _show(outcome, env, say)
        return code
    ranks = [rank for job in live_jobs(outcome.recording) if job.meeting is None for rank in job.ranks]
    does = "; ".join(f"{rank.fact.pid}: {says(rank)}" for rank in ranks)
    picture = does if any(rank.waits for rank in ranks) else ""  # empty if no rank waits for another
    summary = outcome.report.summary
    if picture:
        summary = f"{summary.removeprefix('Running: ').rstrip('.')}; slow, but not known to hang"
    if picture and pictures is None:
        say(f"{why}{alone}. {summary}")
        return WAITS
    if picture and pictures and code == ExitCode.HEALTHY.value:
        still_s = 0.0 if only_if_sure else pictures.stand_for(picture)
        code, why = ((SLOW if still_s else WAITS), f"no rank has left its collective or its line for {still_s:.0f} s")
    if code == SLOW or (code == ExitCode.UNSURE.value and not only_if_sure):
        saved_as = folders.keep_recording(outcome.recording, env)
        more = f" (`ddp-doctor replay {saved_as}` shows more)" if saved_as else ""
        say(f"{why}{alone}. {summary}{more}")
    return code


def _looked(pids: Sequence[int], env: Mapping[str, str], *, in_step: bool) -> tuple["Outcome", str]:
    """Return the outcome, and a text that says if it covers only this node. Raises UsageError."""
    from ddp_doctor.features.jobs.attach.nodes import attach_to_step
    from ddp_doctor.features.jobs.attach.use_case import Watching, attach
    from ddp_doctor.features.jobs.views.live import live_jobs, unreached
    from ddp_doctor.model.choices import UsageError

    alone, how = ", seen only on this node", Watching(env=env)
    if not in_step:
        outcome = attach(pids, how=how)
        return outcome, alone if any(job.is_elsewhere for job in live_jobs(outcome.recording)) else ""
    try:
        outcome = attach_to_step(env)
        lost = unreached(outcome.recording)
        if outcome.recording.world and len(lost) < outcome.recording.world.nnodes:
            return outcome, ""
        reason = next(iter(lost.values()))
    except UsageError as error:
        reason = str(error)
    return attach(pids, how=how), f"{alone} ({reason})"


def _show(outcome: "Outcome", env: Mapping[str, str], say: Callable[[str], None] | None = None) -> None:
    from ddp_doctor.app import folders
    from ddp_doctor.render import screen, terminal

    saved_as = folders.keep_recording(outcome.recording, env)
    note = folders.kept_note(saved_as) if saved_as else ""
    whole = io.StringIO()
    if say is None or sys.stderr.isatty():
        terminal.show(outcome.report, outcome.recording, screen.console(sys.stderr), saved_as, kept_note=note)
        return
    terminal.show(outcome.report, outcome.recording, screen.console(whole), saved_as, kept_note=note)
    for line in whole.getvalue().splitlines():
        say(line)
