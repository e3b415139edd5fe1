"""What each rank of a job that runs does, and whether it gets on, by looks at it over some seconds."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddp_doctor.facts.live_job import LiveJobFact, LiveRankFact
from ddp_doctor.knowledge import live_frames
from ddp_doctor.model.choices import Status
from ddp_doctor.model.recording import Recording, World, once_a_recording
from ddp_doctor.parse.frames import of_the_job

#: Gone and those that cannot run; in a collective (also a backward pass or work that was queued); waiting for the GPU;
#: the activities of knowledge/live_frames; its own code; no stack was read.
Kind = Literal[
    "gone",
    "stopped",
    "kernel",
    "collective",
    "gpu",
    "data",
    "compile",
    "checkpoint",
    "start",
    "evaluation",
    "own",
    "unknown",
]
#: Those of which nothing is to be expected.
UNABLE = ("gone", "stopped", "kernel")
#: Of a core; below it a thread does next to nothing, above it works.
_IDLE, _BUSY = 0.02, 0.1
#: Of a core, of gloo's threads that look for data a hundred times a second: above it they carry some.
_SENDING = 0.04
#: A healthy loop sleeps and wakes far more often in some seconds than a thread that is waited for.
_FEW_SWITCHES = 2
_LITTLE_IO = 64 * 1024
#: A loop without work: so many places, in so many functions, of the job's own code and nothing below it.
_PLACES_OF_A_LOOP, _FUNCTIONS_OF_A_LOOP = 4, 2
#: Jobs whose ranks meet at an address of the host's own, or at one that is not known.
_OF_ONE_HOST = re.compile(r"(?:^|, )(?:127\.|localhost:|\[?::1)|^(?:started by )?process ")


@dataclass(frozen=True)
class Doing:
    """What one rank does. ``moves``: None where it cannot be told."""

    fact: LiveRankFact
    kind: Kind
    call: str = ""  # all_reduce, of a collective; "the backward pass"
    line: str = ""  # of the job's own code: /home/me/train.py:31 in main
    moves: bool | None = None
    loops: bool = False  # at a few lines, doing nothing else
    words: str = ""  # "evaluates"; of one that cannot run: "stopped by a signal (state T)"
    helper_line: str = ""  # where a worker of its data loader stands

    @property
    def rank(self) -> int:
        """Its number."""
        return self.fact.rank

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks."""
        return self.kind == "collective" and self.moves is False


@dataclass(frozen=True)
class LiveJob:
    """A job with what its ranks do, in the order of their numbers."""

    about: LiveJobFact  # of several hosts: what they have in common
    ranks: tuple[Doing, ...]
    hosts: tuple[str, ...] = ()  # on which it was looked at
    missing_on: tuple[tuple[int, str], ...] = ()  # ranks that a host should have and has not, and that host
    elsewhere: bool = False  # whether it has ranks that nobody looked at

    @property
    def unseen(self) -> list[int]:
        """The ranks that nobody looked at, where they have numbers."""
        if any(one.fact.numbered_by != "environment" for one in self.ranks):
            return []
        known = {one.rank for one in self.ranks} | set(self.about.missing)
        return [rank for rank in range(self.about.world_size or 0) if rank not in known]


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
    facts = recording.facts(LiveRankFact)
    jobs: list[LiveJob] = []
    for at in recording.facts(LiveJobFact):
        ranks = tuple(doing(of.fact) for of in facts if (of.fact.job, of.node) == (at.fact.job, at.node))
        missing_on = tuple((rank, at.fact.host) for rank in at.fact.missing)
        part = LiveJob(at.fact, tuple(sorted(ranks, key=lambda one: one.rank)), (at.fact.host,), missing_on)
        same = next((number for number, job in enumerate(jobs) if _are_one(job, part)), None)
        if same is None:
            jobs.append(part)
        else:
            jobs[same] = _together(jobs[same], part)
    return tuple(_whole(job, recording) for job in jobs)


def _are_one(job: LiveJob, part: LiveJob) -> bool:
    """Whether they have the meeting point in common and no rank."""
    keys = {of.about.job.partition(" net:")[0] for of in (job, part)}
    ranks = {one.rank for one in job.ranks}
    return (
        len(keys) == 1
        and not _OF_ONE_HOST.search(keys.pop())
        and ranks.isdisjoint(one.rank for one in part.ranks)
    )


def _together(job: LiveJob, part: LiveJob) -> LiveJob:
    ranks = tuple(sorted((*job.ranks, *part.ranks), key=lambda one: one.rank))
    seen = {one.rank for one in ranks}
    about = job.about.model_copy(
        update={
            "job": job.about.job.partition(" net:")[0],
            "launcher_pid": None,
            "missing": tuple(sorted({*job.about.missing, *part.about.missing} - seen)),
            "watched_s": max(job.about.watched_s, part.about.watched_s),
            "refused": tuple(dict.fromkeys((*job.about.refused, *part.about.refused))),
            "in_container": job.about.in_container or part.about.in_container,
        }
    )
    return LiveJob(about, ranks, (*job.hosts, *part.hosts), (*job.missing_on, *part.missing_on))


