"""From when on errors of an NVLink matter.

NVIDIA's own monitor, DCGM (modules/health/DcgmHealthWatch.cpp, dcgmlib/src/dcgm_gpu_hardware_limits.h),
looks at how counters grow within a minute: one replay or recovery is a failure
(DCGM_LIMIT_MAX_NVLINK_ERROR), CRC errors are one from 100 a second (DCGM_LIMIT_MAX_NVLINK_CRC_ERROR) and
a warning below. What was counted before nobody saw it says little: the counters run since the driver was
loaded, maybe months ago.
"""

#: One more of these while the doctor looks is a fault: the link lost data and had to send it again, or
#: went down and had to be trained again.
GRAVE = ("replay", "recovery", "recovery_failed")
CRC_ERRORS_PER_S = 100.0

MEANINGS = {
    "replay": "transmissions repeated",
    "recovery": "times the link was trained again",
    "recovery_failed": "times training it again failed",
    "crc": "CRC errors",
}


def grows_gravely(errors_per_s: dict[str, float]) -> bool:
    """Whether a link's errors grow as fast as DCGM calls a failure."""
    grave = any(errors_per_s.get(name, 0) > 0 for name in GRAVE)
    return grave or errors_per_s.get("crc", 0) >= CRC_ERRORS_PER_S


def is_stained(errors: dict[str, int]) -> bool:
    """Whether a link lost data since the driver was loaded; CRC errors alone are in order."""
    return any(errors.get(name, 0) > 0 for name in GRAVE)
