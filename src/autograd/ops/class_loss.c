/*
 * Cross entropy and negative log likelihood. Each is one node over [rows, classes]; inputs of other shapes are first
 * permuted to that shape. Cross entropy saves log softmax(logits), from which one kernel computes the gradient of the
 * logits.
 */
#include "autograd/loss_divisor.h"
#include "autograd/op.h"
#include "autograd/ops/loss.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/samples.h"
#include "tensor/capture.h"

/* Indices of the node's inputs and saved tensors, and in integer[] and number[] of its parameters. */
enum { X, TARGET, WEIGHT, INPUTS };
enum { LOG_PROBABILITY, DIVISOR };
enum { REDUCTION, IGNORE, IGNORE_INDEX };
enum { SMOOTHING };

static ls_class_loss loss_of(ls_tensor *const *inputs, const ls_op_parameters *parameters) {
    return (ls_class_loss){.target = inputs[TARGET],
                           .weight = inputs[WEIGHT],
                           .label_smoothing = parameters->number[SMOOTHING],
                           .ignore = parameters->integer[IGNORE] != 0,
                           .ignore_index = parameters->integer[IGNORE_INDEX]};
}

/* Returns whether rows have different weights in the mean, so that the divisor is the sum of the weights. */
static bool is_weighted(const ls_class_loss *loss) {
    return loss->weight != NULL || loss->ignore;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static ls_status class_loss_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[X];
    const int ndim = call->parameters->integer[REDUCTION] == LS_LOSS_NONE ? 1 : 0;
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(x), ndim, x->size, (ls_dtype)x->dtype);
    return ls_made(call->output);
}

/* Divides the sum of the elements by the sum of the row weights, which is saved for the gradient. */
static ls_status weighted_mean(ls_op_call *call, const ls_tensor *row_weight) {
    ls_tensor *divisor =
        ls_tensor_new_owned(call->op->name, ls_tensor_device(row_weight), 0, NULL, (ls_dtype)row_weight->dtype);
    LS_TRY(ls_made(divisor));
    call->saved[DIVISOR] = divisor;
    LS_TRY(ls_loss_sum(divisor, row_weight, 1.0));
    LS_TRY(ls_loss_divisor_note(call->op->name, divisor));
    const ls_tensor *operands[] = {call->output, divisor};
    return ls_kernels_of(divisor)->div(ls_stream_of(divisor), call->output, operands, NULL);
}

/* `room` [2, rows] is memory for the losses and the weights of the rows. */
static ls_status reduce_rows(ls_op_call *call, const ls_tensor *log_probability, ls_tensor *room) {
    const ls_class_loss loss = loss_of(call->inputs, call->parameters);
    const ls_loss_reduction reduction = (ls_loss_reduction)call->parameters->integer[REDUCTION];
    const int64_t rows = log_probability->size[0];
    ls_tensor row_weight = ls_stack_view_select(room, 0, 1);
    ls_tensor element = reduction == LS_LOSS_NONE ? *call->output : ls_stack_view_select(room, 0, 0);
    const ls_kernels *kernels = ls_kernels_of(room);
    const ls_status status = kernels->nll(ls_stream_of(room), &element, &row_weight, log_probability, &loss);
    if (status != LS_OK) {
        return ls_fail(status, "%s: %s", call->op->name, ls_error_message());
    }
    if (reduction == LS_LOSS_NONE) {
        return LS_OK;
    }
    const bool by_count = reduction == LS_LOSS_MEAN && !is_weighted(&loss);
    LS_TRY(ls_loss_sum(call->output, &element, by_count ? 1.0 / (double)rows : 1.0));
    return reduction == LS_LOSS_MEAN && !by_count ? weighted_mean(call, &row_weight) : LS_OK;
}

static ls_status loss_of_log_probability(ls_op_call *call, const ls_tensor *log_probability) {
    const int64_t size[] = {2, log_probability->size[0]};
    ls_tensor *room = ls_tensor_new_owned(call->op->name, ls_tensor_device(log_probability), 2, size,
                                          (ls_dtype)log_probability->dtype);
    LS_TRY(ls_made(room));
    const ls_status status = reduce_rows(call, log_probability, room);
    ls_tensor_drop(room);
    return status;
}

static ls_status nll_forward(ls_op_call *call) {
    return loss_of_log_probability(call, call->inputs[X]);
}

