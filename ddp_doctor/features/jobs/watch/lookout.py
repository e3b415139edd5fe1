"""The lookout: checks whether the command makes progress while it runs, and reports once what keeps it waiting.

In a SLURM step of several nodes, the watcher on the first node (the head) checks all nodes, and the other watchers
notice its agent on their node. If no agent comes, each checks its own node, and reports unless all of its ranks wait.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddp_doctor.features.jobs.watch.command import Command
from ddp_doctor.features.jobs.watch.evidence import Evidence, Output
from ddp_doctor.features.jobs.watch.judging import CUT_SHORT, ENDED, SLOW, WAITS, Judging, Pictures, judge_what_runs
from ddp_doctor.features.jobs.watch.progress import Progress
from ddp_doctor.features.jobs.watch.slowdown import Slowdown
from ddp_doctor.ranks import process
from ddp_doctor.sources import proc

#: Pauses between samples: short in the first minutes, which have to show the pace, and longer later.
_FIRST_PAUSE_S, _FIRST_S = 2.5, 120.0
_PAUSE_S, _LATER_PAUSE_S, _LATER_S = 5.0, 15.0, 600.0
_PAUSE_OF_JUDGING_S = 0.1
#: After this long without a sample, this process was stopped, or the machine slept.
_GAP_S = 60.0
#: `attach` takes ten seconds at most in addition to its imports, which are slow on a busy machine.
_JUDGING_S = 30.0
#: SLURM has 15 s to start the agents on other nodes. If it does not, only this node is checked.
_JUDGING_NODES_S = 60.0
#: Time for the agent of the head to come, which sees the same stall at about the same time; the agent stays for 4 s.
_AGENT_S, _PAUSE_FOR_AGENT_S = 60.0, 2.0
#: A process group may have a timeout below ``--stuck-after``, which is not visible from outside. The job is sampled
#: silently after this time without progress, in case it ends in that stall.
_EARLY_S = 30.0
#: Time for a job to end after a collective timed out: torch writes its dumps first, torchrun ends the other ranks.
_ENDS_SOON_S = 60.0
#: A job that seemed to stall but made progress is checked less often, after at most this many times ``--stuck-after``.
#: With the default of two minutes, this is before NCCL's watchdog ends the job, after ten minutes by default.
_MOST_TIMES_LATER = 4
#: A command that runs this long after SIGTERM is checked: SLURM kills it after 30 s by default (KillWait).
_ENDS_ITSELF_S = 8.0
#: torchrun gives its workers 30 s to exit.
_KILL_PATIENCE_S = 30.0
_MOST_NAMED = 8
_MOST_PROCESSES = 4_096
#: Exit codes of ``attach``.
_STUCK, _UNSURE = 1, 3


@dataclass(frozen=True)
class WatchOptions:
    """The options of the command."""

    stuck_after_s: float
    kill_on_hang: bool
    keep_output: bool
    tell_slow: bool = False


@dataclass
class _EarlyLook:
    at_s: float  # monotonic, as below
    still_until_s: float
    said: int  # descriptor of the output
    names_who: bool = False


class Lookout:
    """Samples the job at intervals while the command runs.

    ``node``: the number of this node in a SLURM step of several nodes.
    """

    def __init__(
        self,
        command: Command,
        evidence: Evidence,
        options: WatchOptions,
        say: Callable[[str], None],
        node: int | None = None,
        outputs: Sequence[Output] = (),
    ) -> None:
        self._command, self._evidence, self._options, self._say = command, evidence, options, say
        self._node, self._has_head = node, bool(node)
        self._longest_s = _JUDGING_NODES_S if node == 0 else _JUDGING_S
        self._progress = Progress()
        self.slowdown = Slowdown(evidence, outputs, speaks=not node)
        self._next_s = self._still_s = 0.0
        self._judging: Judging | None = None
        self._judged_s = 0.0
        self._judged_pids: Sequence[int] = ()
        self._patience_s = options.stuck_after_s
        self._has_told = False  # of the current stall
        self._has_doubted = False  # whether the current stall is a hang
        self._has_waited = False  # for a rank at work, in an earlier check
        self._pictures = os.memfd_create("seen")
        self._agent_came = False  # of the head, which reports the stall
        self._early: _EarlyLook | None = None
        self.is_stuck = False  # and the cause has been reported
        self._living: dict[int, int] = {}  # start times of the job's processes when it was killed, by pid
        self._killed_s: float | None = None
        self._cut_short = 0  # checks in a row

    @property
    def has_told(self) -> bool:
        """Return True if the current stall has been reported, as a hang or not."""
        return self.is_stuck or self._has_doubted

    def pause_s(self) -> float:
        """Return the seconds until the next sample."""
        return max(self._next_s - time.monotonic(), 0.0)

    def look(self) -> None:
        """Sample the job, if it is time."""
        now = time.monotonic()
        if now < self._next_s:
            return
        if self._evidence.bound():
            self._say("the job wrote so much that the largest of its kept files were emptied")
        self._tell_who_lives()
        if self._judging is not None and self._judging.has_ended():
            self._heed(self._judging.code or 0)
            self._judging = None
        elif self._judging is None:
            self._judge_if_still(now)
        self.slowdown.look(self._progress.pids(), _GAP_S)
        if self._options.tell_slow and (news := self.slowdown.news()):
            self._say(f"the job {news}")
        ran_s = now - self._command.started_s
        is_later = ran_s > _LATER_S and not self._command.told.get(signal.SIGTERM)
        usual_s = _FIRST_PAUSE_S if ran_s < _FIRST_S else _LATER_PAUSE_S if is_later else _PAUSE_S
        pause_s = min(usual_s, self._options.stuck_after_s / 4)
        if self._has_head and not self._agent_came and self._still_s > self._options.stuck_after_s / 2:
            pause_s = min(pause_s, _PAUSE_FOR_AGENT_S)
        pause_s *= random.uniform(0.8, 1.0)  # noqa: S311 - so that samples are not in step with the job
        self._next_s = time.monotonic() + (_PAUSE_OF_JUDGING_S if self._judging else pause_s)

    def close(self) -> None:
        """Stop a check that still runs, because the command has ended."""
        if self._judging is not None:
            self._judging.stop()
        self.slowdown.close()
        if self._killed_s is not None:
            self._killed_s = min(self._killed_s, time.monotonic() - _KILL_PATIENCE_S)
            self._tell_who_lives()

    def tell_early_look(self, ended_s: float) -> None:
        """Print the silent sample of a stall if the command ended in it before it was checked."""
        early = self._early
        is_of_the_end = early and ended_s - early.still_until_s < _ENDS_SOON_S
        if early and early.names_who and is_of_the_end and self._judged_s < early.at_s:
            sys.stderr.flush()
            with open(early.said, "rb") as said:
                said.seek(0)
                os.write(2, said.read())

    def _judge_if_still(self, now: float) -> None:
        roots = [self._command.pid, *(pid for pid, _ in self._evidence.tasks())]
        still_s = self._still_s = self._progress.look(roots, _GAP_S)
        pids = self._progress.pids()
        is_ending = set(pids) < set(self._judged_pids)  # the end of a rank resets the times of the others
        has_moved = self._judged_s < now - still_s and still_s < self._options.stuck_after_s / 4
        if pids and has_moved and not is_ending:
            if self._has_told or self._has_doubted:
                self._say("the job makes progress again")
            self._has_told = self._has_doubted = self._agent_came = self.is_stuck = self._has_waited = False
        if self._early and now - still_s <= self._early.at_s:
            self._early.still_until_s = now
        sent_s = self._command.told.get(signal.SIGTERM)
        if self._has_told:
            return
        if not pids:
            self._judge_without_ranks(now)
            return
        if sent_s is not None and now - sent_s > _ENDS_ITSELF_S and self._judged_s < sent_s:
            why = "the job has not ended since SIGTERM"  # SLURM does not start new steps in a job that it ends
            self._judge(now, pids, why, _JUDGING_S - 2 * _ENDS_ITSELF_S, self._node or None)
        elif self._is_left_to_head():
            return
        elif still_s >= self._patience_s + _AGENT_S * self._has_head and now - self._judged_s >= self._patience_s:
            why = f"a rank has made no progress for {still_s:.0f} s"
            self._judge(now, pids, why, self._longest_s, self._node)
        elif self._options.stuck_after_s > still_s >= _EARLY_S:
            self._look_early(now, pids)

    def _judge_without_ranks(self, now: float) -> None:
        waited_s = now - self._command.started_s
        if not self._judged_pids and waited_s >= self._patience_s and now - self._judged_s >= self._patience_s:
            self._judge(now, [], f"no rank has started for {waited_s:.0f} s", self._longest_s)

    def _judge(self, now: float, pids: Sequence[int], why: str, seconds: float, node: int | None = None) -> None:
        self._judged_s, self._judged_pids = now, pids
        only_if_sure = self._has_doubted
        pictures = Pictures(self._pictures, self._options.stuck_after_s, now, self._still_s)
        self._judging = Judging(
            lambda: judge_what_runs(
                pids or [self._command.pid],
                os.environ,
                self._say,
                why,
                node=node,
                only_if_sure=only_if_sure,
                pictures=pictures,
            ),
            seconds,
        )

    def _look_early(self, now: float, pids: Sequence[int]) -> None:
        if self._early and now - self._early.at_s < _LATER_S:
            return
        if self._early:
            os.close(self._early.said)
        self._early = _EarlyLook(now, now, os.memfd_create("said"))
        why = f"shortly before the job ended, a rank had not moved for over {_EARLY_S:.0f} s; this was seen then"
        self._judging = Judging(
            lambda: judge_what_runs(pids, os.environ, self._say, why, only_if_sure=True), _JUDGING_S, self._early.said
        )

    def _is_left_to_head(self) -> bool:
        """Return True if the head checks or has checked this stall: its agent was on this node."""
        if self._has_head and not self._agent_came and self._still_s > self._options.stuck_after_s / 2:
            words = {"attach", f"{os.environ['SLURM_JOB_ID']}.{os.environ['SLURM_STEP_ID']}"}
            self._agent_came = any(words <= set(proc.command(pid)) for pid in proc.pids())
        return self._agent_came

    def _heed(self, code: int) -> None:
        if self._early and self._early.at_s > self._judged_s:
            self._early.names_who = code in (_STUCK, WAITS)
            return
        if code == ENDED:
            return
        self._cut_short = self._cut_short + 1 if code == CUT_SHORT else 0
        self._has_told = code == _STUCK or self._cut_short > 1
        self._has_doubted = self._has_doubted or code in (_UNSURE, SLOW)
        self.is_stuck = code == _STUCK
        if self._cut_short > 1 and not self._has_head:
            self._say(f"a rank makes no progress, and {self._longest_s:.0f} s were not enough to check all ranks")
        if code == _STUCK and self._options.kill_on_hang and self._killed_s is None:
            pids = process.with_children(self._command.pid, _MOST_PROCESSES) or [self._command.pid]
            self._living = {pid: started for pid in pids if (started := process.started(pid)) is not None}
            self._killed_s = time.monotonic()
            self._say(f"sending SIGTERM to the command (process {self._command.pid}) because the job hangs")
            self._command.send(signal.SIGTERM)
        is_first_wait = code == WAITS and not self._has_waited  # the next check shows whether it continues
        self._has_waited = self._has_waited or code == WAITS
        if not self._has_told and not is_first_wait:
            longest_s = _MOST_TIMES_LATER * self._options.stuck_after_s
            self._patience_s = min(2 * self._patience_s, longest_s)

    def _tell_who_lives(self) -> None:
        if self._killed_s is None or time.monotonic() - self._killed_s < _KILL_PATIENCE_S or not self._living:
            return
        left = [pid for pid, started in self._living.items() if process.started(pid) == started]
        left = [pid for pid in left if not process.has_ended(pid)]
        self._living = {}
        names = [f"{pid} ({(proc.read(f'/proc/{pid}/comm') or '').strip()})" for pid in left]
        more = f" and {len(left) - _MOST_NAMED} more" if len(left) > _MOST_NAMED else ""
        if left:
            self._say(
                f"processes still running after SIGTERM: {', '.join(names[:_MOST_NAMED])}{more}; no further signal"
            )
