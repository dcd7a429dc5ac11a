/* Initialisers. Numbers are drawn in double precision and converted, so that all dtypes start from the same numbers. */
#include <math.h>

#include "base/random.h"
#include "nn/module.h"
#include "tensor/capture.h"

static ls_status check_target(const char *call, const ls_tensor *tensor) {
    if (tensor == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the tensor is NULL", call);
    }
    if (!ls_dtype_is_floating(ls_dtype_of(tensor))) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: a tensor of %s cannot be initialized: it must be floating-point", call,
                       ls_dtype_name(ls_dtype_of(tensor)));
    }
    return LS_OK;
}

/* Copies values into a parameter, with recording off, because recording forbids changing a parameter. Consumes
 * `values`. */
static ls_status put(ls_tensor *tensor, ls_tensor *values) {
    if (values == NULL) {
        return ls_error_status();
    }
    const bool before = ls_no_grad(true);
    const ls_status status = ls_copy_into(tensor, values);
    ls_no_grad(before);
    ls_tensor_drop(values);
    return status;
}

/* Creates the tensor on the host. */
static ls_tensor *numbers_like(const char *call, const ls_tensor *tensor) {
    ls_capture_refuse_here(call, LS_CAPTURE_WRITES);
    return ls_tensor_new_owned(call, &ls_cpu, tensor->ndim, tensor->size, LS_F64);
}

ls_status ls_nn_init_constant(ls_tensor *tensor, double value) {
    LS_TRY(check_target("ls_nn_init_constant", tensor));
    const bool before = ls_no_grad(true);
    const ls_status status = ls_fill(tensor, value);
    ls_no_grad(before);
    return status;
}

ls_status ls_nn_init_uniform(ls_tensor *tensor, double low, double high) {
    LS_TRY(check_target("ls_nn_init_uniform", tensor));
    const ls_random_state state = ls_random_next_stream();
    ls_tensor *values = numbers_like("ls_nn_init_uniform", tensor);
    double *numbers = values != NULL ? ls_host_data(values) : NULL;
    for (int64_t i = 0; values != NULL && i < values->count; i++) {
        numbers[i] = low + (high - low) * ls_random_uniform(state.seed, state.stream, (uint64_t)i);
    }
    return put(tensor, values);
}

ls_status ls_nn_init_normal(ls_tensor *tensor, double mean, double deviation) {
    LS_TRY(check_target("ls_nn_init_normal", tensor));
    const ls_random_state state = ls_random_next_stream();
    ls_tensor *values = numbers_like("ls_nn_init_normal", tensor);
    double *numbers = values != NULL ? ls_host_data(values) : NULL;
    for (int64_t i = 0; values != NULL && i < values->count; i++) {
        numbers[i] = mean + deviation * ls_random_normal(state.seed, state.stream, (uint64_t)i);
    }
    return put(tensor, values);
}

/* Returns number i of the stream if it lies in the interval, or else the first of i + count, i + 2 count, ... that
 * does. */
static double normal_within(ls_random_state state, int64_t i, int64_t count, double low, double high) {
    enum { TRIES = 1000 };
    double number = 0;
    for (int64_t attempt = 0; attempt < TRIES; attempt++) {
        number = ls_random_normal(state.seed, state.stream, (uint64_t)(i + attempt * count));
        if (number >= low && number <= high) {
            return number;
        }
    }
    return number < low ? low : high; /* for an interval far in a tail, the bound nearer to the center */
}

ls_status ls_nn_init_truncated_normal(ls_tensor *tensor, double mean, double deviation, double low, double high) {
    LS_TRY(check_target("ls_nn_init_truncated_normal", tensor));
    if (!(low < high) || !(deviation > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_nn_init_truncated_normal: deviation %g within [%g, %g] contains no values",
                       deviation, low, high);
    }
    const ls_random_state state = ls_random_next_stream();
    ls_tensor *values = numbers_like("ls_nn_init_truncated_normal", tensor);
    double *numbers = values != NULL ? ls_host_data(values) : NULL;
    for (int64_t i = 0; values != NULL && i < values->count; i++) {
        const double number =
            normal_within(state, i, values->count, (low - mean) / deviation, (high - mean) / deviation);
        numbers[i] = mean + deviation * number;
    }
    return put(tensor, values);
}

