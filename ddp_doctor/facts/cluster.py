"""Facts of the checks between nodes."""

from typing import ClassVar, Literal

from pydantic import Field

from ddp_doctor.knowledge.network.path_quality import BURST_BYTES
from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

AttemptOutcome = Literal[
    "met",
    "unresolved",  # the endpoint's name does not resolve on this node
    "refused",  # the host answered that no process listens
    "timed_out",  # no answer to any packet
    "unreachable",  # no path from this host: no route, no neighbor, or no such address family
    "held",  # on the endpoint's own host: another program listens on the port
    "mute",  # a server accepted the connection and sent nothing
    "foreign",  # the server that answered is not ddp-doctor: another program, or another job's store
    "other_job",  # the head that answered belongs to another launch
    "misplaced",  # node rank 0 was given to a host that is not the endpoint
    "duplicate",  # two nodes claim one node rank
    "disagree",  # the nodes were started with different numbers of nodes
    "missing",  # not all nodes checked in before the deadline
    "too_many",  # all expected nodes had already checked in
]

Answer = Literal["answers", "silent", "refused", "timed_out", "unreachable", "not_asked"]


class AttemptSeen(Frozen):
    """The last attempt to connect to one address of the endpoint."""

    address: str
    outcome: Literal["connected", "refused", "timed_out", "unreachable"]
    error: str = ""
    rejected_by: str = ""  # address that sent the ICMP rejection of a packet filter


class Present(Frozen):
    """The self-description of a node that checked in."""

    hostname: str
    claimed_rank: int | None = None  # None: given no node rank
    nnodes: int = 0  # number of nodes it expects
    job: str = ""  # "SLURM job 4711", "torchrun's run train", if its launcher names the job


class NotStarted(Frozen):
    """A node whose agent could not be started by the command that starts them all (ssh, srun)."""

    hostname: str
    reason: str


class ClosedPort(Frozen):
    """A packet filter chain that blocks new connections from other hosts to the endpoint's port."""

    command: Literal["nft", "iptables-save"]  # the command that printed it
    chain: str  # "inet filter input"; for iptables "filter INPUT"
    verdict: Literal["drop", "reject"]


class RollCallFact(Fact):
    """The outcome of the node check-in for one node. ``role``: whether this node was head or follower."""

    KIND: ClassVar[str] = "roll_call/1"

    role: Literal["head", "follower"]
    outcome: AttemptOutcome
    endpoint_host: str
    endpoint_port: int
    endpoint_addresses: tuple[str, ...] = ()  # addresses that the name resolves to on this node
    attempts: tuple[AttemptSeen, ...] = ()
    error: str = ""  # message of the system or the resolver
    held_by: str = ""  # on the endpoint's host: "nc (pid 712)" if this user may see it, or the other job
    nnodes: int = 1  # number of nodes given on this node
    claimed_rank: int | None = None
    hostname: str = ""
    job: str = ""  # of this node, as in Present
    present: tuple[Present, ...] = ()  # on the head: all nodes that checked in, itself first
    missing: tuple[int, ...] = ()  # on the head: node ranks that no agent had claimed at the deadline
    not_started: tuple[NotStarted, ...] = ()
    unreadable: tuple[str, ...] = ()  # on the head: host names in unreadable node reports, "" for a report without one
    closed_by: ClosedPort | None = None  # on a head that no node reached, if the filter could be read (as root)
    command: str = ""  # command to run on the other hosts
    asked_ranks: int | None = None  # --nproc-per-node on this node; None: auto
    asked_s: float = 0.0  # time limit of the check-in (--join-timeout); 0: not recorded
    waited_s: float = 0.0


class SilenceFact(Fact):
    """Another node that this node (``Reading.node``) no longer hears, and how its listener answered.

    ``answers``: its agent answers on the direct connection. ``silent``: its kernel accepts the connection, but its
    agent, which is stopped, sends nothing. ``refused``: the host is up, the agent has exited. Other values: no path to
    the node. ``heartbeat`` is True if this observer missed its heartbeats in the store, and False if it only dialed the
    node because other nodes missed them.
    """

    KIND: ClassVar[str] = "silence/1"

    node: int  # node rank of the silent node
    head: bool = False  # the silent node is the head, and its store stopped with it
    heartbeat: bool = True
    silent_s: float = 0.0  # at the time of the reading
    since_s: float | None = None  # time it was last heard, in seconds after the check-in
    answer: Answer = "not_asked"
    links_down: tuple[str, ...] = ()  # this observer's own interfaces that lost their link since the start
    stopped_s: float = 0.0  # longest time that this observer was itself stopped since then
    said_goodbye: str = ""  # "interrupted" or an error of ddp-doctor, if its agent announced that it exits


class ConsistencyFact(Fact):
    """The release of ddp-doctor and the clock offset of one node."""

    KIND: ClassVar[str] = "consistency/1"

    tool_version: str  # release of ddp-doctor
    clock_offset_s: float | None = None  # this node's clock minus the head's; None if not measured


class Settings(Frozen):
    """The environment variables of one process that must be equal on all ranks."""

    variables: dict[str, str]
    withheld: tuple[str, ...] = ()  # set, but looks like a credential or is too long for a setting


class RankSettings(Fact):
    """The settings of the ranks of one node, if a launcher started one ddp-doctor per rank.

    The agent's own rank is included, other ranks only if they checked in before the deadline. ``ranks[N]`` is the
    launcher's local rank N.
    """

    KIND: ClassVar[str] = "rank_settings/1"

    local_size: int  # number of ranks that the launcher started on this node
    ranks: dict[int, Settings]


