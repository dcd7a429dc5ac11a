/*
 * The conformance list of the calls that move data or reduce it for some ranks: gather, all-gather, scatter, all-to-all
 * with their v-forms, reduce, reduce-scatter. Every root, sizes around the places where algorithms change, unaligned,
 * in place, with gaps, in memory of ls_comm_alloc, as work mixed with waiting calls. Every value says where it comes
 * from, so a value in a wrong place is seen; buffers have guards around them.
 */
#include "tests/support/ranks.h"

#include <stdlib.h>
#include <string.h>

#define GUARD      64
#define GUARD_BYTE 0xa5

enum { RANKS_MOST = 8 };

/* The i-th element that `from` sends to `to`; `to` -1: the same for all. */
static unsigned char sent(int from, int to, size_t i) {
    return (unsigned char)(((i + 1) * 2654435761U + (unsigned)from * 40503U + (unsigned)(to + 1) * 9973U) >> 11);
}

typedef struct buffer {
    unsigned char *memory;
    unsigned char *data;
    size_t bytes;
} buffer;

static buffer make(size_t bytes, size_t shift) {
    buffer b = {.memory = malloc(bytes + shift + 2 * GUARD), .bytes = bytes};
    if (b.memory == NULL) {
        abort();
    }
    memset(b.memory, GUARD_BYTE, bytes + shift + 2 * GUARD);
    b.data = b.memory + GUARD + shift;
    return b;
}

/* Frees the buffer; whether nothing around it was written. */
static bool end(buffer *b) {
    bool good = true;
    for (size_t i = 0; i < GUARD; i++) {
        good = good && b->data[b->bytes + i] == GUARD_BYTE && b->memory[i] == GUARD_BYTE;
    }
    free(b->memory);
    return good;
}

static void fill(unsigned char *data, size_t count, int from, int to) {
    for (size_t i = 0; i < count; i++) {
        data[i] = sent(from, to, i);
    }
}

static bool holds(const unsigned char *data, size_t count, int from, int to) {
    for (size_t i = 0; i < count; i++) {
        if (data[i] != sent(from, to, i)) {
            return false;
        }
    }
    return true;
}

static bool untouched(const unsigned char *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (data[i] != GUARD_BYTE) {
            return false;
        }
    }
    return true;
}

/* ---- equal counts --------------------------------------------------------------------------------------------------
 */

/* What one_size does its calls with. */
typedef struct place {
    ls_comm *comm;
    int rank;
    int size;
    size_t count;
    unsigned char *one;  /* room for one part */
    unsigned char *many; /* for one of every rank */
    unsigned char *into;
} place;

static ls_status gathers(const place *p, int root) {
    fill(p->one, p->count, p->rank, -1);
    memset(p->many, GUARD_BYTE, p->count * (size_t)p->size);
    LS_TRY(ls_comm_gather(p->comm, p->one, p->many, p->count, LS_U8, root, NULL));
    for (int r = 0; r < p->size && p->rank == root; r++) {
        LS_CHECK(holds(p->many + (size_t)r * p->count, p->count, r, -1));
    }
    LS_CHECK(p->rank == root || untouched(p->many, p->count * (size_t)p->size));
    unsigned char *own = p->many + (size_t)p->rank * p->count; /* in place */
    fill(own, p->count, p->rank, 5);
    LS_TRY(ls_comm_gather(p->comm, own, p->rank == root ? p->many : NULL, p->count, LS_U8, root, NULL));
    for (int r = 0; r < p->size && p->rank == root; r++) {
        LS_CHECK(holds(p->many + (size_t)r * p->count, p->count, r, 5));
    }
    return LS_OK;
}

static ls_status scatters(const place *p, int root) {
    for (int r = 0; r < p->size; r++) {
        fill(p->many + (size_t)r * p->count, p->count, p->rank, r);
    }
    memset(p->one, 0, p->count);
    LS_TRY(ls_comm_scatter(p->comm, p->rank == root ? p->many : NULL, p->one, p->count, LS_U8, root, NULL));
    LS_CHECK(holds(p->one, p->count, root, p->rank));
    unsigned char *own = p->rank == root ? p->many + (size_t)root * p->count : p->one;
    LS_TRY(ls_comm_scatter(p->comm, p->many, own, p->count, LS_U8, root, NULL));
    LS_CHECK(holds(own, p->count, root, p->rank));
    return LS_OK;
}

