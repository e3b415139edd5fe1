"""Run one trial: watch its ranks, decide in time whether they are stuck, kill them and keep the evidence.

The agent never joins a collective, so it can always judge and kill. A missed deadline is not yet a hang: if a rank had
an event or printed something in the last second, the check is slow, and its deadline is extended once. A deadline moves
by the time for which a rank was ready to run but had no processor. A check of the user's code has a long deadline and
is judged earlier if all ranks are idle. docs/explanation/hangs.md has the complete order of events.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks import process
from ddp_doctor.ranks.idle_ranks import IdleRanks
from ddp_doctor.ranks.patience import Patience
from ddp_doctor.ranks.rank_state import RankState, late_steps
from ddp_doctor.sources import proc

#: A note on a trial of a fix: its limit also counts time in which no rank ran.
PAUSED = "the agent was stopped or starved"
#: A trial gets this note after a pause longer than this share of its limit and this many seconds.
_PAUSED_SHARE = 0.25
_PAUSED_S = 0.25
#: Seconds between two checks of the helper processes, each a few reads of /proc.
_LOOK_AT_HELPERS_S = 0.2


class TrialResult(Frozen):
    """The record of a trial, and the readings of its ranks before it ended."""

    record: TrialRecord
    readings: tuple[Reading, ...]

    @property
    def cut_short(self) -> str | None:
        """The reason why it ended without a judgment, or None."""
        if self.record.outcome != "interrupted":
            return None
        return next(iter(self.record.notes), "the trial was ended on another node")

    def unjudged(self, why: str) -> "TrialResult":
        """Return the result without a judgment, because ddp-doctor itself ended the trial."""
        record = self.record.model_copy(update={"outcome": "interrupted", "notes": (why, *self.record.notes)})
        return self.model_copy(update={"record": record})


class RemoteRanks(Protocol):
    """The other nodes' ranks: how a trial ends on all nodes at once."""

    lost: tuple[int, ...]

    def ended(self) -> str | None:
        """Return how the trial ended on all nodes, or None while it runs."""

    def done(self) -> None:
        """Report that this node's ranks have finished; the trial finishes when all nodes have reported it."""

    def end(self, outcome: str) -> None:
        """Report that this node's ranks are stuck or broken: the trial ends on all nodes."""

    def abandon(self) -> None:
        """Report that this node leaves the trial before its end."""

    def note(self, events: int, activity: int) -> None:
        """Report how many events this node's ranks have had, and how often they were active."""

    def moved_since(self, moment: float) -> bool:
        """Return True if any node's ranks had an event since this moment (monotonic)."""

    @property
    def active_at(self) -> float:
        """The time of the last report that a node's ranks were active or had an event (monotonic)."""


