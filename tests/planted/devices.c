/* Devices of the planted CUDA: what runtime and driver tell of them, and kernels that do nothing. */
#include <dlfcn.h>
#include <strings.h>

#include "planted.h"

__thread int device_now;
static __thread int last_error;

int failed(int error) {
    if (error) last_error = error;
    return error;
}

int look_up(const Entry *table, const char *name, void **function) {
    while (table->name && strcmp(table->name, name) != 0) table++;
    *function = (void *)table->function;
    return table->name != NULL;
}

/* Numbers are those of CUdevice_attribute in cuda.h, sizes those of the CUDA C++ Programming Guide, table of
 * compute capabilities. */
static int attribute(const Gpu *gpu, int name) {
    int hopper = gpu->major >= 9;
    int data_center = gpu->minor == 0;
    switch (name) {
        case 1: return 1024;                                        /* threads a block */
        case 8: return 48 << 10;                                    /* shared memory a block */
        case 10: return 32;                                         /* threads a warp */
        case 16: return hopper ? 132 : data_center ? 108 : 80;      /* multiprocessors: H100 SXM, A100, A10 */
        case 39: return data_center ? 2048 : 1536;                  /* threads a multiprocessor */
        case 75: return gpu->major;
        case 76: return gpu->minor;
        case 97: return hopper ? 227 << 10 : data_center ? 163 << 10 : 99 << 10; /* shared memory by choice */
        case 132: return hopper;                                    /* multicast */
        case 41: case 102: case 103: case 115: return 1;            /* one address space, virtual memory, handles as
                                                                       file descriptors, pools */
        case 116: return !strstr(gpu->name, "GeForce");             /* GPUDirect RDMA */
        case 124: return getenv("PLANTED_DMABUF") != NULL;          /* memory as a dma-buf */
        default: return 0;
    }
}

static int cudaGetDeviceCount(int *count) {
    int error = ready();
    *count = visible();
    return failed(error);
}

static int cudaSetDevice(int device) {
    int error = ready();
    if (error) return failed(error);
    if (!gpu(device)) return failed(INVALID_DEVICE);
    device_now = device;
    return OK;
}

static int cudaGetDevice(int *device) {
    *device = device_now;
    return failed(ready());
}

static int cudaDeviceGetAttribute(int *value, int name, int device) {
    if (!gpu(device)) return failed(ready() ? ready() : INVALID_DEVICE);
    *value = attribute(gpu(device), name);
    return OK;
}

static int cudaDeviceGetPCIBusId(char *text, int size, int device) {
    const Gpu *it = gpu(device);
    if (!it) return failed(INVALID_DEVICE);
    snprintf(text, (size_t)size, "%04x:%02x:%02x.0", it->domain, it->bus, it->device);
    return OK;
}

static int cudaDeviceGetByPCIBusId(int *device, const char *text) {
    char other[32];
    for (*device = 0; *device < visible(); ++*device)
        if (cudaDeviceGetPCIBusId(other, sizeof other, *device) == OK && strcasecmp(text, other) == 0) return OK;
    return failed(INVALID_DEVICE);
}

static int cudaDeviceCanAccessPeer(int *can, int one, int two) {
    *can = reaches(one, two);
    return OK;
}

static int cudaDeviceEnablePeerAccess(int other, unsigned flags) {
    (void)flags;
    return reaches(device_now, other) ? OK : failed(PEER_ACCESS_UNSUPPORTED);
}

/* GPU-8932f930-d72c-...: 16 bytes in hexadecimal. */
static void uuid_of(const Gpu *gpu, unsigned char *bytes) {
    const char *at = gpu->uuid + 4;
    for (int byte = 0; byte < 16 && *at; byte++) {
        at += *at == '-';
        unsigned value = 0;
        sscanf(at, "%2x", &value);
        bytes[byte] = (unsigned char)value;
        at += 2;
    }
}

