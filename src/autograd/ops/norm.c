#include "autograd/batch.h"
#include "autograd/op.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"

/* The inputs; the inputs common to both norms come first. batch_norm adds the statistics that it computed. */
enum { X, WEIGHT, BIAS, MEAN, RSTD };

static ls_status check_epsilon(const char *call, double epsilon) {
    if (!(epsilon >= 0.0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: epsilon is %g, but must not be negative", call, epsilon);
    }
    return LS_OK;
}

/* Outputs for the gradients of a norm; NULL for gradients that are not required. */
typedef struct norm_gradients {
    ls_tensor *dx, *weight, *bias;
} norm_gradients;

static ls_status open_gradients(ls_node *node, norm_gradients *d) {
    const ls_tensor *x = node->inputs[X];
    *d = (norm_gradients){0};
    if (ls_wants(node, WEIGHT)) {
        d->weight = ls_gradient_place_zeroed(node, WEIGHT);
        LS_TRY(ls_made(d->weight));
    }
    if (ls_wants(node, BIAS)) {
        d->bias = ls_gradient_place_zeroed(node, BIAS);
        LS_TRY(ls_made(d->bias));
    }
    if (ls_wants(node, X)) {
        d->dx = ls_tensor_like(node->op->name, x, (ls_dtype)x->dtype);
        LS_TRY(ls_made(d->dx));
    }
    return LS_OK;
}

typedef ls_status (*norm_rule)(const ls_node *node, const ls_tensor *g, const norm_gradients *d);

static ls_status norm_backward(ls_node *node, ls_tensor *gradient, norm_rule rule) {
    norm_gradients d;
    LS_TRY(open_gradients(node, &d));
    ls_tensor *g = ls_dense(node->op->name, gradient);
    LS_TRY(ls_made(g));
    const ls_status status = rule(node, g, &d);
    ls_tensor_drop(g);
    LS_TRY(status);
    return d.dx != NULL ? ls_accumulate(node, X, d.dx) : LS_OK;
}

/* ---- layer_norm -------------------------------------------------------------------------------------------------- */

/* Indices in saved[] of the node, and in integer[] of the parameters. */
enum { SAVED_MEAN, SAVED_RSTD };
enum { WIDTH, AXES, NOT_CENTERED };

static ls_status layer_norm_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[X];
    const int64_t width = call->parameters->integer[WIDTH];
    const int64_t rows = width > 0 ? x->count / width : 0;
    for (int i = call->parameters->integer[NOT_CENTERED] != 0 ? SAVED_RSTD : SAVED_MEAN; i <= SAVED_RSTD; i++) {
        call->saved[i] = ls_tensor_new_owned(call->op->name, ls_tensor_device(x), 1, &rows, (ls_dtype)x->dtype);
        LS_TRY(ls_made(call->saved[i]));
    }
    return ls_kernels_of(x)->layer_norm(ls_stream_of(x), call->output, call->saved[SAVED_MEAN], call->saved[SAVED_RSTD],
                                        x, width, call->inputs[WEIGHT], call->inputs[BIAS],
                                        call->parameters->number[0]);
}

static ls_status layer_norm_rule(const ls_node *node, const ls_tensor *g, const norm_gradients *d) {
    return ls_kernels_of(g)->layer_norm_backward(ls_stream_of(g), d->dx, d->weight, d->bias, g, node->inputs[X],
                                                 node->parameters.integer[WIDTH], node->inputs[WEIGHT],
                                                 node->saved[SAVED_MEAN], node->saved[SAVED_RSTD]);
}

static ls_status layer_norm_backward(ls_node *node, ls_tensor *gradient) {
    return norm_backward(node, gradient, layer_norm_rule);
}

static ls_samples_use layer_norm_samples(ls_samples_call *call) {
    const int kept = call->inputs[X]->ndim - (int)call->parameters->integer[AXES];
    return call->axis >= kept ? LS_SAMPLES_MIXED : LS_SAMPLES_KEPT;
}

static const ls_op layer_norm_op = {.name = "ls_layer_norm",
                                    .shape = ls_shape_as_input,
                                    .forward = layer_norm_forward,
                                    .backward = layer_norm_backward,
                                    .over_samples = layer_norm_samples,
                                    .reads = {[X] = 1U << X | 1U << WEIGHT, [WEIGHT] = 1U << X},
                                    .optional = 1U << WEIGHT | 1U << BIAS};

