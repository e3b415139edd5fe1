"""The peak of a step with each strategy: the strategy's own allocations, replayed on the events of a trace.

The lifetimes of allocations in torch 2.13:

* DDP (torch/csrc/distributed/c10d/reducer.cpp): the buckets always exist and are as large as all gradients. Without
  gradient_as_bucket_view, each gradient also exists from its computation until zero_grad. Before that, its constructor
  broadcasts copies of parameters and buffers, up to two of 250 MiB at a time.
* FSDP2 (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py): a unit is gathered into one buffer and copied out.
  In the forward, the buffer exists until the next unit is gathered. In the backward, it is freed at once, and the
  preceding unit is gathered at the same time. Full gradients exist until the unit's backward ends and are copied to the
  input of the reduce-scatter. The input exists until the next unit's is made. The output holds the kept gradients.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from ddp_doctor.features.model.fit.facts import Estimate, Moment
from ddp_doctor.features.model.fit.probing.trace import Event
from ddp_doctor.knowledge.ddp.strategies import BROADCAST_BYTES, Strategy


@dataclass(frozen=True)
class Parameter:
    """A parameter: ``bytes`` per element as the rank stores it, ``computed`` as it computes with it."""

    shape: tuple[int, ...]
    bytes: int
    computed: int
    trainable: bool = True

    def elements(self, ranks: int = 1) -> int:
        """Return the elements of a rank's shard along the first dimension with padding: ``ceil(rows / ranks)`` rows."""
        rows = -(-self.shape[0] // ranks) if self.shape else 1
        return rows * prod(self.shape[1:])


@dataclass(frozen=True)
class Job:
    """The parameters of a model by unit (the last one holds those of no unit), and the ranks of the job."""

    units: Sequence[Sequence[Parameter]]
    buffer_bytes: int
    ranks: int
    ranks_per_node: int
    device: str  # on "cpu", gloo stages what it gathers and reduces

    def shards(self, row: Strategy) -> int:
        """Return the number of ranks that share a parameter."""
        if not row.shards_parameters:
            return 1
        return self.ranks_per_node if row.within_node else self.ranks

    def parameters(self) -> list[Parameter]:
        """Return the parameters of all units."""
        return [parameter for unit in self.units for parameter in unit]


@dataclass(frozen=True)
class Step:
    """The optimizer's state and temporary memory, in bytes."""

    state: int = 0
    temporaries: int = 0


@dataclass
class _Ledger:
    """The memory held now, and at its peak."""

    held: Counter[str]
    moment: Moment = "wrap"
    most: int = -1
    peak: Counter[str] = field(default_factory=Counter)
    at: Moment = "wrap"
    total: int = 0
    most_of_passes: int = 0

    def add(self, part: str, size: int) -> None:
        self.held[part] += size
        self.total += size
        if self.moment in ("forward", "backward"):
            self.most_of_passes = max(self.most_of_passes, self.total)
        if self.total > self.most:
            self.most, self.at, self.peak = self.total, self.moment, self.held.copy()

    def for_a_moment(self, part: str, size: int) -> None:
        self.add(part, size)
        self.add(part, -size)

    def play(self, event: Event) -> None:
        """Add bytes of the model's own tensors."""
        self.add("activations" if event.saved else "temporaries", event.bytes)


def estimate(row: Strategy, checkpointing: bool, job: Job, events: Iterable[Event], step: Step) -> Estimate:
    """Return the peak of one strategy."""
    play = _sharded if row.shards_parameters else _replicated
    ledger = play(row, job, events, step)
    shards = job.shards(row)
    kept = sum(parameter.bytes * parameter.elements(shards) for parameter in job.parameters())
    gradients = sum(p.bytes * p.elements(shards) for p in job.parameters() if p.trainable)
    return Estimate(
        strategy=row.name,
        checkpointing=checkpointing,
        moment=ledger.at,
        host_bytes=kept + gradients + step.state if row.offloads else 0,
        pass_bytes=ledger.most_of_passes,
        sent_bytes=sent_bytes(row, job),
        **ledger.peak,
    )


def _replicated(row: Strategy, job: Job, events: Iterable[Event], step: Step) -> _Ledger:
    kept = sum(parameter.bytes * parameter.elements() for parameter in job.parameters())
    buckets = sum(p.bytes * p.elements() for p in job.parameters() if p.trainable)
    ledger = _Ledger(Counter())
    ledger.add("parameters", kept + job.buffer_bytes)
    ledger.for_a_moment("temporaries", min(kept + job.buffer_bytes, 2 * BROADCAST_BYTES))
    ledger.add("buckets", buckets)
    ledger.add("optimizer", step.state)
    ledger.moment = "forward"
    for event in events:
        if event.kind == "backward":
            ledger.moment = "backward"
        elif event.kind == "gradient" and not row.bucket_view:
            ledger.add("gradients", event.bytes)
        elif event.kind == "gradient":
            ledger.for_a_moment("temporaries", event.bytes)
        elif event.kind == "bytes":
            ledger.play(event)
    ledger.moment = "optimizer"
    ledger.for_a_moment("temporaries", step.temporaries)
    return ledger


class _Unit:
    """A unit of FSDP2 and its memory at this time."""

    def __init__(self, parameters: Sequence[Parameter], shards: int) -> None:
        self.kept = sum(p.bytes * p.elements(shards) for p in parameters)
        self.whole = sum(p.computed * p.elements(shards) * shards for p in parameters)
        # Parameters that are computed in another type are first copied to one buffer of that type.
        self.cast = sum(p.computed * p.elements(shards) for p in parameters if p.computed != p.bytes)
        self.reduced = sum(p.computed * p.elements(shards) * shards for p in parameters if p.trainable)
        self.gradient = sum(p.bytes * p.elements(shards) for p in parameters if p.trainable)
        self.shards = shards
        self.unsharded = self.gathered = False
        self.gradients = 0  # full ones, in bytes


class _Fsdp:
    """The memory effects of FSDP2's hooks, on a ledger."""

    def __init__(self, row: Strategy, job: Job, ledger: _Ledger) -> None:
        self.row, self.ledger = row, ledger
        self.units = [_Unit(parameters, job.shards(row)) for parameters in job.units]
        self.root = self.units[-1]
        self.stages = job.device == "cpu"
        self.order: list[_Unit] = []  # in the order in which forwards end
        self.buffer = 0  # of the last gather of the forward
        self.reducing = 0  # the input of the last reduce-scatter

    def wrap(self) -> None:
        """Shard the model. On a CPU, all of it exists before; a GPU gets each unit only when it is sharded."""
        for unit in self.units:
            self.ledger.add("parameters", unit.kept * unit.shards)
        for unit in self.units:
            self.ledger.add("parameters", unit.kept)
            self.ledger.add("parameters", -unit.kept * unit.shards)

    def gather(self, unit: _Unit) -> None:
        """Add the gather's buffer, and the temporary memory while it is filled."""
        self.ledger.add("unsharded", unit.whole)
        self.ledger.for_a_moment("unsharded", unit.whole if self.stages else unit.cast)
        if self.row.offloads:
            self.ledger.for_a_moment("unsharded", unit.kept)

    def pre_forward(self, unit: _Unit) -> None:
        if unit.unsharded:
            return
        self.gather(unit)
        self.ledger.add("unsharded", -self.buffer)
        self.ledger.add("unsharded", unit.whole)
        self.buffer = unit.whole
        unit.unsharded = True

    def post_forward(self, unit: _Unit) -> None:
        if self.row.reshards and unit is not self.root:
            self.reshard(unit)
        self.order.append(unit)
        if unit is self.root:
            self.ledger.add("unsharded", -self.buffer)
            self.buffer = 0

    def pre_backward(self, unit: _Unit) -> None:
        if unit not in self.order:
            return
        if not unit.unsharded:
            if not unit.gathered:
                self.gather(unit)
            self.ledger.for_a_moment("unsharded", unit.whole)  # the buffer
            unit.unsharded, unit.gathered = True, False
        place = len(self.order) - 1 - self.order[::-1].index(unit)  # the last of its calls
        if place and not (before := self.order[place - 1]).unsharded and not before.gathered:
            self.gather(before)
            before.gathered = True
        self.order[place:] = []

    def gradient(self, unit: _Unit, size: int) -> None:
        unit.gradients += size
        self.ledger.add("unsharded", size)

    def post_backward(self, unit: _Unit) -> None:
        self.reshard(unit)
        if not unit.gradients:
            return
        self.ledger.add("unsharded", -self.reducing)
        self.reducing = unit.reduced
        self.ledger.add("unsharded", unit.reduced)
        self.ledger.add("unsharded", -unit.gradients)
        unit.gradients = 0
        # The output of the reduce-scatter is kept as the gradient, unless it has another type or is offloaded.
        output = unit.reduced // unit.shards
        stays = output == unit.gradient and not self.row.offloads
        self.ledger.add("gradients" if stays else "unsharded", output)
        if self.stages:
            self.ledger.for_a_moment("unsharded", unit.reduced)
        if not stays:
            self.ledger.add("gradients", 0 if self.row.offloads else unit.gradient)
            self.ledger.add("unsharded", -output)

    def reshard(self, unit: _Unit) -> None:
        if unit.unsharded:
            self.ledger.add("unsharded", -unit.whole)
            unit.unsharded = False

    def end(self) -> None:
        for unit in (self.root, *self.units[:-1]):
            self.post_backward(unit)
        self.ledger.add("unsharded", -self.reducing)


def _sharded(row: Strategy, job: Job, events: Iterable[Event], step: Step) -> _Ledger:
    ledger = _Ledger(Counter())
    ledger.add("parameters", job.buffer_bytes)
    fsdp = _Fsdp(row, job, ledger)
    if job.device == "cpu":
        fsdp.wrap()
    elif not row.offloads:
        ledger.add("parameters", sum(unit.kept for unit in fsdp.units))
    if not row.offloads:
        ledger.add("optimizer", step.state)
    ledger.moment = "forward"
    for event in events:
        if event.kind == "backward":
            ledger.moment = "backward"
        elif event.kind == "bytes":
            ledger.play(event)
        elif event.kind == "gradient":
            fsdp.gradient(fsdp.units[event.unit], event.bytes)
        else:
            getattr(fsdp, event.kind)(fsdp.units[event.unit])
    fsdp.end()
    ledger.moment = "optimizer"
    if not row.offloads:
        ledger.for_a_moment("temporaries", step.temporaries)
    return ledger


def sent_bytes(row: Strategy, job: Job) -> int:
    """Return a rank's sent bytes per step, in rings: (n - 1) / n to gather or reduce-scatter, twice to all-reduce."""
    whole = sum(p.computed * p.elements() for p in job.parameters())
    gradients = sum(
        (p.computed if row.shards_parameters else p.bytes) * p.elements() for p in job.parameters() if p.trainable
    )
    shards = job.shards(row)
    if not row.shards_parameters:
        gathered = gradients if row.shards_state else 0  # ZeRO-1 broadcasts the parameters that its rank updated
        return int((2 * gradients + gathered) * (job.ranks - 1) / job.ranks)
    gathers = 2 if row.reshards else 1
    copies = job.ranks // shards
    return int((gathers * whole + gradients) * (shards - 1) / shards + 2 * gradients / shards * (copies - 1) / copies)


def zero1_shares(parameters: Sequence[Parameter], ranks: int) -> list[Parameter]:
    """Return the fullest rank's parameters: assigned largest first, each to the rank with the fewest (torch 2.13)."""
    taken: list[list[Parameter]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for parameter in sorted(parameters, key=lambda parameter: -parameter.elements()):
        rank = sizes.index(min(sizes))
        taken[rank].append(parameter)
        sizes[rank] += parameter.elements()
    return taken[sizes.index(max(sizes))]
