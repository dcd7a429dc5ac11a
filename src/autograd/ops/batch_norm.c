/*
 * Batch normalization: of this rank's batch, and of a global batch whose samples are distributed over ranks. In the
 * second case, the ranks exchange sums in the forward and in the backward pass.
 */
#include "autograd/batch.h"
#include "autograd/captured_step.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"

/* These inputs follow the inputs that all norms have. ls_batch_norm computes them. */
enum { MEAN = BIAS + 1, RSTD };

/* ---- batch_norm -------------------------------------------------------------------------------------------------- */

/* Index in integer[] of the parameters. If ranks share the batch, the context is the ls_batch_part. */
enum { TRAINING };

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

static ls_status batch_norm_rule(const ls_node *node, const ls_tensor *gradient, const ls_norm_gradients *d) {
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
    return ls_norm_backward(node, gradient, batch_norm_rule);
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

const ls_op *const ls_batch_norm_ops[] = {&batch_norm_op, NULL};

/* ---- batch_norm of a batch that is distributed over ranks -------------------------------------------------------- */

/* The arguments of one call. */
typedef struct batch_norm {
    ls_tensor *x, *running_mean, *running_var, *weight, *bias;
    bool training;
    double momentum, epsilon;
    ls_batch_part *part; /* the batch part if ranks share the batch in training; otherwise NULL */
} batch_norm;

static ls_status convert(ls_tensor *y, const ls_tensor *x) {
    const ls_kernels *kernels = ls_kernels_of(y);
    return (y->dtype == x->dtype ? kernels->copy : kernels->cast)(ls_stream_of(y), y, x);
}

/* Multiplies dense f64 numbers by the only element of `number`. */
static ls_status multiply_by_number(ls_tensor *numbers, const ls_tensor *number) {
    ls_tensor factor = *number;
    factor.size[0] = numbers->count;
    factor.stride[0] = 0;
    factor.contiguous = false;
    factor.count = numbers->count;
    return ls_kernels_of(numbers)->mul(ls_stream_of(numbers), numbers, (const ls_tensor *[]){numbers, &factor}, NULL);
}

/* Sums dense f64 numbers over ranks. */
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
 * Indices in saved[] of the node of shared_norm_op. INVERSE is one number: the reciprocal of the number of values per
 * channel on all ranks together, or 0 without values. OWN_SUMS and ALL_SUMS exist only during a backward pass. Both
 * contain the sum of g for each channel, then the sum of (x - mean) g for each channel. ALL_SUMS also contains three
 * numbers: how many ranks have a gradient in this pass, how many may have one in a later pass, and on how many ranks
 * the pass has failed.
 */
enum { OWN_SUMS, ALL_SUMS, INVERSE };
enum { SUMS_PER_CHANNEL = 2 };
enum { REACHED_NOW, REACHED_LATER, REACH_FAILED, REACHES };

static void drop_sums(ls_node *node) {
    for (int i = OWN_SUMS; i <= ALL_SUMS; i++) {
        ls_tensor_drop(node->saved[i]);
        node->saved[i] = NULL;
    }
}

static ls_tensor *new_sums(const ls_node *node, int64_t more) {
    const ls_tensor *x = node->inputs[X];
    const int64_t size = SUMS_PER_CHANNEL * x->size[1] + more;
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
static ls_status exchange_sums(ls_batch_part *part, const ls_tensor *all, ls_reach *reach) {
    ls_host_view view;
    LS_TRY(ls_host_view_begin(&view, all, LS_HOST_READ | LS_HOST_WRITE));
    double *numbers = view.memory, *ranks = numbers + all->count - REACHES;
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

/* The arguments of the exchange as a call of a captured step. */
typedef struct captured_sums {
    ls_batch_part *part;
    ls_tensor *all;
} captured_sums;

static ls_status replay_exchange(void *object) {
    const captured_sums *call = object;
    ls_reach reach = LS_REACH_NOW;
    return exchange_sums(call->part, call->all, &reach);
}

static ls_status capture_exchange(ls_capture *capture, ls_batch_part *part, const ls_tensor *all, ls_reach *reach) {
    if (*reach != LS_REACH_NOW) {
        ls_capture_refuse(capture, batch_norm_op.name, LS_CAPTURE_COMMUNICATES);
    }
    captured_sums *call = ls_capture_allocate(capture, sizeof *call);
    ls_capture_pause(capture);
    const ls_status status = exchange_sums(part, all, reach);
    if (ls_capture_call_end(capture, status, replay_exchange, call)) {
        *call = (captured_sums){.part = part, .all = ls_capture_tensor(capture, all, true)};
    }
    return status;
}

static ls_status add_sums_over_ranks(ls_node *node, ls_reach *reach) {
    const ls_tensor *own = node->saved[OWN_SUMS], *all = node->saved[ALL_SUMS];
    ls_tensor sums = ls_stack_view_slice(all, 0, 0, own->count, 1);
    LS_TRY(ls_kernels_of(all)->copy(ls_stream_of(all), &sums, own));
    ls_capture *capture = ls_thread_present->capture;
    ls_batch_part *part = node->parameters.context;
    return capture == NULL ? exchange_sums(part, all, reach) : capture_exchange(capture, part, all, reach);
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
static ls_status shared_norm_rule(const ls_node *node, const ls_tensor *gradient, const ls_norm_gradients *d) {
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
    ls_tensor sums = ls_stack_view_slice(all, 0, 0, own->count, 1);
    LS_TRY(multiply_by_number(&sums, node->saved[INVERSE]));
    const ls_tensor x = view_by_channels(inputs[X]), g = view_by_channels(gradient);
    const ls_tensor of_g = ls_stack_view_slice(all, 0, 0, channels, 1);
    const ls_tensor of_product = ls_stack_view_slice(all, 0, channels, channels, 1);
    ls_tensor dx = view_by_channels(d->dx);
    return kernels->batch_norm_dx(stream, &dx, &g, &x, inputs[MEAN], inputs[RSTD], inputs[WEIGHT], &of_g, &of_product);
}

static ls_status shared_norm_backward(ls_node *node, ls_tensor *gradient) {
    const ls_status status = ls_norm_backward(node, gradient, shared_norm_rule);
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
    .captures = true,
    .agree = shared_norm_agree,
    .optional = 1U << WEIGHT | 1U << BIAS};

/* Computes running += momentum * (present - running). */
static ls_status update_running(ls_tensor *running, const ls_tensor *present, double momentum, double correction) {
    const ls_kernels *kernels = ls_kernels_of(running);
    ls_stream *stream = ls_stream_of(running);
    const ls_dtype dtype = (ls_dtype)running->dtype;
    LS_TRY(kernels->scale(stream, dtype, running->count, 1.0 - momentum, running->data));
    return kernels->axpy(stream, dtype, running->count, momentum * correction, present->data, running->data);
}

#define ONE_VALUE   "ls_batch_norm: training needs more than one value per channel; "
#define MORE_VALUES ": use larger batches, or omit a smaller last batch (.drop_last of ls_loader_options)"

/* Updates the running statistics with the statistics of `values` values per channel. */
static ls_status update_running_statistics(const batch_norm *norm, const ls_tensor *mean, const ls_tensor *variance,
                                           double values) {
    LS_TRY(update_running(norm->running_mean, mean, norm->momentum, 1.0));
    return update_running(norm->running_var, variance, norm->momentum, values / (values - 1.0));
}

/* Returns whether the call updates the running statistics. */
static bool updates_running(const batch_norm *norm, double values) {
    return norm->running_mean != NULL && values > 0 && !ls_thread_present->recomputes;
}

/* The arguments of compute_shared_statistics, and its result. */
typedef struct shared_batch {
    batch_norm norm;
    const ls_tensor *x; /* in the kernels' shape */
    ls_tensor *mean, *variance, *inverse;
    double values; /* per channel, on all ranks */
} shared_batch;

/*
 * Computes mean and (biased) variance over all ranks in two passes, as for one batch: the deviations are from the
 * global mean, which avoids cancellation. `workspace` has space for one number per channel, plus one.
 */
static ls_status compute_moments(shared_batch *s, ls_tensor *workspace) {
    ls_batch_part *part = s->norm.part;
    const ls_kernels *kernels = ls_kernels_of(s->x);
    ls_stream *stream = ls_stream_of(s->x);
    const int64_t channels = s->mean->count;
    ls_tensor sums = ls_stack_view_slice(workspace, 0, 0, channels, 1),
              last = ls_stack_view_slice(workspace, 0, channels, 1, 1);
    LS_TRY(kernels->batch_norm_sums(stream, &sums, NULL, s->x, NULL));
    LS_TRY(kernels->fill(stream, &last, (double)s->x->size[0] * (double)s->x->size[2]));
    LS_TRY(add_over_ranks(part, workspace));
    LS_TRY(ls_tensor_fetch(&last, 0, &s->values));
    if (s->values == 1 && channels > 0) {
        return ls_fail(LS_ERR_SHAPE, ONE_VALUE "all ranks together have 1" MORE_VALUES);
    }
    const double scale = s->values > 0 ? 1 / s->values : 0;
    LS_TRY(kernels->fill(stream, s->inverse, scale));
    LS_TRY(kernels->scale(stream, LS_F64, channels, scale, sums.data));
    LS_TRY(convert(s->mean, &sums));
    LS_TRY(kernels->batch_norm_sums(stream, &sums, NULL, s->x, s->mean));
    LS_TRY(add_over_ranks(part, &sums));
    LS_TRY(kernels->scale(stream, LS_F64, channels, scale, sums.data));
    return convert(s->variance, &sums);
}

/* Computes the statistics of the batch on all ranks, and updates the running statistics. */
static ls_status compute_shared_statistics(shared_batch *s) {
    const int64_t size = s->mean->count + 1;
    ls_tensor *workspace = ls_tensor_new_owned(batch_norm_op.name, ls_tensor_device(s->x), 1, &size, LS_F64);
    LS_TRY(ls_made(workspace));
    const ls_status status = compute_moments(s, workspace);
    ls_tensor_drop(workspace);
    LS_TRY(status);
    return updates_running(&s->norm, s->values) ? update_running_statistics(&s->norm, s->mean, s->variance, s->values)
                                                : LS_OK;
}

/* Notes that all ranks still have the same running statistics. */
static void keep_equal(const batch_norm *norm) {
    if (norm->running_mean != NULL) {
        norm->part->keep_equal(norm->part, norm->running_mean);
        norm->part->keep_equal(norm->part, norm->running_var);
    }
}

/* ls_capture_run has already counted this change of the running statistics. */
static ls_status replay_statistics(void *object) {
    shared_batch *s = object;
    LS_TRY(compute_shared_statistics(s));
    keep_equal(&s->norm);
    return LS_OK;
}

/* Returns a copy of running statistics for the latest call. keep_equal compares storages, so the copy refers to the
 * original storage, except if the step allocates it. */
static ls_tensor *capture_running(ls_capture *capture, const ls_tensor *running) {
    ls_tensor *copy = ls_capture_tensor(capture, running, false);
    if (copy != NULL && ls_capture_add_storage(capture, running->storage)) {
        copy->storage = running->storage;
    }
    return copy;
}

/* Computes the statistics, and records the computation as one call of the captured step. */
static ls_status capture_statistics(ls_capture *capture, shared_batch *s) {
    if (s->norm.running_mean != NULL) { /* replays check that the program has not freed them */
        ls_capture_note_here(batch_norm_op.name, s->norm.running_mean);
        ls_capture_note_here(batch_norm_op.name, s->norm.running_var);
    }
    shared_batch *call = ls_capture_allocate(capture, sizeof *call);
    ls_capture_pause(capture);
    const ls_status status = compute_shared_statistics(s);
    if (ls_capture_call_end(capture, status, replay_statistics, call)) {
        *call = (shared_batch){.norm = s->norm,
                               .x = ls_capture_tensor(capture, s->x, false),
                               .mean = ls_capture_tensor(capture, s->mean, true),
                               .variance = ls_capture_tensor(capture, s->variance, true),
                               .inverse = ls_capture_tensor(capture, s->inverse, true)};
        call->norm.running_mean = capture_running(capture, s->norm.running_mean);
        call->norm.running_var = capture_running(capture, s->norm.running_var);
    }
    return status;
}

static ls_status find_shared_statistics(shared_batch *s) {
    ls_capture *capture = ls_thread_present->capture;
    LS_TRY(capture == NULL ? compute_shared_statistics(s) : capture_statistics(capture, s));
    if (updates_running(&s->norm, s->values)) {
        ls_tensor_changed(s->norm.running_mean, batch_norm_op.name);
        ls_tensor_changed(s->norm.running_var, batch_norm_op.name);
    }
    keep_equal(&s->norm);
    return LS_OK;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

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
    LS_TRY(ls_norm_check_epsilon(batch_norm_op.name, norm->epsilon));
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
        return ls_fail(LS_ERR_SHAPE, ONE_VALUE "x is %s" MORE_VALUES, LS_SHAPE_TEXT(x));
    }
    return LS_OK;
}

/* Computes rstd = 1 / sqrt(variance + epsilon). Both may be the same tensor. */
static ls_status compute_rstd(ls_tensor *rstd, const ls_tensor *variance, double epsilon) {
    const ls_kernels *kernels = ls_kernels_of(rstd);
    ls_stream *stream = ls_stream_of(rstd);
    LS_TRY(kernels->add_number(stream, rstd, &variance, &epsilon));
    return kernels->pow_number(stream, rstd, (const ls_tensor *[]){rstd}, (const double[]){-0.5});
}

/* For an empty batch, the statistics are zeros, and the running statistics are unchanged. */
static ls_status own_statistics(const batch_norm *norm, const ls_tensor *x, ls_tensor *mean, ls_tensor *variance) {
    const double values = (double)x->size[0] * (double)x->size[2];
    if (values > 0) {
        LS_TRY(ls_kernels_of(x)->batch_norm_statistics(ls_stream_of(x), mean, variance, x));
    } else {
        LS_TRY(ls_kernels_of(mean)->fill(ls_stream_of(mean), mean, 0));
        LS_TRY(ls_kernels_of(variance)->fill(ls_stream_of(variance), variance, 0));
    }
    if (updates_running(norm, values)) {
        ls_tensor_changed(norm->running_mean, batch_norm_op.name);
        ls_tensor_changed(norm->running_var, batch_norm_op.name);
        return update_running_statistics(norm, mean, variance, values);
    }
    return LS_OK;
}

/* `inverse` is NULL if ranks do not share the batch. */
static ls_status batch_statistics(const batch_norm *norm, const ls_tensor *dense, ls_tensor *mean, ls_tensor *rstd,
                                  ls_tensor *inverse) {
    const ls_tensor x = view_by_channels(dense);
    LS_TRY(inverse == NULL ? own_statistics(norm, &x, mean, rstd)
                           : find_shared_statistics(&(shared_batch){
                                 .norm = *norm, .x = &x, .mean = mean, .variance = rstd, .inverse = inverse}));
    return compute_rstd(rstd, rstd, norm->epsilon);
}

/* Computes the statistics of a dense x of f32 or f64. Stores owned tensors; *inverse is NULL if ranks do not share the
 * batch. */
static ls_status find_statistics(const batch_norm *norm, const ls_tensor *x, ls_tensor **mean, ls_tensor **rstd,
                                 ls_tensor **inverse) {
    const ls_device *device = ls_tensor_device(x);
    *rstd = ls_tensor_new_owned(batch_norm_op.name, device, 1, &x->size[1], (ls_dtype)x->dtype);
    LS_TRY(ls_made(*rstd));
    if (!norm->training) {
        *mean = ls_tensor_hold(norm->running_mean);
        return compute_rstd(*rstd, norm->running_var, norm->epsilon);
    }
    *mean = ls_tensor_new_owned(batch_norm_op.name, device, 1, &x->size[1], (ls_dtype)x->dtype);
    LS_TRY(ls_made(*mean));
    if (norm->part != NULL) {
        *inverse = ls_tensor_new_owned(batch_norm_op.name, device, 1, (const int64_t[]){1}, LS_F64);
        LS_TRY(ls_made(*inverse));
    }
    return batch_statistics(norm, x, *mean, *rstd, *inverse);
}

/* Applies the norm to a dense x of f32 or f64. */
static ls_tensor *apply_batch_norm(const batch_norm *norm, ls_tensor *x) {
    ls_tensor *mean = NULL, *rstd = NULL, *inverse = NULL;
    ls_tensor *result = NULL;
    if (find_statistics(norm, x, &mean, &rstd, &inverse) == LS_OK) {
        ls_tensor *const inputs[] = {
            [X] = x, [WEIGHT] = norm->weight, [BIAS] = norm->bias, [MEAN] = mean, [RSTD] = rstd};
        const ls_op_parameters parameters = {.context = norm->part, .integer = {[TRAINING] = norm->training}};
        const ls_op *op = norm->part != NULL ? &shared_norm_op : &batch_norm_op;
        result = ls_apply_dense(op, inputs, RSTD + 1, RSTD + 1, &parameters, 1U << WEIGHT | 1U << BIAS);
    } else {
        (void)ls_scope_failed();
    }
    if (inverse != NULL && result != NULL && result->node != NULL) {
        ls_node *node = (ls_node *)(void *)result->node;
        node->saved[INVERSE] = ls_tensor_hold(inverse);
    }
    ls_tensor_drop(mean);
    ls_tensor_drop(rstd);
    ls_tensor_drop(inverse);
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