static const ls_op rms_norm_op = {.name = "ls_rms_norm",
                                  .shape = ls_shape_as_input,
                                  .forward = layer_norm_forward,
                                  .backward = layer_norm_backward,
                                  .over_samples = layer_norm_samples,
                                  .reads = {[X] = 1U << X | 1U << WEIGHT, [WEIGHT] = 1U << X},
                                  .optional = 1U << WEIGHT | 1U << BIAS};

/* Returns whether the sizes of `part` (which may be NULL) are the last `axes` sizes of x. */
static bool ends(const ls_tensor *x, const ls_tensor *part, int axes) {
    bool fits = part == NULL || part->ndim == axes;
    for (int i = 0; part != NULL && fits && i < axes; i++) {
        fits = part->size[i] == x->size[x->ndim - axes + i];
    }
    return fits;
}

static ls_status check_layer_norm(const char *call, ls_tensor *const *inputs, int axes, double epsilon) {
    const ls_tensor *x = inputs[X];
    LS_TRY(ls_check_floating(call, inputs, BIAS + 1));
    LS_TRY(check_epsilon(call, epsilon));
    if (axes < 1 || axes > x->ndim) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: cannot normalize over the last %d axes of %s", call, axes,
                       LS_SHAPE_TEXT(x));
    }
    for (int i = WEIGHT; i <= BIAS; i++) {
        if (!ends(x, inputs[i], axes)) {
            return ls_fail(LS_ERR_SHAPE, "%s: %s is %s, but must have the shape of the last %d axes of %s", call,
                           i == WEIGHT ? "weight" : "bias", LS_SHAPE_TEXT(inputs[i]), axes, LS_SHAPE_TEXT(x));
        }
    }
    return LS_OK;
}

static ls_tensor *norm_rows(const ls_op *op, ls_tensor *x, int axes, ls_tensor *weight, ls_tensor *bias,
                            double epsilon) {
    ls_tensor *const inputs[] = {[X] = x, [WEIGHT] = weight, [BIAS] = bias};
    if (x == NULL) {
        return ls_apply(op, inputs, 3, NULL); /* reports the error */
    }
    if (axes == 0) {
        axes = weight != NULL ? weight->ndim : bias != NULL ? bias->ndim : 0;
    }
    if (check_layer_norm(op->name, inputs, axes, epsilon) != LS_OK) {
        return ls_scope_failed();
    }
    ls_op_parameters parameters = {.number = {epsilon},
                                   .integer = {[WIDTH] = 1, [AXES] = axes, [NOT_CENTERED] = op == &rms_norm_op}};
    for (int i = x->ndim - axes; i < x->ndim; i++) {
        parameters.integer[WIDTH] *= x->size[i];
    }
    return ls_apply_dense(op, inputs, 3, 3, &parameters, 1U << X | 1U << WEIGHT | 1U << BIAS);
}

ls_tensor *ls_layer_norm(ls_tensor *x, int axes, ls_tensor *weight, ls_tensor *bias, double epsilon) {
    return norm_rows(&layer_norm_op, x, axes, weight, bias, epsilon);
}

ls_tensor *ls_rms_norm(ls_tensor *x, int axes, ls_tensor *weight, double epsilon) {
    return norm_rows(&rms_norm_op, x, axes, weight, NULL, epsilon);
}

/* ---- batch_norm -------------------------------------------------------------------------------------------------- */

/* Indices in integer[] and number[] of the parameters. If ranks share the batch, the context is the ls_batch_part. */
enum { TRAINING };
enum { VALUES_A_CHANNEL }; /* number of values per channel on all ranks together */

/* Views x [n, channels, ...] in the kernels' shape [n, channels, inner]. */
static ls_tensor view_by_channels(const ls_tensor *x) {
    int64_t inner = 1;
    for (int i = 2; i < x->ndim; i++) {
        inner *= x->size[i];
    }
    return ls_stack_view_dense(x, 3, (const int64_t[]){x->size[0], x->size[1], inner});
}

static ls_status batch_norm_forward(ls_op_call *call) {
    ls_tensor *const *inputs = call->inputs;
    const ls_tensor x = view_by_channels(inputs[X]);
    ls_tensor y = view_by_channels(call->output);
    return ls_kernels_of(&x)->batch_norm(ls_stream_of(&x), &y, &x, inputs[MEAN], inputs[RSTD], inputs[WEIGHT],
                                         inputs[BIAS]);
}

