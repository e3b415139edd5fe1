"""The gradients that the ranks contribute in the check gradient_sync, and the decoding of their sum.

With ``n`` ranks, element ``j`` of parameter ``p`` has on rank ``r`` the local gradient ::

    factor(p, j) * (1 + n * [j mod n == r])          factor(p, j) = 1 + p + (j // n) mod 8

Every rank contributes everywhere, and ``n`` times more to its own elements. All values are small integers, exact in
float32 up to 400 000 ranks, whatever unit computes them (including TF32, for a product with 1). The mean over the ranks
is ``2 * factor(p, j)``. The factor differs between parameters and between neighboring stretches, so a gradient in the
wrong place differs from the mean.

If rank ``r`` entered the sum ``w_r`` times (1 is right, 0 is missing, 2 is doubled), an element divided by its factor
is ``w_(j mod n) + sum(w) / n``. Therefore the first ``n`` elements determine every ``w_r``. The same holds for ranks
that contribute ``times`` as much in a step.

Element indices may be ints or integer tensors of torch; the results are then of the same kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.finding import Evidence

#: The source of an expected gradient.
KNOWN = "closed form of the ranks' known gradients, in float64"

#: Half the distance from 1 to the next float32: the relative error of one rounding (IEEE 754).
_ROUNDING = 2.0**-24
#: Maximum number of ranks to list; with more, the reading is "other".
MAX_OFF_RANKS = 8

#: mean: right. own: only the rank's own gradient. one_rank: only another rank's gradient. scaled: the mean times
#: ``scale``. shares: the mean, except for the shares of some ranks. other: none of these. absent: no gradient.
#: not_finite: NaN or infinity.
Holds = Literal["mean", "own", "one_rank", "scaled", "shares", "other", "absent", "not_finite"]


class Reading(Frozen):
    """The content of a gradient. ``shares``: rank -> how many times it entered, for the ranks that are off."""

    holds: Holds
    scale: float = 1.0
    shares: Mapping[int, float] = Field(default_factory=dict)


class OffGradient(Frozen):
    """A parameter whose gradient on this rank is wrong or differs from its peers'.

    ``expected`` and ``got`` belong to the worst element; ``got`` is None without a finite gradient. ``equal`` is
    equality within float32 rounding, ``identical`` is equality with all ranks bit for bit (None if ranks must differ).
    Keys of ``held.shares`` are original ranks.
    """

    parameter: str
    elements: int
    expected: float
    got: float | None
    max_abs_error: float | None
    equal: bool
    identical: bool | None
    held: Reading

    def evidence(self, of: str) -> Evidence:
        """Return the worst element of a gradient as evidence. ``of`` names the gradient."""
        return Evidence(text=f"worst element of the {of}", value=self.got, expected=self.expected, expected_from=KNOWN)


@dataclass(frozen=True)
class Place:
    """A parameter on a rank: its name, number and size; ``ranks`` gives each group rank's original rank."""

    name: str
    number: int
    elements: int
    group_rank: int
    ranks: tuple[int, ...]


def factor(parameter: int, element: Any, ranks: int) -> Any:
    """Return the multiple of the code at this place."""
    return 1 + parameter + element // ranks % 8


def local(parameter: int, element: Any, rank: int, ranks: int) -> Any:
    """Return the gradient that group rank ``rank`` of ``ranks`` contributes to this element."""
    return factor(parameter, element, ranks) * (1 + ranks * (element % ranks == rank))


def tolerance(ranks: int) -> float:
    """Return the largest relative error of a correct float32 mean of ``ranks`` positive numbers.

    DDP rounds 1/n, rounds its product with each local gradient, and adds n of them in some order: to first order at
    most (n + 1) roundings (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
    """
    return (ranks + 2) * _ROUNDING


def checksum(grad: Any) -> Any:
    """Return 64 bits of a flat tensor (an int64 scalar tensor on its device): equal for equal bits."""
    import torch

    bits = grad.contiguous().view(torch.int32).to(torch.int64)
    return ((bits + 1) * torch.arange(1, bits.numel() + 1, device=bits.device)).sum()


def expected(place: Place, entered: Sequence[float]) -> Any:
    """Return the mean as a flat float64 tensor if group rank ``r`` entered it ``entered[r]`` times."""
    import torch

    ranks, index = len(entered), torch.arange(place.elements)
    own = torch.tensor(entered, dtype=torch.float64)[index % ranks]
    return factor(place.number, index, ranks) * (own + sum(entered) / ranks)


