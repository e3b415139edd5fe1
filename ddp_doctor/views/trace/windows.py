"""Which traces belong together: the windows of a job, and the ranks in each."""

from dataclasses import dataclass

from ddp_doctor.facts.trace import TraceFact
from ddp_doctor.model.recording import Recording, once_a_recording


@dataclass(frozen=True)
class Window:
    """The traces that ranks made of the same steps."""

    number: int  # from 1, the earliest first
    ranks: tuple[TraceFact, ...]  # by rank
    world_size: int | None  # of the job, where it is told

    @property
    def is_whole(self) -> bool:
        """Whether all ranks of the job are here."""
        raise NotImplementedError


@once_a_recording
def windows(recording: Recording) -> tuple[Window, ...]:
    """The windows that are judged: ``options.window`` is latest, all or a number."""
    raise NotImplementedError


@once_a_recording
def problem(recording: Recording) -> str:
    """Why nothing, or not all, of these traces can be judged; empty where all can."""
    raise NotImplementedError
