"""What the checks between nodes record."""

from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.knowledge.network.path_quality import BURST_BYTES
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

AttemptOutcome = Literal[
    "met",
    "unresolved",  # the endpoint's name has no address here
    "refused",  # the host answered that no process listens
    "timed_out",  # packets got no answer at all
    "unreachable",  # this host has no way there: no route, no neighbor, no such address family
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
    rejected_by: str = ""  # the address from which a packet filter answered with ICMP


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


class ClosedPort(Frozen):
    """What in a host's own packet filter ends every new connection from other hosts to the endpoint's port."""

    command: Literal["nft", "iptables-save"]  # that printed it
    chain: str  # "inet filter input"; of iptables "filter INPUT"
    verdict: Literal["drop", "reject"]


class RollCallFact(Fact):
    """How one node fared at the roll call; ``role`` tells which side of it the node was on."""

    KIND: ClassVar[str] = "roll_call/1"

    role: Literal["head", "follower"]
    outcome: AttemptOutcome
    endpoint_host: str
    endpoint_port: int
    endpoint_addresses: tuple[str, ...] = ()  # what the name resolves to on this node
    attempts: tuple[AttemptSeen, ...] = ()
    error: str = ""  # the system's or the resolver's words
    held_by: str = ""  # on the endpoint's host: "nc (pid 712)", as far as this user may know; or the other job
    nnodes: int = 1  # asked for on this node
    claimed_rank: int | None = None
    hostname: str = ""
    job: str = ""  # of this node, as in Present
    present: tuple[Present, ...] = ()  # on the head: all who reported in, itself first
    missing: tuple[int, ...] = ()  # on the head: node ranks that no agent had claimed at the deadline
    not_started: tuple[NotStarted, ...] = ()
    unreadable: tuple[str, ...] = ()  # on the head: host names in cards of another shape, empty where none stood
    closed_by: ClosedPort | None = None  # on a head to which nobody came, where root could read it
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


class ConsistencyFact(Fact):
    """What of one node only the roll call, and the doctor itself, can tell."""

    KIND: ClassVar[str] = "consistency/1"

    tool_version: str  # ddp-doctor's own
    clock_offset_s: float | None = None  # this node's clock less the head's; None where it was not measured


class Settings(Frozen):
    """Of one process's environment, the variables that ranks must have in common."""

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()  # set, but like a credential, or too long for a setting


class RankSettings(Fact):
    """What the ranks of one node were started with, where a launcher started the doctor once per rank.

    The agent's own rank is one of them; of the other ranks those that reported in time. Rank N's are ``ranks[N]``,
    by the launcher's local rank.
    """

    KIND: ClassVar[str] = "rank_settings/1"

    local_size: int  # how many ranks the launcher started on this node
    ranks: dict[int, Settings]


#: ``denied``: by the dialling host itself. ``mute``: connected, and no answer ever came. ``foreign``: another
#: program answered. ``broken``: answered, and then no more. ``burst_lost``: small messages arrive, larger ones
#: never do. ``failed``: anything else, mostly of the dialling host, see ``error``.
Outcome = Literal[
    "ok", "refused", "timed_out", "unreachable", "denied", "mute", "foreign", "broken", "burst_lost", "failed"
]


class OtherConnectivity(Frozen):
    """The same peer in another network, in which all nodes have an address: looked at briefly."""

    network: str  # "10.78.0.0/24"
    interface: str  # this node's own there
    peer_interface: str
    address: str  # the peer's
    outcome: Outcome
    error: str | None = None
    connect_s: float | None = None
    round_trips: int = 0
    round_trip_min_s: float | None = None
    retransmits: int | None = None  # during the round trips
    burst_s: float | None = None  # of as many bytes as on the main address
    throughput_bytes_per_s: float | None = None  # one sample

    @property
    def rate(self) -> float:
        """The sample, else what the burst shows, in bytes per second; 0 where there was none."""
        burst = BURST_BYTES / self.burst_s if self.burst_s else 0.0
        return self.throughput_bytes_per_s or burst


class PeerConnectivity(Frozen):
    """One peer as it was dialled from here; None is "did not get that far", or not known to the kernel."""

    node: int
    hostname: str = ""
    address: str  # that the backend would advertise
    port: int
    outcome: Outcome
    errno: int | None = None
    error: str | None = None
    connect_s: float | None = None  # until the peer had recognized us
    round_trips: int = 0
    round_trip_min_s: float | None = None
    round_trip_median_s: float | None = None
    round_trip_max_s: float | None = None
    retransmits: int | None = None  # during the round trips, each of one small packet
    mss_bytes: int | None = None
    burst_bytes: int = 0
    burst_s: float | None = None
    passed_bytes: int | None = None  # the largest message that arrived, where a burst was lost
    lost_bytes: int | None = None  # and the smallest that never did
    throughput_bytes_per_s: tuple[float, ...] = ()  # samples in the order they were taken
    met_at: str = ""  # the address from which it came to the roll call
    met_at_outcome: Outcome | None = None  # only where that is another one
    others: tuple[OtherConnectivity, ...] = ()


class ConnectivityFact(Fact):
    """One node's row of the matrix: what it saw of each peer it dialled."""

    KIND: ClassVar[str] = "connectivity/1"

    peers: tuple[PeerConnectivity, ...]
    port_range: tuple[int, int] | None = None  # first and last ephemeral TCP port of this node


class TorchrunFact(Fact):
    """One rank as torchrun started it."""

    KIND: ClassVar[str] = "torchrun/1"

    exported: dict[str, str]
    arrived_after_s: float  # from the start of torchrun until this rank's own code ran
    init_s: float  # init_process_group over env://
    all_reduce_right: bool


class HeldAgainst(Frozen):
    """One measurement of this run beside that of the healthy ones; the rates and times in the unit."""

    name: str
    unit: str
    labels: dict[str, str | int | float] = Field(default_factory=dict)
    nodes: tuple[int, ...] = ()  # node ranks it was measured of: one, a pair, or none for the whole run
    gpu: int | None = None  # of the node, where it was measured of that GPU alone
    value: float
    median: float
    mad: float
    worst: float  # the slowest of the healthy ones
    runs: int  # in how many of them it was measured


class TraitDiffers(Frozen):
    """A version, a setting or a part of the hardware that is not the same in two runs."""

    name: str  # torch, driver, NCCL_ALGO ...
    before: str | None  # None: not set
    now: str | None


class RunDifferencesFact(Fact):
    """What tells a run from the one, or those, that it is held against, and what of the two cannot be compared."""

    KIND: ClassVar[str] = "run-differences/1"

    file: str  # of the other, as it was named
    differ: tuple[TraitDiffers, ...] = ()
    only_before: tuple[str, ...] = ()  # findings: "DD617 (error) The gloo process group cannot start"
    only_now: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # sentences


class Preflight(Frozen):
    """The doctor's own run that the collectives of a job are held against."""

    finished_at: str  # RFC 3339
    same_nodes: bool | None = None  # whether the job ran on its nodes; None: the output names none
    was_unhealthy: bool = False


class BaselineFact(Fact):
    """What a run measured beside what healthy runs of the same hardware had measured."""

    KIND: ClassVar[str] = "baseline/1"

    file: str  # as it was named
    runs: int
    compared: tuple[HeldAgainst, ...]
    preflight: Preflight | None = None  # where it is that of a job


class TracedPart(Frozen):
    """A part of a step in the mean of the ranks, over the steps."""

    median_us: float
    mad_us: float  # the median distance of a step's from that


#: The model of a GPU whose trace does not tell it.
UNKNOWN_GPU = "a GPU"


class TracedSide(Frozen):
    """What the traces of a job come to, for a comparison with another's."""

    file: str  # as it was named
    ranks: int  # of the job
    steps: int  # that are judged
    samples: float | None = None  # of a rank in a step, in the mean of the ranks; None where it is not known
    gpus: tuple[str, ...] = ()  # the models of the ranks' GPUs; none of CPU traces
    problem: str = ""  # why not all of it can be judged
    parts: dict[str, TracedPart]  # the whole "step", its parts, and "exposed", which is waiting and transfer


class TracesFact(Fact):
    """Traces of two jobs beside each other."""

    KIND: ClassVar[str] = "traces/1"

    before: TracedSide
    now: TracedSide
