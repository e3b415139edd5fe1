"""The system call that a process waits in, read from the kernel, for processes that really wait."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_doctor.features.jobs.sources.live_process import sockets, waits_for
from ddp_doctor.features.jobs.sources.system_calls import CALLS
from ddp_doctor.sources import proc
from tests.waiting import wait_until

WAITS = {
    "os.open('F', os.O_RDONLY)": ("open", " of the FIFO {F}"),
    "os.read(os.open('F', os.O_RDWR), 1)": ("read", " from the FIFO {F}"),
    "f = [open('L', 'w') for _ in '12']; [fcntl.flock(one, fcntl.LOCK_EX) for one in f]": ("flock", " of {L}"),
    "p = socket.socketpair(); p[0].recv(1)": ("recv", " from a connection to 10.0.0.5:443"),
    "p = socket.socketpair(); p[0].settimeout(1e6); p[0].recv(1)": ("poll", " on a connection to 10.0.0.5:443"),
    "a, b = os.pipe(); p = select.epoll(); p.register(a); p.poll()": ("epoll", " on a pipe"),
    "lock = threading.Lock(); lock.acquire(); lock.acquire()": ("futex", ", a lock or a signal of another thread"),
    "time.sleep(1e6)": ("nanosleep", ", a sleep"),
}


@pytest.mark.skipif(platform.machine() not in CALLS, reason="the numbers of its calls are not known")
@pytest.mark.parametrize("script", WAITS)
def test_blocking_system_call_is_shown_with_its_file_or_peer(script: str, tmp_path: Path):
    names = {"F": str(tmp_path / "in"), "L": str(tmp_path / "lock")}
    (call, of), text = WAITS[script], script
    for name, path in names.items():
        text = text.replace(f"'{name}'", repr(path))
    imports = "import fcntl, os, select, socket, threading, time"
    make = f"os.mkfifo({names['F']!r})"
    with subprocess.Popen((sys.executable, "-c", f"{imports}; {make}; {text}"), cwd=tmp_path) as process:
        try:
            wait_until(Path(names["F"]).exists)
            if proc.read(f"/proc/{process.pid}/syscall") is None:
                pytest.skip("this kernel does not tell in which call a process is")
            expected = of.format(**names)
            wait_until(lambda: _is_in(call, expected, _waits_for(process.pid)), f"the process is in {call}{expected}")
        finally:
            process.kill()


def _is_in(call: str, expected: str, said: str) -> bool:
    return said.endswith(expected) and call in said.removesuffix(expected)


def _waits_for(pid: int) -> str:
    return waits_for(pid, pid, dict.fromkeys(sockets(pid), "10.0.0.5:443"))
