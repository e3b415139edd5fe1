"""The ranks of one node in one trial: forks them, watches them, and returns their readings."""

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.check import PROCESS_GROUP, Check
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.recording import Options, World
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks import folders
from ddp_doctor.ranks.control_store import Control
from ddp_doctor.ranks.environment import Refused, rank_environment, with_settings
from ddp_doctor.ranks.events import EventReader
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.ranks.helper import HelperLost
from ddp_doctor.ranks.rank_state import RankState, Worker
from ddp_doctor.ranks.spec import Task, WorkerSpec
from ddp_doctor.ranks.torchrun.launch import Launch, rendezvous
from ddp_doctor.ranks.trial import RemoteRanks, Trial, TrialResult
from ddp_doctor.ranks.worker.main import forked
from ddp_doctor.ranks.worker.remedy_probe import PROBE, TRYING
from ddp_doctor.settings import trials

_TRIAL = re.compile(r"t\d{1,9}", re.ASCII)
Pairs = Sequence[tuple[int, int]]


def parts_of(check: Check, options: Options, without: Collection[str]) -> tuple[str, ...]:
    """Return the remaining parts of a check; the only part of a check without parts has an empty name."""
    return ("",) if check.parts is None else tuple(part for part in check.parts(options) if part not in without)


@dataclass(frozen=True)
class Run:
    """The values that are the same for all trials of a run, as seen by one node."""

    options: Options  # the head's on all nodes, except the user's model, which each node defines
    env: Mapping[str, str]  # the job's environment
    progress: Callable[[str], None]
    world: World
    node: int = 0  # node rank of this node
    until: float = float("inf")  # monotonic; no new trial starts later


