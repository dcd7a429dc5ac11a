/*
 * A rank that waits on one communicator makes progress on its other communicators: call orders that would deadlock if
 * each communicator progressed alone. Tests pairs of ranks, each with its own communicators.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm/progress.h"

enum { MESSAGES = 40, LARGE = 1500000, MIDDLING = 70000 };

/* Two communicators of the same two ranks, and buffers. */
typedef struct pair {
    ls_comm *left;
    ls_comm *right;
    int rank;
    int other;
    unsigned char *out;
    unsigned char *in;
} pair;

static unsigned char sent(int from, size_t i) {
    return (unsigned char)((i * 2654435761U + (unsigned)from * 40503U) >> 9);
}

static void fill(const pair *p) {
    for (size_t i = 0; i < LARGE; i++) {
        p->out[i] = sent(p->rank, i);
        p->in[i] = 0;
    }
}

static bool got(const pair *p, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (p->in[i] != sent(p->other, i)) {
            return false;
        }
    }
    return true;
}

/*
 * The message is received before its sender waits for it: the sender first waits for the receiver on a second
 * communicator.
 */
static ls_status send_and_meet_elsewhere(const pair *p, size_t bytes) {
    fill(p);
    if (p->rank == 0) {
        ls_work *work = NULL;
        LS_TRY(ls_comm_send(p->left, p->out, bytes, LS_U8, 1, 3, &work));
        LS_TRY(ls_comm_barrier(p->right, NULL));
        return ls_work_wait(work);
    }
    LS_TRY(ls_comm_recv(p->left, p->in, bytes, LS_U8, 0, 3, NULL));
    LS_CHECK(got(p, bytes));
    return ls_comm_barrier(p->right, NULL);
}

/*
 * The sender waits until a receive in progress has taken the message, while the receiver waits for the sender on a
 * second communicator.
 */
static ls_status receive_and_meet_elsewhere(const pair *p, size_t bytes) {
    fill(p);
    if (p->rank == 0) {
        LS_TRY(ls_comm_send(p->left, p->out, bytes, LS_U8, 1, 4, NULL));
        return ls_comm_barrier(p->right, NULL);
    }
    ls_work *work = NULL;
    LS_TRY(ls_comm_recv(p->left, p->in, bytes, LS_U8, 0, 4, &work));
    LS_TRY(ls_comm_barrier(p->right, NULL));
    LS_TRY(ls_work_wait(work));
    LS_CHECK(got(p, bytes));
    return LS_OK;
}

/*
 * One rank waits for a collective before a call on a second communicator, and the other rank waits after it. Tests
 * several such calls.
 */
static ls_status cross_collectives(const pair *p, int elsewhere) {
    int32_t *numbers = calloc(LARGE / 4, sizeof *numbers);
    LS_CHECK(numbers != NULL);
    numbers[LARGE / 4 - 1] = p->rank + 1;
    ls_work *work = NULL;
    ls_comm *made = NULL;
    void *memory = NULL;
    LS_TRY(ls_comm_allreduce(p->left, numbers, numbers, LARGE / 4, LS_I32, LS_SUM, &work));
    if (p->rank == 0) {
        LS_TRY(ls_work_wait(work));
    }
    switch (elsewhere) {
    case 0:
        LS_TRY(ls_comm_barrier(p->right, NULL));
        break;
    case 1:
        LS_TRY(ls_comm_allgather(p->right, p->out, p->in, MIDDLING, LS_U8, NULL));
        break;
    case 2:
        LS_TRY(ls_comm_split(p->right, 0, 0, &made));
        ls_comm_free(made);
        break;
    default:
        memory = ls_comm_alloc(p->right, 5000);
        LS_CHECK(memory != NULL);
        ls_comm_release(p->right, memory);
        break;
    }
    if (p->rank == 1) {
        LS_TRY(ls_work_wait(work));
    }
    LS_CHECK(numbers[LARGE / 4 - 1] == 3 && numbers[0] == 0);
    free(numbers);
    return LS_OK;
}

/* Polls for messages that have not arrived, instead of waiting. */
static ls_status look_elsewhere(const pair *p) {
    fill(p);
    ls_work *moved = NULL;
    ls_work *met = NULL;
    if (p->rank == 0) {
        LS_TRY(ls_comm_send(p->left, p->out, LARGE, LS_U8, 1, 5, &moved));
        LS_TRY(ls_comm_barrier(p->right, &met));
        while (!ls_work_done(met)) {
        }
    } else {
        LS_TRY(ls_comm_recv(p->left, p->in, LARGE, LS_U8, 0, 5, NULL));
        LS_CHECK(got(p, LARGE));
        LS_TRY(ls_comm_barrier(p->right, &met));
    }
    LS_TRY(ls_work_wait(met));
    return ls_work_wait(moved);
}

