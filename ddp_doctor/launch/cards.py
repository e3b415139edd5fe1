"""What agents tell one another: the card of a node at the roll call, and how the run begins."""

from collections.abc import Mapping, Sequence

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Reading
from ddp_doctor.model.recording import Node, NotRun, Options, World


class Card(Frozen):
    """One node, as it reports in. ``world`` is its own, of one node."""

    hostname: str
    nnodes: int
    claimed_rank: int | None = Field(default=None, ge=0)
    order: int | None = None  # where the launcher gives no node rank, but an order
    version: str = ""
    world: World = World()
    readings: tuple[Reading, ...] = ()
    advertised: str = ""  # the address that the backend would give to the others
    met_at: str = ""  # its own end of the connection to the endpoint
    port: int = Field(default=0, ge=0, le=65535)  # of its listener


class Contact(Frozen):
    """Where the listener of a node can be dialled."""

    node: int
    hostname: str
    port: int
    advertised: str
    met_at: str


class Begin(Frozen):
    """The head's first order: who is who, and what is to be tested. Its options count for all nodes."""

    run_id: str
    started_at: str
    secret: str
    world: World
    ids: dict[int, int]  # node rank -> number at the roll call
    contacts: tuple[Contact, ...]
    options: Options
    checks: tuple[str, ...]
    not_run: tuple[NotRun, ...] = ()


def ranked(cards: Mapping[int, Card]) -> dict[int, int]:
    """Node rank -> id: the ranks that were claimed, the rest by the launcher's order, then by arrival."""
    ranks = {card.claimed_rank: one for one, card in cards.items() if card.claimed_rank is not None}
    late = len(cards) + 1
    unclaimed = [one for one, card in cards.items() if card.claimed_rank is None]
    unclaimed.sort(key=lambda one: (_order(cards[one], late), one))
    free = (rank for rank in range(late) if rank not in ranks)
    ranks.update(zip(free, unclaimed, strict=False))
    return dict(sorted(ranks.items()))


def _order(card: Card, otherwise: int) -> int:
    return otherwise if card.order is None else card.order


def world_of(cards: Mapping[int, Card], nnodes: int, expected_hosts: tuple[str, ...], launcher: str) -> World:
    """The world of these nodes, by node rank: NCCL only where every node would use it.

    Nodes that are not here count as ones like the first.
    """
    worlds = [card.world for card in cards.values()]
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
                hostname=card.hostname,
                addresses=card.world.nodes[0].addresses if card.world.nodes else {},
                nproc=card.world.nproc_per_node,
            )
            for rank, card in cards.items()
        ),
        expected_hosts=expected_hosts,
    )


def at_node(readings: Sequence[Reading], node: int) -> tuple[Reading, ...]:
    """The readings of a node that has learned its rank."""
    return tuple(reading.model_copy(update={"node": node}) for reading in readings)
