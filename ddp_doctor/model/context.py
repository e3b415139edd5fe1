"""The interfaces that probes use instead of the machine: Protocols that sources and ranks implement."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Level
from ddp_doctor.model.recording import Axis, Options, World


class GpuSample(Frozen):
    """A sample of a GPU. ``phase`` is its work at that time. None: not reported by the driver."""

    phase: str
    sm_clock_mhz: int | None = None
    clock_events: tuple[str, ...] | None = None  # NVML's clocks event reasons in force
    temperature_c: int | None = None
    power_w: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


class GpuWatched(Frozen):
    """All samples of one GPU, and its constant properties. ``reason``: why there are no samples."""

    samples: tuple[GpuSample, ...] = ()
    reason: str | None = None
    mig_enabled: bool | None = None
    sm_clock_max_mhz: int | None = None
    power_limit_w: float | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    confidential: bool | None = None  # copies to and from the host are encrypted


@dataclass(frozen=True)
class CommandResult:
    """The result of a command. ``missing``: not found or not executable. A command never raises an error."""

    argv: tuple[str, ...]
    status: Literal["ended", "missing", "timed_out"]
    returncode: int | None = None
    stdout: str = ""
    stderr: str = ""
    queued_s: float = 0.0  # of a command that timed out: how long its threads were ready to run but had no processor

    @property
    def ok(self) -> bool:
        """Return True if the command exited with code 0."""
        return self.status == "ended" and self.returncode == 0


@dataclass(frozen=True)
class Disk:
    """The size of a file system in bytes, and its device number."""

    total_bytes: int
    free_bytes: int
    device: int | None = None  # st_dev of stat(2): equal for processes that see the same file system
    problem: str | None = None  # why no new file can be made, even if there is space


class Interface(Frozen):
    """A network interface as getifaddrs(3) and the kernel's flags describe it."""

    name: str
    up: bool = True
    running: bool = True  # IFF_RUNNING: up, and attached to a working medium
    loopback: bool = False
    mtu: int = 1500
    speed_mbps: int | None = None  # None if the driver does not report it, as in most virtual machines
    addresses: tuple[str, ...] = ()  # "10.0.0.1/24", "fe80::1%eth0/64": IPv4 first, in the kernel's order


class Context(Protocol):
    """The only access to the machine for a probe that runs once per node."""

    env: Mapping[str, str]
    node: int
    world: World
    level: Level
    deadline: float  # on the clock of ``clock()``

    def clock(self) -> float:
        """Return monotonic seconds."""

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        """Run a command without a shell. It is killed at the deadline."""

    def child(self, name: str, *args: str) -> CommandResult:
        """Run a helper script of ddp-doctor (sources/child_NAME.py) in a new process.

        For calls into drivers and libraries that may hang or crash. The script prints JSON.
        """

    def read(self, path: str) -> str:
        """Return the text of a file. Raises OSError as open() does."""

    def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a binary file. Raises OSError as open() does."""

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a directory. Raises OSError as os.listdir() does."""

    def readlink(self, path: str) -> str:
        """Return the target of a symbolic link. Raises OSError as os.readlink() does."""

    def disk(self, path: str) -> Disk:
        """Return the size of the file system that holds ``path``. Raises OSError."""

    def limit(self, name: str) -> int | None:
        """Return the soft resource limit ``RLIMIT_<name>``, or None if unlimited."""

    def cpus(self) -> int:
        """Return the number of logical CPUs that this process may run on."""

    def interfaces(self) -> tuple[Interface, ...]:
        """Return the network interfaces, in the kernel's order. Raises OSError."""

    def hostname(self) -> str:
        """Return this host's name, from gethostname(2)."""

    def resolve(self, name: str, timeout_s: float) -> tuple[str, ...]:
        """Return the addresses of a host name, in the resolver's order.

        Raises OSError: socket.gaierror without an address, TimeoutError after the timeout.
        """

    def keep(self, raw: str) -> None:
        """Keep the raw text that the fact is parsed from."""


class OtherWay(Frozen):
    """A peer in another network than its backend's, with an address of every node."""

    network: str  # "10.78.0.0/24"
    interface: str  # this node's interface in it
    peer_interface: str
    address: str  # the peer's


@dataclass(frozen=True)
class Peer:
    """Another node of the run, with the data to dial it. Its listener is on an ephemeral port.

    ``address`` is what the backend of this run would advertise. ``met_at`` is the source address of its connection at
    check-in, which is known to work in that direction.
    """

    node: int
    hostname: str
    port: int
    address: str
    met_at: str
    others: tuple[OtherWay, ...] = ()