/* For [out, in, kernel...], fan_in = in * kernel and fan_out = out * kernel. */
static ls_status fans(const char *call, const ls_tensor *tensor, double *fan_in, double *fan_out) {
    LS_TRY(check_target(call, tensor));
    if (tensor->ndim < 2 || tensor->count == 0) {
        return ls_fail(LS_ERR_SHAPE, "%s: %s has no fan-in: it needs at least two axes, none of size 0", call,
                       LS_SHAPE_TEXT(tensor));
    }
    *fan_in = (double)(tensor->count / tensor->size[0]);
    *fan_out = (double)(tensor->count / tensor->size[1]);
    return LS_OK;
}

ls_status ls_nn_init_kaiming_uniform(ls_tensor *tensor, double slope) {
    double fan_in = 0;
    double fan_out = 0;
    LS_TRY(fans("ls_nn_init_kaiming_uniform", tensor, &fan_in, &fan_out));
    const double bound = sqrt(6.0 / ((1.0 + slope * slope) * fan_in));
    return ls_nn_init_uniform(tensor, -bound, bound);
}

ls_status ls_nn_init_kaiming_normal(ls_tensor *tensor, double slope) {
    double fan_in = 0;
    double fan_out = 0;
    LS_TRY(fans("ls_nn_init_kaiming_normal", tensor, &fan_in, &fan_out));
    return ls_nn_init_normal(tensor, 0, sqrt(2.0 / ((1.0 + slope * slope) * fan_in)));
}

ls_status ls_nn_init_xavier_uniform(ls_tensor *tensor, double gain) {
    double fan_in = 0;
    double fan_out = 0;
    LS_TRY(fans("ls_nn_init_xavier_uniform", tensor, &fan_in, &fan_out));
    const double bound = gain * sqrt(6.0 / (fan_in + fan_out));
    return ls_nn_init_uniform(tensor, -bound, bound);
}

ls_status ls_nn_init_xavier_normal(ls_tensor *tensor, double gain) {
    double fan_in = 0;
    double fan_out = 0;
    LS_TRY(fans("ls_nn_init_xavier_normal", tensor, &fan_in, &fan_out));
    return ls_nn_init_normal(tensor, 0, gain * sqrt(2.0 / (fan_in + fan_out)));
}

/* Vectors in a matrix. They are the rows if there are at most as many rows as columns, otherwise the columns. */
typedef struct vectors {
    double *numbers;
    int64_t count, length;
    int64_t step, stride;
} vectors;

static double dot(const vectors *v, int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t j = 0; j < v->length; j++) {
        sum += v->numbers[a * v->step + j * v->stride] * v->numbers[b * v->step + j * v->stride];
    }
    return sum;
}

/* Modified Gram-Schmidt, applied twice. For this purpose, it is as accurate as a QR decomposition. */
static void orthonormalise(const vectors *v) {
    for (int64_t a = 0; a < v->count; a++) {
        for (int pass = 0; pass < 2; pass++) {
            for (int64_t b = 0; b < a; b++) {
                const double share = dot(v, a, b);
                for (int64_t j = 0; j < v->length; j++) {
                    v->numbers[a * v->step + j * v->stride] -= share * v->numbers[b * v->step + j * v->stride];
                }
            }
        }
        const double length = sqrt(dot(v, a, a));
        for (int64_t j = 0; j < v->length; j++) {
            v->numbers[a * v->step + j * v->stride] /= length;
        }
    }
}

ls_status ls_nn_init_orthogonal(ls_tensor *tensor, double gain) {
    double fan_in = 0;
    double fan_out = 0;
    LS_TRY(fans("ls_nn_init_orthogonal", tensor, &fan_in, &fan_out));
    const ls_random_state state = ls_random_next_stream();
    ls_tensor *values = numbers_like("ls_nn_init_orthogonal", tensor);
    if (values == NULL) {
        return ls_error_status();
    }
    double *numbers = ls_host_data(values);
    for (int64_t i = 0; i < values->count; i++) {
        numbers[i] = ls_random_normal(state.seed, state.stream, (uint64_t)i);
    }
    const int64_t rows = tensor->size[0];
    const int64_t columns = tensor->count / rows;
    const bool wide = rows <= columns;
    orthonormalise(&(vectors){.numbers = numbers,
                              .count = wide ? rows : columns,
                              .length = wide ? columns : rows,
                              .step = wide ? columns : 1,
                              .stride = wide ? 1 : columns});
    for (int64_t i = 0; i < values->count; i++) {
        numbers[i] *= gain;
    }
    return put(tensor, values);
}
