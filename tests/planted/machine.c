/* The GPUs of this process: those of the stand-in for libnvidia-ml, less what CUDA_VISIBLE_DEVICES hides.
 *
 * The environment is read at a process's first call, as by the real driver: a trial sets CUDA_VISIBLE_DEVICES after
 * the fork. A child forked after that call can use no GPU. Of GPUs in slices a process is shown one slice.
 */
#include <ctype.h>
#include <dlfcn.h>

#include "planted.h"

typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char text[32]; } PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;

static struct {
    pid_t pid;
    int all, shown, order[MOST_GPUS], driver;
    Gpu gpus[MOST_GPUS];
} machine;
static pthread_once_t once = PTHREAD_ONCE_INIT;
int runtime_version = 12090;
static int (*p2p_status)(void *, void *, unsigned, unsigned *);

/* NVML's stand-in compiled beside this file has all of them. */
#define NVML(name) ((int (*)())dlsym(nvml, name))

static int same(const char *text, size_t length, const Gpu *gpu) {
    return length > 4 && strncmp(gpu->uuid, text, length) == 0;
}

/* The machine's number of what an element of CUDA_VISIBLE_DEVICES names, or -1. */
static int named(const char *text, size_t length) {
    for (int at = 0; at < machine.all; at++)
        if (same(text, length, &machine.gpus[at])) return at;
    if (length == 0 || !isdigit((unsigned char)*text)) return -1;
    for (int at = 0; at < machine.all; at++)
        if (machine.gpus[at].number == atoi(text)) return at;
    return -1;
}

/* A process is shown one slice, whatever their number (MIG User Guide, "CUDA Device Enumeration"). */
static void keep_one_slice(void) {
    for (int at = 0; at < machine.shown; at++)
        if (machine.gpus[machine.order[at]].slice) {
            machine.order[0] = machine.order[at];
            machine.shown = 1;
        }
}

/* The first element that names nothing ends the list; a GPU named twice hides all. */
static void show(const char *list) {
    while (*list) {
        size_t length = strcspn(list, ",");
        int at = named(list, length);
        if (at < 0) return;
        for (int before = 0; before < machine.shown; before++)
            if (machine.order[before] == at) {
                machine.shown = 0;
                return;
            }
        machine.order[machine.shown++] = at;
        list += length + (list[length] == ',');
    }
}

/* A GPU, or one of its slices, which has a name and a UUID of its own. */
static void add(void *nvml, void *whole, void *named, int number) {
    Gpu *gpu = &machine.gpus[machine.all++];
    PciInfo pci;
    Memory memory;
    gpu->nvml = whole;
    gpu->number = number;
    gpu->slice = named != whole;
    NVML("nvmlDeviceGetPciInfo_v3")(whole, &pci);
    sscanf(pci.text, "%x:%x:%x", &gpu->domain, &gpu->bus, &gpu->device);
    NVML("nvmlDeviceGetCudaComputeCapability")(whole, &gpu->major, &gpu->minor);
    NVML("nvmlDeviceGetMemoryInfo")(named, &memory);
    NVML("nvmlDeviceGetName")(named, gpu->name, sizeof gpu->name);
    NVML("nvmlDeviceGetUUID")(named, gpu->uuid, sizeof gpu->uuid);
    gpu->bytes = memory.total;
}

static void look(void) {
    machine.pid = getpid();
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    unsigned count = 0;
    if (!nvml || NVML("nvmlInit_v2")() != 0) return;
    NVML("nvmlDeviceGetCount_v2")(&count);
    NVML("nvmlSystemGetCudaDriverVersion_v2")(&machine.driver);
    *(void **)&p2p_status = dlsym(nvml, "nvmlDeviceGetP2PStatus");
    for (unsigned at = 0; at < count; at++) {
        void *whole, *slice;
        unsigned now = 0, later;
        if (NVML("nvmlDeviceGetHandleByIndex_v2")(at, &whole) != 0) continue;
        NVML("nvmlDeviceGetMigMode")(whole, &now, &later);
        if (!now) add(nvml, whole, whole, (int)at);
        for (unsigned index = 0; now && NVML("nvmlDeviceGetMigDeviceHandleByIndex")(whole, index, &slice) == 0; index++)
            add(nvml, whole, slice, (int)at);
    }
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (list) show(list);
    else for (; machine.shown < machine.all; machine.shown++) machine.order[machine.shown] = machine.shown;
    keep_one_slice();
}

int ready(void) {
    pthread_once(&once, look);
    if (machine.pid != getpid()) return NOT_INITIALIZED;
    if (!machine.shown) return NO_DEVICE;
    return machine.driver / 1000 < runtime_version / 1000 ? INSUFFICIENT_DRIVER : OK;
}

int visible(void) { return ready() ? 0 : machine.shown; }

const Gpu *gpu(int device) {
    return device >= 0 && device < visible() ? &machine.gpus[machine.order[device]] : NULL;
}

int reaches(int one, int two) {
    unsigned status = 1;
    return gpu(one) && gpu(two) && p2p_status(gpu(one)->nvml, gpu(two)->nvml, 0, &status) == 0 && status == 0;
}

int driver_version(void) {
    ready();
    return machine.driver;
}
