"""Resources that the processes of one test run share: artifacts that one of them makes, and unique ports."""

import contextlib
import fcntl
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path

#: The folder of a test run, which tests/conftest.py makes and removes.
VARIABLE = "DOCTORS_TESTS_SHARE"
#: Probes of one machine run in several threads: a second directory would replace the first.
_FIRST_ASKED = threading.Lock()


def once(name: str, make: Callable[[Path], object], within: Path | None = None) -> Path:
    """Return the directory of this name, filled by ``make`` once; others wait. ``within`` outlives the test run."""
    with _FIRST_ASKED:
        share = within or Path(os.environ.get(VARIABLE) or _of_this_process().name)
    share.mkdir(parents=True, exist_ok=True)
    folder, made = share / name, share / f"{name}.made"
    with (share / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            made.touch()
    return folder


@cache
def _of_this_process() -> tempfile.TemporaryDirectory[str]:
    """Return a directory for a program that uses the tests' machines outside of a test; removed when it exits."""
    return tempfile.TemporaryDirectory(prefix="ddp-doctor-tests-")


#: Above the ports that Linux assigns itself, which another process may have taken by the time of use.
_FIRST_PORT, _PORTS = 61_000, 4_500


def free_port() -> int:
    """Return a port without a listener that no other test of this run gets."""
    with (Path(os.environ[VARIABLE]) / "ports").open("a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        number = int(last.read() or os.getpid())
        while True:
            number += 1
            port = _FIRST_PORT + number % _PORTS
            with contextlib.suppress(OSError), socket.create_server(("", port)):
                break
        last.truncate(0)
        last.write(str(number))
        return port
