/* A stand-in for libibverbs.so.1: the adapters of the planted /sys, queue pairs that connect, and no data.
 *
 * PLANTED_IB names a fault: memlock (no memory can be registered), modify (no queue pair reaches its peer),
 * completion (every send fails: retries exceeded), event (a port error after a second). PLANTED_DMABUF: the kernel
 * registers dma-bufs.
 *
 * Layouts follow the public verbs.h of rdma-core 44; prototypes are our own.
 */
#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CLASS "/sys/class/infiniband"
enum { MOST = 32, RETRIES_EXCEEDED = 12, PORT_ERROR = 10, TO_PEER = 0x80 };

typedef struct {
    void *unused[2];
    int node_type, transport_type;
    char name[64], dev_name[64], dev_path[256], ibdev_path[256];
} Device;
typedef struct { uint64_t wr_id; int status, opcode; uint32_t vendor_err, byte_len, data, qp_num, more[4]; } Completion;
typedef struct Request { uint64_t wr_id; struct Request *next; } Request;
typedef struct Context Context;
typedef struct {
    Context *context;
    void *unused[2];
    int handle, cqe;
    char rest[96];
    pthread_mutex_t lock;
    Completion done[4096];
    unsigned first, last;
} Queue;
typedef struct { Context *context; void *qp_context, *pd; Queue *send, *receive; void *srq; uint32_t handle, number; int state, type; char rest[96]; } Pair;
struct Context {
    Device *device;
    void *before[11];
    int (*poll)(Queue *, int, Completion *);
    void *between[13];
    int (*send)(Pair *, Request *, Request **);
    int (*receive)(Pair *, void *, void **);
    void *after[5];
    int cmd_fd, async_fd, vectors;
    char rest[1024];
};
_Static_assert(offsetof(Context, poll) == 8 + 88 && offsetof(Context, send) == 8 + 200, "as ibv_context_ops");
_Static_assert(offsetof(Context, cmd_fd) == 264 && offsetof(Pair, number) == 52 && offsetof(Queue, cqe) == 28, "as verbs.h");

static Device *devices[MOST + 1];
static int count;
static uint32_t numbers = 100;

static int fault(const char *name) {
    const char *planted = getenv("PLANTED_IB");
    return planted && strcmp(planted, name) == 0;
}

/* A file below an adapter of the planted /sys, without its newline; "" where there is none. */
static const char *told(const Device *device, const char *file, char *text, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s/%s", CLASS, device->name, file);
    FILE *open = fopen(path, "r");
    text[0] = 0;
    if (open) {
        if (fgets(text, (int)size, open)) text[strcspn(text, "\n")] = 0;
        fclose(open);
    }
    return text;
}

static int by_name(const void *one, const void *two) {
    return strcmp((*(Device *const *)one)->name, (*(Device *const *)two)->name);
}

EXPORT Device **ibv_get_device_list(int *number) {
    DIR *folder = count ? NULL : opendir(CLASS);
    for (const struct dirent *entry; folder && count < MOST && (entry = readdir(folder));) {
        if (entry->d_name[0] == '.') continue;
        Device *device = calloc(1, sizeof *device);
        device->node_type = 1;
        snprintf(device->name, sizeof device->name, "%.63s", entry->d_name);
        snprintf(device->dev_name, sizeof device->dev_name, "uverbs%d", count);
        snprintf(device->ibdev_path, sizeof device->ibdev_path, "%s/%s", CLASS, device->name);
        devices[count++] = device;
    }
    if (folder) closedir(folder);
    qsort(devices, (size_t)count, sizeof *devices, by_name);
    if (number) *number = count;
    return devices;
}

EXPORT void ibv_free_device_list(Device **list) { (void)list; }
EXPORT const char *ibv_get_device_name(const Device *device) { return device->name; }
EXPORT int ibv_fork_init(void) { return 0; }

static int poll_queue(Queue *queue, int most, Completion *found) {
    int number = 0;
    pthread_mutex_lock(&queue->lock);
    while (number < most && queue->first != queue->last) found[number++] = queue->done[queue->first++ % 4096];
    pthread_mutex_unlock(&queue->lock);
    return number;
}

static int send_requests(Pair *pair, Request *request, Request **bad) {
    (void)bad;
    for (; request && fault("completion"); request = request->next) {
        Completion failed = {.wr_id = request->wr_id, .status = RETRIES_EXCEEDED, .vendor_err = 129, .qp_num = pair->number};
        pthread_mutex_lock(&pair->send->lock);
        pair->send->done[pair->send->last++ % 4096] = failed;
        pthread_mutex_unlock(&pair->send->lock);
    }
    return 0;
}

static int receive_requests(Pair *pair, void *request, void **bad) { (void)pair; (void)request; (void)bad; return 0; }

