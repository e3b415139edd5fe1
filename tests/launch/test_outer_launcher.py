"""The ranks next to the agent: they trust only its exit code, and never wait forever."""

import fcntl
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ddp_doctor.starters import outer_launcher
from ddp_doctor.starters.detect import OuterWorld, outer_world
from tests.waiting import LIMIT_S

WORLD = OuterWorld(launcher="slurm", local_rank=1, local_size=2, nnodes=1, key="slurm-7-0-0")
SLURM = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_JOB_ID": "7"}


def agent_file(folder: Path) -> Path:
    return folder / "slurm-7-0-0.agent"


def written(path: Path, text: str, age_s: float) -> None:
    path.write_text(text)
    os.utime(path, (time.time() - age_s,) * 2)


def test_code_reaches_a_waiting_rank_and_a_late_one(tmp_path: Path) -> None:
    lock = outer_launcher.AgentLock(WORLD, tmp_path)
    threading.Timer(0.2, lock.hand_over, (1,)).start()

    assert outer_launcher.wait_for_agent(WORLD, tmp_path, LIMIT_S) == 1
    assert outer_launcher.wait_for_agent(WORLD, tmp_path, LIMIT_S) == 1


def test_code_of_an_earlier_launch_is_not_trusted(tmp_path: Path) -> None:
    written(agent_file(tmp_path), "agent\n0\n", age_s=120)

    assert outer_launcher.wait_for_agent(WORLD, tmp_path, 0.1) is None


def test_old_file_does_not_make_a_late_agent_look_dead(tmp_path: Path) -> None:
    written(agent_file(tmp_path), "agent\n", age_s=120)
    locks: list[outer_launcher.AgentLock] = []

    def agent() -> None:
        locks.append(outer_launcher.AgentLock(WORLD, tmp_path))
        locks[0].hand_over(0)

    threading.Timer(0.1, agent).start()

    assert outer_launcher.wait_for_agent(WORLD, tmp_path, LIMIT_S) == 0


def test_dead_agent_is_noticed_immediately(tmp_path: Path) -> None:
    agent_file(tmp_path).write_text("agent\n")

    assert outer_launcher.wait_for_agent(WORLD, tmp_path, math.inf) is None


def test_living_agent_that_started_long_ago_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_launcher, "_APPEAR_S", 0.1)
    lock = outer_launcher.AgentLock(WORLD, tmp_path)
    written(agent_file(tmp_path), "agent\n", age_s=120)
    threading.Timer(0.2, lock.hand_over, (0,)).start()

    assert outer_launcher.wait_for_agent(WORLD, tmp_path, LIMIT_S) == 0


@pytest.mark.parametrize("text", ["agent\nroot\n", "agent\n-1\n"])
def test_code_that_is_not_a_number_is_ignored(tmp_path: Path, text: str) -> None:
    agent_file(tmp_path).write_text(text)

    assert outer_launcher.wait_for_agent(WORLD, tmp_path, math.inf) is None


def test_agent_continues_without_a_lock_that_another_process_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outer_launcher, "_LOCK_S", 0.2)
    agent_file(tmp_path).write_text("agent\n3\n")
    with agent_file(tmp_path).open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        outer_launcher.AgentLock(WORLD, tmp_path).hand_over(0)

    assert agent_file(tmp_path).read_text() == "agent\n3\n"


def test_agent_continues_if_it_cannot_create_a_file(tmp_path: Path) -> None:
    agent_file(tmp_path).symlink_to(tmp_path / "planted")

    outer_launcher.AgentLock(WORLD, tmp_path).hand_over(0)

    assert not (tmp_path / "planted").exists()


def test_agent_starts_a_new_file_and_removes_old_ones(tmp_path: Path) -> None:
    written(agent_file(tmp_path), "agent\n1\n", age_s=10)
    written(tmp_path / "old.agent", "agent\n0\n", age_s=2 * 86400)
    written(tmp_path / "recent.agent", "agent\n0\n", age_s=3600)

    lock = outer_launcher.AgentLock(WORLD, tmp_path)

    assert agent_file(tmp_path).read_text() == "agent\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recent.agent", "slurm-7-0-0.agent"]
    lock.hand_over(0)


def test_a_requeued_slurm_job_is_another_launch() -> None:
    first, again = outer_world(SLURM, 1), outer_world({**SLURM, "SLURM_RESTART_COUNT": "1"}, 1)

    assert first is not None
    assert again is not None
    assert first.key != again.key


@pytest.mark.parametrize("env", [{"OMPI_COMM_WORLD_RANK": "0"}, {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "0"}])
def test_a_parent_is_known_by_its_pid_and_its_start(env: dict[str, str]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        world, same = outer_world(env, child.pid), outer_world(env, child.pid)
        stat = Path(f"/proc/{child.pid}/stat").read_text().split()
        child.communicate(b"\n")

    assert world == same
    assert world is not None
    assert f"{child.pid}.{stat[21]}" in world.key


def test_a_parent_that_is_gone_is_known_by_its_pid() -> None:
    world = outer_world({"OMPI_COMM_WORLD_RANK": "0"}, 2**22 + 1)

    assert world is not None
    assert world.key == f"mpi-{2**22 + 1}"


def test_ranks_of_one_launch_know_each_other_behind_separate_scripts() -> None:
    def key(launch: str, local_rank: int, parent: int) -> str:
        file = f"/tmp/torchelastic_a1/{launch}/{local_rank}/error.json"
        env = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "1", "TORCHELASTIC_ERROR_FILE": file}
        world = outer_world(env, parent)
        assert world is not None
        return world.key

    here = key("none_x7k2/attempt_0", 0, 1)

    assert here == key("none_x7k2/attempt_0", 1, os.getpid())
    assert here not in (key("none_x7k2/attempt_1", 1, 1), key("none_q3z9/attempt_0", 1, 1))


def test_mpi_ranks_of_one_launch_know_each_other_behind_separate_scripts() -> None:
    env = {"OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "prterun-fan1-11492@1"}
    here, there = outer_world(env, 1), outer_world(env, os.getpid())
    other = outer_world({**env, "PMIX_NAMESPACE": "prterun-fan1-11493@1"}, 1)

    assert here == there
    assert here != other


def test_another_torchrun_is_known_by_the_parent_of_its_ranks() -> None:
    env = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "1", "TORCHELASTIC_ERROR_FILE": "/tmp/error.json"}

    assert outer_world(env, 1) != outer_world(env, os.getpid())
