"""Who keeps a job that runs waiting, by how many collectives each rank has launched, as NCCL's RAS counts them.

Ranks that all wait for their GPUs look alike from outside. One that has launched another collective than the others is
named by that, and one that has launched fewer; whether the GPU of the latter still computes, no count tells.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Confidence
from ddp_doctor.views.job_waits import collective_name
from ddp_doctor.views.live_jobs import LiveJob
from ddp_doctor.wording.ranks import rank_list

#: Operations of a group, and what each rank of it has launched of them.
_Counts = Mapping[str, Mapping[int, int]]


class Counted(NamedTuple):
    """What different counts tell of ranks."""

    cause: str
    sure: Confidence
    ranks: list[int]  # to blame
    values: dict[str, str]
    detail: str


def by_counts(job: LiveJob) -> Counted | None:
    """What different counts tell that did not move between two answers; None where there are none."""
    launched = (launched for host in job.hosts for launched in host.launched)
    counts: dict[str, Mapping[int, int]] = {}  # of each rank, as far as that is known of all
    for of in launched:
        named = dict(of.by_rank)
        if of.others is not None:
            counts[of.operation] = dict.fromkeys(range(job.world_size), of.others) | named
        elif len(named) == job.world_size:
            counts[of.operation] = named
    if not counts:
        return None
    odd = _odd(counts)
    name, values = _what(counts, odd)
    blamed = [rank for rank in job.ranks if rank.rank in odd]
    may_compute = name == "rank-behind" and any(rank.kind == "gpu" or rank.moves for rank in blamed)
    detail = f"NCCL's RAS counts, the same in two answers: {'; '.join(_words(*of) for of in counts.items())}."
    if not odd:
        detail += " As many ranks are behind as ahead: look at both."
    elif may_compute:
        detail += f" Whether the GPU of {rank_list(odd)} still computes, nothing shows."
    return Counted(name, Confidence.LIKELY if odd and not may_compute else Confidence.POSSIBLE, odd, values, detail)


def _odd(counts: _Counts) -> list[int]:
    """The ranks, fewer than half, whose counts are not those of most."""
    odd: set[int] = set()
    for of in counts.values():
        usual, _ = Counter(of.values()).most_common(1)[0]
        odd.update(rank for rank, count in of.items() if count != usual)
    size = max(map(len, counts.values()))
    return sorted(odd) if 2 * len(odd) < size else []


def _what(counts: _Counts, odd: Sequence[int]) -> tuple[str, dict[str, str]]:
    """The cause, and what its title says of the first of the ranks that are odd, else of one that is behind."""
    fewest = {operation: min(of, key=lambda rank: of[rank]) for operation, of in counts.items()}
    who = odd[0] if odd else next(iter(fewest.values()))
    behind = [op for op, of in counts.items() if of[who] < max(of.values())]
    ahead = [op for op, of in counts.items() if of[who] > min(of.values())]
    if behind and ahead:
        other = max(counts[behind[0]], key=lambda rank: counts[behind[0]][rank])
        return "collective-mismatch", {
            "rank": str(who),
            "op": _name(ahead[0]),
            "peer_rank": str(other),
            "peer_op": _name(behind[0]),
        }
    if ahead:
        return "rank0-only-collective", {"call": _name(ahead[0])}
    of = counts[behind[0]]
    return "rank-behind", {"rank": str(who), "launched": str(of[who]), "most": str(max(of.values()))}


def _words(operation: str, by_rank: Mapping[int, int]) -> str:
    """``all-reduce 5 on ranks 0, 2, 3, 4 on rank 1``."""
    ranks_of = grouped((count, rank) for rank, count in by_rank.items())
    said = (f"{count or 'none'} on {rank_list(ranks)}" for count, ranks in sorted(ranks_of.items(), reverse=True))
    return f"{_name(operation)} {', '.join(said)}"


def _name(operation: str) -> str:
    """``all-reduce`` of AllReduce."""
    return collective_name(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation))
