"""What a rank records of a job's collectives that it ran again."""

from typing import ClassVar, Literal

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

#: Why a rank did not come through: a call did not end, its next call differs from what others call, torch refused one,
#: or the check's time was over.
Stop = Literal["", "hung", "differs", "raised", "time"]


class CallKind(Frozen):
    """The calls of one operation that give as many bytes in groups of one size."""

    op: str  # all_reduce …
    ranks: int  # of the group
    size_bytes: int  # that this rank gives, as it was run
    calls: int  # that ended
    median_s: float  # from the call to its end, waiting included


class JobCollectivesFact(Fact):
    """How far a rank came in the calls that ``Options.replay`` has of it."""

    KIND: ClassVar[str] = "job-collectives/1"

    issued: int  # calls that it made, of its list
    open: tuple[int, ...] = ()  # indices of those that had not ended
    stopped: Stop = ""
    error: str = ""  # what torch said where it refused one
    waited_s: float = 0.0  # for the call that did not end
    seconds: float = 0.0  # from the first call to the end of the last
    moved_bytes: int = 0  # that it gave
    largest_bytes: int | None = None  # larger tensors were cut to it; None where none was
    kinds: tuple[CallKind, ...] = ()  # those with the most time first
