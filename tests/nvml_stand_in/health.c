/* The part of the stand-in that plays memory repairs, limits, the NVLink fabric and firmware.
 *
 * NVML_STAND_IN names further faults, of GPU 3:
 *   remap_pending · remap_failed · no_spare_rows · sram_threshold · retired_pending · retired_pending_single
 *   retired_full · ecc_off · fabric_not_started · fabric_degraded · fabric_few_links · power_capped · clocks_set
 *   vbios · inforom
 * and of the whole node:
 *   fabric_in_progress · fabric_failed · power_capped_all · no_persistence · library · confidential
 * Healthy machines of other kinds: geforce · a100 (old errors, repaired) · v100 (pages retired) · h100_nvl
 *   mig_all · vgpu · jetson · wsl · laptop · a100_pcie · a10g · gh200 · gb200
 */
#include "stand_in.h"

typedef struct { unsigned max, high, partial, low, none; } Histogram;
typedef struct {
    unsigned version;
    unsigned long long counts[11];
    unsigned thresholdExceeded;
} SramStatus;
typedef struct { unsigned char clusterUuid[16]; int status; unsigned cliqueId; unsigned char state; } Fabric;
typedef struct {
    unsigned version;
    unsigned char clusterUuid[16];
    int status;
    unsigned cliqueId;
    unsigned char state;
    unsigned healthMask;
} FabricV2;
typedef struct { unsigned environment, ccFeature, devToolsMode; } ConfComputeState;

/* Cards without NVIDIA's data-centre features, and the computer on a module, which has hardly any. */
static int plain(void) { return is("geforce") || is("laptop") || is("wsl") || is("jetson"); }

