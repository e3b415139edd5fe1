"""How findings speak of nodes that differ: the few against the many, or all of them where there are no many."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ddp_doctor.model.finding import Culprit
from ddp_doctor.model.recording import Recording
from ddp_doctor.phrases.nodes import NAMES_IN_A_SENTENCE, host, in_words, node_culprit


@dataclass(frozen=True)
class Split:
    """Nodes that differ in something: each value, as it is shown, with its nodes, the most frequent first.

    ``usual`` is the value of more than half of the nodes. Of two nodes, or of two halves, nobody is
    the odd one.
    """

    groups: tuple[tuple[str, tuple[int, ...]], ...]
    usual: str | None

    @property
    def few(self) -> tuple[int, ...]:
        """The nodes that are not as most are; none where there are no most."""
        return (
            ()
            if self.usual is None
            else tuple(sorted(node for _, nodes in self.groups[1:] for node in nodes))
        )

    @property
    def many(self) -> int:
        """How many nodes have the usual value."""
        return len(self.groups[0][1])

    @property
    def parts(self) -> Hashable:
        """Equal for differences that part the nodes in the same way, and so may have one cause."""
        return self.few or frozenset(nodes for _, nodes in self.groups)


def split(values: Mapping[int, tuple[Hashable, str]]) -> Split | None:
    """How nodes differ, given what is compared of each and how that is shown; None where they agree."""
    groups: dict[Hashable, list[int]] = {}
    for node, (value, _) in values.items():
        groups.setdefault(value, []).append(node)
    if len(groups) < 2:
        return None
    largest = sorted(groups.values(), key=lambda nodes: (-len(nodes), nodes))
    shown = tuple((values[nodes[0]][1], tuple(sorted(nodes))) for nodes in largest)
    return Split(shown, shown[0][0] if 2 * len(largest[0]) > len(values) else None)


def hosts(recording: Recording, nodes: Sequence[int]) -> str:
    """ "node0", "node0 and node1", "node0, node1, node2, node3 and 12 more"."""
    return in_words([host(recording, node) for node in nodes])


def others(split: Split) -> str:
    """ "the other node", "the other 3 nodes"."""
    return "the other node" if split.many == 1 else f"the other {split.many} nodes"


def told(recording: Recording, split: Split) -> str:
    """Every value with its nodes: "2.4.1 on node2; 2.5.0 on node0, node1 and node3"."""
    each = [f"{value} on {hosts(recording, nodes)}" for value, nodes in split.groups[:NAMES_IN_A_SENTENCE]]
    left = len(split.groups) - NAMES_IN_A_SENTENCE
    return "; ".join([*each, *([f"and {left} more"] if left > 0 else [])])


def odd_values(split: Split) -> str:
    """The values that are not the usual one: "2.4.1", "2.4.1 or 2.3.0"."""
    values = [value for value, _ in split.groups[1:]]
    return " or ".join(values[:NAMES_IN_A_SENTENCE]) + (" and others" if values[NAMES_IN_A_SENTENCE:] else "")


def odd_culprits(recording: Recording, split: Split) -> tuple[Culprit, ...]:
    """The nodes that differ from most; nobody where there are no most."""
    return tuple(node_culprit(recording, node) for node in split.few)