@dataclass(frozen=True)
class TcpInfo:
    """The kernel's counts of a connection (TCP_INFO of tcp(7))."""

    retransmits: int  # segments sent again since the connection was made
    mss_bytes: int  # largest segment that it sends


class Line(Protocol):
    """A TCP connection to a peer's listener, which answers. All times are seconds."""

    def round_trip(self, timeout_s: float) -> float:
        """Return the time until a few bytes came back. Raises OSError (TimeoutError after the timeout)."""

    def send(self, size: int, timeout_s: float) -> float:
        """Return the time until the peer acknowledged ``size`` bytes. Raises OSError (TimeoutError if late)."""

    def tcp(self) -> TcpInfo | None:
        """Return the kernel's counts of this connection, or None if it does not report them."""

    def close(self) -> None:
        """End the connection."""


class NodesContext(Context, Protocol):
    """The view of a probe on one node of several, after all nodes have checked in."""

    peers: tuple[Peer, ...]  # nodes that this node dials, in an order that spreads the load
    clock_offset_s: float | None  # this node's clock minus the head's, with an error of up to 0.2 s; None: unknown

    def dial(self, address: str, port: int, timeout_s: float) -> Line:
        """Connect to a peer's listener and be recognized by it. Raises OSError with its errno."""


class GpuWatch(Protocol):
    """Samples one GPU through the driver, in a second thread, while the rank keeps it busy."""

    def during(self, phase: str) -> AbstractContextManager[None]:
        """Mark a block in which the GPU works on ``phase``. It is sampled only in such blocks."""

    def stop(self) -> GpuWatched:
        """Return the samples. The wait is bounded."""


#: The axes of a mesh, or () without a mesh, and the DeviceMesh itself, or None if it was not made.
ModelMesh = tuple[tuple[Axis, ...], Any]


class RankContext(Protocol):
    """The view of a probe on one rank: its place in the world, and how to report progress."""

    rank: int  # original rank, for reports
    group_rank: int  # rank in this trial's process group
    world_size: int  # of this trial
    ranks: tuple[int, ...]  # original rank of each group rank
    nodes: tuple[int, ...]  # node rank of each group rank
    local_rank: int
    backend: str
    device: str  # "cpu" or "cuda:N", as torch.device takes it
    env: Mapping[str, str]
    node: int  # node rank
    options: Options  # of the run
    part: str  # of a check with several parts
    level: Level
    budget_s: float  # of the run
    deadline: float
    init_s: float  # duration of init_process_group on this rank
    backend_impl: str | None  # the class behind ``backend``, as ProcessGroupFact has it
    bound_device: str | None  # that the group is bound to
    started_ago_s: float  # time from the launcher's start until this worker was running
    skip_pairs: frozenset[tuple[int, int]]  # original ranks; pairs that hung in an earlier trial
    gpu_memory_bytes: int  # of tensors that this rank may hold on its GPU; 0 on a CPU
    group: Any  # the default torch ProcessGroup
    model: str  # the user's model, "package.module:factory"; "" if none was given
    model_mesh: ModelMesh  # of that model, if its check ran in this process

    def clock(self) -> float:
        """Return monotonic seconds, from the same clock on all ranks of a node."""

    def remaining(self) -> float:
        """Return the seconds until the check's deadline."""

    def step(
        self, name: str, detail: str = "", *, peers: Sequence[int] = (), deadline_s: float | None = None
    ) -> AbstractContextManager[None]:
        """Mark a step that may block; ``peers`` are original ranks, empty means all.

        ``detail`` must be equal on the ranks that meet. ``deadline_s`` is the step's own deadline.
        """

    def within(self, axis: str, members: Sequence[int]) -> AbstractContextManager[None]:
        """Mark a block of steps in one group of a mesh axis; ``members`` are original ranks."""

    def exchange(self, name: str, text: str) -> tuple[str, ...]:
        """Return the texts of all ranks under this name, by group rank. All ranks must make the same call.

        It uses the control store, so it works even if collectives would hang. It waits for the slowest rank, so the
        caller must be in a step. A name is used once per check.
        """

    def new_folder(self) -> str:
        """Return a new directory in the job's working directory. Call it once per run of the ranks.

        It is removed when the ranks exit, for any reason. Raises OSError if it cannot be made.
        """

    def keep(self, raw: str) -> None:
        """Keep raw text with the fact."""

    def watch_gpu(self, uuid: str | None) -> GpuWatch:
        """Start to sample the GPU with this UUID."""

    def machine(self, within_s: float) -> Context:
        """Return this rank's machine as a node's probe sees it. Commands run there are killed after ``within_s``."""
