/*
 * A program's own operations: values and gradients with one and several outputs, saved tensors, views as inputs, tapes
 * that are walked twice or not at all, and every possible mistake in a program's functions.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>
#include <string.h>

#include <lockstep/lockstep.h>

static int released;

static void count_release(void *user) {
    released += *(int *)user;
}

static ls_tensor *leaf(ls_shape shape, int salt) {
    ls_tensor *x = ls_empty(shape, LS_F64);
    for (int64_t i = 0; i < ls_numel(x); i++) {
        ((double *)elements(x))[i] = sin(1.3 * salt + 0.7 * (double)i) + 1.5;
    }
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    return x;
}

/* ---- a product, by hand ------------------------------------------------------------------------------------------ */

static ls_status multiply(ls_custom_call *call) {
    ls_tensor *y = ls_empty(ls_shape_of(call->inputs[0]), LS_F64);
    const double *a = ls_data_const(call->inputs[0]), *b = ls_data_const(call->inputs[1]);
    for (int64_t i = 0; i < ls_numel(y); i++) {
        ((double *)ls_data(y))[i] = a[i] * b[i];
    }
    call->outputs[0] = y;
    return LS_OK;
}

static ls_status multiply_backward(ls_custom_call *call) {
    for (int i = 0; i < 2; i++) {
        if (call->wanted[i]) {
            call->input_gradients[i] = ls_mul(call->output_gradients[0], call->inputs[1 - i]);
        }
    }
    return LS_OK;
}

static const ls_custom_op product = {
    .name = "product", .forward = multiply, .backward = multiply_backward, .release = count_release, .on_host = true};
static int once = 1;

static ls_tensor *of_product(ls_tensor **inputs, int count, void *user) {
    (void)user;
    return ls_custom(&product, inputs, count, &once, NULL);
}

/* Uses non-contiguous views, and one tensor twice. */
static ls_tensor *of_views(ls_tensor **inputs, int count, void *user) {
    (void)user;
    (void)count;
    ls_tensor *both[] = {ls_transpose(inputs[0], 0, 1), ls_expand(inputs[1], LS_SHAPE(3, 2))};
    ls_tensor *first = ls_custom(&product, both, 2, &once, NULL);
    return ls_custom(&product, (ls_tensor *[]){first, first}, 2, &once, NULL);
}

TEST(test_gradients_of_one_output) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *inputs[] = {leaf(LS_SHAPE(2, 3), 1), leaf(LS_SHAPE(2, 3), 2)};
    assert_int_equal(ls_gradcheck(of_product, inputs, 2, NULL, NULL), LS_OK);
    inputs[1] = leaf(LS_SHAPE(2), 3);
    assert_int_equal(ls_gradcheck(of_views, inputs, 2, NULL, NULL), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_true(released > 0);
}

TEST(test_user_data_lives_as_long_as_the_tape) {
    ls_scope *outer = ls_scope_begin();
    ls_tensor *inputs[] = {leaf(LS_SHAPE(4), 1), leaf(LS_SHAPE(4), 2)};
    released = 0;
    ls_scope *scope = ls_scope_begin();
    ls_tensor *y = ls_custom(&product, inputs, 2, &once, NULL);
    assert_int_equal(released, 0);
    ls_tensor *loss = ls_sum(y);
    assert_int_equal(ls_backward_with(loss, &(ls_backward_options){.keep_tape = true}), LS_OK);
    assert_int_equal(released, 0);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_int_equal(released, 1);
    for (int64_t i = 0; i < 4; i++) { /* two passes */
        assert_true(((double *)elements(ls_grad(inputs[0])))[i] == 2 * ((double *)elements(inputs[1]))[i]);
    }
    assert_non_null(ls_custom(&product, inputs, 2, &once, NULL)); /* never walked: freed with its scope */
    const bool before = ls_no_grad(true);
    assert_non_null(ls_custom(&product, inputs, 2, &once, NULL)); /* not recorded */
    (void)ls_no_grad(before);
    assert_int_equal(released, 2);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_int_equal(released, 3);
    assert_int_equal(ls_scope_end(outer), LS_OK);
}

