/*
 * Reductions over any axes. After merging, an axis of x is either reduced (y repeats along it) or kept. If the
 * innermost axis is kept, the loop reduces a tile of columns, row by row. If it is reduced, the loop reads the row as
 * several rows of LANES numbers, so both cases use the same loop. Eight rows are combined as a tree, and the result is
 * combined with the running value of their column, which is a double for sums of f32. The order depends only on sizes
 * and strides. A whole dense tensor is first halved as often as possible. In f64, its sum is then bit-identical to the
 * sum that a balanced tree of ranks computes from the sums of equal shares.
 */
#include <math.h>

#include "tensor/device/cpu/floating.h"
#include "tensor/device/cpu/loop.h"

enum { LANES = 16, TILE = 128, LEAF = 1024 };

/* The running values of a tile. */
typedef union ls_running {
    double f64[TILE];
    float f32[TILE];
    uint64_t u64[TILE];
    int64_t i64[TILE];
    int32_t i32[TILE];
    uint8_t u8[TILE];
} ls_running;

/* A reduction of one dtype. */
typedef struct ls_reduction_kernel {
    void (*start)(ls_running *running, int64_t columns);
    void (*rows)(ls_running *running, const void *x, int64_t rows, int64_t row_step, int64_t columns,
                 int64_t column_step);
    void (*fold)(ls_running *running);                          /* combines LANES columns into the first column */
    void (*join)(ls_running *running, const ls_running *other); /* combines the first columns of both */
    void (*put)(const ls_running *running, int64_t columns, void *y, int64_t step,
                bool onto); /* stores the result; with `onto`, combines it with y */
} ls_reduction_kernel;

/*
 * T and R are the types that are read from and written to memory. B is the type within a tree of rows. RUNNING is the
 * member with the running values, of type A. `joining` combines a and b.
 */
