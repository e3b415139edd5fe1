"""Query NVML about every GPU, in a separate program that prints one JSON object and exits.

    python -I child_nvml.py 15
    {"error": null, "call": "", "gpu": null, "text": "", "elapsed_s": 0.06, "driver_version": "550.90.07",
     "cuda_driver_version": "12.4", "unavailable": {}, "excluded_bus_ids": [],
     "gpus": [{"index": 0, "uuid": "GPU-8932f937-…", "ecc_volatile_uncorrected": 0, …,
               "error": null, "unavailable": {"mig_enabled": "not_supported"}}, …]}

It runs in a separate process because a faulty driver hangs or crashes its callers. The argument is NVML's time limit in
seconds. After it, a second thread prints the answers so far, with the call that did not return (ctypes releases the
interpreter lock during a call). A refusal does not affect other values: a value that NVML does not give is null, and
``unavailable`` has the reason by NVML's name (``not_supported``; ``function_not_found`` is an older driver;
``binding_too_old`` an older nvidia-ml-py).

Only the standard library, pynvml (of nvidia-ml-py) and the neighbor nvml_calls.py are imported. Names, structures and
values are from NVIDIA's nvml.h and its binding nvidia-ml-py.
"""

from __future__ import annotations

import ctypes
import runpy
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddp_doctor.sources.nvml_calls import Nvml

#: A slowdown is reported only if a second query, this much later, still shows it: NVML also raises the bit while clocks
#: change (nvml.h, nvmlClocksThrottleReasonHwSlowdown).
SECOND_LOOK_S = 0.5

COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}

#: Bits of nvmlClocksEventReasons (nvml.h); the names are NVML's.
CLOCK_EVENTS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
SLOWDOWN_BITS = 0x8 | 0x20 | 0x40 | 0x80

#: nvmlDeviceGpuRecoveryAction_t (nvml.h, driver 565 and newer).
RECOVERY_ACTIONS = {
    0: "none",
    1: "gpu_reset",
    2: "node_reboot",
    3: "drain_p2p",
    4: "drain_and_reset",
    5: "recover_imex_domain",
    6: "bus_reset",
    7: "system_reboot",
}
#: How NVML is called. By path: an isolated process has no package to import from.
CALLS = runpy.run_path(str(Path(__file__).with_name("nvml_calls.py")))

#: nvmlGpuFabricState_t.
FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}

#: Faults that NVML_GPU_FABRIC_HEALTH_MASK_* encodes in two bits each, starting with the lowest: 1 is yes …
FABRIC_FAULTS = ("degraded_bandwidth", "route_recovery", "route_unhealthy", "access_timeout_recovery")
#: … and faults of its configuration, in the next four bits.
CONFIGURATION_FAULTS = {
    2: "incorrect_sysguid",
    3: "incorrect_chassis_serial_number",
    4: "no_partition",
    5: "insufficient_nvlinks",
    6: "incompatible_gpu_firmware",
    7: "invalid_location",
    8: "gpu_state_invalid",
}

#: nvmlGpuVirtualizationMode_t.
VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}

#: Field ids of nvmlDeviceGetFieldValues, as our names.
RETIRED_PAGES = {
    "pages_retired_single_bit": "NVML_FI_DEV_RETIRED_SBE",
    "pages_retired_double_bit": "NVML_FI_DEV_RETIRED_DBE",
    "page_retirement_pending": "NVML_FI_DEV_RETIRED_PENDING",
    "page_retirement_pending_double_bit": "NVML_FI_DEV_RETIRED_PENDING_DBE",
}
#: nvmlValueType_t: the member of the union that holds the value.
MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

UNCORRECTED, VOLATILE, DRAM, SRAM = 1, 0, 2, 7  # nvmlMemoryErrorType_t, nvmlEccCounterType_t, locations

#: Maximum time to read and check the flash of all InfoROMs; the others are skipped. DCGM does it at most once per hour
#: (modules/health/DcgmHealthWatch.cpp, SetInforom).
INFOROM_LIMIT_S = 1.0

#: These errors mean that the GPU is lost, whichever call they come from.
LOST = ("gpu_is_lost", "reset_required")


def main() -> None:
    """Query NVML and print the answers, or stop at the time limit."""
    CALLS["run"](
        _ask,
        driver_version=None,
        cuda_driver_version=None,
        nvml_version=None,
        confidential_compute=None,
        excluded_bus_ids=[],
        gpus=[],
        unavailable={},
    )


