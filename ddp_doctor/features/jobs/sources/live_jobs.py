"""The torch jobs on this host: which processes are ranks of which job, and which ranks are missing."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

from ddp_doctor.features.jobs.facts import NumberedBy
from ddp_doctor.features.jobs.sources.live_meetings import is_launcher, of_launcher, starter
from ddp_doctor.features.jobs.sources.live_process import (
    Candidate,
    ancestors,
    below,
    candidate,
    connections,
    kind_of_child,
    network_of,
    readable,
)
from ddp_doctor.knowledge.endings import signal_name
from ddp_doctor.knowledge.launchers import launcher_of
from ddp_doctor.model.base import grouped
from ddp_doctor.sources import proc

_WORLD_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_LAUNCHERS = {"torchrun": "torchrun", "slurm": "srun", "mpi": "mpirun"}
#: Clock ticks of one second. A rank that exited started at most this long before the earliest running rank.
_TOGETHER_TICKS = 100
_PYTHON = re.compile(r"python|torchrun|\.py\b")
_SLURM_TASKS = re.compile(r"(\d{1,6})(?:\(x\d{1,6}\))?", re.ASCII)


@dataclass(frozen=True)
class JobOnHost:
    """The part of a job that runs on this host."""

    key: str
    ranks: Mapping[int, Candidate]
    numbered_by: NumberedBy
    children: Mapping[int, Sequence[int]]  # descendants of each rank
    zombies: Mapping[int, tuple[int, str]] = field(default_factory=dict)  # by rank: pid, and how it ended
    missing: tuple[int, ...] = ()
    world_size: int | None = None
    launcher: str | None = None
    launcher_pid: int | None = None
    torch_version: str | None = None
    launchers: bool = False  # its processes are launchers without ranks

    @property
    def is_numbered(self) -> bool:
        """Return True if the numbers are ranks of the world."""
        return self.numbered_by != "order of starts"

    def renumbered(self, pids: Mapping[int | None, int]) -> "JobOnHost":
        """Return the job with these numbers, or unchanged if they do not cover its processes.

        Processes that have exited take the remaining numbers, in start order.
        """
        processes = {process.pid: process for process in self.ranks.values()}
        number_of = {pid: number for number, pid in sorted((n, pid) for n, pid in pids.items() if n is not None)}
        if number_of.keys() != processes.keys():
            return self
        left = (number for number in count() if number not in pids)
        return replace(
            self,
            ranks={number: processes[pid] for pid, number in number_of.items()},
            numbered_by="mp.spawn",
            children={number_of[process.pid]: self.children[rank] for rank, process in self.ranks.items()},
            zombies={next(left): zombie for _, zombie in sorted(self.zombies.items())},
        )


class Host:
    """The processes of this host at one moment."""

    def __init__(self, pids: Iterable[int] | None = None) -> None:
        self.parents = {pid: proc.parent(pid) for pid in (proc.pids() if pids is None else pids)}
        self.tree = grouped((parent, pid) for pid, parent in self.parents.items())
        own = {os.getpid(), *ancestors(os.getpid())}
        found = (candidate(pid) for pid in sorted(self.parents) if pid not in own)
        self.with_torch = {process.pid: process for process in found if process is not None}
        self._families = _families(self.with_torch)
        #: Ranks by pid, None if unknown.
        self._rank_of = {pid: process.rank for pid, process in self.with_torch.items()}
        for family in self._families.values():
            self._rank_of.update(family.ranks)

    def jobs(self) -> list[JobOnHost]:
        """Return the jobs, in the order of their first processes."""
        ranks = [*self.ranks()]
        by_name = grouped((self._job_name(process), process) for process in ranks)
        jobs = [self._job(*job) for name, of in by_name.items() for job in _split(name, of, self._rank_of)]
        return [*jobs, *self._launchers({process.pid for process in ranks})]

    def _launchers(self, ranks: set[int]) -> Iterable[JobOnHost]:
        started_ranks = ranks.union(*map(ancestors, ranks))
        waiting = [p for p in self.with_torch.values() if p.pid not in started_ranks and is_launcher(p)]
        for meeting, processes in grouped((of_launcher(p), p) for p in waiting).items():
            name = f"{meeting.who} (pid {processes[0].pid})"
            yield replace(self._job(name, processes), launchers=True, zombies={}, launcher_pid=None)

    def alone(self, pid: int) -> JobOnHost:
        """Return a process that has torch but is not a rank, as a separate job."""
        return self._job(f"process {pid}", [self.with_torch[pid]])

    def starter(self, pid: int) -> JobOnHost | None:
        """Return the launcher that this process is or has started, if it starts ranks through other programs."""
        processes = filter(None, map(readable, (pid, *below(pid, self.tree))))
        process = next((process for process in processes if starter(process)), None)
        if process is None:
            return None
        job = self._job(f"{starter(process)} (pid {process.pid})", [process])
        return replace(job, launchers=True, zombies={}, launcher_pid=None)

    def starters(self) -> Iterable[JobOnHost]:
        """Yield the launchers that start a Python program through other programs, such as mpirun."""
        found = [
            pid for pid in self.parents if (p := readable(pid)) and starter(p) and _PYTHON.search(" ".join(p.command))
        ]
        return (job for pid in found if proc.parent(pid) not in found and (job := self.starter(pid)))

    def is_about(self, job: JobOnHost, pid: int) -> bool:
        """Return True if a process belongs to the job or has started it."""
        is_below = any(pid in pids for pids in job.children.values())
        return is_below or any(pid in (process.pid, *ancestors(process.pid)) for process in job.ranks.values())

    def ranks(self) -> Iterable[Candidate]:
        """Yield the candidates that are ranks, without helpers of ranks and processes that only started ranks."""
        numbers = self._rank_of
        likely = [p for p in self.with_torch.values() if numbers[p.pid] is not None or p.has_groups]
        pids = {process.pid: process for process in likely}
        for process in likely:
            above = [pids[pid] for pid in ancestors(process.pid) if pid in pids]
            if any(self._is_helper_of(other, process) for other in above) or kind_of_child(process.pid) != "other":
                continue
            under = [pids[pid] for pid in below(process.pid, self.tree) if pid in pids]
            started_ranks = any(not self._is_helper_of(process, other) for other in under)
            if process.has_groups or process.pid in self._families or not started_ranks:
                yield process

    def _is_helper_of(self, above: Candidate, process: Candidate) -> bool:
        """Return True if a descendant is a helper: it has the same rank, or neither has a rank and it has no groups."""
        rank = self._rank_of[above.pid]
        return rank == self._rank_of[process.pid] and (rank is not None or not process.has_groups)

    def _job_name(self, process: Candidate) -> str:
        """Return the name that all ranks of a job on this host share, and ranks of other jobs do not."""
        family = self._families.get(process.pid) or self._families.get(process.parent)
        if family is not None and process.pid in family.ranks:
            return family.name
        return _job_name(process)

    def _job(self, key: str, processes: Sequence[Candidate]) -> JobOnHost:
        numbers = [self._rank_of.get(process.pid) for process in processes]
        numbered = len({*numbers} - {None}) == len(processes)
        pids = {process.pid for process in processes}
        parents = {
            process.parent for process in processes if process.pid not in self._families or process.parent in pids
        }
        dead = self._zombies(parents, processes)
        ranks = {number: p for number, p in zip(numbers, processes, strict=True) if numbered and number is not None}
        zombies: dict[int, tuple[int, str]] = {}
        if not numbered:
            order = sorted(
                [*((process.started, process.pid) for process in processes), *((at, pid) for at, pid, _ in dead)]
            )
            number_of = {pid: number for number, (_, pid) in enumerate(order)}
            ranks = {number_of[process.pid]: process for process in processes}
            zombies = {number_of[pid]: (pid, ended) for _, pid, ended in dead}
        ranks = dict(sorted(ranks.items()))
        first = next(iter(ranks.values()))
        sizes = (proc.number(process.env, *_WORLD_SIZES) for process in ranks.values())
        world_size = next((size for size in sizes if size is not None), None)
        missing = sorted(_ranks_expected_here(ranks, world_size) - set(ranks)) if numbered else []
        if missing and len(dead) == len(missing):
            zombies = {rank: (pid, ended) for rank, (_, pid, ended) in zip(missing, dead, strict=True)}
        known = launcher_of(first.env)
        launcher_pid = parents.pop() if len(parents) == 1 else None
        return JobOnHost(
            key,
            ranks,
            "environment" if numbered else "order of starts",
            {rank: below(process.pid, self.tree) for rank, process in ranks.items()},
            zombies,
            tuple(rank for rank in missing if rank not in zombies),
            world_size if numbered else max(world_size or 0, len(ranks) + len(zombies)),
            _LAUNCHERS[known] if known else None,
            launcher_pid,
            _torch_version(first.pid),
        )

    def _zombies(self, parents: set[int], ranks: Sequence[Candidate]) -> list[tuple[int, int, str]]:
        """Return the zombies with the same parent and name, started with these ranks: start, pid, how they ended."""
        name = proc.read(f"/proc/{ranks[0].pid}/comm")
        earliest = min(process.started for process in ranks) - _TOGETHER_TICKS
        found = []
        for parent in parents - {0, 1}:
            for pid in self.tree.get(parent, ()):
                fields = proc.stat_fields(pid)
                if not fields or fields[0] != "Z" or int(fields[19]) < earliest:
                    continue
                if proc.read(f"/proc/{pid}/comm") == name:
                    found.append((int(fields[19]), pid, ended(pid)))
        return sorted(found)


@dataclass(frozen=True)
class _Family:
    """A rank that started the other ranks of its host, as Lightning's own launcher does. ``ranks`` are by pid."""

    name: str
    ranks: Mapping[int, int]


