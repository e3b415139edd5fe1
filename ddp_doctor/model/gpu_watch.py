"""What the driver reported about one GPU while a rank kept it busy."""

from ddp_doctor.model.base import Frozen


class GpuSample(Frozen):
    """One sample. ``phase`` is what the GPU was doing; None where the driver says nothing."""

    phase: str
    sm_clock_mhz: int | None = None
    clock_events: tuple[str, ...] | None = None  # NVML's clocks event reasons in force
    temperature_c: int | None = None
    power_w: float | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


class GpuWatched(Frozen):
    """All samples of one GPU, and what stays the same; ``reason`` says why there are none."""

    samples: tuple[GpuSample, ...] = ()
    reason: str | None = None
    mig_enabled: bool | None = None
    sm_clock_max_mhz: int | None = None
    power_limit_w: float | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    confidential: bool | None = None  # copies to and from the host are encrypted
