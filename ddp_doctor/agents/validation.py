"""Validation of what another agent handed in, before it is used.

It came through a store without authentication and, where the nodes' installations differ, from another
release. A value that does not fit is Unreadable. Where only one fact has another shape, only that fact is
dropped, and no rank is judged by it.
"""

from functools import cache
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from ddp_doctor.agents.framing import JUNK, Unreadable
from ddp_doctor.agents.messages import Begin, Name, NodeReport
from ddp_doctor.checks import CHECKS
from ddp_doctor.facts.cluster import SilenceFact
from ddp_doctor.model.base import Frozen, Json
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.recording import Recording, World
from ddp_doctor.model.report import Report
from ddp_doctor.model.trial import TrialRecord

M = TypeVar("M", bound=BaseModel)


class _BeginOrder(Frozen):
    do: Literal["begin"]
    begin: Begin


class _ProbeOrder(Frozen):
    do: Literal["probe"]
    when: Literal["between", "afterwards"]
    checks: tuple[str, ...]


class _TrialOrder(Frozen):
    do: Literal["trial", "torchrun"]
    record: TrialRecord
    checks: tuple[str, ...]
    skip_pairs: tuple[tuple[int, int], ...]


class _EndOrder(Frozen):
    do: Literal["end"]
    head: Name
    recording: Recording
    report: Report


_Order = Annotated[_BeginOrder | _ProbeOrder | _TrialOrder | _EndOrder, Field(discriminator="do")]
_ORDERS: TypeAdapter[_BeginOrder | _ProbeOrder | _TrialOrder | _EndOrder] = TypeAdapter(_Order)
_READINGS = TypeAdapter(tuple[Reading, ...])


def read(kind: type[M], value: Json) -> M:
    """A value of this kind. Raises Unreadable."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise Unreadable(f"no {kind.__name__}") from error


def order(value: Json) -> dict[str, Json]:
    """The fields of an order of the head. Raises Unreadable with a sentence."""
    try:
        return dict(_ORDERS.validate_python(value))
    except ValidationError as error:
        raise Unreadable(f"the head sent {JUNK}") from error


def node_report(value: Json) -> NodeReport:
    """The report of a node that joins. Raises Unreadable."""
    came = read(NodeReport, value)
    if any(reading.node or reading.rank is not None for reading in came.readings):
        raise Unreadable("readings of other nodes")
    return came.model_copy(update={"readings": tuple(map(_with_a_fact, came.readings))})


def sender(value: Json) -> str:
    """The name that stands in a node report that cannot be read; empty where none does."""
    found = value.get("hostname") if isinstance(value, dict) else None
    name = found if isinstance(found, str) else ""
    return name if name.isprintable() and len(name) <= 255 else ""


def readings(value: Json, node: int, world: World) -> tuple[Reading, ...]:
    """The readings of one node about itself and its ranks, and about no other. Raises Unreadable."""
    try:
        found = _READINGS.validate_python(value)
    except ValidationError as error:
        raise Unreadable("no readings") from error
    own = world.ranks_of(node)
    if not all(reading.node == node and (reading.rank is None or reading.rank in own) for reading in found):
        raise Unreadable("readings of other nodes")
    return tuple(_with_a_fact(reading, world) for reading in found)


def trial_part(value: Json, node: int, world: World, trial: str) -> tuple[TrialRecord, tuple[Reading, ...]]:
    """The record and the readings of one node's ranks in a trial. Raises Unreadable."""
    fields = value if isinstance(value, dict) else {}
    record = read(TrialRecord, fields.get("record"))
    own = world.ranks_of(node)
    of_its_own = all(rank.node == node and rank.rank in own for rank in record.evidence)
    if record.trial != trial or not of_its_own or not set(record.lost_nodes) <= set(range(world.nnodes)):
        raise Unreadable("the record of another trial, or of other ranks")
    return record, readings(fields.get("readings"), node, world)


def _with_a_fact(reading: Reading, world: World | None = None) -> Reading:
    """The reading; a failed one where its fact has a shape that the rules do not know."""
    if reading.fact is None or _is_readable(reading.fact, world):
        return reading
    return reading.model_copy(
        update={"fact": None, "status": Status.FAILED, "reason": f"the node sent {JUNK}", "raw": None}
    )


def _is_readable(recorded: dict[str, Json], world: World | None) -> bool:
    """Whether the rules can read a fact; a kind that they do not know does no harm."""
    kind = recorded.get("kind")
    if not isinstance(kind, str) or kind not in _kinds():
        return isinstance(kind, str)
    try:
        fact = _kinds()[kind].model_validate(recorded)
    except ValidationError:
        return False
    return not isinstance(fact, SilenceFact) or (world is not None and 0 <= fact.node < world.nnodes)


@cache
def _kinds() -> dict[str, type[Fact]]:
    return {kind.KIND: kind for check in CHECKS for kind in check.facts}
