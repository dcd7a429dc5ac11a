/*
 * Optimizers against formulas written one number at a time, over parameters of several sizes and both dtypes, some of
 * which miss gradients now and then; groups, clipping, wrong input.
 */
#include "tests/support/numbers.h"

#include <lockstep/optim.h>

enum { PARAMETERS = 5, STEPS = 20 };

static const int64_t sizes[PARAMETERS] = {3, 17, 1, 40, 16};

/* ---- a model that is only its parameters ------------------------------------------------------------------------- */

static ls_tensor *pass_through(ls_module *self, ls_tensor *input) {
    (void)self;
    return input;
}

/* Number `at` of parameter `index` starts as a function of both. */
static ls_module *make_model(ls_dtype dtype) {
    static const ls_module_type type = {.name = "Numbers", .forward = pass_through};
    static const char *const names[PARAMETERS] = {"a", "b", "c", "d", "e"};
    ls_module *model = ls_module_new(&type);
    for (int i = 0; i < PARAMETERS; i++) {
        ls_tensor *tensor = ls_empty(LS_SHAPE(sizes[i]), dtype);
        assert_non_null(tensor);
        for (int64_t at = 0; at < sizes[i]; at++) {
            numbers_set(tensor, at, ls_random_normal(1, (uint64_t)i, (uint64_t)at));
        }
        assert_non_null(ls_module_add_parameter(model, names[i], tensor));
    }
    model = ls_module_finish(model);
    assert_non_null(model);
    return model;
}

/* The gradient that step `step` gives the number. */
static double gradient_at(ls_dtype dtype, int step, int index, int64_t at) {
    const double number = ls_random_normal(2, (uint64_t)(step * PARAMETERS + index), (uint64_t)at);
    return dtype == LS_F32 ? (double)(float)number : number;
}

/* Goes backwards from the sum of parameter times gradient, which has just that gradient. */
static void give_gradient(ls_tensor *parameter, int step, int index) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *gradient = ls_empty(ls_shape_of(parameter), ls_dtype_of(parameter));
    for (int64_t at = 0; at < ls_numel(parameter); at++) {
        numbers_set(gradient, at, gradient_at(ls_dtype_of(parameter), step, index, at));
    }
    assert_int_equal(ls_backward(ls_sum(ls_mul(parameter, gradient))), LS_OK);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

/* ---- optimizers, one number at a time ---------------------------------------------------------------------------- */

/* A number with what an optimizer remembers of it. */
typedef struct number {
    double p, first, second, third;
    int t; /* steps taken, the present one included */
} number;

/* A kind of optimizer: how to make one and the reference for one step of one number. */
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
    n->p -= o->no_weight_decay ? 0 : o->learning_rate * o->weight_decay * n->p;
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

/* Parameter 1, in the middle of the flat buffer, misses every third step; 3 begins late; 4 has never a gradient. */
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

static void test_sgd(void **state) {
    (void)state;
    check_both_dtypes(&sgd, &(ls_sgd_options){.learning_rate = 0.1});
    check_both_dtypes(&sgd, &(ls_sgd_options){.learning_rate = 0.1, .weight_decay = 0.3});
    check_both_dtypes(&sgd, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
    check_both_dtypes(&sgd, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9, .nesterov = true});
    check_both_dtypes(&sgd,
                      &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.8, .dampening = 0.4, .weight_decay = 0.2});
    check_both_dtypes(&sgd,
                      &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.8, .nesterov = true, .weight_decay = 0.2});
}

