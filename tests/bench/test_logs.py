"""The time to read logs of a thousand ranks, compared with grep for the same words."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddp_doctor.features.jobs.reading.scan import ALL_WORDS
from tests.bench import job_logs

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

MEGABYTES = 200
READ = "import sys; from ddp_doctor.features.jobs.logs.use_case import read_job; read_job(sys.argv[1:])"


def _measured(*argv: str) -> tuple[float, float]:
    """Seconds, and the most memory that this one process had, in MB: the other benches have larger children."""
    env = {"LC_ALL": "C", "PYTHONPATH": ":".join(sys.path)}
    started = time.perf_counter()
    # A pipe, because grep stops at its first match if it writes to /dev/null.
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.perf_counter() - started, used.ru_maxrss / 1e3


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
        grep.append(_measured("/bin/grep", "-c", "-F", "-f", str(words), str(log))[0])
        ours.append(_measured(sys.executable, "-c", READ, str(log)))
    by_grep, by_us = statistics.median(grep), statistics.median(seconds for seconds, _ in ours)
    ratio, memory_mb = by_us / by_grep, max(memory_mb for _, memory_mb in ours)
    print(f"\n  grep {by_grep:.2f} s, logs {by_us:.2f} s: {ratio:.1f} (bar {bar})", end="")
    print(f", at most {memory_mb:.0f} MB (bar 300)")

    assert bar is None or ratio <= bar
    assert memory_mb <= 300
