"""Bus bandwidth: what nccl-tests makes of the measured ("algorithm") bandwidth of a collective.

``algbw`` is bytes / time, where bytes counts the whole array: for all_gather, reduce_scatter, alltoall,
gather and scatter the share of one rank times the number of ranks. A rank must move more or less than that
over its link, depending on the collective and the number of ranks; ``busbw`` corrects for it, so that one
number can be compared with the rate of the hardware whatever the world size.

Source: https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md ("Bus bandwidth", Summary);
gather, scatter and sendrecv from nccl-tests' src/gather.cu, scatter.cu and sendrecv.cu (GetBw).
With in-network reduction (NVLink SHARP) the switch adds, and the busbw of all_reduce may exceed the link.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType


def _twice_all_but_own(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _all_but_own(ranks: int) -> float:
    return (ranks - 1) / ranks


def _everything(_ranks: int) -> float:
    return 1.0


#: busbw / algbw as a function of the number of ranks.
FACTORS: Mapping[str, Callable[[int], float]] = MappingProxyType(
    {
        "all_reduce": _twice_all_but_own,  # each element is reduced, then handed back
        "all_gather": _all_but_own,  # a rank has its own share already
        "reduce_scatter": _all_but_own,
        "alltoall": _all_but_own,
        "gather": _all_but_own,
        "scatter": _all_but_own,
        "broadcast": _everything,  # all data must leave the root
        "reduce": _everything,
        "sendrecv": _everything,
    }
)


def busbw(op: str, algbw: float, ranks: int) -> float:
    """The bus bandwidth of collective ``op`` among ``ranks`` ranks, in the unit of ``algbw``.

    Raises ValueError for an unknown collective or fewer than one rank.
    """
    if op not in FACTORS:
        raise ValueError(f"no bus bandwidth is defined for {op!r}; known are {', '.join(FACTORS)}")
    if ranks < 1:
        raise ValueError(f"a collective needs at least one rank, not {ranks}")
    return algbw * FACTORS[op](ranks)