/* ---- several outputs --------------------------------------------------------------------------------------------- */

/* Returns (a * s, sign of a as integers, s * s). s = exp(b) is saved. */
static ls_status three(ls_custom_call *call) {
    ls_tensor *s = ls_exp(call->inputs[1]);
    call->saved[0] = s;
    call->outputs[0] = ls_mul(call->inputs[0], s);
    call->outputs[1] = ls_to(ls_gt(call->inputs[0], 0), LS_I64);
    call->outputs[2] = ls_transpose(ls_reshape(ls_square(s), LS_SHAPE(2, 2)), 0, 1);
    return LS_OK;
}

static ls_status three_backward(ls_custom_call *call) {
    ls_tensor *s = call->saved[0], *g = call->output_gradients[0];
    ls_tensor *h = ls_reshape(ls_transpose(call->output_gradients[2], 0, 1), LS_SHAPE(4));
    call->input_gradients[0] = ls_mul(g, s);
    call->input_gradients[1] = ls_mul(ls_add(ls_mul(g, call->inputs[0]), ls_mul(ls_mul(h, s), 2)), s);
    return LS_OK;
}

static const ls_custom_op several = {.name = "several",
                                     .forward = three,
                                     .backward = three_backward,
                                     .release = count_release,
                                     .outputs = 3,
                                     .saved = 1};

static ls_tensor *of_several(ls_tensor **inputs, int count, void *user) {
    const int which = *(int *)user;
    ls_tensor *outputs[3];
    if (ls_custom(&several, inputs, count, &once, outputs) == NULL) {
        return NULL;
    }
    return which == 0 ? outputs[0] : which == 1 ? outputs[2] : ls_add(ls_sum(outputs[0]), ls_sum(ls_sin(outputs[2])));
}

TEST(test_gradients_of_several_outputs) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *inputs[] = {leaf(LS_SHAPE(4), 1), leaf(LS_SHAPE(4), 2)};
    for (int which = 0; which < 3; which++) {
        assert_int_equal(ls_gradcheck(of_several, inputs, 2, &which, NULL), LS_OK);
    }
    ls_tensor *outputs[3];
    const ls_tensor *first = ls_custom(&several, inputs, 2, &once, outputs);
    assert_true(first != NULL && first == outputs[0]);
    assert_int_equal(ls_dtype_of(outputs[1]), LS_I64);
    assert_false(ls_requires_grad(outputs[1]));
    assert_true(ls_requires_grad(outputs[0]) && ls_requires_grad(outputs[2]));
    ls_zero_grad(inputs[0]);
    ls_zero_grad(inputs[1]);
    ls_tensor *loss = ls_sum(outputs[2]);
    for (int pass = 0; pass < 2; pass++) { /* the second pass gets nothing from the first */
        assert_int_equal(ls_backward_with(loss, &(ls_backward_options){.keep_tape = true}), LS_OK);
    }
    for (int64_t i = 0; i < 4; i++) {
        const double s = exp(((double *)elements(inputs[1]))[i]);
        assert_true(fabs(((double *)elements(ls_grad(inputs[1])))[i] - 4 * s * s) < 1e-9 * s * s);
        assert_true(((double *)elements(ls_grad(inputs[0])))[i] == 0);
    }
    released = 0;
    ls_tensor *kept = ls_keep(outputs[0]); /* one output outlives the scope, and keeps its part of the tape */
    ls_scope *inner = ls_scope_begin();
    (void)ls_custom(&several, inputs, 2, &once, outputs);
    ls_tensor *other = ls_keep(outputs[2]);
    assert_int_equal(ls_scope_end(inner), LS_OK);
    assert_int_equal(released, 0);
    assert_int_equal(ls_backward(ls_sum(ls_mul(other, other))), LS_OK);
    assert_int_equal(released, 1);
    ls_release(other);
    ls_release(kept);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_int_equal(released, 2);
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */

