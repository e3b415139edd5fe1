"""Processes in a lab host, known by their ids outside of it."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.waiting import LIMIT_S, wait_until


def to_its_end(
    argv: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    given: str | None = None,
    limit_s: float = LIMIT_S,
    check: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, by default in this directory and environment, and return its output."""
    return subprocess.run(
        argv, env=env, cwd=cwd, input=given, timeout=limit_s, check=check, capture_output=True, text=True
    )


class HostProcess:
    """A command in a host. ``pid`` is its id outside; its output goes to ``out``.stdout and .stderr."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], out: Path) -> None:
        self.stdout = out.with_suffix(".stdout")
        self.stderr = out.with_suffix(".stderr")
        self.started = time.monotonic()
        with self.stdout.open("w") as stdout, self.stderr.open("w") as stderr:
            self._entering = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=dict(env), start_new_session=True
            )
        self.ended: float | None = None  # time.monotonic()

    @property
    def pid(self) -> int | None:
        """The pid of the command, a child of the process that entered the host; None if it has exited."""
        wait_until(lambda: self._entering.poll() is not None or _children(self._entering.pid), "the command starts")
        return next(iter(_children(self._entering.pid)), None)

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the process runs."""
        code = self._entering.poll()
        if code is not None and self.ended is None:
            self.ended = time.monotonic()
        return code

    def wait(self, timeout_s: float = LIMIT_S) -> int:
        """Return its exit code. Raises subprocess.TimeoutExpired and leaves it running."""
        code = self._entering.wait(timeout_s)
        self.poll()
        return code

    def wait_for_output(self, text: str) -> None:
        """Wait until it has printed the text. Raises AssertionError with its errors if it exits before."""
        wait_until(lambda: text in self.output() or self.poll() is not None, f"{self._entering.args!r} prints {text!r}")
        assert text in self.output(), f"no {text!r} from {self._entering.args!r}: {self.errors()}"

    def signal(self, number: int) -> None:
        """Send a signal to the command unless it has exited."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.signal(signal.SIGKILL)

    def output(self) -> str:
        """Return the standard output of the process."""
        return self.stdout.read_text(errors="replace")

    def errors(self) -> str:
        """Return the standard error of the process."""
        return self.stderr.read_text(errors="replace")


def pids_in(first: int) -> Iterator[int]:
    """Yield all processes in the process namespace of ``first``, by their pids outside."""
    wanted = Path(f"/proc/{first}/ns/pid").stat().st_ino
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/pid").stat().st_ino == wanted:
                yield int(entry.name)


def pids_with(variable: str) -> Iterator[int]:
    """Yield all processes with this ``NAME=value`` in their environment; zombies have none."""
    for entry in Path("/proc").iterdir():  # glob reads the state of each entry and raises if a process has just exited
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def comm(pid: int) -> str:
    """Return the name of a process, at most 15 characters; empty if it has exited."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def state(pid: int) -> str:
    """Return the state letter that ps shows: T is stopped, S sleeps; empty if the process has exited."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
