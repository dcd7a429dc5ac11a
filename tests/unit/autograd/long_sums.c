/*
 * Sums of very many numbers in f32: values and gradients compared with f64 for the same numbers. A sequential sum in
 * f32 would lose four to seven bits here.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/autograd.h>
#include <lockstep/loss.h>

enum { INPUTS = 3, CLASSES = 500009, ROWS = 100003, MANY = 4000037 };

/* Numbers between low and high, for each size in a list terminated by 0. */
typedef struct given {
    int64_t size[4];
    double low, high;
} given;

typedef struct sum_case {
    const char *name;
    ls_tensor *(*function)(ls_tensor **inputs);
    given inputs[INPUTS];
    double tolerance;
} sum_case;

/*
 * Relative to the largest element. The last tolerance is for sums that other libraries compute (matrix products), and
 * for sums that are added one by one, as in PyTorch: gradients of rows that are chosen many times, and gradients of the
 * weights of layer normalization.
 */
#define TOLERANCE     1e-6
#define OF_LOGARITHMS 4e-6 /* for exp of a logarithm near -14 */
#define OF_NORMS      2e-6
#define ONE_BY_ONE    1e-5
/* For products that oneDNN computes: it sums shorter blocks on x86-64 than on other processors. */
#ifdef __x86_64__
#define OF_PRODUCTS TOLERANCE
#else
#define OF_PRODUCTS ONE_BY_ONE
#endif

static int failures;

static ls_tensor *class_numbers(const ls_tensor *logits) {
    const int64_t rows = ls_size(logits, 0);
    ls_tensor *target = ls_arange(LS_SHAPE(rows), LS_I64);
    return ls_mul(target, 7);
}

static ls_tensor *smoothed(ls_tensor **x) {
    return ls_cross_entropy(x[0], class_numbers(x[0]), &(ls_class_loss_options){.label_smoothing = 0.1});
}

static ls_tensor *smoothed_weighted(ls_tensor **x) {
    return ls_cross_entropy(x[0], class_numbers(x[0]),
                            &(ls_class_loss_options){.label_smoothing = 0.1, .weight = ls_detach(x[1])});
}

static ls_tensor *smoothed_sum(ls_tensor **x) {
    return ls_cross_entropy(x[0], class_numbers(x[0]),
                            &(ls_class_loss_options){.label_smoothing = 1, .reduction = LS_LOSS_SUM});
}

static ls_tensor *softmax(ls_tensor **x) {
    return ls_softmax(x[0], 1);
}

static ls_tensor *log_softmax(ls_tensor **x) {
    return ls_log_softmax(x[0], 1);
}

static ls_tensor *logsumexp(ls_tensor **x) {
    return ls_logsumexp(x[0], 1, false);
}

static ls_tensor *layer_norm(ls_tensor **x) {
    return ls_layer_norm(x[0], 1, x[1], x[2], 1e-5);
}

static ls_tensor *batch_norm(ls_tensor **x) {
    return ls_batch_norm(x[0], NULL, NULL, x[1], x[2], true, 0.1, 1e-5);
}

static ls_tensor *mse(ls_tensor **x) {
    return ls_mse_loss(x[0], x[1], LS_LOSS_MEAN);
}

static ls_tensor *mean(ls_tensor **x) {
    return ls_mean_axes(x[0], LS_AXES(0), false);
}

static ls_tensor *variance(ls_tensor **x) {
    return ls_var(x[0]);
}

static ls_tensor *norm(ls_tensor **x) {
    return ls_norm(x[0]);
}

static ls_tensor *running_sum(ls_tensor **x) {
    return ls_cumsum(x[0], 1);
}

static ls_tensor *linear(ls_tensor **x) {
    return ls_linear(x[0], x[1], x[2]);
}

static ls_tensor *spread(ls_tensor **x) {
    return ls_mul(x[0], x[1]);
}

static ls_tensor *embedding(ls_tensor **x) {
    return ls_embedding(x[0], ls_zeros(LS_SHAPE(ROWS), LS_I64));
}

static ls_tensor *index_select(ls_tensor **x) {
    return ls_index_select(x[0], 0, ls_zeros(LS_SHAPE(ROWS), LS_I64));
}

static ls_tensor *matmul(ls_tensor **x) {
    return ls_matmul(x[0], x[1]);
}

