/*
 * Large matrix products in parts. A BLAS library splits a product, and even the sums over a long inner dimension,
 * according to its number of threads. It also selects its code by this number. So the last bits of its results depend
 * on the number of threads. Here, the split depends only on the sizes, and one thread of the library computes each
 * part. So the results are bit-identical for any number of threads.
 */
#include <stdatomic.h>

#include "tensor/device/cpu/gemm.h"
#include "tensor/device/cpu/libraries.h"
#include "tensor/scope.h"

/*
 * The limits for splitting. Above them, two calls take at most a few percent longer than one (measured in
 * docs/internals/notes/matmul.md). Libraries may copy the data that they read from both operands, so narrow parts cost
 * more.
 */
enum { MOST_PARTS = 16, FEWEST_MULTIPLICATIONS = 1 << 18, SHORTEST_SIDE = 64, SHORTEST_SUM = 2048 };
#define MOST_COPIED (1.0 / 48) /* copied numbers per multiplication, as for a square of 96 rows */
#define MORE_COPIED 1.5        /* or more by this factor than without splitting */

/* One of the three sizes, in parts that consist of whole blocks; the last part may be shorter. */
typedef struct side {
    int64_t size, block;
    int parts;
} side;

typedef struct product {
    const ls_gemm *gemm;
    ls_product_part *multiply;
    side rows, columns, sums;
    char *partial; /* C for each part of the sums except the first; dense */
} product;

/* The parts of a product, which are distributed over threads. */
typedef struct product_work {
    const product *product;
    atomic_int next;   /* the first part that no thread has started */
    atomic_int failed; /* the maximum status of all parts */
} product_work;

/* ---- dividing ---------------------------------------------------------------------------------------------------- */

static int64_t begin_of(const side *of, int part) {
    const int64_t blocks = (of->size + of->block - 1) / of->block;
    const int64_t begin = blocks * part / of->parts * of->block;
    return begin < of->size ? begin : of->size;
}

static double length_of(const side *of) {
    return (double)of->size / of->parts;
}

static int parts_of(const product *p) {
    return p->rows.parts * p->columns.parts * p->sums.parts;
}

static bool is_enough_for(const product *p, int parts) {
    const double multiplications = (double)p->rows.size * (double)p->columns.size * (double)p->sums.size;
    return parts <= MOST_PARTS && multiplications >= (double)parts * FEWEST_MULTIPLICATIONS;
}

/* Returns whether halves of `longer` are wide enough. */
static bool is_worth_halving(const product *p, const side *longer, const side *shorter) {
    const double whole = 1 / (double)longer->size + 1 / (double)shorter->size;
    const double copied = 2 / length_of(longer) + 1 / length_of(shorter);
    return is_enough_for(p, 2 * parts_of(p)) && length_of(longer) >= 2 * SHORTEST_SIDE &&
           (copied <= MOST_COPIED || copied <= MORE_COPIED * whole);
}

/* Halves the longer side repeatedly, while the halves are wide enough. If this gives too few parts, also splits long
 * sums. */
static void divide(product *p) {
    for (;;) {
        side *longer = length_of(&p->rows) > length_of(&p->columns) ? &p->rows : &p->columns;
        const side *shorter = longer == &p->rows ? &p->columns : &p->rows;
        if (!is_worth_halving(p, longer, shorter)) {
            break;
        }
        longer->parts *= 2;
    }
    while (is_enough_for(p, 2 * parts_of(p)) && length_of(&p->sums) >= 2 * SHORTEST_SUM) {
        p->sums.parts *= 2;
    }
}

/* ---- computing --------------------------------------------------------------------------------------------------- */

static ls_status run_part(const product *p, int part) {
    const ls_gemm *gemm = p->gemm;
    const int64_t width = (int64_t)ls_dtype_size(gemm->dtype);
    const int column = part % p->columns.parts, row = part / p->columns.parts % p->rows.parts;
    const int sum = part / p->columns.parts / p->rows.parts;
    const int64_t i = begin_of(&p->rows, row), j = begin_of(&p->columns, column), l = begin_of(&p->sums, sum);
    ls_gemm own = *gemm;
    own.m = begin_of(&p->rows, row + 1) - i;
    own.n = begin_of(&p->columns, column + 1) - j;
    own.k = begin_of(&p->sums, sum + 1) - l;
    own.a = (const char *)gemm->a + width * (gemm->transpose_a ? l * gemm->lda + i : i * gemm->lda + l);
    own.b = (const char *)gemm->b + width * (gemm->transpose_b ? j * gemm->ldb + l : l * gemm->ldb + j);
    own.c = gemm->c;
    if (sum > 0) {
        own.c = p->partial + width * (sum - 1) * gemm->m * gemm->n;
        own.ldc = gemm->n;
        own.accumulate = false;
    }
    own.c = (char *)own.c + width * (i * own.ldc + j);
    return p->multiply(&own);
}