@dataclass
class Trial:
    """Watches the ranks of one world until they are done, stuck, broken or interrupted."""

    record: TrialRecord
    ranks: Sequence[RankState]
    check_deadlines: Mapping[str, float]
    progress: Callable[[str], None]
    start_s: float
    remote: RemoteRanks | None = None
    idle_limits: Mapping[str, float] = field(default_factory=dict)
    lost_helper: Callable[[], str | None] = lambda: None
    keep_partial: Callable[[TrialResult], None] = lambda _: None
    helper_pids: Sequence[int] = ()  # the forkserver, which reports exit codes, and the control store
    _look_at: float = 0.0
    _queued_s: float = 0.0  # how long the most delayed rank had no processor in its check, MOST_QUEUED_S at most
    _started: float = field(default_factory=time.monotonic)
    _epoch: float = field(default_factory=lambda: time.time() - 1.0)
    _extended: set[str] = field(default_factory=set)
    _oom_kills: int = field(default_factory=process.oom_kills)
    _sampled: tuple[float, dict[int, float], list[int]] | None = None  # time, CPU time per pid, bytes printed
    _shown: int = -1
    _watched: str = ""
    _paused: bool = False

    def __post_init__(self) -> None:
        self._idle_ranks = IdleRanks(self.ranks, self._started)
        limit_s = self.record.limit_s
        self._pause_s = max(_PAUSED_SHARE * (limit_s or float("inf")), _PAUSED_S)
        self._limit = None if limit_s is None else self._patience(limit_s)

    def run(self) -> TrialResult:
        """Watch to the end and kill the remaining ranks. An interruption keeps the partial result."""
        try:
            return self._run()
        except BaseException:
            if self.remote is not None:
                self.remote.abandon()
            check, waited = self._judged()
            self._ask_where_they_stand([rank for rank in self.ranks if rank.began and not rank.over])
            self.keep_partial(self._result("interrupted", check, waited))
            self._kill()
            raise

    def _run(self) -> TrialResult:
        outcome = self._watch()
        if outcome == "finished":
            segments = self._segments()
            for rank in self.ranks:
                rank.signal(signal.SIGTERM)
            self._await_exit(self._patience(deadlines.DISMISS_S).is_over)
            self._kill(segments)
            return self._result(outcome, None, 0.0)
        check, waited = self._judged()
        if outcome == "interrupted":  # ended by ddp-doctor: no rank is judged by it
            pass
        elif self.record.limit_s is None:
            self._gather_evidence()
        elif outcome == "broken":
            self._await_first_cause()
        result = self._result(outcome, check, waited)
        self._kill()
        return result

    # --- watching -------------------------------------------------------------------------------

    def _watch(self) -> str:
        broken: tuple[Patience, Patience] | None = None
        last_tick = time.monotonic()
        while True:
            now = time.monotonic()
            self._paused |= now - last_tick > self._pause_s
            if now - last_tick > deadlines.AGENT_PAUSE_S:
                self._forgive(now - last_tick)
            last_tick = now
            moved = [rank.absorb(now) for rank in self.ranks]
            self._show_progress()
            ended = self._ended_for_all()
            if ended is not None:
                return ended
            if all(rank.done for rank in self.ranks):
                time.sleep(0.005)  # other nodes have not finished yet, and have their own deadlines
                continue
            if now >= self._look_at:
                self._look_at = now + _LOOK_AT_HELPERS_S
                self._queued_s = self._longest_queue_s()
                if self.lost_helper() is not None:
                    return self._end("interrupted")
            if broken is None and any(rank.over and not rank.done for rank in self.ranks):
                broken = self._patience(deadlines.ECHO_GRACE_S), self._patience(deadlines.ON_ITS_WAY_S)
            if broken is not None and self._echoes_are_in(*broken):
                return self._end("broken")
            overdue = self._overdue(now)
            if overdue is not None:
                return self._end(overdue)
            time.sleep(0.002 if any(moved) else 0.01)

    def _ended_for_all(self) -> str | None:
        """Return how the trial ended on all nodes; on a single node, "finished" if all ranks are done."""
        done = all(rank.done for rank in self.ranks)
        if self.remote is None:
            return "finished" if done else None
        self.remote.note(sum(rank.events for rank in self.ranks), self._idle_ranks.activity)
        if done:
            self.remote.done()
        return self.remote.ended()

    def _end(self, outcome: str) -> str:
        if self.remote is not None:
            self.remote.end(outcome)
        return outcome

    def _longest_queue_s(self) -> float:
        queued_s = max((rank.queued_s() for rank in self.ranks if not rank.over), default=0.0)
        return min(queued_s, deadlines.MOST_QUEUED_S)

    def _patience(self, limit_s: float) -> Patience:
        return Patience(limit_s, [*(rank.worker.pid for rank in self.ranks), *self.helper_pids])

    def _echoes_are_in(self, grace: Patience, on_its_way: Patience) -> bool:
        # The errors of a dead rank's peers follow its death and show which rank waited for which. A rank outside of all
        # steps may still come to its peers, or to the same end. A rank that ended is not over until the forkserver,
        # which may have no processor, has reported its exit code.
        settled = all(rank.over for rank in self.ranks)
        waits = all(
            rank.over or (rank.open_step is not None and not process.has_ended(rank.worker.pid or os.getpid()))
            for rank in self.ranks
        )
        return settled or self.record.limit_s is not None or (grace if waits else on_its_way).is_over()

    def _forgive(self, pause_s: float) -> None:
        """Move all deadlines: the agent itself was stopped or starved (Ctrl-Z, a debugger)."""
        self._started += pause_s
        if self._limit is not None:
            self._limit.forgive(pause_s)
        self._idle_ranks.active_at += pause_s
        self._sampled = None
        for rank in self.ranks:
            rank.check_at += pause_s
            rank.step_deadlines = {key: at + pause_s for key, at in rank.step_deadlines.items()}

    def _show_progress(self) -> None:
        if self.record.limit_s is not None:  # the caller shows the progress of the many short trials of a fix
            return
        order = self.record.checks[self.record.launcher == "torchrun" :]
        reached = max((order.index(r.check) for r in self.ranks if r.check in order), default=-1)
        if reached > self._shown:
            self._shown = reached
            self.progress(order[reached])

    def _overdue(self, now: float) -> str | None:
        """Return "stuck" or "slow" if a deadline has passed, or None while the trial runs."""
        if self._limit is not None:  # a trial that tests a fix or a group of nodes does not judge ranks
            return "stuck" if self._limit.is_over() else None
        waiting = [rank for rank in self.ranks if not rank.over]
        check = self._slowest_check(waiting)
        if self._watched != check:  # a sample taken in another check does not apply
            self._watched, self._sampled = check, None
        steps = [(rank, rank.open_step) for rank in waiting]
        step_is_overdue = any(
            step and now > rank.step_deadlines.get((step.check, step.seq), now) + self._queued_s for rank, step in steps
        )
        deadline = self._deadline(check, waiting)
        judged_at = now if step_is_overdue else min(deadline, self._idle_deadline(check, now))
        if not self._has_watched_a_second(now, judged_at):
            return None
        has_moved = self._has_moved(now)
        if step_is_overdue or not has_moved:
            return "stuck"
        if now > deadline and check in self._extended:
            return "slow"
        if now > deadline:  # a check whose ranks move is extended once by half of its time
            self._extended.add(check)
        return None

    def _has_watched_a_second(self, now: float, judged_at: float) -> bool:
        """Return True if it is time to judge and a sample of the ranks is a second old; takes the sample in time."""
        if now <= judged_at - 1.0:
            self._sampled = None
            return False
        if self._sampled is None:
            self._sampled = now, self._cpu(), [rank.printed() for rank in self.ranks]
        sampled_at, *_ = self._sampled
        return now >= judged_at and now - sampled_at >= 1.0

    def _has_moved(self, now: float) -> bool:
        """Return True if a rank that is not over, on any node, did anything since the sample; removes the sample."""
        assert self._sampled is not None
        (since, before, printed), self._sampled = self._sampled, None
        after, here = self._cpu(), False
        for rank, size in zip(self.ranks, printed, strict=True):
            pid = rank.worker.pid
            if pid in before and pid in after:
                rank.cpu_s_per_s = round((after[pid] - before[pid]) / (now - since), 2)
            here |= not rank.over and (rank.last_event_at > since or rank.printed() > size)
        return here or (self.remote is not None and self.remote.moved_since(since))

    def _slowest_check(self, waiting: Sequence[RankState]) -> str:
        order = {check: index for index, check in enumerate(self.record.checks)}
        return min((rank.check for rank in waiting), key=lambda check: order.get(check, -1), default="")

    def _deadline(self, check: str, waiting: Sequence[RankState]) -> float:
        begun = [rank.check_at for rank in self.ranks if rank.check == check and rank.check_at]
        allowed = self.check_deadlines.get(check, deadlines.CHECK_S)
        factor = 1.0 + deadlines.EXTENSION * (check in self._extended)
        start = min(begun, default=self._started)
        if not check or not waiting:
            start, allowed, factor = self._started, self.start_s, 1.0
        return start + allowed * factor + min(self._queued_s, deadlines.MOST_QUEUED * allowed)

    def _idle_deadline(self, check: str, now: float) -> float:
        """Return when a check is judged if all ranks of all nodes stay idle from now on."""
        if not self.idle_limits:
            return float("inf")
        self._idle_ranks.update(now)  # in each check: other nodes may be in a check with such a limit
        allowed = self.idle_limits.get(check, float("inf"))
        events = [at for rank in self.ranks for at in (rank.check_at, rank.last_event_at)]
        remote_active_at = self.remote.active_at if self.remote is not None else 0.0
        return max(self._idle_ranks.active_at, remote_active_at, *events) + allowed

    def _judged(self) -> tuple[str | None, float]:
        waiting = [rank for rank in self.ranks if not rank.done]
        check = self._slowest_check(waiting) or (self.record.checks[0] if self.record.checks else None)
        begun = [rank.check_at for rank in self.ranks if rank.check == check and rank.check_at]
        return check, time.monotonic() - min(begun, default=self._started)

    def _cpu(self) -> dict[int, float]:
        pids = [rank.worker.pid for rank in self.ranks if rank.worker.pid]
        return {pid: seconds for pid in pids if (seconds := process.cpu_seconds(pid)) is not None}

    # --- evidence and the end -------------------------------------------------------------------

    def _gather_evidence(self) -> None:
        alive = [rank for rank in self.ranks if rank.exited_at is None]
        asked_at = time.monotonic()
        self._ask_where_they_stand(alive)
        again = [rank for rank in alive if rank.has_to_answer_twice()]
        if again:
            time.sleep(max(0.0, asked_at + deadlines.STACK_DUMP_S + deadlines.RECORDER_LAG_S - time.monotonic()))
            for rank in again:
                rank.keep_first_answer()
                rank.signal(signal.SIGUSR2)
            self._await_answers(again)

    def _await_first_cause(self) -> None:
        """Wait for the first cause: peers of a killed rank report before its end shows; remote ends never show."""
        grace_s = deadlines.ON_ITS_WAY_S if self.remote is None else deadlines.ECHO_GRACE_S
        ends = time.monotonic() + grace_s
        while all(rank.raised.blames_peer if rank.raised else rank.exited_at is None for rank in self.ranks):
            if time.monotonic() > ends:
                return
            time.sleep(0.01)
            for rank in self.ranks:
                rank.absorb(time.monotonic())

    def _ask_where_they_stand(self, alive: Sequence[RankState]) -> None:
        for rank in alive:  # before any signal disturbs it
            if rank.worker.pid is not None and rank.exited_at is None:
                rank.queued_s()
                rank.state = process.state(rank.worker.pid)
                rank.wait_channel = proc.wait_channel(rank.worker.pid)
        for rank in alive:
            rank.signal(signal.SIGUSR2)
            rank.signal(signal.SIGUSR1)
            if rank.state in ("T", "t"):
                rank.signal(signal.SIGCONT)
        self._await_answers(alive)

    @staticmethod
    def _await_answers(ranks: Sequence[RankState]) -> None:
        patience = Patience(deadlines.STACK_DUMP_S, [rank.worker.pid for rank in ranks])
        while not all(rank.has_stack_dump() for rank in ranks) and not patience.is_over():
            time.sleep(0.01)

    def _kill(self, segments: frozenset[str] = frozenset()) -> None:
        segments |= self._segments()
        for rank in self.ranks:
            rank.signal(signal.SIGKILL)
        began = time.monotonic()
        self._await_exit(lambda: time.monotonic() - began > self._longest_death_s())
        for path in segments:  # NCCL unlinks them only when all ranks have attached
            with suppress(OSError):
                os.unlink(path)

    def _longest_death_s(self) -> float:
        """Return how long to wait for killed ranks: longer if one of them only needs a processor to end."""
        pids = [rank.worker.pid for rank in self.ranks if rank.worker.pid and rank.worker.exitcode is None]
        runs = any(
            (state := process.state(pid)) == "R" or (state == "Z" and len(proc.thread_ids(pid)) > 1) for pid in pids
        )
        return deadlines.MOST_QUEUED_S if runs else deadlines.KILL_S

    def _segments(self) -> frozenset[str]:
        alive = [rank.worker.pid for rank in self.ranks if rank.worker.exitcode is None]
        found = [process.nccl_segments(pid, self._epoch) for pid in alive if pid is not None]
        return frozenset(path for paths in found for path in paths)

    def _await_exit(self, is_over: Callable[[], bool]) -> None:
        while any(rank.worker.exitcode is None for rank in self.ranks) and not is_over():
            time.sleep(0.002)

    def _result(self, outcome: str, check: str | None, waited_s: float) -> TrialResult:
        ooms = process.oom_kills() > self._oom_kills
        evidence = [rank.evidence(ooms) for rank in self.ranks]
        if outcome == "finished" and self.remote is None:
            evidence = late_steps(evidence)
        abandoned = [
            f"rank {rank.rank} (pid {rank.pid}) is in uninterruptible sleep and was abandoned"
            for rank in evidence
            if rank.state == "D"
        ]
        record = self.record.model_copy(
            update={
                "outcome": outcome,
                "judged_check": check,
                "waited_s": round(waited_s, 2),
                "duration_s": round(time.monotonic() - self._started, 3),
                "evidence": tuple(evidence),
                "lost_nodes": self.remote.lost if self.remote is not None else (),
                "notes": (*abandoned, *([PAUSED] if self._paused else ())),
            }
        )
        readings = tuple(reading for rank in self.ranks for reading in rank.readings)
        return TrialResult(record=record, readings=readings)