static const sum_case cases[] = {
    {"label smoothing of equal logits", smoothed, {{{1, 50000}, 0.1, 0.1}}, TOLERANCE},
    {"label smoothing, 50,000 classes", smoothed, {{{3, 50000}, -1, 1}}, TOLERANCE},
    {"label smoothing", smoothed, {{{2, CLASSES}, -1, 1}}, TOLERANCE},
    {"label smoothing alone", smoothed_sum, {{{2, CLASSES}, -1, 1}}, OF_LOGARITHMS},
    {"label smoothing, class weights", smoothed_weighted, {{{2, CLASSES}, -1, 1}, {{CLASSES}, 0.5, 1.5}}, TOLERANCE},
    {"softmax", softmax, {{{2, CLASSES}, -1, 1}}, TOLERANCE},
    {"softmax of columns", softmax, {{{1, CLASSES, 2}, -1, 1}}, TOLERANCE},
    {"log softmax", log_softmax, {{{2, CLASSES}, -1, 1}}, OF_LOGARITHMS},
    {"log softmax of columns", log_softmax, {{{1, CLASSES, 2}, -1, 1}}, OF_LOGARITHMS},
    {"log softmax of equal numbers", log_softmax, {{{1, CLASSES}, 0.1, 0.1}}, OF_LOGARITHMS},
    {"log-sum-exp", logsumexp, {{{2, CLASSES}, -1, 1}}, OF_LOGARITHMS},
    {"layer norm, wide", layer_norm, {{{2, CLASSES}, 3, 4}, {{CLASSES}, 0.5, 1.5}, {{CLASSES}, -1, 1}}, OF_NORMS},
    {"layer norm, many rows", layer_norm, {{{ROWS, 5}, 0, 1}, {{5}, 0.5, 1.5}, {{5}, -1, 1}}, ONE_BY_ONE},
    {"batch norm of rows", batch_norm, {{{ROWS, 3}, 3, 4}, {{3}, 0.5, 1.5}, {{3}, -1, 1}}, OF_NORMS},
    {"batch norm of images", batch_norm, {{{2, 3, CLASSES}, 3, 4}, {{3}, 0.5, 1.5}, {{3}, -1, 1}}, OF_NORMS},
    {"mean squared error", mse, {{{MANY}, 0, 1}, {{MANY}, 0, 0.5}}, TOLERANCE},
    {"mean of columns", mean, {{{CLASSES, 3}, 0, 1}}, TOLERANCE},
    {"variance", variance, {{{CLASSES}, 3, 4}}, TOLERANCE},
    {"norm", norm, {{{CLASSES}, 0, 1}}, TOLERANCE},
    {"running sum", running_sum, {{{1, ROWS}, 0, 1}}, TOLERANCE},
    {"linear", linear, {{{ROWS, 4}, 0, 1}, {{3, 4}, -1, 1}, {{3}, 0, 1}}, OF_PRODUCTS},
    {"an expanded factor", spread, {{{ROWS, 4}, 0, 1}, {{4}, 0, 1}}, TOLERANCE},
    {"embedding", embedding, {{{3, 4}, 0, 1}}, ONE_BY_ONE},
    {"index select", index_select, {{{3, 4}, 0, 1}}, ONE_BY_ONE},
    {"matrix product", matmul, {{{3, CLASSES}, 0, 1}, {{CLASSES, 3}, 0, 1}}, ONE_BY_ONE},
    {"inner product", matmul, {{{MANY}, 0, 1}, {{MANY}, 0, 1}}, ONE_BY_ONE},
    {"row times matrix", matmul, {{{CLASSES}, 0, 1}, {{CLASSES, 3}, 0, 1}}, ONE_BY_ONE},
    {"row times transposed matrix", linear, {{{1, CLASSES}, 0, 1}, {{3, CLASSES}, 0, 1}, {{3}, 0, 1}}, ONE_BY_ONE},
};

/* Returns the largest difference between elements, relative to the largest exact element. */
static double distance(ls_tensor *is, ls_tensor *truth) {
    ls_tensor *difference = ls_max(ls_abs(ls_sub(ls_to(is, LS_F64), truth)));
    return ls_item(difference) / ls_item(ls_max(ls_abs(truth)));
}

/*
 * Computes the case in this dtype. The inputs, leaves with gradients, are stored in `leaves`. The gradient of the value
 * is similar to the value, so that sums do not cancel; it is created if it is NULL.
 */
static ls_tensor *run(const sum_case *c, ls_tensor **numbers, ls_dtype dtype, ls_tensor **leaves,
                      ls_tensor **gradient) {
    for (int i = 0; i < INPUTS && numbers[i] != NULL; i++) {
        leaves[i] = ls_clone(ls_to(numbers[i], dtype));
        assert_int_equal(ls_set_requires_grad(leaves[i], true), LS_OK);
    }
    ls_tensor *value = c->function(leaves);
    assert_non_null(value);
    if (*gradient == NULL) {
        *gradient = ls_to(ls_add(ls_detach(value), ls_rand(ls_shape_of(value), dtype)), LS_F32);
    }
    assert_int_equal(ls_backward_with(value, &(ls_backward_options){.gradient = ls_to(*gradient, dtype)}), LS_OK);
    return value;
}

static ls_shape shape_of(const given *input) {
    ls_shape shape = {0, {0}};
    for (; input->size[shape.ndim] > 0; shape.ndim++) {
        shape.size[shape.ndim] = input->size[shape.ndim];
    }
    return shape;
}

static void check(const sum_case *c) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *numbers[INPUTS] = {NULL}, *single[INPUTS] = {NULL}, *truth[INPUTS] = {NULL};
    ls_seed(3);
    for (int i = 0; i < INPUTS && c->inputs[i].size[0] > 0; i++) {
        const given *input = &c->inputs[i];
        numbers[i] = ls_add(ls_mul(ls_rand(shape_of(input), LS_F32), input->high - input->low), input->low);
    }
    ls_tensor *gradient = NULL;
    ls_tensor *exact = run(c, numbers, LS_F64, truth, &gradient);
    double worst = distance(run(c, numbers, LS_F32, single, &gradient), exact);
    printf("%-35s value %.1e", c->name, worst);
    for (int i = 0; i < INPUTS && numbers[i] != NULL; i++) {
        if (ls_grad(truth[i]) != NULL) {
            const double away = distance(ls_grad(single[i]), ls_grad(truth[i]));
            printf(" gradient %.1e", away);
            worst = fmax(worst, away);
        }
    }
    printf("%s\n", worst <= c->tolerance ? "" : "  TOO FAR");
    assert_int_equal(ls_scope_end(scope), LS_OK);
    failures += !(worst <= c->tolerance);
}

TEST(test_long_sums_in_f32) {
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check(&cases[i]);
    }
    assert_int_equal(failures, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_long_sums_in_f32)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
