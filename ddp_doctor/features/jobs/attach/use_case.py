"""``ddp-doctor attach``: show what the jobs on this host do now, and which ranks hold them up. Read-only."""

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from ddp_doctor.app.outcome import Outcome, UsageError, blank, judge
from ddp_doctor.facts.given import FlightDumpFact
from ddp_doctor.features.jobs.facts import JobLogFact, LiveJobFact, LiveRankFact, Look, Meeting, Refused
from ddp_doctor.features.jobs.live_frames import COLLECTIVE_FILES, WAITS_FOR_GPU, WAITS_FOR_WORK
from ddp_doctor.features.jobs.reading.ras import stand_still
from ddp_doctor.features.jobs.sources import live_doors, live_meetings, live_process
from ddp_doctor.features.jobs.sources.live_gpus import GpuUse, gpu_of, gpu_use, has_gpu
from ddp_doctor.features.jobs.sources.live_jobs import Host, JobOnHost, ended, of_slurm
from ddp_doctor.features.jobs.sources.live_process import Children, Watched, connections, unacknowledged, waits_for
from ddp_doctor.features.jobs.sources.live_stacks import Stack, source_line, stacks, user_name, why_refused
from ddp_doctor.model.choices import Command
from ddp_doctor.model.error_text import quoted
from ddp_doctor.model.fact import Fact, Reading
from ddp_doctor.model.recording import Options
from ddp_doctor.parse.flight_recorder import read_dump, still_open
from ddp_doctor.parse.frames import is_of_the_job
from ddp_doctor.sources import proc

#: Number of samples per process, and their duration, which is enough to distinguish a loop from work.
_LOOKS, SECONDS = 6, 4.0
#: For a longer observation: the maximum number of samples, and the usual pause between them.
_MOST_LOOKS, _LONG_PAUSE_S = 40, 5.0
#: After one rank of a job exits, the others usually exit within this time. torch needs a second or two to exit.
_ENDING_S, _ENDING_PAUSE_S = 3.0, 0.05
#: Minimum number of samples for a diagnosis, however late it is.
_FEWEST_LOOKS = 4
#: No further sample starts this long after the observation time, so that the report is complete within ten seconds.
_ENOUGH_S = 2.5
#: Additional time for an endpoint to answer.
_ANSWER_S = 1.5
#: Answers of a job are not awaited longer than this after the observation time, or after the start of the last sample
#: if that is later.
_LONGEST_S, _LAST_S = 4.0, 1.5
_MOST_LOADERS = 8
#: If there are more ranks, the waiting ranks are not read in each sample.
_MOST_IN_EACH_LOOK = 16


@dataclass(frozen=True)
class Watching:
    """The settings of an observation, here or on other hosts. ``progress`` receives the current activity."""

    ignore: tuple[str, ...] = ()  # codes or code prefixes of rules to ignore
    progress: Callable[[str], None] = lambda _: None
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)
    seconds: float = SECONDS


def attach(
    pids: Sequence[int] | None = None,
    slurm_job: str | None = None,
    how: Watching | None = None,
    *,
    from_start: bool = False,
) -> Outcome:
    """Diagnose the jobs of these processes (ranks or launchers), of a SLURM job, or all readable jobs on this host.

    Takes one second longer than the observation, and at most six seconds longer. May be called repeatedly.
    ``from_start``: count the time from the start of this process. Raises UsageError if there is no job to observe.
    """
    started, how = time.monotonic(), how or Watching()
    recording = blank(Options(command=Command.ATTACH, ignore=how.ignore), env=how.env)
    jobs = _chosen(pids, slurm_job)
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - proc.started_s(os.getpid())
    watch = _Watch(jobs, how, started - (max(0.0, age_s) if from_start else 0.0))
    readings = watch.readings()
    duration_s = time.monotonic() - started
    return judge(recording.model_copy(update={"readings": readings, "duration_s": duration_s}))


# --- which jobs --------------------------------------------------------------------------------------


