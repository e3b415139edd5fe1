"""A run once the world of its ranks is known, and the ranks of its other nodes as a trial sees them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ddp_doctor.model.recording import Options, World


@dataclass(frozen=True)
class Run:
    """What is the same for all trials of a run, as one node takes part in it."""

    options: Options  # the head's on all nodes, but for the user's model, which is each node's own
    env: Mapping[str, str]  # the job's environment
    progress: Callable[[str], None]
    world: World
    node: int = 0  # node rank of this node
    until: float = float("inf")  # monotonic; no new trial starts later


class RemoteRanks(Protocol):
    """How a trial ends on all nodes at once."""

    lost: tuple[int, ...]

    def ended(self) -> str | None:
        """How the trial ended on all nodes, None while it goes on."""
        ...

    def done(self) -> None:
        """This node's ranks have finished; the trial is finished when those of all nodes have."""
        ...

    def end(self, outcome: str) -> None:
        """This node's ranks are stuck or broken: the trial is over on all nodes."""
        ...

    def abandon(self) -> None:
        """This node leaves the trial before its end."""
        ...

    def note(self, events: int, activity: int) -> None:
        """Report how many events this node's ranks have had, and how often they were active."""
        ...

    def moved_since(self, moment: float) -> bool:
        """Whether any node's ranks have had an event since then (monotonic)."""
        ...

    @property
    def active_at(self) -> float:
        """When the last report came that some node's ranks were active or had an event (monotonic)."""
        ...
