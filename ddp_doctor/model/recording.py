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

#: Raised in its first number when an older doctor could misread a recording.
SCHEMA_VERSION = "1.0"
#: How the reason begins of a check in which a run was interrupted.
INTERRUPTED_AFTER = "interrupted after"
#: … and of one that was not made because of it.
OWN_PROCESS = "a process of ddp-doctor"

#: The reason of a check that ``--only`` does not name, …
NOT_SELECTED = "not selected by --only"
#: … and of one that ``--skip`` does.
SKIPPED_BY_NAME = "left out by --skip"

F = TypeVar("F", bound=Fact)
T = TypeVar("T")
P = ParamSpec("P")


class Node(Frozen):
    """One host of the world."""

    node_rank: int = 0  # its number in the run
    hostname: str = "localhost"  # its name, as the node itself says it
    addresses: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # IP addresses by network interface
    nproc: int | None = None  # ranks on this node; None is the world's nproc_per_node


class World(Frozen):
    """The ranks the doctor tested with, and how they were started."""

    nnodes: int = 1  # all nodes, also those that did not come
    nproc_per_node: int = 1  # of the first node, where nodes differ
    world_size: int = Field(default=1, description="All ranks; 0 in the report of a command that starts none.")
    backend: str = Field(
        default="gloo", description='Of the ranks; "none" in the report of a command that starts none.'
    )
    backend_impl: str | None = None  # in a report: the class behind it, as the ranks recorded it
    launcher: str = "plain"  # who started the ranks: plain is the doctor itself
    foreign_nodes: int = Field(
        default=1,
        description="How many nodes the launcher's own world has, of which each is tested by itself; 1 is no others.",
    )
    nodes: tuple[Node, ...] = ()  # those that reported in
    expected_hosts: tuple[str, ...] = ()  # by node rank, where a scheduler or the user named them

    _memo: Memo = PrivateAttr(default_factory=Memo)

    def hostname(self, node_rank: int) -> str:
        """The node's host name, the expected one, or "node rank N" where it never reported."""
        node = self._by_rank().get(node_rank)
        if node is not None:
            return node.hostname
        if 0 <= node_rank < len(self.expected_hosts):
            return self.expected_hosts[node_rank]
        return f"node rank {node_rank}"

    def ranks_of(self, node_rank: int) -> range:
        """The global ranks of a node: dense by node rank, then by local rank."""
        return range(self._first_rank(node_rank), self._first_rank(node_rank + 1))

    def node_of(self, rank: int) -> int:
        """The node rank of global rank ``rank``."""
        uneven, _ = self._once("uneven", self._uneven)
        if uneven and 0 <= rank < self._first_rank(self.nnodes):
            return bisect_right(range(self.nnodes), rank, key=self._first_rank) - 1
        return rank // max(self.nproc_per_node, 1)

    def local_rank(self, rank: int) -> int:
        """The number of global rank ``rank`` on its own node."""
        return rank - self._first_rank(self.node_of(rank))

    def _first_rank(self, node_rank: int) -> int:
        """The first rank of a node, which is also the number of ranks before it."""
        nodes, more = self._once("uneven", self._uneven)
        return node_rank * self.nproc_per_node + more[bisect_left(nodes, node_rank)]

    def _uneven(self) -> tuple[list[int], list[int]]:
        """The nodes with another number of ranks than usual, and how many more all before them have."""
        more = {
            node.node_rank: node.nproc - self.nproc_per_node
            for node in self._by_rank().values()
            if node.nproc is not None and node.nproc != self.nproc_per_node and node.node_rank >= 0
        }
        nodes = sorted(more)
        return nodes, list(accumulate((more[node] for node in nodes), initial=0))

    def _by_rank(self) -> Mapping[int, Node]:
        """The nodes by their rank; the first of two that claim the same rank."""
        return self._once("nodes", lambda: {node.node_rank: node for node in reversed(self.nodes)})

    def _once(self, name: str, make: Callable[[], T]) -> T:
        return self._memo.once((self.nodes, self.nproc_per_node), name, make)


class Floor(Frozen):
    """The least bus bandwidth that a site takes for healthy."""

    collective: str  # a row of knowledge/collectives.py
    size_bytes: int  # as nccl-tests counts it
    bytes_per_s: float  # of bus bandwidth

    @property
    def typed(self) -> str:
        """As the option has it."""
        return f"{self.collective}:{self.size_bytes}={self.bytes_per_s / 1e9:.12g}GB/s"


class Axis(Frozen):
    """One axis of a mesh of ranks; the last one of a mesh has neighboring ranks."""

    name: str  # as the job calls it: dp, shard, tp
    size: int  # ranks of each of its groups


def mesh_typed(mesh: Sequence[Axis]) -> str:
    """As ``--mesh`` takes it: ``dp=2,shard=4``."""
    return ",".join(f"{axis.name}={axis.size}" for axis in mesh)


