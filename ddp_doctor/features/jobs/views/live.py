"""The activity of the ranks and jobs that ``attach`` observed."""

import operator
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ddp_doctor.features.jobs import live_frames
from ddp_doctor.features.jobs.facts import ChildSeen, LiveJobFact, LiveRankFact, Look, Meeting
from ddp_doctor.model.base import grouped
from ddp_doctor.model.choices import Status
from ddp_doctor.model.recording import Recording, World, once_a_recording
from ddp_doctor.parse.frames import of_the_job

#: gone, stopped and kernel: it exited or cannot run. collective: also a backward pass or a wait for queued work. gpu:
#: it waits for its GPU. Then the activities of live_frames.py. own: its own code. unknown: no stack was read.
Kind = Literal["gone", "stopped", "kernel", "collective", "gpu", "own", "unknown"] | live_frames.Activity
#: Kinds that cannot make progress.
UNABLE = ("gone", "stopped", "kernel")
#: Fractions of a core: below the first, a thread is nearly idle; above the second, it works.
_IDLE, _BUSY = 0.02, 0.1
#: Fraction of a core. gloo's network threads poll a hundred times a second; above this, they also transfer data.
_SENDING = 0.04
#: Maximum context switches of a blocked thread in some seconds. A healthy loop sleeps and wakes far more often.
_FEW_SWITCHES = 2
_LITTLE_IO = 64 * 1024
#: gloo's threads run between at least this many pairs of samples if a rank goes from collective to collective, or data
#: comes in. If the rank waits, they ran between one pair only, when it entered its last collective.
_EXCHANGES = 2
#: Minimum number of samples for reporting a late rank.
_LOOKS_OF_LATE = 4
#: Maximum number of lines and functions of a loop without work. It runs only the job's own code.
_PLACES_OF_A_LOOP, _FUNCTIONS_OF_A_LOOP = 4, 2


@dataclass(frozen=True)
class Doing:
    """The activity of a rank. ``moves`` is None if unknown."""

    fact: LiveRankFact
    kind: Kind
    call: str = ""  # of a collective: all_reduce, backward, wait
    line: str = ""  # line of the job's own code: /home/me/train.py:31 in main
    moves: bool | None = None
    loops: bool = False  # whether it repeats a few lines and does nothing else
    words: str = ""  # "evaluates"; or why it cannot run: "stopped by a signal (state T)"
    helper_line: str = ""  # line of a worker of its data loader

    @property
    def rank(self) -> int:
        """The rank number."""
        return self.fact.rank

    @property
    def is_numbered(self) -> bool:
        """Return True if its number is a rank."""
        return self.fact.numbered_by != "order of starts"

    @property
    def has_loaders(self) -> bool:
        """Return True if it waits for workers of a data loader."""
        return self.kind == "data" and any(child.kind == "loader" for child in self.fact.children)

    @property
    def waits(self) -> bool:
        """Return True if it waits for other ranks."""
        return self.kind == "collective" and self.moves is False


def doing(rank: LiveRankFact) -> Doing:
    """Return the activity of a rank, from its samples."""
    found = _doing(rank)
    # gloo's threads that ran repeatedly show collectives with other ranks, even if the rank gets little CPU time or
    # sleeps in each step. In a rank with NCCL, they may belong to a monitor.
    counts = [look.gloo_switches for look in rank.looks]
    exchanges = not rank.over_nccl and sum(map(operator.lt, counts, counts[1:])) >= _EXCHANGES
    return replace(found, moves=True, loops=False) if exchanges and found.kind not in UNABLE else found


