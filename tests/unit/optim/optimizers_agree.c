/*
 * The steps of tests/fixtures/make_optimizers.py: parameters equal PyTorch's, or the results of the papers' formulas,
 * in both dtypes, even if interrupted and resumed from a saved state.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/numbers.h"

#include <lockstep/optim.h>

#include "tests/support/operations.h"

enum { PARAMETERS = 4, FIRST_LOOK = 4, STEPS = 20 };

FIXTURES(fixtures, "optimizers.txt")

static ls_tensor *pass_through(ls_module *self, ls_tensor *input) {
    (void)self;
    return input;
}

/* As in the script, the last parameter is zero, so LAMB cannot scale by its norm. */
static ls_module *make_model(ls_dtype dtype) {
    static const ls_module_type type = {.name = "Numbers", .forward = pass_through};
    static const char *const names[PARAMETERS] = {"a", "b", "c", "d"};
    const ls_shape shapes[PARAMETERS] = {LS_SHAPE(4, 3), LS_SHAPE(5), LS_SHAPE(2, 6), LS_SHAPE(3, 3)};
    ls_module *model = ls_module_new(&type);
    for (int i = 0; i < PARAMETERS; i++) {
        ls_tensor *tensor = ls_zeros(shapes[i], dtype);
        for (int64_t at = 0; i < 3 && at < ls_numel(tensor); at++) {
            numbers_set(tensor, at, 2 * sin(1.37 * i + 0.73 * (double)at));
        }
        assert_non_null(ls_module_add_parameter(model, names[i], tensor));
    }
    model = ls_module_finish(model);
    assert_non_null(model);
    return model;
}

static bool has_gradient(int index, int step) {
    return index == 1 ? step % 3 != 1 : index == 2 ? step >= 3 : true;
}

