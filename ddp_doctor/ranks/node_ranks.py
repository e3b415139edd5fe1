"""The ranks of one node in one trial: forks them, watches them, and brings back what was seen."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ddp_doctor.knowledge import deadlines
from ddp_doctor.model.check import Check
from ddp_doctor.model.choices import Level
from ddp_doctor.model.recording import World
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks import job_folders, torchrun
from ddp_doctor.ranks.environment import Refused, rank_environment, with_settings
from ddp_doctor.ranks.events import EventReader
from ddp_doctor.ranks.forkserver import ForkServer
from ddp_doctor.ranks.rank_state import RankState, Worker
from ddp_doctor.ranks.remedy_probe import PROBE, TRYING
from ddp_doctor.ranks.remote_ranks import RemoteRanks
from ddp_doctor.ranks.spec import Task, WorkerSpec
from ddp_doctor.ranks.trial import Trial, TrialResult
from ddp_doctor.ranks.worker import forked
from ddp_doctor.settings import trials

#: Every trial begins with it, and no check can do without it.
FIRST = "process_group"
_TRIAL = re.compile(r"t\d{1,9}", re.ASCII)
Pairs = Sequence[tuple[int, int]]


def _untold(_text: str) -> None:
    """Of the many short trials of a remedy; whoever orders them tells."""


@dataclass
class NodeRanks:
    """Runs this node's part of a trial. ``store`` is where the control store is reached from here."""

    scratch: Path
    server: ForkServer
    store: tuple[str, int] | None  # None: there is none yet, torchrun's ranks may need none
    world: World
    node: int
    env: Mapping[str, str]
    level: Level
    progress: Callable[[str], None]
    model: str = ""
    _partial: TrialResult | None = None

    def run(
        self,
        record: TrialRecord,
        checks: Sequence[Check],
        skip_pairs: Pairs = (),
        others: RemoteRanks | None = None,
    ) -> TrialResult:
        """Fork the ranks and watch them to the end. An interruption carries what was seen until then.

        Raises Refused.
        """
        self._require_sense(record)
        folder = self._folder(record)
        specs = self._specs(record, folder, checks, skip_pairs)
        workers = [self.server.fork(forked, spec.to_json()) for spec in specs]
        return self._watch(record, specs, workers, checks, others)

    def take_partial(self) -> TrialResult | None:
        """What an interrupted trial had seen, once."""
        partial, self._partial = self._partial, None
        return partial

    @contextmanager
    def running_under_torchrun(
        self, record: TrialRecord, checks: Sequence[Check], others: RemoteRanks | None = None
    ) -> Iterator[tuple[TrialResult, torchrun.Launch]]:
        """The same with ranks that the real torchrun starts; the block runs while torchrun shuts down."""
        self._require_sense(record)
        folder = self._folder(record)
        specs = self._specs(record, folder, checks, ())
        meeting = torchrun.Meeting(self.world.nnodes, self.store, record.trial) if others else None
        with torchrun.Launch(folder, specs, self.env, meeting) as launch:
            yield self._watch(record, specs, launch.workers, checks, others), launch

    def _watch(
        self,
        record: TrialRecord,
        specs: Sequence[WorkerSpec],
        workers: Sequence[Worker],
        checks: Sequence[Check],
        others: RemoteRanks | None,
    ) -> TrialResult:
        now = time.monotonic()
        states = [
            RankState(spec, worker, now, EventReader(spec.path("events")))
            for spec, worker in zip(specs, workers, strict=True)
        ]
        start_s = deadlines.IMPORT_S if record.launcher == "torchrun" else deadlines.WORKER_START_S
        allowed = self._deadlines(record, checks)
        tell = self.progress if record.limit_s is None else _untold
        stills = {check.id: check.still_s * self.crowd() for check in checks if check.still_s is not None}
        trial = Trial(record, states, allowed, tell, start_s * self.crowd(), others, stills)
        try:
            return trial.run()
        except BaseException:
            self._partial = trial.partial()
            raise
        finally:
            job_folders.remove(self.scratch / record.trial)

    def _require_sense(self, record: TrialRecord) -> None:
        """Raises Refused for a trial of a remedy that could not end, or take all memory: a head may be mistaken."""
        reproducer, ranks = record.reproducer, record.ranks
        if reproducer is None:
            if record.limit_s is not None or record.settings:
                raise Refused("a trial has a limit or settings of its own, and tries nothing")
            return
        if not 0.0 < (record.limit_s or 0.0) <= trials.NCCL_TRIAL_S * self.crowd():
            raise Refused(f"no trial of a remedy takes {record.limit_s} seconds")
        if not ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(self.world.world_size)):
            raise Refused(f"a trial of ranks that are not those of this run: {str(ranks)[:80]}")
        if not 0 < reproducer.size_bytes <= trials.LARGEST_BYTES:
            raise Refused(f"no trial of a remedy moves {reproducer.size_bytes} bytes")
        if reproducer.kind == "exchange" and len(ranks) != 2:
            raise Refused(f"an exchange is between two ranks, not {len(ranks)}")
        with_settings(self.env, record.settings, self.node)

    def _folder(self, record: TrialRecord) -> Path:
        if not _TRIAL.fullmatch(record.trial):  # it may come over the network, and is a path here
            raise ValueError(f"{record.trial[:40]!r} is no name of a trial")
        folder = self.scratch / record.trial
        folder.mkdir()
        return folder

    def _specs(
        self, record: TrialRecord, folder: Path, checks: Sequence[Check], skip_pairs: Pairs
    ) -> list[WorkerSpec]:
        allowed = self._deadlines(record, checks)
        tasks = tuple(
            Task(c.id, f"{c.probe.__module__}:{c.probe.__qualname__}", allowed[c.id]) for c in checks
        )
        if record.reproducer is not None:
            tasks = (Task(TRYING, PROBE, allowed[TRYING]),)
        env = with_settings(self.env, record.settings, self.node)
        cuda = self.world.backend == "nccl"
        host, port = self.store if self.store and record.launcher == "forkserver" else ("", 0)
        mine = self.world.ranks_of(self.node)
        return [
            WorkerSpec(
                trial=record.trial,
                folder=str(folder),
                node=self.node,
                rank=rank,
                group_rank=index,
                ranks=record.ranks,
                local_rank=rank - mine.start,
                backend=self.world.backend,
                device=f"cuda:{rank - mine.start}" if cuda else "cpu",
                level=self.level,
                tasks=tasks,
                launched_at=time.monotonic(),
                init_deadline_s=allowed[FIRST],
                env=rank_environment(
                    env, self.world, rank, host or "127.0.0.1", port, f"{folder}/rank{rank}.nccl"
                ),
                store_host=host,
                store_port=port,
                skip_pairs=tuple(sorted(skip_pairs)),
                model=self.model,
                reproducer=record.reproducer.model_dump(mode="json") if record.reproducer else None,
                tried=tuple(dict.fromkeys(setting.name for setting in record.settings)),
            )
            for index, rank in enumerate(record.ranks)
            if rank in mine
        ]

    def _deadlines(self, record: TrialRecord, checks: Sequence[Check]) -> dict[str, float]:
        """Seconds per check; on NCCL whichever comes first also creates the communicators."""
        if record.limit_s is not None:
            return dict.fromkeys((FIRST, TRYING), record.limit_s)
        allowed = {check.id: check.deadline_s * self.crowd() for check in checks}
        allowed.setdefault(FIRST, deadlines.CHECK_S * self.crowd())
        if self.world.backend == "nccl":
            for check_id in (FIRST, *(check.id for check in checks[:1])):
                allowed[check_id] = max(allowed[check_id], deadlines.FIRST_NCCL_S * self.crowd())
        return allowed

    def crowd(self) -> float:
        """Ranks that share a core are slow by right."""
        cores = len(os.sched_getaffinity(0))
        most = max((len(self.world.ranks_of(node.node_rank)) for node in self.world.nodes), default=1)
        return max(1.0, most / (cores * deadlines.RANKS_PER_CORE))