static ls_status cross_entropy_forward(ls_op_call *call) {
    const ls_tensor *logits = call->inputs[X];
    ls_tensor *log_probability = ls_tensor_like_owned(call->op->name, logits, (ls_dtype)logits->dtype);
    LS_TRY(ls_made(log_probability));
    call->saved[LOG_PROBABILITY] = log_probability;
    LS_TRY(ls_kernels_of(logits)->log_softmax(ls_stream_of(logits), log_probability, logits, 1));
    return loss_of_log_probability(call, log_probability);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef ls_status (*class_gradient_kernel)(ls_stream *stream, ls_tensor *d, const ls_tensor *g, double scale,
                                           const ls_tensor *log_probability, const ls_class_loss *loss);

/*
 * Computes g = gradient / divisor, or 0 if the divisor is 0: if every target is ignored, the loss is NaN and its
 * gradient 0.
 */
static ls_status divide_unless_none(ls_tensor *g, const ls_tensor *gradient, const ls_tensor *divisor) {
    const ls_kernels *kernels = ls_kernels_of(g);
    ls_stream *stream = ls_stream_of(g);
    ls_tensor *some = ls_tensor_like_owned("ls_backward", g, LS_BOOL);
    ls_tensor *zero = ls_number_owned("ls_backward", ls_tensor_device(g), (ls_dtype)g->dtype, 0);
    ls_status status = some != NULL && zero != NULL ? LS_OK : ls_error_status();
    if (status == LS_OK) {
        status = kernels->div(stream, g, (const ls_tensor *[]){gradient, divisor}, NULL);
    }
    if (status == LS_OK) {
        status = kernels->ne_number(stream, some, &divisor, (const double[]){0});
    }
    if (status == LS_OK) {
        status = kernels->where(stream, g, (const ls_tensor *[]){some, g, zero}, NULL);
    }
    ls_tensor_drop(some);
    ls_tensor_drop(zero);
    return status;
}

/*
 * Returns the gradient of the rows before the kernel's scaling, as a dense tensor: `gradient`, divided by the sum of
 * the weights if the loss was divided by it.
 */
static ls_tensor *row_gradient(const ls_node *node, ls_tensor *gradient) {
    const ls_tensor *divisor = node->saved[DIVISOR];
    if (divisor == NULL) {
        return ls_dense(node->op->name, gradient);
    }
    ls_tensor *g = ls_tensor_new_owned(node->op->name, ls_tensor_device(gradient), 0, NULL, (ls_dtype)gradient->dtype);
    if (g != NULL && divide_unless_none(g, gradient, divisor) != LS_OK) {
        ls_tensor_drop(g);
        return NULL;
    }
    return g;
}

static ls_status give_by_kernel(ls_node *node, ls_tensor *gradient, const ls_tensor *log_probability,
                                class_gradient_kernel kernel) {
    const ls_class_loss loss = loss_of(node->inputs, &node->parameters);
    const bool by_count = node->parameters.integer[REDUCTION] == LS_LOSS_MEAN && !is_weighted(&loss);
    const double scale = by_count ? 1.0 / (double)log_probability->size[0] : 1.0;
    ls_tensor *g = row_gradient(node, gradient);
    LS_TRY(ls_made(g));
    ls_tensor *d = ls_tensor_like(node->op->name, log_probability, (ls_dtype)log_probability->dtype);
    const ls_status status =
        d == NULL ? ls_error_status() : kernel(ls_stream_of(d), d, g, scale, log_probability, &loss);
    ls_tensor_drop(g);
    LS_TRY(status);
    return ls_accumulate(node, X, d);
}

static ls_status nll_backward(ls_node *node, ls_tensor *gradient) {
    return give_by_kernel(node, gradient, node->inputs[X], ls_kernels_of(gradient)->nll_backward);
}

static ls_status cross_entropy_backward(ls_node *node, ls_tensor *gradient) {
    return give_by_kernel(node, gradient, node->saved[LOG_PROBABILITY],
                          ls_kernels_of(gradient)->cross_entropy_backward);
}

/* Samples may lie along the axis of the rows, but not along the class axis. */
static ls_samples_use class_loss_samples(ls_samples_call *call) {
    const ls_loss_reduction reduction = (ls_loss_reduction)call->parameters->integer[REDUCTION];
    if (ls_sample_axis(call, X) == 1) {
        return LS_SAMPLES_MIXED;
    }
    if (reduction == LS_LOSS_MEAN && call->wants_divisor) {
        call->divisor_tensor = call->saved[DIVISOR];
        call->divisor =
            call->divisor_tensor != NULL ? ls_tensor_number(call->divisor_tensor) : (double)call->inputs[X]->size[0];
    }
    return reduction == LS_LOSS_NONE ? LS_SAMPLES_KEPT : LS_SAMPLES_SUMMED;
}

static const ls_op nll_op = {.name = "ls_nll_loss",
                             .shape = class_loss_shape,
                             .forward = nll_forward,
                             .backward = nll_backward,
                             .over_samples = class_loss_samples,
                             .reads = {[X] = 1U << TARGET | 1U << WEIGHT},
                             .optional = 1U << WEIGHT};

static const ls_op cross_entropy_op = {.name = "ls_cross_entropy",
                                       .shape = class_loss_shape,
                                       .forward = cross_entropy_forward,
                                       .backward = cross_entropy_backward,
                                       .over_samples = class_loss_samples,
                                       .reads = {[X] = 1U << TARGET | 1U << WEIGHT},
                                       .optional = 1U << WEIGHT};

const ls_op *const ls_class_loss_ops[] = {&nll_op, &cross_entropy_op, NULL};

/* ---- arguments --------------------------------------------------------------------------------------------------- */

static ls_status check_options(const char *call, const ls_tensor *x, int64_t classes,
                               const ls_class_loss_options *options) {
    const ls_tensor *weight = options->weight;
    LS_TRY(ls_loss_take_reduction(call, options->reduction));
    if (!(options->label_smoothing >= 0.0 && options->label_smoothing <= 1.0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: label_smoothing is %g, but must be from 0 to 1", call,
                       options->label_smoothing);
    }
    if (weight == NULL) {
        return LS_OK;
    }
    if (weight->ndim != 1 || weight->size[0] != classes) {
        return ls_fail(LS_ERR_SHAPE, "%s: weight is %s, but must be [%lld] for %s", call, LS_SHAPE_TEXT(weight),
                       (long long)classes, LS_SHAPE_TEXT(x));
    }
    if (weight->needs_grad) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "%s: weight requires a gradient, which is not supported; pass ls_detach(weight)", call);
    }
    return LS_OK;
}

