/*
 * Replays of a captured step of a GPT use at most 0.8 times the memory of the step's function, and no memory that the
 * cache of the thread keeps from the capture.
 *
 * devices: cpu
 */
#include <lockstep/lockstep.h>

#include "tensor/scope.h"
#include "tests/support/unit.h"

enum { LETTERS = 64, WIDTH = 64, LENGTH = 64, SEQUENCES = 16, LAYERS = 4 };

typedef struct training {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_tensor *input, *target;
} training;

static ls_tensor *train(void *user) {
    const training *t = user;
    ls_optimizer_zero_grad(t->optimizer);
    ls_tensor *output = ls_reshape(ls_forward(t->model, t->input), LS_SHAPE(-1, LETTERS));
    ls_tensor *loss = ls_cross_entropy(output, ls_reshape(t->target, LS_SHAPE(-1)), NULL);
    return ls_backward(loss) == LS_OK && ls_optimizer_step(t->optimizer) == LS_OK ? loss : NULL;
}

static ls_module *make_gpt(void) {
    const ls_transformer_options block = {.norm_first = true, .attention = {.causal = true}};
    ls_module *layers[LAYERS + 2] = {ls_nn_embedding(LETTERS, WIDTH)};
    for (int i = 1; i <= LAYERS; i++) {
        layers[i] = ls_nn_transformer_block(WIDTH, 4, &block);
    }
    layers[LAYERS + 1] = ls_nn_linear(WIDTH, LETTERS);
    return ls_sequential_of(layers, LAYERS + 2);
}

static void run_step(training *t) {
    ls_scope *scope = ls_scope_begin();
    assert_non_null(train(t));
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

static int64_t peak_bytes(void) {
    ls_memory memory;
    assert_int_equal(ls_memory_stats(&memory), LS_OK);
    return memory.peak_total;
}

SCOPED_TEST(test_peak_of_a_replay) {
    training t = {.model = make_gpt(),
                  .input = ls_randint(LS_SHAPE(SEQUENCES, LENGTH), LS_I64, 0, LETTERS),
                  .target = ls_randint(LS_SHAPE(SEQUENCES, LENGTH), LS_I64, 0, LETTERS)};
    t.optimizer = ls_adamw(t.model, NULL);
    assert_non_null(t.optimizer);
    run_step(&t);
    assert_int_equal(ls_memory_reset_peak(), LS_OK);
    run_step(&t);
    const int64_t of_function = peak_bytes();
    ls_step *step = ls_step_capture(train, &t, NULL);
    assert_non_null(step);
    assert_true(ls_thread()->cache.held < (size_t)of_function / 20);
    assert_int_equal(ls_memory_reset_peak(), LS_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ls_step_replay(step), LS_OK);
    }
    assert_true((double)peak_bytes() <= 0.8 * (double)of_function);
    ls_step_free(step);
    ls_optimizer_free(t.optimizer);
    ls_module_free(t.model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_peak_of_a_replay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