static void test_adam(void **state) {
    (void)state;
    const ls_adam_options plain = {.learning_rate = 0.02, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6};
    ls_adam_options options = plain;
    check_both_dtypes(&adam, &options);
    check_both_dtypes(&adamw, &(ls_adam_options){.learning_rate = 0.02,
                                                 .beta1 = 0.8,
                                                 .beta2 = 0.95,
                                                 .epsilon = 1e-6,
                                                 .no_weight_decay = true,
                                                 .weight_decay = 0.1});
    options.weight_decay = 0.1;
    check_both_dtypes(&adam, &options);
    check_both_dtypes(&adamw, &options);
    options.amsgrad = true;
    check_both_dtypes(&adam, &options);
    check_both_dtypes(&adamw, &options);
    /* what LS_ZERO says is no default, and -0.0 computes as 0 in the formulas */
    const ls_adam_options zero = {.learning_rate = 0.02, .beta1 = LS_ZERO, .beta2 = 0.95, .epsilon = LS_ZERO};
    check_both_dtypes(&adam, &zero);
    check_both_dtypes(
        &adamw, &(ls_adam_options){
                    .learning_rate = 0.02, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .weight_decay = LS_ZERO});
}

static void test_rmsprop(void **state) {
    (void)state;
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

static void test_adagrad(void **state) {
    (void)state;
    ls_adagrad_options options = {.learning_rate = 0.1, .epsilon = 1e-8};
    check_both_dtypes(&adagrad, &options);
    options.learning_rate_decay = 0.2;
    check_both_dtypes(&adagrad, &options);
    options.initial_sum = 0.5;
    options.weight_decay = 0.1;
    check_both_dtypes(&adagrad, &options);
}

/* What the headers promise for options left zero. */
static void test_defaults(void **state) {
    (void)state;
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

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* Steps once and returns by how much number 0 of the parameter fell. */
static double fall(ls_optimizer *optimizer, ls_tensor *parameter, int index) {
    const double before = numbers_get(parameter, 0);
    ls_optimizer_zero_grad(optimizer);
    give_gradient(parameter, 0, index);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    return before - numbers_get(parameter, 0);
}

static void test_groups_differ(void **state) {
    (void)state;
    ls_module *model = make_model(LS_F64);
    ls_tensor *p[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++) {
        p[i] = ls_module_parameter(model, i);
    }
    ls_optimizer *optimizer = ls_sgd(NULL, &(ls_sgd_options){.learning_rate = 0.5, .weight_decay = 0.25});
    assert_int_equal(ls_optimizer_group_count(optimizer), 0);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[0], 1, NULL), LS_OK);
    assert_int_equal(
        ls_optimizer_add_group(optimizer, &p[1], 2, &(ls_group_options){.learning_rate = 0.1, .no_weight_decay = true}),
        LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[3], 1, &(ls_group_options){.weight_decay = 2}), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, NULL, 0, NULL), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[4], 1, &(ls_group_options){.learning_rate = LS_ZERO}), LS_OK);
    assert_int_equal(ls_optimizer_group_count(optimizer), 5);
    double start[PARAMETERS];
    double g[PARAMETERS];
    for (int i = 0; i < PARAMETERS; i++) {
        start[i] = numbers_get(p[i], 0);
        g[i] = gradient_at(LS_F64, 0, i, 0);
    }
    numbers_expect("group 0", fall(optimizer, p[0], 0), 0.5 * (g[0] + 0.25 * start[0]), 1e-14);
    numbers_expect("group 1", fall(optimizer, p[1], 1), 0.1 * g[1], 1e-14);
    numbers_expect("group 1", fall(optimizer, p[2], 2), 0.1 * g[2], 1e-14);
    numbers_expect("group 2", fall(optimizer, p[3], 3), 0.5 * (g[3] + 2 * start[3]), 1e-14);
    assert_true(fall(optimizer, p[4], 4) == 0); /* frozen */
    assert_int_equal(ls_optimizer_set_learning_rate(optimizer, 1, 0.2), LS_OK);
    numbers_expect("group 1 at its new rate", fall(optimizer, p[1], 1), 0.2 * g[1], 1e-14);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0.5);
    assert_int_equal(ls_optimizer_set_learning_rate(optimizer, -1, 0), LS_OK);
    for (int i = 0; i < 4; i++) {
        assert_true(ls_optimizer_learning_rate(optimizer, i) == 0);
        assert_true(fall(optimizer, p[i], i) == 0);
    }
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

