"""Processes that are stuck inside the NVIDIA driver, where signals do not reach them (state D).

    /proc/5403/stat      5403 (nvidia-smi) D 5396 5403 5396 0 -1 4194560 …
    /proc/5403/status    voluntary_ctxt_switches:	17
    /proc/5403/wchan     uvm_gpu_retain_by_uuid      0 if access is denied
    /proc/5403/fd/3      -> /dev/nvidia0             for one's own processes, or as root

A process that waits for a disk, or only briefly, is also in state D. Therefore a process counts only if it waits in a
function of the driver (if visible) and did not run between several samples. After a SIGKILL, the first thread of a
program may have exited (Z) while another is still stuck.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ddp_doctor.facts.node.kernel import StuckProcess
from ddp_doctor.model.context import Context
from ddp_doctor.probing.kernel_files import first_line, names_in, target_of, text_of

#: Samples, and the seconds between them: a driver that initializes GPUs delays other processes for a while.
LOOKS = 4
BETWEEN_S = 1
#: A node may have tens of thousands of processes, and reading each takes some 50 microseconds.
PATIENCE_S = 1.5
MOST_THREADS = 64
#: The driver's functions, and the prefixes of its modules' functions (nvidia-uvm, nv.c, os-interface.c).
_IN_DRIVER = re.compile(r"nvidia|uvm_|nvkms|nv_|nvswitch|rm_|os_acquire")
#: Waits that the driver shares with others; "0" and "" if access is denied.
_ANYWHERE = ("down", "down_timeout", "msleep", "0", "")
_STAT = re.compile(r"(\d{1,10}) \((.{0,64})\) ([A-Za-z]) (\d{1,10}) (?:-?\d+ ){4}(\d{1,12}) ", re.DOTALL)
_SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s*(\d{1,20})$", re.MULTILINE)
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h


class _Task(NamedTuple):
    """A thread in state D, with its directory in /proc."""

    folder: str
    pid: int
    name: str
    switches: tuple[str, ...]


def stuck_processes(ctx: Context) -> tuple[StuckProcess, ...]:
    """Return the processes that are stuck in the driver; waits between samples only if there are any."""
    began = ctx.clock()
    tasks = [task for task in _in_state_d(ctx) if _is_in_driver(ctx, task)]
    for _ in range(LOOKS - 1):
        # Without a pause between the samples, a short wait would look the same.
        if not tasks or not ctx.run(("sleep", str(BETWEEN_S))).ok:
            return ()
        tasks = [task for task in tasks if _task(ctx, task.folder, task.pid) == task]
    return tuple(_found(ctx, task, ctx.clock() - began) for task in tasks)


def _in_state_d(ctx: Context) -> Iterator[_Task]:
    """Yield the threads in state D, without kernel threads and ddp-doctor's own."""
    own = (first_line(ctx, "/proc/self/stat") or "").partition(" ")[0]
    end = ctx.clock() + PATIENCE_S
    for pid in _numbers(ctx, "/proc"):
        if ctx.clock() > end:
            return
        stat = _STAT.match(text_of(ctx, f"/proc/{pid}/stat") or "")
        if not stat or int(stat[5]) & _KERNEL_THREAD or own in (pid, stat[4]):
            continue
        if stat[3] == "D":
            folders = [f"/proc/{pid}"]
        elif stat[3] == "Z":
            folders = [f"/proc/{pid}/task/{thread}" for thread in _numbers(ctx, f"/proc/{pid}/task")]
        else:
            continue
        yield from filter(None, (_task(ctx, folder, int(pid)) for folder in folders[:MOST_THREADS]))


def _task(ctx: Context, folder: str, pid: int) -> _Task | None:
    stat = _STAT.match(text_of(ctx, f"{folder}/stat") or "")
    if not stat or stat[3] != "D":
        return None
    switches = tuple(_SWITCHES.findall(text_of(ctx, f"{folder}/status") or ""))
    return _Task(folder, pid, stat[2], switches) if switches else None


def _is_in_driver(ctx: Context, task: _Task) -> bool:
    """Return True if the thread waits in the driver. A rank that waits for its file system also holds a GPU open."""
    channel = _wait_channel(ctx, task)
    return bool(_IN_DRIVER.match(channel)) or (channel in _ANYWHERE and _device(ctx, task.pid) is not None)


def _found(ctx: Context, task: _Task, watched_s: float) -> StuckProcess:
    channel = _wait_channel(ctx, task)
    return StuckProcess(
        pid=task.pid,
        name=task.name,
        wait_channel=channel if channel not in ("", "0") else None,
        device=_device(ctx, task.pid),
        watched_s=round(watched_s, 1),
    )


def _wait_channel(ctx: Context, task: _Task) -> str:
    return (text_of(ctx, f"{task.folder}/wchan") or "").strip()[:80]


def _device(ctx: Context, pid: int) -> str | None:
    """Return a device of the driver that the process holds open, if that is visible."""
    folder = f"/proc/{pid}/fd"
    targets = (target_of(ctx, f"{folder}/{number}") or "" for number in _numbers(ctx, folder))
    return next((target for target in targets if target.startswith("/dev/nvidia")), None)


def _numbers(ctx: Context, folder: str) -> list[str]:
    return [name for name in names_in(ctx, folder) if name.isdecimal()]
