"""The watched command: it runs as it does without a watcher, which mirrors its signals, stops and exit.

Both have the same streams, terminal and process group. The command has already received a signal that a terminal or
SLURM sent to the group, so only a signal to the watcher alone is passed on. A listener in the group shows which:
it also receives a signal to the group (siginfo_t shows the sender of a signal, not its receivers).
"""

import ctypes
import errno
import os
import resource
import select
import shutil
import signal
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

from ddp_doctor.ranks import process

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
#: Stop signals of the shell's job control, after which ``fg`` continues the process.
_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
#: Signals that the watcher waits for, instead of being interrupted, and passes on.
PASSED_ON = signal.valid_signals() - _FAULTS - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE}
_WAITED_FOR = PASSED_ON | {signal.SIGCHLD}
#: The listener receives a group's signal microseconds before or after the watcher, or later on a busy machine.
_LISTENER_PATIENCE_S = 0.2
_SAME_SIGNAL_S = 2.0
#: After SIGTSTP, a program restores its terminal and then stops itself, perhaps by SIGSTOP.
_STOPS_ITSELF_S = 5.0
_HEARD = struct.Struct("=id")  # a signal's number and time (CLOCK_MONOTONIC, seconds)
_PR_SET_DUMPABLE = 4  # linux/prctl.h


class CannotStart(Exception):
    """The command cannot be started; ``code`` is the exit code of a shell in this case."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def become(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process with the command. Raises CannotStart."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), dict(env))  # noqa: S606 - the user's own command, without a shell
    except OSError as error:
        raise _cannot(argv, error) from error


def _cannot(argv: Sequence[str], error: OSError) -> CannotStart:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        found = "/" in argv[0] or shutil.which(argv[0])
        why = "the interpreter in its first line was not found" if found and os.path.exists(argv[0]) else "not found"
        return CannotStart(f"{argv[0]}: {why}", 127)
    return CannotStart(f"{argv[0]}: cannot be executed: {error.strerror}", 126)


class Command:
    """The command, from its start to its end. Once created, it handles all signals to this process in ``wait``."""

    def __init__(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the exit status would be lost
        self._listener = _Listener()
        self.pid = 0
        self.started_s = 0.0  # monotonic
        self.code: int | None = None  # once it has ended: its exit code, or a negative signal number
        self.told: dict[int, float] = {}  # times (monotonic) of signals to the group or the watcher

    def start(self, argv: Sequence[str], env: Mapping[str, str], streams: Mapping[int, int]) -> None:
        """Start it; ``streams``: the descriptors for its stdout (1) and stderr (2). Raises CannotStart."""
        try:
            self.pid = self._spawn(argv[0], argv, env, streams)
        except OSError as error:
            script = shutil.which(argv[0])
            if error.errno != errno.ENOEXEC or script is None:
                raise _cannot(argv, error) from error
            # as shells and execvp(3) do for a script without #!
            self.pid = self._spawn("/bin/sh", ("/bin/sh", script, *argv[1:]), env, streams)
        self.started_s = time.monotonic()

    def _spawn(self, file: str, argv: Sequence[str], env: Mapping[str, str], streams: Mapping[int, int]) -> int:
        return os.posix_spawnp(
            file,
            list(argv),
            dict(env),
            file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in streams.items()],
            setsigmask=self._mask,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )

    def wait(self, seconds: float) -> bool:
        """Handle signals within this time; return True once the command has ended."""
        self._look()
        if self.code is None and (info := signal.sigtimedwait(_WAITED_FOR, seconds)) is not None:
            if info.si_signo != signal.SIGCHLD:
                self.told[info.si_signo] = time.monotonic()
                if not self._listener.heard(info.si_signo):
                    self.send(info.si_signo)
            self._look()
        return self.code is not None

    def send(self, number: int) -> None:
        """Send a signal to the command only."""
        if self.code is None:  # its pid is not reused until it is waited for
            with suppress(OSError):
                os.kill(self.pid, number)

    def _look(self) -> None:
        while self.code is None:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG)
            if found is None:
                return
            if found.si_code == os.CLD_STOPPED:
                self._stop_as_well(found.si_status)
            elif found.si_code != os.CLD_CONTINUED:
                self.code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _stop_as_well(self, number: int) -> None:
        """Stop this process too, because the shell only knows the watcher."""
        asked = time.monotonic() - self.told.get(signal.SIGTSTP, -_STOPS_ITSELF_S) < _STOPS_ITSELF_S
        if number not in _STOPS and not asked:
            return  # the sender of SIGSTOP will continue that process, not this one
        if process.state(self.pid) != "T" or signal.SIGCONT in signal.sigpending():
            return
        stop = number if number in _STOPS else signal.SIGTSTP
        signal.signal(stop, signal.SIG_DFL)
        os.kill(os.getpid(), stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {stop})  # here it stops
        signal.pthread_sigmask(signal.SIG_BLOCK, {stop})

    def leave_as_it_did(self) -> int:
        """Return the exit code for this process; a signal that ended the command also ends this process."""
        self._listener.close()
        assert self.code is not None
        if self.code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the useful core dump is the command's
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
            with suppress(OSError):  # SIGKILL
                signal.signal(-self.code, signal.SIG_DFL)
            os.kill(os.getpid(), -self.code)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-self.code})
        return self.code if self.code >= 0 else 128 - self.code


class _Listener:
    """A process in the watcher's group that only reports the signals it receives."""

    def __init__(self) -> None:
        self._heard: list[tuple[int, float]] = []
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        watcher = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            with suppress(BaseException):
                _listen(write, watcher)
            os._exit(0)
        os.close(write)

    def heard(self, number: int) -> bool:
        """Return True if it has just received this signal too."""
        end = time.monotonic() + _LISTENER_PATIENCE_S
        while True:
            with suppress(BlockingIOError):
                while data := os.read(self._read, _HEARD.size * 64):
                    self._heard += _HEARD.iter_unpack(data)
                self._pid = 0  # it was killed
            now = time.monotonic()
            self._heard = [(signo, at) for signo, at in self._heard if now - at < _SAME_SIGNAL_S]
            for index, (signo, _) in enumerate(self._heard):
                if signo == number:
                    del self._heard[index]
                    return True
            if now >= end or not select.select((self._read,), (), (), end - now)[0] or self._pid == 0:
                return False

    def close(self) -> None:
        if self._pid:
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)


def _listen(write: int, watcher: int) -> None:
    process.die_with_parent(watcher)
    process.set_name("ddp-watch-sig")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # a reader of the job's output waits until all close it
        os.dup2(nothing, stream)
    while True:
        number = signal.sigwaitinfo(PASSED_ON).si_signo
        os.write(write, _HEARD.pack(number, time.monotonic()))
