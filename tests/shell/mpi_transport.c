/*
 * Transport mpi, under mpirun: the guarantees of comm/transport.h, and the closing of endpoints. Built for each MPI
 * library.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/transport/mpi/mpi.h"

enum { LARGE = 1 << 20, DIVIDED = 1000, LONGEST = 60 };

static int rank, size, polls;

/* The transport calls this function instead of the function of the library. */
int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *found, MPI_Status *status) {
    polls++;
    return PMPI_Iprobe(source, tag, comm, found, status);
}

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("rank %d, line %d: not true: %s (%s)\n", rank, __LINE__, #condition, ls_error_message());           \
            fflush(stdout);                                                                                            \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                              \
        }                                                                                                              \
    } while (0)

static int before(void) {
    return (rank + size - 1) % size;
}

static int after(void) {
    return (rank + 1) % size;
}

/* Opens an endpoint; called by all ranks. Messages longer than `most` are split; with 0, none are. */
static ls_endpoint *open_end_for(double timeout, size_t most) {
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    ls_endpoint *end = ls_mpi_endpoint(&(ls_mpi_options){
        .rank = rank, .size = size, .unasked = LS_TRANSPORT_LEAST_EAGER, .most = most, .timeout = timeout});
    CHECK(end != NULL && end->rank == rank && end->size == size && end->eager >= LS_TRANSPORT_LEAST_EAGER);
    CHECK(ls_mpi_connect(end, comm) == LS_OK);
    return end;
}

static ls_endpoint *open_end(size_t most) {
    return open_end_for(LONGEST, most);
}

static void note_released(void *released) {
    *(bool *)released = true;
}

/* Closes the endpoint. Returns whether the memory of all transfers is released within a minute. */
static bool close_end(ls_endpoint *end) {
    bool released = false;
    const double start = ls_clock_seconds();
    end->transport->close(end, 200000000, note_released, &released);
    while (!released && ls_clock_seconds() - start < LONGEST) {
        (void)ls_mpi_progress_closing();
    }
    return released;
}

static void turn(ls_endpoint *end, uint64_t wait_ns) {
    bool moved = false;
    CHECK(end->transport->progress(end, wait_ns, &moved) == LS_OK);
}

static void until_ended(ls_endpoint *end, const ls_transfer *transfer) {
    const double start = ls_clock_seconds();
    while (!transfer->ended) {
        CHECK(ls_clock_seconds() - start < LONGEST);
        turn(end, 1000000);
    }
}

static unsigned char byte(uint64_t number, size_t at) {
    return (unsigned char)(number * 37 + at * 11 + (at >> 8) * 3 + (at >> 16));
}

static ls_transfer message(int to, int channel, size_t bytes, uint64_t number) {
    unsigned char *data = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        data[i] = byte(number, i);
    }
    return (ls_transfer){.peer = to, .channel = channel, .data = data, .bytes = bytes};
}

static ls_transfer room(int from, int channel, size_t bytes) {
    return (ls_transfer){.peer = from, .channel = channel, .data = calloc(bytes + 1, 1), .bytes = bytes};
}

static bool holds(const ls_transfer *transfer, uint64_t number, size_t bytes) {
    const unsigned char *data = transfer->data;
    bool same = transfer->ended && transfer->bytes == bytes;
    for (size_t i = 0; i < bytes && same; i++) {
        same = data[i] == byte(number, i);
    }
    return same;
}

static void begin_send(ls_endpoint *end, ls_transfer *transfer) {
    CHECK(end->transport->send(end, transfer) == LS_OK);
}

static void begin_receive(ls_endpoint *end, ls_transfer *transfer) {
    CHECK(end->transport->receive(end, transfer) == LS_OK);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Sends around the ring, into receives that begin before or after the message. */
static void every_size_arrives(size_t most) {
    static const size_t sizes[] = {0,    1,      100,  999, 1000, 1001, 2000, 2001, LS_TRANSPORT_LEAST_EAGER,
                                   4097, 100000, LARGE};
    ls_endpoint *end = open_end(most);
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        const size_t bytes = sizes[i / 2];
        ls_transfer out = message(after(), 3, bytes, i + (size_t)rank);
        ls_transfer in = room(before(), 3, bytes);
        if (i % 2 == 0) {
            begin_receive(end, &in);
        }
        begin_send(end, &out);
        for (int k = 0; i % 2 == 1 && k < 100; k++) {
            turn(end, 0);
        }
        if (i % 2 == 1) {
            begin_receive(end, &in);
        }
        until_ended(end, &in);
        until_ended(end, &out);
        CHECK(in.peer == before() && holds(&in, i + (size_t)before(), bytes));
        free(in.data);
        free(out.data);
    }
    CHECK(end->messages == 2 * sizeof sizes / sizeof *sizes && end->transport->peer(end, after()) == LS_PEER_REACHED);
    CHECK(close_end(end));
}