EXPORT Context *ibv_open_device(Device *device) {
    Context *context = calloc(1, sizeof *context);
    context->device = device;
    context->cmd_fd = context->async_fd = -1;
    context->poll = poll_queue;
    context->send = send_requests;
    context->receive = receive_requests;
    return context;
}

EXPORT int ibv_close_device(Context *context) { (void)context; return 0; }

typedef struct { union { void *of; int port; } element; int type; } Event;

EXPORT int ibv_get_async_event(Context *context, Event *event) {
    static int fired;
    (void)context;
    if (!fault("event") || __atomic_exchange_n(&fired, 1, __ATOMIC_SEQ_CST)) for (;;) pause();
    sleep(1);
    *event = (Event){{.port = 1}, PORT_ERROR};
    return 0;
}

EXPORT void ibv_ack_async_event(Event *event) { (void)event; }
EXPORT const char *ibv_event_type_str(int type) { return type == PORT_ERROR ? "port error" : "unknown"; }

/* ibv_device_attr: 232 bytes */
EXPORT int ibv_query_device(Context *context, char *attributes) {
    char text[64];
    unsigned at[4] = {0};
    sscanf(told(context->device, "node_guid", text, sizeof text), "%x:%x:%x:%x", &at[0], &at[1], &at[2], &at[3]);
    uint64_t guid = htobe64((uint64_t)at[0] << 48 | (uint64_t)at[1] << 32 | (uint64_t)at[2] << 16 | at[3]);
    uint64_t largest = ~0ull;
    const struct { int place, value; } numbers_of[] = {{96, 0x2c9}, {100, 4129}, {108, 1 << 17}, {112, 32768}, {120, 30}, {132, 4194303}, {144, 16}};
    memset(attributes, 0, 232);
    memcpy(attributes + 64, &guid, 8);
    memcpy(attributes + 72, &guid, 8);
    memcpy(attributes + 80, &largest, 8);
    for (size_t i = 0; i < sizeof numbers_of / sizeof *numbers_of; i++)
        memcpy(attributes + numbers_of[i].place, &numbers_of[i].value, 4);
    attributes[227] = 1;
    return 0;
}

/* "400 Gb/sec (4X NDR)" as verbs has it: a bit for the width, one for the speed of a lane. */
static void rate_of(const char *text, unsigned char *width, unsigned char *speed) {
    static const char *const speeds[] = {"SDR", "DDR", "QDR", "FDR10", "FDR", "EDR", "HDR", "NDR", "XDR"};
    const char *lanes = strchr(text, '(');
    int number = lanes ? atoi(lanes + 1) : 1;
    *width = number == 12 ? 8 : number == 8 ? 4 : number == 4 ? 2 : number == 2 ? 16 : 1;
    *speed = 1;
    for (int at = 0; at < 9; at++)
        if (strstr(text, speeds[at])) *speed = (unsigned char)(1 << at > 128 ? 128 : 1 << at);
}

/* ibv_port_attr without its last two fields, which old programs do not have room for: 48 bytes */
EXPORT int ibv_query_port(Context *context, uint8_t port, char *attributes) {
    const Device *device = context->device;
    char file[64], text[64];
    const char *const names[] = {"state", "lid", "sm_lid", "phys_state"};
    unsigned value[4];
    for (int at = 0; at < 4; at++) {
        snprintf(file, sizeof file, "ports/%d/%s", port, names[at]);
        value[at] = (unsigned)strtoul(told(device, file, text, sizeof text), NULL, 0);
    }
    int mtu = 5, gids = 32;
    uint16_t lid = (uint16_t)value[1], sm_lid = (uint16_t)value[2], keys = 1;
    memset(attributes, 0, 48);
    memcpy(attributes, &value[0], 4);
    memcpy(attributes + 4, &mtu, 4);
    memcpy(attributes + 8, &mtu, 4);
    memcpy(attributes + 12, &gids, 4);
    memcpy(attributes + 32, &keys, 2);
    memcpy(attributes + 34, &lid, 2);
    memcpy(attributes + 36, &sm_lid, 2);
    snprintf(file, sizeof file, "ports/%d/rate", port);
    rate_of(told(device, file, text, sizeof text), (unsigned char *)attributes + 43, (unsigned char *)attributes + 44);
    attributes[45] = (char)value[3];
    snprintf(file, sizeof file, "ports/%d/link_layer", port);
    attributes[46] = strcmp(told(device, file, text, sizeof text), "Ethernet") == 0 ? 2 : 1;
    return 0;
}

