"""What a rank records of a job's collectives that it ran again."""

from typing import ClassVar, Literal

from ddp_doctor.model.fact import Fact

#: Why a rank did not come through: a call did not end, its next call differs from what others call, torch refused one,
#: or the check's time was over.
Stop = Literal["", "hung", "differs", "raised", "time"]


class JobCollectivesFact(Fact):
    """How far a rank came in the calls that ``Options.replay`` has of it."""

    KIND: ClassVar[str] = "job-collectives/1"

    issued: int  # calls that it made, of its list
    open: tuple[int, ...] = ()  # indices of those that had not ended
    stopped: Stop = ""
    error: str = ""  # what torch said where it refused one
    seconds: float = 0.0  # of all of it, waiting included
    moved_bytes: int = 0  # that it gave
    largest_bytes: int | None = None  # larger tensors were cut to it; None where none was
