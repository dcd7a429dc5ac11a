/*
 * Compares gradients with central differences. The weights of the sum have their own random seed. The thread's
 * generator is restored before every call to the function, so that random operations produce the same numbers.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "autograd/gradcheck.h"
#include "autograd/tape.h"
#include "base/memory.h"
#include "base/option.h"
#include "base/random.h"

#define WEIGHT_SEED 0x6c6f636b73746570

typedef struct check {
    const char *call;
    const ls_gradcheck_ranks *ranks; /* ranks over which the sum is taken; NULL selects this rank only */
    ls_function function;
    ls_tensor **inputs;
    int count;
    void *user;
    double step, absolute, relative;
    ls_random_state random; /* the thread's generator at the start */
    ls_tensor *weight;      /* f64, of the result's shape; created at the first call to the function */
    /* the first difference found; the check continues, because other ranks wait for its remaining calls */
    ls_status found;
    char message[LS_ERROR_CAPACITY];
} check;

/* Computes sum(weight * result). */
static ls_status weigh(const check *c, const ls_tensor *result, double *sum) {
    ls_tensor *dense = ls_tensor_dense_on_host(c->call, result, LS_F64);
    ls_tensor *weight = dense != NULL ? ls_tensor_dense_on_host(c->call, c->weight, LS_F64) : NULL;
    const double *factors = weight != NULL ? ls_host_data(weight) : NULL;
    const double *numbers = weight != NULL ? ls_host_data(dense) : NULL;
    *sum = 0;
    for (int64_t i = 0; weight != NULL && i < dense->count; i++) {
        *sum += factors[i] * numbers[i];
    }
    const ls_status status = weight != NULL ? LS_OK : ls_error_status();
    ls_tensor_drop(weight);
    ls_tensor_drop(dense);
    return status;
}

/* Replaces the number with its sum over all ranks. */
static ls_status add_ranks(const check *c, double *sum) {
    return c->ranks != NULL ? c->ranks->add(c->ranks->user, sum, 1) : LS_OK;
}

static ls_tensor *call_function(const check *c) {
    ls_random_set_state(c->random);
    ls_tensor *result = c->function(c->inputs, c->count, c->user);
    if (result == NULL) {
        if (!ls_scope_explains_null(ls_thread())) {
            (void)ls_fail(LS_ERR_ARGUMENT, "%s: the function returned NULL", c->call);
        }
        return ls_scope_failed();
    }
    if (!ls_dtype_is_floating((ls_dtype)result->dtype)) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: the function's result is %s, not a floating-point tensor", c->call,
                      ls_dtype_name((ls_dtype)result->dtype));
        return ls_scope_failed();
    }
    return result;
}

/* Computes the sum for the current values of the inputs. */
static ls_status evaluate(const check *c, double *sum) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    (void)ls_no_grad(true);
    const ls_tensor *result = call_function(c);
    ls_status status = result != NULL ? LS_OK : ls_error_status();
    if (status == LS_OK && !ls_tensor_same_shape(result, c->weight)) {
        status = ls_fail(LS_ERR_SHAPE, "%s: the function's result was %s in the first call, but is %s in a later call",
                         c->call, LS_SHAPE_TEXT(c->weight), LS_SHAPE_TEXT(result));
    }
    if (status == LS_OK) {
        status = weigh(c, result, sum);
    }
    const ls_status ended = ls_scope_close(scope);
    LS_TRY(status != LS_OK ? status : ended);
    return add_ranks(c, sum);
}

/* Creates the weights and runs the backward pass, which stores the gradients in the inputs' leaves. */
static ls_status differentiate(check *c) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    (void)ls_no_grad(false);
    ls_tensor *result = call_function(c);
    ls_status status = result != NULL ? LS_OK : ls_error_status();
    if (status == LS_OK) {
        const ls_random_state stream = {.seed = WEIGHT_SEED, .stream = c->ranks != NULL ? (uint64_t)c->ranks->rank : 0};
        c->weight = ls_tensor_like_owned(c->call, result, LS_F64);
        status = c->weight != NULL ? ls_kernels_of(result)->random_normal(ls_stream_of(result), c->weight, stream, 0, 1)
                                   : LS_ERR_MEMORY;
    }
    /* Otherwise the gradients are 0, and the differences must be 0, too. */
    if (status == LS_OK && (result->needs_grad || ls_tape_communicates())) {
        ls_tensor *gradient = ls_tensor_dense(c->call, c->weight, (ls_dtype)result->dtype);
        status = gradient != NULL ? ls_backward_with(result, &(ls_backward_options){.gradient = gradient})
                                  : ls_error_status();
        ls_tensor_drop(gradient);
    }
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}

