/*
 * Attention in blocks of queries and keys. The forward pass sums softmax(scale q k^T) v over blocks of keys, with a
 * running maximum and a running sum (Rabe and Staats, arXiv 2112.05682). The backward pass recomputes each block of
 * probabilities from the logarithms of the sums (Dao et al., arXiv 2205.14135). So the matrix of all scores is never
 * stored. The order of f32 sums does not depend on the number of threads.
 */
#include <math.h>
#include <string.h>

#include "tensor/device/cpu/exponential.h"
#include "tensor/device/cpu/floating.h"
#include "tensor/device/cpu/gemm.h"
#include "tensor/scope.h"

/* Products of these sizes are almost as fast as large products, and two blocks of scores fit into the L2 cache. */
enum { QUERIES = 128, KEYS = 256 };

/* A block of scores [rows, columns], and the indices of its first query and key. */
typedef struct block {
    int64_t rows, columns;
    int64_t query, key;
    const uint8_t *mask; /* mask of the block's keys, or NULL */
    const void *bias;    /* bias of the block's scores, with rows bias_step elements apart, or NULL */
    int64_t bias_step;
    bool causal;
    double scale;
    int64_t width; /* width of the rows of y */
    int64_t y_step;
} block;

/* Returns the number of keys of the block that query i sees under the causal mask. */
static int64_t visible(const block *b, int64_t i) {
    const int64_t seen = b->causal ? b->query + i + 1 - b->key : b->columns;
    return seen < 0 ? 0 : seen < b->columns ? seen : b->columns;
}

#define REAL     float
#define FN(name) name##_f32
#define EXP      ls_exp_f32
#include "tensor/device/cpu/attention.inc"

#define REAL     double
#define FN(name) name##_f64
#define EXP      exp
#include "tensor/device/cpu/attention.inc"

/* The matrix of one head. */
typedef struct matrix {
    char *data; /* NULL if not needed */
    int64_t rows, columns;
    int64_t step; /* elements between rows */
} matrix;

static matrix head_of(const ls_tensor *x, int64_t batch, int64_t head) {
    if (x == NULL) {
        return (matrix){0};
    }
    const int64_t offset = batch * x->stride[0] + head * x->stride[1];
    return (matrix){(char *)x->data + offset * (int64_t)ls_dtype_size((ls_dtype)x->dtype), x->size[2], x->size[3],
                    x->size[2] > 1 ? x->stride[2] : x->size[3]};
}

/* The data that both passes share. */
typedef struct heads {
    ls_dtype dtype;
    int64_t element; /* bytes */
    matrix q, k, v, bias, y, g, dq, dk, dv;
    char *log_sum;
    const uint8_t *mask;
    bool causal;
    ls_dtype rounds_to;
    double scale;
} heads;

static matrix rows_from(const heads *h, const matrix *m, int64_t first, int64_t count) {
    return (matrix){m->data + first * m->step * h->element, count, m->columns, m->step};
}

/* Computes c = a b, or c += a b, with optional transposes. */
static ls_status multiply(const heads *h, matrix a, bool transpose_a, matrix b, bool transpose_b, matrix c, bool add) {
    const ls_gemm gemm = {.dtype = h->dtype,
                          .m = c.rows,
                          .n = c.columns,
                          .k = transpose_a ? a.rows : a.columns,
                          .a = a.data,
                          .lda = a.step,
                          .transpose_a = transpose_a,
                          .b = b.data,
                          .ldb = b.step,
                          .transpose_b = transpose_b,
                          .c = c.data,
                          .ldc = c.step,
                          .accumulate = add,
                          .rounds_to = h->rounds_to};
    return ls_cpu_gemm(NULL, &gemm);
}

static block block_at(const heads *h, int64_t query, int64_t key) {
    const int64_t rows = h->q.rows - query, columns = h->k.rows - key;
    return (block){.rows = rows < QUERIES ? rows : QUERIES,
                   .columns = columns < KEYS ? columns : KEYS,
                   .query = query,
                   .key = key,
                   .mask = h->mask != NULL ? h->mask + key : NULL,
                   .bias = h->bias.data != NULL ? h->bias.data + (query * h->bias.step + key) * h->element : NULL,
                   .bias_step = h->bias.step,
                   .causal = h->causal,
                   .scale = h->scale,
                   .width = h->y.columns,
                   .y_step = h->y.step};
}

