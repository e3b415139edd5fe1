"""The agent of a node: forks the ranks of one trial after another until all rank checks were run.

After a trial got stuck, what is left of the plan goes on in the next trial: without the rank that
is to blame, without the pair that did not answer, or, where nobody could be named, without the
check. Ranks keep their first numbers in all reports.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from ddp_doctor.knowledge import deadlines
from ddp_doctor.launch import hang, torchrun
from ddp_doctor.launch.control import Control
from ddp_doctor.launch.environment import rank_environment
from ddp_doctor.launch.events import EventReader
from ddp_doctor.launch.forkserver import ForkServer
from ddp_doctor.launch.rank_state import RankState, Worker
from ddp_doctor.launch.spec import Task, WorkerSpec
from ddp_doctor.launch.trial import Trial, TrialResult
from ddp_doctor.launch.worker import forked
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level, Status
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import World
from ddp_doctor.model.trial import TrialRecord

#: Every trial begins with it, and no check can do without it.
_FIRST = "process_group"
#: The check that tests links one by one.
_PAIRWISE = "p2p"
_HELPER_DIED = "a helper process of the doctor died: killed from outside, or for lack of memory"
#: A node that needs more trials than this is sick enough; the rest of its plan is not run.
MOST_TRIALS = 8


@dataclass
class Agent:
    """Runs the rank checks of one node. ``progress`` is told each check as it begins."""

    scratch: Path
    server: ForkServer
    control: Control | None  # None: ranks meet where the launcher says
    world: World
    env: Mapping[str, str]
    level: Level
    progress: Callable[[str], None]
    until: float  # monotonic; no new trial starts later
    trials: list[TrialRecord]  # these three are the session's and filled in place
    readings: list[Reading]
    left_out: list[tuple[str, str]]
    first_trial: int = 0
    _ranks: tuple[int, ...] = ()
    _skip_pairs: set[tuple[int, int]] = field(default_factory=set)

    @contextmanager
    def running_under_torchrun(self, checks: Sequence[Check]) -> Iterator[None]:
        """One trial whose ranks the real torchrun starts; the block runs while torchrun shuts down."""
        record = self._record(checks, tuple(range(self.world.world_size)), "torchrun")
        folder = self._folder(record)
        specs = self._specs(record, folder, checks)
        with torchrun.Launch(folder, specs, self.env) as launch:
            states = self._states(specs, launch.workers)
            result = self._run_trial(self._trial(record, states, checks))
            self._keep(result)
            self._note_unread(result.record, checks, result.record.ranks)
            yield
            notes = launch.notes(deadlines.CHECK_S if result.record.outcome == "finished" else 0.0)
        position = self.trials.index(result.record)
        self.trials[position] = result.record.model_copy(update={"notes": notes})

    def run(self, checks: Sequence[Check]) -> None:
        """All rank checks, in as many trials as it takes."""
        self._ranks = tuple(range(self.world.world_size))
        left = list(checks)
        while left:
            left = self._fit(left)
            if not left:
                return
            if not self._helpers_live():
                self._give_up(left)
                return
            record = self._record(left, self._ranks, "forkserver")
            folder = self._folder(record)
            specs = self._specs(record, folder, left)
            workers = [self.server.fork(forked, spec.to_json()) for spec in specs]
            result = self._run_trial(self._trial(record, self._states(specs, workers), left))
            if result.record.outcome != "finished" and not self._helpers_live():
                unjudged = result.record.model_copy(
                    update={"outcome": "interrupted", "notes": (_HELPER_DIED,)}
                )
                self._keep(TrialResult(unjudged, result.readings))
                self._give_up(left)
                return
            self._keep(result)
            left = self._left_after(result.record, left)

    def _helpers_live(self) -> bool:
        """Without the forkserver or the store every rank fails, and none of them is to blame."""
        return self.server.is_alive() and (self.control is None or self.control.process.is_alive())

    def _give_up(self, checks: Sequence[Check]) -> None:
        """What was not read yet has failed, through no fault of the machine's."""
        read = {reading.check for reading in self.readings if reading.rank is not None}
        self.readings.extend(
            Reading(check=check.id, status=Status.FAILED, reason=_HELPER_DIED)
            for check in checks
            if check.id not in read
        )

    def _run_trial(self, trial: Trial) -> TrialResult:
        try:
            return trial.run()
        except BaseException:  # an interrupted run still reports what it saw
            self._keep(trial.partial())
            raise

    def _fit(self, checks: list[Check]) -> list[Check]:
        """Drop what the ranks, the time or the number of trials no longer allow."""
        fitting = []
        for check in checks:
            if len(self.trials) >= MOST_TRIALS:
                self.left_out.append((check.id, f"not run after {MOST_TRIALS} trials"))
            elif time.monotonic() > self.until:
                self.left_out.append((check.id, "the time budget was used up"))
            elif len(self._ranks) < self._needed(check):
                have = "is left" if len(self._ranks) < self.world.world_size else "is all this run has"
                self.left_out.append((check.id, f"needs 2 ranks, {len(self._ranks)} {have}"))
            else:
                fitting.append(check)
        return fitting

    def _needed(self, check: Check) -> int:
        """A world that lost ranks must still be one: one rank alone proves nothing of the others."""
        return max(check.min_ranks, min(self.world.world_size, 2))

    def _left_after(self, record: TrialRecord, checks: list[Check]) -> list[Check]:
        if record.outcome == "finished":
            return []
        judgement = hang.judge(record)
        ids = [check.id for check in checks]
        position = ids.index(record.judged_check) if record.judged_check in ids else 0
        judged = checks[position : position + 1]
        if judgement.names_a_rank:
            self._ranks = tuple(rank for rank in self._ranks if rank not in judgement.suspects)
            self._note_unread(record, judged, judgement.suspects)
            return checks[position:]
        if judgement.pairs and not set(judgement.pairs) <= self._skip_pairs:
            self._skip_pairs |= set(judgement.pairs)
            return self._without_collectives(checks[position:])
        self._note_unread(record, judged, record.ranks)
        if record.judged_check == _FIRST and not _have_met(record):
            return self._leave_out(checks, "the process group could not be set up")
        # A link is to blame: the pairwise check says which, and must not wait behind more hangs.
        return sorted(checks[position + 1 :], key=lambda check: check.id != _PAIRWISE)

    def _without_collectives(self, checks: list[Check]) -> list[Check]:
        """A collective over a pair that does not answer hangs again; the other pairs are still tested."""
        pairs = ", ".join(f"{one} and {other}" for one, other in sorted(self._skip_pairs))
        others = [check for check in checks if check.id != _PAIRWISE]
        self._leave_out(others, f"the link between ranks {pairs} hangs")
        return [check for check in checks if check.id == _PAIRWISE]

    def _leave_out(self, checks: Sequence[Check], reason: str) -> list[Check]:
        read = {reading.check for reading in self.readings}
        self.left_out.extend((check.id, reason) for check in checks if check.id not in read)
        return []

    def _note_unread(self, record: TrialRecord, checks: Sequence[Check], ranks: Sequence[int]) -> None:
        """Ranks that no later trial gives another chance: the check failed or timed out on them."""
        if record.outcome == "finished":
            return
        read = {(reading.check, reading.rank) for reading in self.readings}
        status = "failed" if record.outcome == "broken" else "timed_out"
        for check in checks:
            for rank in ranks:
                if (check.id, rank) not in read:
                    reason = _why_unread(record, rank)
                    self.readings.append(
                        Reading.model_validate(
                            {"check": check.id, "status": status, "rank": rank, "reason": reason}
                        )
                    )

    def _keep(self, result: TrialResult) -> None:
        """Later trials repeat a check with fewer ranks: their reading replaces the earlier one."""
        new = {(reading.check, reading.rank) for reading in result.readings}
        self.readings[:] = [one for one in self.readings if (one.check, one.rank) not in new]
        self.readings.extend(result.readings)
        self.trials.append(result.record)

    def _record(self, checks: Sequence[Check], ranks: tuple[int, ...], launcher: str) -> TrialRecord:
        return TrialRecord.model_validate(
            {
                "trial": f"t{self.first_trial + len(self.trials)}",
                "launcher": launcher,
                "backend": self.world.backend,
                "ranks": ranks,
                "checks": (_FIRST, *(c.id for c in checks if c.id != _FIRST)),
            }
        )

    def _folder(self, record: TrialRecord) -> Path:
        folder = self.scratch / record.trial
        folder.mkdir()
        return folder

    def _specs(self, record: TrialRecord, folder: Path, checks: Sequence[Check]) -> list[WorkerSpec]:
        allowed = self._deadlines(checks)
        tasks = tuple(
            Task(c.id, f"{c.probe.__module__}:{c.probe.__qualname__}", allowed[c.id]) for c in checks
        )
        cuda = self.world.backend == "nccl"
        store_port = self.control.port if self.control and record.launcher == "forkserver" else 0
        first = deadlines.FIRST_NCCL_S if cuda else deadlines.CHECK_S
        return [
            WorkerSpec(
                trial=record.trial,
                folder=str(folder),
                rank=rank,
                group_rank=index,
                ranks=record.ranks,
                local_rank=rank % self.world.nproc_per_node,
                backend=self.world.backend,
                device=f"cuda:{rank % self.world.nproc_per_node}" if cuda else "cpu",
                level=self.level,
                tasks=tasks,
                launched_at=time.monotonic(),
                init_deadline_s=first * self._crowd(),
                env=rank_environment(self.env, self.world, rank, store_port),
                store_host=self.control.host if self.control else "",
                store_port=store_port,
                skip_pairs=tuple(sorted(self._skip_pairs)),
            )
            for index, rank in enumerate(record.ranks)
        ]

    def _states(self, specs: Sequence[WorkerSpec], workers: Sequence[Worker]) -> list[RankState]:
        now = time.monotonic()
        return [
            RankState(spec, worker, now, EventReader(spec.path("events")))
            for spec, worker in zip(specs, workers, strict=True)
        ]

    def _trial(self, record: TrialRecord, states: Sequence[RankState], checks: Sequence[Check]) -> Trial:
        allowed = self._deadlines(checks)
        start_s = deadlines.IMPORT_S if record.launcher == "torchrun" else deadlines.WORKER_START_S
        return Trial(record, states, allowed, self.progress, start_s * self._crowd())

    def _deadlines(self, checks: Sequence[Check]) -> dict[str, float]:
        """Seconds per check; on NCCL whichever comes first also creates the communicators."""
        allowed = {check.id: check.deadline_s * self._crowd() for check in checks}
        allowed.setdefault(_FIRST, deadlines.CHECK_S * self._crowd())
        if self.world.backend == "nccl":
            for check_id in (_FIRST, *(check.id for check in checks[:1])):
                allowed[check_id] = max(allowed[check_id], deadlines.FIRST_NCCL_S * self._crowd())
        return allowed

    def _crowd(self) -> float:
        """Ranks that share a core are slow by right."""
        cores = len(os.sched_getaffinity(0))
        return max(1.0, self.world.nproc_per_node / (cores * deadlines.RANKS_PER_CORE))


def _have_met(record: TrialRecord) -> bool:
    """Whether some rank came out of init_process_group."""
    steps = [step for one in record.evidence for step in one.steps]
    return any(step.name == "init_process_group" and step.left_at is not None for step in steps)


def _why_unread(record: TrialRecord, rank: int) -> str:
    raised = next((one.raised for one in record.evidence if one.rank == rank), None)
    if raised is not None:
        return f"{raised.type} at {raised.where}: {raised.message[:300]}"
    return f"trial {record.trial} ended before rank {rank} was through"
