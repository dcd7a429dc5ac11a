/*
 * Two threads of each rank, each with its own communicator, repeatedly split their communicators at the same time: data
 * sent on a split communicator arrives only on it.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <pthread.h>
#include <string.h>

enum { THREADS = 2, ROUNDS = 40, COUNT = 3000 };

typedef struct worker {
    pthread_t thread;
    ls_comm *comm;
    int number;
    ls_status status;
    char message[LS_ERROR_CAPACITY];
} worker;

/* Returns the value that rank `from` of a worker's split communicator sends in a round. */
static int32_t value(const worker *w, int round, int from, size_t i) {
    return (int32_t)(w->number * 1000000 + round * 10000 + from * 1000 + (int)(i % 1000));
}

static ls_status ring(const worker *w, ls_comm *part, int round) {
    int32_t out[COUNT];
    int32_t in[COUNT];
    ls_work *sent = NULL;
    const int rank = ls_comm_rank(part);
    const int size = ls_comm_size(part);
    const int previous = (rank + size - 1) % size;
    for (size_t i = 0; i < COUNT; i++) {
        out[i] = value(w, round, rank, i);
    }
    LS_TRY(ls_comm_send(part, out, COUNT, LS_I32, (rank + 1) % size, round, &sent));
    LS_TRY(ls_comm_recv(part, in, COUNT, LS_I32, previous, round, NULL));
    LS_TRY(ls_work_wait(sent));
    for (size_t i = 0; i < COUNT; i++) {
        LS_CHECK(in[i] == value(w, round, previous, i));
    }
    return LS_OK;
}

static ls_status sums(const worker *w, ls_comm *part, int round) {
    int32_t numbers[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        numbers[i] = value(w, round, ls_comm_rank(part), i);
    }
    LS_TRY(ls_comm_allreduce(part, numbers, numbers, COUNT, LS_I32, LS_SUM, NULL));
    for (size_t i = 0; i < COUNT; i++) {
        int32_t sum = 0;
        for (int from = 0; from < ls_comm_size(part); from++) {
            sum += value(w, round, from, i);
        }
        LS_CHECK(numbers[i] == sum);
    }
    return LS_OK;
}

static ls_status split_again_and_again(const worker *w) {
    ls_comm *before = NULL; /* so that two split communicators exist at once */
    for (int round = 0; round < ROUNDS; round++) {
        ls_comm *part = NULL;
        const int color = round % 3 == 0 ? ls_comm_rank(w->comm) % 2 : 0;
        LS_TRY(ls_comm_split(w->comm, color, round % 2 == 0 ? 0 : -ls_comm_rank(w->comm), &part));
        LS_TRY(ring(w, part, round));
        LS_TRY(sums(w, part, round));
        ls_comm_free(before);
        before = part;
    }
    ls_comm_free(before);
    return LS_OK;
}

static void *work(void *argument) {
    worker *w = argument;
    w->status = split_again_and_again(w);
    strcpy(w->message, ls_error_message());
    return NULL;
}

ls_status rank_test(ls_comm *world) {
    worker workers[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        workers[i].number = i;
        LS_TRY(ls_comm_split(world, 0, 0, &workers[i].comm));
    }
    for (int i = 0; i < THREADS; i++) {
        LS_CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        LS_CHECK(pthread_join(workers[i].thread, NULL) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        if (workers[i].status != LS_OK) {
            ls_error_restore(workers[i].status, workers[i].message);
            return workers[i].status;
        }
        ls_comm_free(workers[i].comm);
    }
    return ls_comm_barrier(world, NULL);
}