/* Of ls_muon: matrices have one group, the others another, and who asks for it has matrices in AdamW's. */
static void test_groups_of_muon(void **state) {
    (void)state;
    ls_module *model = ls_sequential(ls_nn_linear(3, 4), ls_nn_linear(4, 2));
    ls_tensor *p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = ls_module_parameter(model, i);
    }
    const ls_muon_options options = {.learning_rate = 0.1, .adamw.learning_rate = 0.01};
    ls_optimizer *optimizer = ls_muon(model, &options);
    assert_int_equal(ls_optimizer_group_count(optimizer), 2);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0.1);
    assert_true(ls_optimizer_learning_rate(optimizer, 1) == 0.01);
    ls_optimizer_free(optimizer);

    optimizer = ls_muon(NULL, &options);
    assert_int_equal(ls_optimizer_add_group(optimizer, p, 2, NULL), LS_ERR_SHAPE);
    assert_non_null(strstr(ls_error_message(), "ls_muon: parameter 1 is [4], beside matrices: give it to a group of"));
    assert_int_equal(ls_optimizer_group_count(optimizer), 0);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[0], 1, NULL), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[1], 1, NULL), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &p[2], 2, &(ls_group_options){.adamw = true}), LS_OK);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 0.1);
    assert_true(ls_optimizer_learning_rate(optimizer, 1) == 0.01);
    assert_true(ls_optimizer_learning_rate(optimizer, 2) == 0.01);
    const double before = numbers_get(p[2], 0);
    give_gradient(p[2], 0, 0);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    const double sign = gradient_at(LS_F32, 0, 0, 0) > 0 ? 1 : -1; /* Adam's first step, and its weight decay */
    numbers_expect("a matrix of AdamW's", numbers_get(p[2], 0), before * (1 - 1e-4) - 0.01 * sign, 1e-6);
    ls_optimizer_free(optimizer);

    optimizer = ls_adamw(NULL, NULL);
    assert_int_equal(ls_optimizer_add_group(optimizer, p, 1, &(ls_group_options){.adamw = true}), LS_ERR_ARGUMENT);
    assert_non_null(strstr(ls_error_message(), "ls_adamw: .adamw of a group is for ls_muon"));
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