#define REDUCTION(BUILD, name, T, R, B, A, RUNNING, identity, joining)                                                 \
    static inline B name##_join_rows(B a, B b) {                                                                       \
        joining                                                                                                        \
    }                                                                                                                  \
    static inline A name##_join(A a, A b) {                                                                            \
        joining                                                                                                        \
    }                                                                                                                  \
    static void name##_start(ls_running *running, int64_t columns) {                                                   \
        for (int64_t i = 0; i < columns; i++) {                                                                        \
            running->RUNNING[i] = (identity);                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static inline                                                                                                      \
        __attribute__((always_inline)) void name##_all_rows(A *restrict value, const T *restrict x, int64_t rows,      \
                                                            int64_t row_step, int64_t columns, int64_t column_step) {  \
        for (; rows >= 8; rows -= 8, x += 8 * row_step) {                                                              \
            for (int64_t i = 0; i < columns; i++) {                                                                    \
                const T *const at = x + i * column_step;                                                               \
                const B first = name##_join_rows(name##_join_rows((B)at[0], (B)at[row_step]),                          \
                                                 name##_join_rows((B)at[2 * row_step], (B)at[3 * row_step]));          \
                const B second = name##_join_rows(name##_join_rows((B)at[4 * row_step], (B)at[5 * row_step]),          \
                                                  name##_join_rows((B)at[6 * row_step], (B)at[7 * row_step]));         \
                value[i] = name##_join(value[i], (A)name##_join_rows(first, second));                                  \
            }                                                                                                          \
        }                                                                                                              \
        for (; rows > 0; rows--, x += row_step) {                                                                      \
            for (int64_t i = 0; i < columns; i++) {                                                                    \
                value[i] = name##_join(value[i], (A)x[i * column_step]);                                               \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    BUILD static void name##_rows(ls_running *running, const void *x, int64_t rows, int64_t row_step, int64_t columns, \
                                  int64_t column_step) {                                                               \
        A *const value = running->RUNNING;                                                                             \
        if (columns == LANES && row_step == LANES && column_step == 1) {                                               \
            name##_all_rows(value, x, rows, LANES, LANES, 1);                                                          \
        } else if (column_step == 1) {                                                                                 \
            name##_all_rows(value, x, rows, row_step, columns, 1);                                                     \
        } else {                                                                                                       \
            name##_all_rows(value, x, rows, row_step, columns, column_step);                                           \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_fold(ls_running *running) {                                                                     \
        A *const value = running->RUNNING;                                                                             \
        for (int half = LANES / 2; half > 0; half /= 2) {                                                              \
            for (int i = 0; i < half; i++) {                                                                           \
                value[i] = name##_join(value[i], value[i + half]);                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_merge(ls_running *running, const ls_running *other) {                                           \
        running->RUNNING[0] = name##_join(running->RUNNING[0], other->RUNNING[0]);                                     \
    }                                                                                                                  \
    static void name##_put(const ls_running *running, int64_t columns, void *y, int64_t step, bool onto) {             \
        R *const to = y;                                                                                               \
        for (int64_t i = 0; i < columns; i++) {                                                                        \
            const A value = running->RUNNING[i];                                                                       \
            to[i * step] = (R)(onto ? name##_join((A)to[i * step], value) : value);                                    \
        }                                                                                                              \
    }

REDUCTION(LS_CLONES, sum_f32, float, float, float, double, f64, 0, return a + b;)
REDUCTION(LS_CLONES, sum_f64, double, double, double, double, f64, 0, return a + b;)
REDUCTION(, sum_i64, int64_t, int64_t, uint64_t, uint64_t, u64, 0, return a + b;)
REDUCTION(, sum_i32, int32_t, int32_t, uint64_t, uint64_t, u64, 0, return a + b;)
REDUCTION(, sum_u8, uint8_t, uint8_t, uint64_t, uint64_t, u64, 0, return a + b;)
REDUCTION(, sum_b8, uint8_t, bool, uint64_t, uint64_t, u64, 0, return a + b;)

REDUCTION(LS_CLONES, prod_f32, float, float, double, double, f64, 1, return a * b;)
REDUCTION(LS_CLONES, prod_f64, double, double, double, double, f64, 1, return a * b;)
REDUCTION(, prod_i64, int64_t, int64_t, uint64_t, uint64_t, u64, 1, return a * b;)
REDUCTION(, prod_i32, int32_t, int32_t, uint64_t, uint64_t, u64, 1, return a * b;)
REDUCTION(, prod_u8, uint8_t, uint8_t, uint64_t, uint64_t, u64, 1, return a * b;)
REDUCTION(, prod_b8, uint8_t, bool, uint64_t, uint64_t, u64, 1, return a * b;)

/* NaN wins. Written as two steps without a branch, so that loops vectorize. */
#define MAXIMUM                                                                                                        \
    const __typeof__(a) larger = a > b ? a : b;                                                                        \
    return a != a ? a : larger;
#define MINIMUM                                                                                                        \
    const __typeof__(a) smaller = a < b ? a : b;                                                                       \
    return a != a ? a : smaller;
REDUCTION(LS_CLONES, max_f32, float, float, float, float, f32, -INFINITY, MAXIMUM)
REDUCTION(LS_CLONES, max_f64, double, double, double, double, f64, -INFINITY, MAXIMUM)
REDUCTION(, max_i64, int64_t, int64_t, int64_t, int64_t, i64, INT64_MIN, MAXIMUM)
REDUCTION(, max_i32, int32_t, int32_t, int32_t, int32_t, i32, INT32_MIN, MAXIMUM)
REDUCTION(, max_u8, uint8_t, uint8_t, uint8_t, uint8_t, u8, 0, MAXIMUM)
REDUCTION(LS_CLONES, min_f32, float, float, float, float, f32, INFINITY, MINIMUM)
REDUCTION(LS_CLONES, min_f64, double, double, double, double, f64, INFINITY, MINIMUM)
REDUCTION(, min_i64, int64_t, int64_t, int64_t, int64_t, i64, INT64_MAX, MINIMUM)
REDUCTION(, min_i32, int32_t, int32_t, int32_t, int32_t, i32, INT32_MAX, MINIMUM)
REDUCTION(, min_u8, uint8_t, uint8_t, uint8_t, uint8_t, u8, UINT8_MAX, MINIMUM)

#define ROW(name)                                                                                                      \
    { name##_start, name##_rows, name##_fold, name##_merge, name##_put }
#define TABLE(name, b8)                                                                                                \
    static const ls_reduction_kernel name##_table[LS_DTYPE_COUNT] = {                                                  \
        [LS_F32] = ROW(name##_f32), [LS_F64] = ROW(name##_f64), [LS_I64] = ROW(name##_i64),                            \
        [LS_I32] = ROW(name##_i32), [LS_U8] = ROW(name##_u8),   [LS_BOOL] = ROW(name##_##b8)};
TABLE(sum, b8)
TABLE(prod, b8)
TABLE(max, u8)
TABLE(min, u8)

/* A reduction in progress: the reduced axes, and the data for the loop. */
typedef struct ls_reducing {
    const ls_reduction_kernel *reduction;
    bool onto;
    bool by_columns;
    int64_t element;  /* size of an element of x and y in bytes */
    ls_loop *reduced; /* loop over the reduced axes of x */
    ls_running *running;
    int64_t columns; /* number of columns in the current tile */
    int64_t column_step;
} ls_reducing;

static void reduce_row(const ls_reduction_kernel *reduction, ls_running *running, int64_t element, int64_t n,
                       const char *x, int64_t step) {
    const int64_t rows = n / LANES;
    reduction->rows(running, x, rows, LANES * step, LANES, step);
    if (n > rows * LANES) {
        reduction->rows(running, x + rows * LANES * step * element, 1, 0, n - rows * LANES, step);
    }
}

static void reduce_rows_body(int64_t n, void *const *at, const int64_t *step, const void *context) {
    const ls_reducing *const reducing = context;
    if (reducing->by_columns) {
        reducing->reduction->rows(reducing->running, at[0], n, step[0], reducing->columns, reducing->column_step);
    } else {
        reduce_row(reducing->reduction, reducing->running, reducing->element, n, at[0], step[0]);
    }
}

/* Computes all columns of y, or its single number, for one position of the outer kept axes. */
static void reduce_place(int64_t n, void *const *at, const int64_t *step, const void *context) {
    ls_reducing reducing = *(const ls_reducing *)context;
    const ls_reduction_kernel *const reduction = reducing.reduction;
    reducing.column_step = step[0];
    for (int64_t first = 0; first < n; first += TILE) {
        reducing.columns = n - first < TILE ? n - first : TILE;
        reducing.reduced->at[0] = (char *)at[0] + first * step[0] * reducing.element;
        reduction->start(reducing.running, reducing.by_columns ? reducing.columns : LANES);
        ls_loop_walk(reducing.reduced, reducing.reduced->ndim - 1, reduce_rows_body, &reducing);
        if (!reducing.by_columns) {
            reduction->fold(reducing.running);
        }
        reduction->put(reducing.running, reducing.columns, (char *)at[1] + first * step[1] * reducing.element, step[1],
                       reducing.onto);
    }
}

static void axis_append(ls_loop *loop, int64_t size, int64_t step, int64_t other_step) {
    loop->size[loop->ndim] = size;
    loop->step[loop->ndim][0] = step;
    loop->step[loop->ndim][1] = other_step;
    loop->ndim++;
}

static void reduce_planned(const ls_reduction_kernel *reduction, ls_tensor *y, const ls_tensor *x, bool onto) {
    ls_loop all;
    ls_loop_plan(&all, 2, (const ls_tensor *const[]){x, y});
    const bool by_columns = all.step[all.ndim - 1][1] != 0;
    ls_loop kept = {.tensors = 2, .at = {all.at[0], all.at[1]}, .element = {all.element[0], all.element[1]}};
    ls_loop reduced = {.tensors = 1, .element = {all.element[0]}};
    for (int axis = 0; axis < all.ndim; axis++) {
        const bool is_kept = all.step[axis][1] != 0;
        axis_append(is_kept ? &kept : &reduced, all.size[axis], all.step[axis][0], all.step[axis][1]);
    }
    if (reduced.ndim == 0) {
        axis_append(&reduced, 1, 0, 0);
    }
    if (!by_columns) {
        axis_append(&kept, 1, 0, 0);
    }
    ls_running running;
    const ls_reducing reducing = {.reduction = reduction,
                                  .onto = onto,
                                  .by_columns = by_columns,
                                  .element = all.element[0],
                                  .reduced = &reduced,
                                  .running = &running};
    ls_loop_walk(&kept, kept.ndim - 1, reduce_place, &reducing);
}

/*
 * Reduces into the first running value. Processes the two halves separately while the number of elements is even and
 * above LEAF, so that this is cheap.
 */
static void reduce_halves(const ls_reduction_kernel *reduction, ls_running *running, int64_t element, int64_t n,
                          const char *x) {
    if (n <= LEAF || n % 2 != 0) {
        reduction->start(running, LANES);
        reduce_row(reduction, running, element, n, x, 1);
        reduction->fold(running);
        return;
    }
    ls_running second;
    reduce_halves(reduction, running, element, n / 2, x);
    reduce_halves(reduction, &second, element, n / 2, x + n / 2 * element);
    reduction->join(running, &second);
}

/* Reduces a whole dense tensor to one number, without a plan. */
static void reduce_all(const ls_reduction_kernel *reduction, ls_tensor *y, const ls_tensor *x, bool onto) {
    ls_running running;
    reduce_halves(reduction, &running, (int64_t)ls_dtype_size(x->dtype), x->count, x->data);
    reduction->put(&running, 1, y->data, 1, onto);
}

/* Stores the result of a reduction of no elements. */
static ls_status put_start(const ls_reduction_kernel *reduction, ls_stream *stream, ls_tensor *y) {
    ls_running running;
    uint64_t element = 0;
    const ls_tensor one = {.data = &element, .count = 1, .dtype = y->dtype, .contiguous = true};
    reduction->start(&running, 1);
    reduction->put(&running, 1, &element, 1, false);
    return ls_cpu_copy(stream, y, &one);
}

static ls_status reduce(const char *name, const ls_reduction_kernel *table, ls_stream *stream, ls_tensor *y,
                        const ls_tensor *x) {
    const ls_reduction_kernel *const reduction = &table[x->dtype];
    if (reduction->start == NULL) {
        return ls_no_kernel(name, x->dtype);
    }
    if (x->count == 0) {
        return put_start(reduction, stream, y);
    }
    if (y->count == 1 && x->contiguous) {
        reduce_all(reduction, y, x, false);
    } else {
        reduce_planned(reduction, y, x, false);
    }
    return LS_OK;
}

ls_status ls_cpu_sum(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    return reduce("sum", sum_table, stream, y, x);
}

ls_status ls_cpu_prod(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    return reduce("prod", prod_table, stream, y, x);
}

ls_status ls_cpu_max(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    return reduce("max", max_table, stream, y, x);
}

ls_status ls_cpu_min(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    return reduce("min", min_table, stream, y, x);
}

ls_status ls_cpu_add_sum(ls_stream *stream, ls_tensor *y, const ls_tensor *x) {
    const ls_reduction_kernel *const reduction = &sum_table[x->dtype];
    if (reduction->start == NULL) {
        return ls_no_kernel("add_sum", x->dtype);
    }
    if (x->count == y->count) { /* no axis is reduced: y is a copy of x, or the combination of x and y */
        return ls_cpu_add(stream, y, (const ls_tensor *const[]){y, x}, NULL);
    }
    if (x->count > 0 && y->count == 1 && x->contiguous) {
        reduce_all(reduction, y, x, true);
    } else if (x->count > 0) {
        reduce_planned(reduction, y, x, true);
    }
    return LS_OK;
}