int nvmlSystemGetNVMLVersion(char *text, unsigned size) {
    snprintf(text, size, is("library") ? "12.555.42.02" : is("wsl") ? "12.545.23.05" : is("driver_580") ? "13.580.95.05" : "12.550.90.07");
    return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(Device *gpu, unsigned *enabled) {
    (void)gpu;
    *enabled = !is("no_persistence") && !is("laptop");
    return is("jetson") || is("vgpu") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetEccMode(Device *gpu, unsigned *current, unsigned *pending) {
    *current = *pending = !sick(gpu, "ecc_off");
    return plain() ? NOT_SUPPORTED : SUCCESS;
}

static unsigned long long errors(const Device *gpu, unsigned type, unsigned counter) {
    if (type == 1 && (sick(gpu, "ecc") || sick(gpu, "ecc_contained"))) return counter ? 5 : 2;
    if (type == 1 && (sick(gpu, "retired_pending"))) return counter;
    if (is("a100") && counter) return type ? 1 : 37;
    return 0;
}

int nvmlDeviceGetTotalEccErrors(Device *gpu, unsigned type, unsigned counter, unsigned long long *count) {
    *count = errors(gpu, type, counter);
    return plain() || sick(gpu, "ecc_off") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetMemoryErrorCounter(Device *gpu, unsigned type, unsigned counter, unsigned place, unsigned long long *count) {
    *count = place == 2 ? errors(gpu, type, counter) : 0;
    return plain() || sick(gpu, "ecc_off") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(Device *gpu, unsigned *milliwatts) {
    *milliwatts = sick(gpu, "power_capped") || is("power_capped_all") || is("h100_nvl") ? 400000 : is("laptop") ? 60000 : 700000;
    return is("jetson") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetPowerManagementDefaultLimit(Device *gpu, unsigned *milliwatts) {
    (void)gpu;
    *milliwatts = is("h100_nvl") ? 400000 : is("laptop") ? 115000 : 700000;
    return is("jetson") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetApplicationsClock(Device *gpu, unsigned type, unsigned *mhz) {
    (void)type;
    *mhz = sick(gpu, "clocks_set") ? 1200 : 1980;
    return plain() ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetDefaultApplicationsClock(Device *gpu, unsigned type, unsigned *mhz) {
    (void)gpu;
    (void)type;
    *mhz = 1980;
    return plain() ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetVbiosVersion(Device *gpu, char *text, unsigned size) {
    snprintf(text, size, sick(gpu, "vbios") ? "96.00.61.00.01" : "96.00.74.00.01");
    return is("jetson") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetDisplayActive(Device *gpu, unsigned *active) {
    *active = gpu->index == 0 && (is("geforce") || is("laptop") || is("wsl"));
    return is("jetson") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetVirtualizationMode(Device *gpu, unsigned *mode) {
    (void)gpu;
    *mode = is("vgpu") ? 2 : 0;
    return SUCCESS;
}

int nvmlDeviceValidateInforom(Device *gpu) {
    if (sick(gpu, "inforom")) return CORRUPTED_INFOROM;
    return plain() || is("vgpu") ? NOT_SUPPORTED : SUCCESS;
}

#ifndef OLD_DRIVER

/* Before Ampere pages retire, and rows are not remapped. */
static int pages_retire(void) {
    return is("v100") || is("retired_pending") || is("retired_pending_single") || is("retired_full");
}

static int retired(const Device *gpu, FieldValue *value) {
    int full = sick(gpu, "retired_full"), pending = sick(gpu, "retired_pending");
    int single = sick(gpu, "retired_pending_single");
    value->valueType = 1;
    value->nvmlReturn = pages_retire() ? SUCCESS : NOT_SUPPORTED;
    switch (value->fieldId) {
    case 29: value->value.uiVal = full ? 50 : single ? 1 : is("v100") ? 4 : 0; return 1;
    case 30: value->value.uiVal = full ? 13 : pending ? 1 : is("v100") ? 1 : 0; return 1;
    case 31: value->value.uiVal = pending || single; return 1;
    case 93: value->value.uiVal = pending; return 1;
    case 230: {
        int told = is("healthy") || is("ecc_contained") || is("reset") || is("remap_pending") || is("h100_nvl");
        value->nvmlReturn = told ? SUCCESS : NOT_SUPPORTED;
        value->value.uiVal = sick(gpu, "reset");
        return 1;
    }
    default: return 0;
    }
}

int nvmlDeviceGetFieldValues(Device *gpu, int count, FieldValue *values) {
    for (int i = 0; i < count; i++) {
        if (topology_field && topology_field(gpu, &values[i])) continue;
        if (!retired(gpu, &values[i])) values[i].nvmlReturn = NOT_SUPPORTED;
    }
    return SUCCESS;
}

int nvmlDeviceGetRemappedRows(Device *gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = is("a100");
    *uncorrected = is("a100") || sick(gpu, "remap_pending") || sick(gpu, "remap_failed");
    *pending = sick(gpu, "remap_pending");
    *failed = sick(gpu, "remap_failed");
    return plain() || pages_retire() || is("mig_all") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetRowRemapperHistogram(Device *gpu, Histogram *banks) {
    *banks = sick(gpu, "no_spare_rows") ? (Histogram){2559, 0, 0, 0, 1} : (Histogram){2560, 0, 0, 0, 0};
    return plain() || pages_retire() || is("mig_all") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetSramEccErrorStatus(Device *gpu, SramStatus *status) {
    if (status->version != 0x1000068) return ARGUMENT_VERSION_MISMATCH;
    status->thresholdExceeded = sick(gpu, "sram_threshold");
    return plain() || pages_retire() ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetGspFirmwareVersion(Device *gpu, char *text) {
    (void)gpu;
    snprintf(text, 64, "%s", driver_version());
    return plain() || pages_retire() ? NOT_SUPPORTED : SUCCESS;
}

static unsigned fabric_state(const Device *gpu) {
    if (is("fabric_in_progress")) return 2;
    return sick(gpu, "fabric_not_started") ? 1 : 3;
}

/* Shifts and values of NVML_GPU_FABRIC_HEALTH_MASK_*: 2 is "no" for the first four, 1 "none" for the fifth. */
static unsigned fabric_health(const Device *gpu) {
    unsigned degraded = sick(gpu, "fabric_degraded") ? 1 : 2;
    return degraded | 2u << 2 | 2u << 4 | 2u << 6 | (sick(gpu, "fabric_few_links") ? 5u : 1u) << 8;
}

/* Without NVLink, or with links straight to other GPUs or to the CPU: no fabric manager takes them in. */
static int no_fabric(void) { return is("a100") || is("a100_pcie") || is("h100_nvl") || is("gh200") || is("vgpu"); }

int nvmlDeviceGetGpuFabricInfoV(Device *gpu, FabricV2 *fabric) {
    if (plain() || pages_retire() || no_fabric()) return NOT_SUPPORTED;
    if (fabric->version != 0x02000024) return ARGUMENT_VERSION_MISMATCH;
    fabric->status = is("fabric_failed") ? UNKNOWN : SUCCESS;
    fabric->state = fabric_state(gpu);
    fabric->healthMask = fabric_health(gpu);
    return SUCCESS;
}

int nvmlSystemGetConfComputeState(ConfComputeState *state) {
    *state = (ConfComputeState){is("confidential") ? 2 : 0, is("confidential"), 0};
    return plain() || pages_retire() || is("a100") || is("a100_pcie") ? NOT_SUPPORTED : SUCCESS;
}

#endif
