/* Element-wise losses of x and target, such as (x - target)^2. Class losses are in class_loss.c. */
#include "autograd/ops/loss.h"
#include "autograd/loss_divisor.h"
#include "autograd/op.h"
#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"
#include "autograd/ops/promote.h"
#include "tensor/capture.h"

#include <math.h>

/* Index in integer[] of the parameters; number[] holds the kernel's numbers. */
enum { REDUCTION };

ls_status ls_loss_take_reduction(const char *call, ls_loss_reduction reduction) {
    if (reduction != LS_LOSS_MEAN && reduction != LS_LOSS_SUM && reduction != LS_LOSS_NONE) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: reduction %d is not LS_LOSS_MEAN, LS_LOSS_SUM or LS_LOSS_NONE", call,
                       (int)reduction);
    }
    if (reduction == LS_LOSS_SUM) {
        ls_loss_divisor_note_sum();
    }
    return LS_OK;
}

ls_status ls_loss_sum(ls_tensor *total, const ls_tensor *elements, double factor) {
    const ls_kernels *kernels = ls_kernels_of(total);
    ls_stream *stream = ls_stream_of(total);
    const ls_tensor all = ls_stack_view_dense(elements, 1, &elements->count);
    ls_tensor sum = ls_stack_view_dense(total, 1, (const int64_t[]){1});
    LS_TRY(kernels->sum(stream, &sum, &all));
    return factor == 1.0 ? LS_OK : kernels->scale(stream, (ls_dtype)total->dtype, 1, factor, total->data);
}