static ls_status allgathers(const place *p) {
    fill(p->one, p->count, p->rank, -1);
    memset(p->many, 0, p->count * (size_t)p->size);
    LS_TRY(ls_comm_allgather(p->comm, p->one, p->many, p->count, LS_U8, NULL));
    for (int r = 0; r < p->size; r++) {
        LS_CHECK(holds(p->many + (size_t)r * p->count, p->count, r, -1));
    }
    fill(p->many + (size_t)p->rank * p->count, p->count, p->rank, 3);
    LS_TRY(ls_comm_allgather(p->comm, p->many + (size_t)p->rank * p->count, p->many, p->count, LS_U8, NULL));
    for (int r = 0; r < p->size; r++) {
        LS_CHECK(holds(p->many + (size_t)r * p->count, p->count, r, 3));
    }
    return LS_OK;
}

static ls_status alltoalls(const place *p) {
    for (int r = 0; r < p->size; r++) {
        fill(p->many + (size_t)r * p->count, p->count, p->rank, r);
    }
    LS_TRY(ls_comm_alltoall(p->comm, p->many, p->into, p->count, LS_U8, NULL));
    for (int r = 0; r < p->size; r++) {
        LS_CHECK(holds(p->into + (size_t)r * p->count, p->count, r, p->rank));
        LS_CHECK(holds(p->many + (size_t)r * p->count, p->count, p->rank, r));
    }
    LS_TRY(ls_comm_alltoall(p->comm, p->many, p->many, p->count, LS_U8, NULL));
    LS_CHECK(memcmp(p->many, p->into, p->count * (size_t)p->size) == 0);
    return LS_OK;
}

static ls_status one_size(ls_comm *comm, size_t count, size_t shift, unsigned char *shared) {
    const size_t all = count * (size_t)ls_comm_size(comm);
    buffer one = make(count, shift);
    buffer many = make(all, shift * 3);
    buffer into = make(all, shift * 5);
    place p = {comm, ls_comm_rank(comm), ls_comm_size(comm), count, one.data, many.data, into.data};
    if (shared != NULL) {
        p.one = shared + shift;
        p.many = p.one + count;
        p.into = p.many + all;
    }
    for (int root = 0; root < p.size; root++) {
        LS_TRY(gathers(&p, root));
        LS_TRY(scatters(&p, root));
    }
    LS_TRY(allgathers(&p));
    LS_TRY(alltoalls(&p));
    LS_CHECK(end(&one) && end(&many) && end(&into));
    return LS_OK;
}

static ls_status every_size(ls_comm *comm) {
    static const size_t counts[] = {0,    1,     3,     15,    16,    17,    26,    27,     40,    41,
                                    80,   81,    1000,  16383, 16384, 16385, 65535, 65536,  65537, 131072,
                                    4097, 87381, 87424, 32768, 32832, 65471, 65472, 300001, 600000};
    const size_t most = 600000;
    unsigned char *shared = ls_comm_alloc(comm, most * (2 * (size_t)ls_comm_size(comm) + 1) + 64);
    LS_CHECK(shared != NULL);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        LS_TRY(one_size(comm, counts[i], i % 7, NULL));
        LS_TRY(one_size(comm, counts[i], i % 5, shared));
    }
    ls_comm_release(comm, shared);
    return LS_OK;
}

/* ---- counts per rank -----------------------------------------------------------------------------------------------
 */

/* How much rank `from` sends to rank `to` in the k-th round. */
static size_t varied(int from, int to, int k) {
    static const size_t sizes[] = {0, 1, 100, 5, 20000, 0, 70000, 333};
    return sizes[(unsigned)(from * 3 + to * 5 + k) % 8];
}

/* Counts of what is sent to (or, `received`, comes to) this rank, with gaps of `gap` between parts, in another order.
 */
static size_t lay_out(int size, int rank, int k, bool received, size_t gap, size_t *counts, size_t *places) {
    size_t at = gap;
    for (int i = size - 1; i >= 0; i--) {
        counts[i] = received ? varied(i, rank, k) : varied(rank, i, k);
        places[i] = at;
        at += counts[i] + gap;
    }
    return at;
}

static ls_status exchanges(ls_comm *comm, int k) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    size_t out[RANKS_MOST], out_at[RANKS_MOST], in[RANKS_MOST], in_at[RANKS_MOST];
    buffer send = make(lay_out(size, rank, k, false, 2, out, out_at) * 2, 1);
    buffer receive = make(lay_out(size, rank, k, true, 3, in, in_at) * 2, 0);
    for (int r = 0; r < size; r++) {
        fill(send.data + 2 * out_at[r], 2 * out[r], rank, r);
    }
    LS_TRY(ls_comm_alltoallv(comm, send.data, out, out_at, receive.data, in, in_at, LS_F16, NULL));
    for (int r = 0; r < size; r++) {
        LS_CHECK(holds(receive.data + 2 * in_at[r], 2 * in[r], r, rank));
        LS_CHECK(untouched(receive.data + 2 * (in_at[r] - 3), 6));
    }
    LS_CHECK(end(&send) && end(&receive));
    return LS_OK;
}

