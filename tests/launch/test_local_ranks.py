"""Messages of the ranks next to the agent: real processes, a real torchrun, and files that must not be trusted."""

import fcntl
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.app import recordings
from ddp_doctor.facts.cluster import RankSettings
from ddp_doctor.starters import outer_launcher
from ddp_doctor.starters.detect import OuterWorld
from tests.lab.hosts import WITHOUT_DDP
from tests.launch.agents import ROOT
from tests.once import free_port
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.ranks

AGENT = OuterWorld(launcher="slurm", local_rank=0, local_size=3, nnodes=1, key="slurm-7-0-0")
TREE = {"NCCL_ALGO": "Tree"}

#: A rank that reports its settings and waits, as ranks next to the agent do.
RANK = """
import sys
from pathlib import Path
from ddp_doctor.starters import outer_launcher
from ddp_doctor.starters.detect import OuterWorld
world = OuterWorld("slurm", int(sys.argv[1]), 3, 1, "slurm-7-0-0")
with outer_launcher.settings_shared(world, Path(sys.argv[2]), {"NCCL_ALGO": "Tree"}):
    print("told", flush=True)
    sys.stdin.read()
"""
Rank = Callable[[int], "subprocess.Popen[str]"]


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    started: list[subprocess.Popen[str]] = []

    def start(local_rank: int) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-c", RANK, str(local_rank), str(tmp_path)]
        one = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        started.append(one)
        assert one.stdout is not None
        assert one.stdout.readline() == "told\n"
        return one

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outer_launcher, "_PATIENCE_S", math.inf)


def heard(folder: Path | None, env: Mapping[str, str] | None = None) -> dict[int, dict[str, str]]:
    (reading,) = outer_launcher.readings(AGENT, folder, env or {})
    fact = RankSettings.model_validate(reading.fact)
    assert fact.local_size == 3
    return {local: one.variables for local, one in fact.ranks.items()}


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("patient")
def test_agent_reads_all_ranks_without_waiting_and_no_file_remains(tmp_path: Path, rank: Rank) -> None:
    ranks = [rank(1), rank(2)]

    assert heard(tmp_path, {"NCCL_PROTO": "LL"}) == {0: {"NCCL_PROTO": "LL"}, 1: TREE, 2: TREE}
    for one in ranks:
        one.communicate("")
    assert files(tmp_path) == []


def test_rank_that_never_comes_is_not_listed(tmp_path: Path, rank: Rank) -> None:
    rank(2)

    assert heard(tmp_path) == {0: {}, 2: TREE}


@pytest.mark.usefixtures("patient")
def test_rank_that_arrives_while_the_agent_listens_is_heard(
    tmp_path: Path, rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank(1)
    late = iter([2])
    monkeypatch.setattr("time.sleep", lambda _: [rank(number) for number in late])  # between two looks

    assert heard(tmp_path) == {0: {}, 1: TREE, 2: TREE}


def test_killed_rank_is_not_trusted_and_its_file_is_removed_by_the_agent(tmp_path: Path, rank: Rank) -> None:
    one = rank(1)
    one.kill()
    one.wait()

    assert heard(tmp_path) == {0: {}}
    assert files(tmp_path) == ["slurm-7-0-0.1.rank"]
    outer_launcher.forget(AGENT, tmp_path)
    assert files(tmp_path) == []


def test_only_the_file_that_a_running_rank_wrote_is_trusted(tmp_path: Path, rank: Rank) -> None:
    rank(1)
    (tmp_path / "slurm-7-0-0.2.rank").symlink_to(tmp_path / "slurm-7-0-0.1.rank")
    (tmp_path / "slurm-7-0-0.3.rank").hardlink_to(tmp_path / "slurm-7-0-0.1.rank")  # of no rank of this launch
    (tmp_path / "slurm-7-0-1.2.rank").hardlink_to(tmp_path / "slurm-7-0-0.1.rank")  # of another launch

    assert heard(tmp_path) == {0: {}, 1: TREE}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"variables": {"NCCL_ALGO": 1}}', "x" * (1 << 20) + "x"])
def test_invalid_rank_message_is_not_trusted(tmp_path: Path, text: str) -> None:
    path = tmp_path / "slurm-7-0-0.1.rank"
    path.write_text(text)
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        assert heard(tmp_path) == {0: {}}


def test_pipe_in_place_of_a_rank_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slurm-7-0-0.1.rank")

    assert heard(tmp_path) == {0: {}}


@pytest.mark.usefixtures("patient")
def test_agent_without_a_directory_reports_only_its_own_settings() -> None:
    assert heard(None, TREE) == {0: TREE}


def test_rank_that_cannot_report_still_waits(tmp_path: Path) -> None:
    with outer_launcher.settings_shared(AGENT, tmp_path / "missing", TREE):
        pass


