"""A quota and a memory limit that the kernel really enforces, read back from inside the group."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import LIMIT_S

pytestmark = pytest.mark.lab

CPU_V1, MEMORY_V1, V2 = (Path("/sys/fs/cgroup") / name for name in ("cpu", "memory", "cgroup.controllers"))
READ = """
import json, pathlib, sys
for folder in sys.argv[1:]:
    pathlib.Path(folder, "cgroup.procs").write_text("0")
from ddp_doctor.parse.cgroup import limits
def read(path):
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return None
found = limits(read)
print(json.dumps([found.cpu_quota_cpus, found.memory_limit_bytes]))
"""


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    if os.geteuid() != 0 or not (CPU_V1.is_dir() or V2.exists()):
        pytest.skip("needs root and mounted control groups")
    parents = [CPU_V1, MEMORY_V1] if CPU_V1.is_dir() else [V2.parent]
    made = [parent / f"ddp-doctor-test-{os.getpid()}" for parent in parents]
    try:
        for folder in made:
            folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield made
    for folder in made:
        folder.rmdir()


def limit(folder: Path) -> None:
    values = {
        "cpu.max": "150000 100000",
        "memory.max": str(512 * 1024**2),
        "cpu.cfs_period_us": "100000",
        "cpu.cfs_quota_us": "150000",
        "memory.limit_in_bytes": str(512 * 1024**2),
    }
    for name, value in values.items():
        if (folder / name).exists():
            (folder / name).write_text(value)


def test_limits_are_read_back_from_inside_the_group(groups):
    for folder in groups:
        limit(folder)
    if not any((folder / name).exists() for folder in groups for name in ("cpu.max", "cpu.cfs_quota_us")):
        pytest.skip("the cpu controller is not given to this part of the tree")
    argv = [sys.executable, "-c", READ, *map(str, groups)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=LIMIT_S)
    assert json.loads(done.stdout) == [1.5, 512 * 1024**2]
