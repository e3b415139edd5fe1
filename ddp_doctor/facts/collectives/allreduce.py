"""What one rank's all-reduces gave, as the probe writes it and the rules read it."""

from typing import ClassVar

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact

#: Elements of a correctness payload: several gloo segments and NCCL slices, small enough for fp16.
ELEMENTS = 4096


class Wrong(Frozen):
    """A reduction whose result differs from the closed form."""

    dtype: str
    op: str
    elements: int  # how many are wrong
    expected: float
    got: float  # the first wrong element
    alike: bool = False  # every wrong element is ``got``
    blamed: tuple[int, ...] = ()  # original ranks of which one's share is missing or doubled, throughout


class SizeResult(Frozen):
    """One message size. Times are of this rank; ``wrong`` counts elements."""

    size_bytes: int
    time_us: float  # median
    min_us: float
    max_us: float
    iterations: int
    algbw_gb_per_s: float
    busbw_gb_per_s: float
    wrong: int


class AllReduceFact(Fact):
    """One rank's all-reduces."""

    KIND: ClassVar[str] = "allreduce/1"

    ranks: int
    tested: tuple[str, ...]  # "float32 sum", …
    wrong: tuple[Wrong, ...] = ()
    repeatable: bool
    sizes: tuple[SizeResult, ...] = ()
    stopped_at_bytes: int | None = None  # the first size that no longer fitted the time or memory
