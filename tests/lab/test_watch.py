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