def _ask(nvml: Nvml, count: int) -> None:
    answer = nvml.answer
    nvml.fill(answer, "driver_version", "nvmlSystemGetDriverVersion")
    nvml.fill(answer, "cuda_driver_version", "nvmlSystemGetCudaDriverVersion_v2", use=_cuda_version)
    count_of_excluded, _ = nvml.call("nvmlGetExcludedDeviceCount")  # by the operator, with NVreg_ExcludedGpus
    excluded = [nvml.call("nvmlGetExcludedDeviceInfoByIndex", at)[0] for at in range(count_of_excluded or 0)]
    answer["excluded_bus_ids"] = [CALLS["bus_id"](info.pci) for info in excluded if info is not None]
    nvml.fill(answer, "nvml_version", "nvmlSystemGetNVMLVersion", use=_text)
    on = nvml.pynvml.__dict__.get("NVML_CC_SYSTEM_FEATURE_ENABLED", 1)
    nvml.fill(
        answer, "confidential_compute", "nvmlSystemGetConfComputeState", use=lambda state: bool(state.ccFeature == on)
    )
    asked = []
    for index in range(count):
        gpu, handle = _gpu(nvml, index)
        answer["gpus"].append(gpu)
        asked.append((gpu, handle))
    _ask_again(nvml, asked)
    started = time.monotonic()
    for gpu, handle in asked:  # the driver verifies the checksums of the InfoROMs, while that is fast
        if gpu["error"] is not None or time.monotonic() - started > INFOROM_LIMIT_S:
            continue
        nvml.answer["gpu"] = gpu["index"]
        _, reason = nvml.call("nvmlDeviceValidateInforom", handle)
        gpu["inforom_valid"] = True if reason is None else False if reason == "corrupted_inforom" else None
        if reason:
            gpu["unavailable"]["inforom_valid"] = reason


def _cuda_version(number: int) -> str:
    """Return "12.4" for 12040."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _gpu(nvml: Nvml, index: int) -> tuple[dict[str, Any], Any]:
    gpu, handle = CALLS["identity"](nvml, index)
    if gpu["error"] is None:
        _modes(nvml, gpu, handle)
        _memory(nvml, gpu, handle)
        uncorrected = getattr(nvml.pynvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1)
        nvml.fill(gpu, "ecc_enabled", "nvmlDeviceGetEccMode", handle, use=lambda modes: bool(modes[0]))
        for field, counter in (("ecc_volatile_uncorrected", 0), ("ecc_aggregate_uncorrected", 1)):
            nvml.fill(gpu, field, "nvmlDeviceGetTotalEccErrors", handle, uncorrected, counter)
        action = {"recovery_action": "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"}
        number = _fields(nvml, gpu, handle, action)["recovery_action"]
        gpu["recovery_action"] = None if number is None else RECOVERY_ACTIONS.get(number, f"action_{number}")
        _clocks(nvml, gpu, handle)
        _repairs(nvml, gpu, handle)
        _limits(nvml, gpu, handle)
        nvml.fill(gpu, "vbios_version", "nvmlDeviceGetVbiosVersion", handle, use=_text)
        nvml.fill(gpu, "gsp_firmware_version", "nvmlDeviceGetGspFirmwareVersion", handle, use=_text)
        nvml.fill(gpu, "display_active", "nvmlDeviceGetDisplayActive", handle, use=bool)
        nvml.fill(gpu, "virtualization", "nvmlDeviceGetVirtualizationMode", handle, use=VIRTUALIZATION.get)
        _fabric(nvml, gpu, handle)
        gpu["error"] = next((code for code in LOST if code in gpu["unavailable"].values()), None)
    return gpu, handle


def _modes(nvml: Nvml, gpu: dict[str, Any], handle: Any) -> None:
    nvml.fill(gpu, "compute_capability", "nvmlDeviceGetCudaComputeCapability", handle, use="{0[0]}.{0[1]}".format)
    nvml.fill(gpu, "compute_mode", "nvmlDeviceGetComputeMode", handle, use=COMPUTE_MODES.get)
    nvml.fill(gpu, "persistence_mode", "nvmlDeviceGetPersistenceMode", handle, use=bool)
    count = nvml.call("nvmlDeviceGetMaxMigDeviceCount", handle)[0] if gpu["mig_enabled"] else 0
    slices = [nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, index) for index in range(count or 0)]
    uuids = [nvml.call("nvmlDeviceGetUUID", part)[0] for part, reason in slices if not reason]
    gpu["mig_uuids"] = [uuid for uuid in uuids if uuid]


def _memory(nvml: Nvml, gpu: dict[str, Any], handle: Any) -> None:
    """Read the memory as nvidia-smi counts it. The old call (driver < 510) counts the driver's own share as used."""
    version = getattr(nvml.pynvml, "nvmlMemory_v2", None)
    info, reason = nvml.call("nvmlDeviceGetMemoryInfo", handle, version)
    gpu["memory_used_counts_reserved"] = reason is not None
    if reason:
        info, reason = nvml.call("nvmlDeviceGetMemoryInfo", handle)
    for field, name in (("memory_total_bytes", "total"), ("memory_used_bytes", "used")):
        gpu[field] = None if reason else getattr(info, name)
        if reason:
            gpu["unavailable"][field] = reason
    gpu["processes"] = [
        *_processes(nvml, gpu, handle, "compute", "nvmlDeviceGetComputeRunningProcesses"),
        *_processes(nvml, gpu, handle, "graphics", "nvmlDeviceGetGraphicsRunningProcesses"),
    ]


