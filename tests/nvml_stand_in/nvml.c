/* A stand-in for libnvidia-ml.so.1: eight H100s, healthy or with one planted fault.
 *
 *     cc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 *.c
 *     LD_LIBRARY_PATH=. NVML_STAND_IN=ecc python -I child_nvml.py
 *
 * NVML_STAND_IN names the fault (GPU 3 has it, where it is one GPU's):
 *   healthy (also when unset) · ecc · ecc_contained · throttled · throttled_once · busy · full · desktop
 *   exclusive · exclusive_taken · exclusive_mps · prohibited · mig · mixed · two (GPUs) · none · seven
 *   half_ours · gpu_lost · lost_later · reset · not_loaded · mismatch · no_permission · hang_init · hang_gpu · crash
 *   one, four (GPUs) · driver_580 (CUDA 13)
 * health.c adds more of them. Several may be given, with commas between them: "geforce,two".
 * NVML_STAND_IN_BUSES gives the GPUs other PCI addresses: "00010000:00:00.0,00020000:00:00.0".
 * NVML_STAND_IN_PCIE gives them other links: "4x16,5x8".
 * -DFAULT='"gpu_lost"' plants one for processes whose environment is not ours, such as a SLURM prolog.
 * -DOLD_DRIVER leaves out what a 470 driver lacks, so that pynvml raises NVMLError_FunctionNotFound.
 *
 * Structures and values follow the public nvml.h.
 */
#include <signal.h>
#include <unistd.h>

#include "stand_in.h"

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } MemoryV2;
typedef struct { unsigned pid; unsigned long long used; unsigned gpuInstance, computeInstance; } Process;

Device gpus[8] = {{0, -1}, {1, -1}, {2, -1}, {3, -1}, {4, -1}, {5, -1}, {6, -1}, {7, -1}};

static void hang(void) {
    for (;;) pause();
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (is("hang_init")) hang();
    if (is("crash")) raise(SIGSEGV);
    if (is("not_loaded")) return DRIVER_NOT_LOADED;
    if (is("mismatch")) return LIB_RM_VERSION_MISMATCH;
    if (is("no_permission")) return NO_PERMISSION;
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    int one = is("one") || is("jetson") || is("wsl");
    *count = is("none") ? 0 : one ? 1 : is("two") ? 2 : is("four") ? 4 : is("seven") ? 7 : 8;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **gpu) {
    *gpu = &gpus[index];
    if (is("half_ours") && index >= 4) return NO_PERMISSION;
    return sick(*gpu, "gpu_lost") ? GPU_IS_LOST : SUCCESS;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "%s", driver_version());
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = is("driver_580") ? 13000 : 12040;
    return SUCCESS;
}

int nvmlDeviceGetUUID(Device *gpu, char *text, unsigned size) {
    if (gpu->slice >= 0)
        snprintf(text, size, "MIG-5e7d000%d-0000-4000-8000-00000000000%d", gpu->index, gpu->slice);
    else
        snprintf(text, size, "GPU-8932f93%d-d72c-4106-c12f-20bd9faed9f6", gpu->index);
    return SUCCESS;
}

/* What the variant's GPUs are. */
typedef struct { const char *variant, *name; int major, minor; unsigned long long bytes; } Model;

