/* Memory of planted GPUs: host memory in files without a name, so that handles of it cross processes. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "planted.h"

#define PAGE ((size_t)2 << 20)

static Block *blocks;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int block_at(const void *address, Block *found) {
    pthread_mutex_lock(&lock);
    const Block *block = blocks;
    while (block && !((const char *)address >= block->start && (const char *)address < block->start + block->size))
        block = block->next;
    if (block && found) *found = *block;
    pthread_mutex_unlock(&lock);
    return block != NULL;
}

static void keep(char *start, size_t size, int file, int device, int kind) {
    Block *block = malloc(sizeof *block);
    *block = (Block){start, size, file, device, kind, NULL};
    pthread_mutex_lock(&lock);
    block->next = blocks;
    blocks = block;
    pthread_mutex_unlock(&lock);
}

static void drop(const char *start) {
    pthread_mutex_lock(&lock);
    for (Block **at = &blocks; *at; at = &(*at)->next)
        if ((*at)->start == start) {
            Block *gone = *at;
            *at = gone->next;
            munmap(gone->start, gone->size);
            if (gone->file >= 0) close(gone->file);
            free(gone);
            break;
        }
    pthread_mutex_unlock(&lock);
}

static int unnamed(size_t size) {
    int file = memfd_create("planted-gpu", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)size) != 0) {
        close(file);
        return -1;
    }
    return file;
}

static int take(void **address, size_t size, int kind) {
    int error = ready();
    if (error) return failed(error);
    size_t whole = size ? (size + PAGE - 1) / PAGE * PAGE : PAGE;
    int file = unnamed(whole);
    char *start = file < 0 ? MAP_FAILED : mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (start == MAP_FAILED) {
        if (file >= 0) close(file);
        return failed(OUT_OF_MEMORY);
    }
    keep(start, whole, file, device_now, kind);
    *address = start;
    return OK;
}

static int cudaMalloc(void **address, size_t size) { return take(address, size, DEVICE); }
static int cudaMallocAsync(void **address, size_t size, void *stream) { (void)stream; return take(address, size, DEVICE); }
static int cudaMallocHost(void **address, size_t size) { return take(address, size, HOST); }
static int cudaHostAlloc(void **address, size_t size, unsigned flags) { (void)flags; return take(address, size, HOST); }
static int cudaFree(void *address) { if (address) drop(address); return OK; }
static int cudaFreeAsync(void *address, void *stream) { drain(stream); return cudaFree(address); }
static int cudaHostRegister(void *address, size_t size, unsigned flags) { (void)address; (void)size; (void)flags; return OK; }
static int cudaHostUnregister(void *address) { (void)address; return OK; }

static int cudaMallocFromPoolAsync(void **address, size_t size, void *pool, void *stream) {
    (void)pool;
    return cudaMallocAsync(address, size, stream);
}

static int cudaHostGetDevicePointer(void **device, void *host, unsigned flags) {
    (void)flags;
    *device = host;
    return OK;
}

static int cudaMemGetInfo(size_t *left, size_t *total) {
    const Gpu *here = gpu(device_now);
    if (!here) return failed(NO_DEVICE);
    *left = *total = here->bytes;
    return OK;
}

typedef struct { int type, device; void *on_device, *on_host; } PointerAttributes;

static int cudaPointerGetAttributes(PointerAttributes *told, const void *address) {
    Block block;
    *told = (PointerAttributes){0};
    if (!block_at(address, &block)) return OK;
    *told = (PointerAttributes){block.kind == HOST ? 1 : 2, block.device, (void *)address, NULL};
    if (block.kind == HOST) told->on_host = (void *)address;
    return OK;
}

/* A handle of 64 bytes: another process opens the file by the process that has it. */
typedef struct { pid_t pid; int file; size_t size; } Handle;

static int cudaIpcGetMemHandle(void *handle, void *address) {
    Block block;
    if (!block_at(address, &block)) return failed(INVALID_VALUE);
    Handle mine = {getpid(), block.file, block.size};
    memset(handle, 0, 64);
    memcpy(handle, &mine, sizeof mine);
    return OK;
}

typedef struct { char bytes[64]; } PackedHandle;

