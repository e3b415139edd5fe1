"""The whole run on real GPUs: NCCL, real NVML and nvidia-smi, and two ranks that share one GPU."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.launch.spec import Task, WorkerSpec
from ddp_doctor.model.choices import Level

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

DOCTOR = (sys.executable, "-m", "ddp_doctor")
CHECKS = ("process_group", "allreduce", "gradient_sync", "buffers", "p2p")


def _run(tmp_path: Path, *args: str) -> tuple[int, dict[str, Any]]:
    target = tmp_path / "report.json"
    done = subprocess.run(
        (*DOCTOR, "run", "-q", "--json", str(target), *args),
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path)},
    )
    assert target.exists(), done.stderr
    return done.returncode, json.loads(target.read_text())


def test_a_run_uses_nccl_on_every_gpu_and_reads_nvml(tmp_path):
    code, report = _run(tmp_path)
    status = {check["id"]: check["status"] for check in report["checks"]}

    assert report["world"]["backend"] == "nccl"
    assert code in (0, 1), report["summary"]
    assert status["gpus"] in ("passed", "found")
    assert status["process_group"] == status["allreduce"] == "passed", report
    assert any(one["name"] == "allreduce_busbw" for one in report["measurements"])


def test_more_ranks_than_gpus_are_named_and_do_not_hang(tmp_path):
    started = time.monotonic()
    gpus = int(subprocess.check_output(("nvidia-smi", "-L")).count(b"GPU "))
    code, report = _run(tmp_path, "--backend", "nccl", "--nproc-per-node", str(gpus + 1), "--level", "quick")

    assert code == 1, report["summary"]
    assert time.monotonic() - started < 120


def test_two_ranks_on_one_gpu_pass_all_rank_checks_with_different_host_ids(tmp_path):
    """NCCL takes ranks with different NCCL_HOSTID for two nodes, so its duplicate-GPU test passes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    workers = []
    for rank in range(2):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "NCCL_HOSTID": f"host{rank}",
            "NCCL_NET": "Socket",
            "NCCL_IB_DISABLE": "1",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_MNNVL_ENABLE": "0",
            "NCCL_NVLS_ENABLE": "0",
            "NCCL_MAX_CTAS": "2",
            "NCCL_DEBUG": "INFO",
        }
        code = "import sys; from ddp_doctor.launch.spec import WorkerSpec; "
        code += "from ddp_doctor.launch.worker import launched; launched(WorkerSpec.from_json(sys.argv[1]))"
        workers.append(subprocess.Popen((sys.executable, "-c", code, _spec(tmp_path, rank)), env=env))
    try:
        for worker in workers:
            assert worker.wait(200) == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()

    for rank in range(2):
        lines = (tmp_path / f"rank{rank}.events").read_text().splitlines()
        readings = [json.loads(line)["reading"] for line in lines if '"event": "reading"' in line]
        assert {reading["check"]: reading["status"] for reading in readings} == dict.fromkeys(
            CHECKS, "collected"
        )
    assert "via NET/Socket" in (tmp_path / "rank0.out").read_text()


def _spec(folder: Path, rank: int) -> str:
    tasks = tuple(Task(check, f"ddp_doctor.checks.{check}:probe", 100.0) for check in CHECKS)
    return WorkerSpec(
        trial="t0",
        folder=str(folder),
        node=0,
        rank=rank,
        group_rank=rank,
        ranks=(0, 1),
        local_rank=0,
        backend="nccl",
        device="cuda:0",
        level=Level.QUICK,
        tasks=tasks,
        launched_at=time.monotonic(),
        init_deadline_s=60.0,
    ).to_json()
