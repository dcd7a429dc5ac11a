/* Gradient clipping, like PyTorch's clip_grad_norm_ and clip_grad_value_. */
#include <math.h>

#include "autograd/captured_step.h"
#include "autograd/ops/ops.h"
#include "comm/public_call.h"
#include "nn/module.h"
#include "optim/divided.h"
#include "optim/optimizer.h"

/* Sets `view` to the elements of the gradient that this rank has, which start at *first. Returns false if it
 * has no elements. */
static bool view_gradient(const ls_tensor *parameter, ls_tensor *view, int64_t *first) {
    const ls_leaf *leaf = parameter->leaf;
    if (leaf == NULL || !leaf->has_gradient) {
        return false;
    }
    ls_shard own = {.count = parameter->count};
    if (leaf->shard) {
        own = leaf->sharding->part(leaf->sharding, parameter);
    }
    *view = ls_stack_view_dense(leaf->gradient, 1, &own.count);
    view->data = (char *)leaf->gradient->data + (size_t)own.first * ls_dtype_size((ls_dtype)view->dtype);
    *first = own.first;
    return own.count > 0;
}

/* ---- the norm ---------------------------------------------------------------------------------------------------- */

/*
 * Returns the number of elements in a block. Only gradients on the CPU are split into blocks. On other devices, where
 * each call has a cost, a gradient is one block.
 */
static int64_t block_size(const ls_tensor *tensor) {
    return ls_tensor_device(tensor)->is_host || tensor->count == 0 ? LS_NORM_BLOCK : tensor->count;
}

static int64_t blocks_of(const ls_tensor *parameter) {
    const int64_t size = block_size(parameter);
    return (parameter->count + size - 1) / size;
}

/* Computes the sums of squares of the blocks of a parameter's gradient. `gradient` contains the elements from
   `first`. */
static ls_status measure_blocks(const ls_tensor *parameter, const ls_tensor *gradient, int64_t first, double *squares) {
    const size_t width = ls_dtype_size((ls_dtype)gradient->dtype);
    const int64_t size = block_size(parameter);
    for (int64_t done = 0; done < gradient->count; done += size) {
        const int64_t left = gradient->count - done;
        const void *block = (const char *)gradient->data + (size_t)done * width;
        LS_TRY(ls_kernels_of(gradient)->dot(ls_stream_of(gradient), (ls_dtype)gradient->dtype,
                                            left < size ? left : size, block, block, squares + (first + done) / size));
    }
    return LS_OK;
}

/* Computes the sums of squares of all gradients of a model, on their device. Leaves blocks without a gradient
   unchanged. */
static ls_status measure_squares(const ls_module *model, double *squares) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        ls_tensor gradient;
        int64_t first;
        if (view_gradient(parameter, &gradient, &first)) {
            LS_TRY(measure_blocks(parameter, &gradient, first, squares));
        }
        squares += blocks_of(parameter);
    }
    return LS_OK;
}

/* Copies these sums to the host, waiting for the device only once. */
static ls_tensor *fetch_squares(ls_module *model) {
    const char *const call = "ls_clip_grad_norm";
    const ls_device *device = NULL;
    if (ls_module_device(model, call, &device) != LS_OK) {
        return NULL;
    }
    int64_t count = 0;
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        count += blocks_of(ls_module_parameter(model, i));
    }
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

