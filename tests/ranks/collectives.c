/*
 * The conformance list of barrier, broadcast and all-reduce: every dtype with every reduction that means something on
 * it, every size around the places where algorithms change, unaligned, in place, in memory of ls_comm_alloc, every
 * root, and asynchronous calls mixed with others. Expected values are computed element by element, one rank after the
 * other along the documented tree, so they share no code with the library.
 */
#include "tests/support/ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"

#define GUARD      64 /* bytes around every buffer that must stay as they are */
#define GUARD_BYTE 0xa5

/* ---- one element as its widest type ------------------------------------------------------------------------------ */

typedef struct element {
    double real;
    int64_t whole;
    int64_t location;
} element;

static bool is_pair(ls_reduction reduction) {
    return reduction == LS_MINLOC || reduction == LS_MAXLOC;
}

static size_t width_of(ls_dtype dtype, ls_reduction reduction) {
    return ls_dtype_size(dtype) * (is_pair(reduction) ? 2 : 1);
}

/* What `rank` gives for element i: small values, with zeros, ties and negative numbers. */
static element given(ls_dtype dtype, int rank, size_t i) {
    const uint32_t random = (uint32_t)((i * 2654435761U) ^ ((unsigned)rank * 40503U)) * 2246822519U;
    element e = {.location = (int64_t)(random >> 8 & 3)};
    e.whole = dtype == LS_BOOL ? (int64_t)(random >> 16 & 1) : (int64_t)((random >> 16) % 7);
    if (dtype != LS_U8 && dtype != LS_BOOL) {
        e.whole -= 3;
    }
    e.real = (double)e.whole;
    if (dtype == LS_F32 || dtype == LS_F64) {
        e.real *= 1.1; /* sums that depend on their order */
    }
    return e;
}

static void store(ls_dtype dtype, void *at, element e, bool pair) {
    const float single = (float)e.real;
    const uint16_t half = dtype == LS_BF16 ? ls_bf16_from_float(single) : ls_f16_from_float(single);
    const int32_t whole32 = (int32_t)e.whole;
    const int32_t location32 = (int32_t)e.location;
    const uint8_t byte = (uint8_t)e.whole;
    const void *const values[LS_DTYPE_COUNT] = {
        [LS_F32] = &single,  [LS_F64] = &e.real,  [LS_BF16] = &half, [LS_F16] = &half,
        [LS_I64] = &e.whole, [LS_I32] = &whole32, [LS_U8] = &byte,   [LS_BOOL] = &byte,
    };
    const size_t size = ls_dtype_size(dtype);
    memcpy(at, values[dtype], size);
    if (pair) {
        memcpy((char *)at + size, size == 8 ? (const void *)&e.location : (const void *)&location32, size);
    }
}

/* A double rounded as the accumulator of the dtype is. */
static double rounded(ls_dtype dtype, double value) {
    return dtype == LS_F64 ? value : (double)(float)value;
}

static element truth(bool value) {
    return (element){.real = value, .whole = value};
}

static element better(element a, element b, bool a_wins, bool tie) {
    return a_wins || (tie && a.location <= b.location) ? a : b;
}

static element combine(ls_dtype dtype, ls_reduction reduction, element a, element b) {
    element r = a;
    switch (reduction) {
    case LS_SUM:
    case LS_AVG:
        r.real = rounded(dtype, a.real + b.real);
        r.whole = a.whole + b.whole;
        return r;
    case LS_PROD:
        r.real = rounded(dtype, a.real * b.real);
        r.whole = a.whole * b.whole;
        return r;
    case LS_MIN:
        return a.whole < b.whole ? a : b;
    case LS_MAX:
        return a.whole > b.whole ? a : b;
    case LS_LAND:
        return truth(a.whole != 0 && b.whole != 0);
    case LS_LOR:
        return truth(a.whole != 0 || b.whole != 0);
    case LS_LXOR:
        return truth((a.whole != 0) != (b.whole != 0));
    case LS_BAND:
        r.whole = a.whole & b.whole;
        return r;
    case LS_BOR:
        r.whole = a.whole | b.whole;
        return r;
    case LS_BXOR:
        r.whole = a.whole ^ b.whole;
        return r;
    case LS_MINLOC:
        return better(a, b, a.whole < b.whole, a.whole == b.whole);
    default:
        return better(a, b, a.whole > b.whole, a.whole == b.whole);
    }
}

