"""Numbers outside of the range that a setting takes."""

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_doctor.knowledge.versions import Version
from ddp_doctor.settings.effects import number
from ddp_doctor.settings.table import Range, variables

#: NCCL's own choice.
_OWN_CHOICE = (-1, -2)


@dataclass(frozen=True)
class OutOfRange:
    """A number outside of a range: what a sentence says of it, and the range here."""

    says: str
    least: int
    most: int
    row: Range


def out_of_range(name: str, env: Mapping[str, str], nccl: Version) -> OutOfRange | None:
    """What is wrong with a variable's number; None where it is inside of all ranges, or none is known."""
    value, variable = number(env, name), variables().get(name)
    if value is None or value in _OWN_CHOICE or variable is None:
        return None
    for row in variable.ranges:
        least, most = _at(row, nccl)
        if not least <= value <= most:
            says = row.says or f"is out of range: it takes {least} to {most}"
            return OutOfRange(says.format(wait=_ib_wait(value)), least, most, row)
    return None


def _at(row: Range, nccl: Version) -> tuple[int, int]:
    """The range in a release of NCCL, of the newest where it is not known."""
    known = [(least, most) for since, least, most in row.takes if not nccl or since <= nccl]
    return known[-1] if known else row.takes[0][1:]


def _ib_wait(exponent: int) -> str:
    """How long an RDMA connection waits: 4.096 microseconds times a power of two (InfiniBand specification)."""
    return f"{4.096e-3 * 2 ** min(exponent, 63):.2g} ms" if exponent >= 0 else ""
