"""The messages of agents: the report of a node at the check-in, beats, and the start of the run.

They come through a store without authentication and, if the nodes' installations differ, from another release. So each
field has a bound, and displayed text must not contain control characters. A value that does not fit is Unreadable. If
only one fact has another shape, only that fact is dropped, and no rank is judged by it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, model_validator

from ddp_doctor.agents.framing import JUNK, Unreadable
from ddp_doctor.checks import CHECKS
from ddp_doctor.facts.cluster import SilenceFact
from ddp_doctor.model.base import Frozen, Json
from ddp_doctor.model.choices import Status
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.recording import Node, NotRun, Options, Recording, World
from ddp_doctor.model.report import Report
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.ranks.trial import TrialResult

_MOST_NODES = 65_536
_MOST_RANKS = 4_096  # of one node
_LONGEST_WORDS = 500


def _one_line(text: str) -> str:
    words = " ".join(text[: 2 * _LONGEST_WORDS].split())[:_LONGEST_WORDS]
    return "".join(sign if sign.isprintable() else "?" for sign in words)


#: Text of an agent, cut and on one line.
Words = Annotated[str, AfterValidator(_one_line)]
#: The name of a host, release or job: unchanged, or refused.
Name = Annotated[str, Field(max_length=255, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
#: A numeric address, with its scope; empty without one.
Address = Annotated[str, Field(max_length=64, pattern=r"^[0-9A-Fa-f.:]*(%[!-~]+)?$")]
NodeRank = Annotated[int, Field(ge=0, lt=_MOST_NODES)]
Port = Annotated[int, Field(ge=0, le=65535)]


class BeatMessage(Frozen):
    """A beat, which an agent sends several times per second."""

    n: int = Field(ge=0)
    at: float = Field(allow_inf_nan=False)  # seconds since the epoch, by the agent's clock
    roll: Words = ""
    leaving: Words = ""  # why it leaves before the end
    done: Words = ""  # the trial that its ranks have finished
    events: int = Field(default=0, ge=0)
    activity: int = Field(default=0, ge=0)
    suspects: tuple[NodeRank, ...] = ()


class Opening(Frozen):
    """The first message of the head."""

    run_id: Name
    join_s: float = Field(default=0.0, allow_inf_nan=False)  # until it closes the check-in
    launch: Name = ""  # the launch that it belongs to, if that is certain


class NodeReport(Frozen):
    """The report of a node that joins the check-in. ``world`` is its own world of one node."""

    hostname: Name
    nnodes: int = Field(ge=1, le=_MOST_NODES)
    claimed_rank: NodeRank | None = None
    order: int | None = None  # if the launcher gives an order but no node rank
    version: Name = ""
    job: Name = ""
    world: World = World()
    readings: tuple[Reading, ...] = ()
    advertised: Address = ""  # the address that the backend would give to the others
    met_at: Address = ""  # its own end of the connection to the endpoint
    port: Port = 0  # of its listener

    @model_validator(mode="after")
    def _is_of_one_node(self) -> "NodeReport":
        if self.claimed_rank is not None and self.claimed_rank >= self.nnodes:
            raise ValueError("the node rank is out of range")
        if not 0 < self.world.nproc_per_node <= _MOST_RANKS or len(self.world.nodes) > 1:
            raise ValueError("the report is not of one node, or its number of ranks is out of range")
        return self


class OtherAddress(Frozen):
    """An address of a node in another network than the one its backend uses."""

    network: Annotated[str, Field(max_length=64, pattern=r"^[0-9A-Fa-f.:]+/[0-9]{1,3}$")]
    interface: Name
    address: Address


class Contact(Frozen):
    """The addresses for dialing the listener of a node."""

    node: NodeRank
    hostname: Name
    port: Port
    advertised: Address
    met_at: Address
    other_addresses: Annotated[tuple[OtherAddress, ...], Field(max_length=16)] = ()


class Begin(Frozen):
    """The head's first order: the nodes and the tests. Its options count for all nodes."""

    run_id: Name
    started_at: Name
    secret: Name
    world: World
    ids: dict[int, int]  # node rank -> number at the check-in
    contacts: tuple[Contact, ...]
    options: Options
    checks: tuple[str, ...]
    not_run: tuple[NotRun, ...] = ()

    @model_validator(mode="after")
    def _knows_each_node(self) -> "Begin":
        everyone = list(range(self.world.nnodes))
        if sorted(self.ids) != everyone or sorted(contact.node for contact in self.contacts) != everyone:
            raise ValueError("expected one entry per node")
        return self


def ranked(node_reports: Mapping[int, NodeReport]) -> dict[int, int]:
    """Map node ranks to ids: claimed ranks first, the rest by the launcher's order, then by arrival."""
    of_agent = node_reports.items()
    ranks = {report.claimed_rank: agent for agent, report in of_agent if report.claimed_rank is not None}
    others = ((report.order is None, report.order, agent) for agent, report in of_agent if report.claimed_rank is None)
    free = (rank for rank in range(len(node_reports) + 1) if rank not in ranks)
    ranks.update((rank, agent) for rank, (_, _, agent) in zip(free, sorted(others), strict=False))
    return dict(sorted(ranks.items()))


