/*
 * Hooks of modules: the values that they receive and replace, their order, adding and removing hooks, and their
 * failures.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <lockstep/nn.h>

/* ---- hooks that record calls ------------------------------------------------------------------------------------- */

/*
 * The events in order: "a" when hooks with this letter began a call, "A" when the call ended, and "'" in the backward
 * pass.
 */
static char events[64];

static void note(const char *event) {
    assert_true(strlen(events) + strlen(event) < sizeof events);
    memcpy(events + strlen(events), event, strlen(event) + 1);
}

static ls_status note_pre(ls_module_call *call, void *user) {
    assert_int_equal(call->input_count, 1);
    assert_non_null(call->inputs[0]);
    note((const char[]){*(const char *)user, '\0'});
    return LS_OK;
}

static ls_status note_forward(ls_module_call *call, void *user) {
    assert_int_equal(call->output_count, 1);
    assert_non_null(call->outputs[0]);
    note((const char[]){(char)(*(const char *)user - 'a' + 'A'), '\0'});
    return LS_OK;
}

static ls_status note_backward(ls_module_call *call, void *user) {
    assert_null(call->inputs);
    assert_null(call->outputs);
    note((const char[]){*(const char *)user, '\'', '\0'});
    return LS_OK;
}

static void note_release(void *user) {
    note("-");
    (void)user;
}

static ls_module_hooks noting(const char *letter) {
    return (ls_module_hooks){
        .user = (void *)(uintptr_t)letter, .forward_pre = note_pre, .forward = note_forward, .backward = note_backward};
}

static int add_noting(ls_module *module, const char *letter) {
    const ls_module_hooks hooks = noting(letter);
    const int number = ls_module_add_hooks(module, &hooks);
    assert_true(number > 0);
    return number;
}

