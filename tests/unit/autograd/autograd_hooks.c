/*
 * autograd: hooks and watches during a backward pass, communication on the tape, and ls_gradcheck.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include "autograd/tape.h"
#include "tests/support/toy_ops.h"

/* Returns the first element of an f64 gradient. */
#define GRAD(leaf) (*(const double *)elements(ls_grad(leaf)))

/* Notes "h<number>:<gradient> ". */
static ls_status note_hook(ls_tensor *leaf, void *user) {
    toy_note("h%g", *(const double *)user);
    toy_note(":%g ", GRAD(leaf));
    return LS_OK;
}

static ls_status double_hook(ls_tensor *leaf, void *user) {
    (void)user;
    return ls_copy_into(ls_grad(leaf), toy_add(ls_grad(leaf), ls_grad(leaf)));
}

static ls_status stop_hook(ls_tensor *leaf, void *user) {
    (void)leaf;
    (void)user;
    return LS_ERR_STOPPED;
}

static ls_tensor *hooked_leaf(double value, const double *number) {
    ls_tensor *leaf = toy_leaf(LS_SHAPE(2), LS_F64, value);
    union {
        const double *lent;
        void *user;
    } argument = {.lent = number};
    assert_int_equal(ls_add_grad_hook(leaf, note_hook, argument.user), LS_OK);
    return leaf;
}

static const double one = 1;
static const double two = 2;
static const double three = 3;

/* A hook is called as soon as the last use of its leaf is done. f<number> in the log marks the rule of a layer. */
TEST(test_hooks_come_when_a_gradient_is_complete) {
    ls_tensor *w1 = hooked_leaf(1, &one);
    ls_tensor *w2 = hooked_leaf(1, &two);
    ls_tensor *shared = hooked_leaf(1, &three);
    ls_tensor *x = toy_unary(&toy_fail_op, toy_mul(toy_mul(w1, w1), shared), 1);
    x = toy_unary(&toy_fail_op, toy_mul(toy_add(x, shared), w2), 2);
    assert_int_equal(ls_backward(toy_sum(x)), LS_OK);
    assert_string_equal(toy_log, "f2 h2:2 f1 h3:2 h1:2 ");
}

TEST(test_hooks_come_once_in_every_pass) {
    ls_tensor *w = hooked_leaf(1, &one);
    ls_tensor *loss = toy_sum(toy_mul(w, toy_add(w, w)));
    const ls_backward_options keep = {.keep_tape = true};
    assert_int_equal(ls_backward_with(loss, &keep), LS_OK);
    assert_string_equal(toy_log, "h1:4 ");
    assert_int_equal(ls_backward_with(loss, &keep), LS_OK);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_string_equal(toy_log, "h1:4 h1:8 h1:12 ");
}

/* Nodes that no gradient reaches delay no hook. */
TEST(test_dead_branches_hold_no_hook_up) {
    ls_tensor *w = hooked_leaf(1, &one);
    ls_tensor *x = toy_unary(&toy_fail_op, toy_add(w, NULL), 1);
    ls_tensor *dead = toy_sum(toy_mul(w, w));
    ls_tensor *unreached = hooked_leaf(1, &two);
    (void)toy_mul(unreached, w);
    assert_int_equal(ls_backward(toy_sum(toy_mul(x, w))), LS_OK);
    assert_string_equal(toy_log, "f1 h1:2 ");
    assert_int_equal(ls_backward(dead), LS_OK);
    assert_string_equal(toy_log, "f1 h1:2 h1:4 ");
}

TEST(test_hooks_may_change_the_gradient) {
    ls_tensor *w = hooked_leaf(1, &one);
    assert_int_equal(ls_add_grad_hook(w, double_hook, NULL), LS_OK);
    assert_int_equal(ls_add_grad_hook(w, note_hook, &(double){2}), LS_OK);
    assert_int_equal(ls_backward(toy_sum(toy_mul(w, w))), LS_OK);
    assert_string_equal(toy_log, "h1:2 h2:4 ");
    assert_true(GRAD(w) == 4);
}

TEST(test_a_loss_that_is_a_leaf) {
    ls_tensor *w = toy_leaf(LS_SHAPE(1), LS_F64, 5);
    assert_int_equal(ls_add_grad_hook(w, note_hook, &(double){1}), LS_OK);
    assert_int_equal(ls_backward(w), LS_OK);
    assert_string_equal(toy_log, "h1:1 ");
}