def _doing(rank: LiveRankFact) -> Doing:
    if unable := _unable(rank):
        kind, words = unable
        return Doing(rank, kind, line=_own_line(rank.looks[-1].frames) if rank.looks else "", moves=False, words=words)
    frames = _frames(rank)
    if not frames:
        runs = _cores_used(rank) > _IDLE or _switched(rank) > _FEW_SWITCHES
        return Doing(rank, "unknown", moves=None if runs else False)
    if call := _collective(rank, frames):
        return Doing(rank, "collective", call, _own_line(frames), _moves_in_collective(rank, call))
    own = of_the_job(frames)
    # A script may also be started by an import, so only imports below the job's innermost function count.
    functions = [frame for frame in own if not frame.endswith(" in <module>")]
    imports = frames[frames.index(functions[-1]) + 1 :] if functions else frames
    for activity, words, pattern in live_frames.ACTIVITIES:
        searched = {"evaluation": own, "start": imports}.get(activity, frames)
        # A module-level frame does not show an activity.
        if any(pattern.search(frame) for frame in searched if not frame.endswith(" in <module>")):
            found = Doing(rank, activity, line=_own_line(frames), words=words)
            return _loading(found) if activity == "data" else _working(found)
    if (rank.waits_for_gpu and rank.over_nccl) or live_frames.IN_CUDA_WAIT.search(frames[-1]):
        moves = None if _same_stacks(rank) else True
        return Doing(rank, "gpu", line=_own_line(frames), moves=moves, words="waits for its GPU")
    return _working(Doing(rank, "own", line=_own_line(frames), words="works"))


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
    saves = any(live_frames.SAVES.search(frame) for frame in _frames(rank))
    if states == {"D"} and _cores_used(rank) <= _IDLE and _io(rank) <= _LITTLE_IO and not saves:
        return "kernel", rank.looks[-1].wait_channel or ""
    return None


# --- in a collective -----------------------------------------------------------------------------------


def _collective(rank: LiveRankFact, frames: Sequence[str]) -> str:
    inner = [frame for frame in frames if not live_frames.WRAPPERS.search(frame)]
    if inner and live_frames.COLLECTIVE_FILES.search(inner[-1]):
        first = len(inner) - 1
        while first and live_frames.COLLECTIVE_FILES.search(inner[first - 1]):
            first -= 1
        return inner[first].rpartition(" in ")[2].rpartition(".")[2]
    has_groups = rank.groups > 0
    if has_groups and live_frames.BACKWARD.search(frames[-1]) and _rests(rank):
        return "backward"
    return "wait" if has_groups and rank.waits_for_work and _own_line(frames) == frames[-1] else ""


def _moves_in_collective(rank: LiveRankFact, call: str) -> bool:
    if not _same_stacks(rank):
        return True
    if call in live_frames.MEETINGS:
        return _main_used(rank) > _IDLE and not rank.over_nccl
    return not rank.over_nccl and not _rests(rank)


def _rests(rank: LiveRankFact) -> bool:
    """Return True if the main, autograd and gloo network threads were idle. Waits in NCCL use the CPU."""
    first, last = rank.looks[0], rank.looks[-1]
    if last.autograd_switches > first.autograd_switches:
        return False
    if last.network_cpu_s - first.network_cpu_s > _SENDING * _seconds(rank):
        return False
    return _switched(rank) <= _FEW_SWITCHES and _main_used(rank) <= _IDLE


# --- outside -------------------------------------------------------------------------------------------


def _loading(found: Doing) -> Doing:
    """Return the activity of a rank that waits for data, with the progress of its workers if it has any."""
    loaders = [child for child in found.fact.children if child.kind == "loader"]
    if not loaders:
        return _working(found)
    places = []
    for child in loaders:  # a worker's own frames come after those of the rank that forked it
        frames = child.last.frames
        fork = next((at for at, frame in enumerate(frames) if frame.endswith(" in _worker_loop")), len(frames))
        places.append(_own_line(frames[fork + 1 :]))
    frames = _frames(found.fact)
    loader = next((at for at, frame in enumerate(frames) if "/torch/utils/data/dataloader.py" in frame), len(frames))
    return Doing(
        found.fact,
        "data",
        line=_own_line(frames[:loader]),
        moves=_loaders_get_on(found.fact, loaders),
        words="waits for data",
        helper_line=next(filter(None, places), ""),
    )


