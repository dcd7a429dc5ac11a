/*
 * The bytes that are counted for calls on a communicator: this rank's part, or in an all-to-all all parts that this
 * rank sends. Blocking and asynchronous calls are counted alike.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include "comm/meter.h"

enum { MOST_RANKS = 8, COUNT = 7, MOST = 2 * MOST_RANKS * (MOST_RANKS + COUNT) };

static _Thread_local double sent[MOST], received[MOST];
static _Thread_local uint64_t before;

/* Waits for the work. Fails unless this number of f64 was counted for the latest call. */
static ls_status counts_for(ls_work *work, size_t elements) {
    LS_CHECK(ls_comm_metered.bytes - before == elements * sizeof(double));
    LS_TRY(ls_work_wait(work));
    LS_CHECK(ls_comm_metered.bytes - before == elements * sizeof(double));
    before = ls_comm_metered.bytes;
    return LS_OK;
}

/* Rank `from` sends this number of elements to rank `to`. */
static size_t varied(int from, int to) {
    return (size_t)(2 * from + to) % (COUNT + 2);
}

static ls_status all_to_alls(ls_comm *comm, bool later) {
    const int rank = ls_comm_rank(comm), size = ls_comm_size(comm);
    size_t send_counts[MOST_RANKS], receive_counts[MOST_RANKS], total = 0;
    ls_work *work = NULL;
    for (int other = 0; other < size; other++) {
        send_counts[other] = varied(rank, other);
        receive_counts[other] = varied(other, rank);
        total += send_counts[other];
    }
    LS_TRY(
        ls_comm_alltoallv(comm, sent, send_counts, NULL, received, receive_counts, NULL, LS_F64, later ? &work : NULL));
    LS_TRY(counts_for(work, total));
    work = NULL;
    LS_TRY(ls_comm_alltoall(comm, sent, received, COUNT, LS_F64, later ? &work : NULL));
    return counts_for(work, COUNT * (size_t)size);
}

static ls_status other_calls(ls_comm *comm, bool later) {
    const int rank = ls_comm_rank(comm), size = ls_comm_size(comm);
    size_t counts[MOST_RANKS];
    ls_work *work = NULL;
    ls_work **wanted = later ? &work : NULL;
    for (int other = 0; other < size; other++) {
        counts[other] = varied(other, 1);
    }
    LS_TRY(ls_comm_allreduce(comm, sent, received, COUNT, LS_F64, LS_SUM, wanted));
    LS_TRY(counts_for(work, COUNT));
    work = NULL;
    LS_TRY(ls_comm_allgather(comm, sent, received, COUNT, LS_F64, wanted));
    LS_TRY(counts_for(work, COUNT));
    work = NULL;
    LS_TRY(ls_comm_allgatherv(comm, sent, received, counts, NULL, LS_F64, wanted));
    LS_TRY(counts_for(work, counts[rank]));
    work = NULL;
    LS_TRY(ls_comm_reduce_scatterv(comm, sent, received, counts, LS_F64, LS_SUM, wanted));
    LS_TRY(counts_for(work, counts[rank]));
    work = NULL;
    LS_TRY(ls_comm_barrier(comm, wanted));
    return counts_for(work, 0);
}

static ls_status messages(ls_comm *comm) {
    const int rank = ls_comm_rank(comm), size = ls_comm_size(comm);
    LS_TRY(ls_comm_send(comm, sent, COUNT, LS_F64, (rank + 1) % size, 0, NULL));
    LS_TRY(counts_for(NULL, COUNT));
    LS_TRY(ls_comm_recv_any(comm, received, COUNT, LS_F64, 0, NULL, NULL));
    LS_TRY(counts_for(NULL, COUNT));
    LS_TRY(ls_comm_monitored_barrier(comm, 60));
    return counts_for(NULL, 0);
}

ls_status rank_test(ls_comm *world) {
    before = ls_comm_metered.bytes;
    for (int later = 0; later < 2; later++) {
        LS_TRY(all_to_alls(world, later == 1));
        LS_TRY(other_calls(world, later == 1));
    }
    return messages(world);
}
