"""--model with the real command: the module in the working directory, and nodes with different modules."""

import signal
from typing import Any

import pytest

from ddp_doctor.model.recording import Options
from ddp_doctor.wording.run_options import typed
from tests.launch.agents import Agent, end
from tests.once import free_port
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.ranks

SLOW = """import pathlib, threading, torch

def stay():
    pathlib.Path("reached").touch()
    threading.Event().wait()

class Net(torch.nn.Linear):
    def forward(self, x):
        stay()

def make():
    return Net(2, 2), lambda step: torch.ones(3, 2)
"""


def test_model_option_is_passed_on_to_other_nodes():
    assert typed(Options(model="net:make")) == ("--model", "net:make")
    assert typed(Options()) == ()


def named(report: dict[str, Any], code: str) -> dict[str, Any]:
    (finding,) = [one for one in report["findings"] if one["code"] == code]
    assert isinstance(finding, dict)
    return finding


def test_node_without_the_model_is_reported(tmp_path):
    (tmp_path / "net.py").write_text(SLOW)
    port = free_port()
    options = ("--nproc-per-node", "1", "--only", "user_model", "--no-prove", "--model", "net:make")
    agents = (
        Agent(tmp_path, port, 2, 0, *options),
        Agent(tmp_path, port, 2, 1, "--nproc-per-node", "1", "--only", "process_group"),
    )
    try:
        finding = named(agents[0].report(), "DD770")
        agents[1].process.wait(LIMIT_S)
    finally:
        end(agents)

    assert [one["rank"] for one in finding["culprits"]] == [1]


def test_ctrl_c_in_user_code_prints_one_line_and_leaves_no_processes(tmp_path):
    (tmp_path / "net.py").write_text(SLOW)
    options = ("--nproc-per-node", "2", "--only", "user_model", "--model", "net:make")
    agent = Agent(tmp_path, free_port(), 1, 0, *options)
    try:
        agent.wait_for("user_model")
        wait_until((tmp_path / "reached").exists)
        agent.signal(signal.SIGINT)
        code = agent.process.wait(LIMIT_S)
        left = agent.family()
    finally:
        end((agent,))

    said = agent.said.read_text()
    assert (code, left) == (130, [])
    assert said.rstrip().splitlines()[-1].startswith("Interrupted: ")
    assert "Traceback" not in agent.words()
