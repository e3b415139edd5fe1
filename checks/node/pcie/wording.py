"""How findings of this check name devices."""

from ddp_doctor.facts.node.gpus import GpusFact
from ddp_doctor.facts.node.pcie import PcieDevice
from ddp_doctor.model.recording import Recording


def gpu_numbers(recording: Recording, node: int) -> dict[str, int]:
    """NVML's index of each GPU of a node, by bus id, where NVML was asked."""
    return {gpu.bus_id: gpu.index for fact in recording.at(GpusFact, node) for gpu in fact.gpus if gpu.bus_id}


def jobs_gpus(recording: Recording, node: int) -> set[str] | None:
    """The bus ids of the job's GPUs; None where NVML was not asked, or gave no answer."""
    facts = recording.at(GpusFact, node)
    if not facts or facts[0].nvml_error is not None:
        return None
    return {gpu.bus_id for gpu in facts[0].of_the_job() if gpu.bus_id}


def device_name(device: PcieDevice, numbers: dict[str, int]) -> str:
    """One device for a sentence: "GPU 3 (0000:61:00.0)", "mlx5_0 (0000:17:00.0)"."""
    if device.kind == "gpu" and device.bus_id in numbers:
        return f"GPU {numbers[device.bus_id]} ({device.bus_id})"
    name = {"gpu": "the GPU at", "nic": device.name or "the NIC at", "bridge": "the PCIe bridge"}[device.kind]
    return f"{name} ({device.bus_id})" if device.name else f"{name} {device.bus_id}"
