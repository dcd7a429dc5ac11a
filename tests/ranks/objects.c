/*
 * Objects of different lengths, and calls that a program abandons.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lockstep/comm.h>

/* ---- objects ----------------------------------------------------------------------------------------------------- */

/* Lengths are all short, some long, or empty. */
static size_t length_of(int round, int rank) {
    const size_t lengths[][5] = {{3, 0, 7, 1, 2}, {0, 0, 0, 0, 0}, {100000, 0, 121, 120, 5}, {1, 300000, 2, 3, 0}};
    return lengths[round][rank % 5];
}

static void fill(int round, int rank, unsigned char *bytes) {
    for (size_t i = 0; i < length_of(round, rank); i++) {
        bytes[i] = (unsigned char)(i * 7 + (size_t)rank * 31 + (size_t)round);
    }
}

static bool is_of(const ls_object *object, int round, int rank) {
    unsigned char *want = malloc(length_of(round, rank) + 1);
    fill(round, rank, want);
    const bool same = object->bytes == length_of(round, rank) && memcmp(object->data, want, object->bytes) == 0 &&
                      ((const unsigned char *)object->data)[object->bytes] == 0;
    free(want);
    return same;
}

static ls_status check_all(const ls_object *all, int round, int size) {
    for (int i = 0; i < size; i++) {
        LS_CHECK(is_of(&all[i], round, i));
    }
    return LS_OK;
}

static void free_all(ls_object *all, int size) {
    for (int i = 0; i < size; i++) {
        ls_object_free(&all[i]);
    }
}

static ls_status exchange(ls_comm *world, int round, ls_object *own, ls_object *all) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    LS_TRY(ls_comm_allgather_object(world, own, all));
    LS_TRY(check_all(all, round, size));
    for (int root = 0; root < size; root++) {
        ls_object received = rank == root ? *own : (ls_object){0};
        LS_TRY(ls_comm_broadcast_object(world, &received, root));
        LS_CHECK(rank == root ? received.data == own->data : is_of(&received, round, root));
        if (rank != root) {
            ls_object_free(&received);
        }
        ls_object part = {0};
        LS_TRY(ls_comm_scatter_object(world, rank == root ? all : NULL, &part, root));
        LS_CHECK(is_of(&part, round, rank));
        ls_object_free(&part);
        LS_CHECK(part.data == NULL && part.bytes == 0);
    }
    free_all(all, size);
    for (int root = 0; root < size; root++) {
        LS_TRY(ls_comm_gather_object(world, own, rank == root ? all : NULL, root));
        LS_TRY(rank == root ? check_all(all, round, size) : LS_OK);
        free_all(all, rank == root ? size : 0);
    }
    return LS_OK;
}

/* This rank's object may be its entry of `all`, which the call replaces. */
static ls_status own_is_an_entry(ls_comm *world, ls_object *all) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    char own[] = "own";
    own[0] = (char)('A' + rank);
    for (int call = 0; call < 3; call++) {
        for (int i = 0; i < size; i++) {
            all[i] = (ls_object){.data = own, .bytes = sizeof own};
        }
        LS_TRY(call == 0   ? ls_comm_allgather_object(world, &all[rank], all)
               : call == 1 ? ls_comm_gather_object(world, &all[rank], all, 0)
                           : ls_comm_scatter_object(world, all, &all[rank], 0));
        for (int i = 0; i < size; i++) {
            const bool stored = call == 0 || (call == 1 ? rank == 0 : i == rank);
            const char first = (char)('A' + (call == 2 ? 0 : i));
            LS_CHECK(!stored || (all[i].bytes == sizeof own && *(const char *)all[i].data == first));
            if (stored) {
                ls_object_free(&all[i]);
            }
        }
    }
    return LS_OK;
}

static ls_status check_objects(ls_comm *world) {
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    ls_object *all = calloc((size_t)size, sizeof *all);
    for (int round = 0; round < 4; round++) {
        ls_object own = {.data = malloc(length_of(round, rank) + 1), .bytes = length_of(round, rank)};
        LS_CHECK(all != NULL && own.data != NULL);
        fill(round, rank, own.data);
        LS_TRY(exchange(world, round, &own, all));
        free(own.data);
    }
    LS_TRY(own_is_an_entry(world, all));
    const ls_object none = {.bytes = 3};
    LS_CHECK(ls_comm_allgather_object(world, &none, all) == LS_ERR_ARGUMENT);
    LS_EXPECT_MESSAGE("the data of an object of 3 bytes is NULL");
    LS_CHECK(ls_comm_broadcast_object(world, all, size) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_gather_object(world, NULL, all, 0) == LS_ERR_ARGUMENT);
    free(all);
    return ls_comm_barrier(world, NULL);
}

/* ---- calls that are given up ------------------------------------------------------------------------------------- */

/* Rank 0 begins a barrier that the other ranks do not call, and abandons it. Then every rank's next call fails. */
static ls_status give_up(ls_comm *world, bool cancels) {
    ls_comm *part = NULL;
    LS_TRY(ls_comm_split(world, 0, 0, &part));
    ls_work *work = NULL, *later = NULL;
    int64_t number = 1;
    if (ls_comm_rank(world) == 0) {
        LS_TRY(ls_comm_barrier(part, &work));
        LS_TRY(ls_comm_allreduce(part, &number, &number, 1, LS_I64, LS_SUM, &later));
        LS_CHECK(ls_work_wait_for(work, -1) == LS_ERR_ARGUMENT);
        const ls_status status = cancels ? ls_work_cancel(work) : ls_work_wait_for(work, 0.05);
        LS_CHECK(status == (cancels ? LS_ERR_STATE : LS_ERR_TIMEOUT));
        LS_EXPECT_MESSAGE(cancels ? "ls_comm_barrier #1 was cancelled by ls_work_cancel"
                                  : "ls_comm_barrier #1 has not finished within 0.05 s");
        LS_CHECK(ls_work_wait(later) == LS_ERR_STATE && ls_comm_barrier(part, NULL) == LS_ERR_STATE);
    }
    LS_TRY(ls_comm_barrier(world, NULL));
    if (ls_comm_rank(world) != 0) {
        LS_CHECK(ls_comm_barrier(part, NULL) == LS_ERR_PEER);
        LS_EXPECT_MESSAGE("rank 0");
    }
    ls_comm_free(part);
    return ls_comm_barrier(world, NULL);
}

/* Calls that finish in time return their status, and the communicator stays usable. */
static ls_status finish_in_time(ls_comm *world) {
    ls_work *work = NULL;
    int64_t number = 2;
    LS_TRY(ls_comm_allreduce(world, &number, &number, 1, LS_I64, LS_SUM, &work));
    LS_TRY(ls_work_wait_for(work, 100));
    LS_CHECK(number == 2 * ls_comm_size(world));
    LS_TRY(ls_comm_barrier(world, &work));
    while (!ls_work_done(work)) {
    }
    LS_TRY(ls_work_cancel(work));
    LS_TRY(ls_work_cancel(NULL));
    return ls_work_wait_for(NULL, 0);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(check_objects(world));
    LS_TRY(finish_in_time(world));
    const bool ends =
        strcmp(ls_comm_backend(world), "mpi") != 0; /* MPI cannot be finalized while calls are in progress */
    for (int i = 0; i < 2 && ls_comm_size(world) > 1 && ends; i++) {
        LS_TRY(give_up(world, i == 1));
    }
    return LS_OK;
}
