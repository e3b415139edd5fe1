"""How long logs of a thousand ranks take to read, beside grep with the same words."""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddp_doctor.parse.job_log.scan import ALL_WORDS
from tests.bench import job_logs

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

MEGABYTES = 200
READ = "import sys; from ddp_doctor.app.job_reading import read_job; read_job(sys.argv[1:])"


def _seconds(*argv: str) -> float:
    started = time.perf_counter()
    subprocess.run(
        argv, check=True, capture_output=True, env={"LC_ALL": "C", "PYTHONPATH": ":".join(sys.path)}
    )
    return time.perf_counter() - started


@pytest.mark.parametrize(
    ("lines", "bar"), [(job_logs.training, 3.0), (job_logs.nccl_info, None)], ids=["training", "NCCL INFO"]
)
def test_a_log_of_a_thousand_ranks_is_read_in_the_time_of_three_greps(
    lines: Callable[[], Iterator[str]], bar: float | None, tmp_path: Path
):
    log, words = tmp_path / "job.out", tmp_path / "words"
    job_logs.write(lines(), MEGABYTES, log)
    words.write_bytes(b"\n".join(ALL_WORDS) + b"\n")
    grep, ours = [], []
    for _ in range(3):
        grep.append(_seconds("/bin/grep", "-c", "-F", "-f", str(words), str(log)))
        ours.append(_seconds(sys.executable, "-c", READ, str(log)))
    ratio = statistics.median(ours) / statistics.median(grep)
    memory_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    print(
        f"\n  grep {statistics.median(grep):.2f} s, logs {statistics.median(ours):.2f} s: {ratio:.1f} (bar {bar})",
        end="",
    )
    print(f", at most {memory_mb:.0f} MB (bar 300)")

    assert bar is None or ratio <= bar
    assert memory_mb <= 300
