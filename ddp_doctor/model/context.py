"""What a probe gets instead of the machine: Protocols that sources and ranks implement."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.choices import Level
from ddp_doctor.model.recording import Axis, Options, World


class GpuSample(Frozen):
    """One sample. ``phase`` is what the GPU was doing; None where the driver says nothing."""

    phase: str
    sm_clock_mhz: int | None = None
    clock_events: tuple[str, ...] | None = None  # NVML's clocks event reasons in force
    temperature_c: int | None = None
    power_w: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


class GpuWatched(Frozen):
    """All samples of one GPU, and what stays the same; ``reason`` says why there are none."""

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
    """How a command ended. ``missing``: not found or not executable; nothing is ever raised."""

    argv: tuple[str, ...]
    status: Literal["ended", "missing", "timed_out"]
    returncode: int | None = None
    stdout: str = ""
    stderr: str = ""
    queued_s: float = 0.0  # of a command that timed out: how long its threads were ready to run but had no processor

    @property
    def ok(self) -> bool:
        """Whether the command ran to its end and reported success."""
        return self.status == "ended" and self.returncode == 0


@dataclass(frozen=True)
class Disk:
    """Size of a file system, in bytes, and the kernel's number for it."""

    total_bytes: int
    free_bytes: int
    device: int | None = None  # st_dev of stat(2): equal for those who see the same file system
    problem: str | None = None  # why no new file can be made there, whatever room there is


class Interface(Frozen):
    """A network interface as getifaddrs(3) and the kernel's flags describe it."""

    name: str
    up: bool = True
    running: bool = True  # IFF_RUNNING: up, and attached to something that carries
    loopback: bool = False
    mtu: int = 1500
    speed_mbps: int | None = None  # None where the driver does not say, as in most virtual machines
    addresses: tuple[str, ...] = ()  # "10.0.0.1/24", "fe80::1%eth0/64": IPv4 first, in the kernel's order


class Context(Protocol):
    """The only door to the machine for a probe that runs once per node."""

    env: Mapping[str, str]
    node: int
    world: World
    level: Level
    deadline: float  # on the clock of ``clock()``

    def clock(self) -> float:
        """Monotonic seconds."""

    def run(self, argv: Sequence[str], timeout_s: float | None = None) -> CommandResult:
        """Run a command without a shell, killed at the deadline."""

    def child(self, name: str, *args: str) -> CommandResult:
        """Run one of the doctor's own helper scripts (sources/child_NAME.py) in a fresh process.

        For calls into drivers and libraries that may hang or crash. It prints JSON.
        """

    def read(self, path: str) -> str:
        """The text of a file. Raises OSError as open() does."""

    def read_bytes(self, path: str) -> bytes:
        """The bytes of a file that is no text. Raises OSError as open() does."""

    def listdir(self, path: str) -> list[str]:
        """Sorted names in a folder. Raises OSError as os.listdir() does."""

    def readlink(self, path: str) -> str:
        """Where a symbolic link points to. Raises OSError as os.readlink() does."""

    def disk(self, path: str) -> Disk:
        """Size of the file system that holds ``path``. Raises OSError."""

    def limit(self, name: str) -> int | None:
        """The soft resource limit ``RLIMIT_<name>``; None is unlimited."""

    def cpus(self) -> int:
        """How many logical CPUs this process may run on."""

    def interfaces(self) -> tuple[Interface, ...]:
        """The network interfaces, in the kernel's order. Raises OSError."""

    def hostname(self) -> str:
        """This host's name, from gethostname(2)."""

    def resolve(self, name: str, timeout_s: float) -> tuple[str, ...]:
        """The addresses of a host name, in the resolver's order.

        Raises OSError: socket.gaierror where there are none, TimeoutError past the time.
        """

    def keep(self, raw: str) -> None:
        """Keep the raw text that the fact is parsed from."""


class OtherWay(Frozen):
    """A peer in another network than the one its backend uses, in which all nodes have an address."""

    network: str  # "10.78.0.0/24"
    interface: str  # this node's own there
    peer_interface: str
    address: str  # the peer's


@dataclass(frozen=True)
class Peer:
    """Another node of the run, as it can be dialled: its listener is on an ephemeral port.

    ``address`` is the one that the backend of this run would advertise there; ``met_at`` the source
    address of its connection to the roll call, which is known to work in that direction.
    """

    node: int
    hostname: str
    port: int
    address: str
    met_at: str
    others: tuple[OtherWay, ...] = ()


