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
    time.sleep(3 if at_s > 90 and (rank == 1 or sys.argv[1] == "all") else 0.5)
    dist.all_reduce(torch.ones(10_000))
    done[0] = at_s > 220
    dist.broadcast(done, 0)
dist.destroy_process_group()
"""


def test_a_job_that_becomes_slower_is_told_with_the_one_rank_that_the_others_wait_for(tmp_path: Path):
    (tmp_path / "train.py").write_text(SLOWING)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    watch = (sys.executable, "-m", "ddp_doctor", "watch", "--")
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    jobs = [
        subprocess.Popen(
            (*watch, *torchrun, "--nproc-per-node=3", "train.py", who),
            cwd=tmp_path,
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        for who in ("rank 1", "all")
    ]
    said = [job.communicate(timeout=2 * PATIENCE_S + 220)[1] for job in jobs]

    assert [job.returncode for job in jobs] == [0, 0]
    told = [[line for line in text.splitlines() if " became slower at " in line] for text in said]
    assert [len(lines) for lines in told] == [1, 1]
    assert "; rank 1 came last in " in told[0][0]
    assert "rank" not in told[1][0].partition("by what gloo sends between its ranks")[2]
