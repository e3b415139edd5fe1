"""Reads files below /proc about processes; None or empty if the process has exited or may not be read."""

import os
import re
from collections.abc import Mapping
from contextlib import suppress

#: The kernel's number of the host's own pid namespace (linux/proc_ns.h, PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = f"pid:[{0xEFFFFFFC}]"


def read(path: str) -> str | None:
    """Return the text of a file, or None."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def stat_fields(pid: int, thread: int | None = None) -> list[str]:
    """Return the fields of proc(5) stat, starting with the state; [] without such a process or thread."""
    # The command name may hold spaces and brackets: fields count from the last ")".
    where = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    text = read(where)
    return text.rpartition(")")[2].split() if text else []


def started_s(pid: int) -> float:
    """Return when a process was started, in seconds since boot."""
    return int(stat_fields(pid)[19]) / os.sysconf("SC_CLK_TCK")


def seconds(fields: list[str]) -> float:
    """Return the user and system time in stat's fields."""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_and_queued_s(pid: int, thread: int | None = None) -> tuple[float, float]:
    """Return how long a process's main thread, or another one, ran, and how long it was ready to run but did not.

    schedstat holds "4711000 123000 42": both in ns, and how often it ran. Without the file, both are 0.
    """
    words = (read(f"/proc/{pid}/task/{thread or pid}/schedstat") or "0 0").split()
    return int(words[0]) / 1e9, int(words[1]) / 1e9


def queued_s(pid: int) -> float:
    """Return how long a process's threads were ready to run but did not, in seconds; 0.0 if it has exited."""
    return sum(run_and_queued_s(pid, thread)[1] for thread in thread_ids(pid))


def status(pid: int, thread: int | None = None) -> dict[str, str]:
    """Return the lines of proc(5) status by name."""
    where = f"/proc/{pid}/status" if thread is None else f"/proc/{pid}/task/{thread}/status"
    lines = (read(where) or "").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def counts(path: str) -> dict[str, int]:
    """Return the lines ``NAME: NUMBER`` of a file such as io or status, by name; other lines are skipped."""
    fields = (line.partition(":") for line in (read(path) or "").splitlines())
    return {name: int(value) for name, _, value in fields if value.strip().isdigit()}


def environment(pid: int) -> dict[str, str] | None:
    """Return the variables that a process was started with, or None if they may not be read."""
    text = read(f"/proc/{pid}/environ")
    if text is None:
        return None
    return dict(part.split("=", 1) for part in text.split("\0") if "=" in part)


def number(env: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these variables that is a number, or None."""
    found = (env.get(name, "") for name in names)
    return next((int(text) for text in found if re.fullmatch(r"\d{1,9}", text, re.ASCII)), None)


def command(pid: int) -> list[str]:
    """Return the words of a process's command line; [] for a thread of the kernel."""
    return [word for word in (read(f"/proc/{pid}/cmdline") or "").split("\0") if word]


def parent(pid: int) -> int:
    """Return a process's parent, or 0 if it has none."""
    fields = stat_fields(pid)
    return int(fields[1]) if fields else 0


def pid_inside(pid: int) -> int | None:
    """Return a process's pid in its own pid namespace, if that is below this one (proc(5), NSpid)."""
    numbers = status(pid).get("NSpid", "").split()
    return int(numbers[-1]) if len(numbers) > 1 else None


def path_of(pid: int, path: str) -> str:
    """Return the path of a file that a process, perhaps in a container, calls ``path``."""
    return f"/proc/{pid}/root{path}" if path.startswith("/") else f"/proc/{pid}/cwd/{path}"


def in_container() -> bool:
    """Return True if this process is in a separate pid namespace, and sees only the processes in it."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid") != _FIRST_PID_NAMESPACE
    return False


def pids() -> list[int]:
    """Return the ids of all processes in this pid namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def io_bytes(pid: int) -> int | None:
    """Return the bytes that passed read(2), write(2) and similar calls so far, or None if not reported."""
    io = counts(f"/proc/{pid}/io")
    return io["rchar"] + io["wchar"] if io else None


def wait_channel(pid: int, thread: int | None = None) -> str | None:
    """Return the kernel function of a sleeping thread, by default the main thread; None if not reported."""
    text = read(f"/proc/{pid}/task/{thread or pid}/wchan")
    return text if text and text != "0" else None


def open_files(pid: int) -> list[str]:
    """Return the targets of a process's file descriptors: paths, ``socket:[4711]``."""
    found = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def thread_ids(pid: int) -> list[int]:
    """Return the ids of a process's threads, or [] if it has exited."""
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def threads(pid: int) -> dict[int, str]:
    """Return the names of a process's threads."""
    return {number: (read(f"/proc/{pid}/task/{number}/comm") or "").strip() for number in thread_ids(pid)}
