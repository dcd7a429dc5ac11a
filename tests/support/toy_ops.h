/*
 * Operations for tests of the autograd engine. Each tests one ability of a gradient rule: sharing its gradient,
 * returning views and repeats, writing into a sink, keeping tensors, communicating, failing. All use kernels for f32
 * and f64.
 */
#ifndef LS_TESTS_SUPPORT_TOY_OPS_H
#define LS_TESTS_SUPPORT_TOY_OPS_H

#include <string.h>

#include "autograd/op.h"

static inline ls_status toy_status(const ls_tensor *made) {
    return made != NULL ? LS_OK : ls_error_status();
}

/* The shape after broadcasting. */
static inline ls_status toy_shape_of_all(ls_op_call *call) {
    int64_t size[LS_MAX_DIMS];
    int ndim = 0;
    for (int i = 0; i < call->input_count; i++) {
        ndim = call->inputs[i] != NULL && call->inputs[i]->ndim > ndim ? call->inputs[i]->ndim : ndim;
    }
    for (int axis = 0; axis < ndim; axis++) {
        size[axis] = 1;
        for (int i = 0; i < call->input_count; i++) {
            const ls_tensor *input = call->inputs[i];
            const int at = input != NULL ? axis - (ndim - input->ndim) : -1;
            size[axis] = at >= 0 && input->size[at] != 1 ? input->size[at] : size[axis];
        }
    }
    call->output =
        ls_tensor_new(call->op->name, ls_tensor_device(call->inputs[0]), ndim, size, (ls_dtype)call->inputs[0]->dtype);
    return toy_status(call->output);
}

static inline ls_status toy_map(ls_map_kernel *kernel, ls_tensor *y, const ls_tensor *a, const ls_tensor *b) {
    return kernel(ls_stream_of(y), y, (const ls_tensor *const[]){a, b}, NULL);
}

/* Makes a new tensor with a's shape and the result of kernel(a, b). */
static inline ls_tensor *toy_new_map(ls_map_kernel *kernel, const ls_tensor *a, const ls_tensor *b) {
    ls_tensor *y = ls_tensor_like("toy", a, (ls_dtype)a->dtype);
    return y != NULL && toy_map(kernel, y, a, b) == LS_OK ? y : NULL;
}

/* a + b: both inputs get the gradient tensor itself. b may be NULL. */
static inline ls_status toy_add_forward(ls_op_call *call) {
    const ls_kernels *kernels = ls_kernels_of(call->output);
    return call->inputs[1] != NULL ? toy_map(kernels->add, call->output, call->inputs[0], call->inputs[1])
                                   : kernels->copy(ls_stream_of(call->output), call->output, call->inputs[0]);
}
static inline ls_status toy_add_backward(ls_node *node, ls_tensor *gradient) {
    LS_TRY(ls_accumulate(node, 0, gradient));
    return node->inputs[1] != NULL ? ls_accumulate(node, 1, gradient) : LS_OK;
}
static const ls_op toy_add_op = {.name = "toy_add",
                                 .shape = toy_shape_of_all,
                                 .forward = toy_add_forward,
                                 .backward = toy_add_backward,
                                 .optional = 2};

/* a * b: each input gets a new tensor. */
static inline ls_status toy_mul_forward(ls_op_call *call) {
    return toy_map(ls_kernels_of(call->output)->mul, call->output, call->inputs[0], call->inputs[1]);
}
static inline ls_status toy_mul_backward(ls_node *node, ls_tensor *gradient) {
    for (int i = 0; i < 2; i++) {
        if (ls_wants(node, i)) {
            LS_TRY(ls_accumulate(node, i, toy_new_map(ls_kernels_of(gradient)->mul, gradient, node->inputs[1 - i])));
        }
    }
    return LS_OK;
}
static const ls_op toy_mul_op = {
    .name = "toy_mul", .shape = toy_shape_of_all, .forward = toy_mul_forward, .backward = toy_mul_backward};

/* x * x: writes the gradient into a sink. */
static inline ls_status toy_square_forward(ls_op_call *call) {
    return toy_map(ls_kernels_of(call->output)->mul, call->output, call->inputs[0], call->inputs[0]);
}
static inline ls_status toy_square_backward(ls_node *node, ls_tensor *gradient) {
    bool accumulate;
    ls_tensor *sink = ls_gradient_place(node, 0, &accumulate);
    ls_tensor *half = sink != NULL ? toy_new_map(ls_kernels_of(sink)->mul, gradient, node->inputs[0]) : NULL;
    ls_tensor *whole = half != NULL ? toy_new_map(ls_kernels_of(sink)->add, half, half) : NULL;
    if (whole == NULL) {
        return ls_error_status();
    }
    return accumulate ? toy_map(ls_kernels_of(sink)->add, sink, sink, whole)
                      : ls_kernels_of(sink)->copy(ls_stream_of(sink), sink, whole);
}
static const ls_op toy_square_op = {
    .name = "toy_square", .shape = toy_shape_of_all, .forward = toy_square_forward, .backward = toy_square_backward};

