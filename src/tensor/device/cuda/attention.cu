/*
 * Attention by products of blocks. Only the scores of some heads and some rows of queries, with all keys, are in memory
 * at a time, at most most_numbers. The forward pass stores exp(scale q k^T - largest) and divides its product with v by
 * the sum of the row. The backward pass recomputes the probabilities from the logarithms of the sums. Blocks run one
 * after another, so that dk and dv are always summed in the same order.
 *
 * For 16-bit floats, first tries the library, which has kernels for some shapes.
 */
#include "tensor/device/cuda/attention.cuh"
#include "tensor/device/cuda/products.cuh"

namespace {

/*
 * Maximum number of scores in memory at once: 48 MiB of f32, twice that in the backward pass, plus temporary memory for
 * products of 16-bit floats.
 */
constexpr int64_t most_numbers = (int64_t)12 << 20;
/*
 * With the causal mask, rows are divided into this number of blocks, each with only the keys that it uses. A block has
 * at least fewest_rows rows.
 */
constexpr int64_t causal_blocks = 8, fewest_rows = 256;

/* The matrices of a tensor: element (i, j) of head h of a run is data[h * head + i * row + j]. */
template <class T> struct heads {
    T *data; /* nullptr: not wanted */
    int64_t head, row;

    heads from(int64_t number, int64_t first_row) const {
        return {data == nullptr ? nullptr : data + number * head + first_row * row, head, row};
    }
};

/* One call: `runs` runs of `count` heads each, with a uniform stride between the heads' matrices. */
struct call {
    const ls_tensor *q, *k, *v, *mask, *bias;
    int64_t runs, count, queries, keys, width, value_width;
    bool is_one_run; /* all batches form a single run: head h is h % heads of batch h / heads */
    int64_t heads;
    double scale;
    bool causal;
    ls_dtype rounds_to;
};

/* Returns whether the stride between heads is the same from one batch to the next. */
bool goes_on(const ls_tensor *x) {
    return x == nullptr || x->size[0] <= 1 || x->size[1] * x->stride[1] == x->stride[0] ||
           (x->size[1] == 1 && x->stride[0] >= 0);
}

int64_t head_step(const call &c, const ls_tensor *x) {
    return c.is_one_run && x->size[1] == 1 ? x->stride[0] : x->stride[1];
}

/* Returns the heads of one run. */
template <class T> heads<T> run_of(const call &c, const ls_tensor *x, int64_t run) {
    if (x == nullptr) {
        return {nullptr, 0, 0};
    }
    T *const data = static_cast<T *>(x->data) + (c.is_one_run ? 0 : run * x->stride[0]);
    return {data, head_step(c, x), x->size[2] > 1 ? x->stride[2] : x->size[3]};
}

call call_of(const ls_tensor *q, const ls_tensor *k, const ls_tensor *v, const ls_tensor *mask, const ls_tensor *bias,
             double scale, bool causal, ls_dtype rounds_to, bool is_one_run) {
    call c = {};
    c.q = q, c.k = k, c.v = v, c.mask = mask, c.bias = bias;
    c.is_one_run = is_one_run;
    c.runs = is_one_run ? 1 : q->size[0];
    c.heads = q->size[1];
    c.count = is_one_run ? q->size[0] * q->size[1] : q->size[1];
    c.queries = q->size[2], c.keys = k->size[2];
    c.width = q->size[3], c.value_width = v->size[3];
    c.scale = scale, c.causal = causal, c.rounds_to = rounds_to;
    return c;
}

/* Rows [row, row + rows) of heads [head, head + count) of a run, and the number of keys that they use. */
struct block {
    int64_t run, head, count, row, rows, keys;
    int64_t leading; /* leading dimension of the block's scores; heads are rows * leading apart */
};

/* Chooses the number of rows and heads of a block. */
block largest_block(const call &c) {
    block b = {};
    b.leading = (c.keys + 3) / 4 * 4; /* rows begin at multiples of 16 bytes */
    const int64_t fit = most_numbers / (b.leading > 0 ? b.leading : 1);
    b.rows = fit < 1 ? 1 : fit < c.queries ? fit : c.queries;
    if (c.causal) {
        const int64_t part = (c.queries + causal_blocks - 1) / causal_blocks;
        const int64_t wanted = part > fewest_rows ? part : fewest_rows;
        b.rows = wanted < b.rows ? wanted : b.rows;
    }
    const int64_t matrices = b.rows > 0 ? fit / b.rows : 1;
    b.count = matrices < 1 ? 1 : matrices < c.count ? matrices : c.count;
    return b;
}

int64_t room_of(const block &b) {
    return b.count * b.rows * b.leading;
}

/* Advances b, initially all zeros, to the next block. Returns false after the last block. Blocks of rows are
 * innermost. */
bool next_block(const call &c, const block &largest, block *b) {
    if (b->count == 0) {
        *b = {0, 0, 0, 0, 0, 0, 0};
    } else if ((b->row += b->rows) >= c.queries) {
        b->row = 0;
        if ((b->head += b->count) >= c.count) {
            b->head = 0;
            b->run++;
        }
    }
    b->count = c.count - b->head < largest.count ? c.count - b->head : largest.count;
    b->rows = c.queries - b->row < largest.rows ? c.queries - b->row : largest.rows;
    const int64_t seen = b->row + b->rows;
    b->keys = c.causal && seen < c.keys ? seen : c.keys;
    b->leading = (b->keys + 3) / 4 * 4;
    return b->run < c.runs;
}

/* An operand of multiply, which computes c (+)= op(a) op(b) for each head of a block. */
template <class T> struct factor {
    heads<T> matrix;
    bool transpose;
};

template <class T>
ls_status multiply(ls_stream *stream, const call &c, const block &b, factor<const T> left, factor<const T> right,
                   heads<T> to, int64_t m, int64_t n, int64_t k, bool add) {
    ls_gemm gemm = {};
    gemm.dtype = sizeof(T) == sizeof(float) ? LS_F32 : LS_F64;
    gemm.m = m, gemm.n = n, gemm.k = k;
    gemm.a = left.matrix.data, gemm.lda = left.matrix.row, gemm.transpose_a = left.transpose;
    gemm.b = right.matrix.data, gemm.ldb = right.matrix.row, gemm.transpose_b = right.transpose;
    gemm.c = to.data, gemm.ldc = to.row;
    gemm.accumulate = add;
    gemm.batch = b.count;
    gemm.step_a = left.matrix.head, gemm.step_b = right.matrix.head, gemm.step_c = to.head;
    gemm.rounds_to = c.rounds_to;
    return ls_cuda_gemm(stream, &gemm);
}

template <class T> heads<const T> constant(const heads<T> &x) {
    return {x.data, x.head, x.row};
}

/* Computes scores = q k^T for a block. */
template <class T> ls_status scores_of(ls_stream *stream, const call &c, const block &b, const heads<T> &scores) {
    const heads<const T> q = constant(run_of<T>(c, c.q, b.run).from(b.head, b.row));
    const heads<const T> k = constant(run_of<T>(c, c.k, b.run).from(b.head, 0));
    return multiply<T>(stream, c, b, {q, false}, {k, true}, scores, b.rows, b.keys, c.width, false);
}

/* Properties of the rows of a block for kernels: row i belongs to head i / rows. */
template <class T> struct rows_of_block {
    int64_t rows, keys, leading, row, head, queries;
    bool causal;
    const uint8_t *mask; /* mask of the first head's batch, or nullptr */
    int64_t first_head, heads, mask_step;
    const T *bias; /* bias of the first batch and head, or nullptr */
    int64_t bias_batch, bias_head, bias_row;

    /* Returns how many keys row `line` of a head uses, ignoring the mask. */
    LS_HOST_DEVICE int64_t visible(int64_t line) const {
        return causal && row + line + 1 < keys ? row + line + 1 : keys;
    }
    LS_HOST_DEVICE const uint8_t *mask_of(int64_t number) const {
        return mask == nullptr ? nullptr : mask + ls::quotient(first_head + number, heads) * mask_step;
    }
    /* Returns the bias of the scores of row `line` of a head, or nullptr. */
    LS_HOST_DEVICE const T *bias_of(int64_t number, int64_t line) const {
        if (bias == nullptr) {
            return nullptr;
        }
        const int64_t batch = ls::quotient(first_head + number, heads);
        return bias + batch * bias_batch + (first_head + number - batch * heads) * bias_head + (row + line) * bias_row;
    }
    /* Returns the row's index among all queries of the run's heads. */
    LS_HOST_DEVICE int64_t place(int64_t number, int64_t line) const {
        return (head + number) * queries + row + line;
    }
};

template <class T> rows_of_block<T> rows_of(const call &c, const block &b) {
    rows_of_block<T> r = {};
    r.rows = b.rows, r.keys = b.keys, r.leading = b.leading, r.row = b.row;
    r.head = (c.is_one_run ? 0 : b.run * c.count) + b.head;
    r.queries = c.queries;
    r.causal = c.causal;
    r.mask = c.mask != nullptr ? static_cast<const uint8_t *>(c.mask->data) : nullptr;
    r.first_head = r.head;
    r.heads = c.heads;
    r.mask_step = c.keys;
    if (c.bias != nullptr) {
        r.bias = static_cast<const T *>(c.bias->data);
        r.bias_batch = c.bias->stride[0], r.bias_head = c.bias->stride[1], r.bias_row = c.bias->stride[2];
    }
    return r;
}

LS_HOST_DEVICE float exponential(float x) {
    return expf(x);
}
LS_HOST_DEVICE double exponential(double x) {
    return exp(x);
}

/* Returns a score plus its bias. */
template <class T> LS_HOST_DEVICE T biased(T score, const T *bias, int64_t j) {
    return bias == nullptr ? score : score + bias[j];
}

/* Replaces scores with exp(score - the maximum of the row), or with 0 for hidden keys. Stores the rows' sums in
 * `sums`. */
template <class T>
ls_status exponentials(ls_stream *stream, const call &c, const block &b, T *scores, double *sums, T *log_sum) {
    const rows_of_block<T> r = rows_of<T>(c, b);
    const T scale = (T)c.scale;
    return ls::teams<256>(stream, "attention", b.count * b.rows, [=] LS_BODY(ls::team & t, int64_t i) {
        const int64_t number = ls::quotient(i, r.rows), line = i - number * r.rows, seen = r.visible(line);
        const uint8_t *const mask = r.mask_of(number);
        const T *const bias = r.bias_of(number, line);
        T *const s = scores + i * r.leading;
        T largest = -(T)INFINITY;
        for (int64_t j = t.lane; j < seen; j += t.size) {
            const T score = mask == nullptr || mask[j] != 0 ? biased(s[j] * scale, bias, j) : -(T)INFINITY;
            largest = score <= largest ? largest : score; /* NaN counts as the maximum and is kept */
            if (largest != largest) {
                break;
            }
        }
        largest = t.largest(largest);
        const bool none = largest == -(T)INFINITY;
        double sum = 0;
        for (int64_t j = t.lane; j < r.keys; j += t.size) {
            const bool hidden = none || j >= seen || (mask != nullptr && mask[j] == 0);
            const T e = hidden ? (T)0 : exponential(biased(s[j] * scale, bias, j) - largest);
            s[j] = e;
            sum += (double)e;
        }
        sum = t.sum(sum);
        if (t.lane == 0) {
            sums[i] = sum;
            log_sum[r.place(number, line)] = sum == 0 ? (T)INFINITY : largest + (T)log(sum);
        }
    });
}

/* Divides the rows of y by their sums. */
template <class T>
ls_status divide(ls_stream *stream, const call &c, const block &b, const heads<T> &y, const double *sums) {
    const int64_t width = c.value_width, rows = b.rows, head = y.head, step = y.row;
    T *const data = y.data;
    return ls::each(stream, "attention", b.count * rows * width, [=] LS_BODY(int64_t i) {
        const int64_t row = ls::quotient(i, width), number = ls::quotient(row, rows);
        const T factor = sums[row] == 0 ? (T)0 : (T)(1 / sums[row]);
        data[number * head + (row - number * rows) * step + (i - row * width)] *= factor;
    });
}

template <class T> ls_status forward(ls_stream *stream, const call &c, ls_tensor *y, ls_tensor *log_sum) {
    const block largest = largest_block(c);
    const ls::scratch scores(stream, (size_t)room_of(largest) * sizeof(T) + 1);
    const ls::scratch sums(stream, (size_t)(largest.count * largest.rows) * sizeof(double));
    LS_TRY(scores.status("attention"));
    LS_TRY(sums.status("attention"));
    for (block b = {}; next_block(c, largest, &b);) {
        const heads<T> s = {scores.as<T>(), b.rows * b.leading, b.leading};
        const heads<T> to = run_of<T>(c, y, b.run).from(b.head, b.row);
        const heads<const T> v = constant(run_of<T>(c, c.v, b.run).from(b.head, 0));
        LS_TRY(scores_of<T>(stream, c, b, s));
        LS_TRY(exponentials<T>(stream, c, b, s.data, sums.as<double>(), ls::data<T>(log_sum)));
        LS_TRY(multiply<T>(stream, c, b, {constant(s), false}, {v, false}, to, b.rows, c.value_width, b.keys, false));
        LS_TRY(divide<T>(stream, c, b, to, sums.as<double>()));
    }
    return LS_OK;
}

/* Tensors of the backward pass. */
struct gradients {
    ls_tensor *dq, *dk, *dv;
    const ls_tensor *g, *y, *log_sum;
};

/*
 * Replaces scores with probabilities p = exp(score - log_sum), and d, the gradient of the probabilities, with the
 * gradient of q k^T: scale p (d - sum(g y)). Without d, computes only the probabilities.
 */
template <class T>
ls_status probabilities(ls_stream *stream, const call &c, const block &b, T *scores, T *d, const heads<const T> &g,
                        const heads<const T> &y, const T *log_sum) {
    const rows_of_block<T> r = rows_of<T>(c, b);
    const T scale = (T)c.scale;
    const int64_t width = c.value_width;
    const heads<const T> of_g = g, of_y = y;
    return ls::teams<256>(stream, "attention_backward", b.count * b.rows, [=] LS_BODY(ls::team & t, int64_t i) {
        const int64_t number = ls::quotient(i, r.rows), line = i - number * r.rows, seen = r.visible(line);
        const uint8_t *const mask = r.mask_of(number);
        const T *const bias = r.bias_of(number, line);
        const T level = log_sum[r.place(number, line)];
        T *const s = scores + i * r.leading;
        double dot = 0;
        if (d != nullptr) {
            const T *const g_row = of_g.data + number * of_g.head + line * of_g.row;
            const T *const y_row = of_y.data + number * of_y.head + line * of_y.row;
            for (int64_t j = t.lane; j < width; j += t.size) {
                dot += (double)g_row[j] * (double)y_row[j];
            }
            dot = t.sum(dot);
        }
        for (int64_t j = t.lane; j < r.keys; j += t.size) {
            const bool hidden = j >= seen || (mask != nullptr && mask[j] == 0);
            const T p = hidden ? (T)0 : exponential(biased(s[j] * scale, bias, j) - level);
            s[j] = p;
            if (d != nullptr) {
                d[i * r.leading + j] = p * (d[i * r.leading + j] - (T)dot) * scale;
            }
        }
    });
}

template <class T>
ls_status backward_block(ls_stream *stream, const call &c, const block &b, const gradients &all, T *scores, T *d) {
    const heads<T> p = {scores, b.rows * b.leading, b.leading}, ds = {d, p.head, p.row};
    const heads<const T> g = constant(run_of<T>(c, all.g, b.run).from(b.head, b.row));
    const heads<const T> y = constant(run_of<T>(c, all.y, b.run).from(b.head, b.row));
    const heads<const T> q = constant(run_of<T>(c, c.q, b.run).from(b.head, b.row));
    const heads<const T> k = constant(run_of<T>(c, c.k, b.run).from(b.head, 0));
    const heads<const T> v = constant(run_of<T>(c, c.v, b.run).from(b.head, 0));
    LS_TRY(scores_of<T>(stream, c, b, p));
    if (d != nullptr) {
        LS_TRY(multiply<T>(stream, c, b, {g, false}, {v, true}, ds, b.rows, b.keys, c.value_width, false));
    }
    LS_TRY(probabilities<T>(stream, c, b, scores, d, g, y, ls::data<const T>(all.log_sum)));
    if (all.dv != nullptr) {
        const heads<T> to = run_of<T>(c, all.dv, b.run).from(b.head, 0);
        LS_TRY(multiply<T>(stream, c, b, {constant(p), true}, {g, false}, to, b.keys, c.value_width, b.rows, true));
    }
    if (all.dq != nullptr) {
        const heads<T> to = run_of<T>(c, all.dq, b.run).from(b.head, b.row);
        LS_TRY(multiply<T>(stream, c, b, {constant(ds), false}, {k, false}, to, b.rows, c.width, b.keys, false));
    }
    if (all.dk != nullptr) {
        const heads<T> to = run_of<T>(c, all.dk, b.run).from(b.head, 0);
        LS_TRY(multiply<T>(stream, c, b, {constant(ds), true}, {q, false}, to, b.keys, c.width, b.rows, true));
    }
    return LS_OK;
}

template <class T> ls_status backward(ls_stream *stream, const call &c, const gradients &all) {
    for (ls_tensor *d : {all.dk, all.dv}) {
        if (d != nullptr) {
            LS_TRY(ls_cuda_fill(stream, d, 0));
        }
    }
    if (c.runs * c.count * c.queries == 0) {
        return LS_OK;
    }
    const block largest = largest_block(c);
    const size_t bytes = (size_t)room_of(largest) * sizeof(T) + 1;
    const bool wants_d = all.dq != nullptr || all.dk != nullptr;
    const ls::scratch scores(stream, bytes), d(stream, wants_d ? bytes : 1);
    LS_TRY(scores.status("attention_backward"));
    LS_TRY(d.status("attention_backward"));
    for (block b = {}; next_block(c, largest, &b);) {
        LS_TRY(backward_block<T>(stream, c, b, all, scores.as<T>(), wants_d ? d.as<T>() : nullptr));
    }
    return LS_OK;
}

} // namespace