def _families(processes: Mapping[int, Candidate]) -> dict[int, _Family]:
    """Return processes that started others with LOCAL_RANK 1 and up, and are local rank 0 themselves, by their pids.

    All have MASTER_ADDR, MASTER_PORT, NODE_RANK, LOCAL_RANK and WORLD_SIZE in their environment, but no RANK. The
    process that started the others sets them itself, so only its memory shows them
    (lightning.fabric.strategies.launchers.subprocess_script).
    """
    found = {}
    for parent, children in grouped((process.parent, process) for process in processes.values()).items():
        local = {p.pid: p.local_rank for p in children if p.rank is None and "MASTER_PORT" in p.env}
        known = {pid: rank for pid, rank in local.items() if rank}  # a helper of the parent inherits 0
        first_rank = processes.get(parent)
        if first_rank is None or first_rank.rank is not None or first_rank.local_rank or not known:
            continue
        if 0 in local.values() and not first_rank.has_groups:
            continue  # the parent only starts ranks
        env = processes[next(iter(known))].env
        first = (proc.number(env, "NODE_RANK", "GROUP_RANK") or 0) * (max(known.values()) + 1)
        ranks = {parent: first} | {pid: first + rank for pid, rank in known.items()}
        found[parent] = _Family(f"{env.get('MASTER_ADDR', 'localhost')}:{env['MASTER_PORT']}", ranks)
    return found


