"""The recording: everything a run saw. It is always saved and is the only input of the rules."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import accumulate
from typing import Concatenate, Generic, Literal, ParamSpec, TypeVar

from pydantic import Field, PrivateAttr

from ddp_doctor.model.base import Frozen, Memo, grouped
from ddp_doctor.model.choices import Backend, Command, FailOn, Level, Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.job_collectives import JobCollectives
from ddp_doctor.model.trial import Experiment, TrialRecord

#: Its first number is raised if an older ddp-doctor could misread a recording.
SCHEMA_VERSION = "1.0"
#: Start of the reason of a check that ran when the run was interrupted.
INTERRUPTED_AFTER = "interrupted after"
#: Start of the reason if one of ddp-doctor's own processes failed.
OWN_PROCESS = "a process of ddp-doctor"

#: The reason of a check that ``--only`` does not name, …
NOT_SELECTED = "not selected by --only"
#: … and of a check that ``--skip`` names.
SKIPPED_BY_NAME = "left out by --skip"

F = TypeVar("F", bound=Fact)
T = TypeVar("T")
P = ParamSpec("P")


class Node(Frozen):
    """A host of the world."""

    node_rank: int = 0  # its number in the run
    hostname: str = "localhost"  # its host name, as reported by the node itself
    addresses: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # IP addresses by network interface
    nproc: int | None = None  # ranks on this node; null means the world's nproc_per_node


class World(Frozen):
    """The ranks that ddp-doctor tested with, and how they were started."""

    nnodes: int = 1  # all nodes, including missing ones
    nproc_per_node: int = 1  # of the first node, if nodes differ
    world_size: int = Field(default=1, description="All ranks; 0 in the report of a command that starts none.")
    backend: str = Field(
        default="gloo", description='Of the ranks; "none" in the report of a command that starts none.'
    )
    backend_impl: str | None = None  # in a report: the class behind it, as the ranks recorded it
    launcher: str = "plain"  # what started the ranks; plain is ddp-doctor itself
    foreign_nodes: int = Field(
        default=1,
        description="How many nodes the launcher's own world has, of which each is tested by itself; 1 is no others.",
    )
    nodes: tuple[Node, ...] = ()  # nodes that checked in
    expected_hosts: tuple[str, ...] = ()  # by node rank, if a scheduler or the user named them

    _memo: Memo = PrivateAttr(default_factory=Memo)

    def hostname(self, node_rank: int) -> str:
        """Return the node's host name, the expected one, or "node rank N" if it never checked in."""
        node = self._by_rank().get(node_rank)
        if node is not None:
            return node.hostname
        if 0 <= node_rank < len(self.expected_hosts):
            return self.expected_hosts[node_rank]
        return f"node rank {node_rank}"

    def ranks_of(self, node_rank: int) -> range:
        """Return the global ranks of a node: dense by node rank, then by local rank."""
        return range(self._first_rank(node_rank), self._first_rank(node_rank + 1))

    def node_of(self, rank: int) -> int:
        """Return the node rank of global rank ``rank``."""
        uneven, _ = self._once("uneven", self._uneven)
        if uneven and 0 <= rank < self._first_rank(self.nnodes):
            return bisect_right(range(self.nnodes), rank, key=self._first_rank) - 1
        return rank // max(self.nproc_per_node, 1)

    def local_rank(self, rank: int) -> int:
        """Return the number of global rank ``rank`` on its own node."""
        return rank - self._first_rank(self.node_of(rank))

    def _first_rank(self, node_rank: int) -> int:
        """Return the first rank of a node, which is also the number of ranks before it."""
        nodes, more = self._once("uneven", self._uneven)
        return node_rank * self.nproc_per_node + more[bisect_left(nodes, node_rank)]

    def _uneven(self) -> tuple[list[int], list[int]]:
        """Return the nodes with an unusual number of ranks, and the additional ranks of all nodes before each."""
        more = {
            node.node_rank: node.nproc - self.nproc_per_node
            for node in self._by_rank().values()
            if node.nproc is not None and node.nproc != self.nproc_per_node and node.node_rank >= 0
        }
        nodes = sorted(more)
        return nodes, list(accumulate((more[node] for node in nodes), initial=0))

    def _by_rank(self) -> Mapping[int, Node]:
        """Return the nodes by their rank; the first of two that claim the same rank."""
        return self._once("nodes", lambda: {node.node_rank: node for node in reversed(self.nodes)})

    def _once(self, name: str, make: Callable[[], T]) -> T:
        return self._memo.once((self.nodes, self.nproc_per_node), name, make)


