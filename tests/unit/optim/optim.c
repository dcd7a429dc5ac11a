/*
 * Optimizers compared with scalar formulas, over parameters of several sizes and both dtypes, some of which sometimes
 * have no gradient.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/parameters.h"

enum { STEPS = 20 };

/* ---- scalar optimizers ------------------------------------------------------------------------------------------- */

/* A number with its optimizer state. */
typedef struct number {
    double p, first, second, third;
    int t; /* number of steps, including the current one */
} number;

/* A kind of optimizer: its constructor, and the reference for one step of a single number. */
typedef struct kind {
    const char *name;
    ls_optimizer *(*make)(ls_module *model, const void *options);
    void (*start)(number *n, const void *options);
    void (*step)(number *n, double g, const void *options);
} kind;

static ls_optimizer *make_sgd(ls_module *model, const void *options) {
    return ls_sgd(model, options);
}

static void step_sgd(number *n, double g, const void *options) {
    const ls_sgd_options *o = options;
    double d = g + o->weight_decay * n->p;
    if (o->momentum != 0) {
        n->first = n->t == 1 ? d : o->momentum * n->first + (1 - o->dampening) * d;
        d = o->nesterov ? d + o->momentum * n->first : n->first;
    }
    n->p -= o->learning_rate * d;
}

static void step_any_adam(number *n, double g, const ls_adam_options *o) {
    n->first = o->beta1 * n->first + (1 - o->beta1) * g;
    n->second = o->beta2 * n->second + (1 - o->beta2) * g * g;
    n->third = fmax(n->third, n->second);
    const double first = n->first / (1 - pow(o->beta1, n->t));
    const double second = (o->amsgrad ? n->third : n->second) / (1 - pow(o->beta2, n->t));
    n->p -= o->learning_rate * first / (sqrt(second) + o->epsilon);
}

static ls_optimizer *make_adam(ls_module *model, const void *options) {
    return ls_adam(model, options);
}

static void step_adam(number *n, double g, const void *options) {
    const ls_adam_options *o = options;
    step_any_adam(n, g + o->weight_decay * n->p, o);
}

static ls_optimizer *make_adamw(ls_module *model, const void *options) {
    return ls_adamw(model, options);
}

static void step_adamw(number *n, double g, const void *options) {
    const ls_adam_options *o = options;
    n->p -= o->learning_rate * o->weight_decay * n->p;
    step_any_adam(n, g, o);
}

static ls_optimizer *make_rmsprop(ls_module *model, const void *options) {
    return ls_rmsprop(model, options);
}

static void step_rmsprop(number *n, double g, const void *options) {
    const ls_rmsprop_options *o = options;
    const double d = g + o->weight_decay * n->p;
    n->first = o->alpha * n->first + (1 - o->alpha) * d * d;
    n->second = o->alpha * n->second + (1 - o->alpha) * d;
    const double variance = o->centered ? n->first - n->second * n->second : n->first;
    n->third = o->momentum * n->third + d / (sqrt(variance) + o->epsilon);
    n->p -= o->learning_rate * n->third;
}

static ls_optimizer *make_adagrad(ls_module *model, const void *options) {
    return ls_adagrad(model, options);
}

static void start_adagrad(number *n, const void *options) {
    const ls_adagrad_options *o = options;
    n->first = o->initial_sum;
}

static void step_adagrad(number *n, double g, const void *options) {
    const ls_adagrad_options *o = options;
    const double d = g + o->weight_decay * n->p;
    n->first += d * d;
    n->p -= o->learning_rate / (1 + (n->t - 1) * o->learning_rate_decay) * d / (sqrt(n->first) + o->epsilon);
}

static const kind sgd = {"sgd", make_sgd, NULL, step_sgd};
static const kind adam = {"adam", make_adam, NULL, step_adam};
static const kind adamw = {"adamw", make_adamw, NULL, step_adamw};
static const kind rmsprop = {"rmsprop", make_rmsprop, NULL, step_rmsprop};
static const kind adagrad = {"adagrad", make_adagrad, start_adagrad, step_adagrad};

/* ---- training against the reference ------------------------------------------------------------------------------ */

/* Parameter 1, in the middle of the flat buffer, has no gradient in every third step. Parameter 3 has gradients only
 * after some steps, parameter 4 never. */
static bool has_gradient(int index, int step) {
    return index == 1 ? step % 3 != 1 : index == 3 ? step >= 4 : index != 4;
}

