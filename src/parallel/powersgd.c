#include "parallel/powersgd.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

static const char call[] = "ls_data_parallel";

/*
 * The gradient of a parameter as a matrix. Matrices with `rank` columns are stored transposed, so that each column is
 * contiguous.
 */
typedef struct powersgd_matrix {
    int64_t count;         /* elements */
    int64_t rows, columns; /* sizes of a compressed gradient; 0 if the gradient is sent unchanged */
    float *error;          /* [rows, columns] */
    float *q;              /* [rank, columns], from the last pass */
    /* of the present pass */
    bool given;      /* this rank has a gradient */
    float *gradient; /* NULL if no rank has a new gradient */
    float *sent;     /* part of the first message: P [rank, rows], or the gradient */
    float *next_q;   /* in the second message */
    bool finite;     /* the averages over ranks contain neither Inf nor NaN */
} powersgd_matrix;

struct ls_powersgd {
    int rank;
    powersgd_matrix *matrices; /* by parameter index */
    int matrix_count;
    ls_storage *memory; /* the error feedback of all matrices, then all matrices Q */
    int64_t error_count, q_count;
    ls_storage *message; /* communicator memory; each of the two messages ends with the number of failed ranks */
    int64_t capacity;    /* elements of `message` */
};

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Returns the matrix of a parameter: its sizes, and whether compression makes its gradient smaller. */
static powersgd_matrix matrix_of(const ls_tensor *parameter, int rank) {
    powersgd_matrix made = {.count = parameter->count};
    const int64_t rows = parameter->ndim > 1 ? parameter->size[0] : 0;
    const int64_t columns = rows > 0 ? parameter->count / rows : 0;
    if (parameter->leaf != NULL && rows > 0 && (rows + columns) * rank < parameter->count) {
        made.rows = rows;
        made.columns = columns;
    }
    return made;
}

/* Lists the matrices, and sets the sizes of the memory. */
static ls_status list_matrices(ls_powersgd *powersgd, const ls_data_parallel_state *state) {
    powersgd->capacity = 2;
    powersgd->matrix_count = state->parameter_count;
    powersgd->matrices = ls_allocate_for(call, (size_t)powersgd->matrix_count, sizeof *powersgd->matrices);
    LS_TRY(ls_made(powersgd->matrices));
    for (int i = 0; i < powersgd->matrix_count; i++) {
        const ls_tensor *parameter = state->model->parameters.items[i].tensor;
        const powersgd_matrix made = powersgd->matrices[i] = matrix_of(parameter, powersgd->rank);
        powersgd->error_count += made.rows * made.columns;
        powersgd->q_count += made.columns * powersgd->rank;
        powersgd->capacity += made.rows > 0             ? (made.rows + made.columns) * powersgd->rank
                              : parameter->leaf != NULL ? made.count
                                                        : 0;
    }
    return LS_OK;
}

static ls_status allocate(ls_powersgd *powersgd, const ls_data_parallel_state *state) {
    const size_t bytes = (size_t)(powersgd->error_count + powersgd->q_count) * sizeof(float);
    powersgd->memory = ls_storage_for(call, &ls_cpu, bytes, LS_MEMORY_BUCKETS);
    LS_TRY(ls_made(powersgd->memory));
    powersgd->message = ls_comm_storage(state->comm, (size_t)powersgd->capacity * sizeof(float));
    LS_TRY(ls_made(powersgd->message));
    float *error = powersgd->memory->memory, *q = error + powersgd->error_count;
    for (int i = 0; i < powersgd->matrix_count; i++) {
        powersgd_matrix *own = &powersgd->matrices[i];
        own->error = error;
        own->q = q;
        error += own->rows * own->columns;
        q += own->columns * powersgd->rank;
    }
    ls_powersgd_restart(powersgd);
    return LS_OK;
}