class Floor(Frozen):
    """The minimum bus bandwidth that a site requires."""

    collective: str  # a row of knowledge/collectives.py
    size_bytes: int  # as nccl-tests counts it
    bytes_per_s: float  # of bus bandwidth

    @property
    def typed(self) -> str:
        """The floor as typed in the option."""
        return f"{self.collective}:{self.size_bytes}={self.bytes_per_s / 1e9:.12g}GB/s"


class Axis(Frozen):
    """An axis of a mesh of ranks. The last axis of a mesh has neighboring ranks."""

    name: str  # the job's name of it: dp, shard, tp
    size: int  # ranks of each of its groups


def mesh_typed(mesh: Sequence[Axis]) -> str:
    """Return a mesh as ``--mesh`` takes it: ``dp=2,shard=4``."""
    return ",".join(f"{axis.name}={axis.size}" for axis in mesh)


class TraceAdvice(Frozen):
    """A change that a trace advises."""

    code: str  # of the rule of ``trace`` that advises it
    at_most: float  # of the median step, 0 to 1: an upper bound computed from the trace
    setting: str = ""  # the argument of DistributedDataParallel that ``run --from-trace`` can test; otherwise empty
    value: bool | float | None = None  # … the value to test; null: omit the argument
    had: bool | float | None = None  # … the job's value, if the trace shows it; for a switch, opposite to the advice


class FitOptions(Frozen):
    """The options of ``fit``."""

    memory_bytes: int | None = None  # --memory of a GPU; null: that of the smallest local GPU
    ranks: int | None = None  # --ranks; null: one per local GPU, or 2
    ranks_per_node: int | None = None  # --nproc-per-node; null: one per local GPU, or up to 8
    precision: Literal["fp32", "bf16", "amp"] = "fp32"  # --precision
    strategy: str = ""  # --strategy: a row of knowledge/ddp/strategies.py; empty: any that fits
    batch: int | None = (
        None  # --batch: samples for a model of transformers; a factory's batch is what make_batch returns
    )
    seq: int | None = None  # --seq: … and tokens of each
    measure: bool = False  # --measure: run steps of the strategies that fit


class Leaf(Frozen):
    """The hosts on one leaf switch, or in one rack."""

    name: str  # as in the topology
    hosts: tuple[str, ...]  # their names


