"""An agent that exits before the nodes have met is reported immediately, however it was started. Agents are real."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor.starters.endpoint import greeting
from tests.lab.processes import to_its_end
from tests.once import free_port

pytestmark = pytest.mark.ranks

#: An ssh and an srun that run the agents here and kill VICTIM's agent as soon as it has sent hello. For the last host,
#: ssh replaces the endpoint's PORT with WRONG, like a tunnel to another server.
STARTER = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import os, subprocess, sys, threading

def carry(command, host, env):
    def read():
        for line in process.stdout:
            os.write(1, line)
            if b" hello " in line and host == os.environ["VICTIM"]:
                process.kill()
        ends[host] = process.wait()
        if sys.argv[0].endswith("srun") and ends[host] == -9:
            sys.stderr.write(f"srun: error: {host}: task {env['SLURM_NODEID']}: Killed\\n")
            sys.stderr.flush()
    process = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE)
    thread = threading.Thread(target=read)
    thread.start()
    return thread

ends = {}
if sys.argv[0].endswith("ssh"):
    *_, host, command = sys.argv
    if host == "fan2" and "WRONG" in os.environ:
        command = command.replace(os.environ["PORT"], os.environ["WRONG"])
    carry(("sh", "-c", command), host, {}).join()
    sys.exit(255 if ends[host] < 0 else ends[host])
step = {
    "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "fan[1-2]", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
command = sys.argv[sys.argv.index(sys.executable):]
tasks = [
    carry(command, f"fan{n + 1}", {**step, "SLURM_NODEID": str(n), "SLURM_PROCID": str(n)}) for n in range(2)
]
for task in tasks:
    task.join()
"""


@pytest.fixture
def tools(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("ssh", "srun"):
        (folder / name).write_text(STARTER.replace("{python}", sys.executable))
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "XDG_STATE_HOME": str(tmp_path / "state")}


def started_by_one_command(port: int, *where: str, **env: str) -> "subprocess.CompletedProcess[str]":
    argv = (sys.executable, "-m", "ddp_doctor", "run", "--only", "process_group", "--quiet", "--join-timeout", "600")
    whole = (*argv, "--rdzv-endpoint", f"localhost:{port}", *where)
    return to_its_end(whole, {**os.environ, **env}, limit_s=200)  # and not the 600 s of --join-timeout


#: tests/lab/test_slurm_run.py kills another agent than the head under a real srun.
KILLED = (("ssh", "fan1"), ("ssh", "fan2"), ("srun", "fan1"))


@pytest.mark.parametrize(("tool", "victim"), KILLED, ids=["ssh-the head", "ssh-another", "srun-the head"])
def test_agent_killed_before_check_in_is_reported_immediately(tools, tool, victim):
    job = {"SLURM_JOB_ID": "2", "SLURM_JOB_NODELIST": "fan[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
    where = ("--hosts", "fan1,fan2") if tool == "ssh" else ()
    done = started_by_one_command(free_port(), *where, **tools, VICTIM=victim, **(job if tool == "srun" else {}))

    assert done.returncode == 1, done
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"Unhealthy: {victim} could not be started: its agent ended before the roll call was over: ")
    assert ("Killed" if tool == "srun" else "255") in last


@contextlib.contextmanager
def another_server() -> Iterator[int]:
    def greet() -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                client, _ = server.accept()
                with client:
                    client.sendall(b"220 mail.example ESMTP\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_reason_for_a_missed_check_in_is_reported_by_the_starting_command(tools):
    port = free_port()
    with another_server() as wrong:
        more = {"VICTIM": "", "PORT": str(port), "WRONG": str(wrong)}
        done = started_by_one_command(port, "--hosts", "fan1,fan2", **tools, **more)

    assert done.returncode == 1, done
    assert done.stdout.count("ERROR") == 1
    assert "localhost resolves to 127.0.0.1, which is" in done.stdout.splitlines()[-1]  # the agent's own finding


def test_greeting_of_a_server_is_read_and_a_silent_server_has_none():
    with another_server() as port, socket.create_server(("127.0.0.1", 0)) as silent:
        assert greeting("127.0.0.1", port) == "220 mail.example ESMTP"
        assert greeting("127.0.0.1", silent.getsockname()[1]) == ""