/*
 * Before it receives a large message, each rank sends the other more than fits. The first rank to get its message then
 * waits for the other on the second communicator. The other rank still waits for the confirmation of its own message.
 */
static ls_status answer_behind_many(const pair *p) {
    fill(p);
    ls_work *small[MESSAGES];
    ls_work *large[2];
    for (int i = 0; i < MESSAGES; i++) {
        LS_TRY(ls_comm_send(p->left, p->out, 8000, LS_U8, p->other, 10 + i, &small[i]));
    }
    LS_TRY(ls_comm_send(p->left, p->out, LARGE, LS_U8, p->other, 6, &large[0]));
    LS_TRY(ls_comm_recv(p->left, p->in, LARGE, LS_U8, p->other, 6, &large[1]));
    if (p->rank == 0) {
        LS_TRY(ls_work_wait(large[0]));
        LS_TRY(ls_work_wait(large[1]));
        LS_TRY(ls_comm_barrier(p->right, NULL));
    } else {
        LS_TRY(ls_work_wait(large[1]));
        LS_TRY(ls_comm_barrier(p->right, NULL));
        LS_TRY(ls_work_wait(large[0]));
    }
    LS_CHECK(got(p, LARGE));
    for (int i = MESSAGES - 1; i >= 0; i--) {
        LS_TRY(ls_comm_recv(p->left, p->in, 8000, LS_U8, p->other, 10 + i, NULL));
        LS_CHECK(got(p, 8000));
    }
    for (int i = 0; i < MESSAGES; i++) {
        LS_TRY(ls_work_wait(small[i]));
    }
    return LS_OK;
}

/* More rendezvous messages are in progress than there are slots for replies. */
static ls_status many_large(const pair *p) {
    enum { COUNT = 150 };
    fill(p);
    ls_work *sends[COUNT];
    for (int i = 0; i < COUNT; i++) {
        LS_TRY(ls_comm_send(p->left, p->out, (size_t)(LARGE - i), LS_U8, p->other, i, &sends[i]));
    }
    for (int i = COUNT - 1; i >= 0; i--) {
        LS_TRY(ls_comm_recv(p->left, p->in, (size_t)(LARGE - i), LS_U8, p->other, i, NULL));
        LS_CHECK(p->in[0] == sent(p->other, 0) && p->in[LARGE - i - 1] == sent(p->other, (size_t)(LARGE - i - 1)));
    }
    for (int i = 0; i < COUNT; i++) {
        LS_TRY(ls_work_wait(sends[i]));
    }
    return LS_OK;
}

/* Messages that are refused also free their slots. */
static ls_status many_refused(const pair *p) {
    enum { COUNT = 70 };
    fill(p);
    ls_work *sends[COUNT];
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < COUNT; i++) {
            LS_TRY(ls_comm_send(p->left, p->out, (size_t)(LARGE - i % 2), LS_U8, p->other, i, &sends[i]));
        }
        for (int i = 0; i < COUNT; i++) {
            const ls_status status = ls_comm_recv(p->left, p->in, LARGE, LS_U8, p->other, i, NULL);
            LS_CHECK(status == (i % 2 == 0 ? LS_OK : LS_ERR_MISMATCH));
        }
        for (int i = 0; i < COUNT; i++) {
            const ls_status status = ls_work_wait(sends[i]);
            LS_CHECK(status == LS_OK || (i % 2 != 0 && status == LS_ERR_MISMATCH));
        }
    }
    return LS_OK;
}

/* A communicator is freed with all kinds of work in progress, while other communicators continue. */
static ls_status close_with_open_work(const pair *p) {
    enum { COUNT = 70 };
    ls_comm *ending = NULL;
    ls_work *works[2 * COUNT] = {NULL};
    LS_TRY(ls_comm_split(p->right, 0, 0, &ending));
    ls_status status = LS_OK; /* the other rank may have freed it already */
    for (int i = 0; i < COUNT && status == LS_OK; i++) {
        status = ls_comm_send(ending, p->out, LARGE, LS_U8, p->other, i, &works[2 * i]);
        if (status == LS_OK) {
            status = ls_comm_recv(ending, p->in, LARGE, LS_U8, p->other, COUNT + i, &works[2 * i + 1]);
        }
    }
    LS_CHECK(status == LS_OK || status == LS_ERR_PEER);
    ls_comm_free(ending);
    LS_TRY(ls_comm_barrier(p->right, NULL));
    for (int i = 0; i < 2 * COUNT; i++) {
        const ls_status ended = ls_work_wait(works[i]);
        LS_CHECK(ended == LS_OK || ended == LS_ERR_STATE || ended == LS_ERR_PEER);
    }
    return LS_OK;
}

/* ---- work used by several threads -------------------------------------------------------------------------------- */

typedef struct handed {
    const pair *pair;
    ls_work *work;
    ls_status status;
} handed;

