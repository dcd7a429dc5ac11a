/*
 * Reductions in any order. The setting changes only if all ranks agree. All ranks get bit-identical results, close to
 * the results of the canonical order, which can be restored. Split communicators inherit the setting. With
 * LOCKSTEP_ALGORITHM=all:native under mpirun, or on backend gloo, each call uses the library's own collective if there
 * is one: one message besides the agreement exchange. If the library cannot express one rank's part of a call, the
 * engine executes the call.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "comm/comm.h"

enum { COUNT = 5000, RANKS_MOST = 8 };

static _Thread_local float sent[COUNT * RANKS_MOST], received[COUNT * RANKS_MOST], first[COUNT];

static void fill(const ls_comm *comm) {
    for (int i = 0; i < COUNT * RANKS_MOST; i++) {
        sent[i] = 1.1F * (float)(ls_comm_rank(comm) + 1) + 0.37F * (float)(i % 101);
    }
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

static ls_status differ(ls_comm *world) {
    const bool odd = ls_comm_rank(world) == ls_comm_size(world) - 1;
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_CHECK(ls_comm_set_any_order(world, odd) == LS_ERR_MISMATCH);
    LS_CHECK(strstr(ls_error_message(), "ls_comm_set_any_order: the ranks passed different values: rank ") ==
             ls_error_message());
    LS_EXPECT_MESSAGE(" passed true, but rank");
    LS_EXPECT_MESSAGE(" false");
    return LS_OK;
}

static ls_status wrong_input(void) {
    LS_CHECK(ls_comm_set_any_order(NULL, true) == LS_ERR_ARGUMENT);
    LS_CHECK(strcmp(ls_error_message(), "ls_comm_set_any_order: the communicator is NULL") == 0);
    return LS_OK;
}

/* ---- bits -------------------------------------------------------------------------------------------------------- */

static ls_status bits(ls_comm *comm) {
    static _Thread_local float again[COUNT], mean[COUNT];
    const int size = ls_comm_size(comm);
    LS_TRY(ls_comm_set_any_order(comm, false));
    LS_TRY(ls_comm_allreduce(comm, sent, first, COUNT, LS_F32, LS_SUM, NULL));
    LS_TRY(ls_comm_set_any_order(comm, true));
    for (size_t count = 1; count <= COUNT; count = count == COUNT       ? COUNT + 1
                                                   : count * 17 < COUNT ? count * 17
                                                                        : COUNT) {
        LS_TRY(ls_comm_allreduce(comm, sent, again, count, LS_F32, LS_SUM, NULL));
        LS_TRY(ranks_have_same_bytes(comm, again, count * sizeof *again));
        memcpy(mean, sent, sizeof mean);
        LS_TRY(ls_comm_allreduce(comm, mean, mean, count, LS_F32, LS_AVG, NULL)); /* in place */
        LS_TRY(ranks_have_same_bytes(comm, mean, count * sizeof *mean));
        for (size_t i = 0; i < count; i++) {
            LS_CHECK(fabsf(again[i] - first[i]) <= 1e-5F * fabsf(first[i]));
            LS_CHECK(fabsf(mean[i] * (float)size - first[i]) <= 1e-5F * fabsf(first[i]));
        }
    }
    LS_TRY(ls_comm_set_any_order(comm, false));
    LS_TRY(ls_comm_allreduce(comm, sent, again, COUNT, LS_F32, LS_SUM, NULL));
    LS_CHECK(memcmp(again, first, sizeof again) == 0);
    return LS_OK;
}

/* Calls that no library guarantees still keep the guarantees of lockstep/comm.h. */
static ls_status special(ls_comm *comm) {
    const int rank = ls_comm_rank(comm);
    float values[2] = {rank == 0 ? NAN : 1, -2};
    uint8_t byte = 200, mean = 0;
    int32_t most = INT32_MAX;
    LS_TRY(ls_comm_set_any_order(comm, true));
    LS_TRY(ls_comm_allreduce(comm, values, values, 2, LS_F32, LS_MAX, NULL));
    LS_CHECK(isnan(values[0]) && values[1] == -2);
    LS_TRY(ls_comm_allreduce(comm, &byte, &mean, 1, LS_U8, LS_AVG, NULL));
    LS_TRY(ls_comm_allreduce(comm, &byte, &byte, 1, LS_U8, LS_SUM, NULL));
    LS_CHECK(mean == 200 && byte == (uint8_t)(200 * ls_comm_size(comm)));
    LS_TRY(ls_comm_allreduce(comm, &most, &most, 1, LS_I32, LS_SUM, NULL));
    LS_CHECK((uint32_t)most == (uint32_t)INT32_MAX * (uint32_t)ls_comm_size(comm));
    return LS_OK;
}

/* ---- algorithms of calls ----------------------------------------------------------------------------------------- */

static uint64_t messages_of(const ls_comm *comm) {
    uint64_t messages = 0, bytes = 0;
    (void)ls_comm_traffic(comm, &messages, &bytes);
    return messages;
}

/* The calls and their number. */
enum { CALLS = 13 };