enum {
    NO_OUTPUT,
    NO_SAVED,
    FAILS,
    FAILS_IN_SILENCE,
    OPERATION_FAILS,
    LEAVES_A_SCOPE,
    WRONG_SHAPE,
    WRONG_DTYPE,
    NONE,
    BACKWARD_FAILS,
    BACKWARD_TRANSLATES
};

static ls_status err(ls_custom_call *call) {
    const int how = *(int *)call->user;
    ls_tensor *x = call->inputs[0];
    call->outputs[0] = how == NO_OUTPUT ? NULL : ls_square(x);
    call->saved[0] = how == NO_SAVED ? NULL : x;
    if (how == FAILS) {
        return ls_error_set(LS_ERR_ARGUMENT, "the matrix is singular in row %d", 3);
    }
    if (how == FAILS_IN_SILENCE) { /* the previous error belongs to a different call */
        return LS_ERR_ARGUMENT;
    }
    if (how == OPERATION_FAILS) {
        (void)ls_matmul(x, ls_ones(LS_SHAPE(7, 7), LS_F64));
    }
    if (how == LEAVES_A_SCOPE) {
        (void)ls_scope_begin();
        call->outputs[0] = ls_mul(ls_square(x), 1);
    }
    return LS_OK;
}

static ls_status err_backward(ls_custom_call *call) {
    const int how = *(int *)call->user;
    ls_tensor *g = ls_mul(ls_mul(call->output_gradients[0], call->saved[0]), 2);
    if (how == BACKWARD_FAILS) {
        return ls_error_set(LS_ERR_ARGUMENT, "no adjoint");
    }
    if (how == BACKWARD_TRANSLATES) { /* the status of its last error differs from its result */
        (void)ls_error_set(LS_ERR_ARGUMENT, "no adjoint");
        return LS_ERR_IO;
    }
    call->input_gradients[0] = how == WRONG_SHAPE   ? ls_reshape(g, LS_SHAPE(3, 1))
                               : how == WRONG_DTYPE ? ls_to(g, LS_F32)
                               : how == NONE        ? NULL
                                                    : g;
    return LS_OK;
}

static const ls_custom_op erring = {.name = "erring", .forward = err, .backward = err_backward, .saved = 1};

static ls_status try(int how, ls_tensor *x) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *y = ls_custom(&erring, &x, 1, &how, NULL);
    const ls_status status = ls_backward(ls_sum(y));
    const ls_status ended = ls_scope_end(scope);
    assert_int_equal(status, ended);
    return status;
}

TEST(test_mistakes) {
    static const struct {
        int how;
        ls_status status;
        const char *says;
    } cases[] = {
        {NO_OUTPUT, LS_ERR_STATE, "erring: its forward function returned no output 0"},
        {NO_SAVED, LS_ERR_STATE, "erring: its forward function returned no saved tensor 0"},
        {FAILS, LS_ERR_ARGUMENT, "the matrix is singular in row 3"},
        {FAILS_IN_SILENCE, LS_ERR_ARGUMENT, "erring: its forward function failed with LS_ERR_ARGUMENT"},
        {OPERATION_FAILS, LS_ERR_SHAPE, "ls_matmul: [3] x [7, 7]"},
        {WRONG_SHAPE, LS_ERR_SHAPE,
         "erring: its backward function returned a gradient of argument 1 that is [3, 1] of f64, but the argument is "
         "[3] of f64"},
        {WRONG_DTYPE, LS_ERR_SHAPE, "argument 1 that is [3] of f32"},
        {BACKWARD_FAILS, LS_ERR_ARGUMENT, "no adjoint"},
        {BACKWARD_TRANSLATES, LS_ERR_IO, "no adjoint"},
        {LEAVES_A_SCOPE, LS_OK, ""},
        {NONE, LS_OK, ""},
    };
    ls_tensor *x = leaf(LS_SHAPE(3), 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ls_status status = try(cases[i].how, x);
        if (status != cases[i].status || (status != LS_OK && strstr(ls_error_message(), cases[i].says) == NULL)) {
            fail_msg("case %d: %s: %s", cases[i].how, ls_status_name(status), ls_error_message());
        }
    }
    ls_release(x);
}

