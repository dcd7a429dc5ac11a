/* Copies between tensors of the same dtype. Elements are moved as words of their size. */
#include <string.h>

#include "base/clones.h"
#include "tensor/device/cpu/cpu_kernels.h"
#include "tensor/device/cpu/loop.h"

/* Words may alias elements of any type. */
typedef uint8_t word1 __attribute__((may_alias));
typedef uint16_t word2 __attribute__((may_alias));
typedef uint32_t word4 __attribute__((may_alias));
typedef uint64_t word8 __attribute__((may_alias));

/* The number of rows in a strip when a matrix is transposed; their cache lines stay in the cache. */
enum { STRIP = 16 };

/*
 * row_N copies one row; either side may be strided or repeated. transpose_N copies a matrix whose columns are dense in
 * x and whose rows are dense in y: the rows are the loop's second-to-last axis, the columns its last axis.
 */
#define COPY_WORDS(N)                                                                                                  \
    static void row_##N(int64_t n, void *const *at, const int64_t *step, const void *context) {                        \
        word##N *const to = at[0];                                                                                     \
        const word##N *const from = at[1];                                                                             \
        const int64_t to_step = step[0];                                                                               \
        const int64_t from_step = step[1];                                                                             \
        (void)context;                                                                                                 \
        if (to_step == 1 && from_step == 1) {                                                                          \
            memcpy(to, from, (size_t)n * sizeof *to);                                                                  \
            return;                                                                                                    \
        }                                                                                                              \
        if (to_step == 1 && from_step == 0) {                                                                          \
            const word##N one = from[0];                                                                               \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                to[i] = one;                                                                                           \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        LS_INDEPENDENT                                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            to[i * to_step] = from[i * from_step];                                                                     \
        }                                                                                                              \
    }                                                                                                                  \
    static void transpose_##N(int64_t rows, void *const *at, const int64_t *step, const void *context) {               \
        const ls_loop *const loop = context;                                                                           \
        const int64_t columns = loop->size[loop->ndim - 1];                                                            \
        const int64_t from_step = loop->step[loop->ndim - 1][1];                                                       \
        const int64_t to_step = step[0];                                                                               \
        for (int64_t first = 0; first < rows; first += STRIP) {                                                        \
            const int64_t strip = rows - first < STRIP ? rows - first : STRIP;                                         \
            for (int64_t column = 0; column < columns; column++) {                                                     \
                word##N *const to = (word##N *)at[0] + first * to_step + column;                                       \
                const word##N *const from = (const word##N *)at[1] + first + column * from_step;                       \
                LS_INDEPENDENT                                                                                         \
                for (int64_t row = 0; row < strip; row++) {                                                            \
                    to[row * to_step] = from[row];                                                                     \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
COPY_WORDS(1)
COPY_WORDS(2)
COPY_WORDS(4)
COPY_WORDS(8)

enum { LARGEST_WORD = 8 };
static const ls_loop_body row_bodies[LARGEST_WORD + 1] = {[1] = row_1, [2] = row_2, [4] = row_4, [8] = row_8};
static const ls_loop_body transpose_bodies[LARGEST_WORD + 1] = {
    [1] = transpose_1, [2] = transpose_2, [4] = transpose_4, [8] = transpose_8};

static void axes_swap(ls_loop *loop, int i, int j) {
    const ls_loop before = *loop;
    loop->size[i] = before.size[j];
    loop->size[j] = before.size[i];
    memcpy(loop->step[i], before.step[j], sizeof before.step[i]);
    memcpy(loop->step[j], before.step[i], sizeof before.step[j]);
}

/* Returns whether x and y are dense along different axes. If so, makes the dense axis of x the second-to-last axis. */
static bool find_transposition(ls_loop *loop) {
    const int last = loop->ndim - 1;
    if (loop->step[last][0] != 1 || loop->step[last][1] <= 1) {
        return false;
    }
    for (int axis = 0; axis < last; axis++) {
        if (loop->step[axis][1] == 1) {
            axes_swap(loop, axis, last - 1);
            return true;
        }
    }
    return false;
}

ls_status ls_cpu_copy(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    (void)stream;
    const size_t bytes = ls_dtype_size(y->dtype);
    if (y->count == 0 || (y->data == x->data && y->contiguous && x->contiguous)) {
        return LS_OK;
    }
    if (y->contiguous && x->contiguous && y->count == x->count) {
        memcpy(y->data, x->data, (size_t)y->count * bytes);
        return LS_OK;
    }
    ls_loop loop;
    ls_loop_plan(&loop, 2, (const ls_tensor *const[]){y, x});
    if (find_transposition(&loop)) {
        ls_loop_spread_walk(&loop, loop.ndim - 2, STRIP, transpose_bodies[bytes], &loop);
    } else {
        ls_loop_spread_walk(&loop, loop.ndim - 1, 1, row_bodies[bytes], NULL);
    }
    return LS_OK;
}

/* Returns whether all bits of the element are zero. */
static bool is_zero(const void *element, size_t bytes) {
    static const char zeros[LARGEST_WORD];
    return memcmp(element, zeros, bytes) == 0;
}

void ls_cpu_repeat(ls_tensor *y, const void *element) {
    const size_t bytes = ls_dtype_size(y->dtype);
    if (y->contiguous && is_zero(element, bytes)) {
        memset(y->data, 0, (size_t)y->count * bytes);
        return;
    }
    word8 word = 0;
    memcpy(&word, element, bytes);
    const ls_tensor one = {.data = &word, .count = 1, .dtype = y->dtype, .contiguous = true};
    ls_loop_run(2, (const ls_tensor *const[]){y, &one}, row_bodies[bytes], NULL);
}