/* Ranks [first, first + count) along the documented tree. */
static element expected(ls_dtype dtype, ls_reduction reduction, int first, int count, size_t i) {
    if (count == 1) {
        element e = given(dtype, first, i);
        e.real = rounded(dtype, e.real);
        const bool logical = reduction == LS_LAND || reduction == LS_LOR || reduction == LS_LXOR;
        return logical ? truth(e.whole != 0) : e;
    }
    int left = 1;
    while (left * 2 < count) {
        left *= 2;
    }
    return combine(dtype, reduction, expected(dtype, reduction, first, left, i),
                   expected(dtype, reduction, first + left, count - left, i));
}

static element finished(ls_dtype dtype, ls_reduction reduction, int size, size_t i) {
    element e = expected(dtype, reduction, 0, size, i);
    if (reduction == LS_AVG) {
        e.real = rounded(dtype, e.real / size);
        e.whole /= size;
    }
    return e;
}

/* ---- buffers -------------------------------------------------------------------------------------------------------
 */

/* A buffer with guards around it, `shift` bytes off any alignment. */
typedef struct buffer {
    unsigned char *memory;
    unsigned char *data;
    size_t bytes;
} buffer;

static buffer buffer_make(size_t bytes, size_t shift) {
    buffer b = {.memory = malloc(bytes + shift + 2 * GUARD), .bytes = bytes};
    if (b.memory == NULL) {
        abort();
    }
    memset(b.memory, GUARD_BYTE, bytes + shift + 2 * GUARD);
    b.data = b.memory + GUARD + shift;
    return b;
}

static bool buffer_intact(const buffer *b) {
    for (const unsigned char *at = b->memory; at < b->data; at++) {
        if (*at != GUARD_BYTE) {
            return false;
        }
    }
    for (size_t i = 0; i < GUARD; i++) {
        if (b->data[b->bytes + i] != GUARD_BYTE) {
            return false;
        }
    }
    return true;
}

static void fill(ls_dtype dtype, ls_reduction reduction, int rank, size_t count, unsigned char *data) {
    const size_t width = width_of(dtype, reduction);
    for (size_t i = 0; i < count; i++) {
        store(dtype, data + i * width, given(dtype, rank, i), is_pair(reduction));
    }
}

static ls_status verify(ls_comm *world, ls_dtype dtype, ls_reduction reduction, size_t count,
                        const unsigned char *data) {
    const size_t width = width_of(dtype, reduction);
    for (size_t i = 0; i < count; i++) {
        unsigned char wanted[16];
        store(dtype, wanted, finished(dtype, reduction, ls_comm_size(world), i), is_pair(reduction));
        if (memcmp(wanted, data + i * width, width) != 0) {
            return ls_fail(LS_ERR_INTERNAL, "%s of %zu %s: element %zu is wrong", ls_reduction_name(reduction), count,
                           ls_dtype_name(dtype), i);
        }
    }
    return LS_OK;
}

/* ---- all-reduce
 * ------------------------------------------------------------------------------------------------------ */

static ls_status one_allreduce(ls_comm *world, ls_dtype dtype, ls_reduction reduction, size_t count, size_t shift) {
    const size_t bytes = count * width_of(dtype, reduction);
    const int rank = ls_comm_rank(world);
    buffer send = buffer_make(bytes, shift);
    buffer receive = buffer_make(bytes, shift * 3);
    buffer before = buffer_make(bytes, 0);
    fill(dtype, reduction, rank, count, send.data);
    memcpy(before.data, send.data, bytes);
    LS_TRY(ls_comm_allreduce(world, send.data, receive.data, count, dtype, reduction, NULL));
    LS_TRY(verify(world, dtype, reduction, count, receive.data));
    LS_CHECK(memcmp(before.data, send.data, bytes) == 0);
    LS_TRY(ls_comm_allreduce(world, send.data, send.data, count, dtype, reduction, NULL));
    LS_CHECK(memcmp(receive.data, send.data, bytes) == 0);
    LS_CHECK(buffer_intact(&send) && buffer_intact(&receive));
    free(send.memory);
    free(receive.memory);
    free(before.memory);
    return LS_OK;
}