/* Returns whether to try the library. */
static bool is_of_halves(const ls_tensor *q, const ls_tensor *k, ls_dtype rounds_to) {
    return q->dtype == LS_F32 && (rounds_to == LS_BF16 || rounds_to == LS_F16) && q->count > 0 && k->count > 0;
}

ls_status ls_cuda_attention(ls_stream *stream, ls_tensor *y, ls_tensor *log_sum, const ls_tensor *q, const ls_tensor *k,
                            const ls_tensor *v, const ls_tensor *mask, const ls_tensor *bias, double scale, bool causal,
                            ls_dtype rounds_to) {
    if (q->dtype != LS_F32 && q->dtype != LS_F64) {
        return ls::no_kernel("attention", q->dtype);
    }
    if (log_sum->count == 0) {
        return LS_OK;
    }
    if (is_of_halves(q, k, rounds_to)) {
        const ls::attention_call asked = {q,       k,       v,       mask,    bias,  y,      log_sum,
                                          nullptr, nullptr, nullptr, nullptr, scale, causal, rounds_to};
        const ls_status status = ls::library_attention(stream, asked);
        if (status != LS_ERR_UNSUPPORTED) {
            return status;
        }
    }
    const bool is_one_run = goes_on(q) && goes_on(k) && goes_on(v) && goes_on(y);
    const call c = call_of(q, k, v, mask, bias, scale, causal, rounds_to, is_one_run);
    return q->dtype == LS_F32 ? forward<float>(stream, c, y, log_sum) : forward<double>(stream, c, y, log_sum);
}