/* The sum of all elements. Its gradient is a view that repeats one number. */
static inline ls_status toy_sum_shape(ls_op_call *call) {
    call->output =
        ls_tensor_new("toy_sum", ls_tensor_device(call->inputs[0]), 0, NULL, (ls_dtype)call->inputs[0]->dtype);
    return toy_status(call->output);
}
static inline ls_status toy_sum_forward(ls_op_call *call) {
    ls_tensor look = *call->output;
    look.ndim = call->inputs[0]->ndim;
    for (int i = 0; i < look.ndim; i++) {
        look.size[i] = 1;
        look.stride[i] = 0;
    }
    return ls_kernels_of(&look)->sum(ls_stream_of(&look), &look, call->inputs[0]);
}
static inline ls_status toy_sum_backward(ls_node *node, ls_tensor *gradient) {
    const ls_tensor *input = node->inputs[0];
    return ls_accumulate(node, 0,
                         ls_tensor_view(gradient, input->ndim, input->size, (const int64_t[LS_MAX_DIMS]){0}, 0));
}
static const ls_op toy_sum_op = {
    .name = "toy_sum", .shape = toy_sum_shape, .forward = toy_sum_forward, .backward = toy_sum_backward};

/* Transposes a matrix. The result is a view in both passes. */
static inline ls_tensor *toy_turned(const ls_tensor *x) {
    return ls_tensor_view(x, 2, (const int64_t[]){x->size[1], x->size[0]},
                          (const int64_t[]){x->stride[1], x->stride[0]}, 0);
}
static inline ls_status toy_turn_shape(ls_op_call *call) {
    call->output = toy_turned(call->inputs[0]);
    return toy_status(call->output);
}
static inline ls_status toy_turn_backward(ls_node *node, ls_tensor *gradient) {
    return ls_accumulate(node, 0, toy_turned(gradient));
}
static const ls_op toy_turn_op = {.name = "toy_turn", .shape = toy_turn_shape, .backward = toy_turn_backward};

/* exp(x): its gradient needs its output. It keeps a copy of the output, too. */
static inline ls_status toy_exp_forward(ls_op_call *call) {
    ls_tensor *y = call->output;
    LS_TRY(ls_kernels_of(y)->exp(ls_stream_of(y), y, (const ls_tensor *const[]){call->inputs[0]}, NULL));
    if (call->records) {
        call->saved[1] = ls_tensor_like_owned("toy_exp", y, (ls_dtype)y->dtype);
        LS_TRY(toy_status(call->saved[1]));
        return ls_kernels_of(y)->copy(ls_stream_of(y), call->saved[1], y);
    }
    return LS_OK;
}
static inline ls_status toy_exp_backward(ls_node *node, ls_tensor *gradient) {
    if (!ls_equal(node->saved[0], node->saved[1])) {
        /* ls_equal also returns false if there is no memory for copies from the device. */
        return ls_error_status() == LS_ERR_MEMORY ? LS_ERR_MEMORY
                                                  : ls_fail(LS_ERR_INTERNAL, "toy_exp: the saved output has changed");
    }
    return ls_accumulate(node, 0, toy_new_map(ls_kernels_of(gradient)->mul, gradient, node->saved[0]));
}
static const ls_op toy_exp_op = {.name = "toy_exp",
                                 .shape = toy_shape_of_all,
                                 .forward = toy_exp_forward,
                                 .backward = toy_exp_backward,
                                 .saves_output = true};

/* The sum of any number of tensors of the same shape. */
static inline ls_status toy_join_forward(ls_op_call *call) {
    ls_tensor *y = call->output;
    LS_TRY(ls_kernels_of(y)->copy(ls_stream_of(y), y, call->inputs[0]));
    for (int i = 1; i < call->input_count; i++) {
        LS_TRY(toy_map(ls_kernels_of(y)->add, y, y, call->inputs[i]));
    }
    return LS_OK;
}
static inline ls_status toy_join_backward(ls_node *node, ls_tensor *gradient) {
    for (int i = 0; i < node->input_count; i++) {
        LS_TRY(ls_accumulate(node, i, gradient));
    }
    return LS_OK;
}
static const ls_op toy_join_op = {
    .name = "toy_join", .shape = toy_shape_of_all, .forward = toy_join_forward, .backward = toy_join_backward};