static bool meaningful(ls_dtype dtype, ls_reduction reduction) {
    switch (reduction) {
    case LS_SUM:
    case LS_AVG:
    case LS_PROD:
        return dtype != LS_BOOL;
    case LS_BAND:
    case LS_BOR:
    case LS_BXOR:
        return !ls_dtype_is_floating(dtype);
    case LS_MINLOC:
    case LS_MAXLOC:
        return dtype == LS_F32 || dtype == LS_F64 || dtype == LS_I32 || dtype == LS_I64;
    default:
        return true;
    }
}

static ls_status every_kind(ls_comm *world) {
    static const size_t counts[] = {0, 1, 2, 3, 7, 31, 130, 1000, 5001, 40001};
    for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
        for (int reduction = 0; reduction < LS_REDUCTION_COUNT; reduction++) {
            if (!meaningful((ls_dtype)dtype, (ls_reduction)reduction)) {
                double x = 0;
                LS_CHECK(ls_comm_allreduce(world, &x, &x, 1, (ls_dtype)dtype, (ls_reduction)reduction, NULL) ==
                         LS_ERR_UNSUPPORTED);
                continue;
            }
            for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
                const size_t shift = i % 2 == 0 ? 0 : i;
                LS_TRY(one_allreduce(world, (ls_dtype)dtype, (ls_reduction)reduction, counts[i], shift));
            }
        }
    }
    return LS_OK;
}

/* Bytes at which the way of travelling changes, or a chunk ends. */
static const size_t switch_overs[] = {80,    2048,   4096,   8192,   16384,  32768,  65536,
                                      98304, 131072, 196608, 262144, 524288, 1048576};

static ls_status every_switch_over(ls_comm *world) {
    for (size_t i = 0; i < sizeof switch_overs / sizeof switch_overs[0]; i++) {
        const size_t count = switch_overs[i] / 4;
        for (size_t n = count - 1; n <= count + 1; n++) {
            LS_TRY(one_allreduce(world, LS_F32, LS_SUM, n, n % 3));
        }
        LS_TRY(one_allreduce(world, LS_BF16, LS_AVG, 2 * count + 1, 1));
    }
    return one_allreduce(world, LS_F64, LS_SUM, 400003, 5);
}

static ls_status nan_wins(ls_comm *world) {
    const int size = ls_comm_size(world);
    for (int holder = 0; holder < size; holder++) {
        float values[3] = {1.0F, ls_comm_rank(world) == holder ? NAN : 2.0F, -3.0F};
        ls_loc_f32 pair = {.value = values[1], .location = 10 + ls_comm_rank(world)};
        LS_TRY(ls_comm_allreduce(world, &pair, &pair, 1, LS_F32, LS_MINLOC, NULL));
        LS_CHECK(isnan(pair.value) && pair.location == 10 + holder);
        float least[3];
        LS_TRY(ls_comm_allreduce(world, values, least, 3, LS_F32, LS_MIN, NULL));
        LS_TRY(ls_comm_allreduce(world, values, values, 3, LS_F32, LS_MAX, NULL));
        LS_CHECK(least[0] == 1.0F && isnan(least[1]) && least[2] == -3.0F);
        LS_CHECK(values[0] == 1.0F && isnan(values[1]) && values[2] == -3.0F);
    }
    return LS_OK;
}

static ls_status integers_wrap_and_average(ls_comm *world) {
    const int size = ls_comm_size(world);
    uint8_t byte = 200;
    uint8_t mean = 0;
    int32_t most = INT32_MAX;
    int32_t negative = ls_comm_rank(world) == 0 ? -1 : 0;
    LS_TRY(ls_comm_allreduce(world, &byte, &mean, 1, LS_U8, LS_AVG, NULL));
    LS_TRY(ls_comm_allreduce(world, &byte, &byte, 1, LS_U8, LS_SUM, NULL));
    LS_TRY(ls_comm_allreduce(world, &most, &most, 1, LS_I32, LS_AVG, NULL));
    LS_TRY(ls_comm_allreduce(world, &negative, &negative, 1, LS_I32, LS_AVG, NULL));
    LS_CHECK(mean == 200 && byte == (uint8_t)(200 * size));
    LS_CHECK(most == INT32_MAX && negative == -1 / size);
    return LS_OK;
}

/* ---- memory of ls_comm_alloc
 * ------------------------------------------------------------------------------------------- */

