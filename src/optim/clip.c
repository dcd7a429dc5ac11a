/* Gradient clipping, as PyTorch's clip_grad_norm_ and clip_grad_value_. */
#include <math.h>

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

ls_status ls_clip_grad_norm(ls_module *model, double max_norm, double *norm) {
    if (model == NULL || !(max_norm > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_clip_grad_norm: the model is NULL or the norm %g is not positive",
                       max_norm);
    }
    double squares = 0;
    ls_tensor *gradient;
    for (int index = 0; (gradient = next_gradient(model, &index)) != NULL;) {
        double part = 0;
        LS_TRY(ls_kernels_of(gradient)->dot(ls_stream_of(gradient), (ls_dtype)gradient->dtype, gradient->count,
                                            gradient->data, gradient->data, &part));
        squares += part;
    }
    const double total = sqrt(squares);
    if (norm != NULL) {
        *norm = total;
    }
    const double factor = max_norm / (total + 1e-6);
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