def world_of(
    node_reports: Mapping[int, NodeReport], nnodes: int, expected_hosts: tuple[str, ...], launcher: str
) -> World:
    """Return the world of these nodes, by node rank: NCCL only if every node would use it.

    Missing nodes count as if equal to the first one.
    """
    worlds = [node_report.world for node_report in node_reports.values()]
    backends = {world.backend for world in worlds}
    absent = (nnodes - len(worlds)) * worlds[0].nproc_per_node
    return World(
        nnodes=nnodes,
        nproc_per_node=worlds[0].nproc_per_node,
        world_size=sum(world.nproc_per_node for world in worlds) + absent,
        backend="nccl" if backends == {"nccl"} else "gloo",
        launcher=launcher,
        nodes=tuple(
            Node(
                node_rank=rank,
                hostname=node_report.hostname,
                addresses=node_report.world.nodes[0].addresses if node_report.world.nodes else {},
                nproc=node_report.world.nproc_per_node,
            )
            for rank, node_report in node_reports.items()
        ),
        expected_hosts=expected_hosts,
    )


def at_node(readings: Sequence[Reading], node: int) -> tuple[Reading, ...]:
    """Return the readings of a node that has learned its rank."""
    return tuple(reading.model_copy(update={"node": node}) for reading in readings)


# --- validation of what another agent handed in, before it is used ----------------------------------

T = TypeVar("T")


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


class _GroupsOrder(Frozen):
    do: Literal["groups"]
    record: TrialRecord  # of the first group; other groups' records differ in name and ranks
    groups: tuple[tuple[NodeRank, ...], ...]
    checks: tuple[()] = ()


class _EndOrder(Frozen):
    do: Literal["end"]
    head: Name
    recording: Recording
    report: Report


_AnyOrder = _BeginOrder | _ProbeOrder | _TrialOrder | _GroupsOrder | _EndOrder
_ORDERS: TypeAdapter[_AnyOrder] = TypeAdapter(Annotated[_AnyOrder, Field(discriminator="do")])
_READINGS = TypeAdapter(tuple[Reading, ...])


def read(validate: Callable[[Json], T], value: Json, otherwise: str) -> T:
    """Return a validated value. Raises Unreadable."""
    try:
        return validate(value)
    except ValidationError as error:
        raise Unreadable(otherwise) from error


def order(value: Json) -> dict[str, Json]:
    """Return the fields of an order of the head. Raises Unreadable with a sentence."""
    return dict(read(_ORDERS.validate_python, value, f"the head node sent {JUNK}"))


def node_report(value: Json) -> NodeReport:
    """Return the report of a node that joins. Raises Unreadable."""
    came = read(NodeReport.model_validate, value, f"a node checked in with {JUNK}")
    if any(reading.node or reading.rank is not None for reading in came.readings):
        raise Unreadable("a node sent results of other nodes")
    return came.model_copy(update={"readings": tuple(map(_with_a_fact, came.readings))})


def sender(value: Json) -> str:
    """Return the host name in an unreadable node report; empty if it has none."""
    found = value.get("hostname") if isinstance(value, dict) else None
    name = found if isinstance(found, str) else ""
    return name if name.isprintable() and len(name) <= 255 else ""


def readings(value: Json, node: int, world: World) -> tuple[Reading, ...]:
    """Return the readings of one node about itself and its ranks, and about no other. Raises Unreadable."""
    found = read(_READINGS.validate_python, value, f"a node sent {JUNK}")
    own = world.ranks_of(node)
    if not all(reading.node == node and (reading.rank is None or reading.rank in own) for reading in found):
        raise Unreadable("a node sent results of other nodes")
    return tuple(_with_a_fact(reading, world) for reading in found)


def trial_part(value: Json, node: int, world: World, trial: str) -> TrialResult:
    """Return the part of one node's ranks in a trial. Raises Unreadable."""
    part = read(TrialResult.model_validate, value, f"a node sent {JUNK}")
    record, own = part.record, world.ranks_of(node)
    of_its_own = all(rank.node == node and rank.rank in own for rank in record.evidence)
    if record.trial != trial or not of_its_own or not set(record.lost_nodes) <= set(range(world.nnodes)):
        raise Unreadable("a node sent results of another rank test or of other ranks")
    return part.model_copy(update={"readings": readings(part.readings, node, world)})


def _with_a_fact(reading: Reading, world: World | None = None) -> Reading:
    """Return the reading, or a failed reading if its fact has a shape that the rules do not know."""
    kind = reading.fact.get("kind") if reading.fact is not None else ""
    is_readable = isinstance(kind, str)  # a kind that the rules do not know does no harm
    if is_readable and kind in _kinds():
        try:
            fact = _kinds()[kind].model_validate(reading.fact)
            is_readable = not isinstance(fact, SilenceFact) or (world is not None and 0 <= fact.node < world.nnodes)
        except ValidationError:
            is_readable = False
    junk = {"fact": None, "status": Status.FAILED, "reason": f"the node sent {JUNK}", "raw": None}
    return reading if is_readable else reading.model_copy(update=junk)


@cache
def _kinds() -> dict[str, type[Fact]]:
    return {kind.KIND: kind for check in CHECKS for kind in check.facts}