/* Channels are independent, and each channel preserves order, even for split messages. */
static void channels_are_in_order(size_t most) {
    enum { EACH = 12 };
    ls_transfer out[2][EACH], in[2][EACH];
    ls_endpoint *end = open_end(most);
    for (size_t i = 0; i < EACH; i++) {
        for (int k = 0; k < 2; k++) {
            out[k][i] = message(after(), k, i * 700, i + 100 * (size_t)k);
            begin_send(end, &out[k][i]);
        }
    }
    for (int k = 1; k >= 0; k--) {
        for (size_t i = 0; i < EACH; i++) {
            in[k][i] = room(before(), k, i * 700);
            begin_receive(end, &in[k][i]);
        }
        until_ended(end, &in[k][EACH - 1]);
    }
    for (size_t i = 0; i < EACH; i++) {
        for (int k = 0; k < 2; k++) {
            until_ended(end, &in[k][i]);
            until_ended(end, &out[k][i]);
            CHECK(holds(&in[k][i], i + 100 * (size_t)k, i * 700));
            free(in[k][i].data);
            free(out[k][i].data);
        }
    }
    CHECK(close_end(end));
}

/* Rank 0 receives from any rank. The messages of each rank arrive in order. */
static void any_rank_may_send(void) {
    enum { EACH = 30 };
    ls_endpoint *end = open_end(0);
    uint64_t *came = calloc((size_t)size, sizeof *came);
    for (int i = 0; rank == 0 && i < EACH * (size - 1); i++) {
        ls_transfer in = room(-1, 15, LS_TRANSPORT_LEAST_EAGER);
        begin_receive(end, &in);
        until_ended(end, &in);
        CHECK(in.peer > 0 && in.peer < size);
        const uint64_t number = came[in.peer]++;
        CHECK(holds(&in, number, number * 100 + (size_t)in.peer));
        free(in.data);
    }
    for (uint64_t i = 0; rank != 0 && i < EACH; i++) {
        ls_transfer out = message(0, 15, i * 100 + (size_t)rank, i);
        begin_send(end, &out);
        until_ended(end, &out);
        free(out.data);
    }
    CHECK(close_end(end));
    free(came);
}