ls_status ls_powersgd_open(ls_data_parallel_state *state, int rank) {
    ls_powersgd *powersgd = state->powersgd = ls_allocate_for(call, 1, sizeof *powersgd);
    LS_TRY(ls_made(powersgd));
    powersgd->rank = rank;
    LS_TRY(list_matrices(powersgd, state));
    return allocate(powersgd, state);
}

void ls_powersgd_close(ls_powersgd *powersgd) {
    if (powersgd == NULL) {
        return;
    }
    ls_storage_drop(powersgd->memory);
    ls_storage_drop(powersgd->message);
    ls_free(powersgd->matrices);
    ls_free(powersgd);
}

/*
 * Draws a column of a matrix Q. The numbers depend only on the parameter and the column, because all ranks must draw
 * the same numbers, and the program's random numbers must not depend on PowerSGD.
 */
static void draw_column(const ls_powersgd *powersgd, int index, int column) {
    static const uint64_t seed = UINT64_C(0x506f776572534744);
    const powersgd_matrix *own = &powersgd->matrices[index];
    const uint64_t stream = (uint64_t)index * (uint64_t)powersgd->rank + (uint64_t)column;
    for (int64_t j = 0; j < own->columns; j++) {
        own->q[column * own->columns + j] = (float)ls_random_normal(seed, stream, (uint64_t)j);
    }
}

void ls_powersgd_restart(ls_powersgd *powersgd) {
    memset(powersgd->memory->memory, 0, (size_t)powersgd->error_count * sizeof(float));
    for (int i = 0; i < powersgd->matrix_count; i++) {
        for (int k = 0; k < powersgd->rank && powersgd->matrices[i].rows > 0; k++) {
            draw_column(powersgd, i, k);
        }
    }
}

float *ls_powersgd_numbers(const ls_powersgd *powersgd, int64_t *count) {
    *count = powersgd->error_count + powersgd->q_count;
    return powersgd->memory->memory;
}

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/*
 * Each rank computes these functions on its own, and all must get bit-identical results. The results of these kernels
 * depend neither on the processor nor on the number of threads. For f32, the CPU kernels cannot fail.
 */
static double dot(const float *x, const float *y, int64_t count) {
    double sum = 0;
    (void)ls_device_kernels(&ls_cpu)->dot(ls_device_stream(&ls_cpu), LS_F32, count, x, y, &sum);
    return sum;
}

static void add_scaled(float *y, const float *x, float a, int64_t count) {
    (void)ls_device_kernels(&ls_cpu)->axpy(ls_device_stream(&ls_cpu), LS_F32, count, a, x, y);
}

static bool is_finite(const float *x, int64_t count) {
    double largest = 0;
    (void)ls_device_kernels(&ls_cpu)->largest_magnitude(ls_device_stream(&ls_cpu), LS_F32, count, x, &largest);
    return isfinite(largest);
}

/* If the projections leave less than this fraction of a column, the remainder consists only of rounding errors. */
static const double DEPENDENT = 1e-5;

/*
 * Makes the columns of P orthonormal by Gram-Schmidt. Each projection is repeated, because the first one leaves
 * rounding errors in the directions of the other columns. Columns that depend on earlier columns become zero. Random
 * matrices (nn/init.c) have no such columns, but low-rank gradients do.
 */
static void orthogonalize(float *p, int rank, int64_t rows) {
    for (int k = 0; k < rank; k++) {
        float *column = p + k * rows;
        const double before = sqrt(dot(column, column, rows));
        for (int i = 0; i < 2 * k; i++) {
            const float *other = p + (i % k) * rows;
            add_scaled(column, other, (float)-dot(other, column, rows), rows);
        }
        const double norm = sqrt(dot(column, column, rows));
        const double factor = norm > DEPENDENT * before ? 1 / norm : 0;
        for (int64_t i = 0; i < rows; i++) {
            column[i] = (float)(column[i] * factor);
        }
    }
}

