"""What reading traces of 50 to 800 MB costs, above what a small one does; beside HTA where ``HTA`` is a Python with it.

``TRACE`` names another trace to repeat, such as one of a GPU, of which alone HTA makes something.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest

from tests.traces import make
from tests.traces.repeated import repeat

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SIZES_MB = (50, 200, 800)
READ = "import sys; from ddp_doctor.__main__ import main; sys.argv[0] = 'ddp-doctor'; main()"
HTA = """
import logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="", include_last_profiler_step=True)
"""


@pytest.fixture(scope="module", params=["operators", "stacks"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if given := os.environ.get("TRACE"):
        return Path(given)
    folder = tmp_path_factory.mktemp(request.param)
    make.run(folder, {"stack": request.param == "stacks", "steps": 4})
    return folder / "rank0.json.gz"


def _used(argv: Sequence[str], state: Path) -> tuple[float, float]:
    """Seconds of the processor, and the most memory in MB."""
    env = {**os.environ, "XDG_STATE_HOME": str(state), "PYTHONPATH": str(Path(__file__).parents[2])}
    process = Popen(argv, env=env, stdout=DEVNULL, stderr=DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1, 3)
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1e3


def test_a_hundred_megabytes_take_a_second_and_sixty_megabytes(source: Path, tmp_path: Path):
    trace = tmp_path / "rank0.json"

    def ours() -> tuple[float, float]:
        return _used([sys.executable, "-c", READ, "trace", "--quiet", str(trace)], tmp_path)

    repeat(source, 0, trace)
    least_s, least_mb = min(ours() for _ in range(3))
    print(f"\n  a trace of {trace.stat().st_size / 1e6:.1f} MB: {least_s:.2f} s, {least_mb:.0f} MB")
    seconds, memory = [], []
    for size_mb in SIZES_MB:
        repeat(source, size_mb, trace)
        hundreds = trace.stat().st_size / 1e8
        used_s, used_mb = min(ours() for _ in range(3))
        seconds.append((used_s - least_s) / hundreds)
        memory.append((used_mb - least_mb) / hundreds)
        print(f"  {100 * hundreds:.0f} MB: {used_s:.2f} s, {used_mb:.0f} MB", end="")
        print(f"; for each 100 MB {seconds[-1]:.2f} s, {memory[-1]:.0f} MB (bars 1 s, 60 MB)")
        if size_mb == SIZES_MB[1] and "HTA" in os.environ:
            their_s, their_mb = _used([os.environ["HTA"], "-c", HTA, str(trace)], tmp_path)
            print(f"    HTA, loading alone: {their_s:.1f} s, {their_mb:.0f} MB")
    trace.unlink()

    assert max(seconds) <= 1.0
    assert max(memory) <= 60
    assert seconds[-1] <= 1.25 * seconds[0]


def test_eight_ranks_of_250_megabytes(source: Path, tmp_path: Path):
    for rank in range(8):
        repeat(source, 250, tmp_path / f"rank{rank}.json", rank)
    files = sorted(tmp_path.glob("rank*.json"))
    hundreds = sum(path.stat().st_size for path in files) / 1e8
    used_s, used_mb = _used([sys.executable, "-c", READ, "trace", "--quiet", *map(str, files)], tmp_path)
    print(f"\n  eight ranks, {100 * hundreds:.0f} MB: {used_s:.1f} s ({used_s / hundreds:.2f} for each 100 MB)", end="")
    print(f", {used_mb:.0f} MB")
    for path in files:
        path.unlink()

    assert used_s <= hundreds