/* The sender of a message that is too long is blamed, even in a receive from any rank. The last rank sends. */
static void who_sends_too_much_is_to_blame(bool any) {
    const int sender = size - 1;
    ls_endpoint *end = open_end(0);
    ls_transfer out = message(0, 0, 2000, 7);
    ls_transfer in = room(any ? -1 : sender, 0, 2000); /* Open MPI may write to the whole buffer */
    ls_transfer other = room(-1, 15, 100);
    in.bytes = 100;
    if (rank == sender) {
        begin_send(end, &out);
        until_ended(end, &out);
    } else if (rank == 0) {
        begin_receive(end, &other);
        bool moved = false;
        ls_status status = LS_OK;
        begin_receive(end, &in);
        for (const double start = ls_clock_seconds(); status == LS_OK && ls_clock_seconds() - start < LONGEST;) {
            status = end->transport->progress(end, 1000000, &moved);
        }
        CHECK(status == LS_ERR_PEER && end->blamed == 1 + sender);
    }
    (void)close_end(end);
    free(out.data);
    free(in.data);
    free(other.data);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* A rank sends one small message after another until rank 0 stops it. */
static void send_on(ls_endpoint *end) {
    int enough = 0;
    for (const double start = ls_clock_seconds(); enough == 0 && ls_clock_seconds() - start < LONGEST;) {
        ls_transfer out = message(0, 15, 100, 1);
        begin_send(end, &out);
        until_ended(end, &out);
        free(out.data);
        usleep(100);
        MPI_Iprobe(0, 0, MPI_COMM_WORLD, &enough, MPI_STATUS_IGNORE);
    }
    MPI_Recv(NULL, 0, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void say_enough(void) {
    MPI_Send(NULL, 0, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
}

/*
 * Waits for a message that does not arrive. The endpoint's time follows the clock, except while this process did not
 * run or did not poll. `other` is a receive that is completed repeatedly; it may be NULL.
 */
static void compare_clocks(ls_endpoint *end, ls_transfer *other) {
    ls_transfer in = room(before(), 1, 10);
    const double start = ls_clock_seconds();
    const uint64_t start_ns = end->transport->now_ns(end);
    double passed = 0, awake = 0; /* in a turn in which the process could not run, at most this much is counted */
    begin_receive(end, &in);
    while (awake < 0.3) {
        turn(end, 5000000);
        if (other != NULL && other->ended) {
            other->peer = -1;
            begin_receive(end, other);
        }
        const double before_turn = passed;
        passed = ls_clock_seconds() - start;
        awake += passed - before_turn < 0.1 ? passed - before_turn : 0.1;
    }
    const double told = (double)(end->transport->now_ns(end) - start_ns) * 1e-9;
    CHECK(!in.ended && told > awake / 4 && told < passed + 0.2);
    end->transport->withdraw(end, &in);
    free(in.data);
}

static void time_goes_on_in_waiting(void) {
    ls_endpoint *end = open_end(0);
    compare_clocks(end, NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(close_end(end));
}

static void time_goes_on_while_others_send(void) {
    ls_endpoint *end = open_end(0);
    if (rank == 0) {
        ls_transfer any = room(-1, 15, 100);
        begin_receive(end, &any);
        compare_clocks(end, &any);
        say_enough();
        end->transport->withdraw(end, &any);
        free(any.data);
    } else if (rank == 1) {
        send_on(end);
    }
    CHECK(close_end(end));
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void await_closing(void) {
    for (const double start = ls_clock_seconds(); !ls_mpi_progress_closing();) {
        CHECK(ls_clock_seconds() - start < LONGEST);
    }
}

/* Closing endpoints receive messages that were sent but not received, so that their memory is released. */
static void what_nobody_took_is_dropped(void) {
    enum { EACH = 3 };
    ls_transfer out[EACH];
    ls_endpoint *end = open_end(0);
    for (int i = 0; i < EACH; i++) {
        out[i] = message(after(), i, LARGE, (uint64_t)i);
        begin_send(end, &out[i]);
    }
    CHECK(close_end(end));
    await_closing(); /* the other ranks also need this rank to receive */
    for (int i = 0; i < EACH; i++) {
        free(out[i].data);
    }
}

/* No rank receives the messages that rank 0 has in flight. */
static void closing_ends_while_others_send(void) {
    ls_endpoint *end = open_end(0);
    if (rank == 0) {
        static unsigned char data[LARGE]; /* MPI may keep it */
        ls_transfer out = {.peer = 1, .channel = 2, .data = data, .bytes = LARGE};
        const double start = ls_clock_seconds();
        begin_send(end, &out);
        end->transport->withdraw(end, &out);
        end->transport->close(end, 200000000, NULL, NULL);
        CHECK(ls_clock_seconds() - start < LONGEST / 2);
        say_enough();
    } else {
        if (rank == 1) {
            send_on(end);
        }
        CHECK(close_end(end));
    }
}

static void last_words_arrive(void) {
    ls_endpoint *end = open_end(0);
    ls_transfer out = message(after(), 4, 1000, 3);
    ls_transfer in = room(before(), 4, 1000);
    if (rank != 0) { /* freed before the receive begins */
        begin_send(end, &out);
        CHECK(close_end(end));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        begin_receive(end, &in);
        until_ended(end, &in);
        CHECK(holds(&in, 3, 1000));
        CHECK(close_end(end));
    }
    free(out.data);
    free(in.data);
}

static void tell_closed(void) {
    FILE *closed = fopen("closed", "w");
    CHECK(closed != NULL && fclose(closed) == 0);
}

static void await_told(void) {
    while (access("closed", F_OK) != 0) {
        usleep(1000);
    }
}

/* Meanwhile, the other ranks make no MPI calls, so MPI completes no message that they must receive first. */
static void closing_waits_for_nobody(void) {
    static const uint64_t for_ever_ns = UINT64_C(3600000000000);
    static ls_transfer out; /* static, because MPI may use it until the program exits */
    bool released = false;
    ls_endpoint *end = open_end(0);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        out = message(1, 3, 1000, 4);
        begin_send(end, &out);
        end->transport->close(end, for_ever_ns, note_released, &released);
        tell_closed();
    } else {
        await_told();
        end->transport->close(end, for_ever_ns, note_released, &released);
    }
    await_closing();
    CHECK(released);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        remove("closed");
        free(out.data);
    }
}

/*
 * Rank 0 closes its endpoint while MPI sends from, and receives into, the program's buffers. Closing does not wait for
 * the other ranks to make MPI calls; ls_mpi_finish_closed does.
 */
static void closing_amid_transfers_waits_for_nobody(void) {
    enum { MOST_POLLS = 50 };
    ls_endpoint *end = open_end(0);
    ls_transfer out = message(1, 3, LARGE, 4);
    ls_transfer in = room(1, 4, LARGE);
    bool released = false;
    out.of_user = in.of_user = true;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        begin_receive(end, &in);
        begin_send(end, &out);
        polls = 0;
        end->transport->close(end, 200000000, note_released, &released);
        CHECK(polls < MOST_POLLS);
        (void)ls_mpi_finish_closed(false);
        CHECK(polls < MOST_POLLS);
        tell_closed();
        CHECK(ls_mpi_finish_closed(true));
        free(out.data); /* MPI has finished with both buffers */
        free(in.data);
    } else {
        await_told();
        end->transport->close(end, 200000000, note_released, &released);
    }
    await_closing();
    CHECK(released);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        remove("closed");
    } else {
        free(out.data);
        free(in.data);
    }
}

/* Rank 0 waits for buffers that MPI cannot release because of rank 1. It waits only once, and not longer than its
 * endpoint allows. */
static void waiting_for_buffers_ends(void) {
    static unsigned char data[LARGE]; /* static, because MPI may use it until the program exits */
    ls_endpoint *end = open_end_for(0.5, 0);
    ls_transfer out = {.peer = 1, .channel = 2, .data = data, .bytes = LARGE, .of_user = true};
    bool released = false;
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        begin_send(end, &out);
        const bool holds_buffer = !out.ended; /* false if MPI has already copied all data */
        end->transport->close(end, 200000000, note_released, &released);
        CHECK(!holds_buffer || !ls_mpi_finish_closed(false));
        CHECK(ls_mpi_finish_closed(true) && ls_mpi_finish_closed(false));
        tell_closed();
    } else {
        await_told();
        end->transport->close(end, 200000000, note_released, &released);
    }
    await_closing();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        remove("closed");
    }
}

