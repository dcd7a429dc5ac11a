/* Rotary position embedding: rotates pairs of numbers by angles whose cosines and sines are inputs of the operation. */
#include "autograd/ops/attention.h"

#include "autograd/ops/operand.h"
#include "autograd/ops/ops.h"

#include <math.h>

#include "base/option.h"

static const char call[] = "ls_rotary";

/* Returns 0, 1, ... as an f64 tensor on x's device. */
static ls_tensor *counted(const ls_tensor *x, int ndim, const int64_t *size) {
    ls_tensor *y = ls_tensor_new(call, ls_tensor_device(x), ndim, size, LS_F64);
    if (y != NULL && ls_kernels_of(y)->count_up(ls_stream_of(y), y) != LS_OK) {
        ls_release(y);
        return ls_scope_failed();
    }
    return y;
}

/* Returns the angles [positions, width / 2], in f64: in f32, the angles of distant positions would be inaccurate. */
static ls_tensor *angles_for(const ls_tensor *x, double base, int64_t first) {
    const int64_t positions = x->size[x->ndim - 2], width = x->size[x->ndim - 1];
    ls_tensor *position = counted(x, 2, (const int64_t[]){positions, 1});
    ls_tensor *place = position == NULL ? NULL : ls_add_number(position, (double)first);
    ls_tensor *pair = place == NULL ? NULL : counted(x, 1, (const int64_t[]){width / 2});
    ls_tensor *power = pair == NULL ? NULL : ls_mul_number(pair, -2 * log(base) / (double)width);
    ls_tensor *frequency = power == NULL ? NULL : ls_exp(power);
    ls_tensor *angle = frequency == NULL ? NULL : ls_mul_tensor(place, frequency);
    ls_release(position);
    ls_release(place);
    ls_release(pair);
    ls_release(power);
    ls_release(frequency);
    return angle;
}

/* Returns function(angle) in the dtype. */
static ls_tensor *table(ls_tensor *angle, ls_tensor *(*function)(ls_tensor *), ls_dtype dtype) {
    ls_tensor *exact = function(angle);
    ls_tensor *y = exact == NULL ? NULL : ls_to(exact, dtype);
    ls_release(exact);
    return y;
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

enum { X, COSINE, SINE, INPUTS };
enum { AXIS, HALVES }; /* integers of the parameters: the last axis, and the option */

static ls_status run(ls_tensor *y, const ls_tensor *x, ls_tensor *const *inputs, const ls_op_parameters *parameters,
                     bool backward, bool accumulate) {
    return ls_kernels_of(x)->rotary(ls_stream_of(x), y, x, inputs[COSINE], inputs[SINE],
                                    parameters->integer[HALVES] != 0, backward, accumulate);
}

static ls_status rotary_forward(ls_op_call *op_call) {
    return run(op_call->output, op_call->inputs[X], op_call->inputs, op_call->parameters, false, false);
}

/* Rotates the gradient by the negative angles. */
static ls_status rotary_backward(ls_node *node, ls_tensor *gradient) {
    bool accumulate = false;
    ls_tensor *dx = ls_gradient_place(node, X, &accumulate);
    LS_TRY(ls_made(dx));
    return run(dx, gradient, node->inputs, &node->parameters, true, accumulate);
}

static const ls_op rotary_op = {.name = call,
                                .shape = ls_shape_as_input,
                                .forward = rotary_forward,
                                .backward = rotary_backward,
                                .over_samples = ls_mixes_along_axis,
                                .reads = {[X] = 1U << COSINE | 1U << SINE}};

const ls_op *const ls_rotary_ops[] = {&rotary_op, NULL};

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static double base_of(const ls_rotary_options *options) {
    return ls_option(options->base, 10000);
}

ls_status ls_rotary_check(const char *caller, const ls_rotary_options *options, int64_t count) {
    const double base = base_of(options);
    const int64_t most = (int64_t)1 << 53, first = options->first; /* positions are f64 numbers */
    if (!(base > 0) || !isfinite(base)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: base is %g, but must be positive and finite", caller, base);
    }
    return first >= -most && count <= most && first <= most - count
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: first is %lld, but positions must be from -2^53 to 2^53", caller,
                         (long long)first);
}

static ls_status check(const ls_tensor *x, const ls_rotary_options *options) {
    LS_TRY(ls_check_floating(call, (ls_tensor *[]){(ls_tensor *)x}, 1));
    if (x->ndim < 2 || x->size[x->ndim - 1] % 2 != 0) {
        return ls_fail(LS_ERR_SHAPE, "%s: x is %s, but must be [..., positions, width] with an even width", call,
                       LS_SHAPE_TEXT(x));
    }
    return ls_rotary_check(call, options, x->size[x->ndim - 2]);
}

static ls_tensor *rotated(ls_tensor *x, const ls_rotary_options *options) {
    const ls_op_parameters parameters = {.integer = {[AXIS] = x->ndim - 1, [HALVES] = options->halves}};
    const ls_dtype dtype = (ls_dtype)x->dtype, compute = ls_compute_dtype(dtype);
    ls_tensor *angle = angles_for(x, base_of(options), options->first);
    ls_tensor *cosine = angle == NULL ? NULL : table(angle, ls_cos, compute);
    ls_tensor *sine = cosine == NULL ? NULL : table(angle, ls_sin, compute);
    ls_tensor *const inputs[INPUTS] = {[X] = x, [COSINE] = cosine, [SINE] = sine};
    ls_tensor *y = sine == NULL ? NULL : ls_apply_as(&rotary_op, inputs, INPUTS, 1, &parameters, compute, dtype);
    ls_release(angle);
    ls_release(cosine);
    ls_release(sine);
    return y;
}

ls_tensor *ls_rotary(ls_tensor *x, const ls_rotary_options *options) {
    static const ls_rotary_options defaults;
    options = options != NULL ? options : &defaults;
    if (!ls_inputs_are_given(call, &x, 1)) {
        return NULL;
    }
    return check(x, options) == LS_OK ? rotated(x, options) : ls_scope_failed();
}
