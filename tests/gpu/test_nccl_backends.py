"""Both classes that torch may build for "nccl", on a real GPU: their names, recordings and messages."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddp_doctor.facts.collectives import ProcessGroupFact
from ddp_doctor.knowledge.victims import blames_peer
from tests.gpu import runs, smi
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

#: Ends with one line of JSON.
_HEAD = """
import json, sys, tempfile
from datetime import timedelta
import torch
import torch.distributed as dist
from ddp_doctor.ranks.worker.torch_private import backend_impl, bound_device, flight_entries
from tests.waiting import wait_until

def init(world_size, rank=0, seconds=60):
    torch.cuda.set_device(0)
    dist.init_process_group(
        "nccl", init_method=f"file://{tempfile.mkdtemp()}/store", rank=rank, world_size=world_size,
        timeout=timedelta(seconds=seconds), device_id=torch.device("cuda:0"),
    )
"""
_ONE_RANK = """
init(1)
dist.all_reduce(torch.ones(8, device="cuda:0"))
torch.cuda.synchronize()
wait_until(lambda: not any(entry.is_open for entry in flight_entries("nccl")[1]), "the watchdog retires the entry")
recorder, entries = flight_entries("nccl")
print(json.dumps({
    "impl": backend_impl(dist.group.WORLD, "cuda:0"), "bound": bound_device(dist.group.WORLD), "recorder": recorder,
    "ops": [entry.op for entry in entries], "open": [entry.is_open for entry in entries],
}))
"""
_RAISES = """
try:
    {body}
except Exception as error:
    print(json.dumps({{"type": type(error).__name__, "message": str(error)}}), flush=True)
import os; os._exit(0)
"""


@pytest.fixture(params=[None, "0", "1"], ids=["as torch has it", "switch 0", "switch 1"])
def switch(request, monkeypatch) -> None:
    """The value of TORCH_DIST_USE_NCCL2; a torch with one class reads it not at all."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")  # torch 2.9.1 records nothing without it
    monkeypatch.delenv("TORCH_DIST_USE_NCCL2", raising=False)
    if request.param is not None:
        monkeypatch.setenv("TORCH_DIST_USE_NCCL2", request.param)


def answer(body: str) -> dict[str, Any]:
    argv = (sys.executable, "-W", "ignore", "-c", _HEAD + body)
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=LIMIT_S, env=os.environ)
    assert done.stdout, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.usefixtures("switch")
def test_the_class_is_recorded_on_its_device_and_its_own_recorder_has_the_collective():
    told = answer(_ONE_RANK)

    assert told["impl"] in ("nccl", "nccl2", "nccl-legacy")
    assert told["bound"] == "cuda:0"
    assert told["recorder"] == ("nccl2" if told["impl"] == "nccl2" else "nccl")
    assert told["ops"][-1] == "all_reduce"
    assert told["open"][-1] is False


@pytest.mark.usefixtures("switch")
def test_run_reports_the_class_that_it_tested(tmp_path: Path):
    options = ("--backend", "nccl", "--nproc-per-node", "1", "--level", "quick")
    outcome = runs.run(tmp_path, *runs.only("software", "process_group"), *options)

    assert outcome.code == 0, outcome.report["summary"]
    (fact,) = [seen.fact for seen in outcome.recording.facts(ProcessGroupFact)]
    assert outcome.report["world"]["backend_impl"] == fact.backend_impl
    assert fact.bound_device == "cuda:0"


@pytest.mark.usefixtures("switch")
def test_rank_without_an_id_from_a_missing_rank_blames_its_peer():
    # The rank that creates the id would wait in NCCL's bootstrap forever.
    told = answer(_RAISES.format(body="init(2, rank=1, seconds=10)"))

    assert blames_peer(told["message"]), told


@pytest.mark.usefixtures("switch")
def test_operation_on_a_gpu_outside_of_the_group_does_not_blame_a_peer():
    if len(smi.query("index")) < 2:
        pytest.skip("needs two GPUs")
    told = answer(_RAISES.format(body='init(1); dist.all_reduce(torch.ones(8, device="cuda:1"))'))

    assert not blames_peer(told["message"]), told