@dataclass(frozen=True)
class TcpInfo:
    """What the kernel counted on a connection (TCP_INFO of tcp(7))."""

    retransmits: int  # segments sent again, since the connection was made
    mss_bytes: int  # the largest segment that it sends


class Line(Protocol):
    """A TCP connection to a peer's listener, which answers; all times are seconds."""

    def round_trip(self, timeout_s: float) -> float:
        """Time until a few bytes came back. Raises OSError (TimeoutError past the time)."""

    def send(self, size: int, timeout_s: float) -> float:
        """Time until the peer acknowledged ``size`` bytes. Raises OSError (TimeoutError past the time)."""

    def tcp(self) -> TcpInfo | None:
        """What the kernel counted on this connection; None where it does not say."""

    def close(self) -> None:
        """End the connection."""


class NodesContext(Context, Protocol):
    """What a probe sees on one node of several, once all have met."""

    peers: tuple[Peer, ...]  # the nodes that this one is to dial, in an order that spreads the load
    clock_offset_s: float | None  # this node's clock less the head's, wrong by up to 0.2 s; None: not known

    def dial(self, address: str, port: int, timeout_s: float) -> Line:
        """Connect to a peer's listener and be recognized by it. Raises OSError with its errno."""


class GpuWatch(Protocol):
    """Samples one GPU through the driver, in a second thread, while the rank keeps it busy."""

    def during(self, phase: str) -> AbstractContextManager[None]:
        """The GPU works on ``phase`` in this block: it is sampled only here."""

    def stop(self) -> GpuWatched:
        """The samples; the wait is bounded."""


#: The axes of a mesh, none where there is none, and the DeviceMesh itself, None where it was not made.
ModelMesh = tuple[tuple[Axis, ...], Any]


class RankContext(Protocol):
    """What a probe sees on one rank: its place in the world, and how to report progress."""

    rank: int  # original rank, for reports
    group_rank: int  # rank in this trial's process group
    world_size: int  # of this trial
    ranks: tuple[int, ...]  # original rank of each group rank
    nodes: tuple[int, ...]  # node rank of each group rank
    local_rank: int
    backend: str
    device: str  # "cpu" or "cuda:N", for torch.device
    env: Mapping[str, str]
    node: int  # node rank
    options: Options  # of the run
    part: str  # of a check of several parts
    level: Level
    budget_s: float  # of the run
    deadline: float
    init_s: float  # how long init_process_group took here
    backend_impl: str | None  # the class behind ``backend``, as ProcessGroupFact has it
    bound_device: str | None  # that the group is bound to
    started_ago_s: float  # how long ago the launcher was started, when this worker came up
    skip_pairs: frozenset[tuple[int, int]]  # original ranks; pairs an earlier trial proved stuck
    gpu_memory_bytes: int  # of tensors that this rank may hold on its GPU; 0 on a CPU
    group: Any  # the default torch ProcessGroup
    model: str  # the user's own, "package.module:factory"; "" where none was named
    model_mesh: ModelMesh  # of that model, where its check ran in this process

    def clock(self) -> float:
        """Monotonic seconds, the same clock on all ranks of a node."""

    def remaining(self) -> float:
        """Seconds until the check's deadline."""

    def step(
        self, name: str, detail: str = "", *, peers: Sequence[int] = (), deadline_s: float | None = None
    ) -> AbstractContextManager[None]:
        """Mark a step that may block; ``peers`` are original ranks, empty means everyone.

        ``detail`` must be equal on the ranks that meet. ``deadline_s`` is the step's own deadline.
        """

    def within(self, axis: str, members: Sequence[int]) -> AbstractContextManager[None]:
        """The steps of this block are those of one group of an axis of a mesh; ``members`` are original ranks."""

    def exchange(self, name: str, text: str) -> tuple[str, ...]:
        """The texts of all ranks under this name, by group rank; the same call on all ranks.

        It goes through the control store, so it works where collectives would hang; it is in a step of
        the caller's, for it waits for the slowest rank. A name is used once in a check.
        """

    def new_folder(self) -> str:
        """A new folder in the working directory, where the job would write; once in a run of the ranks.

        It is removed when the ranks end, however they end. Raises OSError where it cannot be made.
        """

    def keep(self, raw: str) -> None:
        """Keep raw text beside the fact."""

    def watch_gpu(self, uuid: str | None) -> GpuWatch:
        """Begin to sample the GPU with this UUID."""

    def machine(self, within_s: float) -> Context:
        """This rank's machine, as a probe of a node sees it: what it runs there is killed after ``within_s``."""
