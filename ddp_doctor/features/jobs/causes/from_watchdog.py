"""Where ranks stand by what torch prints of time-outs: the collective that timed out, and the last that was called."""

import re
from collections.abc import Collection, Mapping

from ddp_doctor.engine.waits.standings import Call, Group, Standing, Wait
from ddp_doctor.features.jobs.views.job_waits import Wait as TimeOut

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