def _whole(job: LiveJob, recording: Recording) -> LiveJob:
    """With the ranks that should be on hosts that have none of it, and whether there are others."""
    world, about = recording.world or World(), job.about
    without = [reading.node for reading in recording.of_check("attach") if reading.status is Status.ABSENT]
    most = max((sum(one.fact.host == host for one in job.ranks) for host in job.hosts), default=0)
    is_of_slurm = world.launcher == "slurm" and about.launcher != "mpirun"
    if not unreached(recording) and (is_of_slurm or 0 < len(job.unseen) <= most * len(without)):
        gone = job.unseen
        where = [(rank, world.hostname(without[0])) for rank in gone if len(without) == 1]
        about = about.model_copy(update={"missing": (*about.missing, *gone)})
        job = replace(job, missing_on=(*job.missing_on, *where))
    are_fewer = len(job.ranks) + len(about.missing) < (about.world_size or 0)
    return replace(job, about=about, elsewhere=are_fewer or _talks_to_others(job.ranks))


def _talks_to_others(ranks: Sequence[Doing]) -> bool:
    """Whether ranks whose environment does not tell their number have connections to hosts that nobody looked at."""
    ends = [end for one in ranks if one.fact.numbered_by != "environment" for end in one.fact.connections]
    seen = {_address(this) for this, _ in ends}
    return any(_address(other) not in seen for _, other in ends)


def _address(end: str) -> str:
    return end.rpartition(":")[0]


def doing(rank: LiveRankFact) -> Doing:
    """What a rank does, by its looks."""
    if unable := _unable(rank):
        kind, words = unable
        return Doing(
            rank, kind, line=_line(rank.looks[-1].frames) if rank.looks else "", moves=False, words=words
        )
    frames = rank.looks[-1].frames
    if not frames:
        return Doing(
            rank, "unknown", moves=None if _used(rank) > _IDLE or _switched(rank) > _FEW_SWITCHES else False
        )
    if call := _collective(rank, frames):
        return Doing(rank, "collective", call, _line(frames), _moves_in_collective(rank))
    own = of_the_job(frames)
    for activity, words, pattern in live_frames.ACTIVITIES:
        searched = own if activity == "evaluation" else frames
        if any(map(pattern.search, searched)):
            found = Doing(rank, activity, line=_line(frames), words=words)
            return _loading(found) if activity == "data" else _working(found)
    if (rank.waits_for_gpu and rank.over_nccl) or live_frames.IN_CUDA_WAIT.search(frames[-1]):
        moves = None if _same_stacks(rank) else True
        return Doing(rank, "gpu", line=_line(frames), moves=moves, words="waits for its GPU")
    return _working(Doing(rank, "own", line=_line(frames), words="works"))


def _unable(rank: LiveRankFact) -> tuple[Literal["gone", "stopped", "kernel"], str] | None:
    states = {look.state for look in rank.looks}
    if not states or rank.looks[-1].state in "ZX":
        return "gone", rank.ended
    if rank.frozen:
        return "stopped", "frozen with its control group"
    if states == {"t"} or (states <= {"t", "T"} and rank.traced_by):
        return "stopped", f"held by {rank.traced_by or 'a debugger'}"
    if states == {"T"}:
        return "stopped", "stopped by a signal (state T)"
    if states == {"D"} and _used(rank) <= _IDLE and _io(rank) <= _LITTLE_IO:
        return "kernel", rank.looks[-1].wait_channel or ""
    return None


# --- in a collective -----------------------------------------------------------------------------------


def _collective(rank: LiveRankFact, frames: Sequence[str]) -> str:
    """The call in which it waits for others; empty where it does something else."""
    inner = [frame for frame in frames if not live_frames.WRAPPERS.search(frame)]
    if inner and live_frames.COLLECTIVE_FILES.search(inner[-1]):
        first = len(inner) - 1
        while first and live_frames.COLLECTIVE_FILES.search(inner[first - 1]):
            first -= 1
        return _function(inner[first])
    has_groups = rank.groups > 0
    if has_groups and live_frames.BACKWARD.search(frames[-1]) and _rests(rank):
        return "backward"
    return "wait" if has_groups and rank.waits_for_work and _line(frames) == frames[-1] else ""


def _moves_in_collective(rank: LiveRankFact) -> bool:
    if not _same_stacks(rank):
        return True
    return not rank.over_nccl and not _rests(rank)


