"""A watcher of real ranks; one of the ranks hangs."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from ddp_doctor.features.jobs.watch.pace import Look
from ddp_doctor.features.jobs.watch.step_counts import Gloo
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.lab

HANGING = """
import signal, torch, torch.distributed as dist
dist.init_process_group("gloo")
print("begun", flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        signal.pause()
"""


def test_hanging_job_is_explained_while_it_hangs_and_ended_on_request(tmp_path: Path):
    (tmp_path / "train.py").write_text(HANGING)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "train.py")
    watch = (sys.executable, "-m", "ddp_doctor", "watch", "--stuck-after=10", "--on-hang=kill", "--")
    done = subprocess.run(
        (*watch, *torchrun),
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )

    assert done.returncode == 1
    assert done.stdout.count("begun") == 2
    assert "train.py:8" in next(line for line in done.stderr.splitlines() if "Stuck: Rank 1 " in line)
    own = [line for line in done.stderr.splitlines() if line.startswith("ddp-doctor: ")]
    assert own[-2].endswith("because the job hangs")
    assert own[-1].endswith("It hung; the cause is reported above")
    assert (tmp_path / "ddp-doctor" / "runs").is_dir()


WAITING = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(10_000))
with open(f"rank{rank}.new", "w") as file:
    file.write(str(os.getpid()))
os.rename(f"rank{rank}.new", f"rank{rank}")
while True:
    time.sleep(1 if rank == 1 else 0)
    dist.all_reduce(torch.ones(10_000))
"""


def test_samples_of_a_job_show_progress_and_the_rank_that_others_wait_for(tmp_path: Path):
    (tmp_path / "train.py").write_text(WAITING)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3", "train.py")
    job = subprocess.Popen(torchrun, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    looks: list[Look] = []
    try:
        files = [tmp_path / f"rank{rank}" for rank in range(3)]
        wait_until(lambda: all(file.exists() for file in files), "all ranks have begun")
        gloo = Gloo()
        gloo.search(int(file.read_text()) for file in files)

        def has_seen_progress() -> bool:
            looks.append(gloo.look(time.monotonic()))
            return sum(look.waits for look in looks) >= 20 and looks[-1].total > looks[0].total

        wait_until(has_seen_progress, "20 looks show waiting ranks, and the job makes progress")
    finally:
        job.terminate()
        job.wait(LIMIT_S)

    assert Counter(look.last for look in looks if look.waits).most_common(1)[0][0] == 1
