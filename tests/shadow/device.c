/*
 * A device for tests, "shadow:0", which checks that the layers above devices respect the device interface. The host
 * cannot read or write its memory (an access is a SIGSEGV). Each of its streams is a thread that runs late: only when a
 * caller waits or many requests are pending. Freed memory is overwritten. Errors are reported by the next wait. The
 * CPU's kernels do the computation.
 *
 * Every unit and rank program contains it. With LOCKSTEP_DEVICE=shadow:0, all tests of the program use it. With
 * LOCKSTEP_DEVICE=shadow:1, they use a second device, which exists only if it is named. Its kernels are those in
 * device/cuda, compiled for the host.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"
#include "tensor/device/cpu/cpu.h"
#include "tests/shadow/shadow.h"
#include "tests/support/elements.h"

enum { MOST_LATE = 200 };

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Size of the device's memory, and of the range of inaccessible addresses that tensors have instead. */
#define ARENA ((size_t)4 << 30)

static char *arena, *shown;
static size_t used;
static pthread_mutex_t arena_lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct free_block {
    struct free_block *next;
} free_block;
static free_block *bins[64];

static int bin_of(size_t bytes) {
    int bin = 6;
    while (((size_t)1 << bin) < bytes) {
        bin++;
    }
    return bin;
}

void shadow_die(const char *why) {
    fprintf(stderr, "shadow device: %s\n", why);
    abort();
}

/* Returns the accessible address of a tensor's memory. */
void *shadow_inside(const void *memory) {
    if (memory == NULL) {
        return NULL;
    }
    const char *at = memory;
    if (at < shown || at >= shown + ARENA) {
        shadow_die("a kernel was given memory that is not the device's");
    }
    return arena + (at - shown);
}

static void *outside(void *memory) {
    return shown + ((char *)memory - arena);
}

/* With LOCKSTEP_TEST_STREAM=1, the memory is accessible, as it is to the vendor's libraries on a real device. */
static bool is_open(void) {
    return getenv("LOCKSTEP_TEST_STREAM") != NULL;
}

static void map_arena(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, flags, -1, 0);
    shown = is_open() ? arena : mmap(NULL, ARENA, PROT_NONE, flags, -1, 0);
    if (arena == MAP_FAILED || shown == MAP_FAILED) {
        shadow_die("no memory");
    }
}

static void *take_block(size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, map_arena);
    const int bin = bin_of(bytes);
    pthread_mutex_lock(&arena_lock);
    free_block *block = bins[bin];
    if (block != NULL) {
        bins[bin] = block->next;
    } else if (used + ((size_t)1 << bin) <= ARENA) {
        block = (free_block *)(void *)(arena + used);
        used += (size_t)1 << bin;
    }
    pthread_mutex_unlock(&arena_lock);
    return block;
}

static void give_block(void *memory, size_t bytes) {
    const int bin = bin_of(bytes);
    memset(memory, 0xFF, bytes); /* NaN, or an invalid index */
    free_block *block = memory;
    pthread_mutex_lock(&arena_lock);
    block->next = bins[bin];
    bins[bin] = block;
    pthread_mutex_unlock(&arena_lock);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

struct ls_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    shadow_job *first, *last;
    int asked, done, wanted; /* jobs so far; the thread runs up to job `wanted` */
    bool ends;
    ls_status status; /* the first failure since the last wait */
    char message[LS_ERROR_CAPACITY];
};

struct ls_event {
    pthread_mutex_t lock;
    pthread_cond_t change;
    int recorded, passed;
};