/* cudaDeviceProp: what NCCL and torch read of it, by its place. CUDA 13 has left some fields out. */
static int told_of(char *properties, int device, size_t size, const int *later) {
    const Gpu *it = gpu(device);
    if (!it) return failed(INVALID_DEVICE);
    const struct { int place, value; } numbers[] = {
        {308, 32}, {320, 1024}, {360, it->major}, {364, it->minor}, {later[0], attribute(it, 16)}, {later[1], (int)it->bus},
        {later[1] + 4, (int)it->device}, {later[1] + 8, (int)it->domain}, {later[2], attribute(it, 39)},
    };
    size_t shared = 48 << 10, by_choice = (size_t)attribute(it, 97), total = it->bytes;
    memset(properties, 0, size);
    snprintf(properties, 256, "%s", it->name);
    uuid_of(it, (unsigned char *)properties + 256);
    memcpy(properties + 288, &total, sizeof total);
    memcpy(properties + 296, &shared, sizeof shared);
    memcpy(properties + later[3], &by_choice, sizeof by_choice);
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++)
        memcpy(properties + numbers[at].place, &numbers[at].value, sizeof(int));
    return OK;
}

/* CUDA 12, in which the name without a number is that of CUDA 11, and is not called. */
static int cudaGetDeviceProperties_v2(char *properties, int device) {
    return told_of(properties, device, 1032, (const int[]){388, 584, 624, 696});
}

/* CUDA 13 */
static int cudaGetDeviceProperties(char *properties, int device) {
    return told_of(properties, device, 1008, (const int[]){384, 568, 604, 672});
}

static int cudaDriverGetVersion(int *version) { *version = driver_version(); return OK; }
static int cudaRuntimeGetVersion(int *version) { *version = runtime_version; return OK; }
static int cudaGetLastError(void) { int error = last_error; last_error = OK; return error; }
static int cudaPeekAtLastError(void) { return last_error; }
static int cudaDeviceSetLimit(int limit, size_t value) { (void)limit; (void)value; return OK; }
static int cudaDeviceGetLimit(size_t *value, int limit) { (void)limit; *value = 0; return OK; }
static int cudaSetDeviceFlags(unsigned flags) { (void)flags; return OK; }
static int cudaGetDeviceFlags(unsigned *flags) { *flags = 0; return OK; }
static int cudaDeviceReset(void) { return OK; }

static const char *text_of(int error) {
    switch (error) {
        case OK: return "no error";
        case INVALID_VALUE: return "invalid argument";
        case OUT_OF_MEMORY: return "out of memory";
        case NOT_INITIALIZED: return "initialization error";
        case INSUFFICIENT_DRIVER: return "CUDA driver version is insufficient for CUDA runtime version";
        case NO_DEVICE: return "no CUDA-capable device is detected";
        case INVALID_DEVICE: return "invalid device ordinal";
        case PEER_ACCESS_UNSUPPORTED: return "peer access is not supported between these two devices";
        case INVALID_HANDLE: return "invalid resource handle";
        case NOT_SUPPORTED: return "operation not supported";
        default: return "unrecognized error code";
    }
}

static const char *cudaGetErrorString(int error) { return text_of(error); }
static const char *cudaGetErrorName(int error) { (void)error; return "cudaErrorPlanted"; }

/* --- kernels ------------------------------------------------------------------------------------- */

typedef struct { unsigned x, y, z; } Size;
typedef struct { Size grid, block; size_t shared; void *stream; } Launch;
static __thread Launch launches[16];
static __thread unsigned depth;

static unsigned __cudaPushCallConfiguration(Size grid, Size block, size_t shared, void *stream) {
    launches[depth++ % 16] = (Launch){grid, block, shared, stream};
    return 0;
}

static int __cudaPopCallConfiguration(Size *grid, Size *block, size_t *shared, void **stream) {
    Launch launch = launches[--depth % 16];
    *grid = launch.grid;
    *block = launch.block;
    *shared = launch.shared;
    *stream = launch.stream;
    return OK;
}