TEST(test_a_failing_hook_ends_the_pass) {
    ls_tensor *w = toy_leaf(LS_SHAPE(2), LS_F64, 1);
    ls_tensor *other = hooked_leaf(1, &one);
    assert_int_equal(ls_add_grad_hook(w, stop_hook, NULL), LS_OK);
    ls_scope *inner = ls_scope_begin();
    assert_int_equal(ls_backward(toy_sum(toy_mul(toy_square(other), w))), LS_ERR_STOPPED);
    assert_string_equal(ls_error_message(), "ls_backward: a gradient hook failed with LS_ERR_STOPPED");
    assert_string_equal(toy_log, "");
    assert_int_equal(ls_scope_end(inner), LS_ERR_STOPPED);
    assert_int_equal(ls_add_grad_hook(NULL, stop_hook, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_add_grad_hook(w, NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_add_grad_hook(ls_ones(LS_SHAPE(1), LS_F32), stop_hook, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_set_requires_grad(other, false), LS_OK);
    assert_int_equal(ls_add_grad_hook(other, stop_hook, NULL), LS_ERR_ARGUMENT);
}

static ls_status nested_hook(ls_tensor *leaf, void *user) {
    (void)leaf;
    return ls_backward(user);
}

/* Releases tensors that the pass uses, and leaves a scope open. */
static ls_status careless_hook(ls_tensor *leaf, void *user) {
    (void)leaf;
    ls_tensor **tensors = user;
    for (int i = 0; tensors[i] != NULL; i++) {
        ls_release(tensors[i]);
    }
    return ls_scope_begin() != NULL ? LS_OK : LS_ERR_MEMORY;
}

TEST(test_hooks_that_misbehave) {
    ls_tensor *w = toy_leaf(LS_SHAPE(2), LS_F64, 1);
    ls_tensor *other = toy_sum(toy_square(toy_leaf(LS_SHAPE(2), LS_F64, 1)));
    assert_int_equal(ls_add_grad_hook(w, nested_hook, other), LS_OK);
    assert_int_equal(ls_backward(toy_sum(w)), LS_ERR_STATE);
    assert_string_equal(ls_error_message(),
                        "ls_backward: called during a backward pass, by a hook or a backward function");
    assert_int_equal(ls_backward(other), LS_OK);
    for (int keep = 0; keep < 2; keep++) {
        ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 1);
        ls_tensor *y = toy_square(x);
        ls_tensor *unreached = toy_exp(y);
        ls_tensor *z = toy_mul(y, y);
        ls_tensor *v = toy_leaf(LS_SHAPE(2), LS_F64, 3);
        ls_tensor *product = toy_mul(z, v);
        ls_tensor *unreached_too = toy_mul(product, v);
        ls_tensor *loss = toy_sum(product);
        ls_tensor *released[] = {loss, y, unreached, z, product, unreached_too, v, NULL};
        assert_int_equal(ls_add_grad_hook(v, careless_hook, released), LS_OK);
        assert_int_equal(ls_backward_with(loss, &(ls_backward_options){.keep_tape = keep == 1}), LS_OK);
        assert_true(GRAD(x) == 12);
        assert_int_equal(x->leaf->uses, 0);
        assert_ptr_equal(ls_thread()->scope, scope);
    }
}

static ls_status note_callback(void *user, const ls_pass_findings *findings) {
    (void)findings;
    toy_note("a%g ", *(const double *)user);
    return LS_OK;
}

static const ls_pass_watch note_watch = {.end = note_callback};

static ls_status register_hook(ls_tensor *leaf, void *user) {
    (void)leaf;
    return ls_watch_pass(&note_watch, user, 0);
}

static ls_status failing_callback(void *user, const ls_pass_findings *findings) {
    (void)findings;
    (void)user;
    return ls_fail(LS_ERR_PEER, "callback: rank 3 is gone");
}

static const ls_pass_watch failing_watch = {.end = failing_callback};

TEST(test_callbacks_at_the_end_of_a_pass) {
    double numbers[] = {1, 2, 3};
    ls_tensor *w = toy_leaf(LS_SHAPE(2), LS_F64, 1);
    assert_int_equal(ls_add_grad_hook(w, register_hook, &numbers[2]), LS_OK);
    assert_int_equal(ls_watch_pass(&note_watch, &numbers[0], 0), LS_OK);
    assert_int_equal(ls_watch_pass(&note_watch, &numbers[1], 0), LS_OK);
    ls_tensor *loss = toy_sum(toy_unary(&toy_fail_op, w, 0));
    ls_scope *inner = ls_scope_begin();
    assert_int_equal(ls_watch_pass(&failing_watch, NULL, 0), LS_OK); /* has no node on its tape, so it is not called */
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_int_equal(ls_scope_end(inner), LS_OK);
    assert_string_equal(toy_log, "f0 a1 a2 a3 ");
    assert_int_equal(ls_backward(toy_sum(w)), LS_OK); /* only the hook's error occurs again */
    assert_string_equal(toy_log, "f0 a1 a2 a3 a3 ");
    assert_int_equal(ls_watch_pass(&failing_watch, NULL, 0), LS_OK);
    assert_int_equal(ls_backward(toy_sum(w)), LS_ERR_PEER);
    assert_string_equal(ls_error_message(), "callback: rank 3 is gone");
}

/* Appends "l<remaining uses>" for a complete leaf. The user pointer of the watch is the observer. */
static void note_leaf(void *user, const ls_leaf *leaf) {
    (void)user;
    toy_note("l%g ", leaf->remaining);
}

static bool never_agrees(void *user, const ls_batch_loss *loss) {
    (void)user;
    (void)loss;
    return false;
}

static ls_status observe(void *user, ls_batch_loss *loss, bool agreed) {
    (void)loss;
    (void)agreed;
    ls_pass_observe(user);
    return LS_OK;
}

static ls_status end_observed(void *user, const ls_pass_findings *findings) {
    (void)user;
    (void)findings;
    toy_note("end ", 0);
    return LS_OK;
}

static void note_abandoned(void *user, bool missed) {
    (void)user;
    toy_note(missed ? "missed " : "abandoned ", 0);
    (void)ls_fail(LS_ERR_PEER, "an error of its own");
}

static const ls_pass_watch observing_watch = {
    .agrees = never_agrees, .begin = observe, .end = end_observed, .abandon = note_abandoned};

TEST(test_observers_follow_a_pass) {
    ls_pass_observer observer = {.leaf_complete = note_leaf};
    ls_tensor *once = hooked_leaf(1, &one), *twice = hooked_leaf(1, &two);
    assert_int_equal(ls_watch_pass(&observing_watch, &observer, 0), LS_OK);
    ls_tensor *x = toy_mul(toy_mul(once, twice), twice);
    assert_int_equal(ls_backward(toy_sum(x)), LS_OK);
    assert_string_equal(toy_log, "h1:1 l0 h2:2 l0 end ");
}

TEST(test_observers_of_a_failed_pass) {
    ls_pass_observer observer = {.leaf_complete = note_leaf};
    ls_tensor *w = toy_leaf(LS_SHAPE(2), LS_F64, 1);
    assert_int_equal(ls_watch_pass(&observing_watch, &observer, 0), LS_OK);
    ls_tensor *loss = toy_sum(toy_unary(&toy_fail_op, toy_square(w), 0));
    toy_fails = true;
    assert_int_equal(ls_backward(loss), LS_ERR_UNSUPPORTED);
    toy_fails = false;
    assert_string_equal(ls_error_message(), "toy_fail: as asked");
    assert_string_equal(toy_log, "f0 abandoned ");
}

TEST(test_communication_is_never_dead) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 1);
    ls_release(toy_send(x, 1)); /* the result of this call is not used */
    ls_tensor *second = toy_send(toy_square(x), 2);
    ls_tensor *loss = toy_sum(second);
    (void)toy_send(second, 3); /* recorded after the loss */
    ls_scope *inner = ls_scope_begin();
    (void)toy_send(x, 4);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_string_equal(toy_log, "c4:0 c3:0 c2:2 c1:0 ");
    assert_true(GRAD(x) == 2);
    assert_int_equal(ls_scope_end(inner), LS_OK);
    assert_null(scope->tape.first);
}