static ls_status rooted_exchanges(ls_comm *comm, int root, int k) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    size_t counts[RANKS_MOST], places[RANKS_MOST];
    const size_t all = lay_out(size, root, k, true, 1, counts, places);
    const size_t own = varied(rank, root, k);
    const bool mine = rank == root;
    buffer part = make(own, 3);
    buffer whole = make(all, 0);
    fill(part.data, own, rank, 2);
    LS_TRY(ls_comm_gatherv(comm, part.data, own, whole.data, mine ? counts : NULL, places, LS_U8, root, NULL));
    for (int r = 0; r < size && mine; r++) {
        LS_CHECK(holds(whole.data + places[r], counts[r], r, 2) && untouched(whole.data + places[r] - 1, 1));
    }
    LS_CHECK(mine || untouched(whole.data, all));
    memset(part.data, 0, own); /* and back again */
    LS_TRY(ls_comm_scatterv(comm, whole.data, mine ? counts : NULL, places, part.data, own, LS_U8, root, NULL));
    LS_CHECK(holds(part.data, own, rank, 2));
    memset(whole.data, GUARD_BYTE, all);
    LS_TRY(ls_comm_allgatherv(comm, part.data, whole.data, counts, places, LS_U8, NULL));
    for (int r = 0; r < size; r++) {
        LS_CHECK(holds(whole.data + places[r], counts[r], r, 2) && untouched(whole.data + places[r] - 1, 1));
    }
    LS_TRY(ls_comm_allgatherv(comm, part.data, whole.data, counts, NULL, LS_U8, NULL)); /* without gaps */
    size_t at = 0;
    for (int r = 0; r < size; r++) {
        LS_CHECK(holds(whole.data + at, counts[r], r, 2));
        at += counts[r];
    }
    LS_CHECK(end(&part) && end(&whole));
    return LS_OK;
}

static ls_status every_variation(ls_comm *comm) {
    for (int k = 0; k < 8; k++) {
        LS_TRY(exchanges(comm, k));
        LS_TRY(rooted_exchanges(comm, k % ls_comm_size(comm), k));
    }
    return LS_OK;
}

/* ---- reductions for some ranks -------------------------------------------------------------------------------------
 */

static float term(int rank, size_t i) {
    return (float)((i * 7 + (size_t)rank * 13) % 101) * 1.1F - 40.0F;
}

/* ls_comm_allreduce, which has a conformance list of its own, says what is right. */
static ls_status reductions(ls_comm *comm, size_t count, ls_dtype dtype, ls_reduction reduction) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    const size_t pair = reduction == LS_MINLOC || reduction == LS_MAXLOC ? 2 : 1;
    const size_t width = ls_dtype_size(dtype) * pair;
    const size_t all = count * (size_t)size;
    buffer send = make(all * width, 0);
    buffer right = make(all * width, 0);
    buffer part = make(all * width, 4);
    for (size_t i = 0; i < all * width / 4; i++) {
        const float value = term(rank, i);
        const int32_t whole = (int32_t)value;
        memcpy(send.data + 4 * i, dtype == LS_F32 ? (const void *)&value : (const void *)&whole, 4);
    }
    LS_TRY(ls_comm_allreduce(comm, send.data, right.data, all, dtype, reduction, NULL));
    for (int root = 0; root < size; root++) {
        memset(part.data, GUARD_BYTE, all * width);
        LS_TRY(ls_comm_reduce(comm, send.data, rank == root ? part.data : NULL, all, dtype, reduction, root, NULL));
        LS_CHECK(rank == root ? memcmp(part.data, right.data, all * width) == 0 : untouched(part.data, all * width));
    }
    const size_t bytes = count * width;
    const unsigned char *mine = right.data + bytes * (size_t)rank;
    memset(part.data, GUARD_BYTE, all * width);
    LS_TRY(ls_comm_reduce_scatter(comm, send.data, part.data, count, dtype, reduction, NULL));
    LS_CHECK(memcmp(part.data, mine, bytes) == 0 && untouched(part.data + bytes, all * width - bytes));
    memcpy(part.data, send.data, all * width);
    unsigned char *own = part.data + bytes * (size_t)rank;
    LS_TRY(ls_comm_reduce_scatter(comm, part.data, own, count, dtype, reduction, NULL));
    LS_CHECK(memcmp(own, mine, bytes) == 0);
    memcpy(part.data, send.data, all * width);
    LS_TRY(ls_comm_reduce_scatter(comm, part.data, part.data, count, dtype, reduction, NULL));
    LS_CHECK(memcmp(part.data, mine, bytes) == 0);
    memcpy(part.data, send.data, all * width);
    LS_TRY(ls_comm_reduce(comm, part.data, part.data, all, dtype, reduction, size - 1, NULL));
    LS_CHECK(rank != size - 1 || memcmp(part.data, right.data, all * width) == 0);
    LS_CHECK(end(&send) && end(&right) && end(&part));
    return LS_OK;
}

