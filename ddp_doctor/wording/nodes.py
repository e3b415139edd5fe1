"""Names for the nodes of a finding: one cause on many nodes stays one finding."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from ddp_doctor.model.base import grouped
from ddp_doctor.model.fact import Fact
from ddp_doctor.model.finding import Culprit, CulpritKind
from ddp_doctor.model.recording import FactAt, Recording
from ddp_doctor.wording.findings import Who

F = TypeVar("F", bound=Fact)
K = TypeVar("K", bound=Hashable)

#: Maximum number of host names in a sentence; the culprits list all of them.
NAMES_IN_A_SENTENCE = 4


def by_cause(facts: Iterable[FactAt[F]], cause: Callable[[F], K | None]) -> dict[K, list[FactAt[F]]]:
    """Return the facts that share a cause, in the order they were read, without those whose cause is None."""
    return grouped((key, fact) for fact in facts if (key := cause(fact.fact)) is not None)


def node_culprits(recording: Recording, facts: Sequence[FactAt[F]]) -> tuple[Culprit, ...]:
    """Return one culprit per node."""
    return tuple(node_culprit(recording, rank) for rank in dict.fromkeys(fact.node for fact in facts))


def node_culprit(
    recording: Recording, node_rank: int, *, kind: CulpritKind = "node", name: str | None = None
) -> Culprit:
    """Return a culprit for a node, or for a thing on it."""
    return Culprit(kind=kind, node=host(recording, node_rank), node_rank=node_rank, name=name)


def node_pair(recording: Recording, node_rank: int, peer: int) -> Culprit:
    """Return the path between two nodes as a culprit."""
    return Culprit(kind="pair", node=host(recording, node_rank), node_rank=node_rank, peer_node=host(recording, peer))


def node_names(recording: Recording, facts: Sequence[FactAt[F]]) -> str:
    """Return the nodes' names for a sentence: "node0", "node0 and node1", "node0, node1 and 12 more"."""
    return hosts(recording, (fact.node for fact in facts))


def of_nodes(recording: Recording, facts: Sequence[FactAt[F]]) -> Who:
    """Return the nodes of these facts, for a finding."""
    return Who(node_culprits(recording, facts), node_names(recording, facts))


def name_list(names: Sequence[str]) -> str:
    """Return names for a sentence: "node0", "node0 and node1", "node0, node1, node2, node3 and 12 more"."""
    if len(names) > NAMES_IN_A_SENTENCE:
        names = [*names[:NAMES_IN_A_SENTENCE], f"{len(names) - NAMES_IN_A_SENTENCE} more"]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def first_names(names: Sequence[str], most: int) -> str:
    """Return the first of many names for a sentence: "mlx5_0, mlx5_1 and 12 more"."""
    return ", ".join(names[:most]) + and_more(len(names) - most)


def and_more(left: int) -> str:
    """Return " and 12 more", or ""."""
    return f" and {left} more" if left > 0 else ""


def shortened(parts: Sequence[str], most: int) -> list[str]:
    """Return the first parts of a list, and the number of the other parts."""
    left = len(parts) - most
    return [*parts[:most], f"and {left} more"] if left > 0 else [*parts]


def on_hosts(recording: Recording, things: Sequence[tuple[int, str]], many: str) -> str:
    """Return node ranks and names for a sentence: "GPU 3 on node0", "9 GPUs on node0 and node1" (``many``)."""
    by_host = grouped((host(recording, node_rank), name) for node_rank, name in things)
    if len(things) > NAMES_IN_A_SENTENCE:
        named = list(by_host) if len(by_host) <= NAMES_IN_A_SENTENCE else [f"{len(by_host)} nodes"]
        return f"{len(things)} {many} on {name_list(named)}"
    return name_list([f"{name_list(names)} on {name}" for name, names in by_host.items()])


def hosts(recording: Recording, nodes: Iterable[int]) -> str:
    """Return the names of these nodes for a sentence, without duplicates."""
    return name_list([host(recording, node) for node in dict.fromkeys(nodes)])


def host(recording: Recording, node_rank: int) -> str:
    """Return a node's host name, or "node rank N" if it is unknown."""
    return recording.world.hostname(node_rank) if recording.world else f"node rank {node_rank}"