static ls_status in_shared_memory(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    const size_t most = 300001;
    float *memory = ls_comm_alloc(world, (2 * most + 16) * sizeof(float));
    LS_CHECK(memory != NULL && ((uintptr_t)memory & 63) == 0);
    for (size_t i = 0; i < 2 * most + 16; i++) {
        LS_CHECK(memory[i] == 0.0F);
    }
    static const size_t counts[] = {0, 1, 20, 21, 1200, 4096, 4097, 16385, 65537, 300001};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        unsigned char *send = (unsigned char *)(memory + rank); /* another place on each rank */
        unsigned char *receive = (unsigned char *)(memory + most + 8) + 1;
        fill(LS_F32, LS_SUM, rank, counts[i], send);
        LS_TRY(ls_comm_allreduce(world, send, receive, counts[i], LS_F32, LS_SUM, NULL));
        LS_TRY(verify(world, LS_F32, LS_SUM, counts[i], receive));
        LS_TRY(ls_comm_allreduce(world, send, send, counts[i], LS_F32, LS_SUM, NULL));
        LS_CHECK(memcmp(send, receive, counts[i] * 4) == 0);
        /* One rank's buffer lies elsewhere. */
        buffer outside = buffer_make(counts[i] * 4, 2);
        unsigned char *mixed = rank == ls_comm_size(world) - 1 ? outside.data : receive;
        fill(LS_F32, LS_MAX, rank, counts[i], mixed);
        LS_TRY(ls_comm_allreduce(world, mixed, mixed, counts[i], LS_F32, LS_MAX, NULL));
        LS_TRY(verify(world, LS_F32, LS_MAX, counts[i], mixed));
        LS_CHECK(buffer_intact(&outside));
        free(outside.memory);
    }
    ls_comm_release(world, memory);
    return LS_OK;
}

static ls_status many_allocations(ls_comm *world) {
    float *kept[20];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 20; i++) {
            kept[i] = ls_comm_alloc(world, i == 3 ? 0 : (size_t)i * 10000);
            LS_CHECK(kept[i] != NULL);
        }
        for (int i = 19; i >= 15; i--) {
            const size_t count = (size_t)i * 2500;
            fill(LS_F32, LS_SUM, ls_comm_rank(world), count, (unsigned char *)kept[i]);
            LS_TRY(ls_comm_allreduce(world, kept[i], kept[i], count, LS_F32, LS_SUM, NULL));
            LS_TRY(verify(world, LS_F32, LS_SUM, count, (unsigned char *)kept[i]));
        }
        for (int i = 0; i < 20; i++) {
            if (round < 2 || i % 2 == 0) { /* the last are left to the end of the communicator */
                ls_comm_release(world, kept[i]);
            }
        }
    }
    LS_CHECK(ls_comm_alloc(world, SIZE_MAX / 2 + 1) == NULL && ls_error_status() == LS_ERR_MEMORY);
    return ls_comm_barrier(world, NULL); /* the communicator is none the worse for it */
}

/* ---- broadcast
 * --------------------------------------------------------------------------------------------------------- */

static unsigned char sent_by(int root, size_t i) {
    return (unsigned char)((i * 2654435761U + (unsigned)root * 77U) >> 13);
}

static ls_status one_broadcast(ls_comm *world, unsigned char *data, size_t bytes, int root) {
    const bool mine = ls_comm_rank(world) == root;
    for (size_t i = 0; i < bytes; i++) {
        data[i] = mine ? sent_by(root, i) : (unsigned char)~sent_by(root, i);
    }
    LS_TRY(ls_comm_broadcast(world, data, bytes, LS_U8, root, NULL));
    for (size_t i = 0; i < bytes; i++) {
        LS_CHECK(data[i] == sent_by(root, i));
    }
    return LS_OK;
}

static ls_status every_broadcast(ls_comm *world) {
    static const size_t sizes[] = {0, 1, 3, 79, 80, 81, 1000, 65535, 65537, 262143, 262144, 262145, 700000};
    unsigned char *shared = ls_comm_alloc(world, 700000 + 8);
    LS_CHECK(shared != NULL);
    for (int root = 0; root < ls_comm_size(world); root++) {
        const bool mine = ls_comm_rank(world) == root;
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            buffer b = buffer_make(sizes[i], i);
            LS_TRY(one_broadcast(world, b.data, sizes[i], root));
            LS_TRY(one_broadcast(world, shared + ls_comm_rank(world), sizes[i], root));
            LS_TRY(one_broadcast(world, mine ? shared : b.data, sizes[i], root));
            LS_TRY(one_broadcast(world, mine ? b.data : shared, sizes[i], root));
            LS_CHECK(buffer_intact(&b));
            free(b.memory);
        }
    }
    ls_comm_release(world, shared);
    return LS_OK;
}

