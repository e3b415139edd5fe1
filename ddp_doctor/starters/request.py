"""What ``ddp-doctor run`` was asked to do on this node."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Options, Recording
from ddp_doctor.model.report import Report
from ddp_doctor.starters.detect import OuterWorld
from ddp_doctor.starters.place import Place
from ddp_doctor.starters.starter_channel import StarterPipe


@dataclass(frozen=True)
class RunRequest:
    """One request, handed through to all that takes part in the run. ``env`` is the job's environment."""

    options: Options
    env: Mapping[str, str]
    nproc_per_node: int | None = None  # None is auto
    endpoint: tuple[str, int] = ("127.0.0.1", 0)  # of a run of one node; that of several is in ``place``
    outer: OuterWorld | None = None
    place: Place | None = None  # None, or one of one node: this node alone
    join_timeout_s: float = 60.0
    progress: Callable[[str], None] = lambda _: None  # called with what the run does now
    announce: Callable[[str], None] = lambda _: None  # on the head, called with what to type on the other hosts
    of_ranks: Callable[[], Sequence[Reading]] = tuple  # the settings that the launcher's other ranks here report
    #: A file of healthy runs, and the function that adds the comparison with it to the recording of a report.
    baseline: tuple[str, Callable[[Recording, Report], Recording]] | None = None
    starter: StarterPipe = field(default_factory=StarterPipe)  # where another ddp-doctor started this one

    @property
    def nnodes(self) -> int:
        """How many nodes the run has."""
        return self.place.nnodes if self.place else 1
