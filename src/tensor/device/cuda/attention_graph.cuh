/*
 * Attention as graphs of cuDNN's operations. cuDNN has a single kernel for a whole graph only if it recognizes the
 * graph. So the operations, their order and the types between them follow cuDNN's documentation and its C++ front end.
 * This includes operations that look superfluous: a product by one, and reshapes that only mark a matrix as transposed.
 *
 * The backward pass computes the gradient of q as one product with the gradient of the scores, which cuDNN then stores
 * in memory. cuDNN's alternative adds parts of dq by atomic operations, in any order.
 */
#ifndef LS_TENSOR_DEVICE_CUDA_ATTENTION_GRAPH_CUH
#define LS_TENSOR_DEVICE_CUDA_ATTENTION_GRAPH_CUH

#include <cudnn.h>

#include <cstdint>

namespace ls {

/* Has only 64-bit members, so that there is no padding. Heads are stored one after another, with rows of `width`. */
struct attention_shape {
    int64_t backward, is_bf16, causal, batch, heads, queries, keys, width;
};

/* Identifiers of tensors when a graph is executed. */
enum attention_tensor {
    ATTENTION_Q = 1,
    ATTENTION_K,
    ATTENTION_V,
    ATTENTION_Y,
    ATTENTION_LOG_SUM,
    ATTENTION_SCALE,  /* a number on the host, f32 */
    ATTENTION_HIDDEN, /* the value of a hidden score; also a number on the host, f32 */
    ATTENTION_ONE,    /* 1, a number on the host */
    ATTENTION_G,
    ATTENTION_DQ,
    ATTENTION_DK,
    ATTENTION_DV,
    ATTENTION_DOT,   /* memory for the sums of g y: f32 [batch, heads, queries] */
    ATTENTION_INSIDE /* tensors with this or a larger identifier are not in memory */
};

/* Descriptors of one graph, all kept until the graph is destroyed. After a failure, further calls do nothing. */
struct attention_graph {
    typedef cudnnBackendDescriptor_t descriptor;
    enum { MOST = 192, MOST_OPERATIONS = 32 };

    descriptor made[MOST], operation[MOST_OPERATIONS];
    int made_count, operation_count;
    int64_t next;
    cudnnStatus_t status;
    const char *at; /* the failed call */

    bool is_good() const {
        return status == CUDNN_STATUS_SUCCESS;
    }
    void check(cudnnStatus_t result, const char *what) {
        if (is_good() && result != CUDNN_STATUS_SUCCESS) {
            status = result;
            at = what;
        }
    }
    descriptor make(cudnnBackendDescriptorType_t type, const char *what) {
        descriptor d = nullptr;
        check(made_count < MOST ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR, what);
        if (is_good()) {
            check(cudnnBackendCreateDescriptor(type, &d), what);
        }
        if (is_good()) {
            made[made_count++] = d;
        }
        return d;
    }
    void set(descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
             const void *value, const char *what) {
        if (is_good()) {
            check(cudnnBackendSetAttribute(d, name, type, count, value), what);
        }
    }
    void set(descriptor d, cudnnBackendAttributeName_t name, descriptor part, const char *what) {
        set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part, what);
    }
    void finish(descriptor d, const char *what) {
        if (is_good()) {
            check(cudnnBackendFinalize(d), what);
        }
    }
    void end() {
        while (made_count > 0) {
            (void)cudnnBackendDestroyDescriptor(made[--made_count]);
        }
    }

    /* ---- tensors ---- */

    struct layout {
        int64_t size[4], step[4];
    };

