/* The part of the CUDA runtime that backend nccl uses. See double.h. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/nccl_double/double.h"

enum { MOST_STREAMS = 64 };

typedef struct job {
    struct job *next;
    void (*run)(void *argument);
    void *argument;
} job;

typedef struct stream {
    cudaStream_t handle;
    pthread_t thread;
    job *first, *last;
    unsigned long asked, done;
} stream;

struct CUevent_st {
    stream *of; /* NULL: never recorded */
    unsigned long at;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static stream streams[MOST_STREAMS];
static int stream_count;

_Noreturn void double_die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "nccl_double: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    _exit(70);
}

void double_rest(void) {
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

bool double_setting(const char *name, char *value, size_t capacity) {
    const char *at = getenv("LOCKSTEP_TEST_NCCL");
    const size_t length = strlen(name);
    for (; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        if (strncmp(at, name, length) == 0 &&
            strchr("=,", at[length]) != NULL) { /* the end of the string also ends a name */
            const char *from = at + length + (at[length] == '=');
            snprintf(value, capacity, "%.*s", (int)strcspn(from, ","), from);
            return true;
        }
    }
    return false;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static void *work(void *argument) {
    stream *self = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (self->first == NULL) {
            pthread_cond_wait(&change, &lock);
        }
        job *next = self->first;
        self->first = next->next;
        pthread_mutex_unlock(&lock);
        double_rest(); /* a GPU is late */
        next->run(next->argument);
        free(next->argument);
        free(next);
        pthread_mutex_lock(&lock);
        self->done++;
    }
    return NULL;
}

static stream *find(cudaStream_t handle) {
    for (int i = 0; i < stream_count; i++) {
        if (streams[i].handle == handle) {
            return &streams[i];
        }
    }
    if (stream_count == MOST_STREAMS) {
        double_die("more than %d streams", MOST_STREAMS);
    }
    stream *made = &streams[stream_count++];
    made->handle = handle;
    if (pthread_create(&made->thread, NULL, work, made) != 0) {
        double_die("no thread for a stream");
    }
    return made;
}

void double_push(cudaStream_t handle, void (*run)(void *argument), void *argument) {
    job *made = malloc(sizeof *made);
    if (made == NULL || handle == NULL) {
        double_die("no memory for a job, or no stream");
    }
    *made = (job){.run = run, .argument = argument};
    pthread_mutex_lock(&lock);
    stream *to = find(handle);
    if (to->first == NULL) {
        to->first = made;
    } else {
        to->last->next = made;
    }
    to->last = made;
    to->asked++;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

/* ---- the runtime ------------------------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

/* Each process reports a different GPU, identified by its process id, unless `onegpu` is set. */
cudaError_t cudaDeviceGetPCIBusId(char *bus, int length, int device) {
    char nothing[4];
    (void)device;
    snprintf(bus, (size_t)length, "%08x:00.0", double_setting("onegpu", nothing, sizeof nothing) ? 0 : (int)getpid());
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess ? "no error" : "an error of the double";
}

cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes) {
    *memory = malloc(bytes);
    return *memory != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory) {
    free(memory);
    return cudaSuccess;
}

typedef struct copied {
    void *to;
    const void *from;
    size_t bytes;
} copied;

static void run_copy(void *argument) {
    const copied *c = argument;
    memmove(c->to, c->from, c->bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t handle) {
    copied *made = malloc(sizeof *made);
    if (made == NULL || kind != cudaMemcpyDeviceToDevice) {
        double_die("a copy of a kind other than %d", (int)cudaMemcpyDeviceToDevice);
    }
    *made = (copied){to, from, bytes};
    double_push(handle, run_copy, made);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    (void)flags;
    *event = calloc(1, sizeof **event);
    return *event != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
    pthread_mutex_lock(&lock);
    event->of = find(handle);
    event->at = event->of->asked;
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    pthread_mutex_lock(&lock);
    const bool passed = event->of == NULL || event->of->done >= event->at;
    pthread_mutex_unlock(&lock);
    return passed ? cudaSuccess : cudaErrorNotReady;
}
