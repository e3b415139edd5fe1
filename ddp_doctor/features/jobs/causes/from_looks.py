"""Where ranks of a job that runs stand, by looks at them: those in a collective wait for all that are in none."""

from ddp_doctor.engine.waits.standings import Call, Group, Standing, State, Wait
from ddp_doctor.features.jobs.live_frames import ROOTED
from ddp_doctor.features.jobs.views.live_jobs import LiveJob
from ddp_doctor.features.jobs.views.live_ranks import UNABLE, Doing

#: Words of a rank that ended without an error.
WELL = "exit 0"


def standings_of(job: LiveJob) -> list[Standing]:
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
