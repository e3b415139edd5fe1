"""The part of child_nvml.py that asks one GPU for its memory's repairs, limits, NVLink fabric and firmware.

It is loaded by path (the child may run isolated, with no package to import from), and imports the standard
library only. ``nvml`` is the child's wrapper of pynvml; each function fills one GPU's values:

    {"rows_remapped_uncorrected": 1, "row_remap_pending": false, "spare_rows": {"max": 639, …, "none": 0},
     "power_limit_w": 700.0, "fabric_state": "completed", "fabric_status": null, "vbios_version": "96.00.74.00.01"}

Sources of names, structures and values: NVIDIA's nvml.h and its binding nvidia-ml-py.
"""

import ctypes
import time
from typing import Any

#: nvmlGpuFabricState_t.
FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}

#: What in NVML_GPU_FABRIC_HEALTH_MASK_* is a fault: our name, shift, width, and the values that say so.
FABRIC_FAULTS = (
    ("degraded_bandwidth", 0, 0x3, {1: ""}),
    ("route_recovery", 2, 0x3, {1: ""}),
    ("route_unhealthy", 4, 0x3, {1: ""}),
    ("access_timeout_recovery", 6, 0x3, {1: ""}),
    (
        "incorrect_configuration",
        8,
        0xF,
        {
            2: "incorrect_sysguid",
            3: "incorrect_chassis_serial_number",
            4: "no_partition",
            5: "insufficient_nvlinks",
            6: "incompatible_gpu_firmware",
            7: "invalid_location",
            8: "gpu_state_invalid",
        },
    ),
)

#: nvmlGpuVirtualizationMode_t.
VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"}

#: Field ids of nvmlDeviceGetFieldValues, as our names.
RETIRED_PAGES = {
    "pages_retired_single_bit": "NVML_FI_DEV_RETIRED_SBE",
    "pages_retired_double_bit": "NVML_FI_DEV_RETIRED_DBE",
    "page_retirement_pending": "NVML_FI_DEV_RETIRED_PENDING",
    "page_retirement_pending_double_bit": "NVML_FI_DEV_RETIRED_PENDING_DBE",
}
#: nvmlValueType_t: which member of the union holds the value.
MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

UNCORRECTED, VOLATILE, DRAM, SRAM = 1, 0, 2, 7  # nvmlMemoryErrorType_t, nvmlEccCounterType_t, locations

#: Reading and checking the flash of all InfoROMs may take so long together, then the rest is left out:
#: DCGM does it once an hour at most (modules/health/DcgmHealthWatch.cpp, SetInforom).
INFOROM_LIMIT_S = 1.0


def ask_memory(nvml: Any, gpu: dict[str, Any], handle: Any) -> None:
    """Corrected errors, where the uncorrected ones were, and what became of bad rows and pages."""
    for field, counter in (("ecc_volatile_corrected", 0), ("ecc_aggregate_corrected", 1)):
        nvml.fill(gpu, field, "nvmlDeviceGetTotalEccErrors", handle, 0, counter)
    for field, place in (("ecc_volatile_uncorrected_dram", DRAM), ("ecc_volatile_uncorrected_sram", SRAM)):
        nvml.fill(gpu, field, "nvmlDeviceGetMemoryErrorCounter", handle, UNCORRECTED, VOLATILE, place)
    # Whether the SRAM has had more uncorrected errors than NVIDIA's policy allows (driver 535 and newer).
    kind = getattr(nvml.pynvml, "c_nvmlEccSramErrorStatus_v1_t", None)
    gpu["sram_threshold_exceeded"], reason = None, "binding_too_old"
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
    gpu.update(fields(nvml, gpu, handle, RETIRED_PAGES))
    for name in ("page_retirement_pending", "page_retirement_pending_double_bit"):
        gpu[name] = None if gpu[name] is None else bool(gpu[name])


def _histogram(values: Any) -> dict[str, int]:
    """How many memory banks have all, most, some, few or none of their spare rows left."""
    return {name: getattr(values, name) for name in ("max", "high", "partial", "low", "none")}


def fields(nvml: Any, gpu: dict[str, Any], handle: Any, wanted: dict[str, str]) -> dict[str, Any]:
    """Values of nvmlDeviceGetFieldValues, by our names; None where there is none, and then why."""
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


def ask_limits(nvml: Any, gpu: dict[str, Any], handle: Any) -> None:
    """The limits set on power and clocks, and their defaults."""
    for field, name in (
        ("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit"),
        ("power_limit_default_w", "nvmlDeviceGetPowerManagementDefaultLimit"),
    ):
        nvml.fill(gpu, field, name, handle, use=lambda milliwatts: milliwatts / 1000)
    for field, name in (
        ("application_clock_mhz", "nvmlDeviceGetApplicationsClock"),
        ("application_clock_default_mhz", "nvmlDeviceGetDefaultApplicationsClock"),
    ):
        nvml.fill(gpu, field, name, handle, 0)  # NVML_CLOCK_GRAPHICS


def ask_firmware(nvml: Any, gpu: dict[str, Any], handle: Any) -> None:
    """Versions in the GPU, whether it drives a display, and whether it is one of a virtual machine."""
    nvml.fill(gpu, "vbios_version", "nvmlDeviceGetVbiosVersion", handle, use=_text)
    nvml.fill(gpu, "gsp_firmware_version", "nvmlDeviceGetGspFirmwareVersion", handle, use=_text)
    nvml.fill(gpu, "display_active", "nvmlDeviceGetDisplayActive", handle, use=bool)
    nvml.fill(gpu, "virtualization", "nvmlDeviceGetVirtualizationMode", handle, use=VIRTUALIZATION.get)


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)


def ask_fabric(nvml: Any, gpu: dict[str, Any], handle: Any) -> None:
    """Whether the fabric manager has taken the GPU in (Hopper and newer behind NVSwitch)."""
    gpu.update(fabric_state=None, fabric_status=None, fabric_faults=[])
    info: Any = None
    reason: str | None = "binding_too_old"
    for kind, call in (  # the newer call (driver 545) where there is one, else the one of driver 520
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
    """The names of what a fabric health mask says is wrong."""
    found = ((name, values.get(mask >> shift & width)) for name, shift, width, values in FABRIC_FAULTS)
    return [detail or name for name, detail in found if detail is not None]


def ask_system(nvml: Any, answer: dict[str, Any]) -> None:
    """The version of the library that answers, and whether confidential computing is on."""
    nvml.fill(answer, "nvml_version", "nvmlSystemGetNVMLVersion", use=_text)
    on = nvml.pynvml.__dict__.get("NVML_CC_SYSTEM_FEATURE_ENABLED", 1)
    nvml.fill(
        answer, "confidential_compute", "nvmlSystemGetConfComputeState", use=lambda state: bool(state.ccFeature == on)
    )


def check_inforoms(nvml: Any, gpus: list[tuple[dict[str, Any], Any]]) -> None:
    """Let the driver verify the checksums of the InfoROMs, as long as that is quick."""
    started = time.monotonic()
    for gpu, handle in gpus:
        if gpu["error"] is not None or time.monotonic() - started > INFOROM_LIMIT_S:
            continue
        nvml.answer["gpu"] = gpu["index"]
        _, reason = nvml.call("nvmlDeviceValidateInforom", handle)
        gpu["inforom_valid"] = True if reason is None else False if reason == "corrupted_inforom" else None
        if reason:
            gpu["unavailable"]["inforom_valid"] = reason
