"""Where the time of each step of each rank goes, with waiting for others told from transfer."""

from typing import NamedTuple

from ddp_doctor.model.recording import Recording
from ddp_doctor.views.trace.windows import Window


class Parts(NamedTuple):
    """Microseconds of a step, or of the median step; all but ``step`` and ``hidden`` add up to ``step``."""

    step: float
    compute: float
    optimizer: float
    loading: float
    waiting: float  # for ranks that came later
    transfer: float
    not_told: float  # waiting or transfer: of a rank without its peers
    other: float
    host: float
    hidden: float  # communication beside computing


def parts(recording: Recording, window: Window) -> tuple[tuple[Parts, ...], ...]:
    """For each rank of the window, for each of its steps."""
    raise NotImplementedError


def median_parts(recording: Recording, window: Window) -> tuple[Parts, ...]:
    """For each rank of the window: the step of median length, by the median of each part, scaled to its length."""
    raise NotImplementedError