static ls_status batch_norm_rule(const ls_node *node, const ls_tensor *gradient, const norm_gradients *d) {
    const ls_tensor x = view_by_channels(node->inputs[X]);
    const ls_tensor g = view_by_channels(gradient);
    ls_tensor dx;
    if (d->dx != NULL) {
        dx = view_by_channels(d->dx);
    }
    return ls_kernels_of(&g)->batch_norm_backward(ls_stream_of(&g), d->dx != NULL ? &dx : NULL, d->weight, d->bias, &g,
                                                  &x, node->inputs[MEAN], node->inputs[RSTD], node->inputs[WEIGHT],
                                                  node->parameters.integer[TRAINING] != 0);
}

static ls_status batch_norm_backward(ls_node *node, ls_tensor *gradient) {
    return norm_backward(node, gradient, batch_norm_rule);
}

static ls_samples_use batch_norm_samples(ls_samples_call *call) {
    return call->parameters->integer[TRAINING] != 0 ? LS_SAMPLES_MIXED : LS_SAMPLES_KEPT;
}

static const ls_op batch_norm_op = {
    .name = "ls_batch_norm",
    .shape = ls_shape_as_input,
    .forward = batch_norm_forward,
    .backward = batch_norm_backward,
    .over_samples = batch_norm_samples,
    .reads = {[X] = 1U << X | 1U << WEIGHT | 1U << MEAN | 1U << RSTD, [WEIGHT] = 1U << X | 1U << MEAN | 1U << RSTD},
    .optional = 1U << WEIGHT | 1U << BIAS};

const ls_op *const ls_norm_ops[] = {&layer_norm_op, &rms_norm_op, &batch_norm_op, NULL};

/* ---- batch_norm of a batch that is distributed over ranks -------------------------------------------------------- */

static ls_status convert(ls_tensor *y, const ls_tensor *x) {
    const ls_kernels *kernels = ls_kernels_of(y);
    return (y->dtype == x->dtype ? kernels->copy : kernels->cast)(ls_stream_of(y), y, x);
}

/* Sums the numbers, f64 and dense, over ranks. */
static ls_status add_over_ranks(ls_batch_part *part, const ls_tensor *numbers) {
    ls_host_view view;
    LS_TRY(ls_host_view_begin(&view, numbers, LS_HOST_READ | LS_HOST_WRITE));
    return ls_host_view_end(&view, part->add(part, view.memory, numbers->count));
}

/* Computes d += sums, in the dtype of d. The sums are multiplied by `factor`, unless it is NULL. */
static ls_status add_sums(ls_tensor *d, const ls_tensor *sums, const ls_tensor *factor) {
    const ls_kernels *kernels = ls_kernels_of(d);
    ls_stream *stream = ls_stream_of(d);
    ls_tensor *own = ls_tensor_like_owned(batch_norm_op.name, d, (ls_dtype)d->dtype);
    LS_TRY(ls_made(own));
    ls_status status = convert(own, sums);
    if (status == LS_OK && factor != NULL) {
        status = kernels->mul(stream, own, (const ls_tensor *[]){own, factor}, NULL);
    }
    if (status == LS_OK) {
        status = kernels->add(stream, d, (const ls_tensor *[]){d, own}, NULL);
    }
    ls_tensor_drop(own);
    return status;
}

/*
 * Indices in saved[] of the node of shared_norm_op during a backward pass. Each tensor contains the sum of g for each
 * channel, then the sum of (x - mean) g for each channel. The sums of all ranks are followed by three numbers: how many
 * ranks have a gradient in this pass, how many may have one in a later pass, and on how many the pass has failed.
 */
enum { OWN_SUMS, ALL_SUMS };
enum { SUMS_A_CHANNEL = 2 };
enum { REACHED_NOW, REACHED_LATER, REACH_FAILED, REACHES };

static void drop_sums(ls_node *node) {
    for (int i = OWN_SUMS; i <= ALL_SUMS; i++) {
        ls_tensor_drop(node->saved[i]);
        node->saved[i] = NULL;
    }
}

static ls_tensor *new_sums(const ls_node *node, int64_t more) {
    const ls_tensor *x = node->inputs[X];
    const int64_t size = SUMS_A_CHANNEL * x->size[1] + more;
    return ls_tensor_new_owned(node->op->name, ls_tensor_device(x), 1, &size, LS_F64);
}