def _chosen(pids: Sequence[int] | None, slurm_job: str | None) -> list[JobOnHost]:
    if pids is not None:
        return _of_processes(pids)
    if slurm_job is not None and not re.fullmatch(r"\d{1,10}(?:_\d{1,10})?(?:\.\d{1,10})?", slurm_job, re.ASCII):
        raise UsageError(f"invalid --slurm-job {quoted(slurm_job)}: expected a job ID, for example 4711 or 4711_3")
    host = Host()
    jobs = host.jobs()
    if slurm_job is not None:
        jobs = [job for job in jobs if of_slurm(job, slurm_job)]
        if not jobs:
            raise UsageError(
                f"found no readable process on this host that belongs to SLURM job {slurm_job} and has torch loaded;"
                " run attach on a node of the job, as its user or as root"
            )
    jobs = jobs or [*host.starters()]
    if not jobs:
        closed = next(filter(_is_closed, proc.pids()), None)
        if closed is not None:
            raise UsageError(_why_not(closed))
        whose = "" if os.getuid() == 0 else "of yours "
        where = "in this container" if proc.in_container() else "on this host"
        raise UsageError(f"found no running torch job {whose}{where}; name a process with --pid")
    return jobs


def _is_closed(pid: int) -> bool:
    """Return True if it is a Python program of this user that still may not be read."""
    is_own = (proc.status(pid).get("Uid") or "-").split()[0] == str(os.getuid())
    name = proc.read(f"/proc/{pid}/comm") or ""
    return is_own and name.startswith(("python", "pt_")) and proc.environment(pid) is None


def _of_processes(pids: Sequence[int]) -> list[JobOnHost]:
    left = [pid for pid in pids if proc.environment(pid) is not None]
    if not left:
        raise UsageError(_why_not(pids[0]))
    host = Host()
    jobs = host.jobs()
    chosen: dict[str, JobOnHost] = {}
    for pid in left:
        found = [job for job in jobs if host.is_about(job, pid)]
        if not found and (starter := host.starter(pid)):
            found = [starter]
        if not found and pid in host.with_torch:
            found = [host.alone(pid)]
        chosen.update((job.key, job) for job in found)
    if not chosen:
        raise UsageError(_why_not(left[0]))
    return list(chosen.values())


def _why_not(pid: int) -> str:
    fields = proc.stat_fields(pid)
    if not fields:
        return f"process {pid} does not exist on this host"
    name = (proc.read(f"/proc/{pid}/comm") or "").strip()
    if fields[0] == "Z":
        return f"process {pid} ({name}) has exited; its parent has not collected its exit code"
    uid = int((proc.status(pid).get("Uid") or "0").split()[0])
    if os.getuid() in (0, uid) and not proc.command(pid) and not proc.read(f"/proc/{pid}/maps"):
        return f"process {pid} ({name}) is a kernel thread"
    if proc.environment(pid) is None and os.getuid() in (0, uid):
        refused = why_refused(pid, "denied")
        return f"cannot read process {pid} ({name}): {refused.why}; {refused.grant}"
    if proc.environment(pid) is None:
        user = user_name(uid)
        users = " or as ".join(dict.fromkeys((user, "root")))
        return f"process {pid} ({name}) belongs to {user}; run this command as {users}"
    return f"neither process {pid} ({name}) nor any of its child processes has torch loaded"


# --- looking -----------------------------------------------------------------------------------------


