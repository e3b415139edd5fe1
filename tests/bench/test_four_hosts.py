"""Four hosts on one machine: healthy runs report only info and take no longer than torchrun's hello-world."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import pytest

from tests.lab.hosts import Host, Lab, why_no_lab

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent.parent
HELLO = Path(__file__).parent / "hello.py"
RUNS = 10
ENDPOINT = ("--rdzv-endpoint", "node0:29400")


def test_ten_healthy_runs_find_nothing_and_are_not_slower_than_a_hello_world():
    if reason := why_no_lab():
        pytest.skip(reason)
    with Lab(4) as lab:
        _seconds(lab, _doctor)
        rounds = [(_seconds(lab, _doctor), _findings(lab), _seconds(lab, _torchrun)) for _ in range(RUNS)]
    doctor, found, hello = zip(*rounds, strict=True)
    ratio = statistics.median(doctor) / statistics.median(hello)
    print(f"\n  run --level quick, 4 hosts: {_spread(doctor)}\n  torchrun hello-world, 4 hosts: {_spread(hello)}")
    print(f"  ratio: {ratio:.2f} (bar 1.0); findings above info in {RUNS} runs: {sum(map(len, found))}")

    assert list(chain.from_iterable(found)) == []
    assert ratio <= 1.0


def _doctor(host: Host) -> Sequence[str | Path]:
    report = host.folder / "report.json"
    options = ("--nnodes", "4", "--level", "quick", "--quiet", "--json", report)
    return (sys.executable, "-m", "ddp_doctor", "run", *ENDPOINT, *options)


def _torchrun(_host: Host) -> Sequence[str | Path]:
    options = ("--nnodes", "4", "--nproc-per-node", "1", "--rdzv-backend", "c10d", *ENDPOINT)
    return (sys.executable, "-m", "torch.distributed.run", *options, HELLO)


def _seconds(lab: Lab, argv_of: Callable[[Host], Sequence[str | Path]]) -> float:
    started = time.perf_counter()
    processes = lab.start_everywhere(argv_of, env_of=lambda _host: {"PYTHONPATH": str(ROOT)})
    codes = [process.wait(120.0) for process in processes.values()]
    assert codes == [0, 0, 0, 0]
    return time.perf_counter() - started


def _findings(lab: Lab) -> list[str]:
    reports = [json.loads((host.folder / "report.json").read_text()) for host in lab.hosts]
    return [one["code"] for it in reports for one in it["findings"] if one["severity"] != "info"]


def _spread(seconds: Sequence[float]) -> str:
    return f"median {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f}, {len(seconds)} runs)"