def _processes(nvml: Nvml, gpu: dict[str, Any], handle: Any, kind: str, name: str) -> list[dict[str, Any]]:
    found, reason = CALLS["processes"](nvml, handle, name)
    if reason:
        gpu["unavailable"][f"{kind}_processes"] = reason
    return [
        {"pid": process.pid, "kind": kind, "name": _name(process.pid), "memory_used_bytes": process.usedGpuMemory}
        for process in found or ()
    ]


def _name(pid: int) -> str | None:
    """Return the process's name, or None if the pid is of another namespace."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return None


def _clocks(nvml: Nvml, gpu: dict[str, Any], handle: Any) -> None:
    mask, reason = _clock_events(nvml, handle)
    gpu["clock_events"] = None if mask is None else sorted(_names(mask))
    if reason:
        gpu["unavailable"]["clock_events"] = reason
    nvml.fill(gpu, "sm_clock_mhz", "nvmlDeviceGetClockInfo", handle, 1)  # NVML_CLOCK_SM
    nvml.fill(gpu, "sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", handle, 1)
    nvml.fill(gpu, "memory_clock_mhz", "nvmlDeviceGetClockInfo", handle, 2)  # NVML_CLOCK_MEM
    nvml.fill(gpu, "temperature_c", "nvmlDeviceGetTemperature", handle, 0)  # NVML_TEMPERATURE_GPU
    nvml.fill(gpu, "power_w", "nvmlDeviceGetPowerUsage", handle, use=_watts)
    nvml.fill(gpu, "pcie_generation", "nvmlDeviceGetCurrPcieLinkGeneration", handle)
    nvml.fill(gpu, "pcie_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", handle)
    nvml.fill(gpu, "pcie_width", "nvmlDeviceGetCurrPcieLinkWidth", handle)
    nvml.fill(gpu, "pcie_width_max", "nvmlDeviceGetMaxPcieLinkWidth", handle)


def _clock_events(nvml: Nvml, handle: Any) -> tuple[int | None, str | None]:
    mask, reason = nvml.call("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reason in ("function_not_found", "binding_too_old"):  # its name before driver 535
        mask, reason = nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    return mask, reason


def _names(mask: int) -> set[str]:
    return {name for bit, name in CLOCK_EVENTS.items() if mask & bit}


def _ask_again(nvml: Nvml, asked: list[tuple[dict[str, Any], Any]]) -> None:
    """Keep only the slowdowns that a second query still shows."""
    slow = _names(SLOWDOWN_BITS)
    slowed = [(gpu, handle) for gpu, handle in asked if slow & set(gpu.get("clock_events") or ())]
    if slowed:
        time.sleep(SECOND_LOOK_S)
    for gpu, handle in slowed:
        nvml.answer["gpu"] = gpu["index"]
        mask, _ = _clock_events(nvml, handle)
        gpu["clock_events"] = sorted(set(gpu["clock_events"]) - (slow - _names(mask or 0)))


def _repairs(nvml: Nvml, gpu: dict[str, Any], handle: Any) -> None:
    """Read corrected errors, the places of uncorrected errors, and the repairs of bad rows and pages."""
    for field, counter in (("ecc_volatile_corrected", 0), ("ecc_aggregate_corrected", 1)):
        nvml.fill(gpu, field, "nvmlDeviceGetTotalEccErrors", handle, 0, counter)
    for field, place in (("ecc_volatile_uncorrected_dram", DRAM), ("ecc_volatile_uncorrected_sram", SRAM)):
        nvml.fill(gpu, field, "nvmlDeviceGetMemoryErrorCounter", handle, UNCORRECTED, VOLATILE, place)
    # Whether the SRAM has had more uncorrected errors than NVIDIA's policy allows (driver 535 and newer).
    kind = getattr(nvml.pynvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    reason: str | None = "binding_too_old"
    gpu["sram_threshold_exceeded"] = None
    if kind is not None:
        status = kind()
        _, reason = nvml.call("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status))
        gpu["sram_threshold_exceeded"] = None if reason else bool(status.bThresholdExceeded)
    if reason:
        gpu["unavailable"]["sram_threshold_exceeded"] = reason
    rows, reason = nvml.call("nvmlDeviceGetRemappedRows", handle)
    if reason:
        gpu["unavailable"]["row_remapping"] = reason
    corrected, uncorrected, pending, failed = rows or (None, None, None, None)
    gpu["rows_remapped_corrected"], gpu["rows_remapped_uncorrected"] = corrected, uncorrected
    gpu["row_remap_pending"] = None if pending is None else bool(pending)
    gpu["row_remap_failed"] = None if failed is None else bool(failed)
    nvml.fill(gpu, "spare_rows", "nvmlDeviceGetRowRemapperHistogram", handle, use=_histogram)
    gpu.update(_fields(nvml, gpu, handle, RETIRED_PAGES))
    for name in ("page_retirement_pending", "page_retirement_pending_double_bit"):
        gpu[name] = None if gpu[name] is None else bool(gpu[name])


def _histogram(values: Any) -> dict[str, int]:
    """Return how many memory banks have all, most, some, few or none of their spare rows left."""
    return {name: getattr(values, name) for name in ("max", "high", "partial", "low", "none")}


def _fields(nvml: Nvml, gpu: dict[str, Any], handle: Any, wanted: dict[str, str]) -> dict[str, Any]:
    """Return values of nvmlDeviceGetFieldValues by our names; None with a reason in ``unavailable``."""
    found: dict[str, Any] = dict.fromkeys(wanted)
    ids = {name: getattr(nvml.pynvml, field, None) for name, field in wanted.items()}
    known = [name for name in wanted if ids[name] is not None]
    values, reason = nvml.call("nvmlDeviceGetFieldValues", handle, [ids[name] for name in known])
    for position, name in enumerate(known):
        why = reason or (nvml.code(values[position].nvmlReturn) if values[position].nvmlReturn else None)
        if why:
            gpu["unavailable"][name] = why
        else:
            found[name] = getattr(values[position].value, MEMBERS.get(values[position].valueType, "ullVal"))
    gpu["unavailable"].update({name: "binding_too_old" for name in wanted if ids[name] is None})
    return found


def _limits(nvml: Nvml, gpu: dict[str, Any], handle: Any) -> None:
    """Read the limits set on power and clocks, and their defaults."""
    nvml.fill(gpu, "power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", handle, use=_watts)
    nvml.fill(gpu, "power_limit_default_w", "nvmlDeviceGetPowerManagementDefaultLimit", handle, use=_watts)
    nvml.fill(gpu, "application_clock_mhz", "nvmlDeviceGetApplicationsClock", handle, 0)  # NVML_CLOCK_GRAPHICS
    nvml.fill(gpu, "application_clock_default_mhz", "nvmlDeviceGetDefaultApplicationsClock", handle, 0)


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def _fabric(nvml: Nvml, gpu: dict[str, Any], handle: Any) -> None:
    """Read whether the fabric manager has accepted the GPU (Hopper and newer behind NVSwitch)."""
    gpu.update(fabric_state=None, fabric_status=None, fabric_faults=[])
    info: Any = None
    reason: str | None = "binding_too_old"
    for kind, call in (  # the newer call (driver 545) if it exists, or the call of driver 520
        ("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV"),
        ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
    ):
        structure = getattr(nvml.pynvml, kind, None)
        if structure is not None and reason in ("function_not_found", "binding_too_old"):
            info = structure()
            _, reason = nvml.call(call, handle, ctypes.byref(info))
    if reason:
        gpu["unavailable"]["fabric_state"] = reason
        return
    gpu["fabric_state"] = FABRIC_STATES.get(info.state, f"state_{info.state}")
    gpu["fabric_status"] = nvml.code(info.status) if info.status else None
    gpu["fabric_faults"] = fabric_faults(getattr(info, "healthMask", 0))


def fabric_faults(mask: int) -> list[str]:
    """Return the names of the faults in a fabric health mask."""
    found = [name for at, name in enumerate(FABRIC_FAULTS) if (mask >> 2 * at & 0x3) == 1]
    configuration = CONFIGURATION_FAULTS.get(mask >> 8 & 0xF)
    return [*found, configuration] if configuration else found


if __name__ == "__main__":
    main()
