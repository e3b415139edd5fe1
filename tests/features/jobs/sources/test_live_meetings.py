"""The endpoint of launchers and ranks, from their commands and variables, and the answers of real ports."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor.features.jobs.facts import Meeting
from ddp_doctor.features.jobs.sources.live_meetings import is_launcher, is_meeting, of_launcher, of_rank, with_answer
from ddp_doctor.features.jobs.sources.live_process import Candidate
from tests.waiting import LIMIT_S

RENDEZVOUS = "/v/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1171 in X.next_rendezvous"


def process(command: str, pid: int = 1, **env: str) -> Candidate:
    return Candidate(pid, 1, 1, env, {}, command.split())


@pytest.mark.parametrize(
    ("command", "env", "who", "endpoint", "node", "expected"),
    [
        ("python /v/bin/torchrun --nnodes 2 --node-rank 1 --master-addr a --master-port 7 t.py", {},
         "torchrun", "a:7", 1, 2),
        ("python /v/bin/torchrun --nnodes=2:4 --rdzv_backend=c10d --rdzv_endpoint=a:7 t.py", {},
         "torchrun", "a:7", None, 2),
        ("python -m torch.distributed.run --nnodes=2 --rdzv-backend=c10d t.py", {},
         "torchrun", "localhost:29400", None, 2),
        ("python -m torch.distributed.launch --nnodes=2 --node_rank=0 t.py --master-port 9", {},
         "torchrun", "localhost:29500", 0, 2),
        ("python torchrun --standalone --nnodes 1 -m train --nnodes 8", {}, "torchrun", "localhost:29500", None, 1),
        ("python -u -X dev torchrun t.py",
         {"PET_NNODES": "3", "PET_RDZV_ENDPOINT": "[fd00::1]:7", "PET_RDZV_BACKEND": "c10d"},
         "torchrun", "[fd00::1]:7", None, 3),
        ("python torchrun --nnodes 2 --rdzv-endpoint a t.py", {}, "torchrun", "a:29500", None, 2),
        ("python accelerate launch --num_machines 2 --machine_rank 1 --main_process_ip a --main_process_port 7 t", {},
         "accelerate", "a:7", 1, 2),
        ("python -m accelerate.commands.launch --num_machines 2 t.py", {}, "accelerate", "", None, 2),
        ("python accelerate launch --config_file c.yaml t.py", {}, "accelerate", "", None, 1),
    ],
)  # fmt: skip
def test_endpoint_of_a_launcher_is_read_from_its_command(command, env, who, endpoint, node, expected):
    launcher = process(command, **env)

    assert is_launcher(launcher)
    assert of_launcher(launcher) == Meeting(who=who, endpoint=endpoint, node=node, expected=expected)


def test_endpoint_of_accelerate_is_read_from_its_configuration(tmp_path: Path):
    file = tmp_path / "accelerate/default_config.yaml"
    file.parent.mkdir()
    file.write_text("machine_rank: 1\nmain_process_ip: '10.0.0.1'\nmain_process_port: 7\nnum_machines: 2\n")
    expected = Meeting(who="accelerate", endpoint="10.0.0.1:7", node=1, expected=2)

    assert of_launcher(process("python accelerate launch t.py", os.getpid(), HF_HOME=str(tmp_path))) == expected
    command = f"python accelerate launch --config_file {file} --main_process_port 8 t.py"
    assert of_launcher(process(command, os.getpid())).endpoint == "10.0.0.1:8"


@pytest.mark.parametrize("command", ["python train.py torchrun", "python -m mytorchrun", "accelerate config", "a"])
def test_other_programs_are_not_launchers(command: str):
    assert not is_launcher(process(command))


def test_endpoint_of_a_rank_is_the_master_address():
    assert of_rank(process("python t.py", MASTER_ADDR="a", MASTER_PORT="7")).endpoint == "a:7"
    assert not of_rank(process("python t.py")).endpoint


@pytest.mark.parametrize(
    ("frames", "waits"),
    [
        ((RENDEZVOUS,), True),
        (("/v/torch/distributed/rendezvous.py:190 in _create_c10d_store",), True),
        (("/v/torch/distributed/distributed_c10d.py:9 in init_process_group",), True),
        (("/v/torch/distributed/distributed_c10d.py:9 in all_reduce",), False),
        ((), False),
    ],
)
def test_stack_shows_whether_a_process_waits_at_the_rendezvous(frames: tuple[str, ...], waits: bool):
    assert is_meeting(frames) is waits


@pytest.fixture
def port() -> Iterator[int]:
    """A port that this process serves."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def answer(port: int, pid: int, host: str = "127.0.0.1") -> Meeting:
    meeting = Meeting(who="torchrun", endpoint=f"{host}:{port}", expected=2)
    return with_answer(meeting, [process("torchrun", pid)], time.monotonic() + LIMIT_S)


def test_launcher_that_serves_the_endpoint_counts_its_connections(port: int):
    found = answer(port, os.getpid())

    assert (found.answer, found.came, found.server) == ("served", 1, "")


def test_closed_port_and_unknown_host_are_distinguished(port: int):
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        with socket.create_server(("127.0.0.1", 0)) as server:
            closed = server.getsockname()[1]

        assert answer(closed, other.pid).answer == "refused"
        assert answer(port, other.pid, "no.such.host.invalid").answer == "unresolved"


def test_server_of_another_program_is_shown_with_its_pid():
    code = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    command = [sys.executable, "-c", f"{code}; sys.stdin.read()"]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as foreign,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as launcher,
    ):
        assert foreign.stdout is not None
        found = answer(int(foreign.stdout.readline()), launcher.pid)

    assert found.answer == "open"
    assert found.server.endswith(f" (pid {foreign.pid})")