    /* Describes a tensor in memory, a number on the host if is_number, or an intermediate result if id is
     * ATTENTION_INSIDE. */
    descriptor tensor(int64_t id, cudnnDataType_t type, const layout &l, bool is_number = false) {
        const char *const what = "a tensor";
        const int64_t alignment = 16;
        const bool yes = true;
        const int64_t name = id == ATTENTION_INSIDE ? id + next++ : id;
        const descriptor d = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
        set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type, what);
        set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, l.size, what);
        set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, l.step, what);
        set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name, what);
        set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment, what);
        if (id == ATTENTION_INSIDE) {
            set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes, what);
        }
        if (is_number) {
            set(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes, what);
        }
        finish(d, what);
        return d;
    }
    descriptor number(int64_t id) {
        return tensor(id, CUDNN_DATA_FLOAT, {{1, 1, 1, 1}, {1, 1, 1, 1}}, true);
    }
    descriptor inside(const layout &l, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
        return tensor(ATTENTION_INSIDE, type, l);
    }

    /* ---- operations; each returns its result ---- */

    void add(descriptor d, const char *what) {
        finish(d, what);
        check(operation_count < MOST_OPERATIONS ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR, what);
        if (is_good()) {
            operation[operation_count++] = d;
        }
    }
    descriptor product(const char *what, descriptor a, descriptor b, descriptor c) {
        const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
        const descriptor how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR, what);
        set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision, what);
        finish(how, what);
        const descriptor d = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, what);
        set(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a, what);
        set(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b, what);
        set(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c, what);
        set(d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how, what);
        add(d, what);
        return c;
    }
    /* Adds an operation with one, two or three operands; b and t may be NULL. */
    descriptor each(const char *what, cudnnPointwiseMode_t mode, descriptor x, descriptor b, descriptor t, descriptor y,
                    cudnnDataType_t precision = CUDNN_DATA_FLOAT, int64_t axis = -1) {
        const float one = 1;
        const descriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, what);
        set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode, what);
        set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision, what);
        if (axis >= 0) {
            set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis, what);
        }
        finish(how, what);
        const descriptor d = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, what);
        set(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how, what);
        set(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x, what);
        set(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y, what);
        if (b != nullptr) {
            set(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b, what);
        }
        if (t != nullptr) {
            set(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t, what);
        }
        set(d, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, CUDNN_TYPE_FLOAT, 1, &one, what);
        set(d, CUDNN_ATTR_OPERATION_POINTWISE_ALPHA2, CUDNN_TYPE_FLOAT, 1, &one, what);
        add(d, what);
        return y;
    }
    descriptor reduce(const char *what, cudnnReduceTensorOp_t mode, descriptor x, descriptor y) {
        const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
        const descriptor how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR, what);
        set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision, what);
        set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode, what);
        finish(how, what);
        const descriptor d = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, what);
        set(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how, what);
        set(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x, what);
        set(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y, what);
        add(d, what);
        return y;
    }
    descriptor reshape(const char *what, descriptor x, descriptor y) {
        const descriptor d = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, what);
        set(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x, what);
        set(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y, what);
        add(d, what);
        return y;
    }

    /* Combines the operations into one graph. */
    descriptor whole(cudnnHandle_t handle) {
        const char *const what = "the graph";
        const descriptor d = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, what);
        set(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operation_count, operation, what);
        if (handle != nullptr) {
            set(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle, what);
        }
        finish(d, what);
        return d;
    }
};

/* ---- layouts ----------------------------------------------------------------------------------------------------- */