/* cudaFuncAttributes of CUDA 12: 144 bytes. */
static int cudaFuncGetAttributes(char *told, const void *function) {
    (void)function;
    const Gpu *here = gpu(device_now);
    int code = here ? here->major * 10 + here->minor : 80, threads = 1024, registers = 96;
    memset(told, 0, 144);
    memcpy(told + 24, &threads, sizeof threads);
    memcpy(told + 28, &registers, sizeof registers);
    memcpy(told + 32, &code, sizeof code);
    memcpy(told + 36, &code, sizeof code);
    return OK;
}

static int cudaFuncSetAttribute(const void *function, int name, int value) { (void)function; (void)name; (void)value; return OK; }
static int cudaGetFuncBySymbol(const void **function, const void *symbol) { *function = symbol; return OK; }
static int cudaLaunchKernelExC(const void *launch, const void *function, void **arguments) { (void)launch; (void)function; (void)arguments; return OK; }
static int cudaProfilerStart(void) { return OK; }

static int cudaLaunchKernel(const void *function, Size grid, Size block, void **arguments, size_t shared, void *stream) {
    (void)function; (void)grid; (void)block; (void)arguments; (void)shared; (void)stream;
    return OK;
}

static int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int size, size_t shared, unsigned flags) {
    (void)function; (void)size; (void)shared; (void)flags;
    *blocks = 2;
    return OK;
}

static int entry_point(const char *name, void **function, int *found) {
    int planted = look_up(DRIVER_CALLS, name, function);
    if (found) *found = planted ? 0 : 1;
    return planted || found ? OK : failed(NOT_FOUND);
}

static int cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *found) {
    (void)flags;
    return entry_point(name, function, found);
}

static int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags, int *found) {
    (void)version; (void)flags;
    return entry_point(name, function, found);
}

#define R(name) {#name, name}
const Entry DEVICE_CALLS[] = {
    R(cudaGetDeviceCount), R(cudaSetDevice), R(cudaGetDevice), R(cudaDeviceGetAttribute), R(cudaDeviceGetPCIBusId),
    R(cudaDeviceGetByPCIBusId), R(cudaDeviceCanAccessPeer), R(cudaDeviceEnablePeerAccess),
    R(cudaGetDeviceProperties_v2), R(cudaGetDeviceProperties), R(cudaDriverGetVersion), R(cudaRuntimeGetVersion), R(cudaGetLastError),
    R(cudaPeekAtLastError), R(cudaDeviceSetLimit), R(cudaDeviceGetLimit), R(cudaSetDeviceFlags), R(cudaGetDeviceFlags),
    R(cudaDeviceReset), R(cudaGetErrorString), R(cudaGetErrorName), R(__cudaPushCallConfiguration),
    R(__cudaPopCallConfiguration), R(cudaFuncGetAttributes), R(cudaFuncSetAttribute), R(cudaGetFuncBySymbol),
    R(cudaLaunchKernel), R(cudaLaunchKernelExC), R(cudaProfilerStart), {"cudaProfilerStop", cudaProfilerStart},
    R(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags), {"cudaOccupancyMaxActiveBlocksPerMultiprocessor", cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags},
    R(cudaGetDriverEntryPoint), R(cudaGetDriverEntryPointByVersion), {NULL, NULL},
};

/* --- the driver ---------------------------------------------------------------------------------- */

EXPORT int cuInit(unsigned flags) { (void)flags; return ready(); }
EXPORT int cuDriverGetVersion(int *version) { *version = driver_version(); return OK; }
EXPORT int cuDeviceGetCount(int *count) { *count = visible(); return ready(); }
EXPORT int cuDeviceGetAttribute(int *value, int name, int device) { return cudaDeviceGetAttribute(value, name, device); }
EXPORT int cuDeviceGetUuid(unsigned char *bytes, int device) { uuid_of(gpu(device), bytes); return OK; }
EXPORT int cuGetErrorString(int error, const char **text) { *text = text_of(error); return OK; }
EXPORT int cuGetErrorName(int error, const char **text) { (void)error; *text = "CUDA_ERROR_PLANTED"; return OK; }
EXPORT int cuCtxGetDevice(int *device) { *device = device_now; return OK; }
EXPORT int cuCtxDestroy(void *context) { (void)context; return OK; }
EXPORT int cuModuleUnload(void *module) { (void)module; return OK; }