@dataclass
class NodeRanks:
    """This node's part of a trial. ``store`` is the address of the control store, as this node reaches it."""

    run: Run
    run_folder: Path
    server: ForkServer
    store: tuple[str, int] | None  # None: there is none yet, and torchrun's ranks may need none
    control: Control | None = None  # the store's process, if it is on this node
    keep_partial: Callable[[TrialResult], None] = lambda _: None  # receives the readings of an interrupted trial

    def run_trial(
        self, record: TrialRecord, checks: Sequence[Check], skip_pairs: Pairs = (), remote: RemoteRanks | None = None
    ) -> TrialResult:
        """Fork the ranks and watch them to the end. An interruption keeps the readings made until then.

        Raises Refused. If a helper process is lost, the trial is "interrupted", its first note gives the reason, and no
        rank is judged.
        """
        self._require_sense(record, checks)
        folder = self._folder(record)
        specs = self._specs(record, folder, checks, skip_pairs)
        try:
            workers = [self.server.fork(forked, spec.to_json()) for spec in specs]
        except HelperLost as lost:
            if remote is not None:
                remote.end("interrupted")
            return TrialResult(record=record, readings=()).unjudged(str(lost))
        return self._watch(record, specs, workers, checks, remote, self.lost_helper)

    def lost_helper(self) -> str | None:
        """Return why the forkserver or the control store does not serve. No rank is the cause of failures then."""
        return self.server.lost() or (self.control.helper.lost() if self.control is not None else None)

    @contextmanager
    def running_under_torchrun(
        self, record: TrialRecord, checks: Sequence[Check], remote: RemoteRanks | None = None
    ) -> Iterator[tuple[TrialResult, Launch]]:
        """Run the trial with ranks that the real torchrun starts; the block runs while torchrun shuts down."""
        self._require_sense(record, checks)
        folder = self._folder(record)
        specs = self._specs(record, folder, checks, ())
        meeting = rendezvous(self.run.world.nnodes, self.store, record.trial) if remote else ()
        with Launch(folder, specs, self.run.env, meeting) as launch:
            yield self._watch(record, specs, launch.workers, checks, remote, launch.lost), launch

    def _watch(
        self,
        record: TrialRecord,
        specs: Sequence[WorkerSpec],
        workers: Sequence[Worker],
        checks: Sequence[Check],
        remote: RemoteRanks | None,
        lost_helper: Callable[[], str | None],
    ) -> TrialResult:
        now = time.monotonic()
        states = [
            RankState(spec, worker, now, EventReader(spec.path("events")))
            for spec, worker in zip(specs, workers, strict=True)
        ]
        start_s = deadlines.IMPORT_S if record.launcher == "torchrun" else deadlines.WORKER_START_S
        allowed = self._deadlines(record, checks)
        idle_limits = {check.id: check.still_s * self.crowd() for check in checks if check.still_s is not None}
        start_s *= self.crowd()
        progress, keep = self.run.progress, self.keep_partial
        helpers = (self.server.pid, self.control.helper.pid if self.control is not None else None)
        pids = [pid for pid in helpers if pid is not None]
        trial = Trial(record, states, allowed, progress, start_s, remote, idle_limits, lost_helper, keep, pids)
        try:
            result = trial.run()
            lost = lost_helper() if result.record.outcome != "finished" else None
            return result if lost is None else result.unjudged(lost)
        finally:
            folders.remove_job_folders(self.run_folder / record.trial)
            if record.reproducer is not None:  # one run may have thousands of these
                shutil.rmtree(self.run_folder / record.trial, ignore_errors=True)

    def _require_sense(self, record: TrialRecord, checks: Sequence[Check]) -> None:
        """Raise Refused for a trial of a fix that could not end, or take all memory: the head may be wrong."""
        reproducer, ranks = record.reproducer, record.ranks
        if reproducer is None:
            limits: set[float | None] = {check.deadline_s for check in checks if check.environment}
            if record.settings or record.limit_s not in (limits or {None}):
                raise Refused("it has a time limit or settings, but does not try a fix")
            return
        most_s = trials.NCCL_TRIAL_S * self.crowd()
        if not 0.0 < (record.limit_s or 0.0) <= most_s:
            raise Refused(f"its time limit must be more than 0 and at most {most_s:g} s, not {record.limit_s}")
        if not ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(self.run.world.world_size)):
            raise Refused(f"its ranks do not match the ranks of this run: {str(ranks)[:80]}")
        if not 0 < reproducer.size_bytes <= trials.LARGEST_BYTES:
            raise Refused(f"its size is {reproducer.size_bytes} bytes, expected 1 to {trials.LARGEST_BYTES}")
        if reproducer.kind == "exchange" and len(ranks) != 2:
            raise Refused(f"it exchanges data between two ranks, but names {len(ranks)}")
        with_settings(self.run.env, record.settings, self.run.node)

    def _folder(self, record: TrialRecord) -> Path:
        if not _TRIAL.fullmatch(record.trial):  # it may come over the network, and becomes a path
            raise ValueError(f"invalid test name {quoted(record.trial)}")
        folder = self.run_folder / record.trial
        folder.mkdir()
        return folder

    def _specs(self, record: TrialRecord, folder: Path, checks: Sequence[Check], skip_pairs: Pairs) -> list[WorkerSpec]:
        allowed = self._deadlines(record, checks)
        tasks = tuple(
            Task(
                check=check.id,
                probe=f"{check.probe.__module__}:{check.probe.__qualname__}",
                deadline_s=allowed[check.id],
                part=part,
            )
            for check in checks
            for part in parts_of(check, self.run.options, record.without_parts)
        )
        if record.reproducer is not None:
            tasks = (Task(check=TRYING, probe=PROBE, deadline_s=allowed[TRYING]),)
        run, store = self.run, self.store if record.launcher == "forkserver" else None
        host, port = store or ("127.0.0.1", 0)
        env = with_settings(run.env, record.settings, run.node)
        for check in checks:
            env.update(check.environment)
        local_ranks = {rank: local_rank for local_rank, rank in enumerate(run.world.ranks_of(run.node))}
        return [
            WorkerSpec(
                trial=record,
                options=run.options,
                folder=str(folder),
                node=run.node,
                rank=rank,
                local_rank=local_ranks[rank],
                group_rank=group_rank,
                device=f"cuda:{local_ranks[rank]}" if run.world.backend == "nccl" else "cpu",
                tasks=tasks,
                launched_at=time.monotonic(),
                init_deadline_s=allowed[PROCESS_GROUP],
                env=rank_environment(env, run.world, rank, host, port, f"{folder}/rank{rank}.nccl"),
                store=store,
                skip_pairs=tuple(sorted(skip_pairs)),
                nodes=tuple(map(run.world.node_of, record.ranks)),
            )
            for group_rank, rank in enumerate(record.ranks)
            if rank in local_ranks
        ]

    def _deadlines(self, record: TrialRecord, checks: Sequence[Check]) -> dict[str, float]:
        """Return the seconds per check; with NCCL, the first check also creates the communicators."""
        if record.limit_s is not None:
            return dict.fromkeys(record.checks, record.limit_s)
        # A budget above the default also extends each part of a check.
        more = max(self.run.options.budget_s / Options().budget_s, 1.0)
        allowed = {check.id: check.deadline_s * self.crowd() * (more if check.parts else 1.0) for check in checks}
        allowed.setdefault(PROCESS_GROUP, deadlines.CHECK_S * self.crowd())
        if self.run.world.backend == "nccl":
            for check_id in (PROCESS_GROUP, *(check.id for check in checks[:1])):
                allowed[check_id] = max(allowed[check_id], deadlines.FIRST_NCCL_S * self.crowd())
        return allowed

    def crowd(self) -> float:
        """Return how many times longer things may take: ranks that share a core are slow without a fault."""
        cores = len(os.sched_getaffinity(0))
        most = max((len(self.run.world.ranks_of(node.node_rank)) for node in self.run.world.nodes), default=1)
        return max(1.0, most / (cores * deadlines.RANKS_PER_CORE))