/* Returns the layout of one matrix per head, or the layout that reads it as its transpose. */
inline attention_graph::layout matrices_of(const attention_shape &s, int64_t rows, int64_t columns) {
    return {{s.batch, s.heads, rows, columns}, {s.heads * rows * columns, rows * columns, columns, 1}};
}
inline attention_graph::layout transposes_of(const attention_shape &s, int64_t rows, int64_t columns) {
    return {{s.batch, s.heads, columns, rows}, {s.heads * rows * columns, rows * columns, 1, columns}};
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Replaces the scores of keys after their query with ATTENTION_HIDDEN. */
inline cudnnBackendDescriptor_t causal_scores(attention_graph *g, const attention_shape &s,
                                              cudnnBackendDescriptor_t scores) {
    const attention_graph::layout square = matrices_of(s, s.queries, s.keys);
    cudnnBackendDescriptor_t row = g->inside(square, CUDNN_DATA_INT32), column = g->inside(square, CUDNN_DATA_INT32);
    row = g->each("row", CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, nullptr, row, CUDNN_DATA_FLOAT, 2);
    column = g->each("column", CUDNN_POINTWISE_GEN_INDEX, scores, nullptr, nullptr, column, CUDNN_DATA_FLOAT, 3);
    const cudnnBackendDescriptor_t seen = g->each("row >= column", CUDNN_POINTWISE_CMP_GE, row, column, nullptr,
                                                  g->inside(square, CUDNN_DATA_BOOLEAN), CUDNN_DATA_BOOLEAN);
    return g->each("mask", CUDNN_POINTWISE_BINARY_SELECT, scores, g->number(ATTENTION_HIDDEN), seen, g->inside(square));
}

inline void describe_forward(attention_graph *g, const attention_shape &s) {
    typedef cudnnBackendDescriptor_t descriptor;
    const cudnnDataType_t half = s.is_bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const attention_graph::layout square = matrices_of(s, s.queries, s.keys), line = matrices_of(s, s.queries, 1);
    const descriptor q = g->tensor(ATTENTION_Q, half, matrices_of(s, s.queries, s.width));
    const descriptor k = g->tensor(ATTENTION_K, half, transposes_of(s, s.keys, s.width));
    const descriptor v = g->tensor(ATTENTION_V, half, matrices_of(s, s.keys, s.width));
    const descriptor y = g->tensor(ATTENTION_Y, half, matrices_of(s, s.queries, s.width));
    const descriptor log_sum = g->tensor(ATTENTION_LOG_SUM, CUDNN_DATA_FLOAT, line);
    const descriptor scale = g->number(ATTENTION_SCALE);

    descriptor scores = g->product("q k^T", q, k, g->inside(square));
    scores = g->each("scale", CUDNN_POINTWISE_MUL, scores, scale, nullptr, g->inside(square));
    if (s.causal) {
        scores = causal_scores(g, s, scores);
    }
    const descriptor largest = g->reduce("largest", CUDNN_REDUCE_TENSOR_MAX, scores, g->inside(line));
    const descriptor less =
        g->each("score - largest", CUDNN_POINTWISE_SUB, scores, largest, nullptr, g->inside(square));
    const descriptor e = g->each("exp", CUDNN_POINTWISE_EXP, less, nullptr, nullptr, g->inside(square));
    const descriptor sum = g->reduce("sum", CUDNN_REDUCE_TENSOR_ADD, e, g->inside(line));
    const descriptor log = g->each("log", CUDNN_POINTWISE_LOG, sum, nullptr, nullptr, g->inside(line));
    (void)g->each("log_sum", CUDNN_POINTWISE_ADD, largest, log, nullptr, log_sum);
    const descriptor p = g->each("exp / sum", CUDNN_POINTWISE_DIV, e, sum, nullptr, g->inside(square, half));
    (void)g->product("p v", p, v, y);
}

/* Computes the sums of g y, as f32 in memory. */
inline cudnnBackendDescriptor_t dots_of(attention_graph *g, const attention_shape &s, cudnnBackendDescriptor_t dy) {
    typedef cudnnBackendDescriptor_t descriptor;
    const cudnnDataType_t half = s.is_bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const attention_graph::layout rows = matrices_of(s, s.queries, s.width), line = matrices_of(s, s.queries, 1);
    const descriptor y = g->tensor(ATTENTION_Y, half, rows);
    const descriptor products = g->each("g y", CUDNN_POINTWISE_MUL, dy, y, nullptr, g->inside(rows));
    const descriptor sums = g->reduce("sum of g y", CUDNN_REDUCE_TENSOR_ADD, products, g->inside(line));
    return g->each("dot", CUDNN_POINTWISE_MUL, sums, g->number(ATTENTION_ONE), nullptr,
                   g->tensor(ATTENTION_DOT, CUDNN_DATA_FLOAT, line));
}

inline void describe_backward(attention_graph *g, const attention_shape &s) {
    typedef cudnnBackendDescriptor_t descriptor;
    const cudnnDataType_t half = s.is_bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    const attention_graph::layout square = matrices_of(s, s.queries, s.keys), line = matrices_of(s, s.queries, 1);
    const attention_graph::layout turned = transposes_of(s, s.queries, s.keys);
    const attention_graph::layout of_q = matrices_of(s, s.queries, s.width), of_k = matrices_of(s, s.keys, s.width);
    const descriptor q = g->tensor(ATTENTION_Q, half, of_q), dy = g->tensor(ATTENTION_G, half, of_q);
    const descriptor k = g->tensor(ATTENTION_K, half, transposes_of(s, s.keys, s.width));
    const descriptor v = g->tensor(ATTENTION_V, half, transposes_of(s, s.keys, s.width));
    const descriptor dq = g->tensor(ATTENTION_DQ, half, of_q);
    const descriptor dk = g->tensor(ATTENTION_DK, half, of_k), dv = g->tensor(ATTENTION_DV, half, of_k);
    const descriptor log_sum = g->tensor(ATTENTION_LOG_SUM, CUDNN_DATA_FLOAT, line);
    const descriptor scale = g->number(ATTENTION_SCALE);
    const descriptor dot = dots_of(g, s, dy);

    descriptor p = g->product("q k^T", q, k, g->inside(square));
    p = g->each("scale", CUDNN_POINTWISE_MUL, p, scale, nullptr, g->inside(square));
    p = g->each("score - log_sum", CUDNN_POINTWISE_SUB, p, log_sum, nullptr, g->inside(square));
    if (s.causal) {
        p = causal_scores(g, s, p);
    }
    p = g->each("exp", CUDNN_POINTWISE_EXP, p, nullptr, nullptr, g->inside(square));
    const descriptor p_turned = g->reshape("p^T", p, g->inside(turned, half));
    (void)g->product("p^T g", p_turned, dy, dv);

    descriptor ds = g->product("g v^T", dy, v, g->inside(square));
    ds = g->each("dp - dot", CUDNN_POINTWISE_SUB, ds, dot, nullptr, g->inside(square));
    ds = g->each("p (dp - dot)", CUDNN_POINTWISE_MUL, ds, p, nullptr, g->inside(square));
    ds = g->each("scale ds", CUDNN_POINTWISE_MUL, ds, scale, nullptr, g->inside(square));
    const descriptor ds_turned = g->reshape("ds^T", ds, g->inside(turned, half));
    (void)g->product("ds^T q", ds_turned, q, dk);
    const descriptor k_rows = g->reshape("k", k, g->inside(of_k));
    (void)g->product("ds k", ds, k_rows, dq);
}

} // namespace ls

#endif
