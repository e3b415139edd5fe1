/* Streams and events of planted GPUs: each stream has a thread of its own; what finds its stream idle runs at once.
 * Kernels do nothing and take no time. */
#include "planted.h"
#include <sys/mman.h>

typedef struct Work Work;
struct Work { void (*run)(void *); void *argument; Work *next; };
typedef struct Stream Stream;
struct Stream {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Work *first, *last;
    int runs, started;
    Stream *next;
};
typedef struct { int asked, done; pthread_mutex_t lock; pthread_cond_t changed; } Event;
typedef struct { Event *event; int number; } Mark;

static Stream usual = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static Stream *streams = &usual;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* 0, 1 and 2 are the default streams. */
static Stream *of(void *stream) { return (uintptr_t)stream < 3 ? &usual : stream; }

static void *work_off(void *argument) {
    Stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    for (;;) {
        while (!stream->first) pthread_cond_wait(&stream->changed, &stream->lock);
        Work *work = stream->first;
        stream->first = work->next;
        stream->runs = 1;
        pthread_mutex_unlock(&stream->lock);
        work->run(work->argument);
        free(work);
        pthread_mutex_lock(&stream->lock);
        stream->runs = 0;
        pthread_cond_broadcast(&stream->changed);
    }
    return NULL;
}

void planted_enqueue(void *stream, void (*run)(void *), void *argument) {
    Stream *its = of(stream);
    Work *work = malloc(sizeof *work);
    pthread_t thread;
    *work = (Work){run, argument, NULL};
    pthread_mutex_lock(&its->lock);
    if (its->first) its->last->next = work;
    else its->first = work;
    its->last = work;
    if (!its->started++) pthread_create(&thread, NULL, work_off, its);
    pthread_cond_broadcast(&its->changed);
    pthread_mutex_unlock(&its->lock);
}

static int idle(Stream *stream) {
    pthread_mutex_lock(&stream->lock);
    int nothing = !stream->first && !stream->runs;
    pthread_mutex_unlock(&stream->lock);
    return nothing;
}

static void in_order(void *stream, void (*run)(void *), void *argument) {
    if (idle(of(stream))) run(argument);
    else planted_enqueue(stream, run, argument);
}

void drain(void *stream) {
    Stream *its = of(stream);
    pthread_mutex_lock(&its->lock);
    while (its->first || its->runs) pthread_cond_wait(&its->changed, &its->lock);
    pthread_mutex_unlock(&its->lock);
}

static int cudaStreamCreate(Stream **stream) {
    *stream = calloc(1, sizeof **stream);
    pthread_mutex_init(&(*stream)->lock, NULL);
    pthread_cond_init(&(*stream)->changed, NULL);
    pthread_mutex_lock(&lock);
    (*stream)->next = streams;
    streams = *stream;
    pthread_mutex_unlock(&lock);
    return OK;
}

static int cudaStreamCreateWithFlags(Stream **stream, unsigned flags) { (void)flags; return cudaStreamCreate(stream); }
static int cudaStreamDestroy(void *stream) { (void)stream; return OK; }
static int cudaStreamSynchronize(void *stream) { drain(stream); return OK; }
static int cudaStreamQuery(void *stream) { return idle(of(stream)) ? OK : NOT_READY; }
static int cudaStreamGetId(void *stream, unsigned long long *id) { *id = (uintptr_t)stream; return OK; }
static int cudaStreamGetPriority(void *stream, int *priority) { (void)stream; *priority = 0; return OK; }
static int cudaStreamGetFlags(void *stream, unsigned *flags) { (void)stream; *flags = 1; return OK; }
static int cudaStreamIsCapturing(void *stream, int *status) { (void)stream; *status = 0; return OK; }
static int cudaThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return OK; }

static int cudaStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
    (void)flags; (void)priority;
    return cudaStreamCreate(stream);
}

static int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id) {
    (void)stream;
    *status = 0;
    if (id) *id = 0;
    return OK;
}

static int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return OK;
}

static int cudaDeviceSynchronize(void) {
    for (Stream *stream = streams; stream; stream = stream->next) drain(stream);
    return OK;
}

/* --- events ------------------------------------------------------------------------------------ */

static void reached(void *argument) {
    Mark *mark = argument;
    pthread_mutex_lock(&mark->event->lock);
    if (mark->event->done < mark->number) mark->event->done = mark->number;
    pthread_cond_broadcast(&mark->event->changed);
    pthread_mutex_unlock(&mark->event->lock);
    free(mark);
}

static void await(void *argument) {
    Mark *mark = argument;
    pthread_mutex_lock(&mark->event->lock);
    while (mark->event->done < mark->number) pthread_cond_wait(&mark->event->changed, &mark->event->lock);
    pthread_mutex_unlock(&mark->event->lock);
    free(mark);
}

static Mark *mark(Event *event, int number) {
    Mark *made = malloc(sizeof *made);
    *made = (Mark){event, number};
    return made;
}

static int cudaEventCreate(Event **event) {
    *event = calloc(1, sizeof **event);
    pthread_mutex_init(&(*event)->lock, NULL);
    pthread_cond_init(&(*event)->changed, NULL);
    return OK;
}

static int cudaEventRecord(Event *event, void *stream) {
    in_order(stream, reached, mark(event, __atomic_add_fetch(&event->asked, 1, __ATOMIC_SEQ_CST)));
    return OK;
}