class TraceAdvice(Frozen):
    """A change that a trace advises."""

    code: str  # of the rule of ``trace`` that tells it
    at_most: float  # of the median step, 0 to 1: an upper bound computed from the trace
    setting: str = ""  # the argument of DistributedDataParallel that ``run --from-trace`` can try; else empty
    value: bool | float | None = None  # … the value to try; null: leave the argument out
    had: bool | float | None = None  # … what the job had, as far as the trace shows it; a switch had the contrary


class FitOptions(Frozen):
    """What ``fit`` was asked to estimate."""

    memory_bytes: int | None = None  # --memory of a GPU; null: that of the smallest GPU here
    ranks: int | None = None  # --ranks, also more than there are here; null: one for each GPU here, else 2
    ranks_per_node: int | None = None  # --nproc-per-node; null: one for each GPU here, else up to 8
    precision: Literal["fp32", "bf16", "amp"] = "fp32"  # --precision
    strategy: str = ""  # --strategy: a row of knowledge/ddp/strategies.py; empty: whichever fits
    batch: int | None = (
        None  # --batch: samples of a model of transformers; that of a factory is what make_batch returns
    )
    seq: int | None = None  # --seq: … and tokens of each
    measure: bool = False  # --measure: run steps of what fits


class Leaf(Frozen):
    """The hosts on one leaf switch, or in one rack."""

    name: str  # as the topology has it
    hosts: tuple[str, ...]  # their names


class Options(Frozen):
    """What the user asked for, as far as it changes the judgment."""

    command: str = "run"  # run, prolog, env or topology
    level: Level = Level.STANDARD  # --level
    backend: Backend = Backend.AUTO  # --backend, as asked for
    only: tuple[str, ...] = ()  # --only
    skip: tuple[str, ...] = ()  # --skip
    budget_s: float = 60.0  # --budget in seconds
    ignore: tuple[str, ...] = ()  # how the codes of rules begin that are not applied
    fail_on: FailOn = FailOn.ERROR  # --fail-on: the lowest severity that makes the exit code 1
    require_gpus: int | None = None  # --require-gpus: of the job in a run, of the node in a prolog
    prove: bool = True  # --prove: whether remedies may be tried
    compile: bool = False  # --compile: whether to look at how torch.compile takes it, if it is not compiled by itself
    model: str = ""  # the user's own, "package.module:factory"; of fit also "hf:llama,num_hidden_layers=16"
    from_trace: str = ""  # the file of --from-trace
    advice: tuple[TraceAdvice, ...] = ()  # … what of it can be tried, each argument once
    replay: JobCollectives | None = None  # what --collectives-of names: the collectives of a job
    baseline: str = ""  # the file of --baseline
    collectives: tuple[str, ...] = ()  # --collective: rows of knowledge/collectives.py
    sizes: tuple[int, int, int] | None = None  # --sizes in bytes: from, to, and by which factor
    iters: int | None = None  # --iters
    warmup: int | None = None  # --warmup
    min_busbw: tuple[Floor, ...] = ()  # --min-busbw
    mesh: tuple[Axis, ...] = ()  # --mesh, the outermost axis first
    isolate: bool = False  # --isolate: whether groups of nodes are tested by themselves
    topology: str = ""  # the file of --topology
    leaves: tuple[Leaf, ...] = ()  # … what it says, or that of SLURM
    repeat: int = 1  # --repeat: how often all ranks, or each group, are tested
    soak_s: float | None = None  # --soak in seconds: for how long all ranks are tested again and again
    data: str = ""  # --data: a file or folder that the job reads
    fit: FitOptions | None = None  # of fit
    window: str = "latest"  # --window of trace: latest, all or a number from 1
    #: Of trace: the bus bandwidth in B/s of the largest all-reduce in the report of --against.
    expected_busbw: float | None = None

    @property
    def repeats_all(self) -> bool:
        """Whether all ranks are tested again and again; with --isolate, --repeat counts for its groups."""
        return self.soak_s is not None or (self.repeat > 1 and not self.isolate)

    @property
    def typed_model(self) -> str:
        """The user's model as it was typed: the argument of ``fit``, the option of ``run``."""
        return self.model if self.command == Command.FIT.value else f"--model {self.model}"

    def leaves_of(self, hosts: Sequence[str]) -> tuple[str, ...]:
        """The name of each host's leaf, "" where none is known; node1 and node1.example.org are one host."""
        leaf_of = {name: leaf.name for leaf in self.leaves for host in leaf.hosts for name in (_short(host), host)}
        return tuple(leaf_of.get(host) or leaf_of.get(_short(host), "") for host in hosts)


def _short(host: str) -> str:
    """The name without its domain; an address is whole."""
    name = host.partition(".")[0]
    return host if name.isdecimal() else name


class Job(Frozen):
    """The job of a scheduler in which a run was started."""

    scheduler: Literal["slurm", "pbs", "lsf", "flux"]  # whose job it is
    id: str  # as the scheduler writes it


class NotRun(Frozen):
    """A check that the plan left out, and why."""

    check: str  # its id
    reason: str  # why it was left out


