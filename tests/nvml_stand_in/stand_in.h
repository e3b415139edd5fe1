/* What the files of the stand-in for libnvidia-ml share: NVML's return values, a GPU, and which fault is planted. */
#ifndef STAND_IN_H
#define STAND_IN_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    CORRUPTED_INFOROM = 14,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

#define SICK 3
#define GIB (1024ull * 1024 * 1024)
#define MIB (1024ull * 1024)
#define TOTAL (80 * GIB)
#define RESERVED (600 * MIB)
#define NOT_MIG 0xFFFFFFFFu

typedef struct { int index; int slice; } Device;

typedef struct {
    unsigned fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    int valueType, nvmlReturn;
    union { double dVal; unsigned uiVal; unsigned long long ullVal; } value;
} FieldValue;

extern Device gpus[8];

#ifndef FAULT
#define FAULT "healthy"
#endif

/* Whether a list with commas has this name. */
static inline int listed(const char *list, const char *name) {
    size_t length = strlen(name);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == 0)) return 1;
    }
    return 0;
}

static inline int is(const char *name) {
    const char *fault = getenv("NVML_STAND_IN");
    return listed(fault ? fault : FAULT, name);
}

static inline int sick(const Device *gpu, const char *name) { return gpu->index == SICK && is(name); }

static inline const char *driver_version(void) { return is("driver_580") ? "580.95.05" : "550.90.07"; }

/* Whether a GPU is cut into slices (MIG). */
static inline int sliced(const Device *gpu) { return sick(gpu, "mig") || is("mig_all"); }

/* A file that knows further fields of nvmlDeviceGetFieldValues defines this: 1 where it has filled in the value. */
__attribute__((weak)) int topology_field(const Device *gpu, FieldValue *value);

#endif