static void check_kind(const kind *tested, const void *options, ls_dtype dtype) {
    ls_module *model = make_model(dtype);
    ls_optimizer *optimizer = tested->make(model, options);
    assert_non_null(optimizer);
    number numbers[PARAMETERS][40] = {0};
    for (int i = 0; i < PARAMETERS; i++) {
        for (int64_t at = 0; at < sizes[i]; at++) {
            numbers[i][at].p = numbers_get(ls_module_parameter(model, i), at);
            if (tested->start != NULL) {
                tested->start(&numbers[i][at], options);
            }
        }
    }
    const double tolerance = dtype == LS_F32 ? 5e-5 : 1e-12;
    for (int step = 0; step < STEPS; step++) {
        ls_optimizer_zero_grad(optimizer);
        for (int i = 0; i < PARAMETERS; i++) {
            if (!has_gradient(i, step)) {
                assert_null(ls_grad(ls_module_parameter(model, i)));
                continue;
            }
            give_gradient(ls_module_parameter(model, i), step, i);
            for (int64_t at = 0; at < sizes[i]; at++) {
                numbers[i][at].t++;
                tested->step(&numbers[i][at], gradient_at(dtype, step, i, at), options);
            }
        }
        assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
        for (int i = 0; i < PARAMETERS; i++) {
            for (int64_t at = 0; at < sizes[i]; at++) {
                const double is = numbers_get(ls_module_parameter(model, i), at);
                numbers_expect(tested->name, is, numbers[i][at].p, i == 4 ? 0 : tolerance);
            }
        }
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

static void check_both_dtypes(const kind *tested, const void *options) {
    check_kind(tested, options, LS_F32);
    check_kind(tested, options, LS_F64);
}

TEST(test_sgd) {
    check_both_dtypes(&sgd, &(ls_sgd_options){.learning_rate = 0.1});
    check_both_dtypes(&sgd, &(ls_sgd_options){.learning_rate = 0.1, .weight_decay = 0.3});
    check_both_dtypes(&sgd, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
    check_both_dtypes(&sgd, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9, .nesterov = true});
    check_both_dtypes(&sgd,
                      &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.8, .dampening = 0.4, .weight_decay = 0.2});
    check_both_dtypes(&sgd,
                      &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.8, .nesterov = true, .weight_decay = 0.2});
}

TEST(test_adam) {
    const ls_adam_options plain = {.learning_rate = 0.02, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6};
    ls_adam_options options = plain;
    check_both_dtypes(&adam, &options);
    options.weight_decay = 0.1;
    check_both_dtypes(&adam, &options);
    check_both_dtypes(&adamw, &options);
    options.amsgrad = true;
    check_both_dtypes(&adam, &options);
    check_both_dtypes(&adamw, &options);
    /* LS_ZERO selects zero, not the default; the formulas in this file treat it as 0. */
    const ls_adam_options zero = {.learning_rate = 0.02, .beta1 = LS_ZERO, .beta2 = 0.95, .epsilon = LS_ZERO};
    check_both_dtypes(&adam, &zero);
    check_both_dtypes(
        &adamw, &(ls_adam_options){
                    .learning_rate = 0.02, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = LS_ZERO});
}

TEST(test_rmsprop) {
    ls_rmsprop_options options = {.learning_rate = 0.01, .alpha = 0.9, .epsilon = 1e-3};
    check_both_dtypes(&rmsprop, &options);
    options.weight_decay = 0.1;
    check_both_dtypes(&rmsprop, &options);
    options.centered = true;
    check_both_dtypes(&rmsprop, &options);
    options.momentum = 0.7;
    check_both_dtypes(&rmsprop, &options);
    options.centered = false;
    check_both_dtypes(&rmsprop, &options);
}

TEST(test_adagrad) {
    ls_adagrad_options options = {.learning_rate = 0.1, .epsilon = 1e-8};
    check_both_dtypes(&adagrad, &options);
    options.learning_rate_decay = 0.2;
    check_both_dtypes(&adagrad, &options);
    options.initial_sum = 0.5;
    options.weight_decay = 0.1;
    check_both_dtypes(&adagrad, &options);
}

/* The documented defaults of options that are zero. */
TEST(test_defaults) {
    ls_module *model = make_model(LS_F64);
    static const struct {
        ls_optimizer *(*make)(ls_module *model, const void *options);
        double learning_rate;
    } makers[] = {{make_sgd, 1e-3}, {make_adam, 1e-3}, {make_adamw, 1e-3}, {make_rmsprop, 1e-2}, {make_adagrad, 1e-2}};
    for (size_t i = 0; i < sizeof makers / sizeof *makers; i++) {
        ls_optimizer *optimizer = makers[i].make(model, NULL);
        assert_non_null(optimizer);
        assert_true(ls_optimizer_learning_rate(optimizer, 0) == makers[i].learning_rate);
        ls_optimizer_free(optimizer);
    }
    const double before = numbers_get(ls_module_parameter(model, 0), 0);
    ls_optimizer *optimizer = ls_adamw(model, NULL);
    give_gradient(ls_module_parameter(model, 0), 0, 0);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    number n = {.p = before, .t = 1};
    step_adamw(
        &n, gradient_at(LS_F64, 0, 0, 0),
        &(ls_adam_options){.learning_rate = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01});
    numbers_expect("adamw", numbers_get(ls_module_parameter(model, 0), 0), n.p, 1e-14);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),     cmocka_unit_test(test_adam),     cmocka_unit_test(test_rmsprop),
        cmocka_unit_test(test_adagrad), cmocka_unit_test(test_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
