/*
 * Receives from any rank: contents and order of small and large messages, started and waiting receives, receives from
 * given ranks in between, alternation between senders, and errors.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdlib.h>
#include <string.h>

enum { EACH = 6, MOST_RANKS = 8, TAG = 3, DONE = 4, OTHER = 5, MOST = 300000 };

/* Returns an element of the message. */
static int32_t value_of(int sender, int index, size_t element) {
    return (int32_t)(sender * 1000003 + index * 1009 + (int)(element % 997));
}

static ls_status send_one(ls_comm *comm, int32_t *buffer, size_t count, int index, int to, ls_work **work) {
    for (size_t i = 0; i < count; i++) {
        buffer[i] = value_of(ls_comm_rank(comm), index, i);
    }
    return ls_comm_send(comm, buffer, count, LS_I32, to, TAG, work);
}

/* Fails unless the buffer contains the next message of this sender. */
static ls_status check_next(const int32_t *buffer, size_t count, int sender, int *next) {
    LS_CHECK(sender >= 0 && sender < MOST_RANKS);
    const int index = next[sender]++;
    for (size_t i = 0; i < count; i++) {
        LS_CHECK(buffer[i] == value_of(sender, index, i));
    }
    return LS_OK;
}

static ls_status check_all(const ls_comm *comm, const int *next, int each, int receiver) {
    for (int rank = 0; rank < ls_comm_size(comm); rank++) {
        LS_CHECK(next[rank] == (rank != receiver ? each : 0));
    }
    return LS_OK;
}

/* Sends messages from all ranks except the receiver, as asynchronous work. */
static ls_status send_all(ls_comm *comm, size_t count, int receiver) {
    int32_t *buffers = malloc(EACH * count * sizeof *buffers + 1);
    ls_work *works[EACH] = {NULL};
    LS_CHECK(buffers != NULL);
    for (int i = 0; i < EACH; i++) {
        LS_TRY(send_one(comm, buffers + (size_t)i * count, count, i, receiver, &works[i]));
    }
    for (int i = 0; i < EACH; i++) {
        LS_TRY(ls_work_wait(works[i]));
    }
    free(buffers);
    return LS_OK;
}

/* ---- contents and order ------------------------------------------------------------------------------------------ */

/* Returns the first rank from which the receiver has not received all messages. */
static int first_missing(const int *next, int receiver) {
    int rank = 0;
    while (rank == receiver || next[rank] == EACH) {
        rank++;
    }
    return rank;
}

/* With `mixed`, receives from given ranks and from any rank share the messages of each sender, in order. */
static ls_status waiting_receives(ls_comm *comm, size_t count, int receiver, bool mixed) {
    int next[MOST_RANKS] = {0};
    if (ls_comm_rank(comm) != receiver) {
        return send_all(comm, count, receiver);
    }
    int32_t *buffer = malloc(count * sizeof *buffer + 1);
    LS_CHECK(buffer != NULL);
    for (int i = 0; i < EACH * (ls_comm_size(comm) - 1); i++) {
        int source = mixed ? first_missing(next, receiver) : -2;
        LS_TRY(mixed && i % 3 == 0 ? ls_comm_recv(comm, buffer, count, LS_I32, source, TAG, NULL)
                                   : ls_comm_recv_any(comm, buffer, count, LS_I32, TAG, &source, NULL));
        LS_TRY(check_next(buffer, count, source, next));
    }
    free(buffer);
    return check_all(comm, next, EACH, receiver);
}

/* All receives begin before any message is sent. Receives from the same sender end in the order in which they began. */
static ls_status started_receives(ls_comm *comm, size_t count, int receiver) {
    enum { WORKS = EACH * MOST_RANKS };
    const int all = EACH * (ls_comm_size(comm) - 1);
    int32_t *buffers = malloc((size_t)all * count * sizeof *buffers + 1);
    ls_work *works[WORKS] = {NULL};
    int sources[WORKS];
    int next[MOST_RANKS] = {0};
    const bool receives = ls_comm_rank(comm) == receiver;
    LS_CHECK(buffers != NULL);
    for (int i = 0; i < all && receives; i++) {
        LS_TRY(ls_comm_recv_any(comm, buffers + (size_t)i * count, count, LS_I32, TAG, &sources[i], &works[i]));
    }
    LS_TRY(ls_comm_barrier(comm, NULL));
    LS_TRY(receives ? LS_OK : send_all(comm, count, receiver));
    for (int i = all; i-- > 0 && receives;) {
        LS_TRY(ls_work_wait(works[i]));
    }
    for (int i = 0; i < all && receives; i++) {
        LS_TRY(check_next(buffers + (size_t)i * count, count, sources[i], next));
    }
    free(buffers);
    return receives ? check_all(comm, next, EACH, receiver) : LS_OK;
}

