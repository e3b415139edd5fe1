"""The cost of traces of 50 to 800 MB beyond an empty trace, and HTA's cost if ``HTA`` is a Python that has HTA.

``TRACE`` names another trace to repeat, such as one of a GPU; HTA needs a GPU's.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest

from tests.features.trace.repeated import repeat

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SIZES_MB = (50, 200, 800)
#: The kernel's count for a process starts with its parent's memory.
PEAK = """
import os, sys
def tell(code=0, leave=os._exit):
    with open("/proc/self/status") as status, open(os.environ["PEAK"], "w") as peak:
        peak.write(next(line for line in status if line.startswith("VmHWM")).split()[1])
    leave(code)
os._exit = tell
"""
OURS = """
from ddp_doctor.__main__ import main
sys.argv = ["ddp-doctor", "trace", "--quiet", *sys.argv[1:]]
main()
tell(1)
"""
HTA = """
import logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="", include_last_profiler_step=True)
tell()
"""
STEPS = [{"ph": "X", "name": f"ProfilerStep#{n}", "cat": "user_annotation", "ts": n, "dur": 1} for n in range(4)]
EMPTY = {"distributedInfo": {"backend": "gloo", "rank": 0, "world_size": 2}, "traceEvents": STEPS}


@pytest.fixture(scope="module", params=["operators", "stacks"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("TRACE"):
        return Path(given)
    folder = tmp_path_factory.mktemp("source")
    name = {"operators": "healthy_mlp", "stacks": "healthy_stack"}[request.param]
    subprocess.run(
        [sys.executable, "-m", "tests.features.trace.make", str(folder), name], check=True, capture_output=True
    )
    return folder / name / "rank0.json.gz"


def _used(python: str, script: str, files: Sequence[Path], room: Path) -> tuple[float, float]:
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "XDG_STATE_HOME": str(room), "PYTHONPATH": root, "PEAK": str(room / "peak")}
    process = Popen([python, "-c", PEAK + script, *map(str, files)], env=env, stdout=DEVNULL, stderr=DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1, 3)
    return used.ru_utime + used.ru_stime, int((room / "peak").read_text()) / 1e3


def _ours(files: Sequence[Path], room: Path) -> tuple[float, float]:
    return min(_used(sys.executable, OURS, files, room) for _ in range(3))


def test_a_hundred_megabytes_take_a_second_and_sixty_megabytes(source: Path, tmp_path: Path):
    trace = tmp_path / "rank0.json"
    trace.write_text(json.dumps(EMPTY))
    least_s, least_mb = _ours([trace], tmp_path)
    print(f"\n  an empty trace: {least_s:.2f} s, {least_mb:.0f} MB")
    seconds, memory = [], []
    for size_mb in SIZES_MB:
        repeat(source, size_mb, trace)
        hundreds = trace.stat().st_size / 1e8
        used_s, used_mb = _ours([trace], tmp_path)
        seconds.append((used_s - least_s) / hundreds)
        memory.append((used_mb - least_mb) / hundreds)
        print(f"  {100 * hundreds:.0f} MB: {used_s:.2f} s, {used_mb:.0f} MB", end="")
        print(f"; for each 100 MB {seconds[-1]:.2f} s, {memory[-1]:.0f} MB (bars 1 s, 60 MB)")
        if size_mb == SIZES_MB[1] and "HTA" in os.environ:
            their_s, their_mb = _used(os.environ["HTA"], HTA, [trace], tmp_path)
            print(f"    HTA, loading alone: {their_s:.1f} s, {their_mb:.0f} MB")
    trace.unlink()

    assert max(seconds) <= 1.0
    assert max(memory) <= 60
    assert seconds[-1] <= 1.25 * seconds[0]


def test_eight_ranks_of_250_megabytes(source: Path, tmp_path: Path):
    files = [tmp_path / f"rank{rank}.json" for rank in range(8)]
    for rank, path in enumerate(files):
        repeat(source, 250, path, rank)
    hundreds = sum(path.stat().st_size for path in files) / 1e8
    used_s, used_mb = _used(sys.executable, OURS, files, tmp_path)
    print(f"\n  eight ranks, {100 * hundreds:.0f} MB: {used_s:.1f} s ({used_s / hundreds:.2f} for each 100 MB)", end="")
    print(f", {used_mb:.0f} MB")
    for path in files:
        path.unlink()

    assert used_s <= hundreds