static int cudaEventCreateWithFlags(Event **event, unsigned flags) { (void)flags; return cudaEventCreate(event); }
static int cudaEventRecordWithFlags(Event *event, void *stream, unsigned flags) { (void)flags; return cudaEventRecord(event, stream); }
static int cudaEventDestroy(Event *event) { (void)event; return OK; }
static int cudaEventQuery(const Event *event) { return event->done >= event->asked ? OK : NOT_READY; }
static int cudaEventSynchronize(Event *event) { await(mark(event, event->asked)); return OK; }

static int cudaStreamWaitEvent(void *stream, Event *event, unsigned flags) {
    (void)flags;
    if (event->done < event->asked) planted_enqueue(stream, await, mark(event, event->asked));
    return OK;
}

/* Time is not planted: ten microseconds between any two events. */
static int cudaEventElapsedTime(float *milliseconds, const Event *from, const Event *to) {
    (void)from; (void)to;
    *milliseconds = 0.01f;
    return OK;
}

/* --- copies and host functions ----------------------------------------------------------------- */

typedef struct { void *to; const void *from; size_t size; int value; } Copy;

/* Zeros are given back to the system where they fill whole pages: NCCL clears gigabytes that nobody will use. */
static void fill(char *to, int value, size_t size) {
    uintptr_t first = ((uintptr_t)to + 4095) & ~(uintptr_t)4095, last = ((uintptr_t)to + size) & ~(uintptr_t)4095;
    if (value || first >= last || madvise((void *)first, last - first, MADV_REMOVE)) {
        memset(to, value, size);
        return;
    }
    memset(to, 0, first - (uintptr_t)to);
    memset((void *)last, 0, (uintptr_t)to + size - last);
}

static void copied(void *argument) {
    Copy *copy = argument;
    if (copy->from) memmove(copy->to, copy->from, copy->size);
    else fill(copy->to, copy->value, copy->size);
    free(copy);
}

static void copy(void *to, const void *from, size_t size, int value, void *stream) {
    Copy *made = malloc(sizeof *made);
    *made = (Copy){to, from, size, value};
    in_order(stream, copied, made);
}

/* With memory that is not pinned the real one waits as well. */
static int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    (void)kind;
    copy(to, from, size, 0, stream);
    if (!block_at(to, NULL) || !block_at(from, NULL)) drain(stream);
    return OK;
}

static int cudaMemcpyPeerAsync(void *to, int device, const void *from, int other, size_t size, void *stream) {
    (void)device; (void)other;
    copy(to, from, size, 0, stream);
    return OK;
}

static int cudaMemcpy(void *to, const void *from, size_t size, int kind) {
    (void)kind;
    drain(NULL);
    memmove(to, from, size);
    return OK;
}

static int cudaMemcpy2DAsync(char *to, size_t to_step, const char *from, size_t from_step, size_t width, size_t height, int kind, void *stream) {
    (void)kind;
    drain(stream);
    for (size_t row = 0; row < height; row++) memmove(to + row * to_step, from + row * from_step, width);
    return OK;
}

static int cudaMemsetAsync(void *to, int value, size_t size, void *stream) { copy(to, NULL, size, value, stream); return OK; }
static int cudaMemset(void *to, int value, size_t size) { drain(NULL); fill(to, value, size); return OK; }
static int cudaLaunchHostFunc(void *stream, void (*run)(void *), void *argument) { in_order(stream, run, argument); return OK; }

#define R(name) {#name, name}
const Entry STREAM_CALLS[] = {
    R(cudaStreamCreate), R(cudaStreamCreateWithFlags), R(cudaStreamCreateWithPriority), R(cudaStreamDestroy),
    R(cudaStreamSynchronize), R(cudaStreamQuery), R(cudaStreamGetId), R(cudaStreamGetPriority), R(cudaStreamGetFlags),
    R(cudaStreamIsCapturing), R(cudaThreadExchangeStreamCaptureMode), R(cudaStreamGetCaptureInfo_v2),
    {"cudaStreamGetCaptureInfo", cudaStreamGetCaptureInfo_v2}, /* CUDA 13 */
    R(cudaDeviceGetStreamPriorityRange), R(cudaDeviceSynchronize), R(cudaEventCreate), R(cudaEventCreateWithFlags),
    R(cudaEventRecord), R(cudaEventRecordWithFlags), R(cudaEventDestroy), R(cudaEventQuery), R(cudaEventSynchronize),
    R(cudaStreamWaitEvent), R(cudaEventElapsedTime), R(cudaMemcpyAsync), R(cudaMemcpyPeerAsync), R(cudaMemcpy),
    R(cudaMemcpy2DAsync), R(cudaMemsetAsync), R(cudaMemset), R(cudaLaunchHostFunc), {NULL, NULL},
};

/* --- the driver's, as NCCL asks for them -------------------------------------------------------- */

EXPORT int cuStreamWaitValue32(void *stream, uint32_t *at, uint32_t value, unsigned flags) { (void)stream; (void)at; (void)value; (void)flags; return OK; }
EXPORT int cuStreamWaitValue64(void *stream, uint64_t *at, uint64_t value, unsigned flags) { (void)stream; (void)at; (void)value; (void)flags; return OK; }
EXPORT int cuStreamWriteValue32(void *stream, uint32_t *at, uint32_t value, unsigned flags) { (void)stream; (void)flags; *at = value; return OK; }
EXPORT int cuStreamWriteValue64(void *stream, uint64_t *at, uint64_t value, unsigned flags) { (void)stream; (void)flags; *at = value; return OK; }
EXPORT int cuStreamBatchMemOp(void *stream, unsigned count, void *operations, unsigned flags) { (void)stream; (void)count; (void)operations; (void)flags; return OK; }
