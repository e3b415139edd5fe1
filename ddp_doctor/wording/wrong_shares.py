"""The faulty ranks behind wrong shares, if the receiving ranks can identify them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from ddp_doctor.facts.collectives import WrongShare
from ddp_doctor.knowledge.collectives import MOST_ROOTS
from ddp_doctor.knowledge.ddp import payload
from ddp_doctor.model.base import grouped
from ddp_doctor.model.finding import Culprit, Evidence
from ddp_doctor.model.recording import Recording
from ddp_doctor.wording.ranks import pair_culprit, rank_at, rank_culprit


class Taken(NamedTuple):
    """The results of one rank: the wrong shares, and the ranks whose shares it checked."""

    rank: int
    wrong: Sequence[WrongShare]
    sources: Sequence[int]


def _share_evidence(rank: int, wrong: WrongShare) -> Evidence:
    of = "" if wrong.source is None else f", the share of rank {wrong.source}"
    return Evidence(
        text=f"{wrong.case}, {wrong.elements} of {wrong.of} elements wrong on rank {rank}{of}",
        value=wrong.got,
        expected=wrong.expected,
        expected_from="exact result of rank-coded contributions",
    )


def shares_evidence(wrong: Iterable[tuple[int, WrongShare]]) -> Iterator[Evidence]:
    """Yield the evidence of each share once, the first share of each rank first."""
    by_rank = grouped((rank, _share_evidence(rank, share)) for rank, share in wrong)
    for row in zip_longest(*(dict.fromkeys(lines) for lines in by_rank.values())):
        yield from filter(None, row)


def whose_share(
    recording: Recording, ranks: Sequence[Taken], *, to_root: bool = False
) -> tuple[tuple[Culprit, ...], str]:
    """Return the culprits, and a clause about them. ``to_root``: only ranks that were tested as roots took results."""
    if any(wrong.source is None for rank in ranks for wrong in rank.wrong):
        blamed = _one_contribution(ranks, ranks[:MOST_ROOTS] if to_root else ranks)
        if blamed is None:
            return (), "it is unknown which rank is faulty"
        return (rank_culprit(recording, blamed),), f"the contribution of {rank_at(recording, blamed)} is wrong"
    bad, tested = set[tuple[int, int]](), set[tuple[int, int]]()
    for rank in ranks:
        wrong_cases = Counter(wrong.source for wrong in rank.wrong if wrong.source is not None)
        tested |= {(source, rank.rank) for source in rank.sources}
        # Two cases or more: a single one is a flipped bit instead of a systematic fault.
        bad |= {(source, rank.rank) for source, times in wrong_cases.items() if times > 1}
    for given, words in ((True, "all data from {} arrives wrong"), (False, "all data that {} receives is wrong")):
        for end in sorted({pair[0 if given else 1] for pair in bad}):
            own = {pair for pair in tested if pair[0 if given else 1] == end}
            others = own - {(end, end)}
            if others <= bad <= own and (len(others) > 1 or (end, end) in bad):
                return (rank_culprit(recording, end),), words.format(rank_at(recording, end))
    if len(bad) != 1:
        return (), "it is unknown which rank is faulty"
    [(source, taker)] = bad
    giver, other = rank_at(recording, source), rank_at(recording, taker)
    if source == taker:
        return (rank_culprit(recording, source),), f"the data of {giver} was changed in place"
    return (pair_culprit(recording, *sorted((source, taker))),), f"only data from {giver} to {other} is wrong"


def _one_contribution(ranks: Sequence[Taken], takers: Sequence[Taken]) -> int | None:
    """Return the rank whose contribution is missing or doubled in every wrong sum, on every receiving rank."""
    sums = [[wrong for wrong in rank.wrong if wrong.source is None and " sum" in wrong.case] for rank in takers]
    blamed = [wrong.blamed for of_rank in sums for wrong in of_rank]
    own = Counter(wrong.source for rank in ranks for wrong in rank.wrong if wrong.source == rank.rank)
    if len(own) == 1:  # its own contribution was changed, more than once
        [(rank, times)] = own.items()
        return rank if times > 1 and all(rank in one for one in blamed if one) else None
    return payload.agreed(blamed) if all(sums) else None