/* Checks that target has the shape of x without its class axis (axis 1, or axis 0 of a vector). */
static ls_status check_target(const char *call, const ls_tensor *x, const ls_tensor *target) {
    if (target->dtype != LS_I64 && target->dtype != LS_I32 && target->dtype != LS_U8) {
        return ls_fail(LS_ERR_SHAPE, "%s: target is %s, but class numbers must be i64, i32 or u8", call,
                       ls_dtype_name((ls_dtype)target->dtype));
    }
    const int class_axis = x->ndim > 1 ? 1 : 0;
    bool fits = x->ndim > 0 && target->ndim == x->ndim - 1;
    for (int i = 0; fits && i < target->ndim; i++) {
        fits = target->size[i] == x->size[i < class_axis ? i : i + 1];
    }
    if (!fits) {
        return ls_fail(
            LS_ERR_SHAPE,
            "%s: shape %s does not fit target %s: expected [n, classes] with [n], or [n, classes, ...] with [n, ...]",
            call, LS_SHAPE_TEXT(x), LS_SHAPE_TEXT(target));
    }
    return LS_OK;
}

static ls_status check_arguments(const char *call, ls_tensor *x, const ls_tensor *target,
                                 const ls_class_loss_options *options) {
    ls_tensor *const floating[] = {x, options->weight};
    LS_TRY(ls_check_floating(call, floating, 2));
    LS_TRY(check_target(call, x, target));
    return check_options(call, x, x->size[x->ndim > 1 ? 1 : 0], options);
}

/* ---- other shapes ------------------------------------------------------------------------------------------------ */

/* Returns x [n, classes, ...] or [classes] as [rows, classes]. */
static ls_tensor *as_rows(ls_tensor *x) {
    const int class_axis = x->ndim > 1 ? 1 : 0;
    const int64_t classes = x->size[class_axis];
    ls_axes order = {.count = 0};
    int64_t rows = 1;
    for (int i = 0; i < x->ndim; i++) {
        if (i != class_axis) {
            order.axis[order.count++] = i;
            rows *= x->size[i];
        }
    }
    order.axis[order.count++] = class_axis;
    ls_tensor *permuted = x->ndim > 2 ? ls_permute(x, order) : x;
    return ls_replaced(ls_reshape(permuted, LS_SHAPE(rows, classes)), permuted, x);
}

/* Returns a target of any class dtype as i64 [rows]. */
static ls_tensor *as_row_targets(ls_tensor *target) {
    ls_tensor *flat = target->ndim == 1 ? target : ls_reshape(target, LS_SHAPE(target->count));
    return flat == NULL || flat->dtype == LS_I64 ? flat : ls_replaced(ls_to(flat, LS_I64), flat, target);
}

static ls_tensor *apply_to_rows(const ls_op *op, ls_tensor *x, ls_tensor *target,
                                const ls_class_loss_options *options) {
    ls_tensor *rows = x->ndim == 2 ? x : as_rows(x);
    ls_tensor *row_targets = rows == NULL ? NULL : as_row_targets(target);
    ls_tensor *weight = row_targets == NULL ? NULL : ls_widened(options->weight);
    ls_tensor *result = NULL;
    if (row_targets != NULL && (weight != NULL || options->weight == NULL)) {
        ls_tensor *const inputs[INPUTS] = {[X] = rows, [TARGET] = row_targets, [WEIGHT] = weight};
        const ls_op_parameters parameters = {
            .number = {[SMOOTHING] = options->label_smoothing},
            .integer = {
                [REDUCTION] = options->reduction, [IGNORE] = options->ignore, [IGNORE_INDEX] = options->ignore_index}};
        result = ls_apply_dense(op, inputs, INPUTS, X + 1, &parameters, 1U << X | 1U << TARGET | 1U << WEIGHT);
    }
    (void)ls_replaced(NULL, weight, options->weight);
    (void)ls_replaced(NULL, row_targets, target);
    (void)ls_replaced(NULL, rows, x);
    return result;
}

