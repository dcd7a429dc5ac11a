/*
 * Two threads of a rank that use one communicator at the same time get an error, which also reaches the other ranks and
 * blames no other rank. It is not an error if one thread begins work and another waits for it.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "comm/record.h"

enum { TRIES = 50000 };

static const char sentence[] = "two threads use this communicator at once: use it from one thread at a time, or give "
                               "each thread its own communicator (ls_comm_split)";

/* The task of a second thread of the last rank, and its result. */
typedef struct task {
    ls_comm *comm;
    ls_work *work;
    ls_status status;
    char message[512];
} task;

static void *receive(void *argument) {
    task *own = argument;
    float number = 0;
    own->status = ls_comm_recv(own->comm, &number, 1, LS_F32, 0, 5, NULL);
    strncpy(own->message, ls_error_message(), sizeof own->message - 1);
    return NULL;
}

static bool says(const char *message) {
    const char *found = strstr(message, sentence);
    return found != NULL && strncmp(message, "ls_comm_", 8) == 0;
}

/* Sends messages to this rank itself until the other thread is in a call, too. */
static ls_status send_until_refused(ls_comm *comm) {
    const float number = 1;
    const int rank = ls_comm_rank(comm);
    ls_status status = LS_OK;
    for (int i = 0; i < TRIES && status == LS_OK; i++) {
        status = ls_comm_send(comm, &number, 1, LS_F32, rank, 7, NULL);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return status;
}

/*
 * On the last rank, the second thread waits for a message. Rank 0 sends it after the first thread was refused, or
 * never.
 */
static ls_status use_at_once(ls_comm *comm, ls_comm *control) {
    task other = {.comm = comm};
    pthread_t thread;
    LS_CHECK(pthread_create(&thread, NULL, receive, &other) == 0);
    const ls_status status = send_until_refused(comm);
    const bool said = says(ls_error_message());
    const ls_status met = ls_comm_barrier(control, NULL);
    pthread_join(thread, NULL);
    LS_CHECK(met == LS_OK && status == LS_ERR_STATE && said);
    LS_CHECK(other.status == LS_ERR_STATE && says(other.message));
    LS_CHECK(ls_comm_barrier(comm, NULL) == LS_ERR_STATE && says(ls_error_message()));
    return LS_OK;
}

/* The other ranks get the reason from the last rank. */
static ls_status stand_by(ls_comm *comm, ls_comm *control, bool sends) {
    const float number = 3;
    const int last = ls_comm_size(comm) - 1;
    LS_TRY(ls_comm_barrier(control, NULL));
    if (ls_comm_rank(comm) == 0 && sends) {
        const ls_status sent = ls_comm_send(comm, &number, 1, LS_F32, last, 5, NULL);
        LS_CHECK(sent == LS_OK || sent == LS_ERR_PEER);
    }
    LS_CHECK(ls_comm_barrier(comm, NULL) == LS_ERR_PEER);
    LS_EXPECT_MESSAGE(sentence);
    return LS_OK;
}

static void *wait_for_work(void *argument) {
    task *own = argument;
    own->status = ls_work_wait(own->work);
    return NULL;
}

/* One thread begins work, and another waits for it afterwards. */
static ls_status hand_over_work(ls_comm *comm) {
    float number = 1;
    task other = {.comm = comm};
    pthread_t thread;
    LS_TRY(ls_comm_allreduce(comm, &number, &number, 1, LS_F32, LS_SUM, &other.work));
    LS_CHECK(pthread_create(&thread, NULL, wait_for_work, &other) == 0);
    pthread_join(thread, NULL);
    LS_CHECK(other.status == LS_OK && number == (float)ls_comm_size(comm));
    return ls_comm_barrier(comm, NULL);
}

/* ---- the second half of ls_comm_split ---------------------------------------------------------------------------- */

static _Thread_local const ls_backend *real;
static _Thread_local ls_backend interrupted;
static _Thread_local task intruder;

static void *meet(void *argument) {
    task *own = argument;
    own->status = ls_comm_barrier(own->comm, NULL);
    strncpy(own->message, ls_error_message(), sizeof own->message - 1);
    return NULL;
}

/* The backend's part of ls_comm_split. Meanwhile, another thread makes a call. */
static ls_status split_interrupted(void *state, const ls_join_context *join, const int *ranks, void **result) {
    pthread_t thread;
    LS_CHECK(pthread_create(&thread, NULL, meet, &intruder) == 0);
    pthread_join(thread, NULL);
    return real->split(state, join, ranks, result);
}

/* A second thread of the last rank makes a call after the ranks have exchanged their arguments. */
static ls_status split_at_once(ls_comm *world) {
    ls_comm *comm = NULL, *part = NULL;
    LS_TRY(ls_comm_split(world, 0, 0, &comm));
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    real = comm->backend;
    interrupted = *real;
    interrupted.split = split_interrupted;
    intruder = (task){.comm = comm};
    comm->backend = last ? &interrupted : real;
    const ls_status status = ls_comm_split(comm, 0, 0, &part);
    const bool said = says(ls_error_message());
    comm->backend = real;
    if (last) {
        LS_CHECK(status == LS_ERR_STATE && said && part == NULL);
        LS_CHECK(intruder.status == LS_ERR_STATE && says(intruder.message));
        LS_CHECK(ls_comm_barrier(comm, NULL) == LS_ERR_STATE);
    } else {
        LS_CHECK(status == LS_OK || status == LS_ERR_PEER);
        LS_CHECK(ls_comm_barrier(comm, NULL) == LS_ERR_PEER);
        LS_EXPECT_MESSAGE(sentence);
    }
    ls_comm_free(part);
    ls_comm_free(comm);
    return ls_comm_barrier(world, NULL);
}

ls_status rank_test(ls_comm *world) {
    ls_comm *comm = NULL;
    LS_TRY(hand_over_work(world));
    LS_TRY(split_at_once(world));
    if (ls_comm_size(world) == 1) { /* no call waits */
        return LS_OK;
    }
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    for (int sends = 0; sends < 2; sends++) {
        LS_TRY(ls_comm_split(world, 0, 0, &comm));
        const ls_status status = last ? use_at_once(comm, world) : stand_by(comm, world, sends);
        ls_comm_free(comm);
        LS_TRY(status);
    }
    return LS_OK;
}
