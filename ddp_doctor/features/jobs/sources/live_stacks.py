"""Python stacks of running processes from py-spy, which reads their memory and never stops them, or why it cannot."""

import os
import pwd
import re
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ddp_doctor.features.jobs.facts import Refused
from ddp_doctor.features.jobs.live_frames import BACKWARD, C10D_WRAPPER, GROUP_AT, OWN_BACKWARD, SPAWNED
from ddp_doctor.parse.frames import is_of_the_users_files
from ddp_doctor.parse.json_value import OTHER_SHAPE, json_value
from ddp_doctor.sources import proc
from ddp_doctor.sources.commands import find_executable, run_command

#: One stack takes a tenth of a second, or some tenths on a busy machine.
_PATIENCE_S = 3.0
_MOST_AT_ONCE = 8
_LARGEST_SOURCE_BYTES = 4 << 20
_LONGEST_WORDS = 200
_SYS_PTRACE = 1 << 19  # linux/capability.h
#: Prints a kilobyte of each variable, so that lists of tensors do not hide the values after them.
_LOCALS = "-lll"
_NONE = ("None", "none")
Frames = list[dict[str, object]]
_NOT_INSTALLED = Refused(
    door="stacks", why="py-spy is not installed in the environment of ddp-doctor", grant="pip install py-spy"
)


@dataclass(frozen=True)
class Stack:
    """The stack of the thread that trains, outermost frame first, and of autograd's thread if it waits for that."""

    frames: tuple[str, ...] = ()
    holds_gil: bool = False
    default_group: bool | None = None  # whether the call of torch.distributed is on the default group
    thread: int | None = None  # the thread that trains, if it is not the main thread
    spawned_as: int | None = None  # the number that mp.spawn gave the process
    refused: Refused | None = None


def stacks(pids: Sequence[int], env: Mapping[str, str], end: float, *, with_groups: bool = False) -> dict[int, Stack]:
    """Return the stacks of all processes, read several at a time until ``end`` of time.monotonic()."""
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if os.access(beside, os.X_OK) else find_executable("py-spy", env)
    if program is None:
        return {pid: Stack(refused=_NOT_INSTALLED) for pid in pids}
    if not pids:
        return {}
    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(pids))) as pool:
        found = pool.map(lambda pid: _stack(program, pid, env, end, with_groups=with_groups), pids)
        return dict(zip(pids, found, strict=True))


def _stack(program: str, pid: int, env: Mapping[str, str], end: float, *, with_groups: bool) -> Stack:
    words = [program, "dump", "--nonblocking", "--full-filenames", "--json", "--pid", str(pid)]
    done = run_command(words + [_LOCALS] * with_groups, env, min(_PATIENCE_S, end - time.monotonic()))
    try:
        threads = json_value(done.stdout)
        numbers = {str(pid), *proc.status(pid).get("NSpid", "").split()}  # it has another pid in its own namespace
        main = next(
            (thread for thread in threads if str(thread["os_thread_id"]) in numbers),
            # A process forked by a thread of its parent keeps that thread's number.
            threads[0] if len(threads) == 1 else None,
        )
        if main is None:
            return Stack(refused=Refused(door="stacks", why="py-spy does not report which thread runs the script"))
        trains = _that_trains(main, threads)
        frames = _frames(trains, threads)
        thread = int(str(trains["os_thread_id"]))
        return Stack(
            tuple(map(_text, frames)),
            bool(trains["owns_gil"]),
            _on_default_group(frames) if with_groups else None,
            thread if trains is not main and thread in proc.thread_ids(pid) else None,
            _spawned_as(frames) if with_groups else None,
        )
    except OTHER_SHAPE:
        return Stack(refused=why_refused(pid, done.stderr))


def _that_trains(main: Mapping[str, Frames], threads: Sequence[Mapping[str, Frames]]) -> Mapping[str, Frames]:
    """Return the main thread if it runs the job's own code; otherwise the thread that does, as in Ray Train workers."""

    def is_own(thread: Mapping[str, Frames]) -> bool:
        return any(is_of_the_users_files(str(frame["filename"])) for frame in thread["frames"])

    works = is_own(main) or any("/torch/" in str(frame["filename"]) for frame in main["frames"])
    return main if works else next(filter(is_own, threads), main)


def _frames(main: Mapping[str, Frames], threads: Sequence[Mapping[str, Frames]]) -> Frames:
    """Return the main thread's frames. In a backward on a GPU, autograd's frames follow, as on the CPU."""
    frames = list(reversed(main["frames"]))
    if not frames or not BACKWARD.search(_text(frames[-1])):
        return frames
    others = (list(reversed(thread["frames"])) for thread in threads if thread is not main)
    return frames + next((own for own in others if own and OWN_BACKWARD.search(_text(own[0]))), [])


def _text(frame: Mapping[str, object]) -> str:
    return f"{frame['filename']}:{frame['line']} in {frame['name']}"


def _spawned_as(frames: Sequence[dict[str, object]]) -> int | None:
    for frame in frames:
        if SPAWNED.search(_text(frame)):
            index = _variables(frame).get("i", "")
            return int(index) if index.isdecimal() else None
    return None


