"""The destination of a rank's NCCL log, and the part of it in the recording."""

from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.model.recording import World
from ddp_doctor.model.trial import TrialRecord
from ddp_doctor.parse.nccl_log import MOST_CHARACTERS, parse_nccl_log
from ddp_doctor.ranks.environment import rank_environment
from ddp_doctor.ranks.rank_state import RankState
from tests.launch.rank_states import rank_state

PREFIX = "node0:811:840 [0] NCCL INFO "
VERSION = "NCCL version 2.18.6+cuda11.8\n"


def rank(folder: Path, backend: str = "nccl", *, done: bool = True) -> RankState:
    return rank_state(folder, TrialRecord(trial="t0", ranks=(0, 1), backend=backend), done=done)


def environment(backend: str, **users: str) -> dict[str, str]:
    world = World(nproc_per_node=2, world_size=2, backend=backend)
    return rank_environment(users, world, 0, "127.0.0.1", 29500, "/tmp/run 5%/t0/rank0.nccl")


def test_nccl_of_a_trial_logs_to_the_runs_file_and_never_to_the_users():
    mine = environment("nccl", NCCL_DEBUG="WARN", NCCL_DEBUG_FILE="/home/me/nccl.%h.log", NCCL_ALGO="Ring")

    assert mine["NCCL_DEBUG"] == "INFO"
    assert mine["NCCL_DEBUG_FILE"] == "/tmp/run 5%%/t0/rank0.nccl"
    assert {"INIT", "ENV", "NET"} <= set(mine["NCCL_DEBUG_SUBSYS"].split(","))
    assert mine["NCCL_ALGO"] == "Ring"


def test_nccl_settings_of_the_user_are_kept_without_nccl():
    users = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/home/me/nccl.log"}

    mine = environment("gloo", **users)
    assert {name: value for name, value in mine.items() if name.startswith("NCCL_")} == users


@pytest.mark.parametrize("done", [True, False])
def test_each_pair_is_recorded_once_even_from_the_end_of_a_long_log(tmp_path: Path, done: bool):
    chatter = "".join(f"{PREFIX}+ PCI[24.0] - GPU/0-1b000 ({line})\n" for line in range(20_000))
    pairs = [
        f"{PREFIX}Channel {at:02}/0 : 0[0] -> {peer}[{peer}] via P2P/CUMEM\n"
        for peer in range(1, 8)
        for at in range(24)
    ]
    (tmp_path / "rank0.nccl").write_text(chatter + "".join(pairs))
    (tmp_path / "rank0.out").write_text(VERSION)

    told = rank(tmp_path, done=done).evidence(out_of_memory=False).output_tail

    log = parse_nccl_log(told)
    assert log.version == "2.18.6"
    assert [one.to_rank for one in log.transports] == list(range(1, 8))
    assert len(told) < (600 if done else 10_000)


def test_log_of_thousands_of_peers_is_bounded(tmp_path: Path):
    lines = [f"{PREFIX}Channel 00/0 : 0[0] -> {peer}[0] [send] via NET/IB/0\n" for peer in range(8, 4096)]
    (tmp_path / "rank0.nccl").write_text("".join(lines))

    assert len(rank(tmp_path).evidence(out_of_memory=False).output_tail) <= MOST_CHARACTERS


def test_last_output_of_a_hanging_rank_is_its_own(tmp_path: Path):
    (tmp_path / "rank0.nccl").write_text(f"{PREFIX}Channel 00/0 : 0[0] -> 1[1] via P2P/IPC\n{PREFIX}waits\n")
    (tmp_path / "rank0.out").write_text("Traceback: the end\n")

    told = rank(tmp_path, done=False).evidence(out_of_memory=False).output_tail
    assert told.splitlines()[-1] == "Traceback: the end"
    assert "waits" in told


def test_growth_of_the_nccl_log_is_progress(tmp_path: Path):
    state = rank(tmp_path, done=False)
    before = state.printed()
    (tmp_path / "rank0.nccl").write_text("still at work\n")
    assert state.printed() > before


def test_finished_gloo_rank_has_no_log(tmp_path: Path):
    (tmp_path / "rank0.out").write_text("chatter\n")

    told: Any = rank(tmp_path, "gloo").evidence(out_of_memory=False)
    assert told.output_tail == ""
