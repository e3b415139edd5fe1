"""Runs commands that can neither hang ddp-doctor nor outlive it.

Every command gets a separate session, no standard input, a bounded amount of kept output and a time limit. After the
time limit, its entire process group is killed. A failing command does not raise an exception: the ``CommandResult``
describes its end.
"""

import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from ddp_doctor.model.context import CommandResult
from ddp_doctor.sources import proc

#: Kept per stream; the rest is read and dropped, so that endless output does not fill the memory.
OUTPUT_LIMIT_BYTES = 4 * 1024 * 1024
#: Time to wait for a killed process. A process in state D (a hanging driver) is then left to the kernel.
REAP_PATIENCE_S = 0.4

#: Searched if the environment has no PATH, as in a SLURM prolog: the usual directories, then the directories of
#: nvidia-smi under WSL 2, in the GPU operator's driver container, and on GKE nodes.
DEFAULT_PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    ":/usr/lib/wsl/lib:/run/nvidia/driver/usr/bin"
    ":/usr/local/nvidia/bin:/home/kubernetes/bin/nvidia/bin"
)

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Bound at import: between fork and exec a child of a threaded process must not import, open a
# library or take any lock that another thread may have held when it forked.
_prctl = ctypes.CDLL(None).prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong)


def run_command(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> CommandResult:
    """Run ``argv`` with exactly ``env``, for at most ``timeout_s`` seconds, and never raise.

    Bytes that are not UTF-8 are replaced. If ``missing``, ``stderr`` has the reason.
    """
    command = tuple(argv)
    if timeout_s <= 0:
        return CommandResult(command, "timed_out")
    executable = find_executable(command[0], env)
    if executable is None:
        return CommandResult(command, "missing", stderr=f"{command[0]}: not found or not executable")
    try:
        with _untraced():
            process = subprocess.Popen(
                command,
                executable=executable,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_dies_with(os.getpid()),  # noqa: PLW1509  the function takes no lock, see _prctl
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return CommandResult(command, "missing", stderr=f"{command[0]}: {error}")
    return _follow(process, command, time.monotonic() + timeout_s)


def find_executable(name: str, env: Mapping[str, str]) -> str | None:
    """Return the file that ``name`` means, or None. Relative PATH entries are ignored, as the PATH may be root's."""
    folders = (env.get("PATH") or DEFAULT_PATH).split(os.pathsep)
    return shutil.which(name, path=os.pathsep.join(folder for folder in folders if folder.startswith("/")))


@contextmanager
def _untraced() -> Iterator[None]:
    """Fork without this thread's tracer (coverage, a debugger).

    The child would call it before exec and wait forever for a lock that another thread held at the fork. The parent,
    which reads until exec, would wait for the child.
    """
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)


def _dies_with(parent: int) -> Callable[[], None]:
    """Return the function that a child calls before exec: it requests SIGKILL at its parent's death.

    For the kernel, the parent is the *thread* that forked. A probe's thread stays in ``run_command`` until its command
    has ended, so the command never loses its parent early.
    """

    def ask() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between the fork and the request
            os.kill(os.getpid(), signal.SIGKILL)  # os._exit may be a wrapper that takes locks (coverage)

    return ask


class _Capture:
    """An output stream of a command: its first bytes, up to the limit."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.kept = bytearray()

    def fill(self) -> bool:
        try:
            chunk = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return True
        self.kept += chunk[: OUTPUT_LIMIT_BYTES - len(self.kept)]
        return bool(chunk)

    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")


def _follow(process: "subprocess.Popen[bytes]", command: tuple[str, ...], end: float) -> CommandResult:
    """Collect the output until the command ends or ``end`` is reached, then kill its remaining processes."""
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        captures = (_Capture(process.stdout.fileno()), _Capture(process.stderr.fileno()))
        try:
            ended = _collect(process, captures, end)
            queued_s = 0.0 if ended else proc.queued_s(process.pid)
        finally:
            _kill_group(process)
            returncode = _reap(process, REAP_PATIENCE_S)
    stdout, stderr = (capture.text() for capture in captures)
    if not ended:
        return CommandResult(command, "timed_out", None, stdout, stderr, queued_s)
    return CommandResult(command, "ended", returncode, stdout, stderr)


def _collect(process: "subprocess.Popen[bytes]", captures: Iterable[_Capture], end: float) -> bool:
    """Read until the command has ended and its pipes are empty. Return False if ``end`` came first."""
    idle_s = 0.001
    with selectors.DefaultSelector() as selector:
        for capture in captures:
            selector.register(capture.descriptor, selectors.EVENT_READ, capture)
        while True:
            ended = _has_ended(process)
            if ended:
                _kill_group(process)  # its background processes may hold the pipes open forever
            ready = selector.select(0 if ended else min(idle_s, max(end - time.monotonic(), 0)))
            for key, _ in ready:
                if not key.data.fill():
                    selector.unregister(key.fd)
            if (ended and not ready) or time.monotonic() >= end:
                return ended
            idle_s = 0.001 if ready else min(idle_s * 2, 0.05)


def _has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Return True if the command itself has ended. It stays a zombie, so its group id is not reused.

    A stopped command is continued, because otherwise it would be waited for until its time is up.
    """
    look = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
    try:
        found = os.waitid(os.P_PID, process.pid, look)
    except ChildProcessError:  # ddp-doctor was started with SIGCHLD ignored: the kernel has reaped it
        return True
    if found is not None and found.si_code == os.CLD_STOPPED:
        _signal_group(process, signal.SIGCONT)
        return False
    return found is not None


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGKILL to the command and all processes it started that are still in its session's group."""
    if process.returncode is None:
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # none is left; or a set-uid program is among them
        os.killpg(process.pid, number)


def _reap(process: "subprocess.Popen[bytes]", patience_s: float) -> int | None:
    """Return the exit code, or None if the killed process does not exit within ``patience_s``."""
    try:
        return process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return None
