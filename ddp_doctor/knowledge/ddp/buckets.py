"""What a bucket size of DistributedDataParallel does to a step, predicted.

DDP joins gradients to buckets in the order in which backward makes them, and averages a bucket as soon as it
is full, one after another, while backward goes on. Small buckets begin early and pay the latency often;
large ones begin late, and nothing hides what is left when backward ends::

    backward      |-----g4-----g3-----g2-----g1|
    two buckets                |==g4 g3==|     |==g2 g1==|      exposed: the second
    one bucket                                 |======g4 g3 g2 g1======|

Sources: the docstring of torch.nn.parallel.DistributedDataParallel (bucket_cap_mb, 25 MiB by default; 0.25 and
the like are taken, it is multiplied by 2**20); torch/csrc/distributed/c10d/reducer.cpp,
compute_bucket_assignment_by_size (a bucket is closed by the gradient that fills it) and
torch.distributed._DEFAULT_FIRST_BUCKET_BYTES (the first one is 1 MiB only with the default cap).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ddp_doctor.model.base import Frozen

MIB = 1 << 20
DEFAULT_CAP_MIB = 25.0
FIRST_BUCKET_BYTES = MIB
#: What is worth trying: halves and doubles of 1 MiB up to a size beyond which nothing is gained (judgment).
CANDIDATES_MIB = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, DEFAULT_CAP_MIB, 50.0, 100.0, 200.0)


class Curve(Frozen):
    """Measured times of an all-reduce over its size, smallest first."""

    points: tuple[tuple[int, float], ...]  # bytes, seconds

    def seconds(self, size_bytes: float) -> float:
        """The time for a size: between two points on their line, beyond the last by its bandwidth."""
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
        """What the smallest one took."""
        return self.points[0][1]

    @property
    def bytes_per_s(self) -> float:
        """How fast further bytes go, by the two largest; of noise that says they cost nothing, by the largest."""
        last, longest = self.points[-1]
        below, low = self.points[-2] if len(self.points) > 1 else (0, 0.0)
        return (last - below) / (longest - low) if longest > low else last / longest


@dataclass(frozen=True)
class Gradient:
    """One gradient as backward makes it."""

    size_bytes: int
    ready_s: float  # since backward began


@dataclass(frozen=True)
class Backward:
    """A forward and backward pass without synchronization; gradients in the order they were ready."""

    forward_s: float
    backward_s: float
    gradients: tuple[Gradient, ...]


def layout(sizes: Iterable[int], cap_mib: float) -> list[list[int]]:
    """The sizes of the gradients in each bucket, in the order in which the buckets fill."""
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
    """The predicted time of a step: buckets are averaged in turn, each when its last gradient is ready."""
    ends, done = 0.0, 0
    for bucket in layout((gradient.size_bytes for gradient in backward.gradients), cap_mib):
        done += len(bucket)
        ends = max(ends, backward.gradients[done - 1].ready_s) + curve.seconds(sum(bucket))
    return backward.forward_s + max(backward.backward_s, ends)


def predictions(backward: Backward, curve: Curve) -> dict[float, float]:
    """The predicted step for each bucket cap that makes buckets of its own; the default is always there."""
    sizes = [gradient.size_bytes for gradient in backward.gradients]
    caps = {bucket_bytes(sizes, DEFAULT_CAP_MIB): DEFAULT_CAP_MIB}
    for cap in CANDIDATES_MIB:
        buckets = bucket_bytes(sizes, cap)
        fills = cap * MIB <= max(buckets, default=0)  # of caps that do the same, the one that it determines
        if buckets not in caps or (fills and caps[buckets] != DEFAULT_CAP_MIB):
            caps[buckets] = cap
    return {cap: step_seconds(backward, curve, cap) for cap in caps.values()}


def best(predicted: dict[float, float]) -> float:
    """The cap with the shortest predicted step; of equals the larger, which makes fewer calls."""
    return min(predicted, key=lambda cap: (predicted[cap], -cap))


def bucket_bytes(sizes: Sequence[int], cap_mib: float) -> tuple[int, ...]:
    """The bytes of each bucket."""
    return tuple(map(sum, layout(sizes, cap_mib)))