TEST(test_communication_outlives_its_scope) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 1);
    ls_scope *inner = ls_scope_begin();
    (void)toy_send(toy_send(toy_square(x), 1),
                   2); /* another rank may need it, although this rank keeps no tensor that depends on it */
    assert_int_equal(ls_scope_end(inner), LS_OK);
    inner = ls_scope_begin();
    (void)toy_send(toy_square(x), 3);
    ls_tensor *loss = ls_keep(toy_sum(x)); /* keeping a tensor keeps its communication */
    (void)toy_send(x, 4);
    assert_int_equal(ls_scope_end(inner), LS_OK);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_string_equal(toy_log, "c4:0 c3:0 c2:0 c1:0 ");
    assert_null(scope->tape.first);
}

TEST(test_communication_ends_with_the_outermost_scope) {
    ls_tensor *x = ls_keep(toy_leaf(LS_SHAPE(2), LS_F64, 1));
    (void)toy_send(toy_send(toy_square(x), 1), 2); /* no pass can reach it: it is freed with its history */
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_int_equal(x->leaf->uses, 0);
    scope = ls_scope_begin();
    assert_int_equal(ls_backward(ls_scalar(0, LS_F64)), LS_ERR_STATE);
    ls_release(x);
}

TEST(test_communication_again_with_a_kept_tape) {
    ls_tensor *x = toy_leaf(LS_SHAPE(2), LS_F64, 1);
    ls_tensor *loss = toy_sum(toy_send(x, 1));
    (void)toy_send(x, 2);
    assert_int_equal(ls_backward_with(loss, &(ls_backward_options){.keep_tape = true}), LS_OK);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_string_equal(toy_log, "c2:0 c1:2 c2:0 c1:2 ");
    assert_true(GRAD(x) == 2);
}