/* The same in memory of ls_comm_alloc, on all ranks and on all but one. */
static ls_status shared_reductions(ls_comm *comm, size_t count, bool all_shared) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    const size_t all = count * (size_t)size;
    buffer outside = make(all * 4, 0);
    buffer right = make(all * 4, 0);
    float *memory = ls_comm_alloc(comm, 8 * all);
    LS_CHECK(memory != NULL);
    float *send = all_shared || rank != 0 ? memory : (float *)(void *)outside.data;
    for (int k = 0; k < 4; k++) {
        for (size_t i = 0; i < all; i++) {
            send[i] = term(rank, i + (size_t)k);
        }
        float *into = k == 0 ? memory + all : k == 1 ? send + count * (size_t)rank : send;
        LS_TRY(ls_comm_allreduce(comm, send, right.data, all, LS_F32, LS_SUM, NULL));
        if (k < 3) {
            LS_TRY(ls_comm_reduce_scatter(comm, send, into, count, LS_F32, LS_SUM, NULL));
            LS_CHECK(memcmp(into, right.data + 4 * count * (size_t)rank, 4 * count) == 0);
        } else {
            LS_TRY(ls_comm_reduce(comm, send, memory + all, all, LS_F32, LS_SUM, size / 2, NULL));
            LS_CHECK(rank != size / 2 || memcmp(memory + all, right.data, 4 * all) == 0);
        }
        LS_TRY(ls_comm_barrier(comm, NULL));
    }
    ls_comm_release(comm, memory);
    LS_CHECK(end(&outside) && end(&right));
    return LS_OK;
}

static ls_status uneven_reduction(ls_comm *comm, int k, bool in_place) {
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    size_t counts[RANKS_MOST], at[RANKS_MOST];
    size_t all = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = varied(r, 2, k);
        at[r] = all;
        all += counts[r];
    }
    buffer send = make(all * 4, 0);
    buffer right = make(all * 4, 0);
    buffer part = make(counts[rank] * 4, 0);
    for (size_t i = 0; i < all; i++) {
        const float value = term(rank, i);
        memcpy(send.data + 4 * i, &value, 4);
    }
    LS_TRY(ls_comm_allreduce(comm, send.data, right.data, all, LS_F32, LS_SUM, NULL));
    unsigned char *into = in_place ? send.data : part.data;
    LS_TRY(ls_comm_reduce_scatterv(comm, send.data, into, counts, LS_F32, LS_SUM, NULL));
    LS_CHECK(memcmp(into, right.data + 4 * at[rank], 4 * counts[rank]) == 0);
    LS_CHECK(end(&send) && end(&right) && end(&part));
    return LS_OK;
}

static ls_status every_reduction(ls_comm *comm) {
    static const size_t counts[] = {0, 1, 3, 7, 10, 11, 100, 2049, 5000, 16385, 40001, 140000};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        LS_TRY(reductions(comm, counts[i], LS_F32, LS_SUM));
        LS_TRY(reductions(comm, counts[i], LS_I32, i % 2 == 0 ? LS_LAND : LS_AVG));
        LS_TRY(reductions(comm, counts[i], LS_I32, LS_MAXLOC));
        LS_TRY(shared_reductions(comm, counts[i], true));
        LS_TRY(shared_reductions(comm, counts[i], false));
    }
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        for (int reduction = 0; reduction < LS_REDUCTION_COUNT; reduction++) {
            unsigned char x[16] = {0};
            if (ls_comm_allreduce(comm, x, x, 1, (ls_dtype)dtype, (ls_reduction)reduction, NULL) == LS_OK) {
                LS_TRY(reductions(comm, 8, (ls_dtype)dtype, (ls_reduction)reduction));
                LS_TRY(reductions(comm, 1040, (ls_dtype)dtype, (ls_reduction)reduction));
            }
        }
    }
    for (int k = 0; k < 8; k++) {
        LS_TRY(uneven_reduction(comm, k, false));
        LS_TRY(uneven_reduction(comm, k, true));
    }
    return LS_OK;
}