/*
 * Waiting messages are received from the senders in turn. With `two_tags`, receives with another tag come in between,
 * and do not change the turns.
 */
static ls_status turns(ls_comm *comm, bool two_tags) {
    const int size = ls_comm_size(comm), rank = ls_comm_rank(comm);
    int32_t buffer = 0;
    if (rank != 0) {
        for (int i = 0; i < EACH; i++) {
            LS_TRY(send_one(comm, &buffer, 1, i, 0, NULL));
            LS_TRY(two_tags && rank == size - 1 ? ls_comm_send(comm, &i, 1, LS_I32, 0, OTHER, NULL) : LS_OK);
        }
        return ls_comm_send(comm, NULL, 0, LS_U8, 0, DONE, NULL);
    }
    for (int from = 1; from < size; from++) { /* now all messages have arrived */
        LS_TRY(ls_comm_recv(comm, NULL, 0, LS_U8, from, DONE, NULL));
    }
    int others = 0;
    for (int i = 0; i < EACH; i++) {
        unsigned seen = 0;
        for (int k = 1; k < size; k++) {
            int source = 0;
            LS_TRY(ls_comm_recv_any(comm, &buffer, 1, LS_I32, TAG, &source, NULL));
            LS_CHECK(buffer == value_of(source, i, 0) && (seen >> source & 1) == 0);
            seen |= 1U << source;
            if (two_tags && others < EACH) {
                LS_TRY(ls_comm_recv_any(comm, &buffer, 1, LS_I32, OTHER, &source, NULL));
                LS_CHECK(buffer == others++ && source == size - 1);
            }
        }
    }
    return LS_OK;
}

/* ---- messages of the rank to itself ------------------------------------------------------------------------------ */

