"""What torch tells beyond its documentation: which class a backend is, and what its flight recorder holds."""

import subprocess
import sys

import pytest

from ddp_doctor.launch.torch_private import backend_impl, bound_device, retires_late

#: In a process of its own: a group stays in the process that made it.
_ONE_RANK = """
import sys, tempfile, torch
import torch.distributed as dist
from ddp_doctor.launch.torch_private import backend_impl, bound_device, flight_entries

dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/store", rank=0, world_size=1)
for size in range(1, 21):
    dist.all_reduce(torch.ones(size))
group = dist.group.WORLD
name, entries = flight_entries("gloo", most=12)
print(backend_impl(group, "cpu"), bound_device(group), name)
print(*[(entry.seq, entry.op, entry.sizes, entry.retired) for entry in entries if entry.group in ("0", "pg_id 0")])
print(flight_entries("nccl"))
"""


@pytest.fixture(scope="module", params=["OFF", "DETAIL"])
def told(request) -> list[str]:
    argv = (sys.executable, "-W", "ignore", "-c", _ONE_RANK)
    env = {"TORCH_DISTRIBUTED_DEBUG": request.param, "PATH": "/usr/bin:/bin", "TORCH_FR_BUFFER_SIZE": "100"}
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.ranks
def test_gloo_is_gloo_bound_to_nothing_and_its_last_collectives_are_there(told):
    assert told[0] == "gloo None gloo"
    assert told[1].endswith(" ".join(f"({seq}, 'all_reduce', (({seq},),), True)" for seq in (18, 19, 20)))


@pytest.mark.ranks
def test_the_entries_of_another_backend_are_nobodys_evidence(told):
    """torch 2.15 shows gloo's entries to whoever names no backend."""
    assert told[2] == "(None, [])"


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


@pytest.mark.parametrize(
    ("name", "has_nccl2", "expected"),
    [
        ("nccl", False, "nccl"),
        ("nccl", True, "nccl-legacy"),
        ("nccl2", True, "nccl2"),
        ("acme", True, "acme"),
    ],
)
def test_the_class_is_told_by_what_torch_has_not_by_its_version(monkeypatch, name, has_nccl2, expected):
    from torch.distributed import distributed_c10d

    if has_nccl2:
        monkeypatch.setattr(distributed_c10d, "ProcessGroupNCCL2", object, raising=False)
    else:
        monkeypatch.delattr(distributed_c10d, "ProcessGroupNCCL2", raising=False)
    assert backend_impl(_Group(_Backend(name)), "cpu") == expected


def test_a_backend_without_a_name_is_not_known_and_the_bound_device_is_as_torch_writes_it():
    assert backend_impl(_Group(object()), "cpu") is None
    assert bound_device(_Group(object())) == "cuda:3"


@pytest.mark.parametrize(
    ("recorder", "late"),
    [(None, False), ("gloo", False), ("nccl", False), ("nccl2", True), ("nccl-lazy", True), ("acme", True)],
)
def test_only_recorders_behind_a_hook_retire_late(recorder, late):
    assert retires_late(recorder) is late