static void train_step(ls_module *model, ls_optimizer *optimizer, int step) {
    ls_scope *scope = ls_scope_begin();
    ls_optimizer_zero_grad(optimizer);
    for (int i = 0; i < PARAMETERS; i++) {
        ls_tensor *parameter = ls_module_parameter(model, i);
        ls_tensor *gradient = ls_empty(ls_shape_of(parameter), ls_dtype_of(parameter));
        for (int64_t at = 0; at < ls_numel(gradient); at++) {
            numbers_set(gradient, at, 2 * sin(1.37 * (10 * (step + 1) + i) + 0.73 * (double)at));
        }
        if (has_gradient(i, step)) {
            assert_int_equal(ls_backward(ls_sum(ls_mul(parameter, gradient))), LS_OK);
        }
    }
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* ---- the methods ------------------------------------------------------------------------------------------------- */

typedef struct row {
    const char *name; /* of the fixture */
    ls_optimizer *(*make)(ls_module *model);
    const char *word; /* the name of a part of its state */
} row;

static ls_optimizer *make_adadelta(ls_module *model) {
    return ls_adadelta(model, NULL);
}

static ls_optimizer *make_adadelta_decay(ls_module *model) {
    return ls_adadelta(model,
                       &(ls_adadelta_options){.learning_rate = 0.5, .rho = 0.7, .epsilon = 1e-3, .weight_decay = 0.1});
}

static ls_optimizer *make_nadam(ls_module *model) {
    return ls_nadam(model, NULL);
}

static ls_optimizer *make_nadam_decay(ls_module *model) {
    return ls_nadam(model, &(ls_nadam_options){.learning_rate = 0.05,
                                               .beta1 = 0.8,
                                               .beta2 = 0.95,
                                               .epsilon = 1e-6,
                                               .weight_decay = 0.1,
                                               .momentum_decay = 0.3});
}

static ls_optimizer *make_nadam_decoupled(ls_module *model) {
    return ls_nadam(model, &(ls_nadam_options){.learning_rate = 0.05, .weight_decay = 0.1, .decoupled = true});
}

static ls_optimizer *make_radam(ls_module *model) {
    return ls_radam(model, NULL);
}

static ls_optimizer *make_radam_decay(ls_module *model) {
    return ls_radam(
        model,
        &(ls_radam_options){.learning_rate = 0.05, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = 0.1});
}

static ls_optimizer *make_radam_decoupled(ls_module *model) {
    return ls_radam(model, &(ls_radam_options){.learning_rate = 0.05, .weight_decay = 0.1, .decoupled = true});
}

static ls_optimizer *make_lion(ls_module *model) {
    return ls_lion(model, NULL);
}

static ls_optimizer *make_lion_decay(ls_module *model) {
    return ls_lion(model, &(ls_lion_options){.learning_rate = 0.02, .beta1 = 0.7, .beta2 = 0.8, .weight_decay = 0.5});
}

static ls_optimizer *make_lamb(ls_module *model) {
    return ls_lamb(model, NULL);
}

static ls_optimizer *make_lamb_plain(ls_module *model) {
    return ls_lamb(model,
                   &(ls_lamb_options){
                       .learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = LS_ZERO});
}

static ls_optimizer *make_muon(ls_module *model) {
    return ls_muon(model, NULL);
}

static ls_optimizer *make_muon_other(ls_module *model) {
    return ls_muon(model, &(ls_muon_options){
                              .learning_rate = 0.02,
                              .momentum = 0.6,
                              .weight_decay = 0.3,
                              .no_nesterov = true,
                              .a = 2,
                              .b = -1.5,
                              .c = 0.5,
                              .iterations = 7,
                              .rates = LS_MUON_AS_ADAMW,
                              .adamw = {.learning_rate = 0.05, .beta2 = 0.95, .weight_decay = LS_ZERO},
                          });
}

static const row rows[] = {
    {"adadelta", make_adadelta, "a.acc_delta"},
    {"adadelta_decay", make_adadelta_decay, "d.square_avg"},
    {"nadam", make_nadam, "b.mu_product"},
    {"nadam_decay", make_nadam_decay, "c.exp_avg"},
    {"nadam_decoupled", make_nadam_decoupled, "c.exp_avg_sq"},
    {"radam", make_radam, "b.exp_avg"},
    {"radam_decay", make_radam_decay, "b.exp_avg_sq"},
    {"radam_decoupled", make_radam_decoupled, "b.step"},
    {"lion", make_lion, "b.exp_avg"},
    {"lion_decay", make_lion_decay, "d.exp_avg"},
    {"lamb", make_lamb, "b.exp_avg"},
    {"lamb_plain", make_lamb_plain, "b.exp_avg_sq"},
    {"muon", make_muon, "a.momentum_buffer"},
    {"muon_other", make_muon_other, "b.exp_avg_sq"},
};

/* ---- the comparison ---------------------------------------------------------------------------------------------- */

static void check_model(const row *tested, const ls_module *model, int look, double tolerance) {
    const fixture *right = fixture_find(fixtures, tested->name);
    int next = look * right->count / 2;
    for (int i = 0; i < PARAMETERS; i++) {
        const ls_tensor *parameter = ls_module_parameter(model, i);
        for (int64_t at = 0; at < ls_numel(parameter); at++, next++) {
            const double is = numbers_get(parameter, at);
            if (!(fabs(is - right->values[next]) <= tolerance * (1 + fabs(right->values[next])))) {
                fail_msg("%s: number %d of parameter %d is %.15g, not %.15g", tested->name, (int)at, i, is,
                         right->values[next]);
            }
        }
    }
    assert_int_equal(next, (look + 1) * right->count / 2);
}

static void check_row(const row *tested, ls_dtype dtype) {
    const double tolerance = dtype == LS_F32 ? 1e-4 : 1e-11;
    ls_module *model = make_model(dtype);
    ls_optimizer *optimizer = tested->make(model);
    assert_non_null(optimizer);
    for (int step = 0; step < STEPS; step++) {
        train_step(model, optimizer, step);
        if (step + 1 == FIRST_LOOK) {
            check_model(tested, model, 0, tolerance);
        }
    }
    check_model(tested, model, 1, tolerance);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

TEST(test_steps) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_row(&rows[i], LS_F64);
        check_row(&rows[i], LS_F32);
    }
}

/*
 * Parameters that are updated together give the same results as each alone, even if they have the same number of steps
 * but different momentum (NAdam's mu_product).
 */
