/*
 * Captured steps that draw random numbers: a replay draws the numbers that another call to the function would draw.
 *
 * devices: cpu
 */
#include "tests/support/captured.h"

enum { STEPS = 12, LENGTH = 3 };

/* What a step with random numbers leaves after a number of steps. */
typedef struct outcome {
    uint64_t hash[STEPS];
    float loss[STEPS];
    ls_random_state random[STEPS]; /* of the generator, after the step */
} outcome;

static ls_tensor *drop_loss(classifier *self, ls_tensor *loss) {
    (void)self;
    return ls_dropout(loss, 0.5);
}

/* Adds the sum of numbers of every distribution. */
static ls_tensor *add_noise(classifier *self, ls_tensor *loss) {
    ls_tensor *uniform = ls_sum(ls_rand(LS_SHAPE(7), LS_F32));
    ls_tensor *normal = ls_sum(ls_to(ls_randn(LS_SHAPE(5), LS_BF16), LS_F32));
    ls_tensor *integers = ls_sum(ls_to(ls_randint(LS_SHAPE(9), LS_I32, -5, 5), LS_F32));
    ls_tensor *scores = ls_mean(ls_forward(self->model, ls_randn(LS_SHAPE(BATCH, LENGTH, FEATURES), LS_F32)));
    return ls_add(loss, ls_mul(scores, ls_add(uniform, ls_add(normal, integers))));
}

/* Draws numbers that nothing uses. */
static ls_tensor *draw_in_vain(classifier *self, ls_tensor *loss) {
    (void)ls_rand(LS_SHAPE(3), LS_F32);
    return drop_loss(self, loss);
}

static ls_tensor *pass_on(ls_tensor *batch, const ls_samples *samples, void *user) {
    (void)samples;
    (void)user;
    return batch;
}

/* A data set sets the state of the generator while it reads samples, and restores it. The program does not. */
static ls_tensor *read_dataset(classifier *self, ls_tensor *loss) {
    ls_dataset *dataset = ls_tensor_dataset(ls_ones(LS_SHAPE(2, 3), LS_F32), ls_ones(LS_SHAPE(2), LS_F32));
    dataset = ls_dataset_transform_input(dataset, pass_on, NULL); /* reads a sample */
    assert_non_null(dataset);
    ls_dataset_free(dataset);
    return drop_loss(self, loss);
}

static ls_module *make_plain(void) {
    return ls_sequential(ls_nn_linear(FEATURES, 16), ls_nn_relu(), ls_nn_dropout(0.3), ls_nn_flatten(),
                         ls_nn_linear(LENGTH * 16, CLASSES));
}

/* Its second forward pass repeats the numbers of the first. */
static ls_module *make_recomputed(void) {
    ls_module *inner = ls_sequential(ls_nn_tanh(), ls_nn_dropout(0.4), ls_nn_linear(16, 16));
    assert_int_equal(ls_recompute(inner, true), LS_OK);
    return ls_sequential(ls_nn_linear(FEATURES, 16), inner, ls_nn_dropout(0.2), ls_nn_flatten(),
                         ls_nn_linear(LENGTH * 16, CLASSES));
}

static ls_module *make_attention(void) {
    return ls_sequential(ls_nn_transformer_block(FEATURES, 2, &(ls_transformer_options){.dropout = 0.25}),
                         ls_nn_flatten(), ls_nn_linear(LENGTH * FEATURES, CLASSES));
}

/* Trains by calling the function or by replaying a captured step. Before some steps, the program itself also draws
 * random numbers. */