def _split(
    name: str, ranks: Sequence[Candidate], rank_of: Mapping[int, int | None]
) -> Iterable[tuple[str, list[Candidate]]]:
    """Split processes of one name into jobs. In a job, each number occurs once, and unnumbered ranks are connected.

    Several jobs share MASTER_ADDR and MASTER_PORT in separate network namespaces, or if ranks of an earlier job
    are still running.
    """
    if len(numbers := [rank_of[p.pid] for p in ranks if rank_of[p.pid] is not None]) > len(set(numbers)):
        by_network = grouped((network_of(process.pid), process) for process in ranks)
        by_parent = grouped((f"started by process {process.parent}", process) for process in ranks)
        parts = by_network if len(by_network) > 1 else by_parent
        if len(parts) > 1:
            return [(f"{name}, {part}", members) for part, members in parts.items()]
    if any(rank_of[process.pid] is None for process in ranks):
        connected = _connected(ranks)
        return [(f"{name}, first {part[0].pid}" if len(connected) > 1 else name, part) for part in connected]
    return [(name, list(ranks))]


def _connected(processes: Sequence[Candidate]) -> list[list[Candidate]]:
    ends = {
        process.pid: {(this, other) for this, other, *_ in of.values()}
        for process, of in zip(processes, connections([p.pid for p in processes]).values(), strict=True)
    }
    at = {end: pid for pid, of in ends.items() for end in of}
    part = {process.pid: process.pid for process in processes}
    for pid, of in ends.items():
        for this, other in of:
            joined, into = part[at.get((other, this), pid)], part[pid]
            part = {member: into if now == joined else now for member, now in part.items()}
    parts = grouped((part[process.pid], process) for process in processes)
    joined_parts = [of for of in parts.values() if len(of) > 1]
    alone = [process for of in parts.values() if len(of) == 1 for process in of]
    return [*joined_parts, *([alone] if alone else [])]


