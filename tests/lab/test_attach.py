"""`ddp-doctor attach` on several hosts over ssh, and on a job in a container, from outside and from inside."""

import contextlib
import ctypes
import errno
import json
import os
import platform
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.features.jobs.attach import AttachReport
from ddp_doctor.features.jobs.attach.use_case import attach
from ddp_doctor.features.jobs.sources.live_jobs import ended
from ddp_doctor.features.jobs.sources.live_stacks import stacks
from ddp_doctor.sources import proc
from tests.features.jobs.attach.stillness import wait_until_still
from tests.lab.hosts import ROOT, Lab, why_no_lab
from tests.lab.sshd import environment, know_hosts
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.lab

SPREAD = ROOT / "tests/features/jobs/attach/spread.py"
ATTACH = (sys.executable, "-m", "ddp_doctor", "attach")


def rank_of(rank: int, size: int, head: str, local: int = 0, local_size: int = 1) -> dict[str, str]:
    """Return the variables that torchrun sets for a rank."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    numbers = dict(zip(names, map(str, (rank, size, local, local_size)), strict=True))
    return {**numbers, "MASTER_ADDR": head, "MASTER_PORT": "29500", "OMP_NUM_THREADS": "1"}


def seen(pid: int) -> tuple[str, str, str, int]:
    """Return what attaching must not change in a process: state, tracer, signals, open files."""
    status = proc.status(pid)
    state = status["State"][0].replace("R", "S")
    return state, status["TracerPid"], status["SigPnd"], len([*Path(f"/proc/{pid}/fd").iterdir()])


@pytest.fixture(scope="module")
def job(ssh_lab: Lab) -> list[int]:
    """Start a rank on each host; the last rank makes no progress."""
    started = [host.start((sys.executable, SPREAD), env=rank_of(host.index, 3, "node0")) for host in ssh_lab.hosts]
    for process in started:
        process.wait_for_output("begun")
    pids = [process.pid for process in started if process.pid is not None]
    wait_until_still(pids)
    return pids


def attached(ssh_lab: Lab, *options: str) -> tuple[int, dict[str, Any], str]:
    head = ssh_lab["node0"]
    done = head.run((*ATTACH, *options, "--json", "attach.json"), env=environment(ssh_lab, head), check=False)
    return done.returncode, json.loads((head.folder / "home/attach.json").read_text()), done.stdout


def culprits(report: dict[str, Any]) -> list[tuple[int, str]]:
    return [(one["rank"], one["node"]) for finding in report["findings"] for one in finding["culprits"]]


def test_rank_of_another_host_is_reported_over_ssh_without_side_effects(ssh_lab, job):
    know_hosts(ssh_lab)
    before = [seen(pid) for pid in job]

    code, report, text = attached(ssh_lab, "--hosts", "node0,node1,node2")

    assert code == 1, text
    assert culprits(report) == [(2, "node2")]
    assert [(one["rank"], one["node"]) for one in report["ranks"]] == [(0, "node0"), (1, "node1"), (2, "node2")]
    assert [seen(pid) for pid in job] == before


def test_host_that_ssh_cannot_reach_is_reported_and_no_rank_is_blamed(ssh_lab, job):
    key = (ssh_lab.folder / "ssh/host.pub").read_text()
    (ssh_lab.folder / "ssh/known").write_text(f"node0 {key}node1 {key}")

    code, report, text = attached(ssh_lab, "--hosts", "node0,node1,node2")

    assert code == 3, text
    assert culprits(report) == []
    (line,) = [line for line in text.splitlines() if line.startswith("node2 could not be read: ")]
    assert line.endswith("Host key verification failed.")
    assert "Rank 2 was not seen" in text


def test_job_in_a_container_is_read_from_the_host(tmp_path):
    if reason := why_no_lab("unshare"):
        pytest.skip(reason)
    inside = tmp_path / "inside.sh"
    inside.write_text(
        f"mount -t tmpfs none /srv && cp {SPREAD} /srv/train.py && cd /srv || exit 1\n"
        f"for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank {sys.executable} train.py & done; wait\n"
    )
    environ = {**os.environ, **rank_of(0, 2, "127.0.0.1", local_size=2)}
    namespaces = ("--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net")
    command = ("unshare", *namespaces, "sh", "-c", f"ip link set lo up; exec sh {inside}")
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, start_new_session=True) as container:
        try:
            assert container.stdout is not None
            assert [container.stdout.readline() for _ in range(2)] == [b"begun\n"] * 2
            first = next(pid for pid in proc.pids() if proc.parent(pid) == container.pid)
            wait_until_still(pid for pid in proc.pids() if proc.parent(pid) == first)

            report = attach([first]).report
            by_hand = ("nsenter", "-t", str(first), "-p", "-m", *ATTACH)
            from_inside = subprocess.run(by_hand, env=os.environ, cwd=ROOT, capture_output=True, text=True, check=False)
        finally:
            container.kill()
    assert isinstance(report, AttachReport)
    assert [one.rank for cause in report.causes for one in cause.culprits] == [1]
    assert not Path("/srv/train.py").exists()
    assert ["/srv/train.py" in (one.line or "") for one in report.ranks] == [True, True]
    assert from_inside.returncode == 1, from_inside.stdout + from_inside.stderr
    assert "Seen from inside a container" in from_inside.stdout


# --- what this kernel refuses ------------------------------------------------------------------------

_SECCOMP, _NO_NEW_PRIVS, _DUMPABLE = 22, 38, 4  # linux/prctl.h
_READS_OF_MEMORY = {"x86_64": (101, 310), "aarch64": (117, 270)}  # ptrace, process_vm_readv


def prctl(*args: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(*args, *[0] * (5 - len(args))) == 0, os.strerror(ctypes.get_errno())


def be(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def filter_calls() -> None:
    """A filter as docker's default on old kernels: EPERM for ptrace and process_vm_readv."""
    calls = _READS_OF_MEMORY[platform.machine()]
    steps = [(0x20, 0, 0, 0)]  # load the number of the call
    for number in calls:
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | errno.EPERM)]
    steps.append((0x06, 0, 0, 0x7FFF0000))  # allow
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
    prctl(_NO_NEW_PRIVS, 1)
    prctl(_SECCOMP, 2, program)