/* Adds up the sums of gradients that are sharded over data-parallel ranks. Each block has one owner. */
static ls_status add_shards(const ls_module *model, double *squares, int64_t count) {
    ls_sharding *sharding = NULL;
    double *block = squares;
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        ls_sharding *own = parameter->leaf != NULL && parameter->leaf->shard ? parameter->leaf->sharding : NULL;
        if (own != NULL && sharding != NULL && own->comm != sharding->comm) {
            return ls_fail(LS_ERR_UNSUPPORTED,
                           "ls_clip_grad_norm: the module contains two ls_data_parallel modules that use .zero over "
                           "different communicators: call ls_clip_grad_norm on each of them");
        }
        sharding = own != NULL ? own : sharding;
    }
    for (int i = 0; i < ls_module_parameter_count(model) && sharding != NULL; i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        const bool elsewhere = parameter->leaf != NULL && !parameter->leaf->shard && sharding->rank > 0;
        for (int64_t k = 0; k < blocks_of(parameter); k++, block++) {
            *block = elsewhere ? 0 : *block; /* every rank has these blocks, so only rank 0 counts them */
        }
    }
    return sharding != NULL ? sharding->add(sharding, squares, count) : LS_OK;
}

/* Adds the squares of the blocks to the sums. `squares` is NULL if this rank has failed. */
static ls_status add_squares(const ls_module *model, const double *squares, ls_divided_sums *sums) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        const ls_leaf *leaf = parameter->leaf;
        double *sum = leaf != NULL ? ls_divided_sum("ls_clip_grad_norm", sums, leaf->divisions) : NULL;
        if (leaf != NULL && sum == NULL) {
            return ls_error_status();
        }
        double total = 0;
        for (int64_t k = 0; squares != NULL && k < blocks_of(parameter); k++) {
            total += *squares++;
        }
        if (sum != NULL) {
            *sum += total;
        }
    }
    return LS_OK;
}

static ls_status sum_squares(ls_module *model, ls_divided_sums *sums) {
    ls_tensor *squares = fetch_squares(model);
    if (squares == NULL) {
        return ls_error_status();
    }
    double *numbers = ls_host_data(squares);
    ls_status status = add_shards(model, numbers, squares->count);
    status = status == LS_OK ? add_squares(model, numbers, sums) : status;
    ls_tensor_drop(squares);
    return status;
}

/* ---- clipping ---------------------------------------------------------------------------------------------------- */

/* Fails if a gradient is a 16-bit float, for which the kernels have neither a norm nor a clamp. */
static ls_status check_gradients(const char *call, const ls_module *model) {
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        const ls_leaf *leaf = ls_module_parameter(model, i)->leaf;
        const ls_dtype dtype = leaf != NULL && leaf->has_gradient ? (ls_dtype)leaf->gradient->dtype : LS_F32;
        if (dtype != LS_F32 && dtype != LS_F64) {
            return ls_fail(
                LS_ERR_UNSUPPORTED,
                "%s: the gradient of %s is %s, but must be f32 or f64: keep the parameters in f32 and use ls_autocast",
                call, ls_module_parameter_name(model, i), ls_dtype_name(dtype));
        }
    }
    return LS_OK;
}

/* Fails on all ranks that share the model if a gradient of one rank is a 16-bit float. */
static ls_status agree_on_failure(const ls_module *model, ls_divided_sums *sums) {
    double squares = 0;
    ls_saved_error cause;
    ls_error_save(&cause);
    LS_TRY(add_squares(model, NULL, sums));
    sums->failed = 1;
    LS_TRY(ls_divided_total(sums, &squares));
    return ls_error_put_back(&cause);
}

/* Computes the sum of squares of the gradients of the complete model. */
static ls_status sum_model(ls_module *model, double *squares) {
    const char *const call = "ls_clip_grad_norm";
    ls_divided_sums sums;
    LS_TRY(ls_divided_begin(call, &sums, model));
    if (check_gradients(call, model) != LS_OK) {
        return agree_on_failure(model, &sums);
    }
    LS_TRY(sum_squares(model, &sums));
    LS_TRY(ls_divided_total(&sums, squares));
    return sums.failed == 0
               ? LS_OK
               : ls_fail(LS_ERR_UNSUPPORTED,
                         "%s: a gradient on another rank is bf16 or f16: see the error message on that rank", call);
}