/* Returns the offset of element number i from the first element, in elements, and its index as text. */
static int64_t locate(const ls_tensor *tensor, int64_t i, ls_shape_text *text) {
    int64_t index[LS_MAX_DIMS];
    int64_t offset = 0;
    for (int axis = tensor->ndim - 1; axis >= 0; axis--) {
        index[axis] = i % tensor->size[axis];
        offset += index[axis] * tensor->stride[axis];
        i /= tensor->size[axis];
    }
    *text = ls_shape_describe(tensor->ndim, index);
    return offset;
}

static ls_status put_element(ls_tensor *tensor, int64_t offset, double value) {
    return ls_device_store(ls_tensor_device(tensor), (double *)tensor->data + offset, &value, sizeof value);
}

/* Computes the derivative of the sum with respect to one element. */
static ls_status difference(const check *c, ls_tensor *input, int64_t offset, double *derivative) {
    double value = 0;
    double above = 0;
    double below = 0;
    LS_TRY(ls_tensor_fetch(input, offset, &value));
    LS_TRY(put_element(input, offset, value + c->step));
    ls_status status = evaluate(c, &above);
    if (status == LS_OK) {
        status = put_element(input, offset, value - c->step);
        status = status == LS_OK ? evaluate(c, &below) : status;
    }
    const ls_status restored = put_element(input, offset, value);
    if (status != LS_OK || restored != LS_OK) {
        return status != LS_OK ? status : restored;
    }
    *derivative = (above - below) / ((value + c->step) - (value - c->step));
    return LS_OK;
}

static ls_status compare_input(check *c, int number) {
    ls_tensor *input = c->inputs[number];
    const ls_tensor *gradient = ls_grad(input);
    for (int64_t i = 0; i < input->count; i++) {
        ls_shape_text index;
        const int64_t offset = locate(input, i, &index);
        double by_tape = 0;
        if (gradient != NULL) {
            LS_TRY(ls_tensor_fetch(gradient, i, &by_tape));
        }
        double by_difference = 0;
        LS_TRY(difference(c, input, offset, &by_difference));
        const double error = fabs(by_tape - by_difference);
        if (!(error <= c->absolute + c->relative * fabs(by_difference)) && c->found == LS_OK) {
            c->found = ls_fail(LS_ERR_MISMATCH,
                               "%s: input %d, element %s: the gradient is %.9g, but the central difference is %.9g",
                               c->call, number, index.text, by_tape, by_difference);
            memcpy(c->message, ls_error_message(), sizeof c->message);
        }
        if (c->found != LS_OK && c->ranks == NULL) {
            return c->found;
        }
    }
    return LS_OK;
}

static bool is_checked(const check *c, int i) {
    return c->inputs[i] != NULL && c->inputs[i]->needs_grad;
}

static ls_status check_input(const check *c, const ls_tensor *input, int number) {
    if (input->leaf == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: input %d is the result of an operation, not a leaf", c->call, number);
    }
    if (input->dtype != LS_F64) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: input %d is %s; differences need f64", c->call, number,
                       ls_dtype_name((ls_dtype)input->dtype));
    }
    for (int axis = 0; axis < input->ndim; axis++) {
        if (input->stride[axis] == 0 && input->size[axis] > 1) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: input %d repeats its elements along axis %d", c->call, number, axis);
        }
    }
    return LS_OK;
}

static ls_status check_options(const char *call, const ls_gradcheck_options *given) {
    LS_TRY(ls_option_within(call, "step", given->step, 0, DBL_MAX));
    LS_TRY(ls_option_within(call, "absolute", given->absolute, 0, INFINITY));
    return ls_option_within(call, "relative", given->relative, 0, INFINITY);
}

static ls_status check_arguments(const check *c) {
    if (c->count < 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: count is %d, but must not be negative", c->call, c->count);
    }
    if (c->function == NULL || (c->inputs == NULL && c->count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s is NULL", c->call, c->function == NULL ? "function" : "inputs");
    }
    bool any = false;
    for (int i = 0; i < c->count; i++) {
        if (is_checked(c, i)) {
            any = true;
            LS_TRY(check_input(c, c->inputs[i], i));
        }
    }
    return any || c->ranks != NULL ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "%s: no input requires a gradient", c->call);
}

