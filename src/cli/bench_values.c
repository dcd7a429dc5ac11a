#include <math.h>
#include <string.h>

#include "base/float16.h"
#include "base/status.h"
#include "cli/bench.h"
#include "comm/reduce.h"
#include "tensor/tensor.h"

/* Values repeat after a prime number of elements, so that a piece at a wrong position is noticed. */
enum { PERIOD = 251, WIDEST = 16 };

size_t ls_bench_width(ls_dtype dtype, ls_reduction reduction) {
    return reduction >= LS_MINLOC ? ls_reduce_width(dtype, reduction) : ls_dtype_size(dtype);
}

/* Returns the value of an element. It is a small integer, so that every dtype can represent it and sums of it. */
static int64_t value_of(const ls_bench_call *call, int rank, size_t index) {
    const unsigned place = (unsigned)(index % PERIOD);
    const unsigned mixed = (place * place + 31U * (unsigned)rank + place * (unsigned)(rank + 1)) / 3;
    if (call->dtype == LS_BOOL) {
        return mixed % 2;
    }
    if (call->reduction == LS_PROD) {
        return rank < 6 ? 1 + mixed % 2 : 1;
    }
    return mixed % 4;
}

static int64_t combine(ls_reduction reduction, int64_t left, int64_t right) {
    switch (reduction) {
    case LS_PROD:
        return left * right;
    case LS_MIN:
    case LS_MINLOC:
        return left < right ? left : right;
    case LS_MAX:
    case LS_MAXLOC:
        return left > right ? left : right;
    case LS_LAND:
        return left != 0 && right != 0;
    case LS_LOR:
        return left != 0 || right != 0;
    case LS_LXOR:
        return (left != 0) != (right != 0);
    case LS_BAND:
        return left & right;
    case LS_BOR:
        return left | right;
    case LS_BXOR:
        return left ^ right;
    default:
        return left + right;
    }
}

typedef struct element {
    double value;
    int64_t location; /* for minloc and maxloc: the rank that has the value */
} element;

static element reduced(const ls_bench_call *call, size_t index) {
    int64_t whole = value_of(call, 0, index);
    int64_t location = 0;
    for (int rank = 1; rank < call->ranks; rank++) {
        const int64_t before = whole;
        whole = combine(call->reduction, whole, value_of(call, rank, index));
        location = whole == before ? location : rank;
    }
    if (call->reduction >= LS_LAND && call->reduction <= LS_LXOR) {
        whole = whole != 0; /* a single rank has nothing to combine */
    }
    double value = (double)whole;
    if (call->reduction == LS_AVG) {
        value = ls_dtype_is_floating(call->dtype) ? value / call->ranks : (double)(whole / call->ranks);
    }
    return (element){value, location};
}

static element sent(const ls_bench_call *call, int rank, size_t index) {
    return (element){(double)value_of(call, rank, index), rank};
}

#define PUT(type, value)                                                                                               \
    do {                                                                                                               \
        const type put_value = (type)(value);                                                                          \
        memcpy(place, &put_value, sizeof put_value);                                                                   \
    } while (0)

static void put(ls_dtype dtype, double value, void *place) {
    switch (dtype) {
    case LS_F32:
        PUT(float, value);
        break;
    case LS_F64:
        PUT(double, value);
        break;
    case LS_BF16:
        PUT(uint16_t, ls_bf16_from_float((float)value));
        break;
    case LS_F16:
        PUT(uint16_t, ls_f16_from_float((float)value));
        break;
    case LS_I64:
        PUT(int64_t, value);
        break;
    case LS_I32:
        PUT(int32_t, value);
        break;
    default:
        PUT(uint8_t, (int64_t)value);
        break;
    }
}

static void put_element(const ls_bench_call *call, element wanted, char *place) {
    put(call->dtype, wanted.value, place);
    if (call->reduction >= LS_MINLOC) {
        const size_t size = ls_dtype_size(call->dtype);
        put(size == sizeof(int64_t) ? LS_I64 : LS_I32, (double)wanted.location, place + size);
    }
}

void ls_bench_fill(const ls_bench_call *call, void *buffer, size_t total) {
    const size_t width = ls_bench_width(call->dtype, call->reduction);
    const size_t first = total < PERIOD ? total : PERIOD;
    char *bytes = buffer;
    for (size_t i = 0; i < first; i++) {
        put_element(call, sent(call, call->rank, i), bytes + i * width);
    }
    /* Copies one period at a time, because memcpy of large pieces bypasses the cache, and a backward pass does not. */
    for (size_t done = first; done < total; done += PERIOD) {
        memcpy(bytes + done * width, bytes, (total - done < PERIOD ? total - done : PERIOD) * width);
    }
}

/* Returns the relative error that a result of the dtype may have due to the rounding of a sum or mean. */
static double tolerance(const ls_bench_call *call) {
    const bool rounds = call->reduction <= LS_PROD && ls_dtype_is_floating(call->dtype);
    const double unit = call->dtype == LS_F64   ? 0x1p-52
                        : call->dtype == LS_F32 ? 0x1p-23
                        : call->dtype == LS_F16 ? 0x1p-10
                                                : 0x1p-7;
    return rounds ? 2 * unit : 0.0;
}

/*
 * Compares `count` elements, some of whose bits differ, with the expected values. Returns the index of the first wrong
 * element.
 */
static size_t find_wrong(const ls_bench_call *call, const char *received, const char *wanted, size_t count) {
    const size_t width = ls_bench_width(call->dtype, call->reduction);
    for (size_t i = 0; i < count; i++) {
        const double value = ls_element_number(call->dtype, wanted + i * width);
        const bool near =
            fabs(ls_element_number(call->dtype, received + i * width) - value) <= tolerance(call) * fabs(value);
        if (!near || (call->reduction >= LS_MINLOC && memcmp(received + i * width, wanted + i * width, width) != 0)) {
            return i;
        }
    }
    return count;
}

bool ls_bench_check(const ls_bench_call *call, ls_bench_origin origin, int part) {
    if (origin.rank == LS_BENCH_NOBODY) {
        return true;
    }
    const size_t width = ls_bench_width(call->dtype, call->reduction);
    const char *received = (const char *)call->receive + (size_t)part * call->count * width;
    const size_t begin = (size_t)origin.part * call->count;
    char wanted[PERIOD * WIDEST];
    for (size_t i = 0; i < PERIOD; i++) {
        put_element(call, origin.rank == LS_BENCH_ALL ? reduced(call, begin + i) : sent(call, origin.rank, begin + i),
                    wanted + i * width);
    }
    for (size_t done = 0; done < call->count; done += PERIOD) {
        const size_t count = call->count - done < PERIOD ? call->count - done : PERIOD;
        const char *piece = received + done * width;
        const size_t wrong = memcmp(piece, wanted, count * width) == 0 ? count : find_wrong(call, piece, wanted, count);
        if (wrong < count) {
            (void)ls_fail(LS_ERR_INTERNAL, "element %zu of part %d on rank %d is %g, but should be %g", done + wrong,
                          part, call->rank, ls_element_number(call->dtype, piece + wrong * width),
                          ls_element_number(call->dtype, wanted + wrong * width));
            return false;
        }
    }
    return true;
}