static ls_status clip_norm(ls_module *model, double max_norm, double *norm) {
    double squares = 0;
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_CLIP_GRAD_NORM);
    LS_TRY(ls_public_end(outer, sum_model(model, &squares)));
    const double total = sqrt(squares);
    if (norm != NULL) {
        *norm = total;
    }
    const double factor = max_norm / (total + 1e-6);
    /* also true for NaN, which makes all gradients NaN and so exposes the problem, as in PyTorch */
    const bool scales = !(factor >= 1);
    for (int i = 0; scales && i < ls_module_parameter_count(model); i++) {
        ls_tensor gradient;
        int64_t first;
        if (view_gradient(ls_module_parameter(model, i), &gradient, &first)) {
            LS_TRY(ls_kernels_of(&gradient)->scale(ls_stream_of(&gradient), (ls_dtype)gradient.dtype, gradient.count,
                                                   factor, gradient.data));
            ls_tensor_changed(&gradient, "ls_clip_grad_norm");
        }
    }
    return LS_OK;
}

static ls_status clip_value(ls_module *model, double limit, double *unused) {
    (void)unused;
    LS_TRY(check_gradients("ls_clip_grad_value", model));
    for (int i = 0; i < ls_module_parameter_count(model); i++) {
        ls_tensor gradient;
        int64_t first;
        if (view_gradient(ls_module_parameter(model, i), &gradient, &first)) {
            const ls_tensor *operands[] = {&gradient};
            LS_TRY(ls_kernels_of(&gradient)->clamp(ls_stream_of(&gradient), &gradient, operands,
                                                   (const double[]){-limit, limit}));
            ls_tensor_changed(&gradient, "ls_clip_grad_value");
        }
    }
    return LS_OK;
}

/* ---- captured steps ---------------------------------------------------------------------------------------------- */

/* A call that clips the gradients of a model; a captured step repeats it as a whole. */
typedef struct clip_call {
    const char *name;
    ls_status (*clip)(ls_module *model, double limit, double *norm);
    ls_module *model;
    double limit;
    double *norm; /* or NULL */
} clip_call;

static ls_status run(void *object) {
    const clip_call *call = object;
    return call->clip(call->model, call->limit, call->norm);
}

static ls_status check_model(void *object, int unused) {
    (void)unused;
    return ls_module_is_here(object)
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "ls_step_replay: the model whose gradients the step clips was freed: capture the "
                         "step again");
}

static ls_status capture(ls_capture *capture, const clip_call *call) {
    if (call->norm != NULL) {
        ls_capture_refuse(capture, call->name,
                          "stores the norm for the host, which a replay does not: pass NULL for the norm");
    }
    clip_call *kept = ls_capture_allocate(capture, sizeof *kept);
    if (kept != NULL) {
        *kept = *call;
    }
    ls_capture_add_guard(
        capture, &(ls_capture_guard){.check = check_model, .hold = ls_module_hold_record, .object = call->model});
    ls_capture_call_begin(capture);
    const ls_status status = call->clip(call->model, call->limit, call->norm);
    ls_capture_call_end(capture, status, run, kept);
    return status;
}

static ls_status clip(const clip_call *call) {
    if (call->model == NULL || !(call->limit > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the model is NULL or the limit %g is not positive", call->name,
                       call->limit);
    }
    if (!ls_module_is_here(call->model)) {
        return ls_error_status();
    }
    ls_capture *record = ls_thread_present != NULL ? ls_thread_present->capture : NULL;
    return __builtin_expect(record != NULL, 0) ? capture(record, call)
                                               : call->clip(call->model, call->limit, call->norm);
}

ls_status ls_clip_grad_norm(ls_module *model, double max_norm, double *norm) {
    return clip(
        &(clip_call){.name = "ls_clip_grad_norm", .clip = clip_norm, .model = model, .limit = max_norm, .norm = norm});
}

ls_status ls_clip_grad_value(ls_module *model, double limit) {
    return clip(&(clip_call){.name = "ls_clip_grad_value", .clip = clip_value, .model = model, .limit = limit});
}
