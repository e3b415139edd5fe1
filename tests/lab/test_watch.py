"""A watcher beside real ranks, one of which hangs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.processes import PATIENCE_S

pytestmark = pytest.mark.lab

HANGING = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
print("begun", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        time.sleep(10_000)
"""


def test_a_job_that_hangs_is_explained_while_it_hangs_and_ended_where_that_is_asked_for(tmp_path: Path):
    (tmp_path / "train.py").write_text(HANGING)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py")
    watch = (sys.executable, "-m", "ddp_doctor", "watch", "--stuck-after=10", "--on-hang=kill", "--")
    done = subprocess.run(
        (*watch, *torchrun),
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout.count("begun") == 2
    assert "train.py:9" in next(line for line in done.stderr.splitlines() if "Stuck: Rank 1 " in line)
    own = [line for line in done.stderr.splitlines() if line.startswith("ddp-doctor: ")]
    assert own[-2].endswith("the command, because the job hangs")
    assert own[-1].endswith("It hung; who kept the others waiting is told above")
    assert (tmp_path / "ddp-doctor" / "runs").is_dir()


SLOWING = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, begun, done = dist.get_rank(), time.monotonic(), torch.zeros(1)
while not done.item():
    at_s = time.monotonic() - begun
    time.sleep(0.6 if at_s > 70 and (rank == 1 or sys.argv[1] == "all") else 0.15)
    dist.all_reduce(torch.ones(10_000))
    done[0] = at_s > 170
    dist.broadcast(done, 0)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("who", ["rank 1", "all"])
def test_a_job_that_becomes_slower_is_told_with_the_rank_that_is_to_blame_alone(who: str, tmp_path: Path):
    (tmp_path / "train.py").write_text(SLOWING)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "train.py", who)
    done = subprocess.run(
        (sys.executable, "-m", "ddp_doctor", "watch", "--", *torchrun),
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S + 170,
        check=False,
    )

    assert done.returncode == 0
    told = [line for line in done.stderr.splitlines() if " became slower at " in line]
    assert len(told) == 1
    assert "by what gloo sends between its ranks" in told[0]
    assert ("; rank " in told[0]) == ("; rank 1 came last in " in told[0]) == (who == "rank 1")