@dataclass(frozen=True)
class FactAt(Generic[F]):
    """A typed fact and where it was read."""

    fact: F
    node: int
    rank: int | None
    reading: Reading


class Recording(Frozen):
    """Everything one run saw; rules are pure functions of it, so it can be replayed anywhere."""

    #: Of this document; its first number is raised where an older doctor could misread it.
    schema_version: str = SCHEMA_VERSION
    tool_version: str = ""  # release of the ddp-doctor that wrote it
    run_id: str = ""  # unique for each run
    started_at: str = ""  # RFC 3339
    duration_s: float = 0.0  # of the run in seconds
    interrupted: bool = False  # whether it was ended before its time
    job: Job | None = None  # the scheduler's, where the run was part of one
    world: World | None = None  # the nodes and ranks; null where no machine was looked at
    options: Options = Options()  # what was asked for
    readings: tuple[Reading, ...] = ()  # what each probe read, on each node or rank
    trials: tuple[TrialRecord, ...] = ()  # the starts of the ranks, each with what is known of its ranks
    experiments: tuple[Experiment, ...] = ()  # the trials of remedies
    not_run: tuple[NotRun, ...] = ()  # the checks that the plan left out

    _memo: Memo = PrivateAttr(default_factory=Memo)

    @property
    def command(self) -> Command:
        """The command that made it."""
        return Command(self.options.command)

    @property
    def nnodes(self) -> int:
        """All nodes of its world."""
        return self.world.nnodes if self.world is not None else 1

    @property
    def several_nodes(self) -> bool:
        """Whether there are nodes to tell apart."""
        return self.nnodes > 1

    @property
    def backend(self) -> str:
        """Of the ranks; gloo, as on a machine without GPUs, where there is no world."""
        return self.world.backend if self.world is not None else "gloo"

    @property
    def on_nccl(self) -> bool:
        """Whether its ranks talk over NCCL."""
        return self.backend == "nccl"

    @property
    def launcher(self) -> str:
        """Who started the ranks; nobody (plain) where there is no world."""
        return self.world.launcher if self.world is not None else "plain"

    def as_json(self, indent: int | None = 1) -> str:
        """Return the text of its file."""
        return self.model_dump_json(indent=indent) + "\n"

    def ignoring(self, codes: tuple[str, ...]) -> "Recording":
        """The same, to be judged without the rules whose codes begin so, too."""
        options = self.options.model_copy(update={"ignore": (*self.options.ignore, *codes)})
        return self.model_copy(update={"options": options}) if codes else self

    def facts(self, kind: type[F]) -> list[FactAt[F]]:
        """All collected facts of one class, in the order they were read."""
        return list(self.once(kind, lambda: [_fact_at(kind, reading) for reading in self.of_kind(kind.KIND)]))

    def first(self, kind: type[F]) -> F | None:
        """The first collected fact of one class, or None."""
        return self.once(("first", kind), lambda: next((_fact_at(kind, r).fact for r in self.of_kind(kind.KIND)), None))

    def at(self, kind: type[F], node: int) -> list[F]:
        """The facts of one class from one node; indexed, because a search is too slow for thousands of nodes."""
        by_node = self.once(("by node", kind), lambda: grouped((fact.node, fact.fact) for fact in self.facts(kind)))
        return list(by_node.get(node, ()))

    def of_check(self, check_id: str) -> list[Reading]:
        """All readings of one check."""
        by_check = self.once("by check", lambda: grouped((reading.check, reading) for reading in self.readings))
        return list(by_check.get(check_id, ()))

    def of_kind(self, kind: str) -> Sequence[Reading]:
        """The readings whose fact is of this kind, without validation."""
        by_kind = self.once("by kind", lambda: grouped((_kind(reading), reading) for reading in self.readings))
        return by_kind.get(kind, ())

    def collected(self) -> list[Reading]:
        """The readings that carry a fact."""
        return [reading for reading in self.readings if reading.status is Status.COLLECTED]

    def once(self, name: object, make: Callable[[], T]) -> T:
        """What several rules derive from this recording, computed once; ``make`` is a pure function of it."""
        memo: Memo = (self.__pydantic_private__ or {})["_memo"]  # pydantic finds self._memo ten times as slowly
        return memo.once((self.readings, self.trials, self.world, self.options), name, make)


def once_a_recording(view: Callable[Concatenate[Recording, P], T]) -> Callable[Concatenate[Recording, P], T]:
    """Makes a pure function of a recording, and of what can be hashed, one that is worked out once."""

    @wraps(view)
    def kept(recording: Recording, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return recording.once((view, args, *kwargs.items()), lambda: view(recording, *args, **kwargs))

    return kept


def _fact_at(kind: type[F], reading: Reading) -> FactAt[F]:
    return FactAt(kind.model_validate(reading.fact), reading.node, reading.rank, reading)


def _kind(reading: Reading) -> str | None:
    kind = reading.fact.get("kind") if reading.fact is not None else None
    return kind if isinstance(kind, str) else None
