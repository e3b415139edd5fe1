"""The collectives of a job that ``run --collectives-of`` runs again: the calls of each rank, in its order."""

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Confidence


class JobGroup(Frozen):
    """A process group of the job."""

    words: str  # "the default group", "group 2 (dp)"
    ranks: tuple[int, ...]  # its members, global ranks


class JobCall(Frozen):
    """One collective that a rank of the job called."""

    group: int  # index into the groups
    seq: int  # its number in the group, as the job counts
    op: str  # a value of knowledge/job_collectives.OPERATIONS
    elements: int = 0  # that this rank gives, of scatter those that it takes
    dtype: str = "float32"  # torch's name
    root: int = 0  # its place in the group; recorders tell it of gather and scatter alone
    is_open: bool = False  # the job's rank had not seen it end
    differs: bool = False  # ranks of the group called different things at this number

    @property
    def place(self) -> tuple[int, int]:
        """What is one collective on all its ranks."""
        return self.group, self.seq


class JobCollectives(Frozen):
    """What was read of a job's dumps or traces, so far as all its ranks kept it."""

    path: str  # as --collectives-of has it
    source: str  # "the dumps", "the trace": how sentences call it
    groups: tuple[JobGroup, ...]  # in the order in which they are made
    ranks: tuple[tuple[JobCall, ...], ...]  # the calls of each rank
    unknown: tuple[int, ...] = ()  # ranks of which nothing was recorded: they call what the first known rank did
    left_out: dict[str, int] = Field(default_factory=dict)  # operations that are not run: how many calls
    says: str = ""  # what the dumps say of who waits for whom
    blamed: tuple[int, ...] = ()  # … and who is to blame for it
    confidence: Confidence = Confidence.PROVED  # … how sure that is

    def words(self, call: JobCall) -> str:
        """``all_reduce 17 of group 2``."""
        return f"{call.op} {call.seq} of {self.groups[call.group].words}"

    @property
    def count(self) -> int:
        """Collectives, each counted once however many ranks call it."""
        return len({call.place for calls in self.ranks for call in calls})
