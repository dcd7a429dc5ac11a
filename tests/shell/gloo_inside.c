/*
 * Rank 1 is ended or stopped in the midst of libgloo's collectives: gloo_inside CALL WHAT MILLISECONDS TIMEOUT, where
 * CALL is allreduce, broadcast or alltoall, WHAT a signal's number, and MILLISECONDS when it comes after the first
 * call. Each survivor prints how its call ended and after how many milliseconds.
 */
#include <lockstep/comm.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COUNT = 1 << 21 };

static float sent[COUNT], received[COUNT];

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

static ls_status call(ls_comm *world, const char *name) {
    if (strcmp(name, "allreduce") == 0) {
        return ls_comm_allreduce(world, sent, received, COUNT, LS_F32, LS_SUM, NULL);
    }
    if (strcmp(name, "broadcast") == 0) {
        return ls_comm_broadcast(world, received, COUNT, LS_F32, 0, NULL);
    }
    return ls_comm_alltoall(world, sent, received, (size_t)(COUNT / ls_comm_size(world)), LS_F32, NULL);
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
    if (world == NULL || ls_comm_set_any_order(world, true) != LS_OK) {
        fprintf(stderr, "%s\n", ls_error_message());
        return 2;
    }
    ls_status status = call(world, argv[1]); /* the ranks connect */
    if (ls_comm_rank(world) == 1 && pthread_create(&striker, NULL, strike, &p) != 0) {
        return 2;
    }
    const double begun = now();
    while (status == LS_OK && now() - begun < 60000) {
        status = call(world, argv[1]);
    }
    printf("%d: %s: %s\n%d took %.0f ms\n", ls_comm_rank(world), ls_status_name(status), ls_error_message(),
           ls_comm_rank(world), now() - begun);
    fflush(stdout);
    ls_comm_free(world);
    return status == LS_OK ? 2 : 3;
}
