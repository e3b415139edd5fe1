"""Closed forms of gradients to which ranks contribute differently often, in any floating-point format.

The code is that of knowledge/ddp/gradient_code.py. Where rank ``r`` contributes its code ``s_r`` times (0: its
branch does not use the parameter; 2: it uses it twice; 7: micro-steps of 1 + 2 + 4 times), DDP gives
every rank the sum of all contributions over ``n``, whichever ranks contributed ::

    factor(p, j) * (s_(j mod n) + sum(s) / n)
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from ddp_doctor.knowledge.ddp import gradient_code

#: Half the distance from 1 to the next number of a format: the relative error of one rounding.
ROUNDING = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: A mean that may be off by more than this through rounding alone shows nothing about a missing rank, whose
#: own elements lose a half.
MOST_TOLERANCE = 0.25


@dataclass(frozen=True)
class Expectation:
    """What DDP should give for a parameter on this rank: ``shares`` by group rank, and the relative tolerance."""

    place: gradient_code.Place
    shares: tuple[float, ...]
    relative: float


def tolerance(ranks: int, kind: str) -> float:
    """The greatest relative error of a correct mean of positive numbers of ``ranks`` in this format.

    One rounding into the format, one of the division, one for each addition (Higham, Accuracy and
    Stability of Numerical Algorithms, 3.1), with 1/n and the way back in float32.
    """
    return (ranks + 2) * ROUNDING[kind] + (ranks + 2) * gradient_code.FLOAT32_ROUNDING


def expected(expectation: Expectation) -> Any:
    """The closed form as a flat float64 tensor."""
    import torch

    ranks, index = len(expectation.shares), torch.arange(expectation.place.elements)
    own = torch.tensor(expectation.shares, dtype=torch.float64)[index % ranks]
    return gradient_code.factor(expectation.place.number, index, ranks) * (own + sum(expectation.shares) / ranks)


def compare(expectation: Expectation, grad: Any, identical: bool | None) -> gradient_code.OffGradient:
    """A flat gradient (or None) against its closed form, in float64 on the CPU."""
    place, mean = expectation.place, gradient_code.Reading(holds="mean")
    wanted, held = expected(expectation), partial(_held, expectation)
    gradient = gradient_code.against(place, grad, wanted, expectation.relative, mean, held)
    return gradient.model_copy(update={"identical": identical})


def _held(expectation: Expectation, values: Any) -> gradient_code.Reading:
    import torch

    ranks = len(expectation.shares)
    if ranks > expectation.place.elements:
        return gradient_code.Reading(holds="other")
    factors = gradient_code.factor(expectation.place.number, torch.arange(ranks), ranks)
    entered = gradient_code.weights((values[:ranks] / factors).tolist())
    close = 4 * expectation.relative * (1 + values.abs())
    explained = expected(Expectation(expectation.place, tuple(entered), expectation.relative))
    if bool(((values - explained).abs() > close).any()):
        return gradient_code.Reading(holds="other")
    pairs = zip(entered, expectation.shares, strict=True)
    # From a rank that contributes nothing, nothing is right: it is read as if it had contributed once.
    ratios = [measured / share if share else 1 + measured for measured, share in pairs]
    reading = gradient_code.read(ratios, expectation.place.group_rank, expectation.relative)
    shares = {expectation.place.ranks[member]: share for member, share in reading.shares.items()}
    return reading.model_copy(update={"shares": shares})