#: ``denied``: by the dialing host itself. ``mute``: connected, but no answer ever came. ``foreign``: another program
#: answered. ``broken``: answered, then stopped. ``burst_lost``: small messages arrive, larger ones never do.
#: ``failed``: any other error, usually of the dialing host; see ``error``.
Outcome = Literal[
    "ok", "refused", "timed_out", "unreachable", "denied", "mute", "foreign", "broken", "burst_lost", "failed"
]


class OtherConnectivity(Frozen):
    """The same peer over another network that all nodes have an address in, measured briefly."""

    network: str  # "10.78.0.0/24"
    interface: str  # this node's interface in it
    peer_interface: str
    address: str  # the peer's
    outcome: Outcome
    error: str | None = None
    connect_s: float | None = None
    round_trips: int = 0
    round_trip_min_s: float | None = None
    retransmits: int | None = None  # during the round trips
    burst_s: float | None = None  # for as many bytes as on the main address
    throughput_bytes_per_s: float | None = None  # one sample

    @property
    def rate(self) -> float:
        """The throughput sample, or the rate of the burst, in bytes per second; 0 without both."""
        burst = BURST_BYTES / self.burst_s if self.burst_s else 0.0
        return self.throughput_bytes_per_s or burst


class PeerConnectivity(Frozen):
    """The measurements of one peer from this node. None: not reached, or not reported by the kernel."""

    node: int
    hostname: str = ""
    address: str  # address that the backend would advertise
    port: int
    outcome: Outcome
    errno: int | None = None
    error: str | None = None
    connect_s: float | None = None  # time until the peer recognized this node
    round_trips: int = 0
    round_trip_min_s: float | None = None
    round_trip_median_s: float | None = None
    round_trip_max_s: float | None = None
    retransmits: int | None = None  # during the round trips, each of one small packet
    mss_bytes: int | None = None
    burst_bytes: int = 0
    burst_s: float | None = None
    passed_bytes: int | None = None  # largest message that arrived, if a burst was lost
    lost_bytes: int | None = None  # smallest message that never arrived
    throughput_bytes_per_s: tuple[float, ...] = ()  # samples in the order they were taken
    met_at: str = ""  # source address of its connection to the check-in
    met_at_outcome: Outcome | None = None  # only if ``met_at`` is another address
    others: tuple[OtherConnectivity, ...] = ()


class ConnectivityFact(Fact):
    """The measurements of one node for each peer it dialed."""

    KIND: ClassVar[str] = "connectivity/1"

    peers: tuple[PeerConnectivity, ...]
    port_range: tuple[int, int] | None = None  # first and last ephemeral TCP port of this node


class TorchrunFact(Fact):
    """The environment, startup times and first all-reduce of a rank that torchrun started."""

    KIND: ClassVar[str] = "torchrun/1"

    exported: dict[str, str]
    arrived_after_s: float  # from the start of torchrun until this rank's own code ran
    init_s: float  # init_process_group over env://
    all_reduce_right: bool


class HeldAgainst(Frozen):
    """A measurement of this run and the statistics of the healthy runs. Rates and times are in ``unit``."""

    name: str
    unit: str
    labels: dict[str, str | int | float] = Field(default_factory=dict)
    nodes: tuple[int, ...] = ()  # node ranks measured: one, a pair, or none for the entire run
    gpu: int | None = None  # GPU of the node, if only this GPU was measured
    value: float
    median: float
    mad: float
    worst: float  # slowest value of the healthy runs
    runs: int  # number of healthy runs that measured it


class TraitDiffers(Frozen):
    """A version, a setting or a part of the hardware that is not the same in two runs."""

    name: str  # torch, driver, NCCL_ALGO ...
    before: str | None  # None: not set
    now: str | None


class RunDifferencesFact(Fact):
    """The differences between a run and the run or runs it is compared with, and what cannot be compared."""

    KIND: ClassVar[str] = "run-differences/1"

    file: str  # of the other run, as given
    differ: tuple[TraitDiffers, ...] = ()
    only_before: tuple[str, ...] = ()  # findings: "DD617 (error) The gloo process group cannot start"
    only_now: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # what cannot be compared, in sentences


class Preflight(Frozen):
    """The ``run`` of ddp-doctor that the collectives of a job are compared with."""

    finished_at: str  # RFC 3339
    same_nodes: bool | None = None  # whether the job ran on the same nodes; None: its output names no nodes
    was_unhealthy: bool = False


class BaselineFact(Fact):
    """The measurements of a run compared with healthy runs on the same hardware."""

    KIND: ClassVar[str] = "baseline/1"

    file: str  # as given
    runs: int
    compared: tuple[HeldAgainst, ...]
    preflight: Preflight | None = None  # if the measurements are a job's and the baseline is such a run


class TracedPart(Frozen):
    """The time of a part of a step, averaged over the ranks; median and spread over the steps."""

    median_us: float
    mad_us: float  # median distance of the steps from that median


#: The GPU model if the trace does not contain it.
UNKNOWN_GPU = "a GPU"


class TracedSide(Frozen):
    """A summary of a job's traces, for comparison with another job's."""

    file: str  # as given
    ranks: int  # of the job
    steps: int  # number of evaluated steps
    samples: float | None = None  # per rank and step, averaged over the ranks; None if unknown
    gpus: tuple[str, ...] = ()  # models of the ranks' GPUs; empty for CPU traces
    problem: str = ""  # why some of it could not be evaluated
    parts: dict[str, TracedPart]  # the entire "step", its parts, and "exposed" (waiting and transfer)


class TracesFact(Fact):
    """The traces of two jobs, for comparison."""

    KIND: ClassVar[str] = "traces/1"

    before: TracedSide
    now: TracedSide
