"""The standings of a job's ranks, from samples of them or from their timeouts in its output."""

import re
from collections.abc import Collection, Mapping

from ddp_doctor.engine.waits.standings import Call, Group, Standing, State, Wait
from ddp_doctor.features.jobs.live_frames import ROOTED
from ddp_doctor.features.jobs.views.job_waits import Wait as TimeOut
from ddp_doctor.features.jobs.views.live import UNABLE, Doing, LiveJob

#: The text for a rank that exited without an error.
WELL = "exit 0"


def standings_of_looks(job: LiveJob) -> list[Standing]:
    """Return the standings of the seen and missing ranks.

    Ranks that left without a known error are omitted if other ranks move or no rank waits.
    """
    default, unknown = (Group(name, tuple(rank.rank for rank in job.ranks)) for name in ("default", ""))
    gets_on = any(rank.moves for rank in job.ranks if rank.kind not in UNABLE)
    nobody_waits = not any(rank.kind in ("collective", "gpu") for rank in job.ranks)
    absent = frozenset(rank.rank for rank in job.ranks if rank.kind not in (*UNABLE, "collective", "gpu"))
    standings = [] if gets_on or nobody_waits else [Standing(rank, "gone") for rank in job.missing]
    for rank in job.ranks:
        if rank.kind in ("gone", "stopped", "kernel"):
            if not ((gets_on or nobody_waits) and rank.kind == "gone" and rank.words in ("", WELL)):
                standings.append(Standing(rank.rank, rank.kind))
        elif rank.kind in ("collective", "gpu"):
            waits = () if rank.moves else (Wait(rank.rank, _call(rank, default, unknown), absent),)
            standings.append(Standing(rank.rank, "waits", waits, moves=rank.moves))
        else:
            state: State = "unknown" if rank.kind == "unknown" and not rank.moves else "outside"
            standings.append(Standing(rank.rank, state, moves=rank.moves, is_seen=True))
    return standings


def _call(rank: Doing, default: Group, unknown: Group) -> Call:
    """Return a rank's call, comparable with other calls only if it is certainly on the default group."""
    if rank.kind == "gpu":
        return Call(unknown)
    if rank.fact.groups != 1 and not rank.fact.default_group:
        return Call(unknown, op=rank.call)
    return Call(default, op=rank.call, alike=rank.call, may_be_left=rank.call == "wait" or rank.call in ROOTED)


#: Operations that may have different sizes on ranks, or that only some ranks call.
UNEVEN = re.compile(r"SEND|RECV|ALLTOALL|GATHER$|SCATTER$|COALESCED|UNKNOWN", re.IGNORECASE)
_EVEN = re.compile(r"^_?(ALL_?GATHER|REDUCE_?SCATTER)", re.IGNORECASE)


def standings_of(time_outs: Mapping[int, TimeOut], world: Collection[int], works: Collection[int]) -> list[Standing]:
    """Return the standings in one process group; ranks in ``works`` are busy with other work.

    A rank that printed no timeout may be anywhere.
    """
    ranks = sorted({*world, *time_outs})
    group = Group("", tuple(ranks))
    last = max((time_out.seq or 0 for time_out in time_outs.values()), default=0)
    behind = {rank for rank, time_out in time_outs.items() if time_out.reached < last}
    missing = frozenset(behind | (set(ranks) - time_outs.keys()))
    standings = []
    for rank in ranks:
        time_out = time_outs.get(rank)
        if time_out is None:
            standings.append(Standing(rank, "unknown"))
            continue
        is_even = bool(_EVEN.match(time_out.op)) or not UNEVEN.search(time_out.op)
        alike = (time_out.op, time_out.numel) if is_even else None
        call = Call(group, time_out.seq, time_out.op, alike=alike)
        calls = () if time_out.seq is None else (call,)
        if not calls or (rank in behind and time_out.enqueued is not None):
            standings.append(Standing(rank, "outside", calls=calls, moves=rank in works))
        else:
            wait = Wait(rank, call, missing if time_out.seq == last else frozenset())
            standings.append(Standing(rank, "waits", (wait,), calls))
    return standings


def standings_in(calls: Mapping[int, str]) -> list[Standing]:
    """Return the standings of ranks that timed out together, each in a call without a number."""
    group = Group("", tuple(calls))
    return [
        Standing(rank, "waits", (Wait(rank, Call(group, op=call, alike=call)),)) for rank, call in sorted(calls.items())
    ]
