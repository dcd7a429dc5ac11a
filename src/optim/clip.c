/* Gradient clipping, as PyTorch's clip_grad_norm_ and clip_grad_value_. */
#include <math.h>

#include "nn/module.h"
#include "optim/optimizer.h"

/* The next gradient of the model from parameter *index on, NULL at the end. */
static ls_tensor *next_gradient(const ls_module *model, int *index) {
    while (*index < ls_module_parameter_count(model)) {
        ls_tensor *gradient = ls_grad(ls_module_parameter(model, (*index)++));
        if (gradient != NULL) {
            return gradient;
        }
    }
    return NULL;
}

/* Squares of what is divided over the same ranks, in the same way. */
typedef struct square_sum {
    ls_division divisions[LS_DIVISIONS];
    double squares;
} square_sum;

enum { MOST_SUMS = 16 };

/* The sum that the parameter is added to: all that are there before a model's gradients are looked at, for other ranks
 * may have gradients where this one has none. NULL: too many. */
static square_sum *find_sum(square_sum *sums, int *count, const ls_division *divisions) {
    for (int i = 0; i < *count; i++) {
        const ls_division *own = sums[i].divisions;
        if (own[LS_DIVIDED_TENSOR].user == divisions[LS_DIVIDED_TENSOR].user &&
            own[LS_DIVIDED_MODEL].user == divisions[LS_DIVIDED_MODEL].user) {
            return &sums[i];
        }
    }
    if (*count == MOST_SUMS) {
        return NULL;
    }
    square_sum *sum = &sums[(*count)++];
    *sum = (square_sum){.squares = 0};
    for (int i = 0; i < LS_DIVISIONS; i++) {
        sum->divisions[i] = divisions[i];
    }
    return sum;
}

/* The squares of each parameter's gradient, on the device, 0 where there is none. */
static ls_status measure_squares(const ls_module *model, double *squares) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        if (leaf != NULL && leaf->has_gradient) {
            const ls_tensor *gradient = leaf->gradient;
            LS_TRY(ls_kernels_of(gradient)->dot(ls_stream_of(gradient), (ls_dtype)gradient->dtype, gradient->count,
                                                gradient->data, gradient->data, squares + i));
        }
    }
    return LS_OK;
}

/* The same on the host: they are waited for once. */
static ls_tensor *fetch_squares(ls_module *model) {
    const char *const call = "ls_clip_grad_norm";
    const ls_device *device = NULL;
    if (ls_module_device(model, call, &device) != LS_OK) {
        return NULL;
    }
    const int64_t count = ls_module_parameter_count(model);
    ls_tensor *squares = ls_tensor_new_owned(call, device, 1, &count, LS_F64);
    if (squares == NULL || ls_kernels_of(squares)->fill(ls_stream_of(squares), squares, 0) != LS_OK ||
        measure_squares(model, squares->data) != LS_OK) {
        ls_tensor_drop(squares);
        return NULL;
    }
    ls_tensor *fetched = ls_tensor_on_device(call, squares, &ls_cpu);
    ls_tensor_drop(squares);
    return fetched;
}

static ls_status add_squares(const ls_module *model, const double *squares, square_sum *sums, int *count) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        if (leaf == NULL) {
            continue;
        }
        square_sum *sum = find_sum(sums, count, leaf->divisions);
        if (sum == NULL) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "ls_clip_grad_norm: the model is divided over more than %d groups of ranks", MOST_SUMS);
        }
        sum->squares += squares[i];
    }
    return LS_OK;
}

static ls_status sum_squares(ls_module *model, square_sum *sums, int *count) {
    ls_tensor *squares = fetch_squares(model);
    if (squares == NULL) {
        return ls_error_status();
    }
    const ls_status status = add_squares(model, ls_host_data(squares), sums, count);
    ls_tensor_drop(squares);
    return status;
}

/*
 * Adds up over the ranks: first what is divided tensor by tensor, then what the model's parts, whole and divided
 * tensors alike, have together.
 */
static ls_status add_over_ranks(square_sum *sums, int count, double *total) {
    *total = 0;
    for (int i = 0; i < count; i++) {
        const ls_division *division = &sums[i].divisions[LS_DIVIDED_TENSOR];
        LS_TRY(division->add != NULL ? division->add(division->user, &sums[i].squares) : LS_OK);
    }
    for (int i = 0; i < count; i++) {
        const ls_division division = sums[i].divisions[LS_DIVIDED_MODEL];
        double squares = 0;
        for (int k = i; k < count; k++) {
            if (sums[k].divisions[LS_DIVIDED_MODEL].user == division.user) {
                squares += sums[k].squares;
                sums[k] = (square_sum){0}; /* counted */
            }
        }
        LS_TRY(division.add != NULL ? division.add(division.user, &squares) : LS_OK);
        *total += squares;
    }
    return LS_OK;
}

ls_status ls_clip_grad_norm(ls_module *model, double max_norm, double *norm) {
    if (model == NULL || !(max_norm > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_clip_grad_norm: the model is NULL or the norm %g is not positive",
                       max_norm);
    }
    square_sum sums[MOST_SUMS];
    int count = 0;
    double squares = 0;
    LS_TRY(sum_squares(model, sums, &count));
    LS_TRY(add_over_ranks(sums, count, &squares));
    const double total = sqrt(squares);
    if (norm != NULL) {
        *norm = total;
    }
    const double factor = max_norm / (total + 1e-6);
    ls_tensor *gradient;
    for (int index = 0; factor < 1 && (gradient = next_gradient(model, &index)) != NULL;) {
        LS_TRY(ls_kernels_of(gradient)->scale(ls_stream_of(gradient), (ls_dtype)gradient->dtype, gradient->count,
                                              factor, gradient->data));
        ls_tensor_changed(gradient, "ls_clip_grad_norm");
    }
    return LS_OK;
}

ls_status ls_clip_grad_value(ls_module *model, double limit) {
    if (model == NULL || !(limit > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_clip_grad_value: the model is NULL or the limit %g is not positive", limit);
    }
    ls_tensor *gradient;
    for (int index = 0; (gradient = next_gradient(model, &index)) != NULL;) {
        const ls_tensor *operands[] = {gradient};
        LS_TRY(ls_kernels_of(gradient)->clamp(ls_stream_of(gradient), gradient, operands,
                                              (const double[]){-limit, limit}));
        ls_tensor_changed(gradient, "ls_clip_grad_value");
    }
    return LS_OK;
}