class _Watch:
    def __init__(self, jobs: Sequence[JobOnHost], how: Watching, begun_at: float) -> None:
        self._jobs, self._env, self._progress = jobs, how.env, how.progress
        self._number = min(max(_LOOKS, int(how.seconds / _LONG_PAUSE_S) + 1), _MOST_LOOKS)
        self._pause_s = how.seconds / max(self._number - 1, 1)
        self._enough_at, self._end = begun_at + how.seconds + _ENOUGH_S, begun_at + how.seconds + _LONGEST_S
        self._host = socket.gethostname()
        self.pids = [process.pid for job in jobs for process in job.ranks.values()]
        #: Launchers such as mpirun, which have no Python stack.
        self._starters = {
            p.pid for job in jobs if job.launchers for p in job.ranks.values() if live_meetings.starter(p)
        }
        self._watched = {pid: Watched(pid) for pid in self.pids}
        self._looks: dict[int, list[Look]] = {pid: [] for pid in self.pids}
        self._gpus: list[GpuUse] = []
        self._ended: dict[int, str] = {}  # exit codes by pid, empty if unknown
        self._servers: Mapping[int, live_doors.Address] = {}
        self._children = {
            process.pid: Children(job.children[rank]) for job in jobs for rank, process in job.ranks.items()
        }

    def readings(self) -> tuple[Reading, ...]:
        started = time.monotonic()
        candidates = [process for job in self._jobs for process in job.ranks.values()]
        with self._sampled_gpus():
            self._first = self._look(self.pids, with_groups=True)
        self._before = connections(self.pids)
        self._jobs = [job if job.is_numbered else self._numbered_by_spawn(job) for job in self._jobs]
        self._servers = live_doors.worker_servers(candidates, self._end)
        self._dumps = live_doors.flight_dumps(self._servers, self._end)
        ras = live_doors.ras_port(candidates)
        self._ras_said = [live_doors.ras_status(ras, self._end) if ras else ""]
        for children in self._children.values():
            children.begin()
        are_few = len(self.pids) <= _MOST_IN_EACH_LOOK
        innermost = {pid: stack.frames[-1] for pid, stack in self._first.items() if stack.frames}
        waiting = {pid for pid, frame in innermost.items() if COLLECTIVE_FILES.search(frame)}
        read = [pid for pid in self.pids if are_few or pid not in waiting]
        for number in range(2, self._number):
            if number >= _FEWEST_LOOKS and time.monotonic() > self._enough_at:
                break
            time.sleep(max(0.0, started + (number - 1) * self._pause_s - time.monotonic()))
            self._progress(f"sample {number} of {self._number}, {len(self.pids)} ranks")
            self._look(read)
        earliest, usual = (started + (looks - 1) * self._pause_s for looks in (_FEWEST_LOOKS, self._number))
        time.sleep(max(0.0, min(usual, max(earliest, self._enough_at)) - time.monotonic()))
        self._end = max(self._end, time.monotonic() + _LAST_S)
        with self._sampled_gpus():
            self._last = self._look(self.pids, with_groups=True)
        self._after = connections(self.pids)
        self._follow_endings()
        self._ras_said.append(live_doors.ras_status(ras, self._end) if ras else "")
        of_jobs: list[list[tuple[int | None, Fact]]] = [
            [(None, self._job(job)), *self._ranks(job), *self._zombies(job), *self._recorders(job)]
            for job in self._jobs
        ]
        ras_facts = list[tuple[None, JobLogFact]]()
        if any(self._ras_said):  # last, because it takes a moment: live processes must be read right after their stacks
            from ddp_doctor.features.jobs.reading.assemble import fact_of_text  # few jobs need its tables
            from ddp_doctor.features.jobs.reading.ras import text_of_ras

            with suppress(ValueError):
                text = text_of_ras("".join(self._ras_said).encode())
                ras_facts.append((None, fact_of_text("NCCL RAS", text, datetime.now(timezone.utc).year)))
        return tuple(fact.collected("attach", rank=rank) for of_job in of_jobs for rank, fact in (*of_job, *ras_facts))

    def _numbered_by_spawn(self, job: JobOnHost) -> JobOnHost:
        pids = {self._first[process.pid].spawned_as: process.pid for process in job.ranks.values()}
        on_one_host = not any(live_process.to_other_addresses(self._before[pid]) for pid in pids.values())
        return job.renumbered(pids) if on_one_host else job

    def _follow_endings(self) -> None:
        """Wait until jobs with an exited rank have exited, and keep the exit codes that the kernel shows.

        An interpreter that is exiting no longer has a Python stack.
        """
        end = time.monotonic() + _ENDING_S
        for job in self._jobs:
            pids = [process.pid for process in job.ranks.values()]
            is_ending = any(self._has_ended(p) or (self._first[p].frames and not self._last[p].frames) for p in pids)
            while is_ending and [pid for pid in pids if not self._has_ended(pid)] and time.monotonic() < end:
                time.sleep(_ENDING_PAUSE_S)

    def _has_ended(self, pid: int) -> bool:
        fields = proc.stat_fields(pid)
        if fields and fields[0] == "Z":
            self._ended[pid] = ended(pid) or self._ended.get(pid, "")
        elif not fields:
            self._ended.setdefault(pid, "")
        return pid in self._ended

    def _look(self, pids: Sequence[int], *, with_groups: bool = False) -> dict[int, Stack]:
        in_python = [pid for pid in pids if pid not in self._starters]
        found = dict.fromkeys(pids, Stack()) | stacks(in_python, self._env, self._end, with_groups=with_groups)
        refused = {pid: self._servers[pid] for pid in found if found[pid].refused and pid in self._servers}
        found |= {pid: Stack(frames) for pid, frames in live_doors.tracebacks(refused, self._end).items()}
        for pid in self.pids:
            stack = found.get(pid, Stack())
            self._watched[pid].thread = stack.thread or self._watched[pid].thread
            look = self._watched[pid].look(stack.frames, holds_gil=stack.holds_gil)
            if look is not None:
                self._looks[pid].append(look)
        return found

    @contextmanager
    def _sampled_gpus(self) -> Iterator[None]:
        if not any(map(has_gpu, self.pids)) or any(use.refused for use in self._gpus):
            yield
            return
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(gpu_use, self._env, self._end)
            yield
            self._gpus.append(asked.result())

    def _job(self, job: JobOnHost) -> LiveJobFact:
        ranks = [self._looks[process.pid] for process in job.ranks.values()]
        words = proc.command(job.launcher_pid) if job.launcher_pid is not None and job.launcher_pid > 1 else []
        scripts = [Path(word).name for word in (*(w for w in words[1:] if w.endswith(".py")), *words[:1])]
        return LiveJobFact(
            job=job.key,
            host=self._host,
            launcher=job.launcher or next(iter(scripts), None),
            launcher_pid=job.launcher_pid,
            world_size=job.world_size,
            missing=job.missing,
            in_container=proc.in_container(),
            torch_version=job.torch_version,
            backend=next((process.backend for process in job.ranks.values() if process.backend), None),
            refused=(*_pipes(job), *(use.refused for use in self._gpus if use.refused)),
            launched=stand_still(*self._ras_said),
            watched_s=round(max((looks[-1].at_s - looks[0].at_s for looks in ranks if looks), default=0.0), 3),
            meeting=self._meeting(job),
            ended=all(process.pid in self._ended for process in job.ranks.values()),
        )

    def _meeting(self, job: JobOnHost) -> Meeting | None:
        processes = [process for process in job.ranks.values() if process.pid not in self._ended]
        if processes and processes[0].pid in self._starters:
            return live_meetings.of_starter(processes[0], Host().tree)
        waits = all(live_meetings.is_meeting(self._last[process.pid].frames) for process in processes)
        if not processes or (not waits and not job.launchers):
            return None
        meeting = (live_meetings.of_launcher if job.launchers else live_meetings.of_rank)(processes[0])
        if not waits:
            return meeting.model_copy(update={"waits": False})
        return live_meetings.with_answer(meeting, processes, self._end + _ANSWER_S)

    def _ranks(self, job: JobOnHost) -> Iterator[tuple[int, LiveRankFact]]:
        rank_at = {
            (this, other): rank
            for rank, process in job.ranks.items()
            for this, other, *_ in self._after[process.pid].values()
        }
        for rank, process in job.ranks.items():
            peers = {inode: other for inode, (_, other, *_) in self._after[process.pid].items()}
            has_ended = process.pid in self._ended
            looks = () if has_ended else tuple(self._looks[process.pid])
            frames = looks[-1].frames if looks else ()
            text = source_line(frames[-1], process.pid) if frames and is_of_the_job(frames[-1]) else ""
            gpu, last = gpu_of(process, self._gpus, self.pids), self._last[process.pid]
            read = last if last.frames else self._first[process.pid]
            fact = LiveRankFact(
                job=job.key,
                host=self._host,
                pid=process.pid,
                pid_inside=proc.pid_inside(process.pid),
                rank=rank,
                numbered_by=job.numbered_by,
                gpu=gpu,
                gpu_use=tuple(use.busy[gpu] for use in self._gpus if gpu is not None and gpu in use.busy),
                looks=looks,
                children=self._children[process.pid].seen(self._stacks_of_loaders(job.children[rank], frames)),
                unacknowledged=unacknowledged(self._before[process.pid], self._after[process.pid], rank_at),
                connections=live_process.to_other_addresses(self._after[process.pid]),
                groups=process.groups,
                over_nccl=process.backend == "nccl",
                default_group=read.default_group,
                waits_for_work=bool(WAITS_FOR_WORK.search(text)),
                waits_for_gpu=bool(WAITS_FOR_GPU.search(text)),
                kernel="" if has_ended else waits_for(process.pid, self._watched[process.pid].thread, peers),
                frozen=live_process.is_frozen(process.pid),
                traced_by=live_process.tracer(process.pid),
                ended=self._ended.get(process.pid, ""),
                refused=(last.refused,) if last.refused and not has_ended else (),
            )
            yield rank, fact

    def _stacks_of_loaders(self, children: Sequence[int], frames: Sequence[str]) -> dict[int, tuple[str, ...]]:
        if not any("/torch/utils/data/dataloader.py" in frame for frame in frames):
            return {}
        likely = [pid for pid in children if live_process.kind_of_child(pid) != "compiler"]
        loaders = [pid for pid in likely if live_process.kind_of_child(pid) == "loader"] or likely
        return {pid: stack.frames for pid, stack in stacks(loaders[:_MOST_LOADERS], self._env, self._end).items()}

    def _zombies(self, job: JobOnHost) -> Iterator[tuple[int, LiveRankFact]]:
        for rank, (pid, how) in job.zombies.items():
            look = Watched(pid).look()
            looks = (look,) if look else ()
            fact = LiveRankFact(job=job.key, host=self._host, pid=pid, rank=rank, looks=looks, ended=how)
            yield rank, fact.model_copy(update={"numbered_by": job.numbered_by})

    def _recorders(self, job: JobOnHost) -> Iterator[tuple[int, FlightDumpFact]]:
        pids = {process.pid: rank for rank, process in job.ranks.items()}
        servers = {pid: server for pid, server in self._servers.items() if pid in pids}
        for pid, data in live_doors.flight_dumps(servers, self._end).items():
            place = f"rank {pids[pid]} (pid {pid} on {self._host})"
            last, first = (read_dump(of, place, time.time()) for of in (data, self._dumps.get(pid, b"")))
            yield (
                pids[pid],
                still_open(last, first).model_copy(update={"rank": pids[pid], "world_size": job.world_size}),
            )


def _pipes(job: JobOnHost) -> Iterator[Refused]:
    """Yield a refusal if ranks dump their flight recorder through pipes: using one would make the job write a file."""
    for rank, process in job.ranks.items():
        path = f"{process.env.get('TORCH_NCCL_DEBUG_INFO_PIPE_FILE', '')}{rank}.pipe"
        if path.startswith("/") and Path(path).is_fifo():
            why = "writing into its pipe makes the job write a file, so it was left alone"
            grant = f"echo 1 > {path} on each rank, then ddp-doctor logs with those files"
            yield Refused(door="flight recorder", why=why, grant=grant)
            return