/* Replaces M with P Q^T. Stores the difference in `error`, unless `error` is NULL. */
static void decode_matrix(const powersgd_matrix *own, int rank, float *error) {
    for (int64_t i = 0; i < own->rows; i++) {
        float *row = own->gradient + i * own->columns;
        float *rest = error != NULL ? error + i * own->columns : NULL;
        if (rest != NULL) {
            memcpy(rest, row, (size_t)own->columns * sizeof *row);
        }
        memset(row, 0, (size_t)own->columns * sizeof *row);
        for (int k = 0; k < rank; k++) {
            add_scaled(row, own->next_q + k * own->columns, own->sent[k * own->rows + i], own->columns);
        }
        if (rest != NULL) {
            add_scaled(rest, row, -1, own->columns);
        }
    }
}

/* ---- a pass ------------------------------------------------------------------------------------------------------ */

/* Finds the gradients of the pass and their offsets in the messages, and sets the lengths of the messages. */
static ls_status locate(const ls_data_parallel_state *state, int64_t *first, int64_t *second) {
    const ls_powersgd *powersgd = state->powersgd;
    const int64_t rank = powersgd->rank;
    *first = *second = 0;
    float *to = powersgd->message->memory;
    for (int i = 0; i < powersgd->matrix_count; i++) {
        powersgd_matrix *own = &powersgd->matrices[i];
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        own->gradient = leaf != NULL && ls_tail_has_new_gradient(state, i) ? leaf->gradient->data : NULL;
        own->sent = to + *first;
        *first += own->gradient == NULL ? 0 : own->rows > 0 ? own->rows * rank : own->count;
    }
    to += *first + 1;
    for (int i = 0; i < powersgd->matrix_count; i++) {
        powersgd_matrix *own = &powersgd->matrices[i];
        own->next_q = to + *second;
        *second += own->gradient != NULL ? own->columns * rank : 0;
    }
    return *first + *second + 2 <= powersgd->capacity
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "%s: more parameters require gradients than at the first call: with "
                         ".powersgd_rank, freeze parameters after ls_data_parallel",
                         call);
}

static ls_status multiply(const ls_gemm *gemm) {
    return ls_device_kernels(&ls_cpu)->gemm(ls_device_stream(&ls_cpu), gemm);
}

static ls_status multiply_by_q(const powersgd_matrix *own, int rank) {
    return multiply(&(ls_gemm){.dtype = LS_F32,
                               .m = rank,
                               .n = own->rows,
                               .k = own->columns,
                               .a = own->q,
                               .lda = own->columns,
                               .b = own->gradient,
                               .ldb = own->columns,
                               .transpose_b = true,
                               .c = own->sent,
                               .ldc = own->rows});
}

static ls_status multiply_by_p(const powersgd_matrix *own, int rank) {
    return multiply(&(ls_gemm){.dtype = LS_F32,
                               .m = rank,
                               .n = own->columns,
                               .k = own->rows,
                               .a = own->sent,
                               .lda = own->rows,
                               .b = own->gradient,
                               .ldb = own->columns,
                               .c = own->next_q,
                               .ldc = own->columns});
}

static ls_status scale(const powersgd_matrix *own, double factor) {
    if (!own->given) {
        memset(own->gradient, 0, (size_t)own->count * sizeof(float));
        return LS_OK;
    }
    return factor != 1
               ? ls_device_kernels(&ls_cpu)->scale(ls_device_stream(&ls_cpu), LS_F32, own->count, factor, own->gradient)
               : LS_OK;
}

static ls_status encode_first(const ls_powersgd *powersgd, double factor) {
    for (int i = 0; i < powersgd->matrix_count; i++) {
        const powersgd_matrix *own = &powersgd->matrices[i];
        if (own->gradient == NULL) {
            continue;
        }
        LS_TRY(scale(own, factor));
        if (own->rows > 0) {
            add_scaled(own->gradient, own->error, 1, own->count);
            LS_TRY(multiply_by_q(own, powersgd->rank));
        } else {
            memcpy(own->sent, own->gradient, (size_t)own->count * sizeof(float));
        }
    }
    return LS_OK;
}

