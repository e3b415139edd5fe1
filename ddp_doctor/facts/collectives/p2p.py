"""What one rank saw of its peers."""

from typing import ClassVar

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class PairResult(Frozen):
    """What one rank saw of one peer (original rank). ``wrong_bytes`` counts bytes received wrong."""

    peer: int
    wrong_bytes: int
    latency_us: float  # median of exchanges of 4 bytes, both ways at once
    bandwidth_gb_per_s: float  # best of the exchanges, one way
    size_bytes: int


class P2pFact(Fact):
    """One rank's exchanges with all its peers."""

    KIND: ClassVar[str] = "p2p/1"

    pairs: tuple[PairResult, ...]
    skipped: tuple[int, ...] = ()  # peers of pairs that hung in an earlier trial