/* Computes parts until no part is left. */
static void take_parts(int thread, const void *context) {
    (void)thread;
    product_work *work = *(product_work *const *)context;
    for (;;) {
        const int part = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed);
        if (part >= parts_of(work->product)) {
            return;
        }
        const int status = (int)run_part(work->product, part);
        int failed = atomic_load_explicit(&work->failed, memory_order_relaxed);
        while (status > failed && !atomic_compare_exchange_weak_explicit(&work->failed, &failed, status,
                                                                         memory_order_relaxed, memory_order_relaxed)) {
        }
    }
}

static ls_status run_parts(const product *p, const ls_onednn *onednn, int threads) {
    product_work work = {.product = p, .failed = LS_OK};
    product_work *const shared = &work;
    const int used = threads < parts_of(p) ? threads : parts_of(p);
    if (used > 1) {
        onednn->parallel(used, take_parts, &shared);
    } else {
        take_parts(0, &shared);
    }
    return (ls_status)atomic_load_explicit(&work.failed, memory_order_relaxed);
}

#define ADD_ROWS(T, to_, from_, step)                                                                                  \
    do {                                                                                                               \
        T *to = (T *)(to_);                                                                                            \
        const T *from = (const T *)(from_);                                                                            \
        for (int64_t i = 0; i < gemm->m; i++, from += gemm->n, to += (step)) {                                         \
            for (int64_t j = 0; j < gemm->n; j++) {                                                                    \
                to[j] += from[j];                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

/* Adds the partial sums in their order. */
static void add_partial(const product *p) {
    const ls_gemm *gemm = p->gemm;
    const int64_t bytes = gemm->m * gemm->n * (int64_t)ls_dtype_size(gemm->dtype);
    for (int sum = 1; sum < p->sums.parts; sum++) {
        const void *partial = p->partial + (sum - 1) * bytes;
        if (gemm->dtype == LS_F64) {
            ADD_ROWS(double, gemm->c, partial, gemm->ldc);
        } else {
            ADD_ROWS(float, gemm->c, partial, gemm->ldc);
        }
    }
}

static ls_status run_product(product *p, const ls_onednn *onednn, int threads) {
    const ls_gemm *gemm = p->gemm;
    const size_t width = ls_dtype_size(gemm->dtype);
    const size_t bytes = (size_t)((p->sums.parts - 1) * gemm->m * gemm->n) * width;
    if (bytes > 0) {
        p->partial = ls_record_allocate(bytes);
        if (p->partial == NULL) {
            return ls_fail_memory("matrix product", bytes);
        }
    }
    const ls_status status = run_parts(p, onednn, threads);
    if (bytes > 0) {
        if (status == LS_OK) {
            add_partial(p);
        }
        ls_record_release(p->partial, bytes);
    }
    return status == LS_ERR_MEMORY ? ls_fail_memory("matrix product", (size_t)(gemm->n * gemm->k) * width) : status;
}

ls_status ls_product_divided(const ls_gemm *gemm, const ls_onednn *onednn, ls_product_part *multiply) {
    /* Parts begin at a cache line of C, if C itself does, and at a multiple of the vectors of columns in the
     * libraries' code. */
    product p = {.gemm = gemm,
                 .multiply = multiply,
                 .rows = {.size = gemm->m, .block = 8, .parts = 1},
                 .columns = {.size = gemm->n, .block = 16, .parts = 1},
                 .sums = {.size = gemm->k, .block = 16, .parts = 1}};
    divide(&p);
    const int team = onednn->team(), before = onednn->set_threads(1);
    const ls_status status = run_product(&p, onednn, team);
    (void)onednn->set_threads(before);
    return status;
}
