"""What the agent tells one worker, as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from ddp_doctor.model.base import Json
from ddp_doctor.model.choices import Level


@dataclass(frozen=True)
class Task:
    """One rank check: its id, where its probe is found ("module:function"), its deadline."""

    check: str
    probe: str
    deadline_s: float


@dataclass(frozen=True)
class WorkerSpec:
    """One rank of one trial. ``env`` is the whole environment the rank runs with."""

    trial: str
    folder: str  # of the trial: events, output, evidence
    node: int
    rank: int
    group_rank: int
    ranks: tuple[int, ...]
    local_rank: int
    backend: str
    device: str
    level: Level
    tasks: tuple[Task, ...]
    launched_at: float  # monotonic
    init_deadline_s: float
    env: Mapping[str, str] = field(default_factory=dict)
    store_host: str = "127.0.0.1"
    store_port: int = 0  # 0: env://, as the launcher that started the rank says
    skip_pairs: tuple[tuple[int, int], ...] = ()
    model: str = ""  # the user's own, "package.module:factory"
    reproducer: Json = None  # of a trial that tries a remedy, a Reproducer
    tried: tuple[str, ...] = ()  # … the names of its settings

    def to_json(self) -> str:
        """As the text that travels to the worker."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "WorkerSpec":
        """The inverse of ``to_json``."""
        fields = json.loads(text)
        fields["ranks"] = tuple(fields["ranks"])
        fields["level"] = Level(fields["level"])
        fields["tasks"] = tuple(Task(**task) for task in fields["tasks"])
        fields["skip_pairs"] = tuple((a, b) for a, b in fields["skip_pairs"])
        fields["tried"] = tuple(fields["tried"])
        return cls(**fields)

    def path(self, suffix: str) -> str:
        """A file of this rank in the trial's folder."""
        return f"{self.folder}/rank{self.rank}.{suffix}"
