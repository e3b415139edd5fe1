"""A child of the watcher that judges the job and prints what it finds: its memory goes when it ends."""

import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING

from ddp_doctor.ranks import process
from ddp_doctor.sources.own_folders import state_folder
from ddp_doctor.watch.evidence import Output

if TYPE_CHECKING:
    from ddp_doctor.app import Outcome

#: What an exit code says where the child did not end by itself.
CUT_SHORT = -1
#: What it says where a rank has ended while it was looked at.
ENDED = 2
#: What ``logs`` says of output that shows no end: the watcher has seen it.
_NO_END = "end-not-shown"


class Judging:
    """One such child; ``what`` returns its exit code. ``stderr``: a descriptor in the place of its own."""

    def __init__(self, what: Callable[[], int], seconds: float, stderr: int = 2) -> None:
        self._end_s = time.monotonic() + seconds
        self.code: int | None = None
        watcher = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            code = 3
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
        """Whether it is done, or was ended because its time is up; then ``code`` is set."""
        if self.code is None:
            with suppress(ChildProcessError):
                if time.monotonic() >= self._end_s:
                    os.kill(self._pid, signal.SIGKILL)
                    os.waitpid(self._pid, 0)
                    self.code = CUT_SHORT
                elif (ended := os.waitpid(self._pid, os.WNOHANG))[0]:
                    self.code = os.waitstatus_to_exitcode(ended[1])
        return self.code is not None

    def stop(self) -> None:
        """End it, whatever it does."""
        self._end_s = 0.0
        self.has_ended()

    def wait(self) -> int:
        """Its exit code, when it is done."""
        while not self.has_ended():
            time.sleep(0.02)
        assert self.code is not None
        return self.code


def judge_the_end(
    files: Sequence[str],
    outputs: Sequence[Output],
    env: Mapping[str, str],
    say: Callable[[], None],
) -> int:
    """Print why the job failed, as ``logs`` does, after what ``say`` prints. Its exit code; 0 and 2 print nothing.

    2 is wrong use: nothing could be read.
    """
    from ddp_doctor.app.logs import logs
    from ddp_doctor.model.choices import ExitCode, UsageError
    from ddp_doctor.model.report import LogsReport

    # tasks may share a file, of which all that the first of them saw is read
    starts = dict(sorted(outputs, key=itemgetter(1), reverse=True))
    try:
        outcome = logs((*files, *starts), starts=starts)
    except UsageError:
        return ExitCode.USAGE.value
    causes = outcome.report.causes if isinstance(outcome.report, LogsReport) else ()
    if all(cause.name == _NO_END for cause in causes):
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
) -> int:
    """Print what keeps these ranks waiting, as ``attach`` does; its exit code.

    ``node``: the number of this one in a SLURM step of several. From the first those of all nodes are looked at, or
    these where SLURM does not allow it; of another it is no news that all of these wait. Where nothing can be told it
    is a line, and nothing if ``only_if_sure``. ``why`` they are looked at comes first.
    """
    from ddp_doctor.app.folders import save_recording
    from ddp_doctor.model.choices import ExitCode, UsageError
    from ddp_doctor.views.live_jobs import live_jobs

    ran = [pid for pid in pids if not process.has_ended(pid)]
    try:
        outcome, alone = _looked(pids, env, in_step=node == 0)
    except UsageError:  # they have just ended
        return ENDED
    code = outcome.report.exit_code
    if any(map(process.has_ended, ran)):  # the job is about to
        return ENDED
    if node and all(rank.waits for job in live_jobs(outcome.recording) for rank in job.ranks):
        return ExitCode.HEALTHY.value
    if code == ExitCode.SICK.value:
        say(f"{why}{alone}:")
        _show(outcome, env, say)
    elif code == ExitCode.UNSURE.value and not only_if_sure:
        saved_as = save_recording(outcome.recording, state_folder(env))
        say(f"{why}{alone}. {outcome.report.summary} (`ddp-doctor replay {saved_as}` has more)")
    return code


def _looked(pids: Sequence[int], env: Mapping[str, str], *, in_step: bool) -> tuple["Outcome", str]:
    """What was seen, and that it is of this node alone, if it is so. Raises UsageError."""
    from ddp_doctor.app.attach import attach
    from ddp_doctor.app.attach_nodes import attach_to_step
    from ddp_doctor.model.choices import UsageError
    from ddp_doctor.views.live_jobs import live_jobs, unreached

    alone = ", seen on this node alone"
    if not in_step:
        outcome = attach(pids, env=env)
        return outcome, alone if any(job.is_elsewhere for job in live_jobs(outcome.recording)) else ""
    try:
        outcome = attach_to_step((), lambda _: None, env)
        lost = unreached(outcome.recording)
        if outcome.recording.world and len(lost) < outcome.recording.world.nnodes:
            return outcome, ""
        reason = next(iter(lost.values()))
    except UsageError as error:
        reason = str(error)
    return attach(pids, env=env), f"{alone} ({reason})"


def _show(outcome: "Outcome", env: Mapping[str, str], say: Callable[[str], None] | None = None) -> None:
    """Print the report; by ``say`` line for line, among the job's own words, where there is no terminal."""
    from ddp_doctor.app.folders import save_recording
    from ddp_doctor.render import screen, terminal

    saved_as = save_recording(outcome.recording, state_folder(env))
    whole = io.StringIO()
    if say is None or sys.stderr.isatty():
        terminal.show(outcome.report, outcome.recording, screen.console(sys.stderr), saved_as)
        return
    terminal.show(outcome.report, outcome.recording, screen.console(whole), saved_as)
    for line in whole.getvalue().splitlines():
        say(line)