static void *end_it(void *argument) {
    handed *given = argument;
    given->status = ls_work_wait(given->work);
    if (given->status == LS_OK) {
        given->status = ls_comm_barrier(given->pair->left, NULL);
    }
    return NULL;
}

/* One thread begins work and a second thread waits for it, while the first thread waits on the other communicator. */
static ls_status hand_over(const pair *p) {
    fill(p);
    handed given = {.pair = p};
    pthread_t thread;
    if (p->rank == 0) {
        LS_TRY(ls_comm_send(p->left, p->out, LARGE, LS_U8, 1, 7, &given.work));
    } else {
        LS_TRY(ls_comm_recv(p->left, p->in, LARGE, LS_U8, 0, 7, &given.work));
    }
    LS_CHECK(pthread_create(&thread, NULL, end_it, &given) == 0);
    ls_status status = LS_OK;
    for (int i = 0; i < 20 && status == LS_OK; i++) {
        status = ls_comm_barrier(p->right, NULL);
    }
    LS_CHECK(pthread_join(thread, NULL) == 0);
    LS_TRY(status);
    LS_TRY(given.status);
    LS_CHECK(p->rank == 0 || got(p, LARGE));
    return LS_OK;
}

/*
 * A call that fails while its rank waits on another communicator returns its error only to the thread that waits for
 * this call.
 */
static ls_status fail_elsewhere(const pair *p) {
    fill(p);
    ls_work *refused = NULL;
    LS_CHECK(ls_comm_barrier(NULL, NULL) == LS_ERR_ARGUMENT);
    char before[LS_ERROR_CAPACITY];
    memcpy(before, ls_error_message(), sizeof before);
    if (p->rank == 1) {
        LS_TRY(ls_comm_recv(p->left, p->in, LARGE - 1, LS_U8, 0, 8, &refused));
    }
    LS_TRY(ls_comm_barrier(p->right, NULL));
    if (p->rank == 0) {
        LS_TRY(ls_comm_send(p->left, p->out, LARGE, LS_U8, 1, 8, &refused));
    }
    for (int i = 0; i < 20; i++) {
        LS_TRY(ls_comm_barrier(p->right, NULL));
    }
    LS_CHECK(strcmp(ls_error_message(), before) == 0);
    const ls_status ended = ls_work_wait(refused);
    LS_CHECK(ended == LS_ERR_MISMATCH || (ended == LS_OK && p->rank == 0)); /* the sender may have finished already */
    return LS_OK;
}

/* Finished work no longer keeps its rank awake on other communicators, even if it was neither polled nor waited for. */
static ls_status finish_unseen(const pair *p) {
    ls_work *unseen = NULL;
    int32_t busy = 1;
    LS_TRY(ls_comm_barrier(p->left, &unseen));
    for (int tries = 0; busy != 0; tries++) {
        LS_CHECK(tries < 10000);
        LS_TRY(ls_comm_barrier(p->right, NULL));
        busy = ls_comm_has_others(p->right);
        LS_TRY(ls_comm_allreduce(p->right, &busy, &busy, 1, LS_I32, LS_MAX, NULL));
    }
    LS_CHECK(ls_work_done(unseen) && p->left->open != NULL);
    return ls_work_wait(unseen);
}

static ls_status run_pair(const pair *p) {
    static const size_t sizes[] = {1, 9000, MIDDLING, LARGE};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        LS_TRY(send_and_meet_elsewhere(p, sizes[i]));
        LS_TRY(receive_and_meet_elsewhere(p, sizes[i]));
    }
    for (int elsewhere = 0; elsewhere < 4; elsewhere++) {
        LS_TRY(cross_collectives(p, elsewhere));
    }
    LS_TRY(look_elsewhere(p));
    LS_TRY(finish_unseen(p));
    LS_TRY(answer_behind_many(p));
    LS_TRY(many_large(p));
    LS_TRY(many_refused(p));
    LS_TRY(close_with_open_work(p));
    LS_TRY(fail_elsewhere(p));
    return hand_over(p);
}

ls_status rank_test(ls_comm *world) {
    pair p = {.out = malloc(LARGE), .in = malloc(LARGE)};
    const int rank = ls_comm_rank(world);
    LS_CHECK(p.out != NULL && p.in != NULL);
    LS_TRY(ls_comm_split(world, rank / 2, rank, &p.left));
    LS_TRY(ls_comm_split(world, rank / 2, -rank, &p.right)); /* in reverse order */
    p.rank = ls_comm_rank(p.left);
    p.other = 1 - p.rank;
    if (ls_comm_size(p.left) == 2) {
        LS_TRY(run_pair(&p));
    }
    LS_TRY(ls_comm_barrier(world, NULL));
    ls_comm_free(p.left);
    ls_comm_free(p.right);
    free(p.out);
    free(p.in);
    return LS_OK;
}