static ls_status encode_second(const ls_powersgd *powersgd) {
    for (int i = 0; i < powersgd->matrix_count; i++) {
        powersgd_matrix *own = &powersgd->matrices[i];
        if (own->gradient == NULL || own->rows == 0) {
            continue;
        }
        own->finite = is_finite(own->sent, own->rows * powersgd->rank);
        if (own->finite) {
            orthogonalize(own->sent, powersgd->rank, own->rows);
            LS_TRY(multiply_by_p(own, powersgd->rank));
        } else {
            memset(own->next_q, 0, (size_t)(own->columns * powersgd->rank) * sizeof(float));
        }
    }
    return LS_OK;
}

/* Averages a message. If any rank reports that it could not write its message, all ranks fail. */
static ls_status exchange(ls_data_parallel_state *state, float *message, int64_t count, ls_status written) {
    message[count] = written != LS_OK ? 1 : 0;
    LS_TRY(ls_gradients_explain(state->reducer.format, ls_comm_allreduce(state->comm, message, message,
                                                                         (size_t)count + 1, LS_F32, LS_AVG, NULL)));
    return message[count] > 0 ? ls_averaging_share_cause(state, written != LS_OK) : LS_OK;
}

/* Stores Q for the next pass. A zero column would stay zero, so it is drawn again. */
static void keep_q(const ls_powersgd *powersgd, int index) {
    const powersgd_matrix *own = &powersgd->matrices[index];
    memcpy(own->q, own->next_q, (size_t)(own->columns * powersgd->rank) * sizeof(float));
    for (int k = 0; k < powersgd->rank; k++) {
        if (dot(own->q + k * own->columns, own->q + k * own->columns, own->columns) == 0) {
            draw_column(powersgd, index, k);
        }
    }
}

static void decode(const ls_powersgd *powersgd, bool finite) {
    for (int i = 0; i < powersgd->matrix_count; i++) {
        const powersgd_matrix *own = &powersgd->matrices[i];
        if (own->gradient == NULL) {
            continue;
        }
        if (own->rows == 0) {
            memcpy(own->gradient, own->sent, (size_t)own->count * sizeof(float));
        } else if (own->finite) {
            decode_matrix(own, powersgd->rank, finite ? own->error : NULL);
        } else {
            for (int64_t k = 0; k < own->count; k++) {
                own->gradient[k] = NAN;
            }
        }
        if (own->rows > 0 && finite) {
            keep_q(powersgd, i);
        }
    }
}

/* Reads which gradients exist: first on this rank, then on any rank. */
static ls_status read_marks(ls_data_parallel_state *state) {
    for (int i = 0; i < state->powersgd->matrix_count; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        state->powersgd->matrices[i].given = leaf != NULL && leaf->has_gradient;
    }
    return ls_tail_read_marks(state);
}

ls_status ls_powersgd_average(ls_data_parallel_state *state, double factor) {
    const ls_powersgd *powersgd = state->powersgd;
    int64_t first, second;
    LS_TRY(read_marks(state));
    LS_TRY(locate(state, &first, &second));
    float *message = powersgd->message->memory;
    LS_TRY(exchange(state, message, first, encode_first(powersgd, factor)));
    bool finite = is_finite(message, first);
    message += first + 1;
    LS_TRY(exchange(state, message, second, encode_second(powersgd)));
    finite = finite && is_finite(message, second);
    for (int i = 0; i < powersgd->matrix_count; i++) {
        powersgd_matrix *own = &powersgd->matrices[i];
        own->finite = own->finite && is_finite(own->next_q, own->gradient != NULL ? own->columns * powersgd->rank : 0);
    }
    decode(powersgd, finite);
    return LS_OK;
}