/* A closed endpoint receives the messages of other ranks, and exists until the last rank has closed its endpoint. */
static void a_closed_endpoint_waits_for_the_others(void) {
    await_closing();
    ls_endpoint *end = open_end(0);
    if (rank == 0) {
        CHECK(close_end(end) && !ls_mpi_progress_closing());
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank != 0) {
        ls_transfer out = message(0, 1, LARGE, 1);
        begin_send(end, &out);
        until_ended(end, &out);
        CHECK(close_end(end));
        free(out.data);
    }
    await_closing();
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD,
                            MPI_ERRORS_RETURN); /* MPICH reports errors of MPI_Test on this communicator */
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int i = 0; i < 2; i++) {
        every_size_arrives(i == 0 ? 0 : DIVIDED);
        channels_are_in_order(i == 0 ? 0 : DIVIDED);
    }
    any_rank_may_send();
    who_sends_too_much_is_to_blame(false);
    who_sends_too_much_is_to_blame(true);
    time_goes_on_in_waiting();
    time_goes_on_while_others_send();
    closing_ends_while_others_send();
    what_nobody_took_is_dropped();
    last_words_arrive();
    closing_waits_for_nobody();
    closing_amid_transfers_waits_for_nobody();
    waiting_for_buffers_ends();
    a_closed_endpoint_waits_for_the_others();
    MPI_Finalize();
    return 0;
}