static const Model models[] = {
    {"geforce", "NVIDIA GeForce RTX 4090", 8, 9, 24 * GIB},
    {"wsl", "NVIDIA GeForce RTX 4090", 8, 9, 24 * GIB},
    {"laptop", "NVIDIA GeForce RTX 4070 Laptop GPU", 8, 9, 8 * GIB},
    {"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 80 * GIB},
    {"a100_pcie", "NVIDIA A100 80GB PCIe", 8, 0, 80 * GIB},
    {"a10g", "NVIDIA A10G", 8, 6, 23 * GIB},
    {"gh200", "NVIDIA GH200 480GB", 9, 0, 96 * GIB},
    {"gb200", "NVIDIA GB200", 10, 0, 185 * GIB},
    {"b200", "NVIDIA B200", 10, 0, 180 * GIB},
    {"v100", "Tesla V100-SXM2-32GB", 7, 0, 32 * GIB},
    {"retired_pending", "Tesla V100-SXM2-32GB", 7, 0, 32 * GIB},
    {"retired_pending_single", "Tesla V100-SXM2-32GB", 7, 0, 32 * GIB},
    {"retired_full", "Tesla V100-SXM2-32GB", 7, 0, 32 * GIB},
    {"h100_nvl", "NVIDIA H100 NVL", 9, 0, 94 * GIB},
    {"vgpu", "NVIDIA H100XM-80C", 9, 0, 80 * GIB},
    {"jetson", "Orin (nvgpu)", 8, 7, 0},
};
static const Model h100 = {"", "NVIDIA H100 80GB HBM3", 9, 0, TOTAL};

static const Model *model(void) {
    for (unsigned i = 0; i < sizeof models / sizeof *models; i++)
        if (is(models[i].variant)) return &models[i];
    return &h100;
}

int nvmlDeviceGetName(Device *gpu, char *text, unsigned size) {
    snprintf(text, size, "%s", sick(gpu, "mixed") ? "NVIDIA A100-SXM4-80GB" : model()->name);
    return SUCCESS;
}

static const unsigned buses[8] = {0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf};

int nvmlDeviceGetPciInfo_v3(Device *gpu, PciInfo *pci) {
    const char *other = getenv("NVML_STAND_IN_BUSES");
    memset(pci, 0, sizeof *pci);
    pci->bus = buses[gpu->index];
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", buses[gpu->index]);
    for (int at = 0; other && at < gpu->index; at++)
        if ((other = strchr(other, ','))) other++;
    if (other) snprintf(pci->busId, sizeof pci->busId, "%.16s", other);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%.12s", pci->busId + 4);
    return is("jetson") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetMinorNumber(Device *gpu, unsigned *minor) {
    *minor = gpu->index;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Device *gpu, int *major, int *minor) {
    *major = sick(gpu, "mixed") ? 8 : model()->major;
    *minor = model()->minor;
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(Device *gpu, unsigned *mode) {
    int exclusive = is("exclusive") || is("exclusive_taken") || is("exclusive_mps");
    *mode = sick(gpu, "prohibited") ? 2 : exclusive ? 3 : 0;
    return SUCCESS;
}

static unsigned long long used(const Device *gpu) {
    if (gpu->index != SICK) return 4 * MIB;
    if (is("full")) return 76 * GIB;
    if (is("busy") || is("desktop")) return 12 * GIB;
    if (is("exclusive_taken")) return 3 * GIB;
    return 4 * MIB;
}

int nvmlDeviceGetMemoryInfo(Device *gpu, Memory *memory) {
    if (sick(gpu, "hang_gpu")) hang();
    memory->total = model()->bytes;
    memory->used = used(gpu) + RESERVED;
    memory->free = memory->total - memory->used;
    if (is("jetson")) return NOT_SUPPORTED;
    return sick(gpu, "lost_later") ? GPU_IS_LOST : SUCCESS;
}

static int one_process(unsigned pid, unsigned long long bytes, unsigned *count, Process *found) {
    if (*count == 0) {
        *count = 1;
        return INSUFFICIENT_SIZE;
    }
    *count = 1;
    *found = (Process){pid, bytes, NOT_MIG, NOT_MIG};
    return SUCCESS;
}

/* How busy a GPU is, in percent: NVML_STAND_IN_BUSY, as 100,0,100 for the first ones. */
typedef struct { unsigned gpu, memory; } Utilization;

static int nth(const char *list, int number) {
    for (; list && number; number--)
        if ((list = strchr(list, ','))) list++;
    return list ? atoi(list) : 0;
}

int nvmlDeviceGetUtilizationRates(Device *gpu, Utilization *rates) {
    if (sick(gpu, "hang_gpu")) hang();
    *rates = (Utilization){nth(getenv("NVML_STAND_IN_BUSY"), gpu->index), 0};
    return is("mig") ? NOT_SUPPORTED : SUCCESS;
}

static int processes(const Device *gpu, int compute, unsigned *count, Process *found) {
    const char *pid = getenv("NVML_STAND_IN_PID");
    unsigned number = pid ? (unsigned)atoi(pid) : 4194000;
    int computing = is("busy") || is("full") || is("exclusive_taken") || is("exclusive_mps");
    const char *on_each = getenv("NVML_STAND_IN_PIDS"); /* as 11,12 of GPUs 0 and 1 */
    if (compute && nth(on_each, gpu->index))
        return one_process(nth(on_each, gpu->index), 30 * GIB, count, found);
    if (gpu->index == SICK && (compute ? computing : is("desktop")))
        return one_process(number, used(gpu), count, found);
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v2(Device *gpu, unsigned *count, Process *found) {
    return processes(gpu, 1, count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v2(Device *gpu, unsigned *count, Process *found) {
    return processes(gpu, 0, count, found);
}

static int reasons(const Device *gpu, unsigned long long *mask) {
    static int looks = 0;
    *mask = 0x1;
    if (sick(gpu, "throttled")) *mask = 0x8 | 0x40;
    if (sick(gpu, "throttled_once") && looks++ == 0) *mask = 0x8 | 0x80;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *gpu, unsigned long long *mask) {
    return reasons(gpu, mask);
}

int nvmlDeviceGetClockInfo(Device *gpu, unsigned type, unsigned *mhz) {
    *mhz = type == 2 ? 2619 : sick(gpu, "throttled") ? 345 : is("laptop") ? 210 : 1980;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(Device *gpu, unsigned type, unsigned *mhz) {
    (void)gpu;
    *mhz = type == 2 ? 2619 : 1980;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *gpu, unsigned sensor, unsigned *celsius) {
    (void)sensor;
    *celsius = sick(gpu, "throttled") ? 94 : 31;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(Device *gpu, unsigned *milliwatts) {
    (void)gpu;
    *milliwatts = 71500;
    return SUCCESS;
}

/* An idle GeForce lets its link run slowly; that of a laptop has half of the lanes. */
static int idles(void) { return is("geforce") || is("laptop"); }

/* What NVML_STAND_IN_PCIE has of a GPU, else these. */
static int pcie(const Device *gpu, unsigned generation, unsigned width, unsigned *value, int wants_width) {
    const char *set = getenv("NVML_STAND_IN_PCIE");
    for (int at = 0; set && at < gpu->index; at++)
        if ((set = strchr(set, ','))) set++;
    if (set) sscanf(set, "%ux%u", &generation, &width);
    *value = wants_width ? width : generation;
    return SUCCESS;
}

int nvmlDeviceGetCurrPcieLinkGeneration(Device *gpu, unsigned *value) { return pcie(gpu, idles() ? 1 : 5, 16, value, 0); }
int nvmlDeviceGetMaxPcieLinkGeneration(Device *gpu, unsigned *value) { return pcie(gpu, idles() ? 4 : 5, 16, value, 0); }
int nvmlDeviceGetCurrPcieLinkWidth(Device *gpu, unsigned *value) { return pcie(gpu, 5, is("laptop") ? 8 : 16, value, 1); }
int nvmlDeviceGetMaxPcieLinkWidth(Device *gpu, unsigned *value) { return pcie(gpu, 5, 16, value, 1); }

#ifndef OLD_DRIVER

static Device slices[8][2] = {{{0, 0}, {0, 1}}, {{1, 0}, {1, 1}}, {{2, 0}, {2, 1}}, {{3, 0}, {3, 1}},
                              {{4, 0}, {4, 1}}, {{5, 0}, {5, 1}}, {{6, 0}, {6, 1}}, {{7, 0}, {7, 1}}};

int nvmlDeviceGetMemoryInfo_v2(Device *gpu, MemoryV2 *memory) {
    Memory old;
    int result = nvmlDeviceGetMemoryInfo(gpu, &old);
    memory->total = old.total;
    memory->reserved = RESERVED;
    memory->used = old.used - RESERVED;
    memory->free = old.free;
    return result;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *gpu, unsigned *count, Process *found) {
    return processes(gpu, 1, count, found);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *gpu, unsigned *count, Process *found) {
    return processes(gpu, 0, count, found);
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *gpu, unsigned long long *mask) {
    return reasons(gpu, mask);
}

int nvmlGetExcludedDeviceCount(unsigned *count) {
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Device *gpu, unsigned *current, unsigned *pending) {
    *current = *pending = sliced(gpu);
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *gpu, unsigned *count) {
    (void)gpu;
    *count = 7;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *gpu, unsigned index, Device **slice) {
    if (!sliced(gpu) || index > 1) return NOT_FOUND;
    *slice = &slices[gpu->index][index];
    return SUCCESS;
}

#endif
