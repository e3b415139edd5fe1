"""The recording: all that a run saw. It is always saved and is the only input of the rules."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Backend, FailOn, Level, Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.trial import TrialRecord

#: Raised in its first number when an older doctor could misread a recording.
SCHEMA_VERSION = "1.0"

F = TypeVar("F", bound=Fact)


class Node(Frozen):
    """One host of the world."""

    node_rank: int = 0
    hostname: str = "localhost"
    addresses: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class World(Frozen):
    """The ranks the doctor tested with, and how they were started."""

    nnodes: int = 1
    nproc_per_node: int = 1
    world_size: int = 1
    backend: str = "gloo"
    launcher: str = "plain"
    foreign_nodes: int = 1  # how many nodes the launcher's own world has; each is tested by itself
    nodes: tuple[Node, ...] = ()

    def hostname(self, node_rank: int) -> str:
        """The node's host name, or "node rank N" where it never reported."""
        for node in self.nodes:
            if node.node_rank == node_rank:
                return node.hostname
        return f"node rank {node_rank}"

    def node_of(self, rank: int) -> int:
        """The node rank of global rank ``rank`` (ranks are dense by node rank)."""
        return rank // max(self.nproc_per_node, 1)


class Options(Frozen):
    """What the user asked for, as far as it changes the judgement."""

    command: str = "run"
    level: Level = Level.STANDARD
    backend: Backend = Backend.AUTO
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    budget_s: float = 60.0
    fail_on: FailOn = FailOn.ERROR
    require_gpus: int | None = None


class NotRun(Frozen):
    """A check that the plan left out, and why."""

    check: str
    reason: str


@dataclass(frozen=True)
class Seen(Generic[F]):
    """A typed fact and where it was read."""

    fact: F
    node: int
    rank: int | None
    reading: Reading


class Recording(Frozen):
    """Everything one run saw; rules are pure functions of it, so it can be replayed anywhere."""

    schema_version: str = SCHEMA_VERSION
    tool_version: str = ""
    run_id: str = ""
    started_at: str = ""  # RFC 3339
    duration_s: float = 0.0
    interrupted: bool = False
    world: World | None = None
    options: Options = Options()
    readings: tuple[Reading, ...] = ()
    trials: tuple[TrialRecord, ...] = ()
    not_run: tuple[NotRun, ...] = ()

    def facts(self, kind: type[F]) -> list[Seen[F]]:
        """All collected facts of one class, in the order they were read."""
        return list(self._facts(kind))

    def _facts(self, kind: type[F]) -> Iterator[Seen[F]]:
        for reading in self.readings:
            if reading.fact is not None and reading.fact.get("kind") == kind.KIND:
                yield Seen(kind.model_validate(reading.fact), reading.node, reading.rank, reading)

    def first(self, kind: type[F]) -> F | None:
        """The first collected fact of one class, or None."""
        return next((seen.fact for seen in self._facts(kind)), None)

    def of_check(self, check_id: str) -> list[Reading]:
        """All readings of one check."""
        return [reading for reading in self.readings if reading.check == check_id]

    def collected(self) -> list[Reading]:
        """The readings that carry a fact."""
        return [reading for reading in self.readings if reading.status is Status.COLLECTED]
