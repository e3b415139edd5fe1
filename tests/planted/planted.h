/* What the files of the planted CUDA share. Prototypes are our own, after NVIDIA's public documentation of the
 * CUDA runtime and driver; layouts are those of CUDA 12 and, where it differs, 13. */
#ifndef PLANTED_H
#define PLANTED_H

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* The runtime's and the driver's values agree where both have one. */
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    MAP_FAILED_HERE = 205,
    PEER_ACCESS_UNSUPPORTED = 217,
    INSUFFICIENT_DRIVER = 35,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    NOT_SUPPORTED = 801,
};

#define MOST_GPUS 64
#define EXPORT __attribute__((visibility("default")))

typedef struct {
    void *nvml;
    int number, slice; /* of the machine's GPU, and whether this is a part of it (MIG) */
    unsigned domain, bus, device;
    int major, minor;
    unsigned long long bytes;
    char name[96], uuid[96];
} Gpu;

typedef struct {
    const char *name;
    void *function;
} Entry;

/* machine.c: what the stand-in for libnvidia-ml says is there, as CUDA shows it to this process. */
int ready(void);               /* OK, NO_DEVICE, INSUFFICIENT_DRIVER, or NOT_INITIALIZED in a child forked after the first call */
int visible(void);             /* GPUs that CUDA_VISIBLE_DEVICES leaves */
const Gpu *gpu(int device);    /* NULL where there is no such device */
int reaches(int one, int two); /* whether one can read the memory of two */
int driver_version(void);
extern int runtime_version;     /* of the CUDA that torch brings */

/* memory.c */
enum { DEVICE = 1, HOST = 2 };
typedef struct Block Block;
struct Block {
    char *start;
    size_t size;
    int file, device, kind;
    Block *next;
};
int block_at(const void *address, Block *found); /* a copy of the block that holds the address, or 0 */

/* streams.c */
EXPORT void planted_enqueue(void *stream, void (*work)(void *), void *argument);
void drain(void *stream);

extern __thread int device_now;
int failed(int error); /* remembers it for cudaGetLastError */
int look_up(const Entry *table, const char *name, void **function);

extern const Entry DEVICE_CALLS[], MEMORY_CALLS[], STREAM_CALLS[], DRIVER_CALLS[];

#endif