static ls_tensor *class_loss(const ls_op *op, ls_tensor *x, ls_tensor *target, const ls_class_loss_options *options) {
    if (x == NULL || target == NULL) {
        return ls_apply(op, (ls_tensor *[INPUTS]){[X] = x, [TARGET] = target}, INPUTS, NULL); /* reports the error */
    }
    if (check_arguments(op->name, x, target, options) != LS_OK) {
        return ls_scope_failed();
    }
    ls_tensor *result = apply_to_rows(op, x, target, options);
    if (result == NULL || options->reduction != LS_LOSS_NONE || target->ndim == 1) {
        return result;
    }
    return ls_replaced(ls_reshape(result, ls_shape_of(target)), result, NULL);
}

/* ---- targets that are probabilities ------------------------------------------------------------------------------ */

static bool are_probabilities(const ls_tensor *x, const ls_tensor *target) {
    return x != NULL && target != NULL && ls_dtype_is_floating((ls_dtype)target->dtype) && x->ndim > 0 &&
           ls_tensor_same_shape(x, target);
}

static ls_status check_probabilities(const char *call, ls_tensor *x, const ls_class_loss_options *options) {
    ls_tensor *const floating[] = {x, options->weight};
    LS_TRY(ls_check_floating(call, floating, 2));
    if (options->ignore) {
        return ls_fail(LS_ERR_UNSUPPORTED, "%s: ignore cannot be set for targets that are probabilities", call);
    }
    return check_options(call, x, x->size[x->ndim > 1 ? 1 : 0], options);
}

/*
 * Computes -sum over classes of weight * target * log softmax(x), as separate operations that have their own rules for
 * samples.
 */
static ls_tensor *entropy_of_rows(ls_tensor *x, ls_tensor *target, const ls_class_loss_options *options) {
    const int axis = x->ndim > 1 ? 1 : 0;
    const double smoothing = options->label_smoothing;
    ls_tensor *likelihood = ls_log_softmax(x, axis);
    target = ls_to(target, (ls_dtype)x->dtype);
    if (smoothing > 0) {
        target = ls_add(ls_mul(target, 1 - smoothing), smoothing / (double)x->size[axis]);
    }
    if (options->weight != NULL) {
        ls_shape shape = {.ndim = x->ndim - axis, .size = {options->weight->count}};
        for (int i = 1; i < shape.ndim; i++) {
            shape.size[i] = 1;
        }
        target = ls_mul(target, ls_to(ls_reshape(options->weight, shape), (ls_dtype)x->dtype));
    }
    return ls_neg(ls_sum_axes(ls_mul(target, likelihood), LS_AXES(axis), false));
}

static ls_tensor *entropy_of_probabilities(ls_tensor *x, ls_tensor *target, const ls_class_loss_options *options) {
    if (check_probabilities(cross_entropy_op.name, x, options) != LS_OK) {
        return ls_scope_failed();
    }
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_scope_failed();
    }
    ls_tensor *rows = entropy_of_rows(x, target, options);
    ls_tensor *loss = ls_keep(options->reduction == LS_LOSS_NONE  ? rows
                              : options->reduction == LS_LOSS_SUM ? ls_sum(rows)
                                                                  : ls_mean(rows));
    return ls_scope_end(scope) == LS_OK ? loss : ls_scope_failed();
}

ls_tensor *ls_cross_entropy(ls_tensor *logits, ls_tensor *target, const ls_class_loss_options *options) {
    static const ls_class_loss_options defaults;
    options = options != NULL ? options : &defaults;
    return are_probabilities(logits, target) ? entropy_of_probabilities(logits, target, options)
                                             : class_loss(&cross_entropy_op, logits, target, options);
}

ls_tensor *ls_nll_loss(ls_tensor *log_probabilities, ls_tensor *target, const ls_nll_loss_options *options) {
    static const ls_nll_loss_options defaults;
    options = options != NULL ? options : &defaults;
    return class_loss(&nll_op, log_probabilities, target,
                      &(ls_class_loss_options){.reduction = options->reduction,
                                               .weight = options->weight,
                                               .ignore = options->ignore,
                                               .ignore_index = options->ignore_index});
}