/* Returns the number of keys that are visible to a block of queries. */
static int64_t keys_for(const heads *h, int64_t query) {
    const int64_t last = query + QUERIES < h->q.rows ? query + QUERIES : h->q.rows;
    return h->causal && last < h->k.rows ? last : h->k.rows;
}

static ls_status scores_of(const heads *h, const block *b, matrix scores) {
    return multiply(h, rows_from(h, &h->q, b->query, b->rows), false, rows_from(h, &h->k, b->key, b->columns), true,
                    scores, false);
}

/* Calls name_f32 or name_f64. */
#define CALL(h, name, ...) ((h)->dtype == LS_F32 ? name##_f32(__VA_ARGS__) : name##_f64(__VA_ARGS__))

/* `scores` has room for one block; `largest` and `sum` have room for its rows. */
static ls_status forward_rows(const heads *h, int64_t query, char *scores, void *largest, double *sum) {
    block b = block_at(h, query, 0);
    const matrix y = rows_from(h, &h->y, query, b.rows);
    CALL(h, attention_begin, &b, (void *)y.data, largest, sum);
    const int64_t keys = keys_for(h, query);
    for (int64_t key = 0; key < keys; key += KEYS) {
        b = block_at(h, query, key);
        const matrix s = {scores, b.rows, b.columns, b.columns};
        LS_TRY(scores_of(h, &b, s));
        CALL(h, attention_block, &b, (void *)s.data, (void *)y.data, largest, sum);
        LS_TRY(multiply(h, s, false, rows_from(h, &h->v, key, b.columns), false, y, true));
    }
    CALL(h, attention_end, &b, (void *)y.data, (void *)(h->log_sum + query * h->element), largest, sum);
    return LS_OK;
}

static ls_status backward_block(const heads *h, const block *b, char *probabilities, char *gradients) {
    const matrix p = {probabilities, b->rows, b->columns, b->columns};
    const matrix d = {gradients, b->rows, b->columns, b->columns};
    const matrix g = rows_from(h, &h->g, b->query, b->rows);
    LS_TRY(scores_of(h, b, p));
    CALL(h, probabilities, b, (void *)p.data, (const void *)(h->log_sum + b->query * h->element));
    if (h->dv.data != NULL) {
        LS_TRY(multiply(h, p, true, g, false, rows_from(h, &h->dv, b->key, b->columns), true));
    }
    if (h->dq.data == NULL && h->dk.data == NULL) {
        return LS_OK;
    }
    LS_TRY(multiply(h, g, false, rows_from(h, &h->v, b->key, b->columns), true, d, false));
    const matrix y = rows_from(h, &h->y, b->query, b->rows);
    CALL(h, score_gradients, b, (void *)d.data, (const void *)p.data, (const void *)g.data, g.step,
         (const void *)y.data);
    if (h->dq.data != NULL) {
        LS_TRY(multiply(h, d, false, rows_from(h, &h->k, b->key, b->columns), false,
                        rows_from(h, &h->dq, b->query, b->rows), true));
    }
    return h->dk.data != NULL ? multiply(h, d, true, rows_from(h, &h->q, b->query, b->rows), false,
                                         rows_from(h, &h->dk, b->key, b->columns), true)
                              : LS_OK;
}

static void clear(const heads *h, const matrix *m) {
    for (int64_t i = 0; m->data != NULL && i < m->rows; i++) {
        memset(m->data + i * m->step * h->element, 0, (size_t)(m->columns * h->element));
    }
}

static ls_status backward_head(const heads *h, char *probabilities, char *gradients) {
    clear(h, &h->dq);
    clear(h, &h->dk);
    clear(h, &h->dv);
    for (int64_t query = 0; query < h->q.rows; query += QUERIES) {
        const int64_t keys = keys_for(h, query);
        for (int64_t key = 0; key < keys; key += KEYS) {
            const block b = block_at(h, query, key);
            LS_TRY(backward_block(h, &b, probabilities, gradients));
        }
    }
    return LS_OK;
}

