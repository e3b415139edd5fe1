"""Texts about nodes or ranks that differ: the minority compared with the majority, or all without a majority."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Severity
from ddp_doctor.model.finding import Culprit, Draft, Evidence, Reproducer
from ddp_doctor.model.recording import Recording
from ddp_doctor.model.trial import RankEvidence, TrialRecord
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, hosts, name_list, node_culprit, shortened
from ddp_doctor.wording.ranks import cause, rank_culprit

#: A rank by its node rank and its local rank.
Place = tuple[int, int]
#: A node rank, or a rank's place.
Who = TypeVar("Who", int, Place)


@dataclass(frozen=True)
class Split(Generic[Who]):
    """Nodes or ranks that differ in something: each value as shown, with its nodes or ranks.

    The most frequent value is first; ``usual`` is the value of more than half. Of two members, or of two halves,
    neither is unusual.
    """

    groups: tuple[tuple[str, tuple[Who, ...]], ...]
    usual: str | None

    @property
    def few(self) -> tuple[Who, ...]:
        """The minority; empty without a majority."""
        return () if self.usual is None else tuple(sorted(member for _, some in self.groups[1:] for member in some))

    @property
    def many(self) -> int:
        """The number of members with the usual value."""
        return len(self.groups[0][1])

    @property
    def parts(self) -> Hashable:
        """A key that is equal for differences that divide the members in the same way, and so may have one cause."""
        return self.few or frozenset(some for _, some in self.groups)


def split(values: Mapping[Who, tuple[Hashable, str]], there_are: int = 0) -> Split[Who] | None:
    """Return how nodes or ranks differ, or None if they agree. ``values`` has each member's value and its text.

    ``there_are`` is the number of members if some are unknown: the usual value must be usual among all of them.
    """
    groups = grouped((value, member) for member, (value, _) in values.items())
    if len(groups) < 2:
        return None
    largest = sorted((sorted(some) for some in groups.values()), key=lambda some: (-len(some), some))
    shown = tuple((values[some[0]][1], tuple(some)) for some in largest)
    return Split(shown, shown[0][0] if 2 * len(largest[0]) > max(len(values), there_are) else None)


def local_ranks(recording: Recording, places: Sequence[Place]) -> str:
    """Return "local rank 1", "local ranks 1 and 3", and on several nodes "local rank 1 of node0 and node1"."""
    of_node = grouped((node, str(local)) for node, local in sorted(places))
    with_ranks = grouped((tuple(locals_), node) for node, locals_ in of_node.items())
    each = [
        f"local rank{'s' if len(numbers) > 1 else ''} {name_list(numbers)}"
        + (f" of {hosts(recording, nodes)}" if recording.several_nodes else "")
        for numbers, nodes in with_ranks.items()
    ]
    return name_list(each)


def others(split: Split[int]) -> str:
    """Return "the other node" or "the other 3 nodes"."""
    return "the other node" if split.many == 1 else f"the other {split.many} nodes"


def values_with_nodes(recording: Recording, split: Split[int]) -> str:
    """Return every value with its nodes: "2.4.1 on node2; 2.5.0 on node0, node1 and node3"."""
    each = [f"{value} on {hosts(recording, nodes)}" for value, nodes in split.groups]
    return "; ".join(shortened(each, NAMES_IN_A_SENTENCE))


def values_with_ranks(recording: Recording, split: Split[Place]) -> str:
    """Return every value with its ranks: "NCCL_ALGO unset on local ranks 0 and 1; NCCL_ALGO=Tree on local rank 2"."""
    each = [f"{value} on {local_ranks(recording, places)}" for value, places in split.groups]
    return "; ".join(shortened(each, NAMES_IN_A_SENTENCE))


def odd_values(split: Split[Who]) -> str:
    """Return the unusual values: "2.4.1", "2.4.1 or 2.3.0"."""
    values = [value for value, _ in split.groups[1:]]
    return " or ".join(values[:NAMES_IN_A_SENTENCE]) + (" and others" if values[NAMES_IN_A_SENTENCE:] else "")


def odd_culprits(recording: Recording, split: Split[int]) -> tuple[Culprit, ...]:
    """Return the minority among nodes, or () without a majority."""
    return tuple(node_culprit(recording, node) for node in split.few)


def odd_ranks(recording: Recording, split: Split[Place]) -> tuple[Culprit, ...]:
    """Return the ranks that differ from the majority. For a rank outside this run, only its node is known."""
    culprits = []
    for node, local in split.few:
        ranks = recording.world.ranks_of(node) if recording.world else range(0)
        if local < len(ranks):
            culprits.append(rank_culprit(recording, ranks[local], node))
        else:
            culprits.append(node_culprit(recording, node).model_copy(update={"kind": "rank"}))
    return tuple(culprits)


def made_ranks_fail(draft: Draft, unfitting: Sequence[tuple[TrialRecord, RankEvidence]]) -> Draft:
    """Return the difference as an error: the ranks met, and the ``unfitting`` ones received mismatched data."""
    trial, rank = unfitting[0]
    words = cause(rank.raised.message if rank.raised else "")[:200]
    failure = Evidence(
        check=trial.judged_check or trial.checks[0], text=f"rank {rank.rank} received mismatched data: {words}"
    )
    return draft.model_copy(
        update={
            "severity": Severity.ERROR,
            "evidence": (*draft.evidence, failure),
            "detail": f"{draft.detail} The ranks connected, but received mismatched data.",
            "reproduced_by": Reproducer(kind="meet", ranks=trial.ranks),
        }
    )
