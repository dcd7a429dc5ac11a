/*
 * Steps that ls_step_capture refuses: every reason, and the errors of its function and of its callers.
 *
 * devices: cpu
 */
#include "tests/support/captured.h"

/* ---- refused steps ----------------------------------------------------------------------------------------------- */

static ls_tensor *read_item(classifier *self, ls_tensor *loss) {
    (void)self;
    return ls_item(loss) < 1e9 ? loss : NULL;
}

static ls_tensor *read_data(classifier *self, ls_tensor *loss) {
    return ls_data_const(self->x) != NULL ? loss : NULL;
}

static ls_tensor *add_from_memory(classifier *self, ls_tensor *loss) {
    static float number = 1;
    (void)self;
    return ls_add(loss, ls_from_memory(LS_SHAPE(1), LS_F32, &number, NULL, NULL));
}

static ls_tensor *write_data(classifier *self, ls_tensor *loss) {
    ls_tensor *made = ls_empty(LS_SHAPE(1), LS_F32);
    (void)self;
    memset(made->data, 0, sizeof(float)); /* as a reader of a file does */
    return ls_add(loss, made);
}

static ls_tensor *clip(classifier *self, ls_tensor *loss) {
    double norm = 0;
    return ls_clip_grad_norm(self->model, 1, &norm) == LS_OK ? loss : NULL;
}

static ls_status twice(ls_custom_call *call) {
    call->outputs[0] = ls_mul(call->inputs[0], 2);
    return call->outputs[0] != NULL ? LS_OK : ls_error_status();
}

static ls_status twice_backward(ls_custom_call *call) {
    call->input_gradients[0] = ls_mul(call->output_gradients[0], 2);
    return LS_OK;
}

static ls_tensor *apply_custom(classifier *self, ls_tensor *loss) {
    static const ls_custom_op op = {.name = "twice", .forward = twice, .backward = twice_backward};
    (void)self;
    return ls_custom(&op, &loss, 1, NULL, NULL);
}

static ls_tensor *communicate(classifier *self, ls_tensor *loss) {
    return ls_allreduce(self->comm, loss, LS_SUM);
}

static ls_tensor *sum_numbers(classifier *self, ls_tensor *loss) {
    double number = 1;
    return ls_comm_allreduce(self->comm, &number, &number, 1, LS_F64, LS_SUM, NULL) == LS_OK ? loss : NULL;
}

static ls_tensor *scale(classifier *self, ls_tensor *loss) {
    return ls_grad_scaler_scale(self->scaler, loss);
}

static ls_tensor *read_rate(classifier *self, ls_tensor *loss) {
    return ls_optimizer_learning_rate(self->optimizer, 0) < 1e9 ? loss : NULL;
}

static ls_tensor *put_averages(classifier *self, ls_tensor *loss) {
    ls_module *model = ls_nn_relu(); /* without parameters: changing parameters before ls_backward would be an error */
    ls_ema *averages = ls_ema_new(model, 0.5);
    const ls_status status = ls_ema_put(averages);
    (void)self;
    ls_ema_free(averages);
    ls_module_free(model);
    return status == LS_OK ? loss : NULL;
}

static ls_tensor *list_averages(classifier *self, ls_tensor *loss) {
    const ls_named *tensors = NULL;
    int count = 0;
    ls_ema *averages = ls_ema_new(self->model, 0.5);
    const ls_status status = ls_ema_state(averages, &tensors, &count);
    ls_ema_free(averages);
    return status == LS_OK ? loss : NULL;
}

static ls_tensor *start_schedule(classifier *self, ls_tensor *loss) {
    ls_schedule *schedule = ls_schedule_linear(self->optimizer, 2, 0, 0);
    ls_schedule_free(schedule);
    return schedule != NULL ? loss : NULL;
}

static ls_tensor *end_graph(void *user) {
    ls_tensor *loss = user;
    return ls_backward(loss) == LS_OK ? ls_zeros(LS_SCALAR, LS_F32) : NULL;
}

