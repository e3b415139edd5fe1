"""The ranks of the other nodes, as a trial on one node sees them."""

from typing import Protocol


class RemoteRanks(Protocol):
    """How a trial ends everywhere at once."""

    lost: tuple[int, ...]

    def ended(self) -> str | None:
        """How the trial ended for all, None while it goes on."""
        ...

    def done(self) -> None:
        """This node's ranks are through; the trial is finished when all nodes' are."""
        ...

    def end(self, outcome: str) -> None:
        """This node's ranks got no further: the trial is over for all."""
        ...

    def abandon(self) -> None:
        """This node leaves the trial before its end."""
        ...

    def note(self, events: int, activity: int) -> None:
        """Tell how many events this node's ranks have had, and how often they stirred."""
        ...

    def moved_since(self, moment: float) -> bool:
        """Whether any node's ranks have had one since then (monotonic)."""
        ...

    @property
    def active_at(self) -> float:
        """When it was heard last that some node's ranks stirred or had an event (monotonic)."""
        ...
