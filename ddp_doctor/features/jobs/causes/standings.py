"""Where ranks of a job stand, by looks at them or by their timeouts in its output."""

import re
from collections.abc import Collection, Mapping

from ddp_doctor.engine.waits.standings import Call, Group, Standing, State, Wait
from ddp_doctor.features.jobs.live_frames import ROOTED
from ddp_doctor.features.jobs.views.job_waits import Wait as TimeOut
from ddp_doctor.features.jobs.views.live import UNABLE, Doing, LiveJob

#: Words of a rank that ended without an error.
WELL = "exit 0"


def standings_of_looks(job: LiveJob) -> list[Standing]:
    """Return a standing for each rank that was seen or is missing, but not for ranks that left a job without waits."""
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
    """Calls are compared of those that are on the default group for certain."""
    if rank.kind == "gpu":
        return Call(unknown)
    if rank.fact.groups != 1 and not rank.fact.default_group:
        return Call(unknown, op=rank.call)
    return Call(default, op=rank.call, alike=rank.call, may_be_left=rank.call == "wait" or rank.call in ROOTED)


#: Operations whose sizes, or whether they are called at all, may differ between ranks.
UNEVEN = re.compile(r"SEND|RECV|ALLTOALL|GATHER$|SCATTER$|COALESCED|UNKNOWN", re.IGNORECASE)
_EVEN = re.compile(r"^_?(ALL_?GATHER|REDUCE_?SCATTER)", re.IGNORECASE)


def standings_of(time_outs: Mapping[int, TimeOut], world: Collection[int], works: Collection[int]) -> list[Standing]:
    """Of one process group; those of ``works`` do work of their own. A rank that printed nothing may stand anywhere."""
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
    """Of ranks that gave up together, each in a call without a number."""
    group = Group("", tuple(calls))
    return [
        Standing(rank, "waits", (Wait(rank, Call(group, op=call, alike=call)),)) for rank, call in sorted(calls.items())
    ]