EXPORT int cuDeviceGet(int *device, int number) {
    *device = number;
    return gpu(number) ? OK : INVALID_DEVICE;
}

/* A context is its device's number and one. */
static int context_of(void **context, int device) { *context = (void *)(intptr_t)(device + 1); return OK; }
EXPORT int cuCtxCreate(void **context, unsigned flags, int device) { (void)flags; return context_of(context, device); }
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) { return context_of(context, device); }
EXPORT int cuDevicePrimaryCtxRelease(int device) { (void)device; return OK; }
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { (void)device; *flags = 0; *active = 1; return OK; }
EXPORT int cuCtxGetCurrent(void **context) { return context_of(context, device_now); }

EXPORT int cuCtxSetCurrent(void *context) {
    if (context) device_now = (int)(intptr_t)context - 1;
    return OK;
}

EXPORT int cuLaunchKernel(void) { return OK; }
EXPORT int cuLaunchKernelEx(void) { return OK; }

/* What the driver has is found by name in this library. */
#define DRIVER(name) int name();
#define NAMES(X) X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGet) X(cuDeviceGetAttribute) X(cuDeviceGetUuid) \
    X(cuGetErrorString) X(cuGetErrorName) X(cuCtxCreate) X(cuCtxDestroy) X(cuCtxGetCurrent) X(cuCtxSetCurrent) X(cuCtxGetDevice) \
    X(cuDevicePrimaryCtxRetain) X(cuDevicePrimaryCtxRelease) X(cuDevicePrimaryCtxGetState) X(cuLaunchKernel) X(cuLaunchKernelEx) X(cuModuleUnload)
#define OTHERS(X) X(cuMemGetAddressRange) X(cuMemGetHandleForAddressRange) X(cuPointerGetAttribute) X(cuPointerSetAttribute) \
    X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemRelease) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) \
    X(cuMemSetAccess) X(cuMemRetainAllocationHandle) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) \
    X(cuMemGetAllocationPropertiesFromHandle) X(cuMulticastGetGranularity) X(cuMulticastCreate) X(cuMulticastAddDevice) \
    X(cuMulticastBindMem) X(cuMulticastBindAddr) X(cuMulticastUnbind) X(cuStreamWaitValue32) X(cuStreamWaitValue64) \
    X(cuStreamWriteValue32) X(cuStreamWriteValue64) X(cuStreamBatchMemOp)
OTHERS(DRIVER)
#define ENTRY(name) {#name, name},
const Entry DRIVER_CALLS[] = {NAMES(ENTRY) OTHERS(ENTRY) {NULL, NULL}};

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    (void)version; (void)flags;
    return look_up(DRIVER_CALLS, name, function) ? OK : NOT_FOUND;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *found) {
    int planted = look_up(DRIVER_CALLS, name, function);
    (void)version; (void)flags;
    if (found) *found = planted ? 0 : 1;
    return planted ? OK : NOT_FOUND;
}

/* For programs that use NCCL without a runtime of their own. */
EXPORT int planted_set_device(int device) { return cudaSetDevice(device); }
EXPORT void planted_runtime(int version) { runtime_version = version; }
EXPORT int planted_device_count(int *count) { return cudaGetDeviceCount(count); }
EXPORT int planted_malloc(void **address, size_t size) {
    void *found;
    look_up(MEMORY_CALLS, "cudaMalloc", &found);
    return ((int (*)(void **, size_t))found)(address, size);
}
