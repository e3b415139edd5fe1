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
    int number = atoi(text);
    return number < machine.all ? number : -1;
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

static void look(void) {
    machine.pid = getpid();
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    unsigned count = 0;
    if (!nvml || NVML("nvmlInit_v2")() != 0) return;
    NVML("nvmlDeviceGetCount_v2")(&count);
    NVML("nvmlSystemGetCudaDriverVersion_v2")(&machine.driver);
    *(void **)&p2p_status = dlsym(nvml, "nvmlDeviceGetP2PStatus");
    for (unsigned at = 0; at < count && at < MOST_GPUS; at++) {
        Gpu *gpu = &machine.gpus[machine.all];
        PciInfo pci;
        Memory memory;
        if (NVML("nvmlDeviceGetHandleByIndex_v2")(at, &gpu->nvml) != 0) continue;
        NVML("nvmlDeviceGetPciInfo_v3")(gpu->nvml, &pci);
        sscanf(pci.text, "%x:%x:%x", &gpu->domain, &gpu->bus, &gpu->device);
        NVML("nvmlDeviceGetCudaComputeCapability")(gpu->nvml, &gpu->major, &gpu->minor);
        NVML("nvmlDeviceGetMemoryInfo")(gpu->nvml, &memory);
        NVML("nvmlDeviceGetName")(gpu->nvml, gpu->name, sizeof gpu->name);
        NVML("nvmlDeviceGetUUID")(gpu->nvml, gpu->uuid, sizeof gpu->uuid);
        gpu->bytes = memory.total;
        machine.all++;
    }
    unsigned mig = 0, pending;
    if (machine.all && NVML("nvmlDeviceGetMigMode")(machine.gpus[0].nvml, &mig, &pending) == 0 && mig) machine.all = 1;
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (list) show(list);
    else for (; machine.shown < machine.all; machine.shown++) machine.order[machine.shown] = machine.shown;
}

int ready(void) {
    pthread_once(&once, look);
    if (machine.pid != getpid()) return NOT_INITIALIZED;
    return machine.shown ? OK : NO_DEVICE;
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
