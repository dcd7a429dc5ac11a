/*
 * A device for tests, "shadow:0": what holds the floors above to the device boundary. Its memory lies behind pointers
 * that the host cannot read or write (a touch is a SIGSEGV), its streams work late, on a thread each: only when
 * somebody waits or many things are asked for, released memory is overwritten, and what fails is told by the next wait.
 * The arithmetic is the CPU's.
 *
 * It is there in every unit and rank program; LOCKSTEP_DEVICE=shadow:0 has all tests of the program work on it.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"
#include "tensor/device/cpu/cpu.h"
#include "tests/support/elements.h"

enum { MOST_TENSORS = 10, MOST_LATE = 200 };

/* ---- memory --------------------------------------------------------------------------------------------------------
 */

/* What the device works in, and the same addresses, so far away, that tensors see. */
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

static _Noreturn void die(const char *why) {
    fprintf(stderr, "shadow device: %s\n", why);
    abort();
}

/* Where the device finds what a tensor sees. */
static void *inside(const void *memory) {
    if (memory == NULL) {
        return NULL;
    }
    const char *at = memory;
    if (at < shown || at >= shown + ARENA) {
        die("a kernel was given memory that is not the device's");
    }
    return arena + (at - shown);
}

static void *outside(void *memory) {
    return shown + ((char *)memory - arena);
}

static void map_arena(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, flags, -1, 0);
    shown = mmap(NULL, ARENA, PROT_NONE, flags, -1, 0);
    if (arena == MAP_FAILED || shown == MAP_FAILED) {
        die("no memory");
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
    memset(memory, 0xFF, bytes); /* NaN, and an index that is none */
    free_block *block = memory;
    pthread_mutex_lock(&arena_lock);
    block->next = bins[bin];
    bins[bin] = block;
    pthread_mutex_unlock(&arena_lock);
}

/* ---- streams -------------------------------------------------------------------------------------------------------
 */

typedef void any_kernel(void);

/* Something that a stream is asked, with copies of all it needs. */
typedef struct job {
    struct job *next;
    ls_status (*run)(struct job *job);
    any_kernel *kernel;
    int tensors;
    bool there[MOST_TENSORS];
    ls_tensor tensor[MOST_TENSORS];
    double number[4];
    int64_t integer[4];
    ls_random_state random;
    void *to;
    const void *from;
    const void *other;
    struct ls_event *event;
    union {
        ls_gemm gemm;
        ls_class_loss loss;
        ls_sgd_step sgd;
        ls_adam_step adam;
        ls_rmsprop_step rmsprop;
        ls_adagrad_step adagrad;
    };
} job;

struct ls_stream {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    job *first, *last;
    int asked, done, wanted; /* jobs so far; wanted: the thread works up to this one */
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
        job *next = stream->first;
        stream->first = next->next;
        pthread_mutex_unlock(&stream->lock);
        const ls_status status = next->run(next);
        pthread_mutex_lock(&stream->lock);
        if (status != LS_OK && stream->status == LS_OK) {
            stream->status = status;
            snprintf(stream->message, sizeof stream->message, "%s", ls_error_message());
        }
        free(next);
        stream->done++;
        pthread_cond_broadcast(&stream->change);
    }
    pthread_mutex_unlock(&stream->lock);
    return NULL;
}