SCOPED_TEST(test_graphs_from_before_the_step_are_refused) {
    ls_tensor *w = ls_ones(LS_SHAPE(3), LS_F32);
    assert_int_equal(ls_set_requires_grad(w, true), LS_OK);
    ls_tensor *loss = ls_sum(ls_square(w));
    ls_scope *scope = ls_scope_begin();
    assert_null(ls_step_capture(end_graph, loss, NULL));
    expect_error(ls_error_status(), LS_ERR_UNSUPPORTED, "ls_backward reaches an operation that was recorded before");
    assert_int_equal(ls_scope_end(scope), LS_ERR_UNSUPPORTED);
}

SCOPED_TEST(test_steps_that_are_refused) {
    static const struct {
        ls_tensor *(*also)(classifier *self, ls_tensor *loss);
        const char *reason;
    } refused[] = {
        {read_item, "ls_step_capture: ls_item reads elements on the host"},
        {read_data, "ls_data_const reads elements on the host"},
        {add_from_memory, "ls_from_memory writes elements on the host"},
        {write_data, "ls_add reads elements that no operation of the step has written"},
        {clip, "ls_clip_grad_norm stores the norm for the host"},
        {apply_custom, "twice calls user functions"},
        {communicate, "ls_allreduce communicates, which is not recorded"},
        {scale, "ls_grad_scaler_scale uses a scale that changes, which a replay does not notice"},
        {read_rate, "ls_optimizer_learning_rate returns a number that may change"},
        {put_averages, "ls_ema_put changes state that a replay does not change"},
        {list_averages, "ls_ema_state changes state that a replay does not change"},
        {start_schedule, "ls_schedule_linear changes state that a replay does not change"},
        {sum_numbers, "a call on a communicator communicates, which is not recorded"},
    };
    ls_comm *comm = ls_init(NULL);
    ls_grad_scaler *scaler = ls_grad_scaler_new(NULL);
    assert_non_null(comm);
    assert_non_null(scaler);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        classifier self, captured;
        classifier_begin(&self, make_sgd);
        classifier_begin(&captured, make_sgd);
        self.also = captured.also = refused[i].also;
        self.comm = captured.comm = comm;
        self.scaler = captured.scaler = scaler;
        ls_seed(4);
        (void)classifier_run(&self);
        ls_seed(4);
        ls_scope *scope = ls_scope_begin();
        assert_null(ls_step_capture(classifier_step, &captured, NULL));
        expect_error(ls_error_status(), LS_ERR_UNSUPPORTED, refused[i].reason);
        assert_int_equal(ls_scope_end(scope), LS_ERR_UNSUPPORTED);
        expect_equal_classifiers(&self, &captured); /* the step has run */
        assert_int_equal(captured.runs, 1);
        classifier_end(&captured, NULL);
        classifier_end(&self, NULL);
    }
    ls_grad_scaler_free(scaler);
    assert_int_equal(ls_finalize(), LS_OK);
}

SCOPED_TEST(test_fallback_runs_the_function) {
    classifier eager, captured;
    classifier_begin(&eager, make_sgd);
    classifier_begin(&captured, make_sgd);
    eager.also = captured.also = read_item;
    ls_step *step = ls_step_capture(classifier_step, &captured, &(ls_step_capture_options){.fallback = true});
    assert_non_null(step);
    assert_false(ls_step_is_captured(step));
    (void)classifier_run(&eager);
    for (int i = 0; i < 3; i++) {
        const float loss = classifier_run(&eager);
        replay_step(step);
        assert_true((float)ls_item(ls_step_result(step)) == loss);
        expect_equal_classifiers(&eager, &captured);
    }
    assert_int_equal(captured.runs, 4);
    classifier_end(&captured, step);
    classifier_end(&eager, NULL);
}

static ls_tensor *freeze(void *user) {
    classifier *self = user;
    ls_tensor *weight = ls_module_parameter(self->model, 0);
    ls_tensor *loss = ls_set_requires_grad(weight, false) == LS_OK ? classifier_step(user) : NULL;
    return ls_set_requires_grad(weight, true) == LS_OK ? loss : NULL;
}