static void *work(void *argument) {
    ls_stream *stream = argument;
    pthread_mutex_lock(&stream->lock);
    while (!stream->ends || stream->first != NULL) {
        if (stream->first == NULL || (stream->done >= stream->wanted && !stream->ends)) {
            pthread_cond_wait(&stream->change, &stream->lock);
            continue;
        }
        shadow_job *next = stream->first;
        stream->first = next->next;
        pthread_mutex_unlock(&stream->lock);
        const ls_status status = next->run(next);
        pthread_mutex_lock(&stream->lock);
        if (status != LS_OK && stream->status == LS_OK) {
            stream->status = status;
            snprintf(stream->message, sizeof stream->message, "%s", ls_error_message());
        }
        free(next);
        if (++stream->done == stream->wanted) { /* no caller waits for an earlier job */
            pthread_cond_broadcast(&stream->change);
        }
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

static ls_stream *stream_new(const ls_device *self) {
    (void)self;
    ls_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL || pthread_mutex_init(&stream->lock, NULL) != 0 ||
        pthread_cond_init(&stream->change, NULL) != 0 || pthread_create(&stream->thread, NULL, work, stream) != 0) {
        shadow_die("no thread for a stream");
    }
    return stream;
}

static void stream_free(ls_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    stream->ends = true;
    pthread_cond_broadcast(&stream->change);
    pthread_mutex_unlock(&stream->lock);
    pthread_join(stream->thread, NULL);
    free(stream);
}

static pthread_key_t stream_key;

static void free_edits(void);

static void end_thread(void *stream) {
    free_edits();
    stream_free(stream);
}

static ls_stream *default_stream(const ls_device *self) {
    ls_stream *stream = pthread_getspecific(stream_key);
    if (stream == NULL) {
        stream = stream_new(self);
        pthread_setspecific(stream_key, stream);
    }
    return stream;
}

_Thread_local int shadow_waits;

/* Waits until all jobs are done. Requires the lock. */
static void drain(ls_stream *stream) {
    const int all = stream->asked;
    stream->wanted = all > stream->wanted ? all : stream->wanted;
    pthread_cond_broadcast(&stream->change);
    while (stream->done < all) {
        pthread_cond_wait(&stream->change, &stream->lock);
    }
}

static ls_status stream_wait(ls_stream *stream) {
    shadow_waits++;
    char message[LS_ERROR_CAPACITY];
    pthread_mutex_lock(&stream->lock);
    drain(stream);
    const ls_status status = stream->status;
    memcpy(message, stream->message, sizeof message);
    stream->status = LS_OK;
    pthread_mutex_unlock(&stream->lock);
    return status == LS_OK ? LS_OK : ls_fail(status, "%s", message);
}

shadow_job *shadow_begin(shadow_kernel *kernel, ls_status (*run)(shadow_job *)) {
    shadow_job *made = calloc(1, sizeof *made);
    if (made == NULL) {
        shadow_die("no memory for a job");
    }
    made->kernel = kernel;
    made->run = run;
    return made;
}

static ls_status push_after_edits(ls_stream *stream, shadow_job *made) {
    pthread_mutex_lock(&stream->lock);
    *(stream->first == NULL ? &stream->first : &stream->last->next) = made;
    stream->last = made;
    stream->asked++;
    if (stream->asked - stream->wanted > MOST_LATE) {
        stream->wanted = stream->asked - MOST_LATE / 2;
        pthread_cond_broadcast(&stream->change);
    }
    pthread_mutex_unlock(&stream->lock);
    return LS_OK;
}

/* Copies that tests may have changed. See elements.h. */
enum { EDITS = 256 };
typedef struct edit {
    void *copy;
    void *place; /* NULL if the copy is stored, or was never used */
    size_t bytes;
    bool on_gpu;
} edit;
static _Thread_local edit edits[EDITS];
static _Thread_local unsigned next_edit, first_open;

static ls_status run_store(shadow_job *made) {
    if (made->integer[0] > 0) {
        memcpy(made->to, made->from, (size_t)made->integer[0]);
    }
    free((void *)(uintptr_t)made->from);
    return LS_OK;
}

static _Thread_local bool fetches; /* keeps the tests' copies open while elements() reads */

void shadow_store_edits(ls_stream *stream) {
    for (; !fetches && first_open != next_edit; first_open++) {
        const edit *each = &edits[first_open % EDITS];
        if (each->on_gpu) {
            shadow_store_on_gpu(stream, each->place, each->copy, each->bytes);
            continue;
        }
        shadow_job *made = shadow_begin(NULL, run_store);
        void *now = malloc(each->bytes + 1);
        if (now == NULL) {
            shadow_die("no memory for an edit");
        }
        made->to = each->place;
        made->from = memcpy(now, each->copy, each->bytes);
        made->integer[0] = (int64_t)each->bytes;
        (void)push_after_edits(stream, made);
    }
}

ls_status shadow_push(ls_stream *stream, shadow_job *made) {
    shadow_store_edits(stream);
    return push_after_edits(stream, made);
}

void *elements(const ls_tensor *tensor) {
    if (tensor != NULL && tensor->storage == NULL) { /* a tensor that a test made without the library */
        return tensor->data;
    }
    const ls_device *device = tensor == NULL ? &ls_cpu : tensor->storage->device;
    if (device->is_host || !tensor->contiguous) {
        return ls_data((ls_tensor *)tensor);
    }
    const size_t bytes = (size_t)tensor->count * ls_dtype_size((ls_dtype)tensor->dtype);
    const bool on_gpu = strncmp(device->name, "cuda", 4) == 0;
    char *inside = on_gpu ? tensor->data : shadow_inside(tensor->data);
    fetches = true;
    for (unsigned i = first_open; i != next_edit; i++) {
        const edit *open = &edits[i % EDITS];
        const char *place = open->place;
        if (place == inside && open->bytes == bytes) { /* no request to the device since the copy was made */
            fetches = false;
            return open->copy;
        }
        fetches = fetches && (place == NULL || inside >= place + open->bytes || inside + bytes <= place);
    }
    void *copy = malloc(bytes + 1);
    const ls_status status =
        copy != NULL ? ls_device_fetch(device, copy, tensor->data, bytes) : ls_fail_memory("elements", bytes);
    fetches = false;
    if (status != LS_OK) {
        free(copy);
        return NULL;
    }
    edit *made = &edits[next_edit++ % EDITS];
    free(made->copy);
    *made = (edit){.copy = copy, .place = bytes > 0 ? inside : NULL, .bytes = bytes, .on_gpu = on_gpu};
    return copy;
}

__attribute__((destructor)) static void free_edits(void) {
    for (int i = 0; i < EDITS; i++) {
        free(edits[i].copy);
        edits[i].copy = NULL;
    }
}

/* ---- memory and copies in stream order --------------------------------------------------------------------------- */

static void *allocate(const ls_device *self, size_t bytes) {
    (void)self;
    void *block = take_block(bytes);
    return block != NULL ? outside(block) : NULL;
}

static ls_status run_release(shadow_job *made) {
    give_block(made->to, (size_t)made->integer[0]);
    return LS_OK;
}

static void release(const ls_device *self, void *memory, size_t bytes) {
    shadow_job *made = shadow_begin(NULL, run_release);
    made->to = shadow_inside(memory);
    made->integer[0] = (int64_t)bytes;
    (void)shadow_push(default_stream(self), made);
}

static void *allocate_pinned(const ls_device *self, size_t bytes) {
    (void)self;
    return malloc(bytes > 0 ? bytes : 1);
}

static void release_pinned(const ls_device *self, void *memory, size_t bytes) {
    (void)self;
    (void)bytes;
    free(memory);
}

static ls_status run_copy(shadow_job *made) {
    if (made->integer[0] > 0) {
        memcpy(made->to, made->from, (size_t)made->integer[0]);
    }
    return LS_OK;
}

static ls_status run_clear(shadow_job *made) {
    if (made->integer[0] > 0) {
        memset(made->to, 0, (size_t)made->integer[0]);
    }
    return LS_OK;
}

static ls_status push_bytes(ls_stream *stream, ls_status (*run)(shadow_job *), void *to, const void *from,
                            size_t bytes) {
    shadow_job *made = shadow_begin(NULL, run);
    made->to = to;
    made->from = from;
    made->integer[0] = (int64_t)bytes;
    return shadow_push(stream, made);
}

static ls_status copy(ls_stream *stream, void *to, const void *from, size_t bytes) {
    return push_bytes(stream, run_copy, shadow_inside(to), shadow_inside(from), bytes);
}

static ls_status clear(ls_stream *stream, void *memory, size_t bytes) {
    return push_bytes(stream, run_clear, shadow_inside(memory), NULL, bytes);
}

static ls_status copy_to_host(ls_stream *stream, void *host, const void *memory, size_t bytes) {
    return push_bytes(stream, run_copy, host, shadow_inside(memory), bytes);
}

static ls_status copy_from_host(ls_stream *stream, void *memory, const void *host, size_t bytes) {
    return push_bytes(stream, run_copy, shadow_inside(memory), host, bytes);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static ls_event *event_new(const ls_device *self) {
    (void)self;
    ls_event *event = calloc(1, sizeof *event);
    if (event == NULL || pthread_mutex_init(&event->lock, NULL) != 0 || pthread_cond_init(&event->change, NULL) != 0) {
        shadow_die("no memory for an event");
    }
    return event;
}

static void event_free(ls_event *event) {
    free(event);
}

static ls_status run_record(shadow_job *made) {
    pthread_mutex_lock(&made->event->lock);
    made->event->passed = (int)made->integer[0];
    pthread_cond_broadcast(&made->event->change);
    pthread_mutex_unlock(&made->event->lock);
    return LS_OK;
}

static ls_status run_await(shadow_job *made) {
    pthread_mutex_lock(&made->event->lock);
    while (made->event->passed < made->integer[0]) {
        pthread_cond_wait(&made->event->change, &made->event->lock);
    }
    pthread_mutex_unlock(&made->event->lock);
    return LS_OK;
}

static ls_status push_event(ls_stream *stream, ls_status (*run)(shadow_job *), ls_event *event) {
    shadow_job *made = shadow_begin(NULL, run);
    made->event = event;
    made->integer[0] = event->recorded;
    return shadow_push(stream, made);
}

static ls_status event_record(ls_event *event, ls_stream *stream) {
    event->recorded++;
    const ls_status status = push_event(stream, run_record, event);
    pthread_mutex_lock(&stream->lock); /* the waiting caller need not know this stream */
    stream->wanted = stream->asked;
    pthread_cond_broadcast(&stream->change);
    pthread_mutex_unlock(&stream->lock);
    return status;
}

static ls_status event_wait(ls_event *event, ls_stream *stream) {
    return push_event(stream, run_await, event);
}

static bool event_done(const ls_event *event) {
    ls_event *held = (ls_event *)(uintptr_t)event;
    pthread_mutex_lock(&held->lock);
    const bool done = held->passed >= held->recorded;
    pthread_mutex_unlock(&held->lock);
    return done;
}

/* A library's test double does not know the stream, so its requests are run after the stream's jobs. */
static void *library_stream(ls_stream *stream) {
    shadow_store_edits(stream);
    pthread_mutex_lock(&stream->lock);
    drain(stream);
    pthread_mutex_unlock(&stream->lock);
    return stream;
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

static ls_device shadow = {
    .name = "shadow:0",
    .kernels = &shadow_kernels,
    .allocate = allocate,
    .release = release,
    .allocate_pinned = allocate_pinned,
    .release_pinned = release_pinned,
    .default_stream = default_stream,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_wait = stream_wait,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .copy = copy,
    .clear = clear,
    .copy_to_host = copy_to_host,
    .copy_from_host = copy_from_host,
};

/* Runs before the second device, a copy of this device, is opened. */
static void open_first(void) {
    shadow.library_stream = is_open() ? library_stream : NULL;
}

static bool add_second(void) {
    static ls_device second;
    const char *wanted = getenv("LOCKSTEP_DEVICE");
    second = shadow;
    second.name = "shadow:1";
    second.index = 1;
    second.kernels = shadow_gpu_kernels();
    second.takes_rounded = true;
    return wanted == NULL || strcmp(wanted, second.name) != 0 || second.kernels == NULL ||
           ls_device_add(&second) == LS_OK;
}

__attribute__((constructor)) static void add_shadow(void) {
    open_first();
    if (pthread_key_create(&stream_key, end_thread) != 0 || ls_device_add(&shadow) != LS_OK || !add_second()) {
        shadow_die("cannot be set up");
    }
}