static void test_no_parameter_is_in_two_groups(void **state) {
    (void)state;
    ls_module *model = make_model(LS_F32);
    ls_tensor *first = ls_module_parameter(model, 0);
    ls_tensor *second = ls_module_parameter(model, 1);
    ls_optimizer *optimizer = ls_adam(model, NULL);
    assert_int_equal(ls_optimizer_add_group(optimizer, &second, 1, NULL), LS_ERR_ARGUMENT);
    assert_non_null(strstr(ls_error_message(), "ls_adam: parameter 0 is in a group already"));
    assert_int_equal(ls_optimizer_group_count(optimizer), 1);
    ls_optimizer_free(optimizer);

    optimizer = ls_adam(NULL, NULL);
    ls_tensor *const twice[] = {first, second, first};
    assert_int_equal(ls_optimizer_add_group(optimizer, twice, 3, NULL), LS_ERR_ARGUMENT);
    assert_non_null(strstr(ls_error_message(), "parameter 2 is in a group already"));
    assert_int_equal(ls_optimizer_group_count(optimizer), 0);
    assert_int_equal(ls_optimizer_add_group(optimizer, twice, 2, NULL), LS_OK);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

static void test_zero_grad(void **state) {
    (void)state;
    ls_module *model = make_model(LS_F32);
    ls_optimizer *optimizer = ls_sgd(model, &(ls_sgd_options){.learning_rate = 1});
    ls_tensor *parameter = ls_module_parameter(model, 1);
    give_gradient(parameter, 0, 1);
    give_gradient(parameter, 1, 1); /* without zero_grad they add up */
    const float sum = (float)gradient_at(LS_F32, 0, 1, 5) + (float)gradient_at(LS_F32, 1, 1, 5);
    assert_true(numbers_get(ls_grad(parameter), 5) == (double)sum);
    ls_optimizer_zero_grad(optimizer);
    assert_null(ls_grad(parameter));
    const uint64_t before = ls_module_hash(model);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    assert_true(ls_module_hash(model) == before);
    give_gradient(parameter, 0, 1);
    assert_true(numbers_get(ls_grad(parameter), 5) == gradient_at(LS_F32, 0, 1, 5));
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

/* ---- clipping ---------------------------------------------------------------------------------------------------- */

static double norm_of_gradients(const ls_module *model) {
    double squares = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        const ls_tensor *gradient = ls_grad(ls_module_parameter(model, i));
        for (int64_t at = 0; gradient != NULL && at < ls_numel(gradient); at++) {
            squares += numbers_get(gradient, at) * numbers_get(gradient, at);
        }
    }
    return sqrt(squares);
}

static void test_clip_by_norm(void **state) {
    (void)state;
    for (int type = 0; type < 2; type++) {
        const ls_dtype dtype = type == 0 ? LS_F32 : LS_F64;
        const double tolerance = 10 * numbers_tolerance(dtype);
        ls_module *model = make_model(dtype);
        double norm = -1;
        assert_int_equal(ls_clip_grad_norm(model, 1, &norm), LS_OK); /* nothing there yet */
        assert_true(norm == 0);
        for (int i = 0; i < PARAMETERS; i++) {
            if (i != 1) {
                give_gradient(ls_module_parameter(model, i), 0, i);
            }
        }
        const double whole = norm_of_gradients(model);
        assert_int_equal(ls_clip_grad_norm(model, 2 * whole, &norm), LS_OK);
        numbers_expect("norm", norm, whole, tolerance);
        assert_true(norm_of_gradients(model) == whole); /* small enough: not touched */
        assert_int_equal(ls_clip_grad_norm(model, 0.5, NULL), LS_OK);
        numbers_expect("clipped norm", norm_of_gradients(model), 0.5 * whole / (whole + 1e-6), tolerance);
        numbers_expect("direction", numbers_get(ls_grad(ls_module_parameter(model, 3)), 7),
                       gradient_at(dtype, 0, 3, 7) * 0.5 / (whole + 1e-6), tolerance);
        assert_null(ls_grad(ls_module_parameter(model, 1)));
        ls_module_free(model);
    }
}

static void test_clip_by_value(void **state) {
    (void)state;
    ls_module *model = make_model(LS_F64);
    give_gradient(ls_module_parameter(model, 3), 0, 3);
    assert_int_equal(ls_clip_grad_value(model, 0.3), LS_OK);
    int clipped = 0;
    for (int64_t at = 0; at < sizes[3]; at++) {
        const double was = gradient_at(LS_F64, 0, 3, at);
        clipped += fabs(was) > 0.3;
        assert_true(numbers_get(ls_grad(ls_module_parameter(model, 3)), at) == fmax(-0.3, fmin(0.3, was)));
    }
    assert_in_range(clipped, 1, sizes[3] - 1);
    assert_null(ls_grad(ls_module_parameter(model, 0)));
    ls_module_free(model);
}

/* ---- wrong input ------------------------------------------------------------------------------------------------- */

static void expect_refused(ls_optimizer *optimizer, const char *reason) {
    assert_null(optimizer);
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    if (strstr(ls_error_message(), reason) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", ls_error_message(), reason);
    }
}

static void test_wrong_options(void **state) {
    (void)state;
    ls_module *model = make_model(LS_F32);
    expect_refused(ls_sgd(model, &(ls_sgd_options){.learning_rate = -1}), "ls_sgd: learning_rate is -1");
    expect_refused(ls_sgd(model, &(ls_sgd_options){.learning_rate = NAN}), "learning_rate is nan");
    expect_refused(ls_sgd(model, &(ls_sgd_options){.momentum = -0.5}), "momentum is -0.5");
    expect_refused(ls_sgd(model, &(ls_sgd_options){.weight_decay = -2}), "weight_decay is -2");
    expect_refused(ls_sgd(model, &(ls_sgd_options){.nesterov = true}), "Nesterov needs a momentum above 0 (is 0)");
    expect_refused(ls_sgd(model, &(ls_sgd_options){.nesterov = true, .momentum = 0.9, .dampening = 0.1}),
                   "no dampening (is 0.1)");
    expect_refused(ls_adam(model, &(ls_adam_options){.beta1 = 1}), "ls_adam: beta1 is 1");
    expect_refused(ls_adamw(model, &(ls_adam_options){.beta2 = -0.1}), "ls_adamw: beta2 is -0.1");
    expect_refused(ls_adam(model, &(ls_adam_options){.epsilon = -1e-8}), "epsilon is -1e-08");
    expect_refused(ls_rmsprop(model, &(ls_rmsprop_options){.alpha = -1}), "ls_rmsprop: alpha is -1");
    expect_refused(ls_rmsprop(model, &(ls_rmsprop_options){.momentum = -1}), "momentum is -1");
    expect_refused(ls_adagrad(model, &(ls_adagrad_options){.initial_sum = -1}), "ls_adagrad: initial_sum is -1");
    expect_refused(ls_adagrad(model, &(ls_adagrad_options){.learning_rate_decay = -1}), "learning_rate_decay is -1");
    expect_refused(ls_adadelta(model, &(ls_adadelta_options){.rho = 1.5}), "ls_adadelta: rho is 1.5");
    expect_refused(ls_adadelta(model, &(ls_adadelta_options){.epsilon = -1}), "ls_adadelta: epsilon is -1");
    expect_refused(ls_nadam(model, &(ls_nadam_options){.beta1 = 1}), "ls_nadam: beta1 is 1");
    expect_refused(ls_nadam(model, &(ls_nadam_options){.epsilon = -1}), "ls_nadam: epsilon is -1");
    expect_refused(ls_nadam(model, &(ls_nadam_options){.momentum_decay = -1}), "ls_nadam: momentum_decay is -1");
    expect_refused(ls_radam(model, &(ls_radam_options){.beta2 = 1}), "ls_radam: beta2 is 1");
    expect_refused(ls_radam(model, &(ls_radam_options){.epsilon = -1}), "ls_radam: epsilon is -1");
    expect_refused(ls_lion(model, &(ls_lion_options){.beta2 = -1}), "ls_lion: beta2 is -1");
    expect_refused(ls_lion(model, &(ls_lion_options){.weight_decay = -1}), "ls_lion: weight_decay is -1");
    expect_refused(ls_lamb(model, &(ls_lamb_options){.beta1 = -1}), "ls_lamb: beta1 is -1");
    expect_refused(ls_lamb(model, &(ls_lamb_options){.epsilon = -1}), "ls_lamb: epsilon is -1");
    expect_refused(ls_muon(model, &(ls_muon_options){.momentum = 1}), "ls_muon: momentum is 1");
    expect_refused(ls_muon(model, &(ls_muon_options){.epsilon = -1}), "ls_muon: epsilon is -1");
    expect_refused(ls_muon(model, &(ls_muon_options){.iterations = 100}), "ls_muon: iterations is 100");
    expect_refused(ls_muon(model, &(ls_muon_options){.b = INFINITY}), "ls_muon: b is inf");
    expect_refused(ls_muon(model, &(ls_muon_options){.rates = (ls_muon_rates)5}), "5 is no ls_muon_rates");
    expect_refused(ls_muon(model, &(ls_muon_options){.learning_rate = -1}), "ls_muon: learning_rate is -1");
    expect_refused(ls_muon(model, &(ls_muon_options){.adamw.beta1 = 2}), "ls_adamw: beta1 is 2");
    expect_refused(ls_muon(model, &(ls_muon_options){.adamw.learning_rate = -1}), "ls_adamw: learning_rate is -1");
    ls_module_free(model);
}

static void test_wrong_calls(void **state) {
    (void)state;
    ls_module *model = make_model(LS_F32);
    ls_tensor *first = ls_module_parameter(model, 0);
    ls_optimizer *optimizer = ls_sgd(NULL, NULL);
    ls_tensor *plain = ls_ones(LS_SHAPE(2), LS_F32);
    ls_tensor *half = ls_ones(LS_SHAPE(2), LS_BF16);
    ls_tensor *none = NULL;
    assert_int_equal(ls_set_requires_grad(half, true), LS_OK);
    assert_int_equal(ls_optimizer_add_group(optimizer, &plain, 1, NULL), LS_ERR_ARGUMENT);
    assert_non_null(strstr(ls_error_message(), "wants no gradient"));
    assert_int_equal(ls_optimizer_add_group(optimizer, &half, 1, NULL), LS_ERR_UNSUPPORTED);
    assert_non_null(strstr(ls_error_message(), "bf16"));
    assert_int_equal(ls_optimizer_add_group(optimizer, &none, 1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_add_group(optimizer, NULL, 1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_add_group(optimizer, &first, -1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_add_group(NULL, &first, 1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_add_group(optimizer, &first, 1, &(ls_group_options){.learning_rate = -1}),
                     LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_add_group(optimizer, &first, 1, &(ls_group_options){.weight_decay = -1}),
                     LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_group_count(optimizer), 0);
    assert_int_equal(ls_optimizer_add_group(optimizer, &first, 1, NULL), LS_OK);
    assert_int_equal(ls_optimizer_set_learning_rate(optimizer, 1, 0.1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_set_learning_rate(optimizer, -2, 0.1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_set_learning_rate(optimizer, 0, -0.1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_set_learning_rate(NULL, 0, 0.1), LS_ERR_ARGUMENT);
    assert_true(ls_optimizer_learning_rate(optimizer, 0) == 1e-3);
    assert_true(ls_optimizer_learning_rate(optimizer, 1) == 0 && ls_optimizer_learning_rate(NULL, 0) == 0);
    assert_int_equal(ls_optimizer_step(NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_optimizer_group_count(NULL), 0);
    ls_optimizer_zero_grad(NULL);
    ls_optimizer_free(NULL);
    assert_int_equal(ls_clip_grad_norm(NULL, 1, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_clip_grad_norm(model, 0, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_clip_grad_norm(model, NAN, NULL), LS_ERR_ARGUMENT);
    assert_int_equal(ls_clip_grad_value(NULL, 1), LS_ERR_ARGUMENT);
    assert_int_equal(ls_clip_grad_value(model, -1), LS_ERR_ARGUMENT);
    ls_optimizer_free(optimizer);
    ls_release(plain);
    ls_release(half);
    ls_module_free(model);
}

/* A parameter that was told to want no gradient is left alone, and parameters around it are not. */
static void test_frozen_parameters(void **state) {
    (void)state;
    ls_module *model = make_model(LS_F64);
    assert_int_equal(ls_set_requires_grad(ls_module_parameter(model, 1), false), LS_OK);
    ls_optimizer *optimizer = ls_adamw(model, NULL);
    const double before[] = {numbers_get(ls_module_parameter(model, 0), 0),
                             numbers_get(ls_module_parameter(model, 1), 0),
                             numbers_get(ls_module_parameter(model, 2), 0)};
    give_gradient(ls_module_parameter(model, 0), 0, 0);
    give_gradient(ls_module_parameter(model, 2), 0, 2);
    assert_int_equal(ls_optimizer_step(optimizer), LS_OK);
    assert_true(numbers_get(ls_module_parameter(model, 0), 0) != before[0]);
    assert_true(numbers_get(ls_module_parameter(model, 1), 0) == before[1]);
    assert_true(numbers_get(ls_module_parameter(model, 2), 0) != before[2]);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sgd),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_rmsprop),
        cmocka_unit_test(test_adagrad),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_groups_differ),
        cmocka_unit_test(test_groups_of_muon),
        cmocka_unit_test(test_no_parameter_is_in_two_groups),
        cmocka_unit_test(test_zero_grad),
        cmocka_unit_test(test_clip_by_norm),
        cmocka_unit_test(test_clip_by_value),
        cmocka_unit_test(test_wrong_options),
        cmocka_unit_test(test_wrong_calls),
        cmocka_unit_test(test_frozen_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