def test_old_files_of_killed_ranks_are_removed(tmp_path: Path) -> None:
    for name in ("old.1.rank", "old.1.rank.7.new"):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time.time() - 2 * 86400,) * 2)

    outer_launcher.AgentLock(AGENT, tmp_path).hand_over(0)

    assert files(tmp_path) == ["slurm-7-0-0.agent"]


# --- ranks that torchrun starts, each in a script -----------------------------------------------------


def started(folder: Path, script: str, *options: str, nodes: int = 1, node: int = 0, port: int = 0) -> Any:
    """Start torchrun with four ranks on this node; each rank runs ``script`` and then ddp-doctor."""
    wrapper = folder / f"wrapper{node}.sh"
    command = f"{sys.executable} -m ddp_doctor run -q --json {folder}/node{node}.json --record {folder}/node{node}.rec"
    # The agent listens for half a second: it is started when the others have said theirs, however slowly they start.
    told = f"[ $(ls {folder}/ddp-doctor-{os.getuid()}/*.rank 2>/dev/null | wc -l) -ge {3 * nodes} ]"
    last = f'[ "$LOCAL_RANK" != 0 ] || until {told}; do sleep 0.1; done'
    # no exec, so that every rank has its own parent
    wrapper.write_text(f'#!/bin/sh\n{script}\n{last}\n{command} "$@"\n')
    wrapper.chmod(0o700)
    where = ("--master-addr", "127.0.0.1", "--master-port", str(port or free_port()))
    argv = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", *where, "--no-python")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder), "TMPDIR": str(folder)}
    env.pop("XDG_RUNTIME_DIR", None)
    return subprocess.Popen(
        (*argv, "--nnodes", str(nodes), "--node-rank", str(node), str(wrapper), "--level", "quick", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
    )


def ended(process: Any, folder: Path, node: int = 0) -> tuple[dict[str, Any], int]:
    said, _ = process.communicate(timeout=LIMIT_S)
    assert (folder / f"node{node}.json").exists(), said
    report: dict[str, Any] = json.loads((folder / f"node{node}.json").read_text())
    return report, process.returncode


def meeting_files(folder: Path) -> list[str]:
    return [name for name in files(folder / f"ddp-doctor-{os.getuid()}") if not name.endswith(".agent")]


def test_a_setting_of_one_torchrun_rank_is_found_and_replayed(tmp_path: Path) -> None:
    script = '[ "$LOCAL_RANK" != 2 ] || export TORCH_DISTRIBUTED_DEBUG=DETAIL'

    report, code = ended(started(tmp_path, script, *WITHOUT_DDP), tmp_path)

    (found,) = [one for one in report["findings"] if one["severity"] != "info"]
    assert (code, found["code"], found["severity"]) == (1, "DD555", "error")
    assert [(one["kind"], one["rank"]) for one in found["culprits"]] == [("rank", 2)]
    assert "TORCH_DISTRIBUTED_DEBUG differs: set to DETAIL on local rank 2" in found["title"]
    again = recordings.replay(tmp_path / "node0.rec").report
    assert json.loads(again.model_dump_json())["findings"] == report["findings"]
    assert meeting_files(tmp_path) == []


def test_different_gpu_and_log_per_torchrun_rank_are_not_reported(tmp_path: Path) -> None:
    script = (
        "export CUDA_VISIBLE_DEVICES=$LOCAL_RANK NCCL_DEBUG_FILE=/tmp/$RANK.%h.%p NCCL_DEBUG=WARN GLOO_SOCKET_IFNAME=lo"
    )

    report, code = ended(started(tmp_path, script, "--only", "env_vars"), tmp_path)

    recording = recordings.load_recording(tmp_path / "node0.rec")
    (seen,) = recording.facts(RankSettings)
    assert (code, report["verdict"], report["findings"]) == (0, "healthy", [])
    assert sorted(seen.fact.ranks) == [0, 1, 2, 3]
    assert meeting_files(tmp_path) == []


def test_rank_of_another_node_is_blamed_with_its_node(tmp_path: Path) -> None:
    script, port = '[ "$RANK" != 6 ] || export TORCH_DISTRIBUTED_DEBUG=DETAIL', free_port()

    both = [started(tmp_path, script, *WITHOUT_DDP, nodes=2, node=node, port=port) for node in range(2)]
    reports = [ended(process, tmp_path, node) for node, process in enumerate(both)]

    for report, code in reports:
        (found,) = [one for one in report["findings"] if one["code"] == "DD555"]
        assert (code, found["severity"]) == (1, "error")
        assert [(one["node_rank"], one["rank"]) for one in found["culprits"]] == [(1, 6)]
        assert "DD551" not in {one["code"] for one in report["findings"]}
    assert meeting_files(tmp_path) == []