static heads heads_of(const ls_tensor *log_sum, const ls_tensor *q, const ls_tensor *k, const ls_tensor *v,
                      const ls_tensor *mask, const ls_tensor *bias, double scale, bool causal, int64_t batch,
                      int64_t head) {
    const int64_t element = (int64_t)ls_dtype_size((ls_dtype)q->dtype);
    return (heads){.dtype = (ls_dtype)q->dtype,
                   .element = element,
                   .q = head_of(q, batch, head),
                   .k = head_of(k, batch, head),
                   .v = head_of(v, batch, head),
                   .bias = head_of(bias, batch, head),
                   .log_sum = (char *)log_sum->data + (batch * q->size[1] + head) * q->size[2] * element,
                   .mask = mask != NULL ? (const uint8_t *)mask->data + batch * k->size[2] : NULL,
                   .causal = causal,
                   .scale = scale};
}

ls_status ls_cpu_attention(ls_stream *stream, ls_tensor *y, ls_tensor *log_sum, const ls_tensor *q, const ls_tensor *k,
                           const ls_tensor *v, const ls_tensor *mask, const ls_tensor *bias, double scale, bool causal,
                           ls_dtype rounds_to) {
    (void)stream;
    if (q->dtype != LS_F32 && q->dtype != LS_F64) {
        return ls_no_kernel("attention", (ls_dtype)q->dtype);
    }
    const size_t bytes = (QUERIES * KEYS + 2 * QUERIES) * sizeof(double);
    char *room = ls_record_allocate(bytes);
    if (room == NULL) {
        return ls_fail_memory("attention", bytes);
    }
    double *sum = (double *)(void *)room, *largest = sum + QUERIES;
    ls_status status = LS_OK;
    for (int64_t i = 0; i < q->size[0] * q->size[1] && status == LS_OK; i++) {
        const int64_t batch = i / q->size[1], head = i % q->size[1];
        heads h = heads_of(log_sum, q, k, v, mask, bias, scale, causal, batch, head);
        h.rounds_to = rounds_to;
        h.y = head_of(y, batch, head);
        for (int64_t query = 0; query < h.q.rows && status == LS_OK; query += QUERIES) {
            status = forward_rows(&h, query, (char *)(largest + QUERIES), largest, sum);
        }
    }
    ls_record_release(room, bytes);
    return status;
}

ls_status ls_cpu_attention_backward(ls_stream *stream, ls_tensor *dq, ls_tensor *dk, ls_tensor *dv, const ls_tensor *g,
                                    const ls_tensor *y, const ls_tensor *log_sum, const ls_tensor *q,
                                    const ls_tensor *k, const ls_tensor *v, const ls_tensor *mask,
                                    const ls_tensor *bias, double scale, bool causal, ls_dtype rounds_to) {
    (void)stream;
    if (q->dtype != LS_F32 && q->dtype != LS_F64) {
        return ls_no_kernel("attention_backward", (ls_dtype)q->dtype);
    }
    const size_t half = QUERIES * KEYS * ls_dtype_size((ls_dtype)q->dtype);
    char *room = ls_record_allocate(2 * half);
    if (room == NULL) {
        return ls_fail_memory("attention_backward", 2 * half);
    }
    ls_status status = LS_OK;
    for (int64_t i = 0; i < q->size[0] * q->size[1] && status == LS_OK; i++) {
        const int64_t batch = i / q->size[1], head = i % q->size[1];
        heads h = heads_of(log_sum, q, k, v, mask, bias, scale, causal, batch, head);
        h.rounds_to = rounds_to;
        h.y = head_of(y, batch, head);
        h.g = head_of(g, batch, head);
        h.dq = head_of(dq, batch, head);
        h.dk = head_of(dk, batch, head);
        h.dv = head_of(dv, batch, head);
        status = backward_head(&h, room, room + half);
    }
    ls_record_release(room, 2 * half);
    return status;
}