TEST(test_wrong_calls) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = leaf(LS_SHAPE(3), 1), *gone;
    released = 0;
    assert_null(ls_custom(NULL, &x, 1, NULL, NULL));
    assert_null(ls_custom(&(ls_custom_op){.name = "unmade", .release = count_release}, &x, 1, &once, NULL));
    assert_int_equal(released, 1);
    assert_null(ls_custom(&several, (ls_tensor *[]){x, x}, 2, &once, NULL));
    expect_message("several: it has 3 outputs, but the array of outputs is NULL");
    assert_null(ls_custom(&product, (ls_tensor *[]){x, NULL}, 2, &once, NULL));
    assert_int_equal(released, 3);
    ls_scope *inner = ls_scope_begin();
    gone = ls_square(x);
    (void)ls_scope_end(inner);
    assert_null(ls_custom(&product, (ls_tensor *[]){x, gone}, 2, &once, &gone));
    assert_int_equal(ls_error_status(), LS_ERR_STATE);
    assert_null(gone);
    (void)ls_scope_end(scope);
}

/* Changes any of the inputs, an output or a saved tensor after the call. */
static ls_status join(ls_custom_call *call) {
    ls_tensor *sum = ls_square(call->inputs[0]);
    for (int i = 1; i < call->input_count; i++) {
        sum = ls_add(sum, ls_square(call->inputs[i]));
    }
    *(ls_tensor **)call->user = sum;
    call->saved[0] = ls_keep(sum);
    call->outputs[0] = ls_clone(sum);
    return LS_OK;
}

static ls_status join_backward(ls_custom_call *call) {
    for (int i = 0; i < call->input_count; i++) {
        call->input_gradients[i] = ls_mul(ls_mul(call->inputs[i], call->output_gradients[0]), 2);
    }
    return LS_OK;
}

TEST(test_changes_in_place) {
    enum { INPUTS = 7, OUTPUT = INPUTS, SAVED, NOTHING };
    static const ls_custom_op op = {.name = "join", .forward = join, .backward = join_backward, .saved = 1};
    for (int changed = 0; changed <= NOTHING; changed++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *inputs[INPUTS], *saved = NULL;
        for (int i = 0; i < INPUTS; i++) {
            inputs[i] = ls_mul(leaf(LS_SHAPE(3), i), 1);
        }
        ls_tensor *y = ls_custom(&op, inputs, INPUTS, &saved, NULL);
        ls_tensor *loss = ls_sum(y);
        ls_tensor *target = ls_detach(changed < INPUTS ? inputs[changed] : changed == OUTPUT ? y : saved);
        assert_int_equal(changed == NOTHING ? LS_OK : ls_copy_into(target, ls_ones(LS_SHAPE(3), LS_F64)), LS_OK);
        assert_int_equal(ls_backward(loss), changed == NOTHING ? LS_OK : LS_ERR_STATE);
        assert_true(changed == NOTHING ||
                    strstr(ls_error_message(), changed == OUTPUT ? "join saved its result [3] that was later modified"
                                                                 : "join saved a tensor [3] that was later modified"));
        (void)ls_scope_end(scope);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_of_one_output),
        cmocka_unit_test(test_user_data_lives_as_long_as_the_tape),
        cmocka_unit_test(test_gradients_of_several_outputs),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_changes_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