/* ---- ls_gradcheck ------------------------------------------------------------------------------------------------ */

static ls_tensor *product_of_squares(ls_tensor **inputs, int count, void *user) {
    (void)count;
    (void)user;
    return toy_mul(toy_turn(toy_square(inputs[0])), toy_exp(inputs[1]));
}

static ls_tensor *wrong_function(ls_tensor **inputs, int count, void *user) {
    (void)count;
    (void)user;
    return toy_unary(&toy_wrong_op, inputs[1], 0);
}

static ls_tensor *unrecorded_function(ls_tensor **inputs, int count, void *user) {
    (void)count;
    (void)user;
    return toy_unary(&toy_flat_op, inputs[0], 0);
}

static ls_tensor *random_function(ls_tensor **inputs, int count, void *user) {
    (void)count;
    (void)user;
    return toy_mul(inputs[0], ls_full(LS_SHAPE(1), LS_F64, (double)ls_random_next_stream().stream));
}

static ls_tensor *failing_function(ls_tensor **inputs, int count, void *user) {
    (void)count;
    (void)user;
    return toy_mul(inputs[0], NULL);
}

/* [2, 3] with gaps, and [3, 1], both f64 leaves that require gradients. */
static void make_inputs(ls_tensor **inputs) {
    ls_tensor *base = ls_arange(LS_SHAPE(3, 4), LS_F64);
    inputs[0] = ls_tensor_view(base, 2, (const int64_t[]){2, 3}, (const int64_t[]){2, 4}, 1);
    inputs[1] = ls_full(LS_SHAPE(3, 1), LS_F64, 0.25);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ls_set_requires_grad(inputs[i], true), LS_OK);
    }
}

TEST(test_gradcheck_agrees) {
    ls_tensor *inputs[2];
    make_inputs(inputs);
    const ls_gradcheck_options tight = {.absolute = 1e-7, .relative = 1e-6};
    assert_int_equal(ls_gradcheck(product_of_squares, inputs, 2, NULL, &tight), LS_OK);
    assert_int_equal(ls_gradcheck(product_of_squares, inputs, 2, NULL, NULL), LS_OK);
    assert_int_equal(ls_set_requires_grad(inputs[0], false), LS_OK);
    assert_int_equal(ls_gradcheck(product_of_squares, inputs, 2, NULL, NULL), LS_OK);
}

