"""What the agent orders one worker to do, as JSON."""

import json
from collections.abc import Mapping

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.recording import Options
from ddp_doctor.model.trial import TrialRecord


class Task(Frozen):
    """One rank check: its id, where its probe is found ("module:function"), its deadline."""

    check: str
    probe: str
    deadline_s: float
    part: str = ""  # of a check of several


class WorkerSpec(Frozen):
    """One rank of one trial. ``env`` is the whole environment the rank runs with."""

    trial: TrialRecord
    options: Options  # of the run
    folder: str  # of the trial: events, output, evidence
    node: int
    rank: int
    local_rank: int
    group_rank: int  # the rank in this trial's process group
    device: str
    tasks: tuple[Task, ...]
    launched_at: float  # monotonic
    init_deadline_s: float
    env: Mapping[str, str] = {}
    store: tuple[str, int] | None = None  # None: env://, as the launcher that started the rank says
    skip_pairs: tuple[tuple[int, int], ...] = ()
    nodes: tuple[int, ...] = ()  # of each rank of the process group

    def to_json(self) -> str:
        """As the text that travels to the worker. An environment may hold what is no UTF-8, and json takes it."""
        return json.dumps(self.model_dump())

    @classmethod
    def from_json(cls, text: str) -> "WorkerSpec":
        """The inverse of ``to_json``."""
        return cls.model_validate(json.loads(text))

    @property
    def backend(self) -> str:
        """The process group's."""
        return self.trial.backend

    def path(self, suffix: str) -> str:
        """A file of this rank in the trial's folder."""
        return f"{self.folder}/rank{self.rank}.{suffix}"