def _rests(rank: LiveRankFact) -> bool:
    """Whether the main thread and those of autograd have not run. NCCL's waits run without getting on."""
    first, last = rank.looks[0], rank.looks[-1]
    if last.autograd_switches > first.autograd_switches:
        return False
    if last.network_cpu_s - first.network_cpu_s > _SENDING * _seconds(rank):
        return False
    return _switched(rank) <= _FEW_SWITCHES and _main_used(rank) <= _IDLE


# --- outside -------------------------------------------------------------------------------------------


def _loading(found: Doing) -> Doing:
    """Of one that waits for data: its workers get on, or it does itself where it has none."""
    loaders = [child for child in found.fact.children if child.kind == "loader"]
    if not loaders:
        return _working(found)
    worked = any(
        child.last.cpu_s - child.first.cpu_s > 0.02
        or (child.last.io_bytes or 0) - (child.first.io_bytes or 0) > _LITTLE_IO
        for child in loaders
    )
    places = [_line(_in_worker(child.last.frames)) for child in loaders]
    place = next((place for place in places if place), "")
    moves = worked or (not _same_stacks(found.fact) and not _rests(found.fact))
    return Doing(
        found.fact,
        "data",
        line=_line(_of_script(found.fact.looks[-1].frames)),
        moves=moves,
        words="waits for data",
        helper_line=place,
    )


def _in_worker(frames: Sequence[str]) -> Sequence[str]:
    """What a worker of a loader has called itself: below it stand the frames of the rank that forked it."""
    place = next((at for at, frame in enumerate(frames) if frame.endswith(" in _worker_loop")), len(frames))
    return frames[place + 1 :]


def _of_script(frames: Sequence[str]) -> Sequence[str]:
    """The frames above the data loader."""
    place = next(
        (at for at, frame in enumerate(frames) if "/torch/utils/data/dataloader.py" in frame), len(frames)
    )
    return frames[:place]


def _working(found: Doing) -> Doing:
    """Whether a rank outside of collectives gets on: None where it computes and its stack says no more."""
    rank = found.fact
    loops = _loops(rank)
    moves: bool | None = None
    if loops:
        moves = False
    elif _io(rank) > _LITTLE_IO or any(
        c.last.cpu_s - c.first.cpu_s > 0.1 for c in rank.children if c.kind != "loader"
    ):
        moves = True
    elif _used(rank) <= _IDLE:
        moves = False
    elif not _same_stacks(rank) or (found.kind in ("compile", "start") and _used(rank) > _BUSY):
        moves = True
    return Doing(rank, found.kind, line=found.line, moves=moves, loops=loops, words=found.words)


def _loops(rank: LiveRankFact) -> bool:
    """Whether it runs a few lines of the job's own Python again and again, and calls nothing that takes time."""
    looks = [look for look in rank.looks if look.frames]
    if len(looks) < 3 or _main_used(rank) <= _BUSY or _io(rank) > _LITTLE_IO:
        return False
    leaves = [look.frames[-1] for look in looks]
    if any(_line(look.frames) != look.frames[-1] for look in looks):
        return False
    held = sum(look.holds_gil for look in looks)
    outer = {
        tuple(map(_without_line, look.frames[:-1]))[: min(map(len, (look.frames for look in looks))) - 1]
        for look in looks
    }
    places, functions = set(leaves), set(map(_without_line, leaves))
    return (
        len(outer) == 1
        and 2 * held > len(looks)
        and len(places) <= _PLACES_OF_A_LOOP
        and len(functions) <= _FUNCTIONS_OF_A_LOOP
    )


# --- figures -------------------------------------------------------------------------------------------


def _seconds(rank: LiveRankFact) -> float:
    return max(rank.looks[-1].at_s - rank.looks[0].at_s, 0.1)


def _used(rank: LiveRankFact) -> float:
    """Cores that all its threads used."""
    return (rank.looks[-1].cpu_s - rank.looks[0].cpu_s) / _seconds(rank)


def _main_used(rank: LiveRankFact) -> float:
    return (rank.looks[-1].main_cpu_s - rank.looks[0].main_cpu_s) / _seconds(rank)


def _switched(rank: LiveRankFact) -> int:
    return rank.looks[-1].main_switches - rank.looks[0].main_switches


def _io(rank: LiveRankFact) -> int:
    return (rank.looks[-1].io_bytes or 0) - (rank.looks[0].io_bytes or 0)


def _same_stacks(rank: LiveRankFact) -> bool:
    return len({look.frames for look in rank.looks if look.frames}) <= 1


def _function(frame: str) -> str:
    return frame.rpartition(" in ")[2].rpartition(".")[2]


def _without_line(frame: str) -> str:
    return re.sub(r":\d+ in ", " in ", frame)


def _line(frames: Sequence[str]) -> str:
    """The innermost frame of the job's own code."""
    own = of_the_job(frames)
    return own[-1] if own else ""