static ls_tensor *validate(void *user) {
    classifier *self = user;
    ls_module_train(self->model, false);
    const ls_tensor *y = ls_forward(self->model, self->x);
    ls_module_train(self->model, true);
    return y != NULL ? classifier_step(user) : NULL;
}

static ls_tensor *replace_input(void *user) {
    classifier *self = user;
    ls_tensor *loss = classifier_step(user);
    ls_release(self->x);
    self->x = ls_keep(ls_zeros(LS_SHAPE(BATCH, FEATURES), LS_F32));
    return loss;
}

static ls_tensor *replace_optimizer(void *user) {
    classifier *self = user;
    ls_tensor *loss = classifier_step(user);
    ls_optimizer_free(self->optimizer);
    self->optimizer = make_sgd(self->model);
    return loss;
}

/* A step that changes what replays check. */
SCOPED_TEST(test_changes_by_the_function_are_refused) {
    static const struct {
        ls_step_function function;
        const char *reason;
    } refused[] = {
        {freeze,
         "the function changes what replays check: make the change outside the function. A replay would fail with"},
        {freeze, "[16, 6], requires a gradient now"},
        {validate, "Sequential was in evaluation mode when the step was captured"},
        {replace_input, "argument 1 of ls_linear, [4, 6], was freed"},
        {replace_optimizer, "the optimizer has already been freed"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        classifier self;
        classifier_begin(&self, make_sgd);
        ls_scope *scope = ls_scope_begin();
        assert_null(ls_step_capture(refused[i].function, &self, NULL));
        expect_error(ls_error_status(), LS_ERR_UNSUPPORTED, refused[i].reason);
        assert_int_equal(ls_scope_end(scope), LS_ERR_UNSUPPORTED);
        classifier_end(&self, NULL);

        classifier_begin(&self, make_sgd);
        ls_step *step = ls_step_capture(refused[i].function, &self, &(ls_step_capture_options){.fallback = true});
        assert_non_null(step);
        replay_step(step);
        assert_int_equal(self.runs, 2);
        classifier_end(&self, step);
    }
}

SCOPED_TEST(test_other_devices_are_refused) {
    classifier self;
    classifier_begin(&self, make_sgd);
    ls_optimizer_free(self.optimizer);
    if (ls_module_to_device(self.model, "shadow:0") == NULL) {
        fail_msg("%s", ls_error_message());
    }
    self.optimizer = make_sgd(self.model);
    self.x = ls_tensor_to_device(self.x, "shadow:0");
    self.target = ls_tensor_to_device(self.target, "shadow:0");
    expect_refused(&self, LS_ERR_UNSUPPORTED, "computes on a device other than \"cpu\"");
    classifier_end(&self, NULL);
}

static ls_status gradient_hook(ls_tensor *leaf, void *user) {
    (void)leaf;
    (void)user;
    return LS_OK;
}

static ls_status module_hook(ls_module_call *call, void *user) {
    (void)call;
    (void)user;
    return LS_OK;
}

SCOPED_TEST(test_hooks_are_refused) {
    classifier self;
    classifier_begin(&self, make_sgd);
    const int hooks = ls_module_add_hooks(self.model, &(ls_module_hooks){.forward = module_hook});
    expect_refused(&self, LS_ERR_UNSUPPORTED, "has hooks, which a replay does not call");
    assert_int_equal(ls_module_remove_hooks(self.model, hooks), LS_OK);
    ls_step *step = classifier_capture(&self);
    /* The sequence fuses its first two modules. */
    ls_module *hooked[] = {self.model, ls_module_child(self.model, 0), ls_module_child(self.model, 2)};
    for (int i = 0; i < 3; i++) {
        const int added = ls_module_add_hooks(hooked[i], &(ls_module_hooks){.forward = module_hook});
        expect_no_replay(step, "ls_step_replay: a hook was added to a module of the step");
        assert_int_equal(ls_module_remove_hooks(hooked[i], added), LS_OK);
        replay_step(step);
    }
    assert_int_equal(ls_add_grad_hook(ls_module_parameter(self.model, 0), gradient_hook, NULL), LS_OK);
    expect_no_replay(step, "has a gradient hook now");
    expect_refused(&self, LS_ERR_UNSUPPORTED, "uses a leaf with a gradient hook");
    classifier_end(&self, step);
}

static ls_tensor *fail_shape(classifier *self, ls_tensor *loss) {
    return ls_add(loss, ls_reshape(self->x, LS_SHAPE(5, 5)));
}

static ls_tensor *clip_freed(classifier *self, ls_tensor *loss) {
    (void)self;
    ls_module *freed = ls_nn_linear(2, 2);
    ls_module_free(freed);
    return ls_clip_grad_value(freed, 1) == LS_OK ? loss : NULL;
}

static ls_tensor *return_null(void *user) {
    (void)user;
    return NULL;
}

SCOPED_TEST(test_errors_of_the_function) {
    classifier self;
    classifier_begin(&self, make_sgd);
    self.also = fail_shape;
    expect_refused(&self, LS_ERR_SHAPE, "ls_reshape");
    self.also = clip_freed;
    expect_refused(&self, LS_ERR_STATE, "the module was freed");
    ls_scope *scope = ls_scope_begin();
    assert_null(ls_step_capture(return_null, NULL, NULL));
    expect_message("the function of the step returned NULL without an error");
    assert_null(ls_step_capture(NULL, NULL, NULL));
    expect_message("the function is NULL");
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
    scope = ls_scope_begin();
    assert_null(ls_step_result(NULL)); /* is no error, so the scope must not note the error above */
    assert_int_equal(ls_scope_end(scope), LS_OK);
    self.also = NULL;
    ls_step *step = classifier_capture(&self);
    replay_step(step);
    classifier_end(&self, step);
}

static ls_tensor *capture_inside(classifier *self, ls_tensor *loss) {
    assert_null(ls_step_capture(classifier_step, self, NULL));
    expect_message("called inside a step that is captured");
    return loss;
}

static ls_tensor *replay_inside(classifier *self, ls_tensor *loss) {
    return ls_step_replay(self->inner) == LS_OK ? loss : NULL;
}

static ls_status capture_in_hook(ls_tensor *leaf, void *user) {
    (void)leaf;
    assert_null(ls_step_capture(classifier_step, user, NULL));
    expect_message("called during a backward pass");
    return LS_OK;
}

SCOPED_TEST(test_captures_are_not_nested) {
    classifier self, other;
    classifier_begin(&self, make_sgd);
    classifier_begin(&other, make_sgd);
    self.also = capture_inside;
    expect_refused(&self, LS_ERR_STATE, "called inside a step that is captured");
    self.inner = classifier_capture(&other);
    self.also = replay_inside;
    expect_refused(&self, LS_ERR_STATE, "called inside a step that is captured");
    replay_step(self.inner);
    self.also = NULL;
    assert_int_equal(ls_add_grad_hook(ls_module_parameter(self.model, 0), capture_in_hook, &self), LS_OK);
    ls_scope *scope = ls_scope_begin();
    (void)classifier_step(&self);
    assert_int_equal(ls_scope_end(scope), LS_ERR_STATE);
    classifier_end(&other, self.inner);
    classifier_end(&self, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_graphs_from_before_the_step_are_refused),
        cmocka_unit_test(test_steps_that_are_refused),
        cmocka_unit_test(test_fallback_runs_the_function),
        cmocka_unit_test(test_changes_by_the_function_are_refused),
        cmocka_unit_test(test_other_devices_are_refused),
        cmocka_unit_test(test_hooks_are_refused),
        cmocka_unit_test(test_errors_of_the_function),
        cmocka_unit_test(test_captures_are_not_nested),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