/* ---- as work -------------------------------------------------------------------------------------------------------
 */

static ls_status asynchronous(ls_comm *comm) {
    enum { ROUNDS = 4 };
    const int size = ls_comm_size(comm);
    const int rank = ls_comm_rank(comm);
    static const size_t counts[ROUNDS] = {3, 30000, 1, 70001};
    ls_work *works[ROUNDS][3];
    buffer gathered[ROUNDS], given[ROUNDS], taken[ROUNDS], one[ROUNDS];
    for (int k = 0; k < ROUNDS; k++) {
        const size_t n = counts[k];
        gathered[k] = make(n * (size_t)size, 0);
        given[k] = make(n * (size_t)size, 1);
        taken[k] = make(n * (size_t)size, 2);
        one[k] = make(n, 0);
        fill(one[k].data, n, rank, k);
        for (int r = 0; r < size; r++) {
            fill(given[k].data + n * (size_t)r, n, rank, r + k);
        }
        LS_TRY(ls_comm_allgather(comm, one[k].data, gathered[k].data, n, LS_U8, &works[k][0]));
        LS_TRY(ls_comm_alltoall(comm, given[k].data, taken[k].data, n, LS_U8, &works[k][1]));
        LS_TRY(ls_comm_alltoall(comm, taken[k].data, taken[k].data, n, LS_U8, &works[k][2])); /* back again */
        if (k == 2) {
            LS_TRY(ls_comm_barrier(comm, NULL));
            LS_CHECK(ls_work_done(works[0][2]));
        }
    }
    for (int k = ROUNDS - 1; k >= 0; k--) {
        for (int i = 0; i < 3; i++) {
            LS_TRY(ls_work_wait(works[k][i]));
        }
        LS_CHECK(memcmp(given[k].data, taken[k].data, counts[k] * (size_t)size) == 0);
        for (int r = 0; r < size; r++) {
            LS_CHECK(holds(gathered[k].data + counts[k] * (size_t)r, counts[k], r, k));
        }
        LS_CHECK(end(&gathered[k]) && end(&given[k]) && end(&taken[k]) && end(&one[k]));
    }
    return LS_OK;
}

/* ---- wrong input ---------------------------------------------------------------------------------------------------
 */

static ls_status wrong_input(ls_comm *comm) {
    unsigned char x[64] = {0};
    const int size = ls_comm_size(comm);
    size_t counts[RANKS_MOST] = {0};
    LS_CHECK(ls_comm_gather(NULL, x, x + 32, 1, LS_U8, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_gather(comm, x, x + 32, 1, LS_U8, size, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_gather(comm, NULL, x + 32, 1, LS_U8, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allgather(comm, x, NULL, 1, LS_U8, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allgather(comm, x, x + 1, 2, LS_U8, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allgather(comm, x, x + 32, SIZE_MAX / 2, LS_F64, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allgatherv(comm, x, x + 32, NULL, NULL, LS_U8, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_scatter(comm, x, x, 1, LS_U8, -1, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_alltoall(comm, x, x + 1, 2, LS_U8, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_alltoall(comm, x, x + 32, 1, (ls_dtype)77, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_alltoallv(comm, x, counts, NULL, x, NULL, NULL, LS_U8, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_reduce(comm, x, x + 32, 1, LS_F32, (ls_reduction)77, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_reduce(comm, x, x + 32, 1, LS_F32, LS_SUM, size, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_reduce(comm, x, x + 32, 1, LS_BOOL, LS_SUM, 0, NULL) == LS_ERR_UNSUPPORTED);
    LS_CHECK(ls_comm_reduce_scatter(comm, x, x + 1, 4, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_reduce_scatterv(comm, x, x + 32, NULL, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    counts[0] = SIZE_MAX;
    LS_CHECK(ls_comm_alltoallv(comm, x, counts, NULL, x, counts, NULL, LS_U8, NULL) == LS_ERR_ARGUMENT);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(wrong_input(world));
    LS_TRY(every_size(world));
    LS_TRY(every_variation(world));
    LS_TRY(every_reduction(world));
    LS_TRY(asynchronous(world));
    return ls_comm_barrier(world, NULL);
}