/* ---- asynchronous
 * ---------------------------------------------------------------------------------------------------- */

static ls_status asynchronous(ls_comm *world) {
    enum { CALLS = 12 };
    static const size_t counts[CALLS] = {1, 5000, 0, 90000, 20, 30000, 3, 200000, 1, 1, 4096, 70000};
    const int rank = ls_comm_rank(world);
    buffer buffers[CALLS];
    ls_work *works[CALLS];
    for (int i = 0; i < CALLS; i++) {
        buffers[i] = buffer_make(counts[i] * 4, (size_t)i);
        fill(LS_F32, LS_SUM, rank, counts[i], buffers[i].data);
        LS_TRY(ls_comm_allreduce(world, buffers[i].data, buffers[i].data, counts[i], LS_F32, LS_SUM, &works[i]));
        if (i == 5) { /* a waiting call goes behind those before it */
            int64_t one = 1;
            LS_TRY(ls_comm_allreduce(world, &one, &one, 1, LS_I64, LS_SUM, NULL));
            LS_CHECK(one == ls_comm_size(world));
            LS_CHECK(ls_work_done(works[5]) && ls_work_done(works[0]));
        }
    }
    ls_work *barrier = NULL;
    LS_TRY(ls_comm_barrier(world, &barrier));
    while (!ls_work_done(works[8])) {
    }
    for (int i = CALLS - 1; i >= 0; i--) { /* in any order */
        LS_TRY(ls_work_wait(works[i]));
        LS_TRY(verify(world, LS_F32, LS_SUM, counts[i], buffers[i].data));
        LS_CHECK(buffer_intact(&buffers[i]));
        free(buffers[i].memory);
    }
    LS_TRY(ls_work_wait(barrier));
    return ls_work_wait(NULL);
}

/* ---- wrong input
 * ------------------------------------------------------------------------------------------------------- */

static ls_status wrong_input(ls_comm *world) {
    float x[8] = {0};
    const int size = ls_comm_size(world);
    LS_CHECK(ls_comm_barrier(NULL, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(NULL, x, x, 1, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, NULL, x, 1, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x, NULL, 1, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x, x + 1, 4, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x, x, SIZE_MAX / 3, LS_F32, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x, x, 1, (ls_dtype)77, LS_SUM, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, x, x, 1, LS_F32, (ls_reduction)77, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_broadcast(world, x, 1, LS_F32, size, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_broadcast(world, x, 1, LS_F32, -1, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_broadcast(world, NULL, 1, LS_F32, 0, NULL) == LS_ERR_ARGUMENT);
    LS_CHECK(ls_comm_allreduce(world, NULL, NULL, 0, LS_F32, LS_SUM, NULL) == LS_OK);
    LS_CHECK(ls_comm_broadcast(world, NULL, 0, LS_F32, 0, NULL) == LS_OK);
    LS_CHECK(ls_comm_alloc(NULL, 1) == NULL && ls_error_status() == LS_ERR_ARGUMENT);
    ls_comm_release(NULL, NULL);
    ls_comm_release(world, NULL);
    LS_CHECK(ls_comm_rank(NULL) == -1 && ls_comm_size(NULL) == 0);
    LS_CHECK(strcmp(ls_reduction_name(LS_AVG), "avg") == 0);
    LS_CHECK(strcmp(ls_reduction_name((ls_reduction)99), "unknown") == 0);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(wrong_input(world));
    LS_TRY(ls_comm_barrier(world, NULL));
    LS_TRY(every_kind(world));
    LS_TRY(every_switch_over(world));
    LS_TRY(nan_wins(world));
    LS_TRY(integers_wrap_and_average(world));
    LS_TRY(in_shared_memory(world));
    LS_TRY(many_allocations(world));
    LS_TRY(every_broadcast(world));
    LS_TRY(asynchronous(world));
    return ls_comm_barrier(world, NULL);
}
