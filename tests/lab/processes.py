"""Processes in a lab host, known by their ids outside of it."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

#: How long the lab waits for what comes in a moment: only a test that fails waits so long, on however busy a machine.
PATIENCE_S = 140.0


def comes_true(holds: Callable[[], object], within_s: float = PATIENCE_S) -> bool:
    """Whether it holds within this time; it is looked at again and again."""
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def to_its_end(
    argv: Sequence[str | Path],
    env: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
    given: str | None = None,
    limit_s: float = PATIENCE_S,
    check: bool = False,
) -> "subprocess.CompletedProcess[str]":
    """A command, here and with this process's environment unless others are named, and all that it printed."""
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
        """The command itself, a child of the one that entered the host; None where it has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while self._entering.poll() is None and time.monotonic() < deadline:
            if children := _children(self._entering.pid):
                return children[0]
            time.sleep(0.005)
        return None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        code = self._entering.poll()
        if code is not None and self.ended is None:
            self.ended = time.monotonic()
        return code

    def wait(self, timeout_s: float) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired, and leaves it running then."""
        deadline = time.monotonic() + timeout_s
        while (code := self.poll()) is None:
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(self._entering.args, timeout_s)
            time.sleep(0.01)
        return code

    def wait_for_output(self, text: str, timeout_s: float = PATIENCE_S) -> None:
        """Until it has printed this. Raises RuntimeError with its errors where it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output():
            if self.poll() is not None or time.monotonic() >= deadline:
                raise RuntimeError(f"no {text!r} from {self._entering.args!r}: {self.errors()}")
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        """Send a signal to the command; nothing where it has ended."""
        if (pid := self.pid) is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.signal(signal.SIGKILL)

    def output(self) -> str:
        """What it has printed on its standard output."""
        return self.stdout.read_text(errors="replace")

    def errors(self) -> str:
        """What it has printed on its standard error."""
        return self.stderr.read_text(errors="replace")


def pids_in(first: int) -> Iterator[int]:
    """All processes in the process namespace of ``first``, by their ids outside."""
    wanted = Path(f"/proc/{first}/ns/pid").stat().st_ino
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/pid").stat().st_ino == wanted:
                yield int(entry.name)


def pids_with(variable: str) -> Iterator[int]:
    """All processes with this ``NAME=value`` in their environment; zombies have none."""
    for entry in Path("/proc").iterdir():  # glob asks each for its state, and raises where one has just ended
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)


def comm(pid: int) -> str:
    """The name of a process, at most 15 characters; empty where it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def state(pid: int) -> str:
    """The letter ps shows: T is stopped, S sleeps; empty where the process is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