def _variables(frame: Mapping[str, object]) -> dict[str, str]:
    variables = frame.get("locals")
    return {v["name"]: str(v["repr"]) for v in (variables if isinstance(variables, list) else ())}


def _on_default_group(frames: Sequence[dict[str, object]]) -> bool | None:
    """Return True if the outermost torch.distributed call got no group; None if it got one or that is unknown.

    The frame of torch's wrapper holds the arguments as they were given; the call itself replaces None with the default
    group. Calls without a wrapper keep their arguments. No other variable is read.
    """
    for at, frame in enumerate(frames):
        if "/torch/distributed/" not in str(frame["filename"]):
            continue
        texts = _variables(frame)
        if C10D_WRAPPER.search(_text(frame)):
            called = next((of for of in frames[at:] if not C10D_WRAPPER.search(_text(of))), frame)
            name = str(called["name"]).rpartition(".")[2]
            return True if _without_group(name, texts.get("args", ""), texts.get("kwargs", "")) else None
        if "group" in texts:
            return True if texts["group"] in _NONE else None
    return None


def _without_group(call: str, args: str, kwargs: str) -> bool:
    """Return True if py-spy's arguments name no group: ``(<Tensor at 0x7f00>, 0)`` and ``{"group": None}``."""
    named = re.search(r'"group": ([^,}]+)', kwargs)
    if named or "..." in kwargs or not kwargs:
        return named is not None and named[1] in _NONE
    flat, before = re.sub(r'"(?:[^"\\]|\\.)*"', "-", args[1:-1]), ""
    while flat != before:
        before, flat = flat, re.sub(r"[\[({<][^\[\](){}<>]*[\])}>]", "-", flat)
    given = [argument.strip() for argument in flat.split(",") if argument.strip()]
    at = GROUP_AT.get(call)
    if at is None or not args or "..." in given[: at + 1]:
        return False
    return len(given) <= at or given[at] in _NONE


def why_refused(pid: int, output: str) -> Refused:
    """Return why the stack of a process cannot be read, and the one setting that grants access next time."""
    own, other = proc.status(os.getpid()), proc.status(pid)
    capabilities = int(own.get("CapEff", "0"), 16)
    may_trace = bool(capabilities & _SYS_PTRACE)
    others = {int(uid) for uid in other.get("Uid", "").split()} - {os.getuid()}
    user = user_name(max(others, default=0))
    denied = re.search("denied|not permitted", output, re.IGNORECASE)
    words = [line.strip() for line in output.splitlines() if line.strip()] or ["py-spy gave no answer in time"]
    scope = (proc.read("/proc/sys/kernel/yama/ptrace_scope") or "0").strip()
    yama = f"kernel.yama.ptrace_scope is {scope}"
    reasons = (
        (not other, "the process has gone", ""),
        (
            others and not may_trace,
            f"it is a process of {user}" + ", and this root has no CAP_SYS_PTRACE" * (os.getuid() == 0),
            f"run this command as {' or as '.join(dict.fromkeys((user, 'root')))}"
            + ", with CAP_SYS_PTRACE" * (os.getuid() == 0),
        ),
        (
            int(other.get("CapPrm", "0"), 16) & ~capabilities,
            "it has capabilities (CapPrm) that this process has not (CapEff)",
            "run this command as root, with CAP_SYS_PTRACE",
        ),
        (
            not may_trace and proc.environment(pid) is None,
            "the kernel closes it to its own user: it changed user or rights when it started, or this is a sandbox",
            "run this command as root" + (", outside of what set NoNewPrivs" if own.get("NoNewPrivs") == "1" else ""),
        ),
        (not denied, words[-1].removeprefix("Error: ")[:_LONGEST_WORDS], ""),
        (
            scope == "1" and not may_trace,
            f"{yama}, so only who started a process may read it",
            "start the job below `ddp-doctor watch --`, or sudo sysctl kernel.yama.ptrace_scope=0",
        ),
        (scope == "2" and not may_trace, yama, "run this command as root, or sudo sysctl kernel.yama.ptrace_scope=0"),
        (scope == "3", yama, "a boot with kernel.yama.ptrace_scope=0"),
        (
            own.get("Seccomp") == "2",
            "a filter of system calls (seccomp) is in force here, as in containers",
            "docker run --cap-add=SYS_PTRACE",
        ),
        (
            True,
            "the kernel refused it" + ", although CapEff has SYS_PTRACE" * may_trace,
            "run this on the host, as root",
        ),
    )
    why, grant = next((why, grant) for applies, why, grant in reasons if applies)
    return Refused(door="stacks", why=why, grant=grant)


def user_name(uid: int) -> str:
    """Return the name of a user, or ``user 4711``."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def source_line(frame: str, pid: int) -> str:
    """Return the source line of a frame; empty if the file cannot be read."""
    place, _, _ = frame.partition(" in ")
    path, _, line = place.rpartition(":")
    try:
        file = Path(proc.path_of(pid, path))
        if not file.is_file() or file.stat().st_size > _LARGEST_SOURCE_BYTES:
            return ""
        return file.read_text(errors="replace").splitlines()[int(line) - 1].strip()
    except (OSError, ValueError, IndexError):
        return ""