def compare(place: Place, times: float, grad: Any, identical: bool | None, *, own: bool = False) -> OffGradient:
    """Compare a flat gradient with its closed form, if every rank contributed ``times`` its local gradient.

    Rounding is allowed, except with ``own``, which compares with the rank's own contribution: nothing was computed with
    it. All values are in float64 on the CPU.
    """
    import torch

    ranks = len(place.ranks)
    wanted, relative = expected(place, (times,) * ranks), tolerance(ranks)
    if own:
        wanted = times * local(place.number, torch.arange(place.elements), place.group_rank, ranks).double()
        relative = 0.0
    finite = grad is not None and bool(grad.isfinite().all())
    values = grad.detach().double().cpu() if finite else torch.zeros_like(wanted)
    error = (values - wanted).abs()
    worst = int(error.argmax())
    equal = finite and bool((error <= relative * wanted.abs()).all())
    if equal:
        reading = Reading(holds="own" if own else "mean")
    elif finite:
        reading = _held(place, times, values)
    else:
        reading = Reading(holds="absent" if grad is None else "not_finite")
    return OffGradient(
        parameter=place.name,
        elements=place.elements,
        expected=float(wanted[worst]),
        got=float(values[worst]) if finite else None,
        max_abs_error=float(error[worst]) if finite else None,
        equal=equal,
        identical=identical,
        held=reading,
    )


def _held(place: Place, times: float, values: Any) -> Reading:
    """Decode a flat float64 gradient. The reading is "other" if no weights of the ranks explain all elements."""
    import torch

    ranks = len(place.ranks)
    if ranks > place.elements:
        return Reading(holds="other")
    entered = weights((values[:ranks] / factor(place.number, torch.arange(ranks), ranks)).tolist())
    if bool(((values - expected(place, entered)).abs() > 4 * tolerance(ranks) * (1 + values.abs())).any()):
        return Reading(holds="other")
    reading = read([weight / times for weight in entered], place.group_rank)
    shares = {place.ranks[member]: share for member, share in reading.shares.items()}
    return reading.model_copy(update={"shares": shares})


def weights(values: Sequence[float]) -> list[float]:
    """Return how often each of ``len(values)`` ranks entered, from the first elements divided by their factor."""
    each = sum(values) / 2 / len(values)
    return [value - each for value in values]


def read(entered: Sequence[float], rank: int) -> Reading:
    """Interpret the weights of all ranks for group rank ``rank``, which received the gradient."""
    ranks = len(entered)
    close = 4 * tolerance(ranks) * max(1.0, *(abs(weight) for weight in entered))
    present = [rank for rank, weight in enumerate(entered) if abs(weight) > close]
    off = {
        rank: _rounded(weight) if rank in present else 0.0
        for rank, weight in enumerate(entered)
        if abs(weight - 1) > close
    }
    if not off:
        return Reading(holds="mean")
    if len(present) == 1 and abs(entered[present[0]] - ranks) <= ranks * close:
        return Reading(holds="own") if present == [rank] else Reading(holds="one_rank", shares={present[0]: ranks})
    if max(entered) - min(entered) <= 2 * close:
        return Reading(holds="scaled", scale=_rounded(fmean(entered)))
    if len(off) <= min(MAX_OFF_RANKS, ranks - 1):
        return Reading(holds="shares", shares=off)
    return Reading(holds="other")


def _rounded(weight: float) -> float:
    return round(weight, 4) + 0.0  # no -0.0: equal causes must print the same


def words(reading: Reading, ranks: int) -> str:
    """Return the reading in words, to follow "... gradient: "."""
    if reading.holds == "shares":
        return ", ".join(
            f"rank {rank}'s share {'is missing' if share == 0 else f'counts {share:g} times'}"
            for rank, share in reading.shares.items()
        )
    if reading.holds == "one_rank":
        return f"it is the gradient of rank {min(reading.shares)} alone"
    if reading.holds == "scaled" and reading.scale == 0:
        return "it is zero"
    if reading.holds == "scaled" and round(reading.scale, 3) == ranks:
        return "it is the sum of the ranks' gradients, not their mean"
    return {
        "mean": "it is the mean of all ranks",
        "own": "it is the local gradient, not the mean of all ranks",
        "scaled": f"it is {reading.scale:g} times the mean",
        "other": "it matches no combination of the ranks' gradients",
        "absent": "it is missing",
        "not_finite": "it is not a finite number",
    }[reading.holds]