/* Runs one forward and one backward pass. */
static void step(ls_module *model) {
    events[0] = '\0';
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_ones(LS_SHAPE(2, 3), LS_F32);
    assert_int_equal(ls_backward(ls_sum(ls_forward(model, x))), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_hooks_are_called_in_order) {
    ls_module *model = ls_sequential(ls_nn_linear(3, 3), ls_nn_relu(), ls_nn_linear(3, 1));
    (void)add_noting(ls_module_child(model, 0), "a");
    (void)add_noting(ls_module_child(model, 1), "b");
    const int first = add_noting(model, "m");
    const int second = add_noting(model, "n");
    assert_true(second > first);
    step(model);
    assert_string_equal(events, "mnaAbBMNb'a'm'n'");
    assert_int_equal(ls_module_remove_hooks(model, first), LS_OK);
    step(model);
    assert_string_equal(events, "naAbBNb'a'n'");
    assert_int_equal(ls_module_remove_hooks(model, first), LS_ERR_ARGUMENT);
    assert_string_equal(ls_error_message(), "ls_module_remove_hooks: Sequential has no hooks with number 1");
    assert_int_equal(ls_module_remove_hooks(model, second), LS_OK);
    assert_int_equal(ls_module_remove_hooks(NULL, 1), LS_ERR_ARGUMENT);
    const bool before = ls_no_grad(true);
    events[0] = '\0';
    ls_scope *scope = ls_scope_begin();
    assert_non_null(ls_forward(model, ls_ones(LS_SHAPE(2, 3), LS_F32)));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    (void)ls_no_grad(before);
    assert_string_equal(events, "aAbB");
    ls_module_free(model);
}

/* A layer that a Sequential would fuse gives the same results with hooks. */
TEST(test_hooks_change_no_bits) {
    ls_seed(3);
    ls_module *model = ls_sequential(ls_nn_linear(7, 5), ls_nn_relu());
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_randn(LS_SHAPE(4, 7), LS_F32);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    ls_tensor *y = ls_forward(model, x);
    assert_int_equal(ls_backward(ls_sum(ls_square(y))), LS_OK);
    ls_tensor *gradient = ls_clone(ls_grad(x));
    ls_zero_grad(x);
    (void)add_noting(model, "m");
    (void)add_noting(ls_module_child(model, 1), "b");
    events[0] = '\0';
    ls_tensor *hooked = ls_forward(model, x);
    assert_string_equal(events, "mbBM");
    assert_true(ls_equal(y, hooked));
    assert_int_equal(ls_backward(ls_sum(ls_square(hooked))), LS_OK);
    assert_true(ls_equal(gradient, ls_grad(x)));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(model);
}

/* ---- hooks that replace ------------------------------------------------------------------------------------------ */

static ls_status double_inputs(ls_module_call *call, void *user) {
    (void)user;
    for (int i = 0; i < call->input_count; i++) {
        call->inputs[i] = ls_mul(call->inputs[i], 2);
    }
    return LS_OK;
}

static ls_status add_input(ls_module_call *call, void *user) {
    (void)user;
    call->outputs[0] = ls_add(call->outputs[0], call->inputs[0]);
    return LS_OK;
}

static ls_tensor *square(ls_tensor *x, void *user) {
    (void)user;
    return ls_square(x);
}

TEST(test_inputs_and_outputs_are_replaced) {
    ls_module *module = ls_nn_function("Square", square, NULL);
    assert_int_equal(ls_module_add_hooks(module, &(ls_module_hooks){.forward_pre = double_inputs}), 1);
    assert_int_equal(ls_module_add_hooks(module, &(ls_module_hooks){.forward = add_input}), 2);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_full(LS_SHAPE(1), LS_F32, 3);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    ls_tensor *given = x;
    ls_tensor *y = NULL;
    assert_int_equal(ls_forward_many(module, &given, 1, &y, 1), LS_OK);
    assert_ptr_equal(given, x); /* the caller's array is unchanged */
    assert_true(ls_item(y) == 36 + 6);
    assert_int_equal(ls_backward(y), LS_OK);
    assert_true(ls_item(ls_grad(x)) == 8 * 3 + 2);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(module);
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

enum { SEEN = 2 };
typedef struct seen {
    int calls;
    double inputs[SEEN]; /* -1 if there is no gradient */
    double outputs[SEEN];
} seen;

static ls_status see_gradients(ls_module_call *call, void *user) {
    seen *s = user;
    s->calls++;
    assert_string_equal(ls_module_type_name(call->module), "Pair");
    assert_int_equal(call->input_count, SEEN);
    assert_int_equal(call->output_count, SEEN);
    for (int i = 0; i < SEEN; i++) {
        ls_tensor *in = call->input_gradients[i];
        ls_tensor *out = call->output_gradients[i];
        s->inputs[i] = in != NULL ? ls_item(ls_sum(in)) : -1;
        s->outputs[i] = out != NULL ? ls_item(ls_sum(out)) : -1;
    }
    return LS_OK;
}

/* Returns a * b and a * a. */
static ls_status pair_forward(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs,
                              int output_count) {
    (void)self, (void)input_count, (void)output_count;
    outputs[0] = ls_mul(inputs[0], inputs[1]);
    outputs[1] = ls_square(inputs[0]);
    return LS_OK;
}

static ls_module *pair_new(seen *s) {
    static const ls_module_type type = {.name = "Pair", .forward_many = pair_forward, .inputs = SEEN, .outputs = SEEN};
    ls_module *module = ls_module_new(&type);
    assert_int_equal(ls_module_add_hooks(module, &(ls_module_hooks){.user = s, .backward = see_gradients}), 1);
    return module;
}

static ls_tensor *leaf(double value, bool wanted) {
    ls_tensor *x = ls_full(LS_SHAPE(2), LS_F32, value);
    assert_int_equal(ls_set_requires_grad(x, wanted), LS_OK);
    return x;
}

TEST(test_gradients_are_seen) {
    static const struct {
        bool wanted[SEEN]; /* whether the inputs require gradients */
        bool used[SEEN];   /* which outputs are used */
        int calls;
        double inputs[SEEN];
        double outputs[SEEN];
    } cases[] = {
        /* a = 3, b = 5, two elements; the loss is 7 times the sum of the used outputs */
        {{true, true}, {true, true}, 1, {2 * 7 * (5 + 6), 2 * 7 * 3}, {14, 14}},
        {{true, true}, {false, true}, 1, {2 * 7 * 6, -1}, {-1, 14}},
        {{false, true}, {true, true}, 1, {-1, 2 * 7 * 3}, {14, -1}}, /* a * a has no history in this case */
        {{false, true}, {false, true}, 0, {0}, {0}},
        {{true, true}, {false, false}, 0, {0}, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        seen s = {0};
        ls_module *module = pair_new(&s);
        ls_scope *scope = ls_scope_begin();
        ls_tensor *a = leaf(3, cases[i].wanted[0]);
        ls_tensor *b = leaf(5, cases[i].wanted[1]);
        ls_tensor *outputs[SEEN];
        assert_int_equal(ls_forward_many(module, (ls_tensor *[]){a, b}, SEEN, outputs, SEEN), LS_OK);
        ls_tensor *loss = ls_sum(leaf(0, true));
        for (int k = 0; k < SEEN; k++) {
            loss = cases[i].used[k] ? ls_add(loss, ls_mul(ls_sum(outputs[k]), 7)) : loss;
        }
        for (int pass = 1; pass <= 2; pass++) { /* walks the tape twice */
            assert_int_equal(ls_backward_with(loss, &(ls_backward_options){.keep_tape = pass == 1}), LS_OK);
            assert_int_equal(s.calls, pass * cases[i].calls);
            for (int k = 0; k < SEEN && s.calls > 0; k++) {
                assert_true(s.inputs[k] == cases[i].inputs[k]);
                assert_true(s.outputs[k] == cases[i].outputs[k]);
            }
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
        ls_module_free(module);
    }
}

static ls_status fail_once(ls_tensor *x, void *user) {
    (void)x;
    bool *fails = user;
    const bool now = *fails;
    *fails = false;
    return now ? ls_error_set(LS_ERR_IO, "the first pass fails") : LS_OK;
}

/* If a pass fails after its outputs are created but before the hook runs, nothing is left over for the next pass. */
TEST(test_gradients_of_a_failed_pass_are_forgotten) {
    seen s = {0};
    ls_module *module = pair_new(&s);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = leaf(3, true);
    bool fails = true;
    assert_int_equal(ls_add_grad_hook(a, fail_once, &fails), LS_OK);
    ls_tensor *outputs[SEEN];
    assert_int_equal(ls_forward_many(module, (ls_tensor *[]){a, leaf(5, true)}, SEEN, outputs, SEEN), LS_OK);
    assert_int_equal(ls_backward_with(ls_sum(outputs[0]), &(ls_backward_options){.keep_tape = true}), LS_ERR_IO);
    assert_int_equal(s.calls, 0);
    assert_int_equal(ls_backward(ls_sum(outputs[1])), LS_OK);
    assert_int_equal(s.calls, 1);
    assert_true(s.outputs[0] == -1 && s.outputs[1] == 2 && s.inputs[0] == 2 * 6 && s.inputs[1] == -1);
    assert_int_equal(ls_scope_end(scope), LS_ERR_IO);
    ls_module_free(module);
}

/* The data requires no gradient, but the layer's parameters do: the hook is called, once per call. */
TEST(test_backward_hooks_need_no_input_gradients) {
    ls_module *module = ls_nn_linear(3, 3);
    (void)add_noting(module, "a");
    events[0] = '\0';
    ls_scope *scope = ls_scope_begin();
    ls_tensor *y = ls_forward(module, ls_ones(LS_SHAPE(1, 3), LS_F32));
    y = ls_forward(module, y);
    (void)add_noting(module, "b"); /* too late for both calls */
    assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
    assert_string_equal(events, "aAaAa'a'");
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(module);
}

/* The hooks work on any device, not only on the default device. */
TEST(test_backward_hooks_on_another_device) {
    ls_scope *scope = ls_scope_begin();
    ls_module *module = ls_to_device(ls_nn_linear(3, 3), "cpu");
    (void)add_noting(module, "a");
    events[0] = '\0';
    ls_tensor *x = ls_to_device(ls_ones(LS_SHAPE(1, 3), LS_F32), "cpu");
    assert_int_equal(ls_backward(ls_sum(ls_forward(module, x))), LS_OK);
    assert_string_equal(events, "aAa'");
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_module_free(module);
}

/* A hook is removed, or its module freed, while its call is on the tape. */
TEST(test_hooks_go_before_the_backward_pass) {
    for (int freed = 0; freed < 2; freed++) {
        ls_module *module = ls_nn_linear(3, 3);
        ls_module_hooks hooks = noting("a");
        hooks.release = note_release;
        const int number = ls_module_add_hooks(module, &hooks);
        events[0] = '\0';
        ls_scope *scope = ls_scope_begin();
        ls_tensor *y = ls_forward(module, ls_ones(LS_SHAPE(1, 3), LS_F32));
        if (freed) {
            ls_module_free(module); /* the call on the tape holds a reference to the module */
        } else {
            assert_int_equal(ls_module_remove_hooks(module, number), LS_OK);
        }
        assert_int_equal(ls_backward(ls_sum(y)), LS_OK);
        assert_int_equal(ls_scope_end(scope), LS_OK);
        assert_string_equal(events, freed ? "aAa'-" : "aA-");
        ls_module_free(freed ? NULL : module);
    }
}

/* ---- hooks that are added and removed during calls --------------------------------------------------------------- */

static ls_status remove_both(ls_module_call *call, void *user) {
    const int *numbers = user;
    note("x");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ls_module_remove_hooks(call->module, numbers[i]), LS_OK);
    }
    (void)add_noting(call->module, "c"); /* effective from the next call on */
    return LS_OK;
}

TEST(test_hooks_remove_themselves) {
    ls_module *module = ls_nn_linear(3, 3);
    (void)add_noting(module, "a");
    int numbers[2];
    numbers[0] = ls_module_add_hooks(
        module, &(ls_module_hooks){.user = numbers, .forward_pre = remove_both, .release = note_release});
    ls_module_hooks hooks = noting("b");
    hooks.release = note_release;
    numbers[1] = ls_module_add_hooks(module, &hooks);
    step(module);
    assert_string_equal(events, "ax--Aa'");
    step(module);
    assert_string_equal(events, "acACa'c'");
    ls_module_free(module);
}

static ls_status free_module(ls_module_call *call, void *user) {
    (void)user;
    ls_module_free(call->module);
    return LS_OK;
}

TEST(test_a_hook_frees_its_module) {
    ls_module *module = ls_nn_linear(3, 3);
    assert_int_equal(
        ls_module_add_hooks(module, &(ls_module_hooks){.forward_pre = free_module, .release = note_release}), 1);
    (void)add_noting(module, "a");
    step(module);
    assert_string_equal(events, "aAa'-");
}

/* ---- hooks that fail --------------------------------------------------------------------------------------------- */

static ls_status fail_silently(ls_module_call *call, void *user) {
    (void)call, (void)user;
    return LS_ERR_UNSUPPORTED;
}

static ls_status fail_with_words(ls_module_call *call, void *user) {
    (void)call, (void)user;
    return ls_error_set(LS_ERR_IO, "the disk is full");
}

static ls_status put_null(ls_module_call *call, void *user) {
    (void)user;
    (call->outputs != NULL && call->outputs[0] != NULL ? call->outputs : call->inputs)[0] = NULL;
    return LS_OK;
}

static ls_status put_what_failed(ls_module_call *call, void *user) {
    (void)user;
    call->outputs[0] = ls_matmul(call->outputs[0], ls_ones(LS_SHAPE(7, 7), LS_F32));
    return LS_OK;
}

static ls_status give_one(ls_module *self, ls_tensor *const *inputs, int input_count, ls_tensor **outputs, int count) {
    (void)self, (void)inputs, (void)input_count, (void)count;
    outputs[0] = ls_ones(LS_SHAPE(1), LS_F32);
    return LS_OK;
}

static ls_status count_inputs(ls_module_call *call, void *user) {
    *(int *)user = call->input_count;
    return LS_OK;
}

TEST(test_hooks_of_a_call_without_inputs) {
    int given = -1;
    static const ls_module_type type = {.name = "One", .forward_many = give_one, .outputs = 1};
    ls_module *module = ls_module_new(&type);
    assert_true(ls_module_add_hooks(module, &(ls_module_hooks){.forward_pre = count_inputs, .user = &given}) > 0);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *output;
    assert_int_equal(ls_forward_many(module, NULL, 0, &output, 1), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    assert_int_equal(given, 0);
    ls_module_free(module);
}

TEST(test_failures_have_sentences) {
    static const struct {
        ls_module_hooks hooks;
        bool backward;
        ls_status status;
        const char *text;
    } cases[] = {
        {{.forward_pre = fail_silently}, false, LS_ERR_UNSUPPORTED, "Linear: its forward_pre hook failed with "},
        {{.forward_pre = fail_with_words}, false, LS_ERR_IO, "the disk is full"},
        {{.forward = fail_silently}, false, LS_ERR_UNSUPPORTED, "Linear: its forward hook failed with "},
        {{.forward = fail_with_words}, false, LS_ERR_IO, "the disk is full"},
        {{.backward = fail_silently}, true, LS_ERR_UNSUPPORTED, "Linear: its backward hook failed with "},
        {{.backward = fail_with_words}, true, LS_ERR_IO, "the disk is full"},
        {{.forward_pre = put_null}, false, LS_ERR_ARGUMENT, "Linear: input 0 is NULL"},
        {{.forward = put_what_failed}, false, LS_ERR_SHAPE, "ls_matmul: "},
        {{.forward = put_null}, false, LS_ERR_STATE, "Linear: its forward function or a hook returned no output 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ls_module *model = ls_sequential(ls_nn_linear(3, 3), ls_nn_relu());
        ls_module *linear = ls_module_child(model, 0);
        const int number = ls_module_add_hooks(linear, &cases[i].hooks);
        (void)add_noting(linear, "a");
        events[0] = '\0';
        ls_scope *scope = ls_scope_begin();
        ls_tensor *y = ls_forward(model, ls_ones(LS_SHAPE(2, 3), LS_F32));
        assert_true((y == NULL) == !cases[i].backward);
        if (cases[i].backward) {
            assert_int_equal(ls_backward(ls_sum(y)), cases[i].status);
        }
        expect_message(cases[i].text);
        assert_int_equal(ls_error_status(), cases[i].status);
        assert_int_equal(ls_scope_end(scope), cases[i].status);
        assert_null(strchr(events, '\'')); /* hooks after the failed hook are not called */
        assert_int_equal(ls_module_remove_hooks(linear, number), LS_OK);
        step(model);
        assert_string_equal(events, "aAa'");
        ls_module_free(model);
    }
    events[0] = '\0';
    assert_int_equal(ls_module_add_hooks(NULL, &(ls_module_hooks){.release = note_release}), 0);
    assert_string_equal(events, "-");
    ls_module *module = ls_nn_relu();
    assert_int_equal(ls_module_add_hooks(module, NULL), 0);
    ls_module_free(module);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hooks_are_called_in_order),
        cmocka_unit_test(test_hooks_change_no_bits),
        cmocka_unit_test(test_inputs_and_outputs_are_replaced),
        cmocka_unit_test(test_gradients_are_seen),
        cmocka_unit_test(test_gradients_of_a_failed_pass_are_forgotten),
        cmocka_unit_test(test_backward_hooks_need_no_input_gradients),
        cmocka_unit_test(test_backward_hooks_on_another_device),
        cmocka_unit_test(test_hooks_go_before_the_backward_pass),
        cmocka_unit_test(test_hooks_remove_themselves),
        cmocka_unit_test(test_a_hook_frees_its_module),
        cmocka_unit_test(test_failures_have_sentences),
        cmocka_unit_test(test_hooks_of_a_call_without_inputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
