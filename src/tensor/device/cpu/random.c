/*
 * Random numbers. Element i is number i of the stream, regardless of the size of the tensor and the order in which it
 * is filled. Numbers are generated as doubles or 64-bit integers, in pieces, and then converted.
 */
#include <math.h>

#include "base/float_limits.h"
#include "base/random.h"
#include "tensor/device/cpu/floating.h"

enum { PIECE = 256 }; /* numbers per piece; even */

/* The parameters from which numbers are generated. */
typedef struct ls_distribution {
    ls_random_state state;
    double start, scale; /* floating-point results are start + scale * the random number */
    double limit;        /* the upper limit of floating-point results */
    int64_t low;         /* integers are in [low, low + range) */
    uint64_t range;
} ls_distribution;

/* Generates numbers first, first + 1, ... of a piece, each of 8 bytes; `first` is even. */
typedef void (*ls_piece_maker)(const ls_distribution *source, uint64_t first, int64_t count, void *piece);

static ls_status fill_by_pieces(ls_stream *stream, ls_tensor *y, ls_dtype made_as, ls_piece_maker make,
                                const ls_distribution *source) {
    uint64_t piece[PIECE];
    ls_tensor from = {.data = piece, .dtype = (uint8_t)made_as, .ndim = 1, .contiguous = true, .stride = {1}};
    ls_tensor to = {.dtype = y->dtype, .ndim = 1, .contiguous = true, .stride = {1}};
    const int64_t element = (int64_t)ls_dtype_size(y->dtype);
    for (int64_t first = 0; first < y->count; first += PIECE) {
        const int64_t count = y->count - first < PIECE ? y->count - first : PIECE;
        make(source, (uint64_t)first, count, piece);
        to.data = (char *)y->data + first * element;
        to.count = to.size[0] = from.count = from.size[0] = count;
        LS_TRY(ls_cpu_cast(stream, &to, &from));
    }
    return LS_OK;
}

/* The piece has room for both numbers of its last pair. */
static void make_uniform(const ls_distribution *source, uint64_t first, int64_t count, void *piece) {
    double *const number = piece;
    ls_random_uniform_pairs(source->state.seed, source->state.stream, first / 2, (count + 1) / 2, number);
    for (int64_t i = 0; i < count; i++) {
        const double scaled = source->start + source->scale * number[i];
        number[i] = scaled < source->limit ? scaled : source->limit;
    }
}

static void make_normal(const ls_distribution *source, uint64_t first, int64_t count, void *piece) {
    double *const number = piece;
    ls_random_normal_pairs(source->state.seed, source->state.stream, first / 2, (count + 1) / 2, number);
    for (int64_t i = 0; i < count; i++) {
        number[i] = source->start + source->scale * number[i];
    }
}

static void make_integers(const ls_distribution *source, uint64_t first, int64_t count, void *piece) {
    uint64_t *const number = piece;
    for (int64_t i = 0; i < count; i++) {
        const ls_random_state state = source->state;
        number[i] =
            (uint64_t)source->low + ls_random_below(state.seed, state.stream, first + (uint64_t)i, source->range);
    }
}

ls_status ls_cpu_random_uniform(ls_stream *stream, ls_tensor *y, ls_random_state state, double low, double high) {
    const ls_distribution source = {.state = state,
                                    .start = low,
                                    .scale = high - low,
                                    .limit = low < high ? ls_largest_below(high, (ls_dtype)y->dtype) : low};
    return fill_by_pieces(stream, y, LS_F64, make_uniform, &source);
}

ls_status ls_cpu_random_normal(ls_stream *stream, ls_tensor *y, ls_random_state state, double mean, double deviation) {
    const ls_distribution source = {.state = state, .start = mean, .scale = deviation};
    return fill_by_pieces(stream, y, LS_F64, make_normal, &source);
}

ls_status ls_cpu_random_integer(ls_stream *stream, ls_tensor *y, ls_random_state state, int64_t low, int64_t high) {
    const ls_distribution source = {.state = state, .low = low, .range = (uint64_t)high - (uint64_t)low};
    return fill_by_pieces(stream, y, LS_I64, make_integers, &source);
}

/* Element i survives if word start + i of the stream is at least p * 2^32. */
#define DROPOUT(name, T)                                                                                               \
    LS_CLONES static void name(T *y, const T *x, const uint32_t *word, int64_t count, uint64_t threshold, T scale) {   \
        LS_INDEPENDENT                                                                                                 \
        for (int64_t i = 0; i < count; i++) {                                                                          \
            const T kept = x[i] * scale;                                                                               \
            y[i] = word[i] >= threshold ? kept : 0;                                                                    \
        }                                                                                                              \
    }
DROPOUT(dropout_piece_f32, float)
DROPOUT(dropout_piece_f64, double)

#define DROPOUT_ALL(name, piece, T)                                                                                    \
    static void name(ls_tensor *y, const ls_tensor *x, ls_random_state state, uint64_t start, double p) {              \
        const uint64_t threshold = (uint64_t)ceil(p * 0x1p32);                                                         \
        const T scale = (T)(p < 1 ? 1 / (1 - p) : 0);                                                                  \
        const uint64_t block = start / 4,                                                                              \
                       before = start % 4; /* words of the first block that belong to previous elements */             \
        for (int64_t first = 0; first < y->count; first += PIECE) {                                                    \
            uint32_t word[PIECE + 4];                                                                                  \
            const int64_t count = y->count - first < PIECE ? y->count - first : PIECE;                                 \
            ls_random_blocks(state.seed, state.stream, block + (uint64_t)first / 4, ((int64_t)before + count + 3) / 4, \
                             word);                                                                                    \
            piece((T *)y->data + first, (const T *)x->data + first, word + before, count, threshold, scale);           \
        }                                                                                                              \
    }
DROPOUT_ALL(dropout_f32, dropout_piece_f32, float)
DROPOUT_ALL(dropout_f64, dropout_piece_f64, double)

ls_status ls_cpu_dropout(ls_stream *stream, ls_tensor *y, const ls_tensor *x, ls_random_state state, uint64_t first,
                         double p) {
    (void)stream;
    return LS_FLOATING(y->dtype, dropout, y, x, state, first, p);
}
