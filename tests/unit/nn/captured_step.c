/*
 * Captured steps (ls_step_capture): the bits of training by replays, what a program may change between replays, every
 * reason to refuse a capture, and every mistake of a program.
 *
 * devices: cpu
 */
#include "tensor/device/cpu/cpu.h"
#include "tensor/scope.h"
#include "tests/support/unit.h"

#include <pthread.h>

#include <lockstep/lockstep.h>

enum { BATCH = 4, FEATURES = 6, CLASSES = 3 };

/* ---- a classifier ------------------------------------------------------------------------------------------------ */

typedef struct training {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_tensor *x, *target;
    ls_tensor *(*also)(struct training *self, ls_tensor *loss); /* what a test adds to the step; or NULL */
    int runs;                                                   /* of the function */
    bool keeps_gradients;
    ls_step *inner;
    ls_comm *comm;
    ls_tensor *copied, *copy;
} training;

static ls_tensor *step_of(void *user) {
    training *self = user;
    self->runs++;
    if (!self->keeps_gradients) {
        ls_optimizer_zero_grad(self->optimizer);
    }
    ls_tensor *loss = ls_cross_entropy(ls_forward(self->model, self->x), self->target, NULL);
    loss = self->also != NULL ? self->also(self, loss) : loss;
    return ls_backward(loss) == LS_OK && ls_optimizer_step(self->optimizer) == LS_OK ? loss : NULL;
}

static ls_optimizer *make_adam(ls_module *model) {
    return ls_adam(model, &(ls_adam_options){.learning_rate = 0.01});
}

static ls_optimizer *make_sgd(ls_module *model) {
    return ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.01});
}

static void begin(training *self, ls_optimizer *(*make)(ls_module *model)) {
    ls_seed(3);
    *self = (training){.model = ls_sequential(ls_nn_linear(FEATURES, 16), ls_nn_relu(), ls_nn_batch_norm_1d(16, NULL),
                                              ls_nn_linear(16, CLASSES))};
    self->optimizer = make(self->model);
    assert_non_null(self->optimizer);
    self->x = ls_rand(LS_SHAPE(BATCH, FEATURES), LS_F32);
    self->target = ls_to(ls_arange(LS_SHAPE(BATCH), LS_I64), LS_I64);
    ((int64_t *)ls_data(self->target))[BATCH - 1] = 1;
}

static void end(training *self, ls_step *step) {
    ls_step_free(step);
    ls_optimizer_free(self->optimizer);
    ls_module_free(self->model);
    assert_null(ls_thread()->capture);
    assert_ptr_equal(ls_cpu.kernels, &ls_cpu_kernels);
}

static ls_step *capture(training *self) {
    ls_step *step = ls_step_capture(step_of, self, NULL);
    if (step == NULL) {
        fail_msg("%s", ls_error_message());
    }
    return step;
}

static void replay(ls_step *step) {
    if (ls_step_replay(step) != LS_OK) {
        fail_msg("%s", ls_error_message());
    }
}

static void expect_no_replay(ls_step *step, const char *reason) {
    ls_scope *scope = ls_scope_begin();
    expect_error(ls_step_replay(step), LS_ERR_STATE, reason);
    assert_int_equal(ls_scope_end(scope), LS_ERR_STATE);
}

static float run_eagerly(training *self) {
    ls_scope *scope = ls_scope_begin();
    const float loss = (float)ls_item(step_of(self));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    return loss;
}

static void expect_equal(const training *a, const training *b) {
    for (int i = 0; i < ls_module_parameter_count(a->model); i++) {
        assert_true(ls_equal(ls_module_parameter(a->model, i), ls_module_parameter(b->model, i)));
    }
    for (int i = 0; i < ls_module_buffer_count(a->model); i++) {
        assert_true(ls_equal(ls_module_buffer(a->model, i), ls_module_buffer(b->model, i)));
    }
}