TEST(test_together) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_module *together = make_model(LS_F32), *apart = make_model(LS_F32);
        ls_optimizer *whole = rows[i].make(together), *groups = rows[i].make(NULL);
        for (int k = 0; k < PARAMETERS; k++) {
            ls_tensor *parameter = ls_module_parameter(apart, k);
            assert_int_equal(ls_optimizer_add_group(groups, &parameter, 1, NULL), LS_OK);
        }
        for (int step = 0; step < STEPS; step++) {
            const double momentum = 0.3 + 0.03 * step;
            if (ls_optimizer_momentum(whole) > 0) {
                assert_int_equal(ls_optimizer_set_momentum(whole, momentum), LS_OK);
                assert_int_equal(ls_optimizer_set_momentum(groups, momentum), LS_OK);
            }
            train_step(together, whole, step);
            train_step(apart, groups, step);
        }
        if (ls_module_hash(together) != ls_module_hash(apart)) {
            fail_msg("%s steps parameters together as it does not step each", rows[i].name);
        }
        ls_optimizer_free(whole);
        ls_optimizer_free(groups);
        ls_module_free(together);
        ls_module_free(apart);
    }
}

static bool has_word(const ls_named *tensors, int count, const char *word) {
    for (int i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, word) == 0) {
            return true;
        }
    }
    return false;
}

/* A second optimizer of the same model continues from the state of the first. */
TEST(test_states) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_module *model = make_model(LS_F64), *broken_off = make_model(LS_F64);
        ls_optimizer *optimizer = rows[i].make(model), *first = rows[i].make(broken_off);
        for (int step = 0; step < STEPS; step++) {
            train_step(model, optimizer, step);
        }
        for (int step = 0; step < STEPS / 2; step++) {
            train_step(broken_off, first, step);
        }
        const ls_named *tensors = NULL;
        int count = 0;
        ls_optimizer *second = rows[i].make(broken_off);
        assert_int_equal(ls_optimizer_state(first, &tensors, &count), LS_OK);
        if (!has_word(tensors, count, rows[i].word)) {
            fail_msg("%s does not remember %s", rows[i].name, rows[i].word);
        }
        assert_int_equal(ls_optimizer_set_state(second, tensors, count), LS_OK);
        for (int step = STEPS / 2; step < STEPS; step++) {
            train_step(broken_off, second, step);
        }
        if (ls_module_hash(model) != ls_module_hash(broken_off)) {
            fail_msg("%s does not go on as it would have", rows[i].name);
        }
        ls_optimizer_free(optimizer);
        ls_optimizer_free(first);
        ls_optimizer_free(second);
        ls_module_free(model);
        ls_module_free(broken_off);
    }
}

static ls_optimizer *make_sgd(ls_module *model) {
    return ls_sgd(model, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
}

static ls_optimizer *make_amsgrad(ls_module *model) {
    return ls_adam(model, &(ls_adam_options){.amsgrad = true});
}

static ls_optimizer *make_adamw(ls_module *model) {
    return ls_adamw(model, NULL);
}

static ls_optimizer *make_rmsprop(ls_module *model) {
    return ls_rmsprop(model, NULL);
}

static ls_optimizer *make_adagrad(ls_module *model) {
    return ls_adagrad(model, NULL);
}

/* Checks that a NaN gradient makes the number that it belongs to NaN, and no number of another parameter. */
static void check_nan(const char *name, ls_optimizer *(*make)(ls_module *), ls_dtype dtype) {
    ls_module *model = make_model(dtype);
    ls_optimizer *optimizer = make(model);
    assert_non_null(optimizer);
    train_step(model, optimizer, 0);
    ls_scope *scope = ls_scope_begin();
    ls_optimizer_zero_grad(optimizer);
    ls_tensor *parameter = ls_module_parameter(model, 0), *gradient = ls_zeros(LS_SHAPE(4, 3), dtype);
    numbers_set(gradient, 5, NAN);
    assert_int_equal(ls_backward(ls_sum(ls_mul(parameter, gradient))), LS_OK);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    if (!isnan(numbers_get(parameter, 5)) || isnan(numbers_get(ls_module_parameter(model, 3), 0))) {
        fail_msg("%s hides a NaN gradient, or spreads it to another parameter", name);
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

TEST(test_nan) {
    static const row others[] = {{"sgd", make_sgd, NULL},
                                 {"amsgrad", make_amsgrad, NULL},
                                 {"adamw", make_adamw, NULL},
                                 {"rmsprop", make_rmsprop, NULL},
                                 {"adagrad", make_adagrad, NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_nan(rows[i].name, rows[i].make, LS_F32);
        check_nan(rows[i].name, rows[i].make, LS_F64);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        check_nan(others[i].name, others[i].make, LS_F32);
        check_nan(others[i].name, others[i].make, LS_F64);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),
        cmocka_unit_test(test_together),
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_nan),
    };
    return cmocka_run_group_tests(tests, fixtures_begin, fixtures_end);
}
