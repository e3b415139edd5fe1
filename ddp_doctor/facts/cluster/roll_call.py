"""What the roll call and the company's silence watch saw; written by the launcher, judged by the rules."""

from typing import ClassVar, Literal

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

Outcome = Literal[
    "met",
    "unresolved",  # the endpoint's name has no address here
    "refused",  # the host answered that no process listens
    "timed_out",  # packets got no answer at all
    "unreachable",  # this host has no way there: no route, no neighbour, no such address family
    "held",  # on the endpoint's own host: another program listens on the port
    "mute",  # a server accepted the connection and never spoke
    "foreign",  # a server answered that is no ddp-doctor: another program, or another job's store
    "other_job",  # the head that answered is of another launch
    "misplaced",  # node rank 0 was given to a host that is not the endpoint
    "duplicate",  # two nodes claim one node rank
    "disagree",  # the nodes were started with different numbers of nodes
    "missing",  # the time was up before all nodes had reported in
    "too_many",  # all nodes were here already
]

Answer = Literal["answers", "silent", "refused", "timed_out", "unreachable", "not_asked"]


class AttemptSeen(Frozen):
    """The last attempt to connect to one address of the endpoint."""

    address: str
    outcome: Literal["connected", "refused", "timed_out", "unreachable"]
    error: str = ""


class Present(Frozen):
    """One node that reported in, as it described itself."""

    hostname: str
    claimed_rank: int | None = None  # None: given no node rank
    nnodes: int = 0  # how many nodes it expects
    job: str = ""  # "SLURM job 4711", "torchrun's run train", where its launcher names it


class NotStarted(Frozen):
    """A node whose agent could not be started by the command that starts them all (ssh, srun)."""

    hostname: str
    reason: str


class RollCallFact(Fact):
    """How one node fared at the roll call; ``role`` tells which side of it the node was on."""

    KIND: ClassVar[str] = "roll_call/1"

    role: Literal["head", "follower"]
    outcome: Outcome
    endpoint_host: str
    endpoint_port: int
    endpoint_addresses: tuple[str, ...] = ()  # what the name resolves to on this node
    attempts: tuple[AttemptSeen, ...] = ()
    error: str = ""  # the system's or the resolver's words
    held_by: str = (
        ""  # on the endpoint's host: "nc (pid 712)", as far as this user may know; or the other job
    )
    nnodes: int = 1  # asked for on this node
    claimed_rank: int | None = None
    hostname: str = ""
    job: str = ""  # of this node, as in Present
    present: tuple[Present, ...] = ()  # on the head: all who reported in, itself first
    missing: tuple[int, ...] = ()  # on the head: node ranks that no agent had claimed at the deadline
    not_started: tuple[NotStarted, ...] = ()
    unreadable: tuple[
        str, ...
    ] = ()  # on the head: host names in cards of another shape, empty where none stood
    command: str = ""  # what to type on the other hosts
    asked_ranks: int | None = None  # --nproc-per-node on this node; None: auto
    asked_s: float = 0.0  # the time that the roll call was given (--join-timeout); 0: not recorded
    waited_s: float = 0.0


class SilenceFact(Fact):
    """Another node that this node (``Reading.node``) ceased to hear, and what its listener did then.

    ``answers``: its agent answers on the direct line. ``silent``: its kernel takes the connection, its
    agent does not speak: stopped. ``refused``: the host lives, the agent is gone. The rest: no way there.
    ``heartbeat`` is True where the beats over the store stopped for this observer, False where it only
    dialled the node because others had ceased to hear it.
    """

    KIND: ClassVar[str] = "silence/1"

    node: int  # node rank of the silent one
    head: bool = False  # the silent one is the head, whose store went with it
    heartbeat: bool = True
    silent_s: float = 0.0  # at the time of the reading
    since_s: float | None = None  # seconds after the roll call when it was last heard
    answer: Answer = "not_asked"
    links_down: tuple[str, ...] = ()  # this observer's own interfaces that lost their link since the start
    stopped_s: float = 0.0  # the longest that this observer was itself stopped meanwhile
    said_goodbye: str = ""  # "interrupted" or the doctor's own failure, where it took its leave