def _job_name(process: Candidate) -> str:
    address, port = process.env.get("MASTER_ADDR"), process.env.get("MASTER_PORT")
    slurm = process.env.get("SLURM_JOB_ID")
    if process.env.get("RANK") and address and port:
        host = f"{address}:{port}"
        return f"SLURM job {slurm}, {host}" if slurm else host
    if slurm and process.rank is not None:
        return f"SLURM job {slurm}, step {process.env.get('SLURM_STEP_ID', '?')}"
    return f"started by process {process.parent}"


def _ranks_expected_here(ranks: Mapping[int, Candidate], world_size: int | None) -> set[int]:
    rank, process = next(((rank, p) for rank, p in ranks.items() if "MASTER_ADDR" in p.env), next(iter(ranks.items())))
    size = proc.number(process.env, "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE")
    tasks = _SLURM_TASKS.fullmatch(process.env.get("SLURM_STEP_TASKS_PER_NODE", ""))
    if size is None and tasks and "RANK" not in process.env:
        size = int(tasks[1])
    if size is not None and process.local_rank is not None:
        return {rank - process.local_rank + at for at in range(size)}
    address = process.env.get("MASTER_ADDR", "")
    # Only ranks of this host can meet at such an address. Until then, each host may have its own job.
    if world_size and process.has_groups and (address == "localhost" or address.startswith("127.")):
        return set(range(world_size))
    return set()


def ended(pid: int) -> str:
    """Return how a zombie ended: ``SIGKILL``, ``exit 1``; empty if the kernel does not reveal it.

    Its stat then shows 0 (fs/proc/array.c, do_task_stat), under the same condition as for reading its namespaces.
    """
    try:
        Path(f"/proc/{pid}/ns/user").readlink()
        status = int(proc.stat_fields(pid)[49])
    except (OSError, IndexError):
        return ""
    if number := status & 0x7F:
        return signal_name(number) or f"signal {number}"
    return f"exit {status >> 8}"


def _torch_version(pid: int) -> str | None:
    found = re.search(r"(/\S+/torch)/lib/libtorch\w*\.so", proc.read(f"/proc/{pid}/maps") or "")
    text = proc.read(proc.path_of(pid, f"{found[1]}/version.py")) if found else None
    version = re.search(r"__version__ = '([\w.+-]{1,40})'", text or "")
    return version[1] if version else None


def of_slurm(job: JobOnHost, job_id: str) -> bool:
    """Return True if a job belongs to this SLURM job or step (``4711.0``), by its environment or control group."""
    process = next(iter(job.ranks.values()))
    job_id, _, step = job_id.partition(".")
    if step and process.env.get("SLURM_STEP_ID") != step:
        return False
    array = f"{process.env.get('SLURM_ARRAY_JOB_ID')}_{process.env.get('SLURM_ARRAY_TASK_ID')}"
    if job_id in (process.env.get("SLURM_JOB_ID"), array):
        return True
    return bool(
        re.search(rf"/job_{re.escape(job_id)}(?:/|$)", proc.read(f"/proc/{process.pid}/cgroup") or "", re.MULTILINE)
    )
