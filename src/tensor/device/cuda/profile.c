/*
 * LOCKSTEP_CUDA_PROFILE=1: prints a table of GPU time per kernel to standard error when the program exits. An event is
 * recorded after each kernel. A kernel's time is the time since the previous event, so time in which the GPU waits for
 * the host counts as time of the next kernel. The first kernel of a stream is not timed. Kernels that the program's
 * first thread starts after its last wait are not counted.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"
#include "tensor/device/cuda/runtime.h"

enum { MOST_NAMES = 256, PENDING = 4096 };

typedef struct kernel_time {
    const char *name;
    long count;
    double milliseconds;
} kernel_time;

static kernel_time table[MOST_NAMES];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

/* Events of a stream whose times have not been added up yet. The first event marks the start of the first kernel. */
struct ls_cuda_profile {
    int count;
    cudaEvent_t event[PENDING + 1];
    const char *name[PENDING];
};

bool ls_cuda_profiles(void) {
    static _Atomic int wanted = -1;
    if (wanted < 0) {
        const char *text = getenv("LOCKSTEP_CUDA_PROFILE");
        wanted = text != NULL && strcmp(text, "1") == 0;
    }
    return wanted == 1;
}

static void add(const char *name, double milliseconds) {
    int i = 0;
    while (i < MOST_NAMES - 1 && table[i].name != NULL && strcmp(table[i].name, name) != 0) {
        i++;
    }
    table[i].name = name;
    table[i].count++;
    table[i].milliseconds += milliseconds;
}

static struct ls_cuda_profile *profile_of(ls_stream *stream) {
    if (stream->profile == NULL) {
        stream->profile = calloc(1, sizeof *stream->profile);
        for (int i = 0; stream->profile != NULL && i <= PENDING; i++) {
            (void)cudaEventCreate(&stream->profile->event[i]);
        }
        if (stream->profile != NULL) {
            (void)cudaEventRecord(stream->profile->event[0], stream->cuda);
        }
    }
    return stream->profile;
}

void ls_cuda_profile_collect(ls_stream *stream) {
    struct ls_cuda_profile *profile = stream->profile;
    if (profile == NULL || profile->count == 0) {
        return;
    }
    (void)cudaEventSynchronize(profile->event[profile->count]);
    pthread_mutex_lock(&table_lock);
    for (int i = 0; i < profile->count; i++) {
        float milliseconds = 0;
        (void)cudaEventElapsedTime(&milliseconds, profile->event[i], profile->event[i + 1]);
        add(profile->name[i], (double)milliseconds);
    }
    pthread_mutex_unlock(&table_lock);
    profile->count = 0;
    (void)cudaEventRecord(profile->event[0], stream->cuda);
}

void ls_cuda_profile_end(ls_stream *stream) {
    if (stream->profile != NULL) {
        ls_cuda_profile_collect(stream);
        for (int i = 0; i <= PENDING; i++) {
            (void)cudaEventDestroy(stream->profile->event[i]);
        }
        free(stream->profile);
        stream->profile = NULL;
    }
}

void ls_cuda_profile_kernel(ls_stream *stream, const char *name) {
    struct ls_cuda_profile *profile = profile_of(stream);
    if (profile == NULL) {
        return;
    }
    profile->name[profile->count++] = name;
    (void)cudaEventRecord(profile->event[profile->count], stream->cuda);
    if (profile->count == PENDING) {
        ls_cuda_profile_collect(stream);
    }
}

static int by_time(const void *a, const void *b) {
    const double x = ((const kernel_time *)a)->milliseconds, y = ((const kernel_time *)b)->milliseconds;
    return (x < y) - (x > y);
}

__attribute__((destructor)) static void print_table(void) {
    double all = 0;
    long calls = 0;
    int count = 0;
    for (; count < MOST_NAMES && table[count].name != NULL; count++) {
        all += table[count].milliseconds;
        calls += table[count].count;
    }
    if (count == 0) {
        return;
    }
    qsort(table, (size_t)count, sizeof table[0], by_time);
    const locale_t before = ls_locale_enter();
    fprintf(stderr, "%-32s %10s %12s %10s %7s\n", "kernel", "calls", "total ms", "mean us", "share");
    for (int i = 0; i < count; i++) {
        fprintf(stderr, "%-32s %10ld %12.3f %10.2f %6.1f%%\n", table[i].name, table[i].count, table[i].milliseconds,
                1000 * table[i].milliseconds / (double)table[i].count,
                100 * table[i].milliseconds / (all > 0 ? all : 1));
    }
    fprintf(stderr, "%-32s %10ld %12.3f\n", "all", calls, all);
    ls_locale_leave(before);
}