/* Computes this rank's sums, which are zero without a gradient. */
static ls_status compute_sums(const ls_node *node, ls_tensor *sums) {
    const ls_kernels *kernels = ls_kernels_of(sums);
    ls_stream *stream = ls_stream_of(sums);
    const int64_t channels = node->inputs[X]->size[1];
    if (node->gradient == NULL) {
        return kernels->fill(stream, sums, 0);
    }
    ls_tensor *dense = ls_dense(node->op->name, node->gradient);
    LS_TRY(ls_made(dense));
    const ls_tensor x = view_by_channels(node->inputs[X]), g = view_by_channels(dense);
    ls_tensor of_g = ls_stack_view_slice(sums, 0, 0, channels, 1);
    ls_tensor of_product = ls_stack_view_slice(sums, 0, channels, channels, 1);
    ls_status status = kernels->batch_norm_sums(stream, &of_g, NULL, &g, NULL);
    if (status == LS_OK) {
        status = kernels->batch_norm_sums(stream, &of_product, &g, &x, node->inputs[MEAN]);
    }
    ls_tensor_drop(dense);
    return status;
}

/* Sums over all ranks, and in the same message agrees on the reach of the node. */
static ls_status add_sums_over_ranks(ls_node *node, ls_reach *reach) {
    const ls_tensor *own = node->saved[OWN_SUMS], *all = node->saved[ALL_SUMS];
    ls_tensor sums = ls_stack_view_slice(all, 0, 0, own->count, 1);
    LS_TRY(ls_kernels_of(all)->copy(ls_stream_of(all), &sums, own));
    ls_host_view view;
    LS_TRY(ls_host_view_begin(&view, all, LS_HOST_READ | LS_HOST_WRITE));
    double *numbers = view.memory, *ranks = numbers + own->count;
    ls_batch_part *part = node->parameters.context;
    ranks[REACHED_NOW] = *reach == LS_REACH_NOW;
    ranks[REACHED_LATER] = *reach == LS_REACH_LATER;
    ranks[REACH_FAILED] = *reach == LS_REACH_FAILED;
    ls_status status = part->add(part, numbers, all->count);
    if (status == LS_OK && ranks[REACH_FAILED] > 0) {
        status = part->share_cause(part, *reach == LS_REACH_FAILED);
    }
    if (status == LS_OK) {
        *reach = ranks[REACHED_NOW] > 0 ? LS_REACH_NOW : ranks[REACHED_LATER] > 0 ? LS_REACH_LATER : LS_REACH_NEVER;
    }
    return ls_host_view_end(&view, status);
}

static ls_status shared_norm_agree(ls_node *node, ls_reach *reach) {
    drop_sums(node);
    node->saved[OWN_SUMS] = new_sums(node, 0);
    node->saved[ALL_SUMS] = node->saved[OWN_SUMS] != NULL ? new_sums(node, REACHES) : NULL;
    ls_status status = ls_made(node->saved[ALL_SUMS]);
    if (status == LS_OK) {
        if (compute_sums(node, node->saved[OWN_SUMS]) != LS_OK) {
            *reach = LS_REACH_FAILED; /* the other ranks are waiting for this rank */
        }
        status = add_sums_over_ranks(node, reach);
    }
    if (status != LS_OK || *reach != LS_REACH_NOW) {
        drop_sums(node);
    }
    return status;
}

/* The gradients of weight and bias use this rank's sums; the gradient of x uses the sums of all ranks. */
static ls_status shared_norm_rule(const ls_node *node, const ls_tensor *gradient, const norm_gradients *d) {
    ls_tensor *const *inputs = node->inputs;
    const int64_t channels = inputs[X]->size[1];
    const ls_tensor *own = node->saved[OWN_SUMS], *all = node->saved[ALL_SUMS];
    const ls_tensor own_of_g = ls_stack_view_slice(own, 0, 0, channels, 1);
    const ls_tensor own_of_product = ls_stack_view_slice(own, 0, channels, channels, 1);
    LS_TRY(d->weight != NULL ? add_sums(d->weight, &own_of_product, inputs[RSTD]) : LS_OK);
    LS_TRY(d->bias != NULL ? add_sums(d->bias, &own_of_g, NULL) : LS_OK);
    if (d->dx == NULL) {
        return LS_OK;
    }
    const ls_kernels *kernels = ls_kernels_of(gradient);
    ls_stream *stream = ls_stream_of(gradient);
    LS_TRY(kernels->scale(stream, LS_F64, SUMS_A_CHANNEL * channels, 1 / node->parameters.number[VALUES_A_CHANNEL],
                          all->data));
    const ls_tensor x = view_by_channels(inputs[X]), g = view_by_channels(gradient);
    const ls_tensor of_g = ls_stack_view_slice(all, 0, 0, channels, 1);
    const ls_tensor of_product = ls_stack_view_slice(all, 0, channels, channels, 1);
    ls_tensor dx = view_by_channels(d->dx);
    return kernels->batch_norm_dx(stream, &dx, &g, &x, inputs[MEAN], inputs[RSTD], inputs[WEIGHT], &of_g, &of_product);
}