static ls_status own_messages(ls_comm *comm) {
    const int rank = ls_comm_rank(comm);
    int32_t sent = 11, received = 0;
    int source = -2;
    ls_work *work = NULL;
    LS_TRY(ls_comm_send(comm, &sent, 1, LS_I32, rank, 8, NULL));
    LS_TRY(ls_comm_recv_any(comm, &received, 1, LS_I32, 8, &source, NULL));
    LS_CHECK(received == 11 && source == rank);
    sent = 12;
    LS_TRY(ls_comm_recv_any(comm, &received, 1, LS_I32, 8, &source, &work));
    LS_CHECK(source == -1 && !ls_work_done(work));
    LS_TRY(ls_comm_send(comm, &sent, 1, LS_I32, rank, 8, NULL));
    LS_TRY(ls_work_wait(work));
    LS_CHECK(received == 12 && source == rank);
    LS_TRY(ls_comm_send(comm, &sent, 1, LS_I32, rank, 9, NULL));
    return ls_comm_recv_any(comm, &received, 1, LS_I32, 9, NULL, NULL);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

/* A message that does not fit is dropped, and the receiver learns its sender. */
static ls_status another_count(ls_comm *comm) {
    const int size = ls_comm_size(comm), last = size - 1;
    int32_t buffer[2] = {5, 6};
    int source = -1;
    if (ls_comm_rank(comm) == last) {
        LS_TRY(ls_comm_send(comm, buffer, 2, LS_I32, 0, TAG, NULL));
        LS_TRY(ls_comm_send(comm, buffer, 1, LS_I32, 0, TAG, NULL));
    }
    if (ls_comm_rank(comm) == 0) {
        LS_CHECK(ls_comm_recv_any(comm, buffer, 1, LS_I32, TAG, &source, NULL) == LS_ERR_MISMATCH && source == last);
        LS_EXPECT_MESSAGE("ls_comm_recv_any #");
        LS_EXPECT_MESSAGE("sent 2 i32 with tag 3, but this rank expects 1 i32");
        source = -1;
        LS_TRY(ls_comm_recv_any(comm, buffer, 1, LS_I32, TAG, &source, NULL));
        LS_CHECK(source == last && buffer[0] == 5);
    }
    return ls_comm_barrier(comm, NULL);
}

static ls_status wrong_input(ls_comm *comm) {
    int32_t buffer = 0;
    int source = 0;
    ls_work *work = NULL;
    LS_CHECK(ls_comm_recv_any(NULL, &buffer, 1, LS_I32, 0, &source, NULL) == LS_ERR_ARGUMENT && source == -1);
    LS_EXPECT_MESSAGE("ls_comm_recv_any: the communicator is NULL");
    LS_CHECK(ls_comm_recv_any(comm, &buffer, 1, LS_I32, -1, &source, NULL) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("ls_comm_recv_any: tag -1 is negative");
    LS_CHECK(ls_comm_recv_any(comm, NULL, 1, LS_I32, 0, NULL, NULL) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("ls_comm_recv_any: the buffer for 1 elements is NULL");
    LS_CHECK(ls_comm_recv_any(comm, &buffer, 1, (ls_dtype)77, 0, NULL, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_recv(comm, &buffer, 1, LS_I32, -1, 0, NULL) == LS_ERR_ARGUMENT);
    if (strcmp(ls_comm_backend(comm), "self") == 0) { /* no rank can send */
        ls_comm *part = NULL;
        LS_TRY(ls_comm_split(comm, 0, 0, &part));
        LS_TRY(ls_comm_recv_any(part, &buffer, 1, LS_I32, 5, &source, &work));
        LS_CHECK(ls_work_wait(work) == LS_ERR_STATE && source == -1);
        LS_EXPECT_MESSAGE(
            "ls_comm_recv_any #1: rank 0 is waiting for a message from itself with tag 5, which it has not sent");
        ls_comm_free(part);
    }
    return LS_OK;
}

/* The other ranks leave a communicator: the messages that they have sent arrive, and then the receive fails at once. */
static ls_status others_leave(ls_comm *world) {
    const int size = ls_comm_size(world);
    ls_comm *part = NULL;
    int32_t buffer = 0;
    int source = -1;
    int next[MOST_RANKS] = {0};
    if (size == 1) {
        return LS_OK;
    }
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    if (ls_comm_rank(part) != 0) {
        LS_TRY(send_one(part, &buffer, 1, 0, 0, NULL));
        LS_TRY(ls_comm_recv(part, NULL, 0, LS_U8, 0, DONE, NULL));
        LS_TRY(send_one(part, &buffer, 1, 1, 0, NULL));
        ls_comm_free(part);
        return ls_comm_barrier(world, NULL);
    }
    for (int i = 1; i < size; i++) {
        LS_TRY(ls_comm_send(part, NULL, 0, LS_U8, i, DONE, NULL));
    }
    for (int i = 0; i < 2 * (size - 1); i++) {
        LS_TRY(ls_comm_recv_any(part, &buffer, 1, LS_I32, TAG, &source, NULL));
        LS_TRY(check_next(&buffer, 1, source, next));
    }
    const double start = ls_clock_seconds();
    LS_CHECK(ls_comm_recv_any(part, &buffer, 1, LS_I32, TAG, &source, NULL) == LS_ERR_PEER && source == -1);
    LS_EXPECT_MESSAGE("rank 1 ");
    LS_EXPECT_MESSAGE("left without making this call");
    LS_CHECK((strstr(ls_error_message(), ", and all other ranks have left, too") != NULL) == (size > 2));
    LS_CHECK(ls_clock_seconds() - start < 20);
    LS_CHECK(ls_comm_barrier(part, NULL) == LS_ERR_PEER);
    ls_comm_free(part);
    return ls_comm_barrier(world, NULL);
}

ls_status rank_test(ls_comm *world) {
    static const size_t counts[] = {0, 1, 700, 20000, MOST};
    const int size = ls_comm_size(world);
    LS_TRY(wrong_input(world));
    LS_TRY(own_messages(world));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        LS_TRY(waiting_receives(world, counts[i], 0, false));
        LS_TRY(ls_comm_barrier(world, NULL)); /* the next messages belong to other receives */
        LS_TRY(waiting_receives(world, counts[i], size - 1, false));
        LS_TRY(ls_comm_barrier(world, NULL));
        LS_TRY(started_receives(world, counts[i], (int)i % size));
        LS_TRY(ls_comm_barrier(world, NULL));
        LS_TRY(waiting_receives(world, counts[i], 0, true));
        LS_TRY(ls_comm_barrier(world, NULL));
    }
    LS_TRY(turns(world, false));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(turns(world, true));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(another_count(world));
    LS_TRY(others_leave(world));
    return ls_comm_barrier(world, NULL);
}
