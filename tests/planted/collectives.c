/* The data of collectives, which NCCL's own kernels would move: torch finds these names before those of libnccl.
 *
 * A call goes to the real NCCL first, which checks it, connects what it needs and launches a kernel that does nothing.
 * Then a piece of work on the stream hands the data over through PLANTED_EXCHANGE, one folder for all hosts. By our
 * rule, and not NCCL's, it waits for ever where a rank whose data it needs never comes or asks for something else.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "planted.h"

enum { MOST_RANKS = 64, IN_PROGRESS = 7, INTERNAL = 3 };
enum { REDUCE_ALL = 1, BROADCAST, GATHER, SCATTER, REDUCE, SEND };
enum { SUM, PRODUCT, MAXIMUM, MINIMUM, AVERAGE };

/* What two ranks must have asked alike. */
typedef struct { uint32_t kind, type, operation, root; uint64_t count; } Asked;

static const size_t SIZES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
enum { TYPES = sizeof SIZES / sizeof *SIZES };

/* A file of one rank's data for all others, or for one: how often it was filled, how often read, and by whom to be. */
typedef struct { uint32_t filled, read; Asked asked; } Box;
enum { HEAD = 4096 };

typedef struct Comm Comm;
struct Comm {
    void *real;
    uint64_t key;
    int size, rank, aborted;
    uint32_t calls, splits, sent[MOST_RANKS], received[MOST_RANKS];
    Comm *next;
};
typedef struct Job Job;
struct Job { Comm *comm; Asked asked; const void *in; void *out; uint32_t number; int from, to; void *stream; Job *next; };

static Comm *comms;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int groups;
static __thread Job *grouped;

static void *real(const char *name) {
    static void *nccl;
    if (!nccl) nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    void *found = nccl ? dlsym(nccl, name) : NULL;
    if (!found) {
        fprintf(stderr, "planted: no %s in libnccl\n", name);
        abort();
    }
    return found;
}
#define REAL(name) ((int (*)())real(#name))

/* --- boxes --------------------------------------------------------------------------------------- */

