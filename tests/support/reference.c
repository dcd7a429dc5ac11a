#include "tests/support/reference.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"

/* One element in the widest type of its kind. */
typedef struct element {
    double real;
    int64_t whole;
    int64_t location;
} element;

static bool is_pair(ls_reduction reduction) {
    return reduction == LS_MINLOC || reduction == LS_MAXLOC;
}

bool reference_reduces(ls_dtype dtype, ls_reduction reduction) {
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

size_t reference_width(ls_dtype dtype, ls_reduction reduction) {
    return ls_dtype_size(dtype) * (is_pair(reduction) ? 2 : 1);
}

static bool sums_are_exact(void) {
    static atomic_int known; /* 1 + the answer, cached because getenv for every element would be slow */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    if (answer == 0) {
        answer = getenv("LOCKSTEP_TEST_ANY_ORDER") == NULL ? 1 : 2;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}

static element given(const reference *r, int rank, size_t i) {
    const uint64_t random = reference_mix(r->seed + (i % REFERENCE_PERIOD) * 1000003 + (uint64_t)rank * 7919);
    element e = {.location = (int64_t)(random >> 8 & 3)};
    e.whole = r->dtype == LS_BOOL ? (int64_t)(random >> 16 & 1) : (int64_t)((random >> 16) % 7);
    if (r->dtype != LS_U8 && r->dtype != LS_BOOL) {
        e.whole -= 3;
    }
    e.real = (double)e.whole;
    if (r->dtype == LS_F32 || r->dtype == LS_F64) {
        e.real *= sums_are_exact() ? 1 : 1.1; /* 1.1 makes sums depend on their order */
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

/* Rounds a double to the precision of the dtype's accumulator. */
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
    element c = a;
    switch (reduction) {
    case LS_SUM:
    case LS_AVG:
        c.real = rounded(dtype, a.real + b.real);
        c.whole = (int64_t)((uint64_t)a.whole + (uint64_t)b.whole);
        return c;
    case LS_PROD:
        c.real = rounded(dtype, a.real * b.real);
        c.whole = (int64_t)((uint64_t)a.whole * (uint64_t)b.whole);
        return c;
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
        c.whole = a.whole & b.whole;
        return c;
    case LS_BOR:
        c.whole = a.whole | b.whole;
        return c;
    case LS_BXOR:
        c.whole = a.whole ^ b.whole;
        return c;
    case LS_MINLOC:
        return better(a, b, a.whole < b.whole, a.whole == b.whole);
    default:
        return better(a, b, a.whole > b.whole, a.whole == b.whole);
    }
}

/* Reduces ranks [first, first + count) along the documented tree. */
static element tree(const reference *r, int first, int count, size_t i) {
    if (count == 1) {
        element e = given(r, first, i);
        e.real = rounded(r->dtype, e.real);
        const bool logical = r->reduction == LS_LAND || r->reduction == LS_LOR || r->reduction == LS_LXOR;
        return logical ? truth(e.whole != 0) : e;
    }
    int left = 1;
    while (left * 2 < count) {
        left *= 2;
    }
    return combine(r->dtype, r->reduction, tree(r, first, left, i), tree(r, first + left, count - left, i));
}

static element finished(const reference *r, int ranks, size_t i) {
    element e = tree(r, 0, ranks, i);
    if (r->reduction == LS_AVG) {
        e.real = rounded(r->dtype, e.real / ranks);
        e.whole /= ranks;
    }
    return e;
}

/* Repeats the first period of `data` up to its end. */
static void repeat(unsigned char *data, size_t bytes, size_t width) {
    const size_t period = REFERENCE_PERIOD * width;
    for (size_t done = period; done < bytes;) {
        const size_t more = done < bytes - done ? done : bytes - done;
        memcpy(data + done, data, more);
        done += more;
    }
}

void reference_fill(const reference *r, int rank, size_t count, void *data) {
    const size_t width = reference_width(r->dtype, r->reduction);
    for (size_t i = 0; i < count && i < REFERENCE_PERIOD; i++) {
        store(r->dtype, (char *)data + i * width, given(r, rank, i), is_pair(r->reduction));
    }
    repeat(data, count * width, width);
}

void reference_reduce(const reference *r, int ranks, size_t first, size_t count, void *data) {
    const size_t width = reference_width(r->dtype, r->reduction);
    for (size_t i = 0; i < count && i < REFERENCE_PERIOD; i++) {
        store(r->dtype, (char *)data + i * width, finished(r, ranks, first + i), is_pair(r->reduction));
    }
    repeat(data, count * width, width);
}

void reference_send(uint64_t seed, ls_dtype dtype, int from, int to, size_t count, void *data) {
    const size_t width = ls_dtype_size(dtype);
    const uint64_t start = reference_mix(seed + (uint64_t)from * 1000003 + (uint64_t)(to + 1) * 7919);
    for (size_t i = 0; i < count && i < REFERENCE_PERIOD; i++) {
        uint64_t random = reference_mix(start + i);
        random &= dtype == LS_BOOL ? 1 : UINT64_MAX;
        memcpy((char *)data + i * width, &random, width);
    }
    repeat(data, count * width, width);
}
