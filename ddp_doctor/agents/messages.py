"""The messages of agents: the report of a node at the roll call, beats, and how the run begins.

They come through a store without authentication, so each field has a bound, and text that is shown holds no
control characters.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Node, NotRun, Options, World

_MOST_NODES = 65_536
_MOST_RANKS = 4_096  # of one node
_LONGEST_WORDS = 500


def _one_line(text: str) -> str:
    words = " ".join(text[: 2 * _LONGEST_WORDS].split())[:_LONGEST_WORDS]
    return "".join(sign if sign.isprintable() else "?" for sign in words)


#: Text of an agent, cut and on one line.
Words = Annotated[str, AfterValidator(_one_line)]
#: A host's name, a release, a job: as it is, or refused.
Name = Annotated[str, Field(max_length=255, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
#: A numeric address, with its scope; empty where there is none.
Address = Annotated[str, Field(max_length=64, pattern=r"^[0-9A-Fa-f.:]*(%[!-~]+)?$")]
NodeRank = Annotated[int, Field(ge=0, lt=_MOST_NODES)]
Port = Annotated[int, Field(ge=0, le=65535)]


class BeatMessage(Frozen):
    """A beat: what an agent sends several times a second."""

    n: int = Field(ge=0)
    at: float = Field(allow_inf_nan=False)  # seconds since the epoch, of its clock
    roll: Words = ""
    leaving: Words = ""  # why it leaves before the end
    done: Words = ""  # the trial that its ranks have finished
    events: int = Field(default=0, ge=0)
    activity: int = Field(default=0, ge=0)
    suspects: tuple[NodeRank, ...] = ()


class Opening(Frozen):
    """How the head introduces itself."""

    run_id: Name
    join_s: float = Field(default=0.0, allow_inf_nan=False)  # until it closes the roll call
    launch: Name = ""  # the launch that it belongs to, where that is known for sure


class NodeReport(Frozen):
    """One node, as it joins the roll call. ``world`` is its own, of one node."""

    hostname: Name
    nnodes: int = Field(ge=1, le=_MOST_NODES)
    claimed_rank: NodeRank | None = None
    order: int | None = None  # where the launcher gives no node rank, but an order
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
            raise ValueError("a node rank beyond the number of nodes")
        if not 0 < self.world.nproc_per_node <= _MOST_RANKS or len(self.world.nodes) > 1:
            raise ValueError("the world of no one node")
        return self


class OtherAddress(Frozen):
    """An address of a node in another network than the one its backend takes."""

    network: Annotated[str, Field(max_length=64, pattern=r"^[0-9A-Fa-f.:]+/[0-9]{1,3}$")]
    interface: Name
    address: Address


class Contact(Frozen):
    """Where the listener of a node can be dialled."""

    node: NodeRank
    hostname: Name
    port: Port
    advertised: Address
    met_at: Address
    other_addresses: Annotated[tuple[OtherAddress, ...], Field(max_length=16)] = ()


class Begin(Frozen):
    """The head's first order: the nodes, and what is tested. Its options count for all nodes."""

    run_id: Name
    started_at: Name
    secret: Name
    world: World
    ids: dict[int, int]  # node rank -> number at the roll call
    contacts: tuple[Contact, ...]
    options: Options
    checks: tuple[str, ...]
    not_run: tuple[NotRun, ...] = ()

    @model_validator(mode="after")
    def _knows_each_node(self) -> "Begin":
        everyone = list(range(self.world.nnodes))
        if sorted(self.ids) != everyone or sorted(contact.node for contact in self.contacts) != everyone:
            raise ValueError("not one entry for each node")
        return self


def ranked(node_reports: Mapping[int, NodeReport]) -> dict[int, int]:
    """Node rank -> id: the ranks that were claimed, the rest by the launcher's order, then by arrival."""
    ranks = {
        node_report.claimed_rank: agent
        for agent, node_report in node_reports.items()
        if node_report.claimed_rank is not None
    }
    late = len(node_reports) + 1
    unclaimed = [agent for agent, node_report in node_reports.items() if node_report.claimed_rank is None]
    unclaimed.sort(key=lambda agent: (_order(node_reports[agent], late), agent))
    free = (rank for rank in range(late) if rank not in ranks)
    ranks.update(zip(free, unclaimed, strict=False))
    return dict(sorted(ranks.items()))


def _order(node_report: NodeReport, otherwise: int) -> int:
    return otherwise if node_report.order is None else node_report.order


def world_of(
    node_reports: Mapping[int, NodeReport], nnodes: int, expected_hosts: tuple[str, ...], launcher: str
) -> World:
    """The world of these nodes, by node rank: NCCL only where every node would use it.

    Nodes that are not here count as ones like the first.
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
    """The readings of a node that has learned its rank."""
    return tuple(reading.model_copy(update={"node": node}) for reading in readings)
