/*
 * Reports the state of the machine's first two cores, so that a measurement can wait for a good state:
 *
 *     near    two physical cores that share a cache
 *     apart   two physical cores without a common cache
 *     shared  two threads of one physical core
 *     busy    another load takes part of a core
 *
 * It runs a multiply-add loop on one core and on both at once, and passes a cache line between them. It prints the
 * state and the measured values. With --wait SECONDS it repeats until the state is "near" or the time has passed. The
 * exit status is 0 if the state is "near".
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <lockstep/base.h>

enum { LOOPS = 4000000, ROUND_TRIPS = 20000, LANES = 8, SAMPLES = 5 };

static void pin(size_t core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

/* Returns multiply-adds per nanosecond. */
static double work(void) {
    double lane[LANES] = {1, 2, 3, 4, 5, 6, 7, 8};
    const uint64_t began = ls_clock_ns();
    for (int i = 0; i < LOOPS; i++) {
        for (int k = 0; k < LANES; k++) {
            lane[k] = lane[k] * 0.999999 + 1e-6;
        }
    }
    volatile double sink = lane[0] + lane[LANES - 1];
    (void)sink;
    return (double)LOOPS * LANES / (double)(ls_clock_ns() - began);
}

typedef struct worker {
    size_t core;
    pthread_barrier_t *start;
    double speed;
} worker;

static void *run_worker(void *argument) {
    worker *self = argument;
    pin(self->core);
    pthread_barrier_wait(self->start);
    self->speed = work();
    return NULL;
}

/* Returns the total speed of both cores when both are busy. */
static double both(void) {
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, 2);
    worker workers[2] = {{.core = 0, .start = &start}, {.core = 1, .start = &start}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        pthread_create(&threads[i], NULL, run_worker, &workers[i]);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_barrier_destroy(&start);
    return workers[0].speed + workers[1].speed;
}

static _Alignas(64) atomic_int ball;

static void *answer(void *argument) {
    (void)argument;
    pin(1);
    for (int i = 0; i < ROUND_TRIPS; i++) {
        while (atomic_load_explicit(&ball, memory_order_acquire) != 2 * i + 1) {
        }
        atomic_store_explicit(&ball, 2 * i + 2, memory_order_release);
    }
    return NULL;
}

/* Returns the time in nanoseconds to transfer a cache line from one core to the other. */
static double line_time(void) {
    pthread_t thread;
    atomic_store(&ball, 0);
    pthread_create(&thread, NULL, answer, NULL);
    const uint64_t began = ls_clock_ns();
    for (int i = 0; i < ROUND_TRIPS; i++) {
        atomic_store_explicit(&ball, 2 * i + 1, memory_order_release);
        while (atomic_load_explicit(&ball, memory_order_acquire) != 2 * i + 2) {
        }
    }
    const double elapsed = (double)(ls_clock_ns() - began);
    pthread_join(thread, NULL);
    return elapsed / (2.0 * ROUND_TRIPS);
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(double (*measure)(void)) {
    double samples[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        samples[i] = measure();
    }
    qsort(samples, SAMPLES, sizeof *samples, ascending);
    return samples[SAMPLES / 2];
}

static double best_alone; /* the highest speed of one core so far, to detect other loads */

static const char *probe(void) {
    pin(0);
    const double alone = median_of(work);
    const double together = median_of(both);
    const double line = median_of(line_time);
    best_alone = alone > best_alone ? alone : best_alone;
    const double gain = together / alone;
    const char *state = alone < 0.7 * best_alone ? "busy" : gain < 1.5 ? "shared" : line > 130 ? "apart" : "near";
    printf("cores: %s (both together do %.2f times what one does alone; a cache line takes %.0f ns)\n", state, gain,
           line);
    fflush(stdout);
    return state;
}

int main(int argc, char **argv) {
    const double wait = argc == 3 && strcmp(argv[1], "--wait") == 0 ? strtod(argv[2], NULL) : 0;
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) {
        printf("cores: one only\n");
        return 1;
    }
    const double end = ls_clock_seconds() + wait;
    while (strcmp(probe(), "near") != 0) {
        if (ls_clock_seconds() >= end) {
            return 1;
        }
        sleep(2);
    }
    return 0;
}
