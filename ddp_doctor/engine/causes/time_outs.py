"""What the time-outs of collectives say: who waited for what, who was elsewhere.

A time-out is no cause. Where torch prints the number and the kind of the collective that each rank was in, a rank that
was in another one, or had not got as far, is told apart from those that waited for it; nccl2 of torch 2.15 prints
neither, and then nothing is said here.

    rank 0-4, 6, 7   default_pg   all-reduce 17 of 1024 elements
    rank 5           default_pg   had enqueued 16
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from ddp_doctor.engine.causes.evidence import Output, Suspect, lines
from ddp_doctor.engine.causes.judged import Judged
from ddp_doctor.engine.causes.whose import places, rank_culprit
from ddp_doctor.knowledge.job_causes import cause_named
from ddp_doctor.model.choices import Confidence
from ddp_doctor.views.job_waits import Wait, waits
from ddp_doctor.wording.ranks import capital, rank_list

#: Operations whose sizes, or whether they are called at all, may differ between ranks.
_UNEVEN = re.compile(r"SEND|RECV|ALLTOALL|GATHER$|SCATTER$|COALESCED|UNKNOWN", re.IGNORECASE)
_EVEN = re.compile(r"^_?(ALL_?GATHER|REDUCE_?SCATTER)", re.IGNORECASE)
#: What a bar or a count of progress looks like.
_PROGRESS = re.compile(r"\d{1,3}%\||\bit/s\b|s/it\b|\d/\d+ \[|examples/s", re.IGNORECASE)


def suspects(output: Output) -> Iterator[Suspect]:
    """What the table shows, group by group."""
    for of_group in waits(output.fact).values():
        for step in (_other_collective, _only_some_called, _behind, _long_work):
            judged = step(output, of_group)
            if judged is not None:
                signs = tuple(sign for wait in of_group.values() for sign in wait.signs)
                yield Suspect(judged.cause, "watchdog", judged.confidence, signs, judged)
                break


def _judged(
    output: Output,
    name: str,
    confidence: Confidence,
    waits: Collection[Wait],
    guilty: Collection[int],
    detail: str,
) -> Judged | None:
    cause = cause_named(name)
    if cause is None:
        return None
    one = next(iter(waits))
    return Judged(
        cause,
        confidence,
        lines(sign for wait in waits for sign in wait.signs[:1]),
        tuple(rank_culprit(output, rank) for rank in sorted(guilty)),
        places(output, guilty) if guilty else "ranks",
        detail,
        values={"seq": str(one.seq), "op": one.op, "collective": one.collective},
    )


def _other_collective(output: Output, ranks: Mapping[int, Wait]) -> Judged | None:
    """At one number, ranks are in different operations or sizes: the minority, or nobody where two halves differ."""
    by_seq: dict[int, list[Wait]] = defaultdict(list)
    for wait in ranks.values():
        if wait.seq is not None and (_EVEN.match(wait.op) or not _UNEVEN.search(wait.op)):
            by_seq[wait.seq].append(wait)
    for seq, at_it in sorted(by_seq.items()):
        counts = Counter((wait.op, wait.numel) for wait in at_it)
        if len(counts) > 1:
            (most, number), (_, next_number) = counts.most_common(2)
            guilty = [w.rank for w in at_it if (w.op, w.numel) != most] if number > next_number else []
            what = "; ".join(f"{_who(at_it, key)} called {_of(at_it, key)}" for key in counts)
            return _judged(
                output,
                "collective-mismatch",
                Confidence.LIKELY,
                at_it,
                guilty,
                f"As collective {seq}, {what}.",
            )
    return None


def _who(waits: Collection[Wait], key: tuple[str, str]) -> str:
    return rank_list([wait.rank for wait in waits if (wait.op, wait.numel) == key])


def _of(waits: Collection[Wait], key: tuple[str, str]) -> str:
    return next(wait.collective for wait in waits if (wait.op, wait.numel) == key)


def _only_some_called(output: Output, ranks: Mapping[int, Wait]) -> Judged | None:
    """A few wait, mostly rank 0 in a barrier, and most had called less by then: the few called one collective more."""
    waiting = [wait for wait in ranks.values() if wait.seq is not None]
    if not waiting:
        return None
    seq = max(wait.seq or 0 for wait in waiting)
    at_it = [wait for wait in waiting if wait.seq == seq]
    others = output.world - {wait.rank for wait in at_it}
    behind = {r for r in others if r in ranks and (ranks[r].enqueued or ranks[r].seq or seq) < seq}
    silent = {r for r in others if r not in ranks}
    if len(at_it) * 2 >= len(at_it) + len(others) or not (behind or silent):
        return None
    is_barrier = all(wait.numel == "1" or "BARRIER" in wait.op for wait in at_it)
    if not behind and not (is_barrier and {wait.rank for wait in at_it} == {0}):
        return None
    sure = Confidence.LIKELY if behind else Confidence.POSSIBLE
    guilty = [wait.rank for wait in at_it]
    detail = f"Only {rank_list(guilty)} called {at_it[0].collective}; {rank_list(sorted(others))} did not."
    return _judged(output, "rank0-only-collective", sure, at_it, guilty, detail)


def _behind(output: Output, ranks: Mapping[int, Wait]) -> Judged | None:
    """Most wait, and a few say that they had called less: those never came to it."""
    waiting = [wait for wait in ranks.values() if wait.seq is not None]
    seq = max((wait.seq or 0 for wait in waiting), default=0)
    at_it = [wait for wait in waiting if wait.seq == seq]
    behind = sorted(
        r for r, w in ranks.items() if w.enqueued is not None and w.enqueued < seq and w not in at_it
    )
    if not behind or len(behind) >= len(at_it):
        return None
    name = "timeout-long-rank0-work" if behind == [0] and _worked(output, 0) else "stuck-outside-collective"
    far = ", ".join(sorted({str(ranks[rank].enqueued) for rank in behind}))
    detail = (
        f"{capital(rank_list([w.rank for w in at_it]))} waited in {at_it[0].collective};"
        f" {rank_list(behind)} had called {far} and not {seq}."
    )
    return _judged(output, name, Confidence.LIKELY, at_it, behind, detail)


def _long_work(output: Output, ranks: Mapping[int, Wait]) -> Judged | None:
    """All but rank 0 wait for it, and the last that rank 0 printed is the progress of its own work."""
    waiting = {rank: wait for rank, wait in ranks.items() if wait.seq is not None}
    missing = output.world - set(waiting)
    if missing != {0} or not _worked(output, 0):
        return None
    one = next(iter(waiting.values()))
    last = output.ranks[0].last
    at = f", while rank 0 was at: {last.text}" if last is not None else ""
    detail = f"{capital(places(output, waiting))} waited in {one.collective}{at}"
    return _judged(output, "timeout-long-rank0-work", Confidence.LIKELY, list(waiting.values()), [0], detail)


def _worked(output: Output, rank: int) -> bool:
    seen = output.ranks.get(rank)
    return seen is not None and seen.last is not None and bool(_PROGRESS.search(seen.last.text))
