"""What one rank measured of its GPU, as the probe writes it and the rules read it."""

from typing import ClassVar

from pydantic import Field

from ddp_doctor.model.base import Frozen
from ddp_doctor.model.fact import Fact


class Rate(Frozen):
    """Repetitions of one measurement, in the unit that the fact's field names."""

    median: float
    least: float
    most: float
    repetitions: int


class GpuLoad(Frozen):
    """The GPU at work, by the driver; None where it says nothing. ``reason``: why there are no samples."""

    looks: int = 0  # during the matrix products
    reason: str | None = None
    mig_enabled: bool | None = None
    confidential: bool | None = None
    sm_clock_mhz: int | None = None  # median during the matrix products
    sm_clock_max_mhz: int | None = None
    clock_events: dict[str, float] = Field(default_factory=dict)  # share of those samples with each in force
    temperature_c: int | None = None  # highest
    power_w: float | None = None  # highest
    power_limit_w: float | None = None
    pcie_generation: int | None = None  # highest seen in any phase
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


class GpuSpeedFact(Fact):
    """One rank's GPU: how fast it copies and multiplies, and its state meanwhile."""

    KIND: ClassVar[str] = "gpu-speed/1"

    device: str
    gpu_uuid: str | None = None
    gpu_name: str | None = None
    memory_total_bytes: int = 0
    memory_free_bytes: int = 0  # before the measurements, CUDA and NCCL of this rank being there
    memory_allowed_bytes: int = 0
    copy_gb_per_s: Rate | None = None  # within the GPU's memory, bytes read and bytes written
    copy_bytes: int = 0
    matmul_tflop_per_s: Rate | None = None
    matmul_dtype: str = ""
    matmul_size: int = 0  # rows and columns
    host_to_device_gb_per_s: Rate | None = None  # from pinned memory
    device_to_host_gb_per_s: Rate | None = None
    host_copy_bytes: int = 0
    not_measured: dict[str, str] = Field(default_factory=dict)  # what, and why
    load: GpuLoad = GpuLoad()
