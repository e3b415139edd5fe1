"""Sample one GPU through NVML while the process that owns it puts load on it.

It runs in a thread of a rank, which the agent may kill at any time: a hanging NVML only costs its samples. Clocks,
slowdowns and the PCIe link mean little on an idle GPU, because it saves power.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddp_doctor.model.context import GpuSample, GpuWatched
from ddp_doctor.sources.child_nvml import CLOCK_EVENTS

#: Interval between two samples. NVML averages power over 25 to 100 ms, so more samples gain nothing.
_INTERVAL_S = 0.02
#: Time for the last sample to end.
_PATIENCE_S = 1.0
_SM_CLOCK, _GPU_TEMPERATURE = 1, 0  # NVML_CLOCK_SM, NVML_TEMPERATURE_GPU


class NvmlWatch:
    """Samples from construction to ``stop``, in the phases that ``during`` marks."""

    def __init__(self, uuid: str | None) -> None:
        self._uuid = uuid
        self._phase = ""
        self._leaving = threading.Event()
        self._fixed_properties: dict[str, Any] = {}
        self._samples: list[GpuSample] = []
        self._reason: str | None = "NVML had not answered in time"
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)
        self._thread.start()

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Sample the GPU in this block, as working on ``phase``."""
        self._phase = phase
        try:
            yield
        finally:
            self._phase = ""

    def stop(self) -> GpuWatched:
        """Return the samples. The wait is bounded: a sample that does not return is dropped."""
        self._leaving.set()
        self._thread.join(_PATIENCE_S)
        return GpuWatched(samples=tuple(self._samples), reason=self._reason, **self._fixed_properties)

    def _run(self) -> None:
        if self._uuid is None:
            self._reason = "this torch does not tell the GPU's UUID (2.4 and newer do)"
            return
        try:
            import pynvml
        except ImportError as error:
            self._reason = f"nvidia-ml-py is missing in the rank's Python: {error}"
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._reason = f"NVML: {error}"
            return
        gpu = _find(pynvml, self._uuid)
        if gpu is None:
            self._reason = f"NVML lists no GPU {self._uuid}"
            return
        self._fixed_properties = _fixed_properties(pynvml, gpu)
        self._reason = None
        while not self._leaving.wait(_INTERVAL_S):
            phase = self._phase
            if phase:
                sample = _sample(pynvml, gpu, phase)
                if self._phase == phase:  # otherwise, part of it would belong to the next phase
                    self._samples.append(sample)


def _ask(nvml: Any, name: str, *args: Any) -> Any:
    """Return the result of a call, or None if this driver, binding or GPU does not support it."""
    try:
        return getattr(nvml, name)(*args)
    except Exception:  # noqa: BLE001 - one value that is not to be had; the thread must go on
        return None


def _find(nvml: Any, uuid: str) -> Any:
    """Return the GPU that has this UUID, or a slice with it. CUDA and NVML begin a slice's UUID differently."""
    for index in range(_ask(nvml, "nvmlDeviceGetCount") or 0):
        gpu = _ask(nvml, "nvmlDeviceGetHandleByIndex", index)
        slices = _ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", gpu) if _mig_enabled(nvml, gpu) else 0
        parts = [_ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", gpu, part) for part in range(slices or 0)]
        uuids = [_ask(nvml, "nvmlDeviceGetUUID", part) for part in (gpu, *parts) if part is not None]
        if _bare(uuid) in map(_bare, uuids):
            return gpu
    return None


def _bare(uuid: str | None) -> str:
    """Return "GPU-8932f937-d72c-…" or "MIG-8932f937-d72c-…" without the first part."""
    return (uuid or "none").partition("-")[2].lower()


def _mig_enabled(nvml: Any, gpu: Any) -> bool | None:
    modes = _ask(nvml, "nvmlDeviceGetMigMode", gpu)
    return None if modes is None else bool(modes[0])


def _fixed_properties(nvml: Any, gpu: Any) -> dict[str, Any]:
    limit = _ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", gpu)
    confidential = _ask(nvml, "nvmlSystemGetConfComputeState")
    return {
        "mig_enabled": _mig_enabled(nvml, gpu),
        "sm_clock_max_mhz": _ask(nvml, "nvmlDeviceGetMaxClockInfo", gpu, _SM_CLOCK),
        "power_limit_w": None if limit is None else limit / 1000,
        "pcie_generation_max": _ask(nvml, "nvmlDeviceGetMaxPcieLinkGeneration", gpu),
        "pcie_width_max": _ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", gpu),
        "confidential": None if confidential is None else bool(confidential.ccFeature),
    }


def _sample(nvml: Any, gpu: Any, phase: str) -> GpuSample:
    mask = _ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", gpu)
    if mask is None:  # its name before driver 535
        mask = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
    power = _ask(nvml, "nvmlDeviceGetPowerUsage", gpu)
    return GpuSample(
        phase=phase,
        sm_clock_mhz=_ask(nvml, "nvmlDeviceGetClockInfo", gpu, _SM_CLOCK),
        clock_events=None if mask is None else tuple(name for bit, name in CLOCK_EVENTS.items() if mask & bit),
        temperature_c=_ask(nvml, "nvmlDeviceGetTemperature", gpu, _GPU_TEMPERATURE),
        power_w=None if power is None else power / 1000,
        pcie_generation=_ask(nvml, "nvmlDeviceGetCurrPcieLinkGeneration", gpu),
        pcie_width=_ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", gpu),
    )
