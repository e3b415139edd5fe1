"""Undocumented parts of torch: the class of a backend, and the entries of its flight recorder."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from ddp_doctor.ranks.worker.torch_private import backend_impl, bound_device, retires_late
from tests.waiting import LIMIT_S

#: In a separate process, because the setting is read when torch is imported.
_DETAIL = """
import os, sys, tempfile, torch
import torch.distributed as dist
from ddp_doctor.ranks.worker.torch_private import backend_impl, bound_device, flight_entries

dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
for size in (1, 2, 3):
    dist.all_reduce(torch.ones(size))
print(backend_impl(dist.group.WORLD, "cpu"), bound_device(dist.group.WORLD))
first = flight_entries("gloo")[1][-1].group
print(*[(entry.seq, entry.op, entry.sizes) for entry in flight_entries("gloo")[1] if entry.group == first])
sys.stdout.flush()
os._exit(0)  # not through the end of a process whose group nobody destroys, where gloo's threads may wait for ever
"""


@pytest.mark.ranks
def test_calls_that_debug_detail_adds_belong_to_another_group():
    argv = (sys.executable, "-W", "ignore", "-c", _DETAIL)
    env = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "PATH": "/usr/bin:/bin", "TORCH_FR_BUFFER_SIZE": "100"}
    done = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=LIMIT_S, env=env)

    impl, calls = done.stdout.splitlines()
    assert impl == "gloo None"
    assert calls == " ".join(f"({seq}, 'all_reduce', (({seq},),))" for seq in (1, 2, 3))


class _Backend:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name


class _Group:
    bound_device_id = "cuda:3"

    def __init__(self, backend: object) -> None:
        self._backend = backend

    def _get_backend(self, _device: object) -> object:
        return self._backend


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace torch, which takes 1.5 s to import, with the attributes that ``backend_impl`` reads."""
    whole = SimpleNamespace(device=str, distributed=SimpleNamespace(distributed_c10d=SimpleNamespace()))
    monkeypatch.setitem(sys.modules, "torch", whole)
    monkeypatch.setitem(sys.modules, "torch.distributed", whole.distributed)
    return whole


@pytest.mark.parametrize(
    ("name", "has_nccl2", "expected"),
    [("nccl", False, "nccl"), ("nccl", True, "nccl-legacy"), ("nccl2", True, "nccl2"), ("acme", True, "acme")],
)
def test_the_backend_class_depends_on_attributes_of_torch_not_on_its_version(torch, name, has_nccl2, expected):
    if has_nccl2:
        torch.distributed.distributed_c10d.ProcessGroupNCCL2 = object
    assert backend_impl(_Group(_Backend(name)), "cpu") == expected


@pytest.mark.usefixtures("torch")
def test_backend_without_a_name_is_unknown_and_the_bound_device_is_read():
    assert backend_impl(_Group(object()), "cpu") is None
    assert bound_device(_Group(object())) == "cuda:3"


@pytest.mark.parametrize(
    ("recorder", "late"),
    [(None, False), ("gloo", False), ("nccl", False), ("nccl2", True), ("nccl-lazy", True), ("acme", True)],
)
def test_only_recorders_behind_a_hook_retire_late(recorder, late):
    assert retires_late(recorder) is late
