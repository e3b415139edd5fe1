"""The request of ``ddp-doctor run`` on this node."""

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
    """A request, passed to all parts of the run. ``env`` is the job's environment."""

    options: Options
    env: Mapping[str, str]
    nproc_per_node: int | None = None  # None: automatic
    endpoint: tuple[str, int] = ("127.0.0.1", 0)  # of a single-node run; with several nodes it is in ``place``
    outer: OuterWorld | None = None
    place: Place | None = None  # None, or a place of one node: only this node
    join_timeout_s: float = 60.0
    progress: Callable[[str], None] = lambda _: None  # called with the current activity of the run
    announce: Callable[[str], None] = lambda _: None  # on the head, called with the command for the other hosts
    of_ranks: Callable[[], Sequence[Reading]] = tuple  # the settings that the launcher's other ranks here report
    #: A file of healthy runs, and the function that adds the comparison with it to the recording of a report.
    baseline: tuple[str, Callable[[Recording, Report], Recording]] | None = None
    starter: StarterPipe = field(default_factory=StarterPipe)  # the pipe from the ddp-doctor that started this one

    @property
    def nnodes(self) -> int:
        """The number of nodes in the run."""
        return self.place.nnodes if self.place else 1
