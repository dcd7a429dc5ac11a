/*
 * Products of f32. oneDNN divides one by its threads, long sums too, and chooses its code by how many they are, so that
 * its last bits depend on their number. Here the sizes alone say how a product is divided, and one thread of oneDNN's
 * makes each part: whoever makes it, and when, the bits are the same.
 */
#include "tensor/device/onednn/plan.h"

/*
 * What a part is worth dividing for: above, two calls take at most a few percent longer than one (measured in
 * docs/notes/matmul.md). oneDNN may copy what it reads of both operands, so parts that are narrow cost more.
 */
enum { MOST_PARTS = 16, FEWEST_MULTIPLICATIONS = 1 << 18, SHORTEST_SIDE = 64, SHORTEST_SUM = 2048 };
#define MOST_COPIED (1.0 / 48) /* numbers copied for each multiplication; as many as a square of 96 rows */
#define MORE_COPIED 1.5        /* or so much more than without dividing */

/* One of the three sizes, in parts of whole blocks, but the last. */
typedef struct side {
    int64_t size, block;
    int parts;
} side;

typedef struct product {
    const ls_gemm *gemm;
    side rows, columns, sums;
    float *partial; /* C of each part of the sums but the first, dense */
} product;

/* ---- dividing ------------------------------------------------------------------------------------------------------
 */

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

/* Whether halves of `longer` are still wide enough. */
static bool is_worth_halving(const product *p, const side *longer, const side *shorter) {
    const double whole = 1 / (double)longer->size + 1 / (double)shorter->size;
    const double copied = 2 / length_of(longer) + 1 / length_of(shorter);
    return is_enough_for(p, 2 * parts_of(p)) && length_of(longer) >= 2 * SHORTEST_SIDE &&
           (copied <= MOST_COPIED || copied <= MORE_COPIED * whole);
}

/* Halves of the longer side, as often as they are wide enough; then, where that gave few, parts of long sums. */
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

/* ---- computing -----------------------------------------------------------------------------------------------------
 */

static dnnl_status_t run_part(const product *p, int part) {
    const ls_gemm *gemm = p->gemm;
    const int column = part % p->columns.parts, row = part / p->columns.parts % p->rows.parts;
    const int sum = part / p->columns.parts / p->rows.parts;
    const int64_t i = begin_of(&p->rows, row), j = begin_of(&p->columns, column), l = begin_of(&p->sums, sum);
    const int64_t m = begin_of(&p->rows, row + 1) - i, n = begin_of(&p->columns, column + 1) - j;
    const int64_t k = begin_of(&p->sums, sum + 1) - l;
    const float *a = (const float *)gemm->a + (gemm->transpose_a ? l * gemm->lda + i : i * gemm->lda + l);
    const float *b = (const float *)gemm->b + (gemm->transpose_b ? j * gemm->ldb + l : l * gemm->ldb + j);
    float *c = sum == 0 ? gemm->c : p->partial + (sum - 1) * gemm->m * gemm->n;
    const int64_t step = sum == 0 ? gemm->ldc : gemm->n;
    const bool adds = sum == 0 && gemm->accumulate;
    return dnnl_sgemm(gemm->transpose_a ? 'T' : 'N', gemm->transpose_b ? 'T' : 'N', m, n, k, 1.0F, a, gemm->lda, b,
                      gemm->ldb, adds ? 1.0F : 0.0F, c + i * step + j, step);
}

static dnnl_status_t run_parts(const product *p, int threads) {
    const int parts = parts_of(p);
    int failed = (int)dnnl_success; /* any status that is not success */
#ifdef _OPENMP
    if (threads > 1 && parts > 1) {
#pragma omp parallel for num_threads(threads < parts ? threads : parts) schedule(dynamic) reduction(max : failed)
        for (int part = 0; part < parts; part++) {
            const int status = (int)run_part(p, part);
            failed = status > failed ? status : failed;
        }
        return (dnnl_status_t)failed;
    }
#else
    (void)threads;
#endif
    for (int part = 0; part < parts && failed == (int)dnnl_success; part++) {
        failed = (int)run_part(p, part);
    }
    return (dnnl_status_t)failed;
}

/* In their order. */
static void add_partial(const product *p) {
    const ls_gemm *gemm = p->gemm;
    const float *from = p->partial;
    for (int sum = 1; sum < p->sums.parts; sum++) {
        for (int64_t i = 0; i < gemm->m; i++, from += gemm->n) {
            float *to = (float *)gemm->c + i * gemm->ldc;
            for (int64_t j = 0; j < gemm->n; j++) {
                to[j] += from[j];
            }
        }
    }
}

static ls_status run_product(product *p, int threads) {
    const ls_gemm *gemm = p->gemm;
    const size_t bytes = (size_t)((p->sums.parts - 1) * gemm->m * gemm->n) * sizeof(float);
    if (bytes > 0) {
        p->partial = ls_onednn_host->allocate(bytes);
        if (p->partial == NULL) {
            return ls_onednn_host->fail_memory("matrix product", bytes);
        }
    }
    const dnnl_status_t status = run_parts(p, threads);
    if (bytes > 0) {
        if (status == dnnl_success) {
            add_partial(p);
        }
        ls_onednn_host->release(p->partial, bytes);
    }
    if (status == dnnl_out_of_memory) {
        return ls_onednn_host->fail_memory("matrix product", (size_t)(gemm->n * gemm->k) * sizeof(float));
    }
    /* What it cannot do it refuses by the operands' kind, so all parts or none: C is as it was. */
    return status == dnnl_success ? LS_OK : LS_ERR_UNSUPPORTED;
}

ls_status ls_onednn_gemm(const ls_gemm *gemm) {
    /* Parts begin at a cache line of C, if C does, and where oneDNN's code has whole vectors of columns. */
    product p = {.gemm = gemm,
                 .rows = {.size = gemm->m, .block = 8, .parts = 1},
                 .columns = {.size = gemm->n, .block = 16, .parts = 1},
                 .sums = {.size = gemm->k, .block = 16, .parts = 1}};
    divide(&p);
    const int threads = ls_onednn_single_begin();
    const ls_status status = run_product(&p, threads);
    ls_onednn_single_end(threads);
    return status;
}