ls_status ls_cuda_attention_backward(ls_stream *stream, ls_tensor *dq, ls_tensor *dk, ls_tensor *dv, const ls_tensor *g,
                                     const ls_tensor *y, const ls_tensor *log_sum, const ls_tensor *q,
                                     const ls_tensor *k, const ls_tensor *v, const ls_tensor *mask,
                                     const ls_tensor *bias, double scale, bool causal, ls_dtype rounds_to) {
    if (q->dtype != LS_F32 && q->dtype != LS_F64) {
        return ls::no_kernel("attention_backward", q->dtype);
    }
    if (is_of_halves(q, k, rounds_to)) {
        const ls::attention_call asked = {
            q,  k, v,     mask,   bias,     const_cast<ls_tensor *>(y), const_cast<ls_tensor *>(log_sum), dq, dk,
            dv, g, scale, causal, rounds_to};
        const ls_status status = ls::library_attention_backward(stream, asked);
        if (status != LS_ERR_UNSUPPORTED) {
            return status;
        }
    }
    const bool is_one_run =
        goes_on(q) && goes_on(k) && goes_on(v) && goes_on(y) && goes_on(g) && goes_on(dq) && goes_on(dk) && goes_on(dv);
    const call c = call_of(q, k, v, mask, bias, scale, causal, rounds_to, is_one_run);
    const gradients all = {dq, dk, dv, g, y, log_sum};
    return q->dtype == LS_F32 ? backward<float>(stream, c, all) : backward<double>(stream, c, all);
}