static ls_stream *stream_new(const ls_device *self) {
    (void)self;
    ls_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL || pthread_mutex_init(&stream->lock, NULL) != 0 ||
        pthread_cond_init(&stream->change, NULL) != 0 || pthread_create(&stream->thread, NULL, work, stream) != 0) {
        die("no thread for a stream");
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

static ls_status stream_wait(ls_stream *stream) {
    char message[LS_ERROR_CAPACITY];
    pthread_mutex_lock(&stream->lock);
    const int all = stream->asked;
    stream->wanted = all > stream->wanted ? all : stream->wanted;
    pthread_cond_broadcast(&stream->change);
    while (stream->done < all) {
        pthread_cond_wait(&stream->change, &stream->lock);
    }
    const ls_status status = stream->status;
    memcpy(message, stream->message, sizeof message);
    stream->status = LS_OK;
    pthread_mutex_unlock(&stream->lock);
    return status == LS_OK ? LS_OK : ls_fail(status, "%s", message);
}

static job *begin(any_kernel *kernel, ls_status (*run)(job *)) {
    job *made = calloc(1, sizeof *made);
    if (made == NULL) {
        die("no memory for a job");
    }
    made->kernel = kernel;
    made->run = run;
    return made;
}

static ls_status push_after_edits(ls_stream *stream, job *made) {
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

/* Copies that tests may have written to: see elements.h. */
enum { EDITS = 256 };
typedef struct edit {
    void *copy;
    void *place; /* NULL: stored, or never used */
    size_t bytes;
} edit;
static _Thread_local edit edits[EDITS];
static _Thread_local unsigned next_edit, first_open;

static ls_status run_store(job *made) {
    if (made->integer[0] > 0) {
        memcpy(made->to, made->from, (size_t)made->integer[0]);
    }
    free((void *)(uintptr_t)made->from);
    return LS_OK;
}

static void store_edits(ls_stream *stream) {
    for (; first_open != next_edit; first_open++) {
        const edit *each = &edits[first_open % EDITS];
        job *made = begin(NULL, run_store);
        void *now = malloc(each->bytes + 1);
        if (now == NULL) {
            die("no memory for an edit");
        }
        made->to = each->place;
        made->from = memcpy(now, each->copy, each->bytes);
        made->integer[0] = (int64_t)each->bytes;
        (void)push_after_edits(stream, made);
    }
}

static _Thread_local bool fetches; /* for elements(): what a test writes to stays open meanwhile */

static ls_status push(ls_stream *stream, job *made) {
    if (!fetches) {
        store_edits(stream);
    }
    return push_after_edits(stream, made);
}

void *elements(const ls_tensor *tensor) {
    if (tensor != NULL && tensor->storage == NULL) { /* a test made it by hand */
        return tensor->data;
    }
    const ls_device *device = tensor == NULL ? &ls_cpu : tensor->storage->device;
    if (device->is_host || !tensor->contiguous) {
        return ls_data(tensor);
    }
    const size_t bytes = (size_t)tensor->count * ls_dtype_size((ls_dtype)tensor->dtype);
    fetches = true;
    for (unsigned i = first_open; i != next_edit; i++) {
        const char *place = edits[i % EDITS].place;
        fetches = fetches && (place == NULL || (char *)inside(tensor->data) >= place + edits[i % EDITS].bytes ||
                              (char *)inside(tensor->data) + bytes <= place);
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
    *made = (edit){.copy = copy, .place = bytes > 0 ? inside(tensor->data) : NULL, .bytes = bytes};
    return copy;
}

__attribute__((destructor)) static void free_edits(void) {
    for (int i = 0; i < EDITS; i++) {
        free(edits[i].copy);
        edits[i].copy = NULL;
    }
}

/* A storage that says "cpu", for kernels that ask. */
static ls_storage on_host = {.device = &ls_cpu, .whole = &on_host};

static void inside_tensor(ls_tensor *copy, const ls_tensor *tensor) {
    *copy = *tensor;
    copy->data = copy->count > 0 ? inside(tensor->data) : NULL;
    copy->storage = &on_host;
    copy->node = NULL;
    copy->leaf = NULL;
}

static void add(job *made, const ls_tensor *tensor) {
    if (made->tensors == MOST_TENSORS) {
        die("too many tensors");
    }
    made->there[made->tensors] = tensor != NULL;
    if (tensor != NULL) {
        inside_tensor(&made->tensor[made->tensors], tensor);
    }
    made->tensors++;
}

static ls_tensor *at(job *made, int i) {
    return made->there[i] ? &made->tensor[i] : NULL;
}

/* ---- memory and copies in the stream's order
 * ------------------------------------------------------------------------- */

static void *allocate(const ls_device *self, size_t bytes) {
    (void)self;
    void *block = take_block(bytes);
    return block != NULL ? outside(block) : NULL;
}

static ls_status run_release(job *made) {
    give_block(made->to, (size_t)made->integer[0]);
    return LS_OK;
}

static void release(const ls_device *self, void *memory, size_t bytes) {
    job *made = begin(NULL, run_release);
    made->to = inside(memory);
    made->integer[0] = (int64_t)bytes;
    (void)push(default_stream(self), made);
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

static ls_status run_copy(job *made) {
    if (made->integer[0] > 0) {
        memcpy(made->to, made->from, (size_t)made->integer[0]);
    }
    return LS_OK;
}

static ls_status run_clear(job *made) {
    if (made->integer[0] > 0) {
        memset(made->to, 0, (size_t)made->integer[0]);
    }
    return LS_OK;
}

static ls_status push_bytes(ls_stream *stream, ls_status (*run)(job *), void *to, const void *from, size_t bytes) {
    job *made = begin(NULL, run);
    made->to = to;
    made->from = from;
    made->integer[0] = (int64_t)bytes;
    return push(stream, made);
}

static ls_status copy(ls_stream *stream, void *to, const void *from, size_t bytes) {
    return push_bytes(stream, run_copy, inside(to), inside(from), bytes);
}

static ls_status clear(ls_stream *stream, void *memory, size_t bytes) {
    return push_bytes(stream, run_clear, inside(memory), NULL, bytes);
}

static ls_status copy_to_host(ls_stream *stream, void *host, const void *memory, size_t bytes) {
    return push_bytes(stream, run_copy, host, inside(memory), bytes);
}

static ls_status copy_from_host(ls_stream *stream, void *memory, const void *host, size_t bytes) {
    return push_bytes(stream, run_copy, inside(memory), host, bytes);
}

/* ---- events
 * ---------------------------------------------------------------------------------------------------------- */

static ls_event *event_new(const ls_device *self) {
    (void)self;
    ls_event *event = calloc(1, sizeof *event);
    if (event == NULL || pthread_mutex_init(&event->lock, NULL) != 0 || pthread_cond_init(&event->change, NULL) != 0) {
        die("no memory for an event");
    }
    return event;
}

static void event_free(ls_event *event) {
    free(event);
}

static ls_status run_record(job *made) {
    pthread_mutex_lock(&made->event->lock);
    made->event->passed = (int)made->integer[0];
    pthread_cond_broadcast(&made->event->change);
    pthread_mutex_unlock(&made->event->lock);
    return LS_OK;
}

static ls_status run_await(job *made) {
    pthread_mutex_lock(&made->event->lock);
    while (made->event->passed < made->integer[0]) {
        pthread_cond_wait(&made->event->change, &made->event->lock);
    }
    pthread_mutex_unlock(&made->event->lock);
    return LS_OK;
}

static ls_status push_event(ls_stream *stream, ls_status (*run)(job *), ls_event *event) {
    job *made = begin(NULL, run);
    made->event = event;
    made->integer[0] = event->recorded;
    return push(stream, made);
}

static ls_status event_record(ls_event *event, ls_stream *stream) {
    event->recorded++;
    const ls_status status = push_event(stream, run_record, event);
    pthread_mutex_lock(&stream->lock); /* who waits for it need not know this stream */
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

/* ---- kernels
 * --------------------------------------------------------------------------------------------------------- */

/*
 * KIND(type, pack, call): the arguments of a type of kernel go into a job (pack), and the CPU's kernel is called with
 * them later (call). NAMES_... are the parameters of kernels.h, as arguments.
 */
#define KIND(type, pack, ...)                                                                                          \
    static ls_status run_##type(job *made) {                                                                           \
        return ((ls_##type##_kernel *)made->kernel)(NULL, __VA_ARGS__);                                                \
    }                                                                                                                  \
    static ls_status ask_##type(ls_##type##_kernel *kernel, LS_PARAMETERS_##type) {                                    \
        job *made = begin((any_kernel *)kernel, run_##type);                                                           \
        pack return push(stream, made);                                                                                \
    }
#define T(i) at(made, i)

/* clang-format off */
KIND(pair, add(made, y); add(made, x);, T(0), T(1))
KIND(fill, add(made, y); made->number[0] = value;, T(0), made->number[0])
KIND(count_up, add(made, y);, T(0))
KIND(random, add(made, y); made->random = state; made->number[0] = a; made->number[1] = b;,
     T(0), made->random, made->number[0], made->number[1])
KIND(random_integer, add(made, y); made->random = state; made->integer[0] = low; made->integer[1] = high;,
     T(0), made->random, made->integer[0], made->integer[1])
KIND(dropout, add(made, y); add(made, x); made->random = state; made->integer[0] = (int64_t)first; made->number[0] = p;,
     T(0), T(1), made->random, (uint64_t)made->integer[0], made->number[0])
KIND(along, add(made, y); add(made, x); made->integer[0] = axis;, T(0), T(1), (int)made->integer[0])
KIND(along_backward, add(made, dx); add(made, dy); add(made, y); made->integer[0] = axis;,
     T(0), T(1), T(2), (int)made->integer[0])
KIND(cumsum, add(made, y); add(made, x); made->integer[0] = axis; made->integer[1] = reverse;,
     T(0), T(1), (int)made->integer[0], made->integer[1] != 0)
KIND(index, add(made, y); add(made, x); add(made, index); made->integer[0] = axis;,
     T(0), T(1), (int)made->integer[0], T(2))
KIND(gemm, made->gemm = *gemm; made->gemm.a = inside(gemm->a); made->gemm.b = inside(gemm->b);
     made->gemm.c = inside(gemm->c); made->gemm.bias = inside(gemm->bias);, &made->gemm)
KIND(layer_norm, add(made, y); add(made, mean); add(made, rstd); add(made, x); add(made, weight); add(made, bias);
     made->integer[0] = width; made->number[0] = epsilon;,
     T(0), T(1), T(2), T(3), made->integer[0], T(4), T(5), made->number[0])
KIND(layer_norm_backward, add(made, dx); add(made, d_weight); add(made, d_bias); add(made, g); add(made, x);
     add(made, weight); add(made, mean); add(made, rstd); made->integer[0] = width;,
     T(0), T(1), T(2), T(3), T(4), made->integer[0], T(5), T(6), T(7))
KIND(batch_norm_statistics, add(made, mean); add(made, variance); add(made, x);, T(0), T(1), T(2))
KIND(batch_norm, add(made, y); add(made, x); add(made, mean); add(made, rstd); add(made, weight); add(made, bias);,
     T(0), T(1), T(2), T(3), T(4), T(5))
KIND(batch_norm_backward, add(made, dx); add(made, d_weight); add(made, d_bias); add(made, g); add(made, x);
     add(made, mean); add(made, rstd); add(made, weight); made->integer[0] = training;,
     T(0), T(1), T(2), T(3), T(4), T(5), T(6), T(7), made->integer[0] != 0)
KIND(batch_norm_sums, add(made, sums); add(made, g); add(made, x); add(made, mean);, T(0), T(1), T(2), T(3))
KIND(batch_norm_dx, add(made, dx); add(made, g); add(made, x); add(made, mean); add(made, rstd); add(made, weight);
     add(made, of_g); add(made, of_product);, T(0), T(1), T(2), T(3), T(4), T(5), T(6), T(7))
KIND(axpy, made->integer[0] = dtype; made->integer[1] = count; made->number[0] = a; made->from = inside(x);
     made->to = inside(y);, (ls_dtype)made->integer[0], made->integer[1], made->number[0], made->from, made->to)
KIND(scale, made->integer[0] = dtype; made->integer[1] = count; made->number[0] = a; made->to = inside(y);,
     (ls_dtype)made->integer[0], made->integer[1], made->number[0], made->to)
KIND(dot, made->integer[0] = dtype; made->integer[1] = count; made->from = inside(x); made->other = inside(y);
     made->to = inside(sum);, (ls_dtype)made->integer[0], made->integer[1], made->from, made->other, made->to)
KIND(measure, made->integer[0] = dtype; made->integer[1] = count; made->from = inside(x); made->to = inside(result);,
     (ls_dtype)made->integer[0], made->integer[1], made->from, made->to)
KIND(sgd, made->sgd = *step; made->sgd.parameter = inside(step->parameter); made->sgd.gradient = inside(step->gradient);
     made->sgd.momentum_buffer = inside(step->momentum_buffer);, &made->sgd)
KIND(adam, made->adam = *step; made->adam.parameter = inside(step->parameter);
     made->adam.gradient = inside(step->gradient); made->adam.first_moment = inside(step->first_moment);
     made->adam.second_moment = inside(step->second_moment);
     made->adam.largest_second_moment = inside(step->largest_second_moment);, &made->adam)
KIND(rmsprop, made->rmsprop = *step; made->rmsprop.parameter = inside(step->parameter);
     made->rmsprop.gradient = inside(step->gradient); made->rmsprop.square_average = inside(step->square_average);
     made->rmsprop.gradient_average = inside(step->gradient_average);
     made->rmsprop.momentum_buffer = inside(step->momentum_buffer);, &made->rmsprop)
KIND(adagrad, made->adagrad = *step; made->adagrad.parameter = inside(step->parameter);
     made->adagrad.gradient = inside(step->gradient); made->adagrad.sum = inside(step->sum);, &made->adagrad)

/* The tensors of a class loss are those from `first` on. */
static void add_loss(job *made, const ls_class_loss *loss) {
    made->integer[3] = made->tensors;
    made->loss = *loss;
    add(made, loss->target);
    add(made, loss->weight);
}
static const ls_class_loss *loss_of(job *made) {
    made->loss.target = T((int)made->integer[3]);
    made->loss.weight = T((int)made->integer[3] + 1);
    return &made->loss;
}
KIND(nll, add(made, element); add(made, row_weight); add(made, log_probability); add_loss(made, loss);,
     T(0), T(1), T(2), loss_of(made))
KIND(class_loss_backward, add(made, d); add(made, g); add(made, log_probability); made->number[0] = scale;
     add_loss(made, loss);, T(0), T(1), made->number[0], T(2), loss_of(made))
/* clang-format on */

#define NAMES_pair                  y, x
#define NAMES_fill                  y, value
#define NAMES_count_up              y
#define NAMES_random                y, state, a, b
#define NAMES_random_integer        y, state, low, high
#define NAMES_dropout               y, x, state, first, p
#define NAMES_along                 y, x, axis
#define NAMES_along_backward        dx, dy, y, axis
#define NAMES_cumsum                y, x, axis, reverse
#define NAMES_index                 y, x, axis, index
#define NAMES_gemm                  gemm
#define NAMES_nll                   element, row_weight, log_probability, loss
#define NAMES_class_loss_backward   d, g, scale, log_probability, loss
#define NAMES_layer_norm            y, mean, rstd, x, width, weight, bias, epsilon
#define NAMES_layer_norm_backward   dx, d_weight, d_bias, g, x, width, weight, mean, rstd
#define NAMES_batch_norm_statistics mean, variance, x
#define NAMES_batch_norm            y, x, mean, rstd, weight, bias
#define NAMES_batch_norm_backward   dx, d_weight, d_bias, g, x, mean, rstd, weight, training
#define NAMES_batch_norm_sums       sums, g, x, mean
#define NAMES_batch_norm_dx         dx, g, x, mean, rstd, weight, of_g, of_product
#define NAMES_axpy                  dtype, count, a, x, y
#define NAMES_scale                 dtype, count, a, y
#define NAMES_dot                   dtype, count, x, y, sum
#define NAMES_measure               dtype, count, x, result
#define NAMES_sgd                   step
#define NAMES_adam                  step
#define NAMES_rmsprop               step
#define NAMES_adagrad               step

static ls_status run_map(job *made) {
    const ls_tensor *operands[3] = {made->tensors > 1 ? T(1) : NULL, made->tensors > 2 ? T(2) : NULL,
                                    made->tensors > 3 ? T(3) : NULL};
    return ((ls_map_kernel *)made->kernel)(NULL, T(0), operands, made->number);
}

static ls_status ask_map(ls_map_kernel *kernel, int operand_count, int parameter_count, LS_PARAMETERS_map) {
    job *made = begin((any_kernel *)kernel, run_map);
    add(made, y);
    for (int i = 0; i < operand_count; i++) {
        add(made, operands[i]);
    }
    for (int i = 0; i < parameter_count; i++) {
        made->number[i] = parameters[i];
    }
    return push(stream, made);
}

#define SHADOW_MAP(name, operand_count, parameter_count)                                                               \
    static ls_status shadow_##name(LS_PARAMETERS_map) {                                                                \
        return ask_map(ls_cpu_kernels.name, operand_count, parameter_count, stream, y, operands, parameters);          \
    }
#define SHADOW(name, type)                                                                                             \
    static ls_status shadow_##name(LS_PARAMETERS_##type) {                                                             \
        return ask_##type(ls_cpu_kernels.name, stream, NAMES_##type);                                                  \
    }
LS_MAPS(SHADOW_MAP)
LS_OTHER_KERNELS(SHADOW)

#define ROW_OF_MAP(name, operand_count, parameter_count) .name = shadow_##name,
#define ROW(name, type)                                  .name = shadow_##name,
static const ls_kernels kernels = {LS_MAPS(ROW_OF_MAP) LS_OTHER_KERNELS(ROW)};

/* ---- the device
 * ------------------------------------------------------------------------------------------------------ */

static const ls_device shadow = {
    .name = "shadow:0",
    .kernels = &kernels,
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

__attribute__((constructor)) static void add_shadow(void) {
    if (pthread_key_create(&stream_key, end_thread) != 0 || ls_device_add(&shadow) != LS_OK) {
        die("cannot be set up");
    }
}
