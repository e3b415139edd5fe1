"""The watched command: it runs as without a watcher, which mirrors its signals, its stops and its end.

Both have the same streams, terminal and process group. What a terminal or SLURM gave to all of them the command has
already, so only a signal to the watcher alone is passed on. Which it was, a listener in the same group tells: it was
sent the signal too, or not (siginfo_t says who sent a signal, and not to whom).
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
#: The shell's job control: who stops by one of these is to be continued by ``fg``.
_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
#: What the watcher waits for in place of being interrupted, and passes on.
PASSED_ON = signal.valid_signals() - _FAULTS - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE}
_WAITED_FOR = PASSED_ON | {signal.SIGCHLD}
#: The listener is sent a signal of the group microseconds before or after the watcher; a busy machine is slower.
_LISTENER_PATIENCE_S = 0.2
_SAME_SIGNAL_S = 2.0
#: A program that was sent SIGTSTP puts its terminal in order, and then stops itself, maybe by SIGSTOP.
_STOPS_ITSELF_S = 5.0
_HEARD = struct.Struct("=id")  # a signal's number, and when (CLOCK_MONOTONIC, seconds)
_PR_SET_DUMPABLE = 4  # linux/prctl.h


class CannotStart(Exception):
    """The command cannot be started; ``code`` is what a shell would exit with."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def become(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command. Raises CannotStart."""
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
    """The command, from its start to its end. From then on all signals of this process come through ``wait``."""

    def __init__(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED_FOR)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, the end would be lost
        self._listener = _Listener()
        self.pid = 0
        self.started_s = 0.0  # monotonic
        self.code: int | None = None  # once it has ended: its exit code, or a signal's number below zero
        self.told: dict[int, float] = {}  # signals that it was sent by way of the group or of the watcher; monotonic

    def start(self, argv: Sequence[str], env: Mapping[str, str], streams: Mapping[int, int]) -> None:
        """Start it; ``streams``: descriptors in the place of its 1 and 2. Raises CannotStart."""
        try:
            self.pid = self._spawn(argv[0], argv, env, streams)
        except OSError as error:
            script = shutil.which(argv[0])
            if error.errno != errno.ENOEXEC or script is None:
                raise _cannot(argv, error) from error
            # as shells and execvp(3) do with a script without a first line
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
        """Handle what comes within this time; True once the command has ended."""
        self._look()
        if self.code is None and (info := signal.sigtimedwait(_WAITED_FOR, seconds)) is not None:
            if info.si_signo != signal.SIGCHLD:
                self.told[info.si_signo] = time.monotonic()
                if not self._listener.heard(info.si_signo):
                    self.send(info.si_signo)
            self._look()
        return self.code is not None

    def send(self, number: int) -> None:
        """Send the command, and nobody else, a signal."""
        if self.code is None:  # until it is waited for, its pid is nobody else's
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
        """Stop where the shell is to see it: it knows the watcher alone."""
        asked = time.monotonic() - self.told.get(signal.SIGTSTP, -_STOPS_ITSELF_S) < _STOPS_ITSELF_S
        if number not in _STOPS and not asked:
            return  # SIGSTOP from somebody who will continue that process, not this one
        if process.state(self.pid) != "T" or signal.SIGCONT in signal.sigpending():
            return
        stop = number if number in _STOPS else signal.SIGTSTP
        signal.signal(stop, signal.SIG_DFL)
        os.kill(os.getpid(), stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {stop})  # here it stops
        signal.pthread_sigmask(signal.SIG_BLOCK, {stop})

    def leave_as_it_did(self) -> int:
        """The exit code for this process; a signal that ended the command ends this process as well."""
        self._listener.close()
        assert self.code is not None
        if self.code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the core to look at is the command's
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)
            with suppress(OSError):  # SIGKILL
                signal.signal(-self.code, signal.SIG_DFL)
            os.kill(os.getpid(), -self.code)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-self.code})
        return self.code if self.code >= 0 else 128 - self.code


class _Listener:
    """A process in the watcher's group that says which signals it was sent, and does nothing."""

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
        """Whether it was sent this signal too, just now."""
        end = time.monotonic() + _LISTENER_PATIENCE_S
        while True:
            with suppress(BlockingIOError):
                while data := os.read(self._read, _HEARD.size * 64):
                    self._heard += _HEARD.iter_unpack(data)
                self._pid = 0  # somebody killed it
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
    for stream in (0, 1, 2):  # who reads what the job says waits for all that hold its streams
        os.dup2(nothing, stream)
    while True:
        number = signal.sigwaitinfo(PASSED_ON).si_signo
        os.write(write, _HEARD.pack(number, time.monotonic()))
