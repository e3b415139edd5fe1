"""The highest moment of a step under each strategy: the strategy's own memory, played on the events of a trace.

What is alive when, of torch 2.13:

* DDP (torch/csrc/distributed/c10d/reducer.cpp): buckets from the start to the end, as large as all gradients; without
  gradient_as_bucket_view the gradients as well, each from when it is made until zero_grad. Before that its constructor
  broadcasts copies of parameters and buffers, up to two of 250 MiB at a time.
* FSDP2 (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py): a unit is gathered into one buffer and copied out.
  In the forward the buffer stays until the next unit is gathered, in the backward it is freed at once, and the unit
  before is gathered meanwhile. Whole gradients stay until the unit's backward ends, are copied to the input of the
  reduce-scatter, which stays until the next unit's is made, and its output holds the gradients that are kept.
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
    """What of a parameter counts; ``bytes`` of an element as the rank keeps it, ``computed`` as it computes with it."""

    shape: tuple[int, ...]
    bytes: int
    computed: int
    trainable: bool = True

    def elements(self, ranks: int = 1) -> int:
        """Of a rank's shard along the first dimension, with its padding: of ``ceil(rows / ranks)`` rows."""
        rows = -(-self.shape[0] // ranks) if self.shape else 1
        return rows * prod(self.shape[1:])


@dataclass(frozen=True)
class Job:
    """A model's parameters by units, the last of which is all that is in no other, and who computes with them."""

    units: Sequence[Sequence[Parameter]]
    buffer_bytes: int
    ranks: int
    ranks_per_node: int
    device: str  # on "cpu" gloo stages what it gathers and reduces

    def shards(self, row: Strategy) -> int:
        """Over how many ranks a parameter is spread."""
        if not row.shards_parameters:
            return 1
        return self.ranks_per_node if row.within_node else self.ranks

    def parameters(self) -> list[Parameter]:
        """All of them."""
        return [parameter for unit in self.units for parameter in unit]


@dataclass(frozen=True)
class Step:
    """What the optimizer keeps and needs for a moment, in bytes."""

    state: int = 0
    temporaries: int = 0


@dataclass
class _Ledger:
    """What is held now, and what was held when it was most."""

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
        """Bytes of the model's own."""
        self.add("activations" if event.saved else "temporaries", event.bytes)


def estimate(row: Strategy, checkpointing: bool, job: Job, events: Iterable[Event], step: Step) -> Estimate:
    """The peak of one strategy."""
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
    """A unit of FSDP2 and what it has in memory now."""

    def __init__(self, parameters: Sequence[Parameter], shards: int) -> None:
        self.kept = sum(p.bytes * p.elements(shards) for p in parameters)
        self.whole = sum(p.computed * p.elements(shards) * shards for p in parameters)
        # What is computed with in another type is copied to one buffer of that type first.
        self.cast = sum(p.computed * p.elements(shards) for p in parameters if p.computed != p.bytes)
        self.reduced = sum(p.computed * p.elements(shards) * shards for p in parameters if p.trainable)
        self.gradient = sum(p.bytes * p.elements(shards) for p in parameters if p.trainable)
        self.shards = shards
        self.unsharded = self.gathered = False
        self.gradients = 0  # whole ones, in bytes


class _Fsdp:
    """FSDP2's hooks, on a ledger."""

    def __init__(self, row: Strategy, job: Job, ledger: _Ledger) -> None:
        self.row, self.ledger = row, ledger
        self.units = [_Unit(parameters, job.shards(row)) for parameters in job.units]
        self.root = self.units[-1]
        self.stages = job.device == "cpu"
        self.order: list[_Unit] = []  # of the ends of forwards
        self.buffer = 0  # of the last gather of the forward
        self.reducing = 0  # the input of the last reduce-scatter

    def wrap(self) -> None:
        """On a CPU the model is whole before it is sharded; to a GPU each unit comes when it is."""
        for unit in self.units:
            self.ledger.add("parameters", unit.kept * unit.shards)
        for unit in self.units:
            self.ledger.add("parameters", unit.kept)
            self.ledger.add("parameters", -unit.kept * unit.shards)

    def gather(self, unit: _Unit) -> None:
        """The buffer of the gather, and what is there while it is filled."""
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
        # The output of the reduce-scatter is what is kept, unless it has another type or goes to the host.
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
    """What a rank sends in a step, in rings: (n - 1) / n of all to gather or to reduce-scatter, twice to all-reduce."""
    whole = sum(p.computed * p.elements() for p in job.parameters())
    gradients = sum(
        (p.computed if row.shards_parameters else p.bytes) * p.elements() for p in job.parameters() if p.trainable
    )
    shards = job.shards(row)
    if not row.shards_parameters:
        gathered = gradients if row.shards_state else 0  # ZeRO-1 broadcasts what its rank has stepped
        return int((2 * gradients + gathered) * (job.ranks - 1) / job.ranks)
    gathers = 2 if row.reshards else 1
    copies = job.ranks // shards
    return int((gathers * whole + gradients) * (shards - 1) / shards + 2 * gradients / shards * (copies - 1) / copies)


def zero1_shares(parameters: Sequence[Parameter], ranks: int) -> list[Parameter]:
    """The parameters that the fullest rank steps: the largest first, each to the rank that has least (torch 2.13)."""
    taken: list[list[Parameter]] = [[] for _ in range(ranks)]
    sizes = [0] * ranks
    for parameter in sorted(parameters, key=lambda parameter: -parameter.elements()):
        rank = sizes.index(min(sizes))
        taken[rank].append(parameter)
        sizes[rank] += parameter.elements()
    return taken[sizes.index(max(sizes))]