static ls_status call(ls_comm *comm, int which, const size_t *counts) {
    const int root = ls_comm_size(comm) - 1;
    const size_t own = counts != NULL ? counts[ls_comm_rank(comm)] : 0;
    switch (which) {
    case 0:
        return ls_comm_broadcast(comm, received, COUNT, LS_F32, root, NULL);
    case 1:
        return ls_comm_gather(comm, sent, received, COUNT, LS_F32, root, NULL);
    case 2:
        return ls_comm_gatherv(comm, sent, own, received, counts, NULL, LS_F32, root, NULL);
    case 3:
        return ls_comm_allgather(comm, sent, received, COUNT, LS_F32, NULL);
    case 4:
        return ls_comm_allgatherv(comm, sent, received, counts, NULL, LS_F32, NULL);
    case 5:
        return ls_comm_scatter(comm, sent, received, COUNT, LS_F32, root, NULL);
    case 6:
        return ls_comm_scatterv(comm, sent, counts, NULL, received, own, LS_F32, root, NULL);
    case 7:
        return ls_comm_alltoall(comm, sent, received, COUNT, LS_F32, NULL);
    case 8: {
        size_t same[RANKS_MOST];
        for (int i = 0; i < ls_comm_size(comm); i++) {
            same[i] = COUNT;
        }
        return ls_comm_alltoallv(comm, sent, same, NULL, received, same, NULL, LS_F32, NULL);
    }
    case 9:
        return ls_comm_allreduce(comm, sent, received, COUNT, LS_F32, LS_SUM, NULL);
    case 10:
        return ls_comm_reduce(comm, sent, received, COUNT, LS_F32, LS_SUM, root, NULL);
    case 11:
        return ls_comm_reduce_scatter(comm, sent, received, COUNT, LS_F32, LS_SUM, NULL);
    default:
        return ls_comm_reduce_scatterv(comm, sent, received, counts, LS_F32, LS_SUM, NULL);
    }
}

/* Returns whether a call must use the library's own collective if there is one. */
static bool wants_own(const ls_comm *comm, const char *backend) {
    const char *wanted = getenv("LOCKSTEP_ALGORITHM");
    return strcmp(ls_comm_backend(comm), backend) == 0 && wanted != NULL && strcmp(wanted, "all:native") == 0;
}

/* Gloo has no reduce-scatter for arbitrary numbers of ranks, and no gather or scatter with different counts. */
static bool is_for_gloo(const ls_comm *comm, int which, bool any_order) {
    return which < 9 ? which != 2 && which != 6 : which < 11 && (any_order || ls_comm_size(comm) == 2);
}

static ls_status by_library(ls_comm *comm, bool any_order) {
    const bool gloo = wants_own(comm, "gloo");
    size_t counts[RANKS_MOST];
    if (!gloo && !wants_own(comm, "mpi")) {
        return LS_OK;
    }
    LS_TRY(call(comm, 0, NULL)); /* Gloo's ranks connect */
    for (int i = 0; i < ls_comm_size(comm); i++) {
        counts[i] = (size_t)(COUNT - 100 * i);
    }
    LS_TRY(ls_comm_set_any_order(comm, any_order));
    for (int which = 0; which < CALLS; which++) {
        const uint64_t before = messages_of(comm);
        LS_TRY(ls_comm_barrier(comm, NULL));
        const uint64_t agreed = messages_of(comm);
        LS_TRY(call(comm, which, counts));
        const bool own = gloo ? is_for_gloo(comm, which, any_order) : any_order || which < 9;
        LS_CHECK((strcmp(ls_comm_algorithm(comm), "native") == 0) == own);
        LS_CHECK(!own || messages_of(comm) - agreed == agreed - before + 1);
    }
    return LS_OK;
}

/*
 * One rank has a displacement that does not fit in an int of MPI, and that Gloo cannot express at all: all ranks leave
 * the call to the engine.
 */
static ls_status beyond_int(ls_comm *comm) {
    enum { PART = 3000 };
    const size_t far = (size_t)1 << 29; /* in floats: 2 GiB */
    const int size = ls_comm_size(comm), rank = ls_comm_rank(comm);
    const size_t bytes = (far + PART) * sizeof(float);
    size_t counts[RANKS_MOST], places[RANKS_MOST];
    float *sparse = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LS_CHECK(sparse != MAP_FAILED);
    for (int i = 0; i < size; i++) {
        counts[i] = PART;
        places[i] = i == size - 1 && rank == 0 ? far : (size_t)(i * PART);
        sent[i] = (float)(100 * rank + i);
    }
    sent[PART - 1] = (float)(-rank - 1);
    ls_status status = ls_comm_allgatherv(comm, sent, sparse, counts, places, LS_F32, NULL);
    bool right = status == LS_OK;
    for (int i = 0; i < size && right; i++) {
        const float *part = sparse + places[i];
        right = part[0] == (float)(100 * i) && part[1] == (size > 1 ? (float)(100 * i + 1) : part[1]) &&
                part[PART - 1] == (float)(-i - 1);
    }
    munmap(sparse, bytes);
    LS_TRY(status);
    LS_CHECK(right);
    LS_CHECK(size == 1 || strcmp(ls_comm_algorithm(comm), "native") != 0);
    return LS_OK;
}

/* ------------------------------------------------------------------------------------------------------------------ */

ls_status rank_test(ls_comm *world) {
    ls_comm *part = NULL;
    fill(world);
    LS_TRY(wrong_input());
    LS_TRY(differ(world));
    LS_TRY(bits(world));
    LS_TRY(special(world));
    LS_TRY(beyond_int(world));
    if (ls_comm_size(world) > 1) {
        LS_TRY(by_library(world, false));
        LS_TRY(by_library(world, true));
    }
    LS_TRY(ls_comm_set_any_order(world, true));
    LS_TRY(ls_comm_split(world, ls_comm_rank(world) % 2, 0, &part));
    ls_status status = ls_comm_allreduce(part, sent, received, COUNT, LS_F32, LS_SUM, NULL);
    status = status == LS_OK ? ranks_have_same_bytes(part, received, COUNT * sizeof *received) : status;
    status = status == LS_OK ? bits(part) : status;
    ls_comm_free(part);
    return status;
}
