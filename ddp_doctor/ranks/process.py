"""Kernel calls and /proc readers for processes: die with the parent, the name in ``ps``, states, passed JSON."""

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
    """Request SIGKILL when the parent dies, and exit immediately if it is already dead.

    The kernel watches the *thread* that forked this process (prctl(2)), so parents fork from their main thread.
    """
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


def set_name(name: str) -> None:
    """Name this process in ``ps`` and ``top`` (the kernel keeps 15 characters)."""
    _LIBC.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def redirect_output(path: str) -> None:
    """Append everything that this process prints from now on, including its libraries, to a file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)


def hand_over(path: str, fields: Mapping[str, object]) -> None:
    """Write JSON for another process, which finds all of it or no file."""
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(fields, file)
    os.replace(path + ".tmp", path)


def state(pid: int) -> str | None:
    """Return the process state letter of proc(5) (R, S, D, T, t, Z), or None if there is no process."""
    fields = proc.stat_fields(pid)
    return fields[0] if fields else None


def has_ended(pid: int) -> bool:
    """Return True if the process does not exist or is a zombie."""
    return state(pid) in (None, "Z", "X")


def started(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot; with the pid it identifies a process."""
    fields = proc.stat_fields(pid)
    return int(fields[19]) if fields else None


def cpu_seconds(pid: int) -> float | None:
    """Return the user and system time used so far, in seconds."""
    fields = proc.stat_fields(pid)
    return proc.seconds(fields) if fields else None


def with_children(pid: int, most: int) -> list[int] | None:
    """Return the process and its descendants, or None if the kernel does not show them.

    /proc/PID/task/TID/children holds "4711 4712 ", and exists if the kernel has CONFIG_PROC_CHILDREN.
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
    """Kill children that were stopped before they could ask to die with their parent: they would never end."""
    for pid in _children(os.getpid()) or ():
        if state(pid) in ("T", "t") or _is_pending(pid, signal.SIGSTOP):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_pending(pid: int, number: signal.Signals) -> bool:
    """Return True if the process was sent this signal and has not handled it yet (ShdPnd in proc(5))."""
    return bool(int(proc.status(pid).get("ShdPnd", "0"), 16) >> (number - 1) & 1)


def nccl_segments(pid: int, since: float) -> list[str]:
    """Return NCCL's /dev/shm files that a process maps and that were made after ``since`` (epoch seconds).

    A rank that is killed before its peers attached leaves them behind; older files belong to other jobs.
    """
    lines = (proc.read(f"/proc/{pid}/maps") or "").splitlines()
    found = []
    for path in sorted({line.split(None, 5)[5] for line in lines if "/dev/shm/nccl-" in line}):
        with suppress(OSError):  # already unlinked, which /proc marks "(deleted)"
            if os.stat(path).st_ctime >= since:
                found.append(path)
    return found


#: The forkserver's own pid; the workers forked from it compare their parent with it.
FORKSERVER_PID = os.getpid()


def oom_kills(*, of_host: bool = True) -> int:
    """Return the number of OOM kills in this process's memory cgroup or on the host; 0 if not counted."""
    files = []
    for line in (proc.read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):  # version 1: each controller has its own tree (cgroups(7))
            files.append(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
        elif not controllers:
            files.append(f"/sys/fs/cgroup{path}/memory.events")
    files += ["/proc/vmstat"] if of_host else []
    counts = [re.search(r"^oom_kill (\d+)$", proc.read(file) or "", re.MULTILINE) for file in files]
    return max((int(found[1]) for found in counts if found), default=0)
