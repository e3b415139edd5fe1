/* What NCCL asks of NVML besides what the doctor asks: GPUs by their PCI address, what an NVLink can do, words for errors. */
#include "stand_in.h"

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;

int nvmlInit_v2(void);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **gpu);
int nvmlDeviceGetPciInfo_v3(Device *gpu, PciInfo *pci);
int nvmlDeviceGetNvLinkState(Device *gpu, unsigned link, unsigned *state);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *gpu, unsigned link, PciInfo *pci);

int nvmlInit(void) { return nvmlInit_v2(); }
int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }
int nvmlDeviceGetHandleByIndex(unsigned index, Device **gpu) { return nvmlDeviceGetHandleByIndex_v2(index, gpu); }

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, Device **gpu) {
    unsigned domain, bus, device, count, of[3];
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &device) != 3) return 2;
    nvmlDeviceGetCount_v2(&count);
    for (unsigned at = 0; at < count; at++) {
        PciInfo pci;
        nvmlDeviceGetPciInfo_v3(&gpus[at], &pci);
        sscanf(pci.busId, "%x:%x:%x", &of[0], &of[1], &of[2]);
        if (of[0] == domain && of[1] == bus && of[2] == device) return nvmlDeviceGetHandleByIndex_v2(at, gpu);
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId(const char *text, Device **gpu) { return nvmlDeviceGetHandleByPciBusId_v2(text, gpu); }

int nvmlDeviceGetIndex(Device *gpu, unsigned *index) {
    *index = (unsigned)gpu->index;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo(Device *gpu, unsigned link, PciInfo *pci) {
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu, link, pci);
}

/* An active link can do all that NCCL asks for: P2P, atomics, memory of the system. */
int nvmlDeviceGetNvLinkCapability(Device *gpu, unsigned link, unsigned capability, unsigned *can) {
    (void)capability;
    return nvmlDeviceGetNvLinkState(gpu, link, can);
}

const char *nvmlErrorString(int result) {
    switch (result) {
        case SUCCESS: return "Success";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
        default: return "Unknown Error";
    }
}
