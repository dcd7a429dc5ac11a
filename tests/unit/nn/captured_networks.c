/*
 * The random networks of networks.txt, trained by replays of a captured step, are bit-identical to networks that are
 * trained by the function of the step, after each of 200 steps. Networks that cannot be captured are counted.
 *
 * devices: cpu
 */
#include "tensor/device/cpu/cpu.h"
#include "tensor/scope.h"
#include "tests/support/networks.h"
#include "tests/support/unit.h"

#include <lockstep/step.h>

/* The other networks use ls_bce_loss, which checks its probabilities on the host. */
enum { STEPS = 200, NETWORKS = 300, CAPTURED = 280 };

static ls_optimizer *make_optimizer(int number, ls_module *model) {
    switch (number % 4) {
    case 0:
        return ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.01, .momentum = 0.9});
    case 1:
        return ls_adam(model, &(ls_adam_options){.learning_rate = 0.001});
    case 2:
        return ls_rmsprop(model, &(ls_rmsprop_options){.learning_rate = 0.001, .momentum = 0.5});
    default:
        return ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.01});
    }
}

static void make_twin(network_training *self, const network *one, ls_dtype dtype) {
    const char *failed = NULL;
    *self = (network_training){.one = one, .model = network_module(one, dtype, &failed)};
    assert_non_null(self->model);
    network_set_numbers(one, self->model);
    self->optimizer = make_optimizer(one->number, self->model);
    assert_non_null(self->optimizer);
    self->x = network_input(one, dtype);
    assert_non_null(self->x);
}

static void free_twin(network_training *self) {
    ls_optimizer_free(self->optimizer);
    ls_module_free(self->model);
}

/* Gives both networks the input of a step. */
static void change_inputs(network_training *eager, network_training *captured, ls_tensor *x, int step) {
    if (!ls_dtype_is_floating(ls_dtype_of(x))) {
        return;
    }
    ls_scope *scope = ls_scope_begin();
    (void)ls_no_grad(true);
    ls_tensor *now = ls_mul(ls_clone(x), 1 - 0.004 * (double)step);
    assert_int_equal(ls_copy_into(eager->x, now), LS_OK);
    assert_int_equal(ls_copy_into(captured->x, now), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

static double run_eagerly(network_training *self) {
    ls_scope *scope = ls_scope_begin();
    const double loss = ls_item(network_train(self));
    assert_int_equal(ls_scope_end(scope), LS_OK);
    return loss;
}

/* Returns the name of a tensor that differs; NULL if all are equal. */
static const char *compare_twins(const network_training *a, const network_training *b) {
    for (int i = 0; i < ls_module_parameter_count(a->model); i++) {
        const ls_tensor *one = ls_module_parameter(a->model, i), *other = ls_module_parameter(b->model, i);
        if (!ls_equal(one, other) || !ls_equal(ls_grad(one), ls_grad(other))) {
            return ls_module_parameter_name(a->model, i);
        }
    }
    for (int i = 0; i < ls_module_buffer_count(a->model); i++) {
        if (!ls_equal(ls_module_buffer(a->model, i), ls_module_buffer(b->model, i))) {
            return ls_module_buffer_name(a->model, i);
        }
    }
    const ls_tensor *one = ls_grad(a->x), *other = ls_grad(b->x);
    return (one == NULL) == (other == NULL) && (one == NULL || ls_equal(one, other)) ? NULL : "the input";
}

static bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Returns whether both networks are equal after a step; prints a difference. */
static bool check_step(const network_training *eager, const network_training *captured, int step, double expected,
                       double loss) {
    const bool compares = step < 3 || step % 50 == 0;
    const char *different = !same_bits(expected, loss) ? "the loss" : compares ? compare_twins(eager, captured) : NULL;
    if (different != NULL) {
        char what[200];
        snprintf(what, sizeof what, "step %d: %s differs (losses %.17g and %.17g)", step, different, expected, loss);
        network_print(captured->one, what);
    }
    return different == NULL;
}

typedef struct outcome {
    int captured, refused, wrong;
} outcome;

static void check_refusal(const network *one) {
    assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
    print_message("network %d: %s\n", one->number, ls_error_message());
    assert_null(ls_thread()->capture);
    assert_ptr_equal(ls_cpu.kernels, &ls_cpu_kernels);
}

static void check_network(const network *one, ls_dtype dtype, outcome *all) {
    network_training eager, captured;
    ls_scope *scope = ls_scope_begin();
    make_twin(&eager, one, dtype);
    make_twin(&captured, one, dtype);
    ls_tensor *x = ls_clone(eager.x);
    network_keep_tensors(true);
    double expected = run_eagerly(&eager);
    ls_scope *inner = ls_scope_begin();
    ls_step *step = ls_step_capture(network_train, &captured, NULL);
    assert_int_equal(ls_scope_end(inner), step != NULL ? LS_OK : LS_ERR_UNSUPPORTED);
    all->captured += step != NULL;
    all->refused += step == NULL;
    if (step == NULL) {
        check_refusal(one);
        all->wrong += !check_step(&eager, &captured, 0, 0, 0);
    }
    bool same = step != NULL && check_step(&eager, &captured, 0, expected, ls_item(ls_step_result(step)));
    all->wrong += step != NULL && !same;
    for (int i = 1; i <= STEPS && same; i++) {
        change_inputs(&eager, &captured, x, i);
        expected = run_eagerly(&eager);
        if (ls_step_replay(step) != LS_OK) {
            fail_msg("network %d, step %d: %s", one->number, i, ls_error_message());
        }
        same = check_step(&eager, &captured, i, expected, ls_item(ls_step_result(step)));
        all->wrong += !same;
    }
    ls_step_free(step);
    network_keep_tensors(false);
    free_twin(&captured);
    free_twin(&eager);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_networks_have_the_same_bits) {
    FILE *file = fopen(LS_FIXTURES "/networks.txt", "r");
    assert_non_null(file);
    static network one;
    outcome all = {0};
    for (int read = 0; network_read(file, read, &one); read++) {
        if (!IS_SANITIZED || read % 5 == 0) { /* with every optimizer and dtype */
            check_network(&one, read % 3 == 0 && network_has_f64(&one) ? LS_F64 : LS_F32, &all);
        }
    }
    fclose(file);
    print_message("%d networks captured, %d refused\n", all.captured, all.refused);
    assert_int_equal(all.wrong, 0);
    if (IS_SANITIZED) {
        assert_true(all.captured > 0);
    } else {
        assert_int_equal(all.captured, CAPTURED);
        assert_int_equal(all.captured + all.refused, NETWORKS);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_networks_have_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