static outcome train(ls_module *(*make)(void), ls_tensor *(*also)(classifier *self, ls_tensor *loss), bool replays) {
    classifier self;
    outcome result = {.hash = {0}};
    classifier_begin(&self, make_sgd);
    ls_optimizer_free(self.optimizer);
    ls_module_free(self.model);
    self.model = make();
    self.optimizer = make_sgd(self.model);
    assert_non_null(self.optimizer);
    self.x = ls_rand(LS_SHAPE(BATCH, LENGTH, FEATURES), LS_F32);
    self.also = also;
    ls_step *step = NULL;
    for (int i = 0; i < STEPS; i++) {
        if (i % 3 == 1) {
            ls_release(ls_rand(LS_SHAPE(i), LS_F32));
        }
        if (i == 8) {
            ls_seed(77);
        }
        if (!replays) {
            result.loss[i] = classifier_run(&self);
        } else if (step == NULL) {
            step = classifier_capture(&self);
        } else {
            replay_step(step);
        }
        if (replays) {
            result.loss[i] = *(const float *)ls_data_const(ls_step_result(step));
        }
        result.hash[i] = ls_module_hash(self.model);
        result.random[i] = ls_random_get_state();
    }
    assert_int_equal(self.runs, replays ? 1 : STEPS);
    classifier_end(&self, step);
    return result;
}

static void compare(ls_module *(*make)(void), ls_tensor *(*also)(classifier *self, ls_tensor *loss)) {
    const outcome eager = train(make, also, false), replayed = train(make, also, true);
    for (int i = 0; i < STEPS; i++) {
        assert_memory_equal(&eager.loss[i], &replayed.loss[i], sizeof(float));
        assert_true(eager.hash[i] == replayed.hash[i]);
        assert_memory_equal(&eager.random[i], &replayed.random[i], sizeof(ls_random_state));
        assert_true(i == 0 || eager.random[i].stream != eager.random[i - 1].stream);
    }
}

SCOPED_TEST(test_dropout) {
    compare(make_plain, NULL);
    compare(make_plain, drop_loss);
    compare(make_attention, NULL);
}

SCOPED_TEST(test_recomputed_dropout) {
    compare(make_recomputed, NULL);
    compare(make_recomputed, add_noise);
}

SCOPED_TEST(test_all_distributions) {
    compare(make_plain, add_noise);
    compare(make_plain, draw_in_vain);
}

SCOPED_TEST(test_a_data_set_in_the_step) {
    compare(make_plain, read_dataset);
}

static ls_tensor *seed(classifier *self, ls_tensor *loss) {
    ls_seed(5);
    return drop_loss(self, loss);
}

static ls_tensor *set_state(classifier *self, ls_tensor *loss) {
    ls_random_set_state(ls_random_get_state());
    return drop_loss(self, loss);
}

static ls_tensor *permute(classifier *self, ls_tensor *loss) {
    return ls_add(loss, ls_mul(ls_sum(ls_to(ls_randperm(self->runs + 2), LS_F32)), 0));
}

static ls_tensor *read_state(classifier *self, ls_tensor *loss) {
    (void)self;
    const ls_random_state state = ls_random_get_state();
    return ls_mul(loss, ls_random_uniform(state.seed, state.stream, 0));
}

static ls_tensor *initialize(classifier *self, ls_tensor *loss) {
    return ls_nn_init_normal(self->copied, 0, 1) == LS_OK ? ls_add(loss, ls_sum(self->copied)) : NULL;
}

SCOPED_TEST(test_steps_that_are_refused) {
    static const struct {
        ls_tensor *(*also)(classifier *self, ls_tensor *loss);
        const char *reason;
    } refused[] = {
        {seed, "ls_random_set_state or ls_seed uses the state of the random number generator"},
        {set_state, "ls_random_set_state or ls_seed uses the state of the random number generator"},
        {read_state, "ls_step_capture: ls_random_get_state, ls_random_set_state or ls_seed uses the state"},
        {permute, "ls_step_capture: ls_randperm writes elements on the host"},
        {initialize, "ls_step_capture: ls_nn_init_normal writes elements on the host"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        classifier self;
        classifier_begin(&self, make_sgd);
        self.also = refused[i].also;
        self.copied = ls_zeros(LS_SHAPE(3), LS_F32);
        expect_refused(&self, LS_ERR_UNSUPPORTED, refused[i].reason);
        classifier_end(&self, NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_recomputed_dropout),
        cmocka_unit_test(test_all_distributions),
        cmocka_unit_test(test_a_data_set_in_the_step),
        cmocka_unit_test(test_steps_that_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
