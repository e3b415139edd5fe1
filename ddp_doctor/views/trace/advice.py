"""What would make the step faster, and by how much at most."""

from typing import NamedTuple

from ddp_doctor.model.recording import Recording
from ddp_doctor.views.trace.windows import Window


class Advice(NamedTuple):
    """One change, its sign in the trace, and the most that it can bring."""

    code: str  # of the rule that tells it
    at_most: float  # of the median step, 0 to 1: an upper bound computed from the trace
    setting: str = ""  # an argument of DistributedDataParallel that `run --from-trace` can try; else empty
    value: float | bool | None = None  # … and the value to try


def advice(recording: Recording, window: Window) -> tuple[Advice, ...]:
    """All of it, the largest bound first."""
    raise NotImplementedError
