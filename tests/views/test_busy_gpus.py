"""The busy GPUs of a job, and the processes that use them."""

from typing import Any

import pytest

from ddp_doctor.facts.node.gpus import Gpu, GpuProcess, GpusFact
from ddp_doctor.views.gpus import busy_gpus

GIB = 2**30


def gpu(index: int = 0, **values: Any) -> Gpu:
    sound = {"uuid": f"GPU-{index}", "memory_total_bytes": 80 * GIB, "memory_used_bytes": 4 << 20}
    return Gpu(index=index, **{**sound, **values})


def fact_of(*gpus: Gpu, **values: Any) -> GpusFact:
    return GpusFact(**{"gpus": gpus, "used": tuple(one.index for one in gpus), **values})


TRAINING = GpuProcess(pid=7, kind="compute", name="python", memory_used_bytes=20 * GIB)
UNKNOWN = GpuProcess(pid=9, kind="compute")
SERVER = GpuProcess(pid=8, kind="compute", name="nvidia-cuda-mps", memory_used_bytes=30 << 20)
DESKTOP = GpuProcess(pid=5, kind="graphics", name="Xorg", memory_used_bytes=300 << 20)


def test_a_gpu_with_foreign_data_is_busy_and_its_memory_known() -> None:
    taken = gpu(1, memory_used_bytes=20 * GIB, processes=(TRAINING,))
    (busy,) = busy_gpus(fact_of(gpu(0), taken))
    assert (busy.uuid, busy.used_bytes) == ("GPU-1", 20 * GIB)
    assert busy.holders == (TRAINING,)


@pytest.mark.parametrize(
    ("values", "busy"),
    [
        ({}, False),
        ({"memory_used_bytes": 12 * GIB}, True),  # of a container's process, or left behind: no process is visible
        ({"processes": (UNKNOWN,)}, True),  # little memory, and yet its time is shared
        ({"processes": (SERVER,)}, False),
        ({"processes": (SERVER, TRAINING)}, True),
        ({"processes": (DESKTOP,), "memory_used_bytes": 300 << 20}, False),
        ({"processes": (DESKTOP,), "memory_used_bytes": 12 * GIB}, True),
        ({"memory_used_bytes": GIB + 1, "memory_used_counts_reserved": True}, False),
        ({"mig_enabled": True, "memory_used_bytes": 70 * GIB, "processes": (TRAINING,)}, False),
        ({"name": "NVIDIA GH200 480GB", "memory_used_bytes": 79 * GIB}, False),  # the page cache
        ({"memory_used_bytes": None, "memory_total_bytes": None}, False),
    ],
)
def test_gpu_is_busy_if_others_compute_or_keep_data(values: dict[str, Any], busy: bool) -> None:
    assert bool(busy_gpus(fact_of(gpu(**values)))) is busy


def test_a_busy_gpu_of_another_job_does_not_count() -> None:
    assert busy_gpus(fact_of(gpu(0), gpu(1, processes=(TRAINING,)), used=(0,))) == ()


def test_busy_gpu_without_a_memory_value_has_unknown_memory() -> None:
    (busy,) = busy_gpus(fact_of(gpu(processes=(TRAINING,), memory_used_bytes=None)))
    assert busy.used_bytes is None


def test_memory_reserved_by_an_old_driver_is_not_counted_as_used() -> None:
    taken = gpu(memory_used_bytes=20 * GIB, memory_used_counts_reserved=True)
    (busy,) = busy_gpus(fact_of(taken))
    assert busy.used_bytes == 20 * GIB - 5 * GIB // 4