def sleep_as_daemon() -> None:
    be(1)  # which makes it not dumpable, as prctl(PR_SET_DUMPABLE, 0) does
    prctl(_DUMPABLE, 0)


def daemon_with_filter() -> None:
    be(1)
    filter_calls()


@contextlib.contextmanager
def forked(begin: Callable[[], None]) -> Iterator[int]:
    """A Python process that has begun so, and sleeps."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        begin()
        os.write(sending, b"-")
        signal.pause()
    try:
        os.read(receiving, 1)
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def as_one_who(begins: Callable[[], None], tells: Callable[[], str]) -> str:
    """Return the output of a process that runs ``begins`` first."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            begins()
            os.write(sending, tells().encode())
        except BaseException:
            os.write(sending, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as file:
        said = file.read()
    os.waitpid(pid, 0)
    return said


def stack_seen_by(begins: Callable[[], None], pid: int) -> str:
    """Return why a process cannot read another's stack after ``begins``, with the fix; or "read"."""
    with tempfile.TemporaryDirectory() as folder:
        # Another user can run this copy even if only root can reach the py-spy next to this interpreter.
        shutil.copy(Path(sys.executable).with_name("py-spy"), folder)
        Path(folder).chmod(0o755)
        env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

        def look() -> str:
            stack = stacks([pid], env, time.monotonic() + LIMIT_S)[pid]
            return f"{stack.refused.why}; {stack.refused.grant}" if stack.refused else "read" if stack.frames else ""

        return as_one_who(begins, look)


@pytest.mark.skipif(os.getuid() != 0, reason="takes users and rights away from processes, as root alone may")
def test_refusals_of_the_kernel_are_reported_and_a_seccomp_filter_does_not_matter():
    with forked(lambda: None) as of_root, forked(sleep_as_daemon) as closed:
        assert stack_seen_by(lambda: None, of_root) == "read"
        assert stack_seen_by(filter_calls, of_root) == "read"  # py-spy reads /proc/PID/mem then
        assert stack_seen_by(lambda: be(65534), of_root).startswith("it is a process of root; run this command as root")
        assert (
            stack_seen_by(lambda: be(65534), closed)
            == "it is a process of daemon; run this command as daemon or as root"
        )
        assert stack_seen_by(lambda: be(1), closed).startswith("the kernel closes it to its own user: ")
        assert stack_seen_by(daemon_with_filter, closed).endswith(
            "; run this command as root, outside of what set NoNewPrivs"
        )
        assert stack_seen_by(lambda: None, closed) == "read"


@pytest.mark.skipif(os.getuid() != 0, reason="takes users away from processes, as root alone may")
def test_exit_of_a_process_is_hidden_from_other_users():
    with forked(lambda: None) as pid:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert as_one_who(lambda: None, lambda: ended(pid)) == "SIGKILL"
        assert as_one_who(lambda: be(65534), lambda: ended(pid)) == ""
