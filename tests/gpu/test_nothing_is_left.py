"""No GPU memory remains in use, whichever process is killed and how; nvidia-smi measures before and after."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.gpu import runs, smi
from tests.waiting import LIMIT_S, wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

#: A CUDA context takes some hundred MiB.
ON_THE_GPU_MIB = 150
#: Memory that the driver itself may keep or release between two samples.
NOISE_MIB = 64
OPTIONS = ("--backend", "nccl", "--nproc-per-node", "1", *runs.only("process_group", "gpu_speed", "allreduce"))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A run whose rank is on the GPU, and the memory that was in use before it."""
    before = smi.used_mib()
    with (tmp_path / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            runs.command(tmp_path, *OPTIONS), stdout=said, stderr=said, env=runs.environment(tmp_path)
        )
    try:
        wait_until(lambda: process.poll() is not None or smi.used_mib() > before + ON_THE_GPU_MIB, "it uses the GPU")
        assert process.poll() is None, (tmp_path / "said.txt").read_text()
        yield process, before
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(LIMIT_S)


def ranks_of(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    family = psutil.Process(process.pid).children(recursive=True)
    return [one for one in family if one.name().startswith("ddp-doctor:r")]


def test_gpu_is_unchanged_after_a_run(tmp_path: Path):
    before = smi.used_mib()
    runs.run(tmp_path, *OPTIONS)
    smi.wait_until_at_most(before + NOISE_MIB)


def test_killed_rank_leaves_no_memory_and_is_reported(running: tuple["subprocess.Popen[bytes]", int], tmp_path: Path):
    process, before = running
    (rank, *_) = ranks_of(process)
    rank.send_signal(signal.SIGKILL)
    code = process.wait(LIMIT_S)

    smi.wait_until_at_most(before + NOISE_MIB)
    outcome = runs.read(tmp_path, code)
    assert code == 1, outcome.report["summary"]
    assert "SIGKILL" in str(outcome.report["findings"])


def test_killed_agent_leaves_no_memory(running: tuple["subprocess.Popen[bytes]", int]):
    process, before = running
    process.kill()
    process.wait(LIMIT_S)
    smi.wait_until_at_most(before + NOISE_MIB)


def test_stopped_rank_is_ended_and_leaves_no_memory(running: tuple["subprocess.Popen[bytes]", int], tmp_path: Path):
    process, before = running
    (rank, *_) = ranks_of(process)
    rank.send_signal(signal.SIGSTOP)
    code = process.wait(LIMIT_S)

    assert code == 1, (tmp_path / "said.txt").read_text()
    smi.wait_until_at_most(before + NOISE_MIB)
