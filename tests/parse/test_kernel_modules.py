"""The NVIDIA modules and libraries of a machine, and whether GPUDirect RDMA is possible with them."""

import pytest

from ddp_doctor.facts.node.kernel import KernelFact
from ddp_doctor.knowledge.gpu import gpudirect
from ddp_doctor.probing import kernel
from tests.fakes import FakeContext

PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.195.03  Release Build  (dvs-builder@U22)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROPRIETARY, ("535.129.03", False)),
        (OPEN, ("570.195.03", True)),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.65.06", ("580.65.06", True)),
        (None, (None, None)),
        ("NVRM version: something else", (None, None)),
    ],
)
def test_version_line_gives_version_and_kind(text: str | None, expected: tuple[str | None, bool | None]):
    assert kernel.driver(text) == expected


def test_only_loaded_modules_are_listed_and_a_missing_version_is_empty():
    ctx = FakeContext(files={"/sys/module/nvidia/version": "550.90.07\n", "/sys/module/nvidia_uvm/initstate": "live\n"})
    assert kernel.modules(ctx) == {"nvidia": "550.90.07", "nvidia_uvm": ""}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/sys/module/nvidia_peermem/version", "nvidia_peermem"),
        ("/sys/module/nv_peer_mem/version", "nv_peer_mem"),
        ("/sys/kernel/mm/memory_peers/nv_mem_nc/version", "/sys/kernel/mm/memory_peers/nv_mem_nc/version"),
        ("/sys/module/nvidia/version", None),
    ],
)
def test_the_peer_memory_module_is_found_as_nccl_finds_it(path: str, expected: str | None):
    ctx = FakeContext(files={path: "1.0\n"})
    assert kernel.peermem(ctx, kernel.modules(ctx)) == expected


def test_the_version_of_a_library_is_that_behind_its_link():
    folder = "/usr/lib/x86_64-linux-gnu"
    links = {
        f"{folder}/libcuda.so.1": "libcuda.so.550.90.07",
        f"{folder}/libnvidia-ml.so.1": "/opt/driver/libnvidia-ml.so.550.90.07",
        "/usr/lib64/libcuda.so.1": "libcuda.so.1",  # no version to be had
    }
    assert kernel.libraries(FakeContext(links=links)) == {
        f"{folder}/libcuda.so.1": "550.90.07",
        f"{folder}/libnvidia-ml.so.1": "550.90.07",
    }


def test_driver_of_an_active_rdma_device_is_known_and_idle_devices_are_skipped():
    ctx = FakeContext(
        files={
            "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
            "/sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
            "/sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE\n",
        },
        links={"/sys/class/infiniband/mlx5_0/device/driver": "../../../../bus/pci/drivers/mlx5_core"},
    )
    assert kernel.rdma_drivers(ctx) == {"mlx5_0": "mlx5_core", "rxe0": ""}


@pytest.mark.parametrize(
    ("kernel", "driver", "open_modules", "expected"),
    [
        ("6.8.0-60-generic", "570.195.03", True, True),
        ("5.12.0", "515.43.04", True, True),
        ("6.8.0-60-generic", "570.195.03", False, False),
        ("6.8.0-60-generic", "510.47.03", True, False),
        ("4.18.0-553.el8_10.x86_64", "570.195.03", True, None),
        (None, "570.195.03", True, None),
        ("6.8.0", None, None, None),
    ],
)
def test_dma_buf_requires_an_open_module_a_new_driver_and_a_new_kernel(
    kernel: str | None, driver: str | None, open_modules: bool | None, expected: bool | None
):
    assert gpudirect.dma_buf(kernel, driver, open_modules=open_modules)[0] is expected


def test_a_peer_memory_module_is_enough_for_gpudirect_rdma():
    fact = KernelFact(driver_version="535.129.03", driver_is_open=False, peermem="nvidia_peermem")
    assert fact.gpudirect_rdma() == (True, "nvidia_peermem is loaded")
    assert fact.model_copy(update={"peermem": None}).gpudirect_rdma()[0] is False
