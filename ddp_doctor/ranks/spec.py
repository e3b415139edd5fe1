"""The agent's order to one worker, as JSON."""

import json
from collections.abc import Mapping

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.recording import Options
from ddp_doctor.model.trial import TrialRecord


class Task(Frozen):
    """A rank check: its id, the location of its probe ("module:function"), its deadline."""

    check: str
    probe: str
    deadline_s: float
    part: str = ""  # of a check with several parts


class WorkerSpec(Frozen):
    """A rank of a trial. ``env`` is the complete environment of the rank."""

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
    store: tuple[str, int] | None = None  # None: env://, as set by the launcher that started the rank
    skip_pairs: tuple[tuple[int, int], ...] = ()
    nodes: tuple[int, ...] = ()  # of each rank of the process group

    def to_json(self) -> str:
        """Return the JSON text for the worker; the environment may have invalid UTF-8, which json accepts."""
        return json.dumps(self.model_dump())

    @classmethod
    def from_json(cls, text: str) -> "WorkerSpec":
        """Return the spec from the output of ``to_json``."""
        return cls.model_validate(json.loads(text))

    @property
    def backend(self) -> str:
        """The backend of the process group."""
        return self.trial.backend

    def path(self, suffix: str) -> str:
        """Return the path of a file of this rank in the trial's directory."""
        return f"{self.folder}/rank{self.rank}.{suffix}"