static void wake(uint32_t *at) { syscall(SYS_futex, at, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

/* 0 where the communicator was aborted before. */
static int await_value(const Comm *comm, uint32_t *at, uint32_t least) {
    const struct timespec moment = {0, 50000000};
    for (uint32_t now; (int32_t)((now = __atomic_load_n(at, __ATOMIC_ACQUIRE)) - least) < 0;) {
        if (comm->aborted) return 0;
        syscall(SYS_futex, at, FUTEX_WAIT, now, &moment, NULL, 0);
    }
    return 1;
}

static int for_ever(const Comm *comm) {
    uint32_t never = 0;
    return await_value(comm, &never, 1);
}

static Box *box(const Comm *comm, int from, int to, size_t bytes) {
    char path[512];
    const char *folder = getenv("PLANTED_EXCHANGE");
    snprintf(path, sizeof path, "%s/%016lx-%d-%d", folder ? folder : "", comm->key, from, to);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0 ||
        (status.st_size < (off_t)(HEAD + bytes) && ftruncate(file, (off_t)(HEAD + bytes)) != 0)) {
        perror("planted: PLANTED_EXCHANGE");
        abort();
    }
    Box *made = mmap(NULL, HEAD + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return made;
}

static void combine(void *out, const void *in, size_t count, unsigned type, unsigned operation);

/* What a rank gives that PLANTED_WRONG names: its contribution twice, or else other bits. */
static void spoil(const Job *job, char *given, size_t bytes) {
    const char *rank = getenv("PLANTED_WRONG");
    const Asked *asked = &job->asked;
    if (!rank || atoi(rank) != job->comm->rank) return;
    if (asked->kind == REDUCE_ALL || asked->kind == REDUCE || asked->kind == SCATTER)
        combine(given, job->in, bytes / SIZES[asked->type], asked->type, SUM);
    else
        for (size_t at = 0; at < bytes; at++) given[at] ^= 1;
}

static int fill(const Job *job, int to, uint32_t readers, size_t bytes) {
    Box *mine = box(job->comm, job->comm->rank, to, bytes);
    int free_again = await_value(job->comm, &mine->read, (job->number - 1) * readers);
    if (free_again) {
        memcpy((char *)mine + HEAD, job->in, bytes);
        if (bytes) spoil(job, (char *)mine + HEAD, bytes);
        mine->asked = job->asked;
        __atomic_store_n(&mine->filled, job->number, __ATOMIC_RELEASE);
        wake(&mine->filled);
    }
    munmap(mine, HEAD + bytes);
    return free_again;
}

/* Another's data, once it is there and was asked for alike; NULL where the communicator is aborted meanwhile. */
static char *filled(const Job *job, int from, int to, size_t bytes) {
    Box *its = box(job->comm, from, to, bytes);
    if (await_value(job->comm, &its->filled, job->number) &&
        (memcmp(&its->asked, &job->asked, sizeof its->asked) == 0 || for_ever(job->comm)))
        return (char *)its + HEAD;
    munmap(its, HEAD + bytes);
    return NULL;
}

static void give_back(char *data, size_t bytes) { munmap(data - HEAD, HEAD + bytes); }

static void has_read(const Job *job, int from, int to) {
    Box *its = box(job->comm, from, to, 0);
    __atomic_add_fetch(&its->read, 1, __ATOMIC_ACQ_REL);
    wake(&its->read);
    munmap(its, HEAD);
}

/* --- arithmetic ---------------------------------------------------------------------------------- */

typedef struct { uint16_t bits; } Bfloat;
static float of_bfloat(Bfloat value) {
    uint32_t bits = (uint32_t)value.bits << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}
static Bfloat to_bfloat(float wide) {
    uint32_t bits;
    memcpy(&bits, &wide, sizeof bits);
    if (isnan(wide)) return (Bfloat){0x7fc0};
    return (Bfloat){(uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
#define SAME(value) (value)

#define EACH(T, W, load, store, result) \
    { T *to = out; const T *from = in; for (size_t at = 0; at < count; at++) { W a = load(to[at]), b = load(from[at]); (void)b; to[at] = store(result); } }
#define COMBINE(T, W, load, store) \
    switch (operation) { \
        case PRODUCT: EACH(T, W, load, store, a * b) break; \
        case MAXIMUM: EACH(T, W, load, store, a > b || a != a ? a : b) break; \
        case MINIMUM: EACH(T, W, load, store, a < b || a != a ? a : b) break; \
        default: EACH(T, W, load, store, a + b) \
    }
#define TYPED(WITH) \
    switch (type) { \
        case 0: WITH(int8_t, int8_t, SAME, SAME) break; \
        case 1: WITH(uint8_t, uint8_t, SAME, SAME) break; \
        case 2: WITH(int32_t, int32_t, SAME, SAME) break; \
        case 3: WITH(uint32_t, uint32_t, SAME, SAME) break; \
        case 4: WITH(int64_t, int64_t, SAME, SAME) break; \
        case 5: WITH(uint64_t, uint64_t, SAME, SAME) break; \
        case 6: WITH(_Float16, float, SAME, SAME) break; \
        case 7: WITH(float, float, SAME, SAME) break; \
        case 8: WITH(double, double, SAME, SAME) break; \
        default: WITH(Bfloat, float, of_bfloat, to_bfloat) \
    }

static void combine(void *out, const void *in, size_t count, unsigned type, unsigned operation) { TYPED(COMBINE) }

static void divide(void *out, size_t count, unsigned type, int by) {
    const void *in = out;
#define DIVIDE(T, W, load, store) EACH(T, W, load, store, a / by)
    TYPED(DIVIDE)
}

/* --- what is done on the stream ------------------------------------------------------------------ */

static void send_off(void *argument) {
    Job *job = argument;
    fill(job, job->to, 1, job->asked.count * SIZES[job->asked.type]);
    free(job);
}

static void receive(void *argument) {
    Job *job = argument;
    size_t bytes = job->asked.count * SIZES[job->asked.type];
    char *data = filled(job, job->from, job->to, bytes);
    if (data) {
        memcpy(job->out, data, bytes);
        give_back(data, bytes);
        has_read(job, job->from, job->to);
    }
    free(job);
}

enum { ALL = -1 };

static int take_in(const Job *job) {
    const Asked *asked = &job->asked;
    const Comm *comm = job->comm;
    size_t each = asked->count * SIZES[asked->type], whole = asked->kind == SCATTER ? each * (size_t)comm->size : each;
    if (asked->kind == REDUCE && comm->rank != (int)asked->root) return 1;
    for (int rank = 0; rank < comm->size; rank++) {
        if (asked->kind == BROADCAST && rank != (int)asked->root) continue;
        char *data = filled(job, rank, ALL, whole);
        if (!data) return 0;
        const char *part = asked->kind == SCATTER ? data + (size_t)comm->rank * each : data;
        if (asked->kind == GATHER) memcpy((char *)job->out + (size_t)rank * each, part, each);
        else if (asked->kind == BROADCAST || rank == 0) memcpy(job->out, part, each);
        else combine(job->out, part, asked->count, asked->type, asked->operation);
        give_back(data, whole);
    }
    if (asked->operation == AVERAGE) divide(job->out, asked->count, asked->type, comm->size);
    return 1;
}

static void together(void *argument) {
    Job *job = argument;
    const Asked *asked = &job->asked;
    size_t each = asked->count * SIZES[asked->type];
    uint32_t ranks = (uint32_t)job->comm->size;
    int gives = asked->kind != BROADCAST || job->comm->rank == (int)asked->root;
    if (fill(job, ALL, ranks, gives ? asked->kind == SCATTER ? each * ranks : each : 0) && take_in(job))
        for (uint32_t rank = 0; rank < ranks; rank++) has_read(job, (int)rank, ALL);
    free(job);
}

static void start(Job *job) {
    planted_enqueue(job->stream, job->asked.kind != SEND ? together : job->in ? send_off : receive, job);
}

/* In a group all begin at once: what sends does so before anything waits. */
static int end_of_group(int result) {
    Job *all = grouped;
    grouped = NULL;
    for (int sends = 1; sends >= 0; sends--)
        for (Job **at = &all; *at;) {
            Job *job = *at;
            if ((job->asked.kind == SEND && job->in) != sends) at = &job->next;
            else {
                *at = job->next;
                if (result == OK || result == IN_PROGRESS) start(job);
                else free(job);
            }
        }
    return result;
}

static Comm *of(void *real) {
    pthread_mutex_lock(&lock);
    Comm *comm = comms;
    while (comm && comm->real != real) comm = comm->next;
    pthread_mutex_unlock(&lock);
    return comm;
}

static int then(int result, void *real, Asked asked, const void *in, void *out, int peer, void *stream) {
    Comm *comm = of(real);
    if (result != OK && result != IN_PROGRESS) return result;
    if (!comm || comm->size > MOST_RANKS || asked.type >= TYPES || asked.operation > AVERAGE) {
        fprintf(stderr, "planted: a collective of this communicator, type %u or operation %u is not planted\n", asked.type, asked.operation);
        return INTERNAL;
    }
    Job *job = calloc(1, sizeof *job);
    *job = (Job){comm, asked, in, out, 0, comm->rank, peer, stream, NULL};
    if (asked.kind != SEND) job->number = ++comm->calls;
    else if (in) job->number = ++comm->sent[peer];
    else {
        job->number = ++comm->received[peer];
        job->from = peer;
        job->to = comm->rank;
    }
    if (!groups) start(job);
    else {
        Job **last = &grouped;
        while (*last) last = &(*last)->next;
        *last = job;
    }
    return result;
}

/* --- NCCL's names -------------------------------------------------------------------------------- */

typedef struct { unsigned char bytes[128]; } Id;

/* FNV-1a */
static uint64_t key_of(const void *bytes, size_t size) {
    uint64_t key = 0xcbf29ce484222325;
    for (size_t at = 0; at < size; at++) key = (key ^ ((const unsigned char *)bytes)[at]) * 0x100000001b3;
    return key;
}

static int know(int result, void *const *made, uint64_t key, int size, int rank) {
    if ((result == OK || result == IN_PROGRESS) && made && *made) {
        Comm *comm = calloc(1, sizeof *comm);
        *comm = (Comm){.real = *made, .key = key, .size = size, .rank = rank};
        pthread_mutex_lock(&lock);
        comm->next = comms;
        comms = comm;
        pthread_mutex_unlock(&lock);
    }
    return result;
}

EXPORT int ncclCommInitRank(void **made, int size, Id id, int rank) {
    return know(((int (*)(void **, int, Id, int))real("ncclCommInitRank"))(made, size, id, rank), made, key_of(&id, sizeof id), size, rank);
}

EXPORT int ncclCommInitRankConfig(void **made, int size, Id id, int rank, void *config) {
    int result = ((int (*)(void **, int, Id, int, void *))real("ncclCommInitRankConfig"))(made, size, id, rank, config);
    return know(result, made, key_of(&id, sizeof id), size, rank);
}

EXPORT int ncclCommInitRankScalable(void **made, int size, int rank, int ids, Id *all, void *config) {
    int result = REAL(ncclCommInitRankScalable)(made, size, rank, ids, all, config);
    return know(result, made, key_of(all, sizeof *all), size, rank);
}

EXPORT int ncclCommSplit(void *real_parent, int color, int order, void **made, void *config) {
    Comm *parent = of(real_parent);
    int result = REAL(ncclCommSplit)(real_parent, color, order, made, config), size = 0, rank = 0;
    if (!parent) return result;
    const uint64_t name[] = {parent->key, ++parent->splits, (uint64_t)color};
    if (result == OK && *made) {
        REAL(ncclCommCount)(*made, &size);
        REAL(ncclCommUserRank)(*made, &rank);
    }
    return know(result, made, key_of(name, sizeof name), size, rank);
}

/* What is still to be done on streams looks at the communicator: it is kept, but no longer found, for NCCL gives the
 * address to another. */
static void forget(void *real, int aborted) {
    Comm *comm = of(real);
    if (!comm) return;
    if (aborted) comm->aborted = 1;
    pthread_mutex_lock(&lock);
    comm->real = NULL;
    pthread_mutex_unlock(&lock);
}

EXPORT int ncclCommAbort(void *comm) { forget(comm, 1); return REAL(ncclCommAbort)(comm); }
EXPORT int ncclCommDestroy(void *comm) { forget(comm, 0); return REAL(ncclCommDestroy)(comm); }
EXPORT int ncclGroupStart(void) { groups++; return REAL(ncclGroupStart)(); }

EXPORT int ncclGroupEnd(void) {
    int result = REAL(ncclGroupEnd)();
    return groups && --groups ? result : end_of_group(result);
}

#define COUNT size_t count, int type
#define WHERE void *comm, void *stream
#define ASKED(kind, operation, root) (Asked){kind, (unsigned)type, (unsigned)(operation), (unsigned)(root), count}

EXPORT int ncclAllReduce(const void *in, void *out, COUNT, int operation, WHERE) {
    return then(REAL(ncclAllReduce)(in, out, count, type, operation, comm, stream), comm, ASKED(REDUCE_ALL, operation, 0), in, out, 0, stream);
}

EXPORT int ncclBroadcast(const void *in, void *out, COUNT, int root, WHERE) {
    return then(REAL(ncclBroadcast)(in, out, count, type, root, comm, stream), comm, ASKED(BROADCAST, 0, root), in, out, 0, stream);
}

/* The real one calls ncclBroadcast by its name, which is ours. */
EXPORT int ncclBcast(void *data, COUNT, int root, WHERE) {
    return ncclBroadcast(data, data, count, type, root, comm, stream);
}

EXPORT int ncclReduce(const void *in, void *out, COUNT, int operation, int root, WHERE) {
    return then(REAL(ncclReduce)(in, out, count, type, operation, root, comm, stream), comm, ASKED(REDUCE, operation, root), in, out, 0, stream);
}

EXPORT int ncclAllGather(const void *in, void *out, COUNT, WHERE) {
    return then(REAL(ncclAllGather)(in, out, count, type, comm, stream), comm, ASKED(GATHER, 0, 0), in, out, 0, stream);
}

EXPORT int ncclReduceScatter(const void *in, void *out, COUNT, int operation, WHERE) {
    return then(REAL(ncclReduceScatter)(in, out, count, type, operation, comm, stream), comm, ASKED(SCATTER, operation, 0), in, out, 0, stream);
}

EXPORT int ncclSend(const void *in, COUNT, int peer, WHERE) {
    return then(REAL(ncclSend)(in, count, type, peer, comm, stream), comm, ASKED(SEND, 0, 0), in, NULL, peer, stream);
}

EXPORT int ncclRecv(void *out, COUNT, int peer, WHERE) {
    return then(REAL(ncclRecv)(out, count, type, peer, comm, stream), comm, ASKED(SEND, 0, 0), NULL, out, peer, stream);
}
