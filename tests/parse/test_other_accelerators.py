"""AMD GPUs and Intel Gaudi: reported if a job would use them, and ignored otherwise."""

import pytest

from ddp_doctor.checks.node.gpus.accelerators import unsupported
from tests.fakes import FakeContext

NODES = "/sys/class/kfd/kfd/topology/nodes"
PCI = "/sys/bus/pci/devices"
CPU = {"/dev/kfd": "", f"{NODES}/0/properties": "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0\n"}
ROCM = {"software": '{"torch_version": "2.7.0+rocm6.3", "torch_hip": "6.3.42131"}'}
CUDA = {"software": '{"torch_version": "2.7.0+cu126", "torch_cuda": "12.6", "torch_hip": null}'}


def kfd(node: int, target: int, bus: int) -> dict[str, str]:
    text = f"cpu_cores_count 0\nsimd_count 1216\ngfx_target_version {target}\nvendor_id 4098\n"
    return {f"{NODES}/{node}/properties": f"{text}location_id {bus << 8}\ndomain 0\n"}


def mi300x(count: int) -> dict[str, str]:
    files = dict(CPU)
    for at in range(count):
        files |= kfd(at + 1, 90402, 0x40 + at)
        files[f"{PCI}/0000:{0x40 + at:02x}:00.0/product_name"] = "AMD Instinct MI300X OAM\n"
    return files


def test_eight_mi300x_are_counted_and_named() -> None:
    assert unsupported(FakeContext(files=mi300x(8))) == "8 AMD GPUs (AMD Instinct MI300X OAM)"


def test_a_gpu_without_a_product_name_is_named_by_its_address() -> None:
    assert unsupported(FakeContext(files={**CPU, **kfd(1, 90010, 0x47)})) == "1 AMD GPU (0000:47:00.0)"


@pytest.mark.parametrize("target", [90012, 100306, 110003, 110501])  # Renoir, Rembrandt, Phoenix, Strix Halo
def test_the_graphics_in_a_processor_count_only_for_a_torch_with_rocm(target: int) -> None:
    files = {**CPU, **kfd(1, target, 0x04)}
    assert unsupported(FakeContext(files=files, children=CUDA)) is None
    assert unsupported(FakeContext(files=files)) is None
    assert unsupported(FakeContext(files=files, children=ROCM)) == "1 AMD GPU (0000:04:00.0)"


def test_a_container_that_was_not_given_the_gpus_has_none() -> None:
    files = {path: text for path, text in mi300x(8).items() if path != "/dev/kfd"}
    assert unsupported(FakeContext(files=files)) is None


@pytest.mark.parametrize("name", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_gpus_hidden_on_purpose_are_not_used(name: str) -> None:
    assert unsupported(FakeContext(files=mi300x(8), env={name: ""})) is None
    assert unsupported(FakeContext(files=mi300x(8), env={name: "0,1"})) is not None


def test_gaudi_is_recognized_by_its_driver_if_its_devices_are_accessible() -> None:
    links = {f"{PCI}/0000:{bus}:00.0/driver": "../../../bus/pci/drivers/habanalabs" for bus in ("19", "1a")}
    words = "2 Intel Gaudi accelerators (0000:19:00.0, 0000:1a:00.0)"
    assert unsupported(FakeContext(files={"/dev/accel/accel0": ""}, links=links)) == words
    assert unsupported(FakeContext(files={"/dev/hl0": ""}, links=links)) == words
    assert unsupported(FakeContext(files={"/dev/null": ""}, links=links)) is None


def test_inference_accelerator_of_a_laptop_is_ignored() -> None:
    links = {f"{PCI}/0000:00:0b.0/driver": "../../../bus/pci/drivers/intel_vpu"}
    assert unsupported(FakeContext(files={"/dev/accel/accel0": ""}, links=links)) is None


def test_a_machine_without_any_has_none() -> None:
    assert unsupported(FakeContext()) is None