static ls_status shared_norm_backward(ls_node *node, ls_tensor *gradient) {
    const ls_status status = norm_backward(node, gradient, shared_norm_rule);
    drop_sums(node);
    return status;
}

static void hold_part(void *context, bool hold) {
    ls_batch_part *part = context;
    if (part->hold != NULL) {
        part->hold(part, hold);
    }
}

/* Samples stay separate, because the statistics cover the global batch. */
static ls_samples_use shared_norm_samples(ls_samples_call *call) {
    return call->axis != 1 ? LS_SAMPLES_KEPT : LS_SAMPLES_UNKNOWN;
}

static const ls_op shared_norm_op = {
    .name = "ls_batch_norm",
    .shape = ls_shape_as_input,
    .forward = batch_norm_forward,
    .backward = shared_norm_backward,
    .over_samples = shared_norm_samples,
    .reads = {[X] = 1U << X | 1U << WEIGHT | 1U << MEAN | 1U << RSTD, [WEIGHT] = 1U << X | 1U << MEAN | 1U << RSTD},
    .hold = hold_part,
    .communicates = true,
    .agree = shared_norm_agree,
    .optional = 1U << WEIGHT | 1U << BIAS};

/*
 * Computes mean and (biased) variance over all ranks in two passes, as for one batch: the deviations are from the
 * global mean, which avoids cancellation. `room` has space for one number per channel, plus one.
 */
static ls_status sum_over_ranks(ls_batch_part *part, const ls_tensor *x, ls_tensor *mean, ls_tensor *variance,
                                ls_tensor *room, double *values) {
    const ls_kernels *kernels = ls_kernels_of(x);
    ls_stream *stream = ls_stream_of(x);
    const int64_t channels = mean->count;
    ls_tensor sums = ls_stack_view_slice(room, 0, 0, channels, 1), last = ls_stack_view_slice(room, 0, channels, 1, 1);
    LS_TRY(kernels->batch_norm_sums(stream, &sums, NULL, x, NULL));
    LS_TRY(kernels->fill(stream, &last, *values));
    LS_TRY(add_over_ranks(part, room));
    LS_TRY(ls_tensor_fetch(&last, 0, values));
    if (*values == 1 && channels > 0) {
        return ls_fail(LS_ERR_SHAPE, "ls_batch_norm: training needs more than one value per channel; all ranks "
                                     "together have 1");
    }
    const double scale = *values > 0 ? 1 / *values : 0;
    LS_TRY(kernels->scale(stream, LS_F64, channels, scale, sums.data));
    LS_TRY(convert(mean, &sums));
    LS_TRY(kernels->batch_norm_sums(stream, &sums, NULL, x, mean));
    LS_TRY(add_over_ranks(part, &sums));
    LS_TRY(kernels->scale(stream, LS_F64, channels, scale, sums.data));
    return convert(variance, &sums);
}