/* Gives both the same new batch. */
static void change_batch(training *a, training *b, int i) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_mul(ls_rand(LS_SHAPE(BATCH, FEATURES), LS_F32), 1 + 0.1 * i);
    ls_tensor *target = ls_full(LS_SHAPE(BATCH), LS_I64, i % CLASSES);
    assert_int_equal(ls_copy_into(a->x, x), LS_OK);
    assert_int_equal(ls_copy_into(b->x, x), LS_OK);
    assert_int_equal(ls_copy_into(a->target, target), LS_OK);
    assert_int_equal(ls_copy_into(b->target, target), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* ---- what may change between replays ----------------------------------------------------------------------------- */

static void check_training(ls_optimizer *(*make)(ls_module *model)) {
    training eager, captured;
    begin(&eager, make);
    begin(&captured, make);
    const float first = run_eagerly(&eager);
    ls_step *step = capture(&captured);
    assert_true(ls_step_is_captured(step));
    assert_true((float)ls_item(ls_step_result(step)) == first);
    for (int i = 0; i < 100; i++) {
        change_batch(&eager, &captured, i);
        if (i == 30) { /* rates take effect */
            assert_int_equal(ls_optimizer_set_learning_rate(eager.optimizer, -1, 0.003), LS_OK);
            assert_int_equal(ls_optimizer_set_learning_rate(captured.optimizer, -1, 0.003), LS_OK);
        }
        if (i == 60) { /* so do other values of a parameter */
            const bool before = ls_no_grad(true);
            assert_int_equal(ls_fill(ls_module_parameter(eager.model, 0), 0.125), LS_OK);
            assert_int_equal(ls_fill(ls_module_parameter(captured.model, 0), 0.125), LS_OK);
            (void)ls_no_grad(before);
        }
        if (i % 10 == 9) { /* a step by the function */
            assert_true(run_eagerly(&eager) == run_eagerly(&captured));
        } else {
            const float loss = run_eagerly(&eager);
            replay(step);
            assert_true((float)ls_item(ls_step_result(step)) == loss);
        }
        expect_equal(&eager, &captured);
    }
    assert_int_equal(captured.runs, 11);
    end(&captured, step);
    end(&eager, NULL);
}

SCOPED_TEST(test_replays_have_the_same_bits) {
    check_training(make_adam);
    check_training(make_sgd);
}

/* The second run of a recomputed module is recorded, too. */
SCOPED_TEST(test_recomputed_modules) {
    training eager, captured;
    for (int i = 0; i < 2; i++) {
        training *self = i == 0 ? &eager : &captured;
        begin(self, make_sgd);
        ls_optimizer_free(self->optimizer);
        ls_module_free(self->model);
        ls_seed(7);
        ls_module *inner = ls_sequential(ls_nn_linear(FEATURES, 16), ls_nn_tanh(), ls_nn_linear(16, CLASSES));
        assert_int_equal(ls_recompute(inner, true), LS_OK);
        self->model = ls_sequential(ls_nn_linear(FEATURES, FEATURES), inner);
        self->optimizer = make_sgd(self->model);
    }
    (void)run_eagerly(&eager);
    ls_step *step = capture(&captured);
    for (int i = 0; i < 10; i++) {
        change_batch(&eager, &captured, i);
        (void)run_eagerly(&eager);
        replay(step);
        expect_equal(&eager, &captured);
    }
    end(&captured, step);
    end(&eager, NULL);
}

static ls_tensor *predict(void *user) {
    const training *self = user;
    (void)ls_no_grad(true); /* until the end of the scope of the step */
    return ls_softmax(ls_forward(self->model, self->x), 1);
}

/* A step without a backward pass. */
SCOPED_TEST(test_predictions) {
    training self, other;
    begin(&self, make_sgd);
    begin(&other, make_sgd);
    ls_module_train(self.model, false);
    ls_step *step = ls_step_capture(predict, &self, NULL);
    assert_non_null(step);
    for (int i = 0; i < 3; i++) {
        change_batch(&self, &other, i);
        replay(step);
        assert_true(ls_equal(ls_step_result(step), predict(&self)));
        (void)ls_no_grad(false);
    }
    end(&self, step);
    end(&other, NULL);
}

/* Without ls_zero_grad in the function, the recorded step adds to gradients, or starts them, as in its first run. */
SCOPED_TEST(test_gradients_that_accumulate) {
    training eager, captured;
    begin(&eager, make_sgd);
    begin(&captured, make_sgd);
    eager.keeps_gradients = captured.keeps_gradients = true;
    ls_step *step = capture(&captured);
    expect_no_replay(step, "has a gradient, which the captured step overwrites");
    ls_step_free(step);
    (void)run_eagerly(&eager);
    (void)run_eagerly(&eager);
    step = capture(&captured);
    for (int i = 0; i < 5; i++) {
        (void)run_eagerly(&eager);
        replay(step);
        expect_equal(&eager, &captured);
    }
    ls_optimizer_zero_grad(captured.optimizer);
    expect_no_replay(step, "has no gradient, but had one");
    end(&captured, step);
    end(&eager, NULL);
}

/* An in-place change by a replay counts for tapes that saved the tensor. */
SCOPED_TEST(test_replays_count_as_changes) {
    training self;
    begin(&self, make_sgd);
    ls_step *step = capture(&self);
    ls_tensor *weight = ls_module_parameter(self.model, 0);
    ls_tensor *loss = ls_sum(ls_square(weight));
    replay(step);
    ls_scope *scope = ls_scope_begin();
    expect_error(ls_backward(loss), LS_ERR_STATE, "was later modified in place (by ls_");
    assert_int_equal(ls_scope_end(scope), LS_ERR_STATE);
    end(&self, step);
}

static int64_t activations(void) {
    ls_memory memory;
    assert_int_equal(ls_memory_stats(&memory), LS_OK);
    return memory.bytes[LS_MEMORY_ACTIVATIONS];
}

SCOPED_TEST(test_the_arena_is_smaller_than_its_blocks) {
    training self;
    begin(&self, make_sgd);
    const int64_t before = activations();
    self.x = ls_rand(LS_SHAPE(256, FEATURES), LS_F32);
    self.target = ls_full(LS_SHAPE(256), LS_I64, 1);
    const int64_t inputs = activations() - before;
    ls_step *step = capture(&self);
    const int64_t arena = activations() - before - inputs;
    /* The step makes three tensors of 256 x 16 floats and their gradients, and six of 256 x 3. */
    assert_in_range(arena, 1, 5 * 256 * 16 * 4);
    ls_step_free(step);
    assert_int_equal(activations(), before + inputs);
    end(&self, NULL);
}

/* ---- refused steps ----------------------------------------------------------------------------------------------- */

static ls_tensor *read_item(training *self, ls_tensor *loss) {
    (void)self;
    return ls_item(loss) < 1e9 ? loss : NULL;
}

static ls_tensor *read_data(training *self, ls_tensor *loss) {
    return ls_data_const(self->x) != NULL ? loss : NULL;
}

static ls_tensor *add_noise(training *self, ls_tensor *loss) {
    (void)self;
    return ls_add(loss, ls_mul(ls_sum(ls_rand(LS_SHAPE(3), LS_F32)), 0));
}

static ls_tensor *drop_out(training *self, ls_tensor *loss) {
    (void)self;
    return ls_dropout(loss, 0.5);
}

static ls_tensor *add_from_memory(training *self, ls_tensor *loss) {
    static float number = 1;
    (void)self;
    return ls_add(loss, ls_from_memory(LS_SHAPE(1), LS_F32, &number, NULL, NULL));
}

static ls_tensor *write_data(training *self, ls_tensor *loss) {
    ls_tensor *made = ls_empty(LS_SHAPE(1), LS_F32);
    (void)self;
    memset(made->data, 0, sizeof(float)); /* as a reader of a file does */
    return ls_add(loss, made);
}

static ls_tensor *clip(training *self, ls_tensor *loss) {
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

static ls_tensor *apply_custom(training *self, ls_tensor *loss) {
    static const ls_custom_op op = {.name = "twice", .forward = twice, .backward = twice_backward};
    (void)self;
    return ls_custom(&op, &loss, 1, NULL, NULL);
}

static ls_tensor *communicate(training *self, ls_tensor *loss) {
    return ls_allreduce(self->comm, loss, LS_SUM);
}

static ls_tensor *sum_numbers(training *self, ls_tensor *loss) {
    double number = 1;
    return ls_comm_allreduce(self->comm, &number, &number, 1, LS_F64, LS_SUM, NULL) == LS_OK ? loss : NULL;
}

static ls_tensor *read_rate(training *self, ls_tensor *loss) {
    return ls_optimizer_learning_rate(self->optimizer, 0) < 1e9 ? loss : NULL;
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

static ls_tensor *keep_product(void *user) {
    ls_tensor **kept = user;
    ls_tensor *result = ls_square(kept[0]);
    ls_tensor *product = ls_mul(kept[0], 3);
    kept[1] = product != NULL ? ls_keep(product) : NULL;
    return result;
}

SCOPED_TEST(test_replays_change_tensors_that_the_step_made) {
    ls_tensor *kept[2] = {ls_ones(LS_SHAPE(3), LS_F32), NULL};
    ls_tensor *v = ls_ones(LS_SHAPE(3), LS_F32);
    assert_int_equal(ls_set_requires_grad(v, true), LS_OK);
    ls_step *step = ls_step_capture(keep_product, kept, NULL);
    assert_non_null(step);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *loss = ls_sum(ls_mul(v, kept[1]));
    assert_int_equal(ls_step_replay(step), LS_OK);
    expect_error(ls_backward(loss), LS_ERR_STATE, "ls_step_replay");
    (void)ls_scope_end(scope);
    ls_step_free(step);
}

SCOPED_TEST(test_steps_that_are_refused) {
    static const struct {
        ls_tensor *(*also)(training *self, ls_tensor *loss);
        const char *reason;
    } refused[] = {
        {read_item, "ls_step_capture: ls_item reads elements on the host"},
        {read_data, "ls_data_const reads elements on the host"},
        {add_noise, "random_uniform draws random numbers"},
        {drop_out, "dropout draws random numbers"},
        {add_from_memory, "ls_from_memory writes elements on the host"},
        {write_data, "ls_add reads elements that no operation of the step has written"},
        {clip, "ls_clip_grad_norm reads the norm on the host"},
        {apply_custom, "twice calls functions of the program"},
        {communicate, "ls_allreduce communicates, which is not recorded"},
        {read_rate, "ls_optimizer_learning_rate returns a number that may change"},
        {sum_numbers, "a call on a communicator communicates, which is not recorded"},
    };
    ls_comm *comm = ls_init(NULL);
    assert_non_null(comm);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        training self, captured;
        begin(&self, make_sgd);
        begin(&captured, make_sgd);
        self.also = captured.also = refused[i].also;
        self.comm = captured.comm = comm;
        ls_seed(4);
        (void)run_eagerly(&self);
        ls_seed(4);
        ls_scope *scope = ls_scope_begin();
        assert_null(ls_step_capture(step_of, &captured, NULL));
        expect_error(ls_error_status(), LS_ERR_UNSUPPORTED, refused[i].reason);
        assert_int_equal(ls_scope_end(scope), LS_ERR_UNSUPPORTED);
        expect_equal(&self, &captured); /* the step has run */
        assert_int_equal(captured.runs, 1);
        end(&captured, NULL);
        end(&self, NULL);
    }
    assert_int_equal(ls_finalize(), LS_OK);
}

SCOPED_TEST(test_fallback_runs_the_function) {
    training eager, captured;
    begin(&eager, make_sgd);
    begin(&captured, make_sgd);
    eager.also = captured.also = read_item;
    ls_step *step = ls_step_capture(step_of, &captured, &(ls_step_capture_options){.fallback = true});
    assert_non_null(step);
    assert_false(ls_step_is_captured(step));
    (void)run_eagerly(&eager);
    for (int i = 0; i < 3; i++) {
        const float loss = run_eagerly(&eager);
        replay(step);
        assert_true((float)ls_item(ls_step_result(step)) == loss);
        expect_equal(&eager, &captured);
    }
    assert_int_equal(captured.runs, 4);
    end(&captured, step);
    end(&eager, NULL);
}

/* Captures in a scope of its own, which gets the error. */
static void expect_refused(training *self, ls_status status, const char *reason) {
    ls_scope *scope = ls_scope_begin();
    assert_null(ls_step_capture(step_of, self, NULL));
    expect_error(ls_error_status(), status, reason);
    assert_int_equal(ls_scope_end(scope), status);
    assert_null(ls_thread()->capture);
}

SCOPED_TEST(test_other_devices_are_refused) {
    training self;
    begin(&self, make_sgd);
    ls_optimizer_free(self.optimizer);
    if (ls_module_to_device(self.model, "shadow:0") == NULL) {
        fail_msg("%s", ls_error_message());
    }
    self.optimizer = make_sgd(self.model);
    self.x = ls_tensor_to_device(self.x, "shadow:0");
    self.target = ls_tensor_to_device(self.target, "shadow:0");
    expect_refused(&self, LS_ERR_UNSUPPORTED, "computes on another device than \"cpu\"");
    end(&self, NULL);
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
    training self;
    begin(&self, make_sgd);
    const int hooks = ls_module_add_hooks(self.model, &(ls_module_hooks){.forward = module_hook});
    expect_refused(&self, LS_ERR_UNSUPPORTED, "has hooks, which a replay does not call");
    assert_int_equal(ls_module_remove_hooks(self.model, hooks), LS_OK);
    ls_step *step = capture(&self);
    assert_int_equal(ls_add_grad_hook(ls_module_parameter(self.model, 0), gradient_hook, NULL), LS_OK);
    expect_no_replay(step, "has a gradient hook now");
    expect_refused(&self, LS_ERR_UNSUPPORTED, "uses a leaf with a gradient hook");
    end(&self, step);
}

/* ---- mistakes ---------------------------------------------------------------------------------------------------- */

SCOPED_TEST(test_freed_objects_are_reported) {
    training self;
    begin(&self, make_sgd);
    ls_tensor *x = self.x;
    ls_step *step = capture(&self);
    ls_release(x);
    expect_no_replay(step, "argument 1 of ls_linear, [4, 6], was freed: capture the step again");
    ls_step_free(step);
    expect_no_replay(step, "the step was freed (ls_step_free) before");
    expect_no_replay(NULL, "the step is NULL");

    self.x = ls_rand(LS_SHAPE(BATCH, FEATURES), LS_F32);
    step = capture(&self);
    ls_optimizer_free(self.optimizer);
    expect_no_replay(step, "the optimizer was freed");
    ls_step_free(step);
    self.optimizer = make_sgd(self.model);
    step = capture(&self);
    ls_optimizer_free(self.optimizer);
    self.optimizer = NULL;
    ls_module_free(self.model);
    self.model = NULL;
    expect_no_replay(step, "a module of the step, Sequential, was freed");
    end(&self, step);
}

static ls_tensor *copy_inner(training *self, ls_tensor *loss) {
    return ls_copy_into(self->copy, self->copied) == LS_OK ? loss : NULL;
}

SCOPED_TEST(test_freed_sources_of_copies_are_reported) {
    training self;
    begin(&self, make_sgd);
    self.also = copy_inner;
    self.copied = ls_rand(LS_SHAPE(BATCH, FEATURES), LS_F32);
    self.copy = ls_zeros(LS_SHAPE(BATCH, FEATURES), LS_F32);
    ls_step *step = capture(&self);
    assert_int_equal(ls_fill(self.copied, 3), LS_OK);
    replay(step);
    assert_true(ls_equal(self.copy, self.copied));
    ls_release(self.copied);
    expect_no_replay(step, "a tensor of ls_copy_into, [4, 6], was freed");
    end(&self, step);
}

SCOPED_TEST(test_changed_modes_are_reported) {
    training self;
    begin(&self, make_sgd);
    ls_step *step = capture(&self);
    ls_module_train(self.model, false);
    expect_no_replay(step, "was in training mode when the step was captured");
    ls_module_train(self.model, true);
    replay(step);
    const ls_dtype before = ls_autocast(LS_BF16);
    expect_no_replay(step, "ls_no_grad or ls_autocast have changed");
    (void)ls_autocast(before);
    assert_int_equal(ls_set_requires_grad(ls_module_parameter(self.model, 0), false), LS_OK);
    expect_no_replay(step, "requires no gradient any more");
    assert_int_equal(ls_set_requires_grad(ls_module_parameter(self.model, 0), true), LS_OK);
    replay(step);
    end(&self, step);
}

/* A parameter that moves to a flat buffer, or an input whose shape changes. */
SCOPED_TEST(test_moved_tensors_are_reported) {
    training self;
    begin(&self, make_sgd);
    ls_optimizer_free(self.optimizer);
    ls_module_free(self.model);
    self.model = ls_nn_linear(FEATURES, CLASSES);
    self.optimizer = ls_sgd(NULL, &(ls_sgd_options){.learning_rate = 0.1});
    ls_tensor *parameters[] = {ls_module_parameter(self.model, 0), ls_module_parameter(self.model, 1)};
    assert_int_equal(ls_optimizer_add_group(self.optimizer, parameters, 2, NULL), LS_OK);
    ls_step *step = capture(&self);
    replay(step);
    ls_optimizer *other = make_adam(self.model);
    expect_no_replay(step, "has moved to other memory");
    ls_optimizer_free(other);
    ls_scope *scope = ls_scope_begin();
    expect_error(ls_copy_into(self.x, ls_rand(LS_SHAPE(BATCH + 1, FEATURES), LS_F32)), LS_ERR_SHAPE, "ls_copy_into");
    assert_int_equal(ls_scope_end(scope), LS_ERR_SHAPE);
    end(&self, step);
}

static ls_tensor *fail_shape(training *self, ls_tensor *loss) {
    return ls_add(loss, ls_reshape(self->x, LS_SHAPE(5, 5)));
}

static ls_tensor *return_null(void *user) {
    (void)user;
    return NULL;
}

SCOPED_TEST(test_errors_of_the_function) {
    training self;
    begin(&self, make_sgd);
    self.also = fail_shape;
    expect_refused(&self, LS_ERR_SHAPE, "ls_reshape");
    ls_scope *scope = ls_scope_begin();
    assert_null(ls_step_capture(return_null, NULL, NULL));
    expect_message("the function of the step returned NULL without an error");
    assert_null(ls_step_capture(NULL, NULL, NULL));
    expect_message("the function is NULL");
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
    self.also = NULL;
    ls_step *step = capture(&self);
    replay(step);
    end(&self, step);
}

/* An error of a kernel, such as a target that is not a class, leaves the parameters as they were. */
SCOPED_TEST(test_errors_of_a_replay) {
    training eager, captured;
    begin(&eager, make_adam);
    begin(&captured, make_adam);
    (void)run_eagerly(&eager);
    ls_step *step = capture(&captured);
    assert_int_equal(ls_fill(captured.target, CLASSES), LS_OK);
    ls_scope *scope = ls_scope_begin();
    expect_error(ls_step_replay(step), LS_ERR_ARGUMENT, "target[0] is 3, but there are 3 classes");
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
    for (int i = 0; i < ls_module_parameter_count(eager.model); i++) {
        assert_true(ls_equal(ls_module_parameter(eager.model, i), ls_module_parameter(captured.model, i)));
    }
    assert_int_equal(ls_fill(captured.target, 1), LS_OK);
    replay(step);
    end(&captured, step);
    end(&eager, NULL);
}

static ls_tensor *capture_inside(training *self, ls_tensor *loss) {
    assert_null(ls_step_capture(step_of, self, NULL));
    expect_message("called inside a step that is captured");
    return loss;
}

static ls_tensor *replay_inside(training *self, ls_tensor *loss) {
    return ls_step_replay(self->inner) == LS_OK ? loss : NULL;
}

static ls_status capture_in_hook(ls_tensor *leaf, void *user) {
    (void)leaf;
    assert_null(ls_step_capture(step_of, user, NULL));
    expect_message("called during a backward pass");
    return LS_OK;
}

SCOPED_TEST(test_captures_are_not_nested) {
    training self, other;
    begin(&self, make_sgd);
    begin(&other, make_sgd);
    self.also = capture_inside;
    expect_refused(&self, LS_ERR_STATE, "called inside a step that is captured");
    self.inner = capture(&other);
    self.also = replay_inside;
    expect_refused(&self, LS_ERR_STATE, "called inside a step that is captured");
    replay(self.inner);
    self.also = NULL;
    assert_int_equal(ls_add_grad_hook(ls_module_parameter(self.model, 0), capture_in_hook, &self), LS_OK);
    ls_scope *scope = ls_scope_begin();
    (void)step_of(&self);
    assert_int_equal(ls_scope_end(scope), LS_ERR_STATE);
    end(&other, self.inner);
    end(&self, NULL);
}

static void *replay_elsewhere(void *step) {
    expect_error(ls_step_replay(step), LS_ERR_STATE, "another thread has captured the step");
    return NULL;
}

/* Each thread has its own capture; the other threads run as usual meanwhile. */
static void *train_alone(void *user) {
    training self;
    ls_scope *scope = ls_scope_begin();
    (void)user;
    begin(&self, make_adam);
    for (int i = 0; i < 20; i++) {
        ls_step *step = capture(&self);
        replay(step);
        (void)run_eagerly(&self);
        ls_step_free(step);
    }
    assert_int_equal(self.runs, 40);
    ls_optimizer_free(self.optimizer);
    ls_module_free(self.model);
    assert_int_equal(ls_scope_end(scope), LS_OK);
    return NULL;
}

SCOPED_TEST(test_threads) {
    training self;
    pthread_t threads[3];
    begin(&self, make_sgd);
    ls_step *step = capture(&self);
    assert_int_equal(pthread_create(&threads[0], NULL, replay_elsewhere, step), 0);
    assert_int_equal(pthread_join(threads[0], NULL), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, train_alone, NULL), 0);
    }
    for (int i = 0; i < 200; i++) {
        replay(step);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    end(&self, step);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replays_have_the_same_bits),
        cmocka_unit_test(test_recomputed_modules),
        cmocka_unit_test(test_predictions),
        cmocka_unit_test(test_gradients_that_accumulate),
        cmocka_unit_test(test_replays_count_as_changes),
        cmocka_unit_test(test_the_arena_is_smaller_than_its_blocks),
        cmocka_unit_test(test_steps_that_are_refused),
        cmocka_unit_test(test_graphs_from_before_the_step_are_refused),
        cmocka_unit_test(test_replays_change_tensors_that_the_step_made),
        cmocka_unit_test(test_fallback_runs_the_function),
        cmocka_unit_test(test_other_devices_are_refused),
        cmocka_unit_test(test_hooks_are_refused),
        cmocka_unit_test(test_freed_objects_are_reported),
        cmocka_unit_test(test_freed_sources_of_copies_are_reported),
        cmocka_unit_test(test_changed_modes_are_reported),
        cmocka_unit_test(test_moved_tensors_are_reported),
        cmocka_unit_test(test_errors_of_the_function),
        cmocka_unit_test(test_errors_of_a_replay),
        cmocka_unit_test(test_captures_are_not_nested),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