static ls_status compare_inputs(check *c) {
    for (int i = 0; i < c->count; i++) {
        if (is_checked(c, i)) {
            LS_TRY(compare_input(c, i));
        }
    }
    return LS_OK;
}

/* Lets each rank in turn vary its inputs. The other ranks evaluate the sum the same number of times. */
static ls_status take_turns(check *c) {
    for (int rank = 0; rank < c->ranks->size; rank++) {
        double elements = 0;
        for (int i = 0; i < c->count && rank == c->ranks->rank; i++) {
            elements += is_checked(c, i) ? (double)c->inputs[i]->count : 0;
        }
        LS_TRY(c->ranks->add(c->ranks->user, &elements, 1));
        if (rank == c->ranks->rank) {
            LS_TRY(compare_inputs(c));
            continue;
        }
        for (int64_t i = 0; i < 2 * (int64_t)elements; i++) {
            double sum = 0;
            LS_TRY(evaluate(c, &sum));
        }
    }
    double found = c->found != LS_OK;
    LS_TRY(c->ranks->add(c->ranks->user, &found, 1));
    if (c->found != LS_OK) {
        ls_error_restore(c->found, c->message);
        return c->found;
    }
    return found == 0
               ? LS_OK
               : ls_fail(LS_ERR_MISMATCH,
                         "%s: a gradient on a different rank is wrong: see the error message on that rank", c->call);
}

/* Computes the gradient of every input, then compares every element. */
static ls_status compare_all(check *c) {
    LS_TRY(differentiate(c));
    return c->ranks != NULL ? take_turns(c) : compare_inputs(c);
}

/*
 * Runs the check with temporary leaves on the inputs, so that existing gradients and hooks are unaffected. An input
 * given twice is swapped twice, and restored in the opposite order.
 */
static ls_status compare_with_own_leaves(check *c) {
    const size_t bytes = (size_t)c->count * sizeof(ls_leaf *);
    ls_leaf **leaves = ls_allocate(bytes);
    if (leaves == NULL) {
        return ls_fail_memory(c->call, bytes);
    }
    ls_status status = LS_OK;
    int swapped = 0;
    for (; swapped < c->count && status == LS_OK; swapped++) {
        ls_tensor *input = c->inputs[swapped];
        leaves[swapped] = NULL;
        if (is_checked(c, swapped)) {
            leaves[swapped] = input->leaf;
            input->leaf = NULL;
            status = ls_set_requires_grad(input, true);
        }
    }
    if (status == LS_OK) {
        status = compare_all(c);
    }
    while (swapped-- > 0) {
        if (leaves[swapped] != NULL) {
            ls_tensor *input = c->inputs[swapped];
            if (input->leaf != NULL) {
                input->leaf_free(input->leaf);
            }
            input->leaf = leaves[swapped];
        }
    }
    ls_free(leaves);
    return status;
}

ls_status ls_gradcheck_with(const char *call, const ls_gradcheck_ranks *ranks, ls_function function, ls_tensor **inputs,
                            int count, void *user, const ls_gradcheck_options *options) {
    static const ls_gradcheck_options defaults;
    const ls_gradcheck_options *given = options != NULL ? options : &defaults;
    check state = {.call = call,
                   .ranks = ranks,
                   .function = function,
                   .inputs = inputs,
                   .count = count,
                   .user = user,
                   .step = ls_option(given->step, 0) > 0 ? given->step : 1e-6,
                   .absolute = ls_option(given->absolute, 1e-5),
                   .relative = ls_option(given->relative, 1e-3),
                   .random = ls_random_get_state()};
    ls_status status = check_options(call, given);
    status = status == LS_OK ? check_arguments(&state) : status;
    if (status == LS_OK) {
        status = compare_with_own_leaves(&state);
        ls_random_set_state(state.random);
        ls_tensor_drop(state.weight);
    }
    return status != LS_OK ? (ls_scope_failed(), status) : LS_OK;
}

ls_status ls_gradcheck(ls_function function, ls_tensor **inputs, int count, void *user,
                       const ls_gradcheck_options *options) {
    return ls_gradcheck_with("ls_gradcheck", NULL, function, inputs, count, user, options);
}
