/* Gradient clipping, like PyTorch's clip_grad_norm_ and clip_grad_value_. */
#include <math.h>

#include "nn/module.h"
#include "optim/divided.h"
#include "optim/optimizer.h"

/* Returns the next gradient of the model from parameter *index on; NULL at the end. */
static ls_tensor *next_gradient(const ls_module *model, int *index) {
    while (*index < ls_module_parameter_count(model)) {
        ls_tensor *gradient = ls_grad(ls_module_parameter(model, (*index)++));
        if (gradient != NULL) {
            return gradient;
        }
    }
    return NULL;
}

/* Computes the sum of squares of each parameter's gradient, on the device; 0 without a gradient. */
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

/* Copies these sums to the host, with one wait. */
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

static ls_status add_squares(const ls_module *model, const double *squares, ls_divided_sums *sums) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        if (leaf == NULL) {
            continue;
        }
        double *sum = ls_divided_sum("ls_clip_grad_norm", sums, leaf->divisions);
        if (sum == NULL) {
            return ls_error_status();
        }
        *sum += squares[i];
    }
    return LS_OK;
}

static ls_status sum_squares(ls_module *model, ls_divided_sums *sums) {
    ls_tensor *squares = fetch_squares(model);
    if (squares == NULL) {
        return ls_error_status();
    }
    const ls_status status = add_squares(model, ls_host_data(squares), sums);
    ls_tensor_drop(squares);
    return status;
}

ls_status ls_clip_grad_norm(ls_module *model, double max_norm, double *norm) {
    if (model == NULL || !(max_norm > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_clip_grad_norm: the model is NULL or the norm %g is not positive",
                       max_norm);
    }
    ls_divided_sums sums = {.count = 0};
    double squares = 0;
    LS_TRY(sum_squares(model, &sums));
    LS_TRY(ls_divided_total(&sums, &squares));
    const double total = sqrt(squares);
    if (norm != NULL) {
        *norm = total;
    }
    const double factor = max_norm / (total + 1e-6);
    /* also for NaN: it makes all gradients NaN, which shows the problem, as in PyTorch */
    const bool scales = !(factor >= 1);
    ls_tensor *gradient;
    for (int index = 0; scales && (gradient = next_gradient(model, &index)) != NULL;) {
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