/* Passes x on, like communication, and appends the gradient to toy_log: "c<number><sum of the gradient> ". */
static char toy_log[512];
static inline void toy_note(const char *format, double number) {
    const size_t length = strlen(toy_log);
    snprintf(toy_log + length, sizeof toy_log - length, format, number);
}
static inline ls_status toy_send_backward(ls_node *node, ls_tensor *gradient) {
    double sum = 0;
    for (int64_t i = 0; i < gradient->count; i++) {
        sum += ls_at(gradient, &i);
    }
    toy_note("c%g", node->parameters.number[0]);
    toy_note(":%g ", sum);
    return ls_accumulate(node, 0, gradient);
}
static const ls_op toy_send_op = {.name = "toy_send",
                                  .shape = toy_shape_of_all,
                                  .forward = toy_join_forward,
                                  .backward = toy_send_backward,
                                  .communicates = true};

/* Succeeds in the forward pass, and fails in the backward pass while toy_fails is set. Appends to toy_log. */
static bool toy_fails;
static inline ls_status toy_fail_backward(ls_node *node, ls_tensor *gradient) {
    toy_note("f%g ", node->parameters.number[0]);
    LS_TRY(ls_accumulate(node, 0, gradient));
    return toy_fails ? ls_fail(LS_ERR_UNSUPPORTED, "toy_fail: as asked") : LS_OK;
}
static const ls_op toy_fail_op = {
    .name = "toy_fail", .shape = toy_shape_of_all, .forward = toy_join_forward, .backward = toy_fail_backward};

/* Its gradient is wrong by a factor of 1/2. */
static inline ls_status toy_wrong_backward(ls_node *node, ls_tensor *gradient) {
    return ls_accumulate(node, 0, toy_new_map(ls_kernels_of(gradient)->mul, gradient, node->inputs[0]));
}
static const ls_op toy_wrong_op = {
    .name = "toy_wrong", .shape = toy_shape_of_all, .forward = toy_square_forward, .backward = toy_wrong_backward};

/* Has no gradient. */
static const ls_op toy_flat_op = {.name = "toy_flat", .shape = toy_shape_of_all, .forward = toy_join_forward};

static inline ls_tensor *toy_add(ls_tensor *a, ls_tensor *b) {
    return ls_apply(&toy_add_op, (ls_tensor *[]){a, b}, 2, NULL);
}
static inline ls_tensor *toy_mul(ls_tensor *a, ls_tensor *b) {
    return ls_apply(&toy_mul_op, (ls_tensor *[]){a, b}, 2, NULL);
}
static inline ls_tensor *toy_unary(const ls_op *op, ls_tensor *x, double number) {
    return ls_apply(op, &x, 1, &(ls_op_parameters){.number = {number}});
}
static inline ls_tensor *toy_square(ls_tensor *x) {
    return toy_unary(&toy_square_op, x, 0);
}
static inline ls_tensor *toy_sum(ls_tensor *x) {
    return toy_unary(&toy_sum_op, x, 0);
}
static inline ls_tensor *toy_turn(ls_tensor *x) {
    return toy_unary(&toy_turn_op, x, 0);
}
static inline ls_tensor *toy_exp(ls_tensor *x) {
    return toy_unary(&toy_exp_op, x, 0);
}
static inline ls_tensor *toy_send(ls_tensor *x, double number) {
    return toy_unary(&toy_send_op, x, number);
}

/* Makes a leaf that requires a gradient. */
static inline ls_tensor *toy_leaf(ls_shape shape, ls_dtype dtype, double value) {
    ls_tensor *leaf = ls_full(shape, dtype, value);
    if (leaf != NULL && ls_set_requires_grad(leaf, true) != LS_OK) {
        ls_release(leaf);
        return NULL;
    }
    return leaf;
}

/* Each test has its own scope, and begins with an empty log and with toy_fails unset. */
static ls_scope *scope;

static int begin(void **state) {
    (void)state;
    (void)ls_error_set(LS_OK, "%s", "");
    toy_log[0] = '\0';
    toy_fails = false;
    scope = ls_scope_begin();
    return scope == NULL;
}

static int end(void **state) {
    (void)state;
    (void)ls_scope_end(scope); /* the scope contains only errors that the tests provoke */
    return 0;
}

#endif
