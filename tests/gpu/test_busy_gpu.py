"""Another program holds nine tenths of a GPU: ddp-doctor measures next to it, reports it, and does not disturb it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_doctor.facts.collectives import GpuSpeedFact
from tests.gpu import runs, smi
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

#: Holds its memory until it is told to end, and then sums it up: it must still be what it was.
HOLDER = """
import sys, torch
free, total = torch.cuda.mem_get_info()
wanted = min(int(0.90 * total), free - (1 << 30))
held = torch.ones(wanted, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("holds", wanted, flush=True)
sys.stdin.readline()
print("sum", int(held[:: 1 << 20].sum().item()), len(held[:: 1 << 20]), flush=True)
"""


@pytest.fixture
def holder() -> Iterator["subprocess.Popen[str]"]:
    if int(smi.query("memory.total")[0]["memory.total"]) < 22 * 1024:
        pytest.skip("needs a GPU of 22 GiB or more: CUDA and NCCL must fit beside the other program")
    process = subprocess.Popen((sys.executable, "-c", HOLDER), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        words = process.stdout.readline()
        assert words.startswith("holds "), words
        yield process
    finally:
        process.kill()
        process.communicate()


def test_ddp_doctor_neither_fills_a_busy_gpu_nor_fails_on_it(holder: "subprocess.Popen[str]", tmp_path: Path):
    total = int(smi.query("memory.total")[0]["memory.total"])
    checks = runs.only("gpus", "process_group", "gpu_speed", "allreduce", "gradient_sync")
    with smi.peak_used_mib() as seen:
        outcome = runs.run(tmp_path, "--backend", "nccl", "--nproc-per-node", "1", *checks)

    assert max(seen) < total - 256, "the GPU was filled"
    status = outcome.statuses()
    assert {status[check] for check in ("process_group", "gpu_speed", "allreduce", "gradient_sync")} <= {
        "passed",
        "found",
    }, outcome.report
    assert {"DD305", "DD806"} <= outcome.codes()
    told = next(one for one in outcome.report["findings"] if one["code"] == "DD806")
    assert told["severity"] == "info"
    assert not outcome.codes() & {"DD801", "DD802", "DD804", "DD808"}  # what is measured there is not judged
    fact = outcome.recording.first(GpuSpeedFact)
    assert fact is not None
    assert fact.memory_allowed_bytes <= fact.memory_total_bytes // 20

    said, _ = holder.communicate("end\n", timeout=LIMIT_S)
    words = said.split()
    assert words[0] == "sum"
    assert words[1] == words[2], "the other program's memory is not what it was"


def test_other_program_is_reported_with_its_pid(holder: "subprocess.Popen[str]", tmp_path: Path):
    outcome = runs.run(tmp_path, *runs.only("gpus", "process_group", "gpu_speed"), "--nproc-per-node", "1")
    told = next(one for one in outcome.report["findings"] if one["code"] == "DD806")
    evidence = told["evidence"][0]["text"]
    if f"pid {holder.pid} " not in evidence:
        pytest.skip(f"needs to share the driver's pid namespace: {evidence}")
    assert "(python" in evidence or "name unknown" in evidence
