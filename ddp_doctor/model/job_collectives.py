"""The collectives of a job that ``run --collectives-of`` runs again: the calls of each rank, in its order."""

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Confidence


class JobGroup(Frozen):
    """A process group of the job."""

    words: str  # "the default group", "group 2 (dp)"
    ranks: tuple[int, ...]  # its members, global ranks


class JobCall(Frozen):
    """A collective that a rank of the job called."""

    group: int  # index into the groups
    seq: int  # its number in the group, by the job's count
    op: str  # a value of knowledge/job_collectives.OPERATIONS
    elements: int = 0  # elements that this rank gives, or for scatter receives
    dtype: str = "float32"  # torch's name
    root: int = 0  # its place in the group; recorders only report it for gather and scatter
    is_open: bool = False  # the job's rank had not seen it end
    differs: bool = False  # ranks of the group called different collectives with this number

    @property
    def place(self) -> tuple[int, int]:
        """The key of a collective, equal on all its ranks."""
        return self.group, self.seq


class JobCollectives(Frozen):
    """The collectives from a job's dumps or traces, limited to what all its ranks kept."""

    path: str  # as in --collectives-of
    source: str  # the source's name in sentences: "the dumps", "the trace"
    groups: tuple[JobGroup, ...]  # in the order to make them
    ranks: tuple[tuple[JobCall, ...], ...]  # the calls of each rank
    unknown: tuple[int, ...] = ()  # ranks without a recording; they call what the first known rank did
    left_out: dict[str, int] = Field(default_factory=dict)  # operations that are not replayed: their number of calls
    says: str = ""  # which rank waits for which, according to the dumps
    blamed: tuple[int, ...] = ()  # … and the faulty ranks
    confidence: Confidence = Confidence.PROVED  # … and how certain that is

    def words(self, call: JobCall) -> str:
        """Return a phrase such as ``all_reduce 17 of group 2``."""
        return f"{call.op} {call.seq} of {self.groups[call.group].words}"

    @property
    def count(self) -> int:
        """The number of collectives, each counted once, however many ranks call it."""
        return len({call.place for calls in self.ranks for call in calls})
