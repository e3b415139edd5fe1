"""Jobs that run: their ranks on all hosts that were read, those that are missing there, and those that nobody saw."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddp_doctor.features.jobs.live_facts import LiveJobFact, LiveRankFact, Meeting
from ddp_doctor.features.jobs.views.live_ranks import Doing, doing
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Status
from ddp_doctor.model.recording import Recording, World, once_a_recording

#: Jobs whose ranks meet at an address of the host's own, or at one that is not known.
_OF_ONE_HOST = re.compile(r"^(?:started by )?process |(?:^|, )(?:127\.|localhost:|\[?::1)")


@dataclass(frozen=True)
class LiveJob:
    """A job with what its ranks do, in the order of their numbers; on several hosts where each was looked at."""

    hosts: tuple[LiveJobFact, ...]
    ranks: tuple[Doing, ...]
    missing: Mapping[int, str | None]  # ranks that hosts should have and have not, and which host, where known
    is_elsewhere: bool  # whether it has ranks that nobody looked at

    @property
    def name(self) -> str:
        """What names it."""
        return self.hosts[0].job

    @property
    def world_size(self) -> int:
        """Its ranks, also those that were not looked at."""
        return max([len(self.ranks) + len(self.missing), *(host.world_size or 0 for host in self.hosts)])

    @property
    def is_numbered(self) -> bool:
        """Return True if the numbers of its ranks are known."""
        return all(rank.is_numbered for rank in self.ranks)

    @property
    def unseen(self) -> list[int]:
        """The ranks that nobody looked at, where they have numbers."""
        if not self.is_numbered:
            return []
        known = {rank.rank for rank in self.ranks}.union(self.missing)
        return [rank for rank in range(max(host.world_size or 0 for host in self.hosts)) if rank not in known]

    @property
    def meeting(self) -> Meeting | None:
        """The endpoint of a job that has not begun, from the first host that has one."""
        return next((host.meeting for host in self.hosts if host.meeting), None)

    @property
    def has_ended(self) -> bool:
        """Return True if all its ranks ended during the observation."""
        return all(host.ended for host in self.hosts)

    @property
    def watched_s(self) -> float:
        """The seconds from the first look to the last."""
        return max(host.watched_s for host in self.hosts)


def unreached(recording: Recording) -> dict[str, str]:
    """Why hosts could not be read, by their names."""
    world = recording.world or World()
    return {
        world.hostname(reading.node): reading.reason or ""
        for reading in recording.of_check("attach")
        if reading.status is Status.FAILED
    }


@once_a_recording
def live_jobs(recording: Recording) -> tuple[LiveJob, ...]:
    """The jobs of a recording of attach; what several hosts show of a job is put together."""
    ranks = grouped(((at.fact.job, at.node), doing(at.fact)) for at in recording.facts(LiveRankFact))
    jobs: list[tuple[list[LiveJobFact], list[Doing]]] = []
    for at in recording.facts(LiveJobFact):
        here = ranks.get((at.fact.job, at.node), [])
        numbers = {rank.rank for rank in here}
        same = [job for job in jobs if job[0][0].job == at.fact.job and numbers.isdisjoint(of.rank for of in job[1])]
        if not same or _OF_ONE_HOST.search(at.fact.job):
            jobs.append(([at.fact], list(here)))
        else:
            same[0][0].append(at.fact)
            same[0][1].extend(here)
    return tuple(
        _with_missing_ranks(hosts, sorted(seen, key=lambda rank: rank.rank), recording) for hosts, seen in jobs
    )


def _with_missing_ranks(hosts: Sequence[LiveJobFact], ranks: Sequence[Doing], recording: Recording) -> LiveJob:
    seen = {rank.rank for rank in ranks}
    missing: dict[int, str | None] = {rank: host.host for host in hosts for rank in host.missing if rank not in seen}
    job = LiveJob(tuple(hosts), tuple(ranks), missing, is_elsewhere=_talks_to_others(ranks))
    world, unseen = recording.world or World(), job.unseen
    without = [reading.node for reading in recording.of_check("attach") if reading.status is Status.ABSENT]
    most = max((sum(rank.fact.host == host.host for rank in ranks) for host in hosts), default=0)
    is_of_slurm = world.launcher == "slurm" and hosts[0].launcher != "mpirun"
    if not unreached(recording) and (is_of_slurm or len(unseen) <= most * len(without)):
        where = world.hostname(without[0]) if len(without) == 1 else None
        job = replace(job, missing=missing | dict.fromkeys(unseen, where))
    are_fewer = len(ranks) + len(job.missing) < job.world_size
    return replace(job, is_elsewhere=job.is_elsewhere or are_fewer)


def _talks_to_others(ranks: Sequence[Doing]) -> bool:
    """Whether ranks whose environment does not tell their number have connections to hosts that nobody looked at."""
    ends = [end for rank in ranks if rank.fact.numbered_by != "environment" for end in rank.fact.connections]
    addresses = {this.rpartition(":")[0] for this, _ in ends}
    return any(other.rpartition(":")[0] not in addresses for _, other in ends)
