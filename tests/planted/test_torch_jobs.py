"""Hanging jobs over the real ProcessGroupNCCL, as attach, watch and logs report them.

Nothing here was seen on a GPU. ``make planted-torch`` runs these tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machines import servers
from tests.planted.test_nccl import skip_where_none_can_be_planted
from tests.planted.with_torch import PlantedTorch, ended
from tests.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.planted_torch, pytest.mark.timeout(1200)]

RANKS = 3
#: Some steps, and then rank 2 goes its own way: ``train.py WAY SECONDS``.
TRAINS = """
import os, signal, sys, threading
from datetime import timedelta
import torch, torch.distributed as dist
way, seconds = sys.argv[1], float(sys.argv[2])
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
number = torch.ones(4, device="cuda")
for _ in range(3):
    dist.all_reduce(number)
torch.cuda.synchronize()
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))
if rank == 2 and way == "stopped":
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 2 and way == "outside":
    threading.Event().wait()
if rank == 2 and way == "leaves":
    os._exit(0)
if way == "backward":
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs):
            return inputs * 1
        @staticmethod
        def backward(ctx, gradient):
            while rank == 2:
                threading.Event().wait()  # in autograd's thread for this GPU
            return gradient
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda(), device_ids=[rank])
    Own.apply(model(torch.rand(2, 4, device="cuda"))).sum().backward()
if rank == 2 and way == "other":
    dist.broadcast(number, 2)
else:
    dist.all_reduce(number)
torch.cuda.synchronize()
"""


@pytest.fixture(scope="module")
def planted() -> Iterator[PlantedTorch]:
    skip_where_none_can_be_planted()
    with PlantedTorch([servers.hgx_a100_roce()]) as machine:
        yield machine


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAINS)
    return path


def named(report: Path) -> list[tuple[str, list[int]]]:
    causes = json.loads(report.read_text())["causes"]
    return [(cause["class"], [culprit["rank"] for culprit in cause["culprits"]]) for cause in causes]


def test_attach_finds_the_rank_with_another_collective_by_nccls_counters(
    planted: PlantedTorch, script: Path, tmp_path: Path
):
    def attached() -> list[tuple[str, list[int]]]:
        planted.doctor("attach", "--json", report)
        return [cause for cause in named(report) if cause[1]] if report.exists() else []

    report = tmp_path / "report.json"
    ranks = planted.start_ranks(script, RANKS, "other", "3600")
    try:
        found = wait_until(attached, "attach names a rank", 4 * LIMIT_S)  # each attach takes seconds
    finally:
        for process in ranks.values():
            process.kill()

    assert found == [("collective-mismatch", [2])]


def test_logs_name_the_absent_rank_next_to_empty_recorder_dumps(planted: PlantedTorch, script: Path, tmp_path: Path):
    """torch 2.9 writes a dump of each rank at a timeout even if TORCH_FR_BUFFER_SIZE is not set."""
    dumps = {"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "trace_")}
    ranks = planted.start_ranks(script, RANKS, "outside", "5", env=dumps)
    try:
        ends = [ended(ranks[rank], 8 * LIMIT_S) for rank in (0, 1)]  # 60 s after the time-out
    finally:
        ranks[2].kill()
    said = [*(one.said for one in ends), ranks[2].output() + ranks[2].errors()]
    (tmp_path / "job.out").write_text("".join(said))

    run = planted.doctor("logs", tmp_path / "job.out", *tmp_path.glob("trace_*"), "--json", tmp_path / "r.json")

    assert len([*tmp_path.glob("trace_*")]) == RANKS
    assert named(tmp_path / "r.json") == [("stuck-outside-collective", [2])], run.said


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("stopped", "Rank 2 .*is stopped by a signal"),
        ("leaves", "Rank 2 is gone, and ranks 0, 1 are still there"),
        ("other", "rank 2 called broadcast, rank 0 all-reduce"),
        ("backward", r"Rank 2 .* never entered the collective of the backward pass .*; it stands at train.py:\d+"),
    ],
    ids=["a rank is stopped", "a rank leaves", "a rank calls another collective", "a rank stands in its own backward"],
)
def test_watch_ends_a_hanging_job_and_names_the_awaited_rank(
    planted: PlantedTorch, script: Path, tmp_path: Path, way: str, says: str
):
    torchrun = (planted.python, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS))
    run = planted.doctor(
        *("watch", "--stuck-after", "10", "--on-hang", "kill", "--", *torchrun, script, way, "3600"),
        limit_s=8 * LIMIT_S,
    )

    assert run.code not in (0, None), run.said
    assert re.search(says, run.errors), run.said
