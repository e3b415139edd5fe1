"""The nodes that have too little of something, and the finding about them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ddp_doctor.facts.node.host import Host
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import FactAt, Recording, World
from ddp_doctor.wording.findings import likely
from ddp_doctor.wording.nodes import host, of_nodes


@dataclass(frozen=True)
class Shortage:
    """Nodes that have too little of the same thing; the figures of the worst of them are shown."""

    severity: Severity
    nodes: Sequence[FactAt[Host]]
    world: World
    worst: FactAt[Host]

    @property
    def ranks(self) -> int:
        """How many ranks the worst node has."""
        return len(self.world.ranks_of(self.worst.node))


def shortages(
    recording: Recording,
    judge: Callable[[Host, int, World], Severity | None],
    least: Callable[[Host], float | None],
    *,
    of_the_job: bool = True,
) -> Iterator[Shortage]:
    """The nodes that ``judge``, given each with its number of ranks, finds fault with, by severity.

    The worst has the ``least`` of something. Without a world nothing uses a limit. ``of_the_job``: about
    limits of the job's own process, which a prolog, being root's, does not have.
    """
    world = recording.world
    if world is None or (of_the_job and recording.options.command == "prolog"):
        return
    groups: dict[Severity, list[FactAt[Host]]] = {}
    for node in recording.facts(Host):
        severity = judge(node.fact, len(world.ranks_of(node.node)), world)
        if severity is not None:
            groups.setdefault(severity, []).append(node)
    for severity, nodes in groups.items():
        yield Shortage(severity, nodes, world, min(nodes, key=lambda node: least(node.fact) or 0))


def shortage_draft(
    recording: Recording, short: Shortage, title: str, saw: Evidence, remedy: Remedy, *, detail: str
) -> Draft:
    """A finding about all nodes of a shortage, which says whose figures it shows."""
    if len(short.nodes) > 1:
        saw = saw.model_copy(update={"text": f"worst on {host(recording, short.worst.node)}: {saw.text}"})
    return likely(
        of_nodes(recording, short.nodes), title, saw, remedy, detail=detail, severity=short.severity
    )