TEST(test_gradcheck_finds_what_is_wrong) {
    ls_tensor *inputs[2];
    make_inputs(inputs);
    assert_int_equal(ls_gradcheck(wrong_function, inputs, 2, NULL, NULL), LS_ERR_MISMATCH);
    expect_message("ls_gradcheck: input 1, element [0, 0]: the gradient is ");
    assert_int_equal(ls_gradcheck(unrecorded_function, inputs, 2, NULL, NULL), LS_ERR_MISMATCH);
    assert_int_equal(ls_gradcheck(failing_function, inputs, 2, NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_gradcheck(product_of_squares, inputs, 2, NULL, &(ls_gradcheck_options){.step = -1}),
                     LS_ERR_ARGUMENT);
    expect_message("ls_gradcheck: step is -1");
    assert_int_equal(
        ls_gradcheck(product_of_squares, inputs, 2, NULL, &(ls_gradcheck_options){.step = (double)INFINITY}),
        LS_ERR_ARGUMENT);
    expect_message("ls_gradcheck: step is inf");
    assert_int_equal(
        ls_gradcheck(product_of_squares, inputs, 2, NULL, &(ls_gradcheck_options){.relative = (double)NAN}),
        LS_ERR_ARGUMENT);
}

TEST(test_gradcheck_leaves_all_as_it_was) {
    ls_tensor *inputs[2];
    make_inputs(inputs);
    assert_int_equal(ls_add_grad_hook(inputs[0], note_hook, &(double){1}), LS_OK);
    assert_int_equal(ls_backward(toy_sum(toy_add(inputs[0], NULL))), LS_OK);
    assert_string_equal(toy_log, "h1:1 ");
    ls_seed(5);
    (void)ls_random_next_stream();
    const ls_leaf *leaf = inputs[0]->leaf;
    ls_tensor *twice[] = {inputs[0], inputs[0]};
    assert_int_equal(ls_gradcheck(random_function, twice, 2, NULL, NULL), LS_OK);
    assert_int_equal(ls_random_get_state().stream, 1);
    assert_int_equal(ls_random_get_state().seed, 5);
    assert_ptr_equal(inputs[0]->leaf, leaf);
    assert_true(ls_at(ls_grad(inputs[0]), (const int64_t[]){1, 2}) == 1);
    assert_true(ls_at(inputs[0], (const int64_t[]){1, 2}) == 11);
    assert_string_equal(toy_log, "h1:1 ");
}

TEST(test_gradcheck_refuses) {
    ls_tensor *plain = ls_ones(LS_SHAPE(2), LS_F64);
    ls_tensor *single = toy_leaf(LS_SHAPE(2), LS_F32, 1);
    ls_tensor *made = toy_square(toy_leaf(LS_SHAPE(2), LS_F64, 1));
    assert_int_equal(ls_gradcheck(unrecorded_function, &plain, 1, NULL, NULL), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "ls_gradcheck: no input requires a gradient");
    assert_int_equal(ls_gradcheck(unrecorded_function, &single, 1, NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_gradcheck(unrecorded_function, &made, 1, NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_gradcheck(NULL, &plain, 1, NULL, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_gradcheck(unrecorded_function, NULL, 1, NULL, NULL), LS_ERR_ARGUMENT);
}

#define HOOK_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        HOOK_TEST(test_hooks_come_when_a_gradient_is_complete),
        HOOK_TEST(test_hooks_come_once_in_every_pass),
        HOOK_TEST(test_dead_branches_hold_no_hook_up),
        HOOK_TEST(test_hooks_may_change_the_gradient),
        HOOK_TEST(test_a_loss_that_is_a_leaf),
        HOOK_TEST(test_a_failing_hook_ends_the_pass),
        HOOK_TEST(test_hooks_that_misbehave),
        HOOK_TEST(test_callbacks_at_the_end_of_a_pass),
        HOOK_TEST(test_observers_follow_a_pass),
        HOOK_TEST(test_observers_of_a_failed_pass),
        HOOK_TEST(test_communication_is_never_dead),
        HOOK_TEST(test_communication_outlives_its_scope),
        HOOK_TEST(test_communication_ends_with_the_outermost_scope),
        HOOK_TEST(test_communication_again_with_a_kept_tape),
        HOOK_TEST(test_gradcheck_agrees),
        HOOK_TEST(test_gradcheck_finds_what_is_wrong),
        HOOK_TEST(test_gradcheck_leaves_all_as_it_was),
        HOOK_TEST(test_gradcheck_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
