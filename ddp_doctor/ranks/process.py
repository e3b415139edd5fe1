"""What a process asks of the kernel: to die with its parent, a name in ``ps``; /proc about it; and what it hands on."""

import ctypes
import json
import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress

from ddp_doctor.sources import proc

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGKILL when the parent dies, and leave at once where it is dead already.

    The kernel watches the *thread* that forked this process (prctl(2)), so parents fork from
    their main thread.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def set_name(name: str) -> None:
    """Name this process in ``ps`` and ``top`` (the kernel keeps 15 characters)."""
    _LIBC.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def redirect_output(path: str) -> None:
    """What this process prints from now on, its libraries included, goes to the end of a file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)


def hand_over(path: str, fields: Mapping[str, object]) -> None:
    """Write JSON for another process, which finds all of it or no file."""
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(fields, file)
    os.replace(path + ".tmp", path)


def state(pid: int) -> str | None:
    """The process state letter of proc(5) (R, S, D, T, t, Z), None where there is no process."""
    fields = proc.stat_fields(pid)
    return fields[0] if fields else None


def has_ended(pid: int) -> bool:
    """Whether there is no process, or what is left of one."""
    return state(pid) in (None, "Z", "X")


def started(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot: with the pid it names one process for ever."""
    fields = proc.stat_fields(pid)
    return int(fields[19]) if fields else None


def cpu_seconds(pid: int) -> float | None:
    """User and system time used so far, in seconds."""
    fields = proc.stat_fields(pid)
    return proc.seconds(fields) if fields else None


def with_children(pid: int, most: int) -> list[int] | None:
    """The process and those that it and its children started; None where the kernel does not say.

    /proc/PID/task/TID/children holds "4711 4712 ", and is there where CONFIG_PROC_CHILDREN is.
    """
    found, left = [pid], [pid]
    while left and len(found) < most:
        children = _children(left.pop())
        if children is None:
            return None
        found += children
        left += children
    return found[:most]


def _children(pid: int) -> list[int] | None:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:  # it has just ended
        return []
    texts = [proc.read(f"/proc/{pid}/task/{thread}/children") for thread in threads]
    found = [text for text in texts if text is not None]
    if not found and state(pid) is not None:
        return None
    return [int(word) for text in found for word in text.split()]


def kill_stopped_children() -> None:
    """Kill what was forked and then stopped before it could ask to die with its parent: nothing else would end it."""
    for pid in _children(os.getpid()) or ():
        if state(pid) in ("T", "t") or _is_pending(pid, signal.SIGSTOP):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_pending(pid: int, number: signal.Signals) -> bool:
    """Return True if the process was sent this signal and has not handled it yet (ShdPnd in proc(5))."""
    return bool(int(proc.status(pid).get("ShdPnd", "0"), 16) >> (number - 1) & 1)


def nccl_segments(pid: int, since: float) -> list[str]:
    """NCCL's /dev/shm files that a process maps and that were made after ``since`` (epoch seconds).

    A rank that is killed before its peers attached leaves them behind; older ones are not ours.
    """
    lines = (proc.read(f"/proc/{pid}/maps") or "").splitlines()
    found = []
    for path in sorted({line.split(None, 5)[5] for line in lines if "/dev/shm/nccl-" in line}):
        with suppress(OSError):  # unlinked already, which /proc marks "(deleted)"
            if os.stat(path).st_ctime >= since:
                found.append(path)
    return found


#: The forkserver's own pid; the workers forked from it compare their parent with it.
FORKSERVER_PID = os.getpid()


def oom_kills(*, of_host: bool = True) -> int:
    """OOM kills so far in this process's memory cgroup or on the host; 0 where the kernel does not count them."""
    files = []
    for line in (proc.read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):  # version 1: each controller has a tree of its own (cgroups(7))
            files.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
        elif not controllers:
            files.append(f"/sys/fs/cgroup{path}/memory.events")
    files += ["/proc/vmstat"] if of_host else []
    counts = [re.search(r"^oom_kill (\d+)$", proc.read(file) or "", re.MULTILINE) for file in files]
    return max((int(found[1]) for found in counts if found), default=0)
