"""The modes: how DDP is told to work, and what the ranks do in each step.

A step is one or more micro-steps, all but the last inside ``no_sync()``. A micro-step says, for a group
rank, how often and with which multiples it uses each parameter; so what DDP owes follows from the table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp_doctor.checks.ddp.gradient_modes import hooks, models
from ddp_doctor.model.choices import Level

MicroStep = Callable[[int], models.Uses]
_ALL = range(7)


@dataclass(frozen=True)
class Way:
    """One mode: options of DDP, a communication hook, how a parameter is used, and the steps."""

    name: str
    steps: tuple[tuple[MicroStep, ...], ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    segment: Callable[[Any, Any], Any] = models.plain
    hook: hooks.Hook | None = None
    level: Level = Level.THOROUGH
    branches: bool = False  # ranks use different parameters
    one_dtype: bool = False  # the float64 parameter is frozen, and with it goes its bucket
    many_buckets: bool = False  # else one of each dtype, which is cheaper


def times(*multiples: int) -> MicroStep:
    """Every rank uses every parameter with these multiples, once for each."""
    return lambda _rank: dict.fromkeys(_ALL, multiples)


def branch(odd: int) -> MicroStep:
    """Parameter 1 is used by even ranks (or odd ones), 3 by rank 0 (or 1) alone, 6 by nobody."""

    def uses(rank: int) -> models.Uses:
        left_out = {6} | ({1} if rank % 2 != odd else set()) | ({3} if rank != odd else set())
        return {number: (1,) for number in _ALL if number not in left_out}

    return uses


def _float32(_rank: int) -> models.Uses:
    return {number: (1,) for number in _ALL if number != models.FLOAT64}


_TWO_STEPS = ((times(1),), (times(2),))
_VIEW = {"gradient_as_bucket_view": True}
_STATIC = {"static_graph": True}
_UNUSED = {"find_unused_parameters": True}
#: Multiples of micro-steps and of uses of one parameter: from what is missing it follows which was lost.
ACCUMULATED = (1, 2, 4)
USED = (1, 2)

WAYS = (
    Way("buckets", _TWO_STEPS, many_buckets=True),
    Way("bucket-view", _TWO_STEPS, _VIEW, level=Level.STANDARD),
    Way("accumulation", (tuple(times(one) for one in ACCUMULATED),), level=Level.STANDARD),
    Way("unused", ((branch(0),), (branch(1),)), _UNUSED, level=Level.STANDARD, branches=True),
    Way("twice", ((times(*USED),), (times(*USED),))),
    Way("static-graph", ((times(*USED),),) * 3, _STATIC),
    Way("checkpoint", _TWO_STEPS, segment=models.checkpointed),
    Way("checkpoint-static", ((times(*USED),),) * 2, _STATIC, segment=models.reentrant),
    Way("fp16-compress", _TWO_STEPS, hook=hooks.FP16, many_buckets=True),
    Way("bf16-compress", _TWO_STEPS, hook=hooks.BF16, many_buckets=True),
    # With gloo the callbacks of several buckets reduce in no fixed order, and ranks may cross (torch 2.13).
    Way("powersgd", ((_float32,),) * 4, hook=hooks.POWER_SGD, one_dtype=True),
)


def shares(step: tuple[MicroStep, ...], number: int, ranks: int) -> tuple[float, ...]:
    """How many times each group rank's code enters the gradient of a parameter in a step."""
    return tuple(float(sum(sum(micro(rank).get(number, ())) for micro in step)) for rank in range(ranks))