def _loaders_get_on(rank: LiveRankFact, loaders: Sequence[ChildSeen]) -> bool | None:
    """Return None if the workers wake up repeatedly but do nothing: they may poll for data that never comes."""
    have_worked = any(
        child.last.cpu_s - child.first.cpu_s > _IDLE
        or (child.last.io_bytes or 0) - (child.first.io_bytes or 0) > _LITTLE_IO
        for child in loaders
    )
    if have_worked or (not _same_stacks(rank) and not _rests(rank)):
        return True
    woken = [child for child in loaders if child.last.main_switches - child.first.main_switches > _FEW_SWITCHES]
    if any(live_frames.IN_NETWORK.search(child.last.frames[-1]) for child in woken if child.last.frames):
        return True
    return None if woken else False


def _working(found: Doing) -> Doing:
    """Return the activity with the progress of a rank outside of collectives, None if unknown."""
    rank, loops, words = found.fact, _loops(found.fact), found.words
    helped = any(c.last.cpu_s - c.first.cpu_s > _BUSY for c in rank.children if c.kind != "loader")
    moves: bool | None
    if loops:
        moves = False
    elif _io(rank) > _LITTLE_IO or helped:
        moves = True
    elif _cores_used(rank) <= _IDLE:
        # Woken within a library, for example by network data or a timeout. A line of its own that only sleeps makes no
        # progress.
        is_woken = _switched(rank) > _FEW_SWITCHES and _own_line(_frames(rank)) != _frames(rank)[-1]
        moves, words = (None, "wakes up from time to time") if is_woken else (False, words)
        if found.kind == "checkpoint":  # storage may take minutes to answer
            moves, words = None, found.words
    elif found.kind in ("compile", "start"):
        moves = True if _cores_used(rank) + _queued(rank) > _BUSY else None
    else:
        moves = _goes_through_its_code(rank, is_known=found.kind != "own")
    return replace(found, moves=moves, loops=loops, words=words)


def _goes_through_its_code(rank: LiveRankFact, *, is_known: bool) -> bool | None:
    """Return True if its stacks show progress, or None. A polling loop has few different stacks, and none in torch."""
    looks = [look.frames for look in rank.looks if look.frames]
    different = len(set(looks))
    if different <= 1:
        return None
    in_torch = any("/torch/" in frame for frames in looks for frame in frames[-1:])
    return True if is_known or in_torch or 3 * different >= 2 * len(looks) else None


def _loops(rank: LiveRankFact) -> bool:
    """Return True if it repeats a few lines of the job's own Python and calls nothing that takes time."""
    looks = [look for look in rank.looks if look.frames]
    if len(looks) < 3 or _main_used(rank) + _queued(rank) <= _BUSY or _io(rank) > _LITTLE_IO:
        return False
    leaves = [look.frames[-1] for look in looks]
    if any(_own_line(look.frames) != look.frames[-1] for look in looks):
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


def _cores_used(rank: LiveRankFact) -> float:
    return (rank.looks[-1].cpu_s - rank.looks[0].cpu_s) / _seconds(rank)


def _main_used(rank: LiveRankFact) -> float:
    return (rank.looks[-1].main_cpu_s - rank.looks[0].main_cpu_s) / _seconds(rank)


def _queued(rank: LiveRankFact) -> float:
    return (rank.looks[-1].main_queued_s - rank.looks[0].main_queued_s) / _seconds(rank)


def _switched(rank: LiveRankFact) -> int:
    return rank.looks[-1].main_switches - rank.looks[0].main_switches


def _io(rank: LiveRankFact) -> int:
    return (rank.looks[-1].io_bytes or 0) - (rank.looks[0].io_bytes or 0)


