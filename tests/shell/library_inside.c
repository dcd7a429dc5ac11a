/*
 * Rank 1 interrupts collectives of libgloo, or of NCCL's test double (tests/nccl_double): library_inside CALL WHAT
 * MILLISECONDS TIMEOUT. CALL is allreduce, broadcast or alltoall. WHAT is the number of a signal, sent MILLISECONDS
 * after the first call; or "host", with which rank 1 has its buffers in host memory, which is a mismatch, and all ranks
 * continue; or "nothing". Each surviving rank prints the result of its call and its duration in milliseconds.
 */
#include <lockstep/comm.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/device_buffers.h"

enum { COUNT = 1 << 21, DEVICE_COUNT = 1 << 18 };

static float sent[COUNT], received[COUNT];
static size_t count;

typedef struct plan {
    int number;
    long milliseconds;
} plan;

static void *strike(void *argument) {
    const plan *p = argument;
    nanosleep(&(struct timespec){.tv_sec = p->milliseconds / 1000, .tv_nsec = p->milliseconds % 1000 * 1000000}, NULL);
    raise(p->number);
    return NULL;
}

static ls_status call_there(ls_comm *world, const char *name) {
    if (strcmp(name, "allreduce") == 0) {
        return ls_comm_allreduce(world, sent, received, count, LS_F32, LS_SUM, NULL);
    }
    if (strcmp(name, "broadcast") == 0) {
        return ls_comm_broadcast(world, received, count, LS_F32, 0, NULL);
    }
    return ls_comm_alltoall(world, sent, received, count / (size_t)ls_comm_size(world), LS_F32, NULL);
}

/* Any stream except NULL is valid: the double's memory is the process's own. */
static ls_status call(ls_comm *world, const char *name, bool on_device) {
    ls_comm_use_stream(world, on_device ? world : NULL);
    const ls_status status = call_there(world, name);
    ls_comm_use_stream(world, NULL);
    return status;
}

/* A mismatched call changes nothing. */
static ls_status disagree(ls_comm *world, const char *name) {
    const ls_status status = call(world, name, ls_comm_rank(world) != 1);
    printf("%d: %s: %s\n", ls_comm_rank(world), ls_status_name(status), ls_error_message());
    return status == LS_ERR_MISMATCH ? call(world, name, true) : LS_ERR_INTERNAL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

int main(int argc, char **argv) {
    pthread_t striker;
    if (argc != 5) {
        return 2;
    }
    plan p = {.number = atoi(argv[2]), .milliseconds = atol(argv[3])};
    ls_comm *world = ls_init(&(ls_init_options){.timeout = atof(argv[4])});
    const bool on_device = world != NULL && ls_comm_takes(world, true, LS_F32, LS_SUM);
    if (world == NULL || (!on_device && ls_comm_set_any_order(world, true) != LS_OK)) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 2;
    }
    count = on_device ? DEVICE_COUNT : COUNT;
    if (on_device != (strcmp(ls_comm_backend(world), "nccl") == 0)) {
        return 2;
    }
    ls_status status = call(world, argv[1], on_device); /* the ranks connect */
    if (status == LS_OK && strcmp(argv[2], "host") == 0) {
        status = disagree(world, argv[1]);
        ls_comm_free(world);
        return status == LS_OK ? 0 : 3;
    }
    if (p.number != 0 && ls_comm_rank(world) == 1 && pthread_create(&striker, NULL, strike, &p) != 0) {
        return 2;
    }
    const double begun = now();
    while (status == LS_OK && now() - begun < 60000) {
        status = call(world, argv[1], on_device);
    }
    printf("%d: %s: %s\n%d took %.0f ms\n", ls_comm_rank(world), ls_status_name(status), ls_error_message(),
           ls_comm_rank(world), now() - begun);
    fflush(stdout);
    ls_comm_free(world);
    return status == LS_OK ? 2 : 3;
}