class Options(Frozen):
    """The user's options, limited to what affects the evaluation."""

    command: str = "run"  # run, prolog, env or topology
    level: Level = Level.STANDARD  # --level
    backend: Backend = Backend.AUTO  # --backend, as requested
    only: tuple[str, ...] = ()  # --only
    skip: tuple[str, ...] = ()  # --skip
    budget_s: float = 60.0  # --budget in seconds
    ignore: tuple[str, ...] = ()  # codes or prefixes of codes of rules that are not applied
    fail_on: FailOn = FailOn.ERROR  # --fail-on: the lowest severity that makes the exit code 1
    require_gpus: int | None = None  # --require-gpus: of the job in a run, of the node in a prolog
    prove: bool = True  # --prove: whether fixes may be tested
    compile: bool = False  # --compile: whether to check the model with torch.compile, if it is not already compiled
    model: str = ""  # the user's model, "package.module:factory"; for fit also "hf:llama,num_hidden_layers=16"
    from_trace: str = ""  # the file of --from-trace
    advice: tuple[TraceAdvice, ...] = ()  # … its advice that can be tested, each argument once
    replay: JobCollectives | None = None  # the collectives of a job, from --collectives-of
    baseline: str = ""  # the file of --baseline
    collectives: tuple[str, ...] = ()  # --collective: rows of knowledge/collectives.py
    sizes: tuple[int, int, int] | None = None  # --sizes in bytes: from, to, and by which factor
    iters: int | None = None  # --iters
    warmup: int | None = None  # --warmup
    min_busbw: tuple[Floor, ...] = ()  # --min-busbw
    mesh: tuple[Axis, ...] = ()  # --mesh, the outermost axis first
    isolate: bool = False  # --isolate: whether groups of nodes are tested separately
    topology: str = ""  # the file of --topology
    leaves: tuple[Leaf, ...] = ()  # … its leaves, or SLURM's
    repeat: int = 1  # --repeat: how many times all ranks, or each group, are tested
    soak_s: float | None = None  # --soak in seconds: how long all ranks are tested repeatedly
    data: str = ""  # --data: a file or directory that the job reads
    fit: FitOptions | None = None  # of fit
    window: str = "latest"  # --window of trace: latest, all or a number from 1
    #: For trace: the bus bandwidth in B/s of the largest all-reduce in the report of --against.
    expected_busbw: float | None = None

    @property
    def repeats_all(self) -> bool:
        """Return True if all ranks are tested repeatedly. With --isolate, --repeat applies to its groups."""
        return self.soak_s is not None or (self.repeat > 1 and not self.isolate)

    @property
    def typed_model(self) -> str:
        """The user's model as typed: the argument of ``fit``, the option of ``run``."""
        return self.model if self.command == Command.FIT.value else f"--model {self.model}"

    def leaves_of(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """Return the name of each host's leaf, or "" if unknown. node1 and node1.example.org are one host."""
        leaf_of = {name: leaf.name for leaf in self.leaves for host in leaf.hosts for name in (_short(host), host)}
        return tuple(leaf_of.get(host) or leaf_of.get(_short(host), "") for host in hosts)


def _short(host: str) -> str:
    """Return the name without its domain; an address is returned unchanged."""
    name = host.partition(".")[0]
    return host if name.isdecimal() else name


class Job(Frozen):
    """The scheduler's job that a run was started in."""

    scheduler: Literal["slurm", "pbs", "lsf", "flux"]  # the scheduler
    id: str  # the job's id, as the scheduler writes it


class NotRun(Frozen):
    """A check that the plan omitted, and why."""

    check: str  # its id
    reason: str  # why it was omitted


@dataclass(frozen=True)
class FactAt(Generic[F]):
    """A typed fact, and where it was read."""

    fact: F
    node: int
    rank: int | None
    reading: Reading


class Recording(Frozen):
    """Everything one run saw; rules are pure functions of it, so it can be replayed anywhere."""

    #: Version of this document. Its first number is raised if an older ddp-doctor could misread it.
    schema_version: str = SCHEMA_VERSION
    tool_version: str = ""  # release of the ddp-doctor that wrote it
    run_id: str = ""  # unique for each run
    started_at: str = ""  # RFC 3339
    duration_s: float = 0.0  # of the run in seconds
    interrupted: bool = False  # whether the run was ended early
    job: Job | None = None  # the scheduler's job, if the run was part of one
    world: World | None = None  # the nodes and ranks; null if no machine was tested
    options: Options = Options()  # the user's options
    readings: tuple[Reading, ...] = ()  # what each probe read, on each node or rank
    trials: tuple[TrialRecord, ...] = ()  # the starts of the ranks, each with the evidence of its ranks
    experiments: tuple[Experiment, ...] = ()  # the trials of fixes
    not_run: tuple[NotRun, ...] = ()  # the checks that the plan omitted

    _memo: Memo = PrivateAttr(default_factory=Memo)

    @property
    def command(self) -> Command:
        """The command that made the recording."""
        return Command(self.options.command)

    @property
    def nnodes(self) -> int:
        """The number of nodes in the world."""
        return self.world.nnodes if self.world is not None else 1

    @property
    def several_nodes(self) -> bool:
        """Return True if there are several nodes."""
        return self.nnodes > 1

    @property
    def backend(self) -> str:
        """The backend of the ranks; gloo if there is no world, as on a machine without GPUs."""
        return self.world.backend if self.world is not None else "gloo"

    @property
    def on_nccl(self) -> bool:
        """Return True if the ranks communicate over NCCL."""
        return self.backend == "nccl"

    @property
    def launcher(self) -> str:
        """The launcher of the ranks; plain if there is no world."""
        return self.world.launcher if self.world is not None else "plain"

    def as_json(self, indent: int | None = 1) -> str:
        """Return the text of its file."""
        return self.model_dump_json(indent=indent) + "\n"

    def ignoring(self, codes: tuple[str, ...]) -> "Recording":
        """Return a copy that is evaluated without rules whose codes start with one of these."""
        options = self.options.model_copy(update={"ignore": (*self.options.ignore, *codes)})
        return self.model_copy(update={"options": options}) if codes else self

    def facts(self, kind: type[F]) -> list[FactAt[F]]:
        """Return all collected facts of one class, in the order they were read."""
        return list(self.once(kind, lambda: [_fact_at(kind, reading) for reading in self.of_kind(kind.KIND)]))

    def first(self, kind: type[F]) -> F | None:
        """Return the first collected fact of one class, or None."""
        return self.once(("first", kind), lambda: next((_fact_at(kind, r).fact for r in self.of_kind(kind.KIND)), None))

    def at(self, kind: type[F], node: int) -> list[F]:
        """Return the facts of one class from one node; indexed, because a search is too slow for thousands of nodes."""
        by_node = self.once(("by node", kind), lambda: grouped((fact.node, fact.fact) for fact in self.facts(kind)))
        return list(by_node.get(node, ()))

    def of_check(self, check_id: str) -> list[Reading]:
        """Return all readings of one check."""
        by_check = self.once("by check", lambda: grouped((reading.check, reading) for reading in self.readings))
        return list(by_check.get(check_id, ()))

    def of_kind(self, kind: str) -> Sequence[Reading]:
        """Return the readings whose fact is of this kind, without validation."""
        by_kind = self.once("by kind", lambda: grouped((_kind(reading), reading) for reading in self.readings))
        return by_kind.get(kind, ())

    def collected(self) -> list[Reading]:
        """Return the readings that have a fact."""
        return [reading for reading in self.readings if reading.status is Status.COLLECTED]

    def once(self, name: object, make: Callable[[], T]) -> T:
        """Return a value that several rules derive from this recording, computed once by the pure function ``make``."""
        memo: Memo = (self.__pydantic_private__ or {})["_memo"]  # self._memo is ten times as slow in pydantic
        return memo.once((self.readings, self.trials, self.world, self.options), name, make)


def once_a_recording(view: Callable[Concatenate[Recording, P], T]) -> Callable[Concatenate[Recording, P], T]:
    """Make a pure function of a recording and of hashable arguments compute each result only once."""

    @wraps(view)
    def kept(recording: Recording, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return recording.once((view, args, *kwargs.items()), lambda: view(recording, *args, **kwargs))

    return kept


def _fact_at(kind: type[F], reading: Reading) -> FactAt[F]:
    return FactAt(kind.model_validate(reading.fact), reading.node, reading.rank, reading)


def _kind(reading: Reading) -> str | None:
    kind = reading.fact.get("kind") if reading.fact is not None else None
    return kind if isinstance(kind, str) else None
