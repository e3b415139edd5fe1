"""What a run, or a part of one, was asked to do."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.app.outcome import Progress
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options
from ddp_doctor.starters.detect import ForeignWorld
from ddp_doctor.starters.place import Place


def _unheard(_text: str) -> None:
    """For those whom nobody hears."""


@dataclass(frozen=True)
class RunRequest:
    """What ``ddp-doctor run`` was asked to do. ``env`` is the job's environment."""

    options: Options
    env: Mapping[str, str]
    nproc_per_node: int | None = None  # None is auto
    endpoint: tuple[str, int] = ("127.0.0.1", 0)
    foreign: ForeignWorld | None = None
    place: Place | None = None  # None, or one of one node: this node alone
    join_timeout_s: float = 60.0
    announce: Progress = _unheard  # told what to type on the other hosts, where this one is the head
    of_ranks: Callable[[], Sequence[Reading]] = tuple  # what the launcher's other ranks here have told by now

    @property
    def nnodes(self) -> int:
        """How many nodes the run has."""
        return self.place.nnodes if self.place else 1
