"""The facts of all ranks, the ranks that differ from most, and the words for them."""

from collections.abc import Callable, Mapping, Sequence

from ddp_doctor.facts.ddp.data_sharding import DataSharding, Share
from ddp_doctor.model.choices import Confidence
from ddp_doctor.model.finding import Draft, Evidence, Remedy
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.differences import Split, split
from ddp_doctor.wording.findings import finding
from ddp_doctor.wording.nodes import NAMES_IN_A_SENTENCE, name_list
from ddp_doctor.wording.ranks import rank_culprits, ranks_at

Facts = Mapping[int, DataSharding]
#: Indices that a sentence names.
_NAMED = 8


def by_rank(recording: Recording) -> Facts:
    """The facts by original rank, in the order of the group; none where a rank's is missing: it may hold the rest."""
    seen = sorted(recording.facts(DataSharding), key=lambda one: one.fact.group_rank)
    facts = {one.rank or 0: one.fact for one in seen}
    return facts if seen and len(facts) == seen[0].fact.world_size else {}


def cases(facts: Facts) -> list[dict[int, Share]]:
    """The shares of all ranks, by rank, for each data set in turn."""
    each = [fact.shares for fact in facts.values()]
    return [dict(zip(facts, shares, strict=True)) for shares in zip(*each, strict=False)]


def differing(facts: Facts, what: Callable[[Share], int | None]) -> Split[int] | None:
    """How the ranks' shares differ in something; None where they agree."""
    values = {
        rank: tuple(dict.fromkeys(what(share) for share in fact.shares)) for rank, fact in facts.items()
    }
    return split({rank: (value, name_list([str(one) for one in value])) for rank, value in values.items()})


def parted(recording: Recording, parts: Split[int]) -> str:
    """``0 on rank 0 and rank 1, 7 on rank 2``; of many values the most frequent."""
    said = [f"{shown} on {ranks_at(recording, ranks)}" for shown, ranks in parts.groups]
    more = len(said) - NAMES_IN_A_SENTENCE
    return ", ".join(said[:NAMES_IN_A_SENTENCE]) + (f" and {more} more" if more > 0 else "")


def some(indices: Sequence[int]) -> str:
    """``3, 7 and 12 more`` of many."""
    named = ", ".join(str(index) for index in indices[:_NAMED])
    more = len(indices) - _NAMED
    return f"{named} and {more} more" if more > 0 else named


def draft(
    recording: Recording,
    title: str,
    detail: str,
    blamed: Sequence[int],
    evidence: Evidence,
    *remedies: Remedy,
    confidence: Confidence = Confidence.LIKELY,
) -> Draft:
    """A finding about ranks' data; ``blamed`` are original ranks."""
    return finding(
        rank_culprits(recording, DataSharding, blamed),
        title,
        evidence,
        *remedies,
        confidence=confidence,
        detail=f"{detail} None of your own code took part.",
    )
