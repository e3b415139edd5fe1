"""Predicts the effect of DistributedDataParallel's bucket size on a step.

DDP joins gradients to buckets in backward order. It averages one bucket after another, each as soon as it is full,
while backward continues. Small buckets begin early and pay the latency often. Large buckets begin late, and the
communication after the end of backward is not hidden::

    backward      |-----g4-----g3-----g2-----g1|
    two buckets                |==g4 g3==|     |==g2 g1==|      exposed: the second
    one bucket                                 |======g4 g3 g2 g1======|

Sources: the docstring of torch.nn.parallel.DistributedDataParallel (bucket_cap_mb, 25 MiB by default; fractions such as
0.25 are accepted, because it is multiplied by 2**20); torch/csrc/distributed/c10d/reducer.cpp,
compute_bucket_assignment_by_size (a bucket is closed by the gradient that fills it) and
torch.distributed._DEFAULT_FIRST_BUCKET_BYTES (the first bucket is 1 MiB only with the default cap).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddp_doctor.model.base import Frozen

MIB = 1 << 20
DEFAULT_CAP_MIB = 25.0
FIRST_BUCKET_BYTES = MIB
#: The sizes to try: halves and doubles of 1 MiB; larger sizes gain nothing (judgment).
CANDIDATES_MIB = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, DEFAULT_CAP_MIB, 50.0, 100.0, 200.0)


class Curve(Frozen):
    """Measured times of an all-reduce by size, smallest first."""

    points: tuple[tuple[int, float], ...]  # bytes, seconds

    def seconds(self, size_bytes: float) -> float:
        """Return the time for a size, interpolated between two points or, beyond the last, from its bandwidth."""
        (least, quickest), *_ = self.points
        if size_bytes <= least:
            return quickest
        for (below, low), (above, high) in pairwise(self.points):
            if size_bytes <= above:
                return low + (high - low) * (size_bytes - below) / (above - below)
        last, longest = self.points[-1]
        return longest + (size_bytes - last) / self.bytes_per_s

    @property
    def latency_s(self) -> float:
        """The time of the smallest size."""
        return self.points[0][1]

    @property
    def bytes_per_s(self) -> float:
        """The rate of additional bytes, from the two largest sizes; from the largest if noise makes the bytes free."""
        last, longest = self.points[-1]
        below, low = self.points[-2] if len(self.points) > 1 else (0, 0.0)
        return (last - below) / (longest - low) if longest > low else last / longest


@dataclass(frozen=True)
class Gradient:
    """The size of a gradient, and when backward has computed it."""

    size_bytes: int
    ready_s: float  # since backward began


@dataclass(frozen=True)
class Backward:
    """A forward and backward pass without synchronization; gradients in the order they were ready."""

    forward_s: float
    backward_s: float
    gradients: tuple[Gradient, ...]


def layout(sizes: Iterable[int], cap_mib: float) -> list[list[int]]:
    """Return the sizes of the gradients in each bucket, in the order the buckets fill."""
    cap = int(cap_mib * MIB)
    limit = FIRST_BUCKET_BYTES if cap_mib == DEFAULT_CAP_MIB else cap
    buckets: list[list[int]] = [[]]
    for size in sizes:
        if sum(buckets[-1]) >= limit:
            buckets.append([])
            limit = cap
        buckets[-1].append(size)
    return [bucket for bucket in buckets if bucket]


def step_seconds(backward: Backward, curve: Curve, cap_mib: float) -> float:
    """Return the predicted time of a step: buckets are averaged in turn, each when its last gradient is ready."""
    ends, done = 0.0, 0
    for bucket in layout((gradient.size_bytes for gradient in backward.gradients), cap_mib):
        done += len(bucket)
        ends = max(ends, backward.gradients[done - 1].ready_s) + curve.seconds(sum(bucket))
    return backward.forward_s + max(backward.backward_s, ends)


def predictions(backward: Backward, curve: Curve) -> dict[float, float]:
    """Return the predicted step time by bucket cap, for caps with different buckets; the default is always included."""
    sizes = [gradient.size_bytes for gradient in backward.gradients]
    caps = {bucket_bytes(sizes, DEFAULT_CAP_MIB): DEFAULT_CAP_MIB}
    for cap in CANDIDATES_MIB:
        buckets = bucket_bytes(sizes, cap)
        fills = cap * MIB <= max(buckets, default=0)  # among caps with the same buckets, the cap that determines them
        if buckets not in caps or (fills and caps[buckets] != DEFAULT_CAP_MIB):
            caps[buckets] = cap
    return {cap: step_seconds(backward, curve, cap) for cap in caps.values()}


def best(predicted: dict[float, float]) -> float:
    """Return the cap with the shortest predicted step; of equal caps the larger, which makes fewer calls."""
    return min(predicted, key=lambda cap: (predicted[cap], -cap))


def bucket_bytes(sizes: Sequence[int], cap_mib: float) -> tuple[int, ...]:
    """Return the bytes of each bucket."""
    return tuple(map(sum, layout(sizes, cap_mib)))
