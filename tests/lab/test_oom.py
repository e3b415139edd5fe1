"""A rank that the kernel kills for lack of memory, in a memory cgroup that really is too small."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.lab

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/cgroup.controllers")
LIMIT = 1200 << 20


@pytest.fixture
def small_group() -> Iterator[Path]:
    if os.geteuid() != 0 or not (V1.is_dir() or V2.exists()):
        pytest.skip("needs root and a mounted memory cgroup")
    folder = (V1 if V1.is_dir() else V2.parent) / f"ddp-doctor-oom-{os.getpid()}"
    folder.mkdir()
    name = "memory.limit_in_bytes" if V1.is_dir() else "memory.max"
    (folder / name).write_text(str(LIMIT))
    for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
        if (folder / swap).exists():
            (folder / swap).write_text(str(LIMIT) if "memsw" in swap else "0")
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text(), "the killed processes are reaped")
    folder.rmdir()


def test_rank_killed_by_the_oom_killer_is_reported_with_that_cause(small_group):
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        (sys.executable, "-m", "tests.lab.oom_run", str(small_group)),
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=root,
    )
    assert done.returncode == 0, done.stderr
    (finding,) = json.loads(done.stdout.splitlines()[-1])["findings"]

    assert finding["code"] == "DD612"
    assert finding["culprits"][0]["rank"] == 1
    assert "out of memory (OOM, SIGKILL)" in finding["title"]