/* Replaces `*values`, this rank's number of values per channel, with the number on all ranks. */
static ls_status shared_statistics(ls_batch_part *part, const ls_tensor *x, ls_tensor *mean, ls_tensor *variance,
                                   double *values) {
    const int64_t size = mean->count + 1;
    ls_tensor *room = ls_tensor_new_owned(batch_norm_op.name, ls_tensor_device(x), 1, &size, LS_F64);
    LS_TRY(ls_made(room));
    const ls_status status = sum_over_ranks(part, x, mean, variance, room, values);
    ls_tensor_drop(room);
    return status;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

/* The arguments of one call. */
typedef struct batch_norm {
    ls_tensor *x, *running_mean, *running_var, *weight, *bias;
    bool training;
    double momentum, epsilon;
    ls_batch_part *part; /* the batch part if ranks share the batch in training; otherwise NULL */
} batch_norm;

static ls_status check_channels(const batch_norm *norm) {
    static const char *const names[] = {"running_mean", "running_var", "weight", "bias"};
    const ls_tensor *const parts[] = {norm->running_mean, norm->running_var, norm->weight, norm->bias};
    const ls_dtype compute = ls_compute_dtype((ls_dtype)norm->x->dtype);
    for (int i = 0; i < 4; i++) {
        const ls_tensor *part = parts[i];
        if (part == NULL) {
            continue;
        }
        if (part->ndim != 1 || part->size[0] != norm->x->size[1]) {
            return ls_fail(LS_ERR_SHAPE, "ls_batch_norm: %s is %s, but must be [%lld] for %s", names[i],
                           LS_SHAPE_TEXT(part), (long long)norm->x->size[1], LS_SHAPE_TEXT(norm->x));
        }
        const bool own =
            i >= 2 && part->dtype == norm->x->dtype; /* weight and bias may be 16-bit floats if x has that dtype */
        if (part->dtype != compute && !own) {
            return ls_fail(LS_ERR_SHAPE, "ls_batch_norm: %s is %s, but must be %s for x of %s", names[i],
                           ls_dtype_name((ls_dtype)part->dtype), ls_dtype_name(compute),
                           ls_dtype_name((ls_dtype)norm->x->dtype));
        }
        if (i < 2 && !part->contiguous) {
            return ls_fail(LS_ERR_SHAPE, "ls_batch_norm: %s is changed in place and must be contiguous", names[i]);
        }
        if (ls_tensor_device(part) != ls_tensor_device(norm->x)) {
            return ls_fail(LS_ERR_ARGUMENT, "ls_batch_norm: %s is on %s, but x is on %s", names[i],
                           ls_tensor_device(part)->name, ls_tensor_device(norm->x)->name);
        }
    }
    return LS_OK;
}

static ls_status check_batch_norm(const batch_norm *norm) {
    const ls_tensor *x = norm->x;
    LS_TRY(ls_check_floating(batch_norm_op.name, &norm->x, 1));
    LS_TRY(check_epsilon(batch_norm_op.name, norm->epsilon));
    if (x->ndim < 2) {
        return ls_fail(LS_ERR_SHAPE, "ls_batch_norm: x is %s, but must be [n, channels, ...]", LS_SHAPE_TEXT(x));
    }
    LS_TRY(check_channels(norm));
    if ((norm->running_mean == NULL) != (norm->running_var == NULL)) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_batch_norm: give both running_mean and running_var, or neither");
    }
    if (!norm->training && norm->running_mean == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_batch_norm: running_mean and running_var are needed if training is false");
    }
    if (norm->training && norm->part == NULL && x->size[1] > 0 && x->count / x->size[1] == 1) {
        return ls_fail(LS_ERR_SHAPE, "ls_batch_norm: training needs more than one value per channel; x is %s",
                       LS_SHAPE_TEXT(x));
    }
    return LS_OK;
}

/* Computes running += momentum * (present - running). */
static ls_status move_running(ls_tensor *running, const ls_tensor *present, double momentum, double correction) {
    const ls_kernels *kernels = ls_kernels_of(running);
    ls_stream *stream = ls_stream_of(running);
    const ls_dtype dtype = (ls_dtype)running->dtype;
    ls_tensor_changed(running, batch_norm_op.name);
    LS_TRY(kernels->scale(stream, dtype, running->count, 1.0 - momentum, running->data));
    return kernels->axpy(stream, dtype, running->count, momentum * correction, present->data, running->data);
}

/* Computes rstd = 1 / sqrt(variance + epsilon). Both may be the same tensor. */
static ls_status take_rstd(ls_tensor *rstd, const ls_tensor *variance, double epsilon) {
    const ls_kernels *kernels = ls_kernels_of(rstd);
    ls_stream *stream = ls_stream_of(rstd);
    LS_TRY(kernels->add_number(stream, rstd, &variance, &epsilon));
    return kernels->pow_number(stream, rstd, (const ls_tensor *[]){rstd}, (const double[]){-0.5});
}