static int cudaIpcOpenMemHandle(void **address, PackedHandle packed, unsigned flags) {
    (void)flags;
    Handle theirs;
    char path[64];
    memcpy(&theirs, &packed, sizeof theirs);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", theirs.pid, theirs.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return failed(INVALID_HANDLE);
    char *start = mmap(NULL, theirs.size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (start == MAP_FAILED) {
        close(file);
        return failed(MAP_FAILED_HERE);
    }
    keep(start, theirs.size, file, device_now, DEVICE);
    *address = start;
    return OK;
}

static int cudaIpcCloseMemHandle(void *address) { return cudaFree(address); }
static int cudaMemPoolCreate(void **pool, const void *wanted) { (void)wanted; *pool = calloc(1, 64); return OK; }
static int cudaMemPoolDestroy(void *pool) { free(pool); return OK; }
static int cudaMemPoolSetAttribute(void *pool, int name, void *value) { (void)pool; (void)name; (void)value; return OK; }
static int cudaMemPoolGetAttribute(void *pool, int name, uint64_t *value) { (void)pool; (void)name; *value = 0; return OK; }

static int cudaDeviceGetDefaultMemPool(void **pool, int device) {
    static char the_pool[64];
    (void)device;
    *pool = the_pool;
    return OK;
}

#define R(name) {#name, name}
const Entry MEMORY_CALLS[] = {
    R(cudaMalloc), R(cudaMallocAsync), R(cudaMallocFromPoolAsync), R(cudaMallocHost), R(cudaHostAlloc), R(cudaFree),
    R(cudaFreeAsync), {"cudaFreeHost", cudaFree}, R(cudaHostRegister), R(cudaHostUnregister),
    R(cudaHostGetDevicePointer), R(cudaMemGetInfo), R(cudaPointerGetAttributes), R(cudaIpcGetMemHandle),
    R(cudaIpcOpenMemHandle), R(cudaIpcCloseMemHandle), R(cudaMemPoolCreate), R(cudaMemPoolDestroy),
    R(cudaMemPoolSetAttribute), R(cudaMemPoolGetAttribute), R(cudaDeviceGetDefaultMemPool), {NULL, NULL},
};

/* --- the driver's virtual memory --------------------------------------------------------------- */

typedef struct { int type, number; } Location;
typedef struct { int type, handles; Location at; void *meta; unsigned char flags[8]; } AllocationProp;
typedef struct { int file, uses, device, kind; size_t size; } Physical;
typedef struct Mapping Mapping;
struct Mapping { char *at; Physical *physical; Mapping *next; };
static Mapping *mappings;
enum { LOCATION_DEVICE = 1, LOCATION_HOST_NUMA = 3, PINNED = 1, FILE_DESCRIPTOR = 1 };

EXPORT int cuMemGetAllocationGranularity(size_t *size, const void *wanted, int option) {
    (void)wanted; (void)option;
    *size = PAGE;
    return OK;
}

static int physical_new(Physical **made, int file, size_t size, int device, int kind) {
    if (file < 0) return OUT_OF_MEMORY;
    *made = malloc(sizeof **made);
    **made = (Physical){file, 1, device, kind, size};
    return OK;
}

EXPORT int cuMemCreate(Physical **made, size_t size, const AllocationProp *wanted, unsigned long long flags) {
    (void)flags;
    int on_device = wanted->at.type == LOCATION_DEVICE;
    return physical_new(made, unnamed(size), size, on_device ? wanted->at.number : 0, on_device ? DEVICE : HOST);
}

EXPORT int cuMemRelease(Physical *physical) {
    if (__atomic_sub_fetch(&physical->uses, 1, __ATOMIC_SEQ_CST) == 0) {
        close(physical->file);
        free(physical);
    }
    return OK;
}

EXPORT int cuMemAddressReserve(uintptr_t *address, size_t size, size_t alignment, uintptr_t wanted, unsigned long long flags) {
    (void)wanted; (void)flags;
    size_t step = alignment < PAGE ? PAGE : alignment;
    char *start = mmap(NULL, size + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return OUT_OF_MEMORY;
    *address = ((uintptr_t)start + step - 1) / step * step;
    return OK;
}

EXPORT int cuMemAddressFree(uintptr_t address, size_t size) {
    munmap((void *)address, size);
    return OK;
}

EXPORT int cuMemMap(uintptr_t address, size_t size, size_t offset, Physical *physical, unsigned long long flags) {
    (void)flags;
    char *at = (char *)address;
    int both = PROT_READ | PROT_WRITE;
    if (mmap(at, size, both, MAP_SHARED | MAP_FIXED, physical->file, (off_t)offset) == MAP_FAILED) return INVALID_VALUE;
    __atomic_add_fetch(&physical->uses, 1, __ATOMIC_SEQ_CST);
    keep(at, size, -1, physical->device, physical->kind);
    Mapping *mapping = malloc(sizeof *mapping);
    pthread_mutex_lock(&lock);
    *mapping = (Mapping){at, physical, mappings};
    mappings = mapping;
    pthread_mutex_unlock(&lock);
    return OK;
}

EXPORT int cuMemUnmap(uintptr_t address, size_t size) {
    char *start = (char *)address;
    Mapping *gone = NULL;
    drop(start);
    mmap(start, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    pthread_mutex_lock(&lock);
    for (Mapping **at = &mappings; *at && !gone; at = gone ? at : &(*at)->next)
        if ((*at)->at == start) {
            gone = *at;
            *at = gone->next;
        }
    pthread_mutex_unlock(&lock);
    if (gone) cuMemRelease(gone->physical);
    free(gone);
    return OK;
}

EXPORT int cuMemSetAccess(uintptr_t address, size_t size, const void *access, size_t count) {
    (void)address; (void)size; (void)access; (void)count;
    return OK;
}

EXPORT int cuMemRetainAllocationHandle(Physical **physical, void *address) {
    pthread_mutex_lock(&lock);
    Mapping *mapping = mappings;
    while (mapping && !((char *)address >= mapping->at && (char *)address < mapping->at + mapping->physical->size))
        mapping = mapping->next;
    if (mapping) {
        __atomic_add_fetch(&mapping->physical->uses, 1, __ATOMIC_SEQ_CST);
        *physical = mapping->physical;
    }
    pthread_mutex_unlock(&lock);
    return mapping ? OK : INVALID_VALUE;
}

EXPORT int cuMemExportToShareableHandle(int *file, Physical *physical, int kind, unsigned long long flags) {
    (void)flags;
    if (kind != FILE_DESCRIPTOR) return NOT_SUPPORTED;
    *file = fcntl(physical->file, F_DUPFD_CLOEXEC, 0);
    return OK;
}

EXPORT int cuMemImportFromShareableHandle(Physical **made, void *file, int kind) {
    (void)kind;
    struct stat status;
    int mine = fcntl((int)(intptr_t)file, F_DUPFD_CLOEXEC, 0);
    if (mine < 0 || fstat(mine, &status) != 0) return INVALID_VALUE;
    return physical_new(made, mine, (size_t)status.st_size, device_now, DEVICE);
}

EXPORT int cuMemGetAllocationPropertiesFromHandle(AllocationProp *told, const Physical *physical) {
    int on_device = physical->kind == DEVICE;
    memset(told, 0, sizeof *told);
    told->type = PINNED;
    told->handles = FILE_DESCRIPTOR;
    told->at = (Location){on_device ? LOCATION_DEVICE : LOCATION_HOST_NUMA, on_device ? physical->device : 0};
    return OK;
}

EXPORT int cuMemGetAddressRange(uintptr_t *start, size_t *size, uintptr_t address) {
    Block block;
    if (!block_at((void *)address, &block)) return INVALID_VALUE;
    if (start) *start = (uintptr_t)block.start;
    if (size) *size = block.size;
    return OK;
}

EXPORT int cuMemGetHandleForAddressRange(int *handle, uintptr_t address, size_t size, int kind, unsigned long long flags) {
    Block block;
    (void)size; (void)kind; (void)flags;
    if (!getenv("PLANTED_DMABUF")) return NOT_SUPPORTED;
    if (!block_at((void *)address, &block)) return INVALID_VALUE;
    *handle = dup(block.file);
    return OK;
}

EXPORT int cuPointerGetAttribute(void *value, int name, uintptr_t address) {
    Block block;
    if (!block_at((void *)address, &block)) return INVALID_VALUE;
    enum { MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, CAN_BE_SHARED_BY_CUDA_IPC = 10 };
    switch (name) {
        case MEMORY_TYPE: *(int *)value = block.kind == HOST ? 1 : 2; break;
        case DEVICE_ORDINAL: *(int *)value = block.device; break;
        case CAN_BE_SHARED_BY_CUDA_IPC: *(int *)value = block.kind == DEVICE && block.file >= 0; break; /* not mapped */
        default: *(int *)value = 0;
    }
    return OK;
}

EXPORT int cuPointerSetAttribute(const void *value, int name, uintptr_t address) {
    (void)value; (void)name; (void)address;
    return OK;
}

/* Multicast objects (NVLS) can be made, shared and bound; nothing is multicast. */
typedef struct { unsigned devices; size_t size; unsigned long long handles, flags; } MulticastProp;

EXPORT int cuMulticastGetGranularity(size_t *size, const void *wanted, int option) {
    return cuMemGetAllocationGranularity(size, wanted, option);
}

EXPORT int cuMulticastCreate(Physical **made, const MulticastProp *wanted) {
    return physical_new(made, unnamed(wanted->size), wanted->size, device_now, DEVICE);
}

EXPORT int cuMulticastAddDevice(void *object, int device) { (void)object; (void)device; return OK; }

EXPORT int cuMulticastBindMem(void *object, size_t at, void *memory, size_t from, size_t size, unsigned long long flags) {
    (void)object; (void)at; (void)memory; (void)from; (void)size; (void)flags;
    return OK;
}

EXPORT int cuMulticastBindAddr(void *object, size_t at, uintptr_t memory, size_t size, unsigned long long flags) {
    (void)object; (void)at; (void)memory; (void)size; (void)flags;
    return OK;
}

EXPORT int cuMulticastUnbind(void *object, int device, size_t at, size_t size) {
    (void)object; (void)device; (void)at; (void)size;
    return OK;
}
