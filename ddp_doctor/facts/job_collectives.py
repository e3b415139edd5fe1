"""The fact of a rank that ran a job's collectives again."""

from typing import ClassVar, Literal

from ddp_doctor.model.fact import Fact

#: Why a rank did not finish: a call did not end, its next call differs from the other ranks', torch refused a call, or
#: the check's time was over.
Stop = Literal["", "hung", "differs", "raised", "time"]


class JobCollectivesFact(Fact):
    """The progress of a rank in the calls that ``Options.replay`` lists for it."""

    KIND: ClassVar[str] = "job-collectives/1"

    issued: int  # number of its calls that it made
    open: tuple[int, ...] = ()  # indices of the calls that had not ended
    stopped: Stop = ""
    error: str = ""  # torch's message if it refused a call
    seconds: float = 0.0  # in total, including waiting
    moved_bytes: int = 0  # contributed by this rank
    largest_bytes: int | None = None  # larger tensors were cut to this size; None if none were