def _same_stacks(rank: LiveRankFact) -> bool:
    return len({look.frames for look in rank.looks if look.frames}) <= 1


def _frames(rank: LiveRankFact) -> tuple[str, ...]:
    last = rank.looks[-1]
    read = next((look for look in reversed(rank.looks) if look.frames), last)
    is_as_then = (read.main_switches, read.main_cpu_s) == (last.main_switches, last.main_cpu_s)
    return read.frames if is_as_then else ()


def _without_line(frame: str) -> str:
    return re.sub(r":\d+ in ", " in ", frame)


def _own_line(frames: Sequence[str]) -> str:
    own = of_the_job(frames)
    return own[-1] if own else ""


# --- who comes last ------------------------------------------------------------------------------------


def last_to_come(ranks: Sequence[Doing]) -> tuple[Doing, str, int, int] | None:
    """Return the rank that all others await in 3/4 of the samples, its line, the number of these samples and of all."""
    looks = list(zip(*(rank.fact.looks for rank in ranks), strict=False))
    read = [at for at in looks if all(look.frames for look in at)]
    last: dict[int, list[str]] = defaultdict(list)
    for at in read:
        outside = [number for number, look in enumerate(at) if not _waits_for_others(look)]
        if len(outside) == 1:
            last[outside[0]].append(_own_line(at[outside[0]].frames))
    number, lines = max(last.items(), key=lambda of: len(of[1]), default=(0, []))
    if len(ranks) < 2 or len(read) < _LOOKS_OF_LATE or 4 * len(lines) < 3 * len(read):
        return None
    return ranks[number], max(lines, key=lines.count), len(lines), len(read)


def _waits_for_others(look: Look) -> bool:
    inner = [frame for frame in look.frames if not live_frames.WRAPPERS.search(frame)]
    in_backward = live_frames.BACKWARD.search(look.frames[-1]) is not None and look.state == "S"
    return in_backward or bool(inner and live_frames.COLLECTIVE_FILES.search(inner[-1]))


#: Names of jobs whose ranks meet at a loopback address or at an unknown address.
_OF_ONE_HOST = re.compile(r"^(?:started by )?process |(?:^|, )(?:127\.|localhost:|\[?::1)")


@dataclass(frozen=True)
class LiveJob:
    """A job with the activity of each rank, in rank order, on all hosts that were observed."""

    hosts: tuple[LiveJobFact, ...]
    ranks: tuple[Doing, ...]
    missing: Mapping[int, str | None]  # ranks that should run on observed hosts but do not, and the host if known
    is_elsewhere: bool  # whether it has ranks that were not observed

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.hosts[0].job

    @property
    def world_size(self) -> int:
        """The number of its ranks, including ranks that were not observed."""
        return max([len(self.ranks) + len(self.missing), *(host.world_size or 0 for host in self.hosts)])

    @property
    def is_numbered(self) -> bool:
        """Return True if the numbers of its ranks are known."""
        return all(rank.is_numbered for rank in self.ranks)

    @property
    def unseen(self) -> list[int]:
        """The ranks that were not observed; empty if ranks are not numbered."""
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
        """The seconds from the first sample to the last."""
        return max(host.watched_s for host in self.hosts)


def unreached(recording: Recording) -> dict[str, str]:
    """Return why hosts could not be read, by host name."""
    world = recording.world or World()
    return {
        world.hostname(reading.node): reading.reason or ""
        for reading in recording.of_check("attach")
        if reading.status is Status.FAILED
    }


@once_a_recording
def live_jobs(recording: Recording) -> tuple[LiveJob, ...]:
    """Return the jobs of a recording of attach. A job on several hosts is merged."""
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
    ends = [end for rank in ranks if rank.fact.numbered_by != "environment" for end in rank.fact.connections]
    addresses = {this.rpartition(":")[0] for this, _ in ends}
    return any(other.rpartition(":")[0] not in addresses for _, other in ends)
