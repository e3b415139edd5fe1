"""Ranks of the real NCCL on simulated machines, each machine a host with its own network."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.hosts import Host, Lab
from tests.lab.processes import HostProcess
from tests.machines.whole import Whole
from tests.planted import WAITS, libraries
from tests.planted.tree import REAL, plant, settings
from tests.waiting import wait_until

RANK = Path(__file__).with_name("rank.py")
#: Running ranks hang if none of them has printed, exited or worked in this many samples: longer than the second that
#: NCCL's own threads sleep at a time while an aborting rank waits for them.
_LOOKS, _BETWEEN_LOOKS_S = 40, 0.05
#: Processor time without output after which a wait counts as spinning: healthy ranks need 0.1 s.
_SPINNING_S = 1.0
#: ``Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA``
_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\d+\] -> (\d+)\[\d+\](?: \[\w+\])? via (\S+)")
Env = Mapping[str, str]


@dataclass(frozen=True)
class Ran:
    """The result of each rank: an exit code, negative for a signal, None if it hung; and its output."""

    codes: tuple[int | None, ...]
    said: tuple[str, ...]

    @property
    def hung(self) -> tuple[int, ...]:
        """Ranks that neither exited nor printed anything more."""
        return tuple(rank for rank, code in enumerate(self.codes) if code is None)

    def lines(self, pattern: str) -> tuple[str, ...]:
        """Return the matching lines of NCCL on any rank, each once, without time, host and process."""
        found = dict.fromkeys(line for text in self.said for line in text.splitlines() if re.search(pattern, line))
        return tuple(dict.fromkeys(re.sub(r"^(\[[-\d :]+\] )?\S+:\d+:\d+ ", "", line) for line in found))

    def via(self) -> dict[tuple[int, int], str]:
        """Return the transport from one rank to another: ``P2P/CUMEM/read`` is ``P2P/CUMEM``."""
        channels = re.findall(
            r"Channel \d+(?:/\d+)? : (\d+)\[\d+\] -> (\d+)\[\d+\](?: \[\w+\])? via (\S+)", "\n".join(self.said)
        )
        return {(int(one), int(two)): way.removesuffix("/read") for one, two, way in channels}


class Machines:
    """Planted machines on one network; a context manager. Hosts are called planted-0 and on."""

    def __init__(self, machines: Sequence[Whole]) -> None:
        self.machines = machines
        self._lab = Lab(nodes=len(machines), name="planted-")
        self._runs = 0

    def __enter__(self) -> Machines:
        self._lab.__enter__()
        try:
            for host, machine in zip(self._lab.hosts, self.machines, strict=True):
                _plant_sys(host, machine)
        except BaseException:
            self._lab.teardown()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._lab.teardown()

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self._lab.hosts

    def run(
        self,
        library: Path,
        ranks: int,
        *,
        calls: int = 1,
        size: int = 1 << 20,
        env: Env | None = None,
        of: Mapping[int, Env] | None = None,
        missing: Sequence[int] = (),
        devices: Sequence[int] | None = None,
        told: Mapping[int, Mapping[str, object]] | None = None,
    ) -> Ran:
        """Run the ranks, the same number on each machine, each with ``calls`` all-reduces of ``size`` bytes.

        ``env`` applies to all, ``of`` to single ranks; ``told`` replaces arguments of single ranks (library, rank,
        world). Fails if NCCL calls a function of CUDA that is not simulated.
        """
        self._runs += 1
        each = ranks // len(self.hosts)
        folder = self._lab.folder / f"run{self._runs}"
        folder.mkdir()
        started: dict[int, HostProcess] = {}
        for rank in range(ranks):
            if rank in missing:
                continue
            host, machine = self.hosts[rank // each], self.machines[rank // each]
            asked = {"library": library, "rank": rank, "world": ranks, **((told or {}).get(rank, {}))}
            device = devices[rank] if devices else rank % each
            argv = (RANK, asked["library"], asked["rank"], asked["world"], device, folder / "id", calls, size)
            whole = {
                "LD_LIBRARY_PATH": str(libraries()),
                "LD_PRELOAD": str(libraries() / WAITS),
                "NCCL_DEBUG": "INFO",
                **settings(machine, host.folder / "cpus.xml"),
                **(machine.nvml or {}),
                **(env or {}),
                **((of or {}).get(rank, {})),
            }
            started[rank] = host.start([sys.executable, *map(str, argv)], env=whole)
        codes = _await(list(started.values()))
        said = {rank: process.output() + process.errors() for rank, process in started.items()}
        ran = Ran(
            tuple(codes.get(started[rank]) if rank in started else 0 for rank in range(ranks)),
            tuple(said.get(rank, "") for rank in range(ranks)),
        )
        assert not (unknown := ran.lines("^planted: .* is not planted")), unknown
        return ran


def _await(processes: Sequence[HostProcess]) -> dict[HostProcess, int]:
    """Return the exit codes of processes that exit; hanging ones are killed."""
    quiet = _Quiet(processes)

    def is_over() -> bool:
        running = [process for process in processes if process.poll() is None]
        if not running or quiet.for_good():
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[0].wait(_BETWEEN_LOOKS_S)
        return False

    wait_until(is_over, "all ranks end or hang")
    codes = {process: code for process in processes if (code := process.poll()) is not None}
    for process in processes:
        if process not in codes:
            process.kill()
            process.wait()
    return codes


class _Quiet:
    """Detects that all running processes hang.

    In each of many samples all of them slept or had been spinning for long, and none has printed or exited since the
    first. A process that waits for the processor does not sleep.
    """

    def __init__(self, processes: Sequence[HostProcess]) -> None:
        self._processes = processes
        self._last: object = None
        self._looks = 0
        self._used: dict[int, float] = {}

    def for_good(self) -> bool:
        files = (file for process in self._processes for file in (process.stdout, process.stderr))
        state = (sum(file.stat().st_size for file in files), *(process.poll() for process in self._processes))
        pids = [pid for process in self._processes if process.poll() is None and (pid := process.pid)]
        if state != self._last:
            self._last, self._looks = state, 0
            self._used = {pid: _processor_s(pid) for pid in pids}
        if all(asleep(pid) or _processor_s(pid) - self._used.get(pid, 0.0) > _SPINNING_S for pid in pids):
            self._looks += 1
        return self._looks >= _LOOKS


def asleep(pid: int) -> bool:
    """Return True if no thread of a process runs, waits for a processor or disk, or has exited."""
    try:
        threads = [*Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # all have
        return False
    return all(_fields(thread)[0] not in "RDZ" for thread in threads)


def _processor_s(pid: int) -> float:
    """Return the processor time of a process; 0 if it has exited."""
    fields = _fields(Path(f"/proc/{pid}"))
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _fields(folder: Path) -> list[str]:
    """Return the kernel's fields of a process or thread after its name; a zombie's if it has exited."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", *["0"] * 20]


def _plant_sys(host: Host, machine: Whole) -> None:
    """The machine's /sys in the place of the host's own, with the host's interfaces, CPUs and cgroups."""
    root = host.folder / "sys"
    root.mkdir()
    plant(machine, root)
    mounts = (f"[ ! -e /sys/{name} ] || mount --rbind /sys/{name} {root / name}" for name in REAL)
    host.run(("sh", "-ec", "\n".join((*mounts, f"mount --rbind {root} /sys"))))
