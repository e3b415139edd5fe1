"""`run --collectives-of` on real dumps: 200 collectives of four groups finish, or hang where the job hung."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.app.job_collectives import load_job_collectives
from tests.features.jobs.logs.dumps import DUMPS, as_json
from tests.features.jobs.logs.make_many import CULPRIT, RANKS, ROUNDS
from tests.waiting import LIMIT_S, wait_until

pytestmark = pytest.mark.lab  # most start some ten processes

Made = Callable[[str], Path]


@pytest.fixture
def dumps(tmp_path: Path) -> Made:
    def make(what: str) -> Path:
        folder = tmp_path / "dumps"
        folder.mkdir()
        argv = (sys.executable, "-m", "tests.features.jobs.logs.make_many", str(folder), what)
        ranks = subprocess.Popen(argv, env={**os.environ, "TORCH_FR_BUFFER_SIZE": "2000"}, start_new_session=True)
        try:
            wait_until(lambda: len(list(folder.glob("nccl_trace_*"))) == RANKS, "each rank writes a dump")
        finally:
            os.killpg(ranks.pid, signal.SIGKILL)
            ranks.wait()
        return folder

    return make


def replayed(folder: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the report."""
    argv = ("run", "--collectives-of", str(folder), "--only", "job_collectives", "--nproc-per-node", str(RANKS), *more)
    run = subprocess.run(
        (sys.executable, "-m", "ddp_doctor", *argv, "--json", "-"),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    report: dict[str, Any] = json.loads(run.stdout)
    return run.returncode, report


def reproduced(script: Path) -> subprocess.CompletedProcess[str]:
    argv = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), str(script))
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=300)


def test_200_collectives_of_four_groups_finish(dumps: Made, tmp_path: Path):
    script = tmp_path / "reproducer.py"

    code, report = replayed(dumps("through"), "--reproducer", str(script))

    (finding,) = report["findings"]
    assert (code, finding["code"]) == (0, "DD652"), report["summary"]
    assert f"The job's {4 * ROUNDS} collectives of 4 groups finished" in finding["title"]
    run = reproduced(script)
    assert (run.returncode, run.stdout.count("is through")) == (0, RANKS), run.stderr[-2000:]


def test_skipped_collective_hangs_the_replay_and_the_script_where_the_job_hung(dumps: Made, tmp_path: Path):
    script = tmp_path / "reproducer.py"

    code, report = replayed(dumps("skipped"), "--reproducer", str(script))

    (finding,) = report["findings"]
    assert (code, finding["code"]) == (1, "DD650"), report["summary"]
    assert [culprit["rank"] for culprit in finding["culprits"]] == [CULPRIT]
    assert f"ranks 0, 1, 3 wait in all_reduce {ROUNDS} of the default group" in finding["title"]
    text = script.read_text()
    assert "seconds=30" in text
    script.write_text(text.replace("seconds=30", "seconds=10"))
    run = reproduced(script)
    assert run.returncode != 0
    assert run.stdout.count("is through") == 1


def test_another_size_on_one_rank_is_read_from_real_dumps(dumps: Made):
    """A replay of such calls is in tests/checks/test_job_collectives.py."""
    job = load_job_collectives(str(dumps("size")))

    last = [(job.words(calls[-1]), calls[-1].elements) for calls in job.ranks]
    assert (len(job.ranks), job.blamed) == (RANKS, (CULPRIT,))
    assert last == [
        (f"all_reduce {ROUNDS + 1} of the default group", 65 if rank == CULPRIT else 64) for rank in range(RANKS)
    ]


def test_another_number_of_ranks_is_refused_with_the_option_to_add(tmp_path: Path):
    for rank, content in DUMPS["at-rest"].items():
        (tmp_path / f"rank{rank}.json").write_bytes(as_json(content))
    argv = ("run", "--collectives-of", str(tmp_path), "--only", "job_collectives", "--nproc-per-node", "2")
    run = subprocess.run(
        (sys.executable, "-m", "ddp_doctor", *argv), capture_output=True, text=True, check=False, timeout=LIMIT_S
    )

    assert run.returncode == 2
    assert "has 4 ranks, but this run has 2; add --nproc-per-node 4" in run.stderr
