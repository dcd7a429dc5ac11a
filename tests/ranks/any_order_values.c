/*
 * Reductions in any order give the values that lockstep/comm.h promises, for every reduction on every dtype, from one
 * element to more than an inline payload holds, even if an MPI or Gloo library computes them. Sums of the test's
 * elements are exact in every floating-point dtype, so every order gives bit-identical results.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "comm/reduce.h"

enum { RANKS_MOST = 8, MOST = 60000, WIDEST = sizeof(ls_loc_f64) };

static const size_t counts[] = {1, 67, 4099, MOST};

/* The data that this rank sends, and the expected results of the four calls. */
typedef struct buffers {
    unsigned char *sent, *expected, *received;
    size_t parts[RANKS_MOST]; /* of the reduce-scatter with a separate count per rank */
} buffers;

static uint64_t bits_of(uint64_t index, int rank) {
    uint64_t x = (index + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)rank * UINT64_C(0xd1b54a32d192ed03);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ (x >> 31);
}

static void put_number(unsigned char *at, ls_dtype dtype, float number) {
    const double wide = number;
    const uint16_t half = dtype == LS_BF16 ? ls_bf16_from_float(number) : ls_f16_from_float(number);
    switch (dtype) {
    case LS_F32:
        memcpy(at, &number, sizeof number);
        break;
    case LS_F64:
        memcpy(at, &wide, sizeof wide);
        break;
    default:
        memcpy(at, &half, sizeof half);
    }
}

/* Integers use all bits, and are sometimes 0. Floating-point numbers and values of pairs have few distinct, small
 * values. */
static void fill(unsigned char *buffer, ls_dtype dtype, size_t width, size_t count, int rank) {
    const bool floats = dtype == LS_F32 || dtype == LS_F64 || dtype == LS_F16 || dtype == LS_BF16;
    for (size_t i = 0; i < count; i++) {
        const uint64_t bits = bits_of(i, rank), flag = bits >> 63, location = bits >> 60;
        unsigned char *at = buffer + i * width;
        memset(at, 0, width);
        if (floats) {
            static const float numbers[] = {-2, -1, 1, 2};
            put_number(at, dtype, numbers[bits >> 62]);
        } else if (dtype == LS_BOOL) {
            memcpy(at, &flag, 1);
        } else if (bits % 5 != 0) {
            memcpy(at, &bits, ls_dtype_size(dtype));
        }
        if (width > ls_dtype_size(dtype)) { /* a pair */
            memcpy(at + width / 2, &location, width / 2);
        }
    }
}

/* Returns the offset of a rank's part in a vector with the counts in `parts`. */
static size_t part_at(const buffers *own, int rank) {
    size_t at = 0;
    for (int i = 0; i < rank; i++) {
        at += own->parts[i];
    }
    return at;
}

static ls_status check_same(const buffers *own, size_t from, size_t count, size_t width, const char *what,
                            ls_dtype dtype, ls_reduction reduction, size_t all) {
    for (size_t i = 0; i < count * width; i++) {
        if (own->received[i] != own->expected[from * width + i]) {
            return ls_fail(LS_ERR_INTERNAL, "%s of %zu %s, %s: element %zu has byte %d instead of %d", what, all,
                           ls_dtype_name(dtype), ls_reduction_name(reduction), from + i / width, own->received[i],
                           own->expected[from * width + i]);
        }
    }
    return LS_OK;
}

/* Compares reductions in any order with the results of the canonical order. */
static ls_status compare(ls_comm *comm, buffers *own, ls_dtype dtype, ls_reduction reduction, size_t count) {
    const int rank = ls_comm_rank(comm), size = ls_comm_size(comm), root = size - 1;
    const size_t width = ls_reduce_width(dtype, reduction), share = count / (size_t)size;
    fill(own->sent, dtype, width, count, rank);
    LS_TRY(ls_comm_set_any_order(comm, false));
    LS_TRY(ls_comm_allreduce(comm, own->sent, own->expected, count, dtype, reduction, NULL));
    LS_TRY(ls_comm_set_any_order(comm, true));
    LS_TRY(ls_comm_allreduce(comm, own->sent, own->received, count, dtype, reduction, NULL));
    LS_TRY(check_same(own, 0, count, width, "all-reduce", dtype, reduction, count));
    LS_TRY(ls_comm_reduce(comm, own->sent, own->received, count, dtype, reduction, root, NULL));
    LS_TRY(check_same(own, 0, rank == root ? count : 0, width, "reduce", dtype, reduction, count));
    LS_TRY(ls_comm_reduce_scatter(comm, own->sent, own->received, share, dtype, reduction, NULL));
    LS_TRY(check_same(own, share * (size_t)rank, share, width, "reduce-scatter", dtype, reduction, count));
    for (int i = 0; i < size; i++) {
        own->parts[i] = i == root ? count - part_at(own, i) : share / 2;
    }
    LS_TRY(ls_comm_reduce_scatterv(comm, own->sent, own->received, own->parts, dtype, reduction, NULL));
    return check_same(own, part_at(own, rank), own->parts[rank], width, "reduce-scatter by counts", dtype, reduction,
                      count);
}

static ls_status compare_all(ls_comm *world, buffers *own) {
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        for (int reduction = 0; reduction < LS_REDUCTION_COUNT; reduction++) {
            if (ls_reduce_check("", (ls_dtype)dtype, (ls_reduction)reduction) != LS_OK) {
                continue;
            }
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                LS_TRY(compare(world, own, (ls_dtype)dtype, (ls_reduction)reduction, counts[i]));
            }
        }
    }
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    buffers own = {.sent = malloc(MOST * WIDEST), .expected = malloc(MOST * WIDEST), .received = malloc(MOST * WIDEST)};
    const bool made = own.sent != NULL && own.expected != NULL && own.received != NULL;
    const ls_status status = made ? compare_all(world, &own) : ls_fail(LS_ERR_MEMORY, "out of memory");
    free(own.sent);
    free(own.expected);
    free(own.received);
    return status;
}