EXPORT int ibv_query_gid(Context *context, uint8_t port, int index, unsigned char *gid) {
    char file[64], text[64];
    snprintf(file, sizeof file, "ports/%d/gids/%d", port, index);
    const char *at = told(context->device, file, text, sizeof text);
    memset(gid, 0, 16);
    for (int byte = 0; byte < 16 && *at; byte += 2, at += strcspn(at, ":"), at += *at == ':') {
        unsigned pair = (unsigned)strtoul(at, NULL, 16);
        gid[byte] = (unsigned char)(pair >> 8);
        gid[byte + 1] = (unsigned char)pair;
    }
    return 0;
}

EXPORT int ibv_query_pkey(Context *context, uint8_t port, int index, uint16_t *key) {
    (void)context; (void)port; (void)index;
    *key = 0xffff;
    return 0;
}

/* --- memory, queues, pairs ------------------------------------------------------------------------ */

typedef struct { Context *context; uint32_t handle; } Domain;
typedef struct { Context *context; Domain *domain; void *address; size_t length; uint32_t handle, local, remote; } Region;

EXPORT Domain *ibv_alloc_pd(Context *context) {
    Domain *domain = calloc(1, sizeof *domain);
    domain->context = context;
    return domain;
}

EXPORT int ibv_dealloc_pd(Domain *domain) { free(domain); return 0; }

EXPORT Region *ibv_reg_mr(Domain *domain, void *address, size_t length, int access) {
    static uint32_t keys;
    (void)access;
    if (!domain || fault("memlock")) {
        errno = domain ? ENOMEM : EINVAL;
        return NULL;
    }
    Region *region = malloc(sizeof *region);
    uint32_t key = __atomic_add_fetch(&keys, 1, __ATOMIC_SEQ_CST);
    *region = (Region){domain->context, domain, address, length, key, key, key};
    return region;
}

EXPORT Region *ibv_reg_mr_iova2(Domain *domain, void *address, size_t length, uint64_t iova, unsigned access) {
    (void)iova;
    return ibv_reg_mr(domain, address, length, (int)access);
}

/* NCCL asks with a wrong descriptor whether the kernel knows dma-buf at all. */
EXPORT Region *ibv_reg_dmabuf_mr(Domain *domain, uint64_t offset, size_t length, uint64_t iova, int file, int access) {
    (void)offset;
    if (getenv("PLANTED_DMABUF") && file >= 0) return ibv_reg_mr(domain, (void *)(uintptr_t)iova, length, access);
    errno = getenv("PLANTED_DMABUF") ? EBADF : EOPNOTSUPP;
    return NULL;
}

EXPORT int ibv_dereg_mr(Region *region) { free(region); return 0; }

EXPORT Queue *ibv_create_cq(Context *context, int entries, void *mine, void *channel, int vector) {
    (void)mine; (void)channel; (void)vector;
    Queue *queue = calloc(1, sizeof *queue);
    queue->context = context;
    queue->cqe = entries;
    pthread_mutex_init(&queue->lock, NULL);
    return queue;
}

EXPORT int ibv_destroy_cq(Queue *queue) { free(queue); return 0; }

typedef struct { void *qp_context; Queue *send, *receive; void *srq; uint32_t most[5]; int type; } PairAttributes;
_Static_assert(offsetof(PairAttributes, type) == 52, "as ibv_qp_init_attr");

EXPORT Pair *ibv_create_qp(Domain *domain, const PairAttributes *wanted) {
    Pair *pair = calloc(1, sizeof *pair);
    pair->context = domain->context;
    pair->qp_context = wanted->qp_context;
    pair->pd = domain;
    pair->send = wanted->send;
    pair->receive = wanted->receive;
    pair->type = wanted->type;
    pair->number = __atomic_add_fetch(&numbers, 1, __ATOMIC_SEQ_CST);
    return pair;
}

EXPORT int ibv_modify_qp(Pair *pair, const void *attributes, int mask) {
    (void)pair; (void)attributes;
    errno = fault("modify") && (mask & TO_PEER) ? EINVAL : 0;
    return errno;
}

EXPORT int ibv_query_qp(Pair *pair, int *attributes, int mask, void *first) {
    (void)pair; (void)mask; (void)first;
    memset(attributes, 0, 144);
    attributes[0] = 3; /* ready to send */
    return 0;
}

EXPORT int ibv_destroy_qp(Pair *pair) { free(pair); return 0; }
EXPORT void *ibv_create_ah(Domain *domain, void *attributes) { (void)domain; (void)attributes; return calloc(1, 24); }
EXPORT int ibv_destroy_ah(void *handle) { free(handle); return 0; }
EXPORT int ibv_query_ece(Pair *pair, void *options) { (void)pair; memset(options, 0, 12); return 0; }
EXPORT int ibv_set_ece(Pair *pair, void *options) { (void)pair; (void)options; return 0; }
