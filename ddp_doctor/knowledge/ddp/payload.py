"""Payloads of the all-reduce check: rank-coded, exact in every type, and decodable if wrong.

Sum: rank r contributes 2**(r mod b), with b chosen to make the sum exact in the type even with one share doubled. In a
wrong sum, one missing or doubled power identifies the ranks with this power: one rank, or several in worlds larger than
b. As b differs between types, the types together narrow it down. A flipped bit looks the same, but not in every element
of a tensor. Product: every rank contributes 2, one bit of the exponent each. Integers that a type holds exactly: IEEE
754 fp16 11 bits, bf16 8, fp32 24, fp64 53.
"""

import math
from collections.abc import Iterable

from ddp_doctor.knowledge.collectives import measured_sizes

#: Bits of an integer that the type holds exactly, sign not counted.
EXACT_BITS = {"float64": 53, "float32": 24, "bfloat16": 8, "float16": 11, "int64": 62, "int32": 30, "uint8": 8}
#: Largest power of two that a product may reach.
_EXPONENT = {"float64": 1000, "float32": 120, "bfloat16": 120, "float16": 15, "int64": 62, "int32": 30, "uint8": 7}
_KIB, _MIB = 1 << 10, 1 << 20
#: With more CPU ranks on one node, a quick run tests only one case of each kind.
CROWD = 16


def exact_cases(ranks: int, *, few: bool = False) -> list[tuple[str, str]]:
    """Return (dtype, op) pairs with an exact result for this many ranks; gloo and NCCL reduce all of them.

    ``few`` keeps one case of each kind, for worlds with expensive collectives.
    """
    cases = [(dtype, "sum") for dtype in EXACT_BITS if _sum_bits(ranks, dtype) > 0]
    cases += [(dtype, op) for dtype in ("float32", "int64") for op in ("max", "min")]
    cases += [(dtype, "product") for dtype in ("float32", "int64") if ranks <= _EXPONENT[dtype]]
    if few:
        wanted = (("float32", "sum"), ("bfloat16", "sum"), ("int64", "sum"), ("float32", "max"))
        return [case for case in cases if case in wanted]
    return cases


def _sum_bits(ranks: int, dtype: str) -> int:
    """Return how many powers of two the ranks may use with every sum exact, even with a doubled share."""
    bits = EXACT_BITS[dtype]
    for used in range(min(ranks, bits), 0, -1):
        if sum(1 << (rank % used) for rank in range(ranks)) + (1 << (used - 1)) < 1 << bits:
            return used
    return 0


def share(op: str, rank: int, ranks: int, dtype: str) -> int:
    """Return the contribution of ``rank``."""
    if op == "sum":
        return int(1 << (rank % _sum_bits(ranks, dtype)))
    if op == "product":
        return 2
    return rank + 1


def expected(op: str, ranks: int, dtype: str) -> int:
    """Return the exact result over ranks 0 … ranks-1."""
    if op == "sum":
        return sum(share(op, rank, ranks, dtype) for rank in range(ranks))
    if op == "product":
        return int(2**ranks)
    return ranks if op == "max" else 1


def blame(op: str, got: float, ranks: int, dtype: str) -> tuple[int, ...]:
    """Return the ranks whose missing or doubled share explains a wrong sum, or () if no rank's does.

    ``got`` must be the value of every element: a single wrong element may be a flipped bit.
    """
    if op != "sum" or not math.isfinite(got):
        return ()
    difference = abs(got - expected(op, ranks, dtype))
    return tuple(rank for rank in range(ranks) if share(op, rank, ranks, dtype) == difference)


def agreed(blamed: Iterable[tuple[int, ...]]) -> int | None:
    """Return the only rank that all wrong sums allow, or None if they contradict each other or allow several."""
    sets = [set(ranks) for ranks in blamed]
    common = set.intersection(*sets) if sets else set()
    return common.pop() if len(common) == 1 else None


#: Up to this size, the time of an all-reduce hardly grows (docs/explanation/measurements.md).
LATENCY_BOUND_BYTES = 64 * _KIB


def sweep_sizes(quick: bool) -> list[int]:
    """Return message sizes in bytes: 4 B for latency, then 1 KiB to 256 MiB (1 MiB if quick) by a factor of 4."""
    return [4, *measured_sizes((_KIB, _MIB if quick else 256 * _MIB, 4))]


def iterations(size: int, *, quick: bool) -> int:
    """Return the timed repetitions of a size: many if noise is large and the time is short."""
    many = 5 if quick else 20
    return max(many if size <= _MIB else many * 4 * _MIB // size, 3)