/* For an empty batch, the statistics are zeros, and the running statistics are unchanged. */
static ls_status batch_statistics(const batch_norm *norm, const ls_tensor *dense, ls_tensor *mean, ls_tensor *rstd,
                                  double *samples) {
    const ls_tensor x = view_by_channels(dense);
    *samples = (double)x.size[0] * (double)x.size[2];
    if (norm->part != NULL) {
        LS_TRY(shared_statistics(norm->part, &x, mean, rstd, samples));
    } else if (*samples > 0) {
        LS_TRY(ls_kernels_of(&x)->batch_norm_statistics(ls_stream_of(&x), mean, rstd, &x));
    } else {
        LS_TRY(ls_kernels_of(mean)->fill(ls_stream_of(mean), mean, 0));
        LS_TRY(ls_kernels_of(rstd)->fill(ls_stream_of(rstd), rstd, 0));
    }
    if (norm->running_mean != NULL && *samples > 0 && !ls_thread()->recomputes) {
        LS_TRY(move_running(norm->running_mean, mean, norm->momentum, 1.0));
        LS_TRY(move_running(norm->running_var, rstd, norm->momentum, *samples / (*samples - 1.0)));
    }
    if (norm->running_mean != NULL && norm->part != NULL) {
        norm->part->keep_equal(norm->part, norm->running_mean);
        norm->part->keep_equal(norm->part, norm->running_var);
    }
    return take_rstd(rstd, rstd, norm->epsilon);
}

/* Applies the norm to a dense x of f32 or f64. */
static ls_tensor *apply_batch_norm(const batch_norm *norm, ls_tensor *x) {
    ls_tensor *rstd = ls_tensor_new_owned("ls_batch_norm", ls_tensor_device(x), 1, &x->size[1], (ls_dtype)x->dtype);
    ls_tensor *mean = NULL;
    double samples = 0;
    ls_status status = ls_made(rstd);
    if (status == LS_OK && norm->training) {
        mean = ls_tensor_new_owned("ls_batch_norm", ls_tensor_device(x), 1, &x->size[1], (ls_dtype)x->dtype);
        status = mean == NULL ? ls_error_status() : batch_statistics(norm, x, mean, rstd, &samples);
    } else if (status == LS_OK) {
        mean = ls_tensor_hold(norm->running_mean);
        status = take_rstd(rstd, norm->running_var, norm->epsilon);
    }
    ls_tensor *result = NULL;
    if (status == LS_OK) {
        ls_tensor *const inputs[] = {
            [X] = x, [WEIGHT] = norm->weight, [BIAS] = norm->bias, [MEAN] = mean, [RSTD] = rstd};
        const ls_op_parameters parameters = {
            .context = norm->part, .number = {[VALUES_A_CHANNEL] = samples}, .integer = {[TRAINING] = norm->training}};
        const ls_op *op = norm->part != NULL ? &shared_norm_op : &batch_norm_op;
        result = ls_apply_dense(op, inputs, RSTD + 1, RSTD + 1, &parameters, 1U << WEIGHT | 1U << BIAS);
    } else {
        (void)ls_scope_failed();
    }
    ls_tensor_drop(mean);
    ls_tensor_drop(rstd);
    return result;
}

ls_tensor *ls_batch_norm(ls_tensor *x, ls_tensor *running_mean, ls_tensor *running_var, ls_tensor *weight,
                         ls_tensor *bias, bool training, double momentum, double epsilon) {
    if (x == NULL) {
        return ls_apply(&batch_norm_op, &x, 1, NULL); /* reports the error */
    }
    if (!ls_inputs_are_here(batch_norm_op.name, (ls_tensor *[]){x, running_mean, running_var, weight, bias}, 5)) {
        return NULL;
    }
    ls_thread_state *thread = ls_thread();
    ls_batch_part *part = training && thread != NULL ? thread->batch : NULL;
    batch_norm norm = {x, running_mean, running_var, weight, bias, training, momentum, epsilon, part};
    if (check_batch_norm(&norm) != LS_OK) {
        return ls_scope_failed();
    }
    ls_tensor *plain = ls_widened(x);
    ls_tensor *dense = plain == NULL || plain->contiguous ? plain : ls_replaced(ls_contiguous(plain), plain, x);
    norm.weight = ls_widened(weight);
    norm.bias = ls_widened(bias);
    const bool made =
        dense != NULL && (norm.weight != NULL) == (weight != NULL) && (norm.bias != NULL) == (bias != NULL);
    ls_tensor *y = made ? apply_batch_norm(&norm, dense) : NULL;
    (void)ls_replaced(NULL, dense, x);
    (void)ls_replaced(NULL, norm.weight, weight);
    (void)ls_replaced(NULL, norm.bias, bias);
    return ls_narrowed(y, x);
}