ls_tensor *ls_loss_reduced(ls_tensor *elements, ls_loss_reduction reduction) {
    if (elements == NULL || reduction == LS_LOSS_NONE) {
        return elements;
    }
    return ls_replaced(reduction == LS_LOSS_MEAN ? ls_mean(elements) : ls_sum(elements), elements, NULL);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static ls_status check_shapes(const char *call, const ls_tensor *x, const ls_tensor *target) {
    return ls_tensor_same_shape(x, target)
               ? LS_OK
               : ls_fail(LS_ERR_SHAPE, "%s: shape %s differs from target %s: the shapes must be equal", call,
                         LS_SHAPE_TEXT(x), LS_SHAPE_TEXT(target));
}

static ls_status loss_shape(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    LS_TRY(check_shapes(call->op->name, x, call->inputs[1]));
    const int ndim = call->parameters->integer[REDUCTION] == LS_LOSS_NONE ? x->ndim : 0;
    call->output = ls_tensor_new(call->op->name, ls_tensor_device(x), ndim, x->size, (ls_dtype)x->dtype);
    return ls_made(call->output);
}

static ls_status loss_forward(ls_op_call *call) {
    const ls_tensor *x = call->inputs[0];
    const ls_loss_reduction reduction = (ls_loss_reduction)call->parameters->integer[REDUCTION];
    if (reduction == LS_LOSS_NONE) {
        return ls_forward_map(call);
    }
    const ls_tensor *const *operands = (const ls_tensor *const *)call->inputs;
    if (x->count == 1) { /* one element is its own mean and sum */
        ls_tensor element = ls_stack_view_dense(call->output, x->ndim, x->size);
        return ls_map(call->op->kernel, &element, operands, call->parameters->number);
    }
    ls_tensor *elements = ls_tensor_like_owned(call->op->name, x, (ls_dtype)x->dtype);
    LS_TRY(ls_made(elements));
    ls_status status = ls_map(call->op->kernel, elements, operands, call->parameters->number);
    if (status == LS_OK) {
        status = ls_loss_sum(call->output, elements, reduction == LS_LOSS_MEAN ? 1.0 / (double)x->count : 1.0);
    }
    ls_tensor_drop(elements);
    return status;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Computes the gradient of one input from the gradient of the elements (of x's shape, or one number for all), and
 * stores it in d. */
typedef ls_status (*gradient_rule)(const ls_node *node, ls_tensor *d, const ls_tensor *g);

static ls_status accumulate_by_rule(ls_node *node, int i, const ls_tensor *g, gradient_rule rule) {
    const ls_tensor *x = node->inputs[0];
    ls_tensor *d = ls_tensor_like(node->op->name, x, (ls_dtype)x->dtype);
    LS_TRY(ls_made(d));
    LS_TRY(rule(node, d, g));
    return ls_accumulate(node, i, d);
}

static ls_status accumulate_both(ls_node *node, const ls_tensor *g, gradient_rule of_x, gradient_rule of_target) {
    if (ls_wants(node, 0)) {
        LS_TRY(accumulate_by_rule(node, 0, g, of_x));
    }
    return ls_wants(node, 1) ? accumulate_by_rule(node, 1, g, of_target) : LS_OK;
}

static ls_status loss_backward(ls_node *node, const ls_tensor *gradient, gradient_rule of_x, gradient_rule of_target) {
    const int64_t count = node->inputs[0]->count;
    if (node->parameters.integer[REDUCTION] != LS_LOSS_MEAN || count == 1) {
        return accumulate_both(node, gradient, of_x, of_target);
    }
    ls_tensor *share =
        ls_tensor_new_owned(node->op->name, ls_tensor_device(gradient), 0, NULL, (ls_dtype)gradient->dtype);
    LS_TRY(ls_made(share));
    const double factor = 1.0 / (double)count;
    ls_status status = ls_kernels_of(share)->mul_number(ls_stream_of(share), share, &gradient, &factor);
    if (status == LS_OK) {
        status = accumulate_both(node, share, of_x, of_target);
    }
    ls_tensor_drop(share);
    return status;
}

static ls_status of_x_by_kernel(const ls_node *node, ls_tensor *d, const ls_tensor *g) {
    const ls_tensor *operands[] = {g, node->inputs[0], node->inputs[1]};
    return ls_map(node->op->kernel_backward, d, operands, node->parameters.number);
}

/* For losses of x - target only. */
static ls_status negative_of_x(const ls_node *node, ls_tensor *d, const ls_tensor *g) {
    LS_TRY(of_x_by_kernel(node, d, g));
    return ls_kernels_of(d)->neg(ls_stream_of(d), d, (const ls_tensor *[]){d}, NULL);
}

static ls_status difference_backward(ls_node *node, ls_tensor *gradient) {
    return loss_backward(node, gradient, of_x_by_kernel, negative_of_x);
}

/* Computes d = max(log(d), -100), the bound of the loss. */
static ls_status bounded_log(ls_tensor *d) {
    const ls_kernels *kernels = ls_kernels_of(d);
    LS_TRY(kernels->log(ls_stream_of(d), d, (const ls_tensor *[]){d}, NULL));
    return kernels->maximum_number(ls_stream_of(d), d, (const ls_tensor *[]){d}, (const double[]){-100.0});
}

/* Computes d = g (log(1 - p) - log p). `room` is memory for one of the logarithms. */
static ls_status bce_of_target_with(const ls_node *node, ls_tensor *d, const ls_tensor *g, ls_tensor *room) {
    const ls_kernels *kernels = ls_kernels_of(d);
    ls_stream *stream = ls_stream_of(d);
    const ls_tensor *p = node->inputs[0];
    LS_TRY(kernels->copy(stream, room, p));
    LS_TRY(bounded_log(room));
    LS_TRY(kernels->neg(stream, d, &p, NULL));
    LS_TRY(kernels->add_number(stream, d, (const ls_tensor *[]){d}, (const double[]){1.0}));
    LS_TRY(bounded_log(d));
    LS_TRY(kernels->sub(stream, d, (const ls_tensor *[]){d, room}, NULL));
    return kernels->mul(stream, d, (const ls_tensor *[]){d, g}, NULL);
}

static ls_status bce_of_target(const ls_node *node, ls_tensor *d, const ls_tensor *g) {
    ls_tensor *room = ls_tensor_like_owned(node->op->name, d, (ls_dtype)d->dtype);
    LS_TRY(ls_made(room));
    const ls_status status = bce_of_target_with(node, d, g, room);
    ls_tensor_drop(room);
    return status;
}

static ls_status bce_backward(ls_node *node, ls_tensor *gradient) {
    return loss_backward(node, gradient, of_x_by_kernel, bce_of_target);
}

static ls_status negative_product(ls_tensor *d, const ls_tensor *g, const ls_tensor *other) {
    const ls_kernels *kernels = ls_kernels_of(d);
    LS_TRY(kernels->mul(ls_stream_of(d), d, (const ls_tensor *[]){g, other}, NULL));
    return kernels->neg(ls_stream_of(d), d, (const ls_tensor *[]){d}, NULL);
}

/* For p = sigmoid(x): log(1 - p) - log p = -x. */
static ls_status logits_of_target(const ls_node *node, ls_tensor *d, const ls_tensor *g) {
    return negative_product(d, g, node->inputs[0]);
}

static ls_status logits_backward(ls_node *node, ls_tensor *gradient) {
    return loss_backward(node, gradient, of_x_by_kernel, logits_of_target);
}

static ls_status kl_of_x(const ls_node *node, ls_tensor *d, const ls_tensor *g) {
    return negative_product(d, g, node->inputs[1]);
}

/* Computes d = g (log t + 1 - x) where t > 0, else 0. The other tensors are temporary memory for the condition and
 * the zero. */
static ls_status kl_of_target_with(const ls_node *node, ls_tensor *d, const ls_tensor *g, ls_tensor *positive,
                                   ls_tensor *zero) {
    const ls_kernels *kernels = ls_kernels_of(d);
    ls_stream *stream = ls_stream_of(d);
    const ls_tensor *target = node->inputs[1];
    LS_TRY(kernels->log(stream, d, &target, NULL));
    LS_TRY(kernels->add_number(stream, d, (const ls_tensor *[]){d}, (const double[]){1.0}));
    LS_TRY(kernels->sub(stream, d, (const ls_tensor *[]){d, node->inputs[0]}, NULL));
    LS_TRY(kernels->mul(stream, d, (const ls_tensor *[]){d, g}, NULL));
    LS_TRY(kernels->gt_number(stream, positive, &target, (const double[]){0.0}));
    LS_TRY(kernels->fill(stream, zero, 0.0));
    return kernels->where(stream, d, (const ls_tensor *[]){positive, d, zero}, NULL);
}

static ls_status kl_of_target(const ls_node *node, ls_tensor *d, const ls_tensor *g) {
    ls_tensor *positive = ls_tensor_like_owned(node->op->name, d, LS_BOOL);
    ls_tensor *zero =
        positive == NULL ? NULL : ls_tensor_new_owned(node->op->name, ls_tensor_device(d), 0, NULL, (ls_dtype)d->dtype);
    const ls_status status = zero == NULL ? ls_error_status() : kl_of_target_with(node, d, g, positive, zero);
    ls_tensor_drop(zero);
    ls_tensor_drop(positive);
    return status;
}

static ls_status kl_backward(ls_node *node, ls_tensor *gradient) {
    return loss_backward(node, gradient, kl_of_x, kl_of_target);
}

/* ---- operations and calls ---------------------------------------------------------------------------------------- */

static ls_samples_use loss_samples(ls_samples_call *call) {
    const ls_loss_reduction reduction = (ls_loss_reduction)call->parameters->integer[REDUCTION];
    if (reduction == LS_LOSS_MEAN) {
        call->divisor = (double)call->inputs[0]->count;
    }
    return reduction == LS_LOSS_NONE ? LS_SAMPLES_KEPT : LS_SAMPLES_SUMMED;
}

#define LOSS_RULES .shape = loss_shape, .forward = loss_forward, .over_samples = loss_samples

enum { X = 1, TARGET = 2 }; /* bits of .reads */

static const ls_op mse_op = {.name = "ls_mse_loss",
                             LOSS_RULES,
                             .backward = difference_backward,
                             .reads = {X | TARGET, X | TARGET},
                             .kernel = LS_KERNEL(mse),
                             .kernel_backward = LS_KERNEL(mse_backward)};
static const ls_op l1_op = {.name = "ls_l1_loss",
                            LOSS_RULES,
                            .backward = difference_backward,
                            .reads = {X | TARGET, X | TARGET},
                            .kernel = LS_KERNEL(l1),
                            .kernel_backward = LS_KERNEL(l1_backward)};
static const ls_op huber_op = {.name = "ls_huber_loss",
                               LOSS_RULES,
                               .backward = difference_backward,
                               .reads = {X | TARGET, X | TARGET},
                               .kernel = LS_KERNEL(huber),
                               .kernel_backward = LS_KERNEL(huber_backward)};
static const ls_op bce_op = {.name = "ls_bce_loss",
                             LOSS_RULES,
                             .backward = bce_backward,
                             .reads = {X | TARGET, X},
                             .kernel = LS_KERNEL(bce),
                             .kernel_backward = LS_KERNEL(bce_backward)};
static const ls_op bce_with_logits_op = {.name = "ls_bce_with_logits_loss",
                                         LOSS_RULES,
                                         .backward = logits_backward,
                                         .reads = {X | TARGET, X},
                                         .kernel = LS_KERNEL(bce_with_logits),
                                         .kernel_backward = LS_KERNEL(bce_with_logits_backward)};
static const ls_op kl_div_op = {.name = "ls_kl_div_loss",
                                LOSS_RULES,
                                .backward = kl_backward,
                                .reads = {TARGET, X | TARGET},
                                .kernel = LS_KERNEL(kl_div)};

const ls_op *const ls_loss_ops[] = {&mse_op, &l1_op, &huber_op, &bce_op, &bce_with_logits_op, &kl_div_op, NULL};

/* Integers would have to be rounded to f32, and have no gradients. */
static ls_status check_dtypes(const char *call, const ls_tensor *x, const ls_tensor *target) {
    const ls_dtype of_x = (ls_dtype)x->dtype, of_target = (ls_dtype)target->dtype;
    return ls_dtype_is_floating(of_x) || ls_dtype_is_floating(of_target)
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "%s: x is %s and target is %s, but one of them must be floating-point: convert it with ls_to",
                         call, ls_dtype_name(of_x), ls_dtype_name(of_target));
}

static ls_tensor *apply_loss(const ls_op *op, ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction,
                             double number) {
    ls_tensor *const inputs[] = {x, target};
    if (x == NULL || target == NULL) {
        return ls_apply(op, inputs, 2, NULL); /* reports the error */
    }
    if (!ls_inputs_are_here(op->name, inputs, 2)) {
        return NULL;
    }
    if (check_dtypes(op->name, x, target) != LS_OK || ls_loss_take_reduction(op->name, reduction) != LS_OK) {
        return ls_scope_failed();
    }
    const ls_op_parameters parameters = {.number = {number}, .integer = {[REDUCTION] = reduction}};
    const ls_dtype dtype = ls_promote_real(ls_promote(x, target));
    return x->dtype == dtype && target->dtype == dtype && ls_is_plain(dtype)
               ? ls_apply(op, inputs, 2, &parameters)
               : ls_apply_as(op, inputs, 2, 2, &parameters, ls_compute_dtype(dtype), dtype);
}

ls_tensor *ls_mse_loss(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return apply_loss(&mse_op, x, target, reduction, 0.0);
}

ls_tensor *ls_l1_loss(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return apply_loss(&l1_op, x, target, reduction, 0.0);
}

ls_tensor *ls_huber_loss(ls_tensor *x, ls_tensor *target, double delta, ls_loss_reduction reduction) {
    if (!(delta > 0.0)) {
        return ls_fail_noted(LS_ERR_ARGUMENT, "%s: delta is %g, but must be positive", huber_op.name, delta);
    }
    return apply_loss(&huber_op, x, target, reduction, delta);
}

/* Fails if the least or the largest probability is outside [0, 1]. Accepts NaN. Sets `low` to the least probability. */
static ls_status check_range(const ls_tensor *least, const ls_tensor *largest, double *low) {
    if (least == NULL || largest == NULL) {
        return ls_error_status();
    }
    const double high = ls_item(largest);
    *low = ls_item(least);
    return *low < 0 || high > 1 ? ls_fail(LS_ERR_ARGUMENT,
                                          "ls_bce_loss: a probability is %g, but must be from 0 to 1; for logits, use "
                                          "ls_bce_with_logits_loss",
                                          *low < 0 ? *low : high)
                                : LS_OK;
}

/* Checks the elements of `p`, with recording off. NaN hides other elements, so a second pass counts it as 0. */
static ls_status check_elements(ls_tensor *p) {
    ls_tensor *least = ls_min(p), *largest = ls_max(p);
    double low = 0;
    ls_status status = check_range(least, largest, &low);
    if (status == LS_OK && isnan(low)) {
        ls_tensor *unknown = ls_is_nan(p), *known = ls_masked_fill(p, unknown, 0);
        status = known != NULL ? check_elements(known) : ls_error_status();
        ls_release(unknown);
        ls_release(known);
    }
    ls_release(least);
    ls_release(largest);
    return status;
}

/*
 * Checks that elements are in [0, 1], because logits passed by mistake could give a plausible loss. NaN is accepted, as
 * in every loss.
 */
static ls_status check_probabilities(ls_tensor *probability) {
    if (probability == NULL || probability->count == 0 || probability->dtype == LS_BOOL) {
        return LS_OK;
    }
    ls_capture_refuse_here("ls_bce_loss", "checks its probabilities on the host, which a replay does not: use "
                                          "ls_bce_with_logits_loss");
    const bool before = ls_no_grad(true);
    const ls_status status = check_elements(probability);
    (void)ls_no_grad(before);
    return status;
}

ls_tensor *ls_bce_loss(ls_tensor *probability, ls_tensor *target, ls_loss_reduction reduction) {
    if (!ls_inputs_are_here(bce_op.name, &probability, 1)) {
        return NULL;
    }
    if (check_probabilities(probability) != LS_OK) {
        return ls_scope_failed();
    }
    return apply_loss(&bce_op, probability, target, reduction, 0.0);
}

/* Checks that the weight broadcasts to the shape of the logits. */
static ls_status check_weight(const char *which, const ls_tensor *weight, const ls_tensor *logits) {
    if (weight == NULL) {
        return LS_OK;
    }
    const int added = logits->ndim - weight->ndim;
    bool fits = added >= 0;
    for (int i = 0; fits && i < weight->ndim; i++) {
        fits = weight->size[i] == 1 || weight->size[i] == logits->size[added + i];
    }
    return fits ? LS_OK
                : ls_fail(LS_ERR_SHAPE, "%s: %s is %s, but must broadcast to the logits %s", bce_with_logits_op.name,
                          which, LS_SHAPE_TEXT(weight), LS_SHAPE_TEXT(logits));
}

/* Computes 1 + (pos_weight - 1) * target. */
static ls_tensor *positive_factor(ls_tensor *target, ls_tensor *pos_weight) {
    ls_tensor *more = ls_sub_number(pos_weight, 1);
    more = more == NULL ? NULL : ls_replaced(ls_mul_tensor(more, target), more, NULL);
    return more == NULL ? NULL : ls_replaced(ls_add_number(more, 1), more, NULL);
}

/* Computes positive_factor * log(1 + exp(-x)). */
static ls_tensor *positive_part(ls_tensor *x, ls_tensor *target, ls_tensor *pos_weight) {
    ls_tensor *part = ls_neg(x);
    part = part == NULL ? NULL : ls_replaced(ls_softplus(part), part, NULL);
    if (part == NULL || pos_weight == NULL) {
        return part;
    }
    ls_tensor *factor = positive_factor(target, pos_weight);
    ls_tensor *y = factor == NULL ? NULL : ls_replaced(ls_mul_tensor(part, factor), factor, NULL);
    return ls_replaced(y, part, NULL);
}

/* Computes weight * ((1 - target) * x + (1 + (pos_weight - 1) * target) * log(1 + exp(-x))) of each element. */
static ls_tensor *weighted_bce(ls_tensor *x, ls_tensor *target, const ls_bce_with_logits_options *options) {
    ls_tensor *product = ls_mul_tensor(x, target);
    ls_tensor *rest = product == NULL ? NULL : ls_replaced(ls_sub_tensor(x, product), product, NULL);
    ls_tensor *part = rest == NULL ? NULL : positive_part(x, target, options->pos_weight);
    ls_tensor *loss = part == NULL ? NULL : ls_replaced(ls_add_tensor(rest, part), part, NULL);
    ls_release(rest);
    return loss == NULL || options->weight == NULL ? loss
                                                   : ls_replaced(ls_mul_tensor(loss, options->weight), loss, NULL);
}

ls_tensor *ls_bce_with_logits_loss(ls_tensor *logits, ls_tensor *target, const ls_bce_with_logits_options *options) {
    static const ls_bce_with_logits_options defaults;
    const char *const call = bce_with_logits_op.name;
    options = options != NULL ? options : &defaults;
    if (options->weight == NULL && options->pos_weight == NULL) {
        return apply_loss(&bce_with_logits_op, logits, target, options->reduction, 0.0);
    }
    if (!ls_inputs_are_given(call, (ls_tensor *[]){logits, target}, 2) ||
        !ls_inputs_are_here(call, (ls_tensor *[]){logits, target, options->weight, options->pos_weight}, 4)) {
        return NULL;
    }
    if (check_dtypes(call, logits, target) != LS_OK || ls_loss_take_reduction(call, options->reduction) != LS_OK ||
        check_shapes(call, logits, target) != LS_OK || check_weight("weight", options->weight, logits) != LS_OK ||
        check_weight("pos_weight", options->pos_weight, logits) != LS_OK) {
        return ls_scope_failed();
    }
    /* unsigned integers cannot be negated */
    ls_tensor *x = ls_dtype_is_floating(logits->dtype) ? logits : ls_to(logits, ls_promote_real(logits->dtype));
    ls_tensor *losses = x != NULL ? weighted_bce(x, target, options) : NULL;
    (void)ls_replaced(NULL, x, logits);
    return ls_loss_reduced(losses, options->reduction);
}

ls_tensor *ls_kl_div_loss(ls_tensor *log_probabilities, ls_tensor *target, ls_loss_reduction reduction) {
    return apply_loss(&kl_div_op, log_probabilities, target, reduction, 0.0);
}
