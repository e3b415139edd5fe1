"""Run a command in a host and exit as it does.

    python -I -S enter.py [--foreground] PID FOLDER COMMAND...

The command gets its own session, or stays on the terminal with --foreground. ``nsenter`` is not sufficient: it stops
itself when the command is stopped, so no process sees the command exit and the host cannot exit.
"""

import ctypes
import os
import resource
import signal
import sys

NAMESPACES = ("uts", "ipc", "net", "pid", "mnt")


def enter(pid: str) -> None:
    """Move this process into the namespaces of another; its children run in all of them."""
    libc = ctypes.CDLL(None, use_errno=True)
    files = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    for file in files:
        if libc.setns(file, 0):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(file)


def run(own_session: bool, folder: str, argv: tuple[str, ...]) -> None:
    """Replace this process by the command."""
    try:
        if own_session:
            os.setsid()
        os.chdir(folder)
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error}\n")
        os._exit(127)


def end_like(status: int) -> None:
    """Leave with an exit code, or die of a signal, as another process did."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


def main(own_session: bool, pid: str, folder: str, *argv: str) -> None:
    """Enter, start the command, wait for it."""
    enter(pid)
    child = os.fork()
    if child == 0:
        run(own_session, folder, argv)
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C is for the command
    end_like(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    foreground = sys.argv[1] == "--foreground"
    main(not foreground, *sys.argv[2 if foreground else 1 :])
