/*
 * Losses: every option and reduction against PyTorch's values and gradients; refusals.
 *
 * devices: cpu shadow cuda teams
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/autograd.h>

#include "tests/support/operations.h"

FIXTURES(fixtures, "operations.txt")

static ls_tensor *huber(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return ls_huber_loss(x, target, 0.7, reduction);
}

typedef ls_tensor *(*loss_function)(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction);

static ls_tensor *bce_with_logits(ls_tensor *x, ls_tensor *target, ls_loss_reduction reduction) {
    return ls_bce_with_logits_loss(x, target, &(ls_bce_with_logits_options){.reduction = reduction});
}

static const struct {
    const char *name;
    loss_function function;
    double x_low, x_high, target_low, target_high;
} losses[] = {
    {"mse", ls_mse_loss, -2, 2, -2, 2},
    {"l1", ls_l1_loss, -2, 2, -2, 2},
    {"huber", huber, -2, 2, -2, 2},
    {"bce", ls_bce_loss, 0.1, 0.9, 0.1, 0.9},
    {"bce_with_logits", bce_with_logits, -2, 2, 0.1, 0.9},
    {"kl_div", ls_kl_div_loss, -2, -0.1, 0.1, 0.9},
};
enum { LOSSES = sizeof losses / sizeof losses[0] };

static const char *const reductions[] = {[LS_LOSS_MEAN] = "mean", [LS_LOSS_SUM] = "sum", [LS_LOSS_NONE] = "none"};

static ls_tensor *leaf_between(ls_shape shape, int salt, double low, double high) {
    ls_tensor *leaf = wave_between(shape, salt, low, high);
    assert_int_equal(ls_set_requires_grad(leaf, true), LS_OK);
    return leaf;
}

TEST(test_element_losses_agree_with_pytorch) {
    for (int i = 0; i < LOSSES; i++) {
        for (int reduction = LS_LOSS_MEAN; reduction <= LS_LOSS_NONE; reduction++) {
            for (int one = 0; one < 2; one++) {
                ls_scope *scope = ls_scope_begin();
                const ls_shape shape = one != 0 ? LS_SHAPE(1, 1) : LS_SHAPE(2, 3);
                ls_tensor *inputs[] = {leaf_between(shape, 1, losses[i].x_low, losses[i].x_high),
                                       leaf_between(shape, 2, losses[i].target_low, losses[i].target_high)};
                char name[64];
                snprintf(name, sizeof name, "%s/%s/%s", losses[i].name, reductions[reduction],
                         one != 0 ? "one" : "many");
                check_against(fixtures, name, losses[i].function(inputs[0], inputs[1], (ls_loss_reduction)reduction),
                              inputs, 2, NULL, 0);
                assert_int_equal(ls_scope_end(scope), LS_OK);
            }
        }
    }
}

TEST(test_weighted_bce_agrees_with_pytorch) {
    for (int reduction = LS_LOSS_MEAN; reduction <= LS_LOSS_NONE; reduction++) {
        for (int both = 0; both < 2; both++) {
            ls_scope *scope = ls_scope_begin();
            ls_tensor *inputs[] = {leaf_between(LS_SHAPE(4, 3), 1, -2, 2), leaf_between(LS_SHAPE(4, 3), 2, 0, 1),
                                   wave_between(LS_SHAPE(3), 3, 0.2, 4), wave_between(LS_SHAPE(4, 1), 4, 0.2, 2)};
            const ls_bce_with_logits_options options = {.reduction = (ls_loss_reduction)reduction,
                                                        .pos_weight = inputs[2],
                                                        .weight = both != 0 ? inputs[3] : NULL};
            char name[64];
            snprintf(name, sizeof name, "bce_with_logits/%s/%s", reductions[reduction],
                     both != 0 ? "weights" : "pos_weight");
            check_against(fixtures, name, ls_bce_with_logits_loss(inputs[0], inputs[1], &options), inputs, 2, NULL, 0);
            assert_int_equal(ls_scope_end(scope), LS_OK);
        }
    }
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_from(LS_SHAPE(2), LS_F32, (const float[]){200, -200}); /* no overflow */
    ls_tensor *target = ls_from(LS_SHAPE(2), LS_F32, (const float[]){0, 1});
    const ls_bce_with_logits_options options = {.pos_weight = ls_full(LS_SCALAR, LS_F32, 3)};
    assert_true(ls_item(ls_bce_with_logits_loss(x, target, &options)) == 400);
    const ls_bce_with_logits_options ones = {.weight = ls_ones(LS_SCALAR, LS_F32)};
    for (int dtype = 0; dtype < 2; dtype++) { /* neither can be negated */
        ls_tensor *logits = ls_ones(LS_SHAPE(2), dtype == 0 ? LS_U8 : LS_BOOL);
        const double want = ls_item(ls_bce_with_logits_loss(logits, ls_ones(LS_SHAPE(2), LS_F32), NULL));
        assert_true(ls_item(ls_bce_with_logits_loss(logits, ls_ones(LS_SHAPE(2), LS_F32), &ones)) == want);
    }
    assert_int_equal(ls_scope_end(scope), LS_OK);
    scope = ls_scope_begin();
    x = ls_ones(LS_SHAPE(2, 3), LS_F32);
    check_refused_in(
        scope,
        ls_bce_with_logits_loss(x, x, &(ls_bce_with_logits_options){.pos_weight = ls_ones(LS_SHAPE(4, 2, 3), LS_F32)}),
        LS_ERR_SHAPE, "ls_bce_with_logits_loss: pos_weight is [4, 2, 3], but must broadcast to the logits [2, 3]");
    scope = ls_scope_begin();
    x = ls_ones(LS_SHAPE(2), LS_I64);
    check_refused_in(scope, ls_bce_with_logits_loss(x, x, &(ls_bce_with_logits_options){.weight = x}), LS_ERR_ARGUMENT,
                     "one of them must be floating-point");
    scope = ls_scope_begin();
    x = ls_ones(LS_SHAPE(2, 3), LS_F32);
    check_refused_in(
        scope, ls_bce_with_logits_loss(x, x, &(ls_bce_with_logits_options){.weight = ls_ones(LS_SHAPE(2), LS_F32)}),
        LS_ERR_SHAPE, "ls_bce_with_logits_loss: weight is [2], but must broadcast to the logits [2, 3]");
}

static int64_t memory_in_use(void) {
    ls_memory memory;
    assert_int_equal(ls_memory_stats(&memory), LS_OK);
    return memory.total;
}

/* Outside any scope, an intermediate result that the call does not release leaks. */
TEST(test_weighted_bce_frees_its_intermediate_results) {
    ls_tensor *logits = ls_ones(LS_SHAPE(2), LS_U8), *target = ls_ones(LS_SHAPE(2), LS_F32);
    const ls_bce_with_logits_options options = {.weight = target, .pos_weight = target};
    const int64_t before = memory_in_use();
    ls_tensor *loss = ls_bce_with_logits_loss(logits, target, &options);
    assert_non_null(loss);
    ls_release(loss);
    assert_true(memory_in_use() == before);
    ls_release(logits);
    ls_release(target);
}

SCOPED_TEST(test_similarities_agree_with_pytorch) {
    const int64_t classes[] = {1, -1, -1, 1, -1};
    ls_tensor *wide[] = {wave(LS_SHAPE(2, 3, 4), 1), wave(LS_SHAPE(2, 1, 4), 2)};
    check_against(fixtures, "cosine_similarity/2", ls_cosine_similarity(wide[0], wide[1], 2, 1e-8), wide, 2, NULL, 0);
    ls_tensor *flat[] = {wave(LS_SHAPE(2, 3), 1), wave(LS_SHAPE(2, 3), 2)};
    check_against(fixtures, "cosine_similarity/0", ls_cosine_similarity(flat[0], flat[1], 0, 1e-8), flat, 2, NULL, 0);
    for (int i = LS_LOSS_MEAN; i <= LS_LOSS_NONE; i++) {
        char name[64];
        ls_tensor *x[] = {wave(LS_SHAPE(5, 3), 1), wave(LS_SHAPE(5, 3), 2)};
        ls_tensor *three[] = {wave(LS_SHAPE(5, 3), 1), wave(LS_SHAPE(5, 3), 2), wave(LS_SHAPE(5, 3), 4)};
        ls_tensor *target = ls_from(LS_SHAPE(5), LS_I64, classes);
        snprintf(name, sizeof name, "cosine_embedding/%s", reductions[i]);
        check_against(fixtures, name, ls_cosine_embedding_loss(x[0], x[1], target, 0.3, (ls_loss_reduction)i), x, 2,
                      NULL, 0);
        snprintf(name, sizeof name, "triplet_margin/%s", reductions[i]);
        check_against(fixtures, name, ls_triplet_margin_loss(three[0], three[1], three[2], 0.7, (ls_loss_reduction)i),
                      three, 3, NULL, 0);
    }
    /* Short rows, and a row of zeros (as in PyTorch 2.15). */
    ls_tensor *row[] = {leaf_from(LS_SHAPE(2, 3), (const double[]){1e-6, 2e-6, -1e-6, 0, 0, 0}),
                        leaf_from(LS_SHAPE(2, 3), (const double[]){1, 1, 0.5, 1, 1, 0.5})};
    ls_tensor *loss = ls_cosine_embedding_loss(row[0], row[1], ls_ones(LS_SHAPE(2), LS_I64), 0, LS_LOSS_NONE);
    check_values(loss, LS_SHAPE(2), LS_F64, (const double[]){0.3700592114716337, 1});
    assert_int_equal(ls_backward(ls_sum(loss)), LS_OK);
    check_values(ls_grad(row[0]), LS_SHAPE(2, 3), LS_F64,
                 (const double[]){-161984.7741416387, -71993.2328719309, -215979.6989753811, -666666.6679984528,
                                  -666666.6679984528, -333333.3339992264});
    /* The similarity with a zero vector is 0. */
    ls_tensor *zero = leaf_from(LS_SHAPE(2, 3), (const double[6]){0});
    ls_tensor *none = ls_cosine_similarity(ls_detach(flat[0]), zero, 1, 1e-8);
    check_values(none, LS_SHAPE(2), LS_F64, (const double[]){0, 0});
    assert_int_equal(ls_backward(ls_sum(none)), LS_OK);
    assert_true(ls_item(ls_sum(ls_to(ls_is_finite(ls_grad(zero)), LS_I64))) == 6);
    /* If an input broadcasts along the reduced axis, it gets the length of the other input. */
    ls_tensor *ones = leaf_from(LS_SHAPE(2, 3), (const double[]){1, 1, 1, 1, 1, 1});
    ls_tensor *one = leaf_from(LS_SHAPE(2, 1), (const double[]){2, -1});
    ls_tensor *signs = ls_from(LS_SHAPE(2), LS_F64, (const double[]){1, -1});
    assert_true(ls_allclose(ls_cosine_similarity(ones, one, 1, 1e-8), signs, 1e-12, 1e-12));
    assert_true(ls_allclose(ls_cosine_similarity(one, ones, 1, 1e-8), signs, 1e-12, 1e-12));
}

/* Computes 16-bit floats in f32: in f16, 1e-8 is 0 and the square of 300 is infinite. */
SCOPED_TEST(test_similarities_of_halves) {
    for (int i = 0; i < 2; i++) {
        const ls_dtype dtype = i == 0 ? LS_F16 : LS_BF16;
        ls_tensor *a = ls_to(ls_from(LS_SHAPE(2, 2), LS_F32, (const float[]){300, 400, 0, 0}), dtype);
        ls_tensor *b = ls_to(ls_from(LS_SHAPE(2, 2), LS_F32, (const float[]){400, 300, 1, 1}), dtype);
        assert_int_equal(ls_set_requires_grad(a, true), LS_OK);
        ls_tensor *want = ls_to(ls_from(LS_SHAPE(2), LS_F32, (const float[]){0.96F, 0}), dtype);
        ls_tensor *cosine = ls_cosine_similarity(a, b, 1, 1e-8);
        assert_true(ls_equal(cosine, want));
        ls_tensor *ones = ls_ones(LS_SHAPE(2), LS_I64);
        ls_tensor *loss = ls_cosine_embedding_loss(a, b, ones, 0, LS_LOSS_NONE);
        assert_true(ls_allclose(loss, ls_sub(1, want), 0, 1e-2));
        assert_int_equal(ls_dtype_of(loss), dtype);
        ls_tensor *far = ls_triplet_margin_loss(a, b, ls_mul(a, -1), 1000, LS_LOSS_NONE);
        assert_true(ls_allclose(far, ls_from(LS_SHAPE(2), LS_F32, (const float[]){141.42F, 1001.41F}), 0.01, 0));
        assert_int_equal(ls_backward(ls_sum(ls_add(loss, ls_add(far, cosine)))), LS_OK);
        assert_int_equal(ls_dtype_of(ls_grad(a)), dtype);
    }
}

SCOPED_TEST(test_similarities_refuse) {
    ls_tensor *a = ls_ones(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_cosine_similarity(a, ls_select(a, 0, 0), 0, 1e-8), LS_ERR_SHAPE,
                  "ls_cosine_similarity: [2, 3] and [3] must have the same number of axes");
    a = ls_ones(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_cosine_similarity(a, a, 2, 1e-8), LS_ERR_ARGUMENT, "axis 2 does not exist in [2, 3]");
    a = ls_ones(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_cosine_similarity(a, a, 1, -1), LS_ERR_ARGUMENT, "epsilon is -1, but must not be negative");
    a = ls_ones(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_cosine_embedding_loss(a, a, a, 0, LS_LOSS_MEAN), LS_ERR_SHAPE,
                  "[2, 3], [2, 3] and target [2, 3], but must be [n, width], [n, width] and [n]");
    a = ls_ones(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_triplet_margin_loss(a, a, ls_narrow(a, 0, 0, 1), 1, LS_LOSS_MEAN), LS_ERR_SHAPE,
                  "[2, 3], [2, 3] and [1, 3], but must be [n, ..., width] and equal");
    a = ls_ones(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_triplet_margin_loss(a, a, a, 1, (ls_loss_reduction)7), LS_ERR_ARGUMENT,
                  "reduction 7 is not LS_LOSS_MEAN");
}

/* Checks the gradient of each input alone, through views. */
TEST(test_element_losses_of_views) {
    for (int i = 0; i < LOSSES; i++) {
        for (int which = 0; which < 2; which++) {
            ls_scope *scope = ls_scope_begin();
            ls_tensor *inputs[] = {wave_between(LS_SHAPE(3, 4), 1, losses[i].x_low, losses[i].x_high),
                                   wave_between(LS_SHAPE(3, 4), 2, losses[i].target_low, losses[i].target_high)};
            ls_tensor *leaf = inputs[which];
            assert_int_equal(ls_set_requires_grad(leaf, true), LS_OK);
            ls_tensor *views[] = {ls_transpose(inputs[0], 0, 1), ls_transpose(inputs[1], 0, 1)};
            ls_tensor *by_view = losses[i].function(views[0], views[1], LS_LOSS_MEAN);
            ls_tensor *dense = losses[i].function(inputs[0], inputs[1], LS_LOSS_MEAN);
            assert_true(ls_allclose(by_view, dense, 1e-13, 0));
            assert_int_equal(ls_backward(by_view), LS_OK);
            ls_tensor *gradient = ls_clone(ls_grad(leaf));
            ls_zero_grad(leaf);
            assert_int_equal(ls_backward(dense), LS_OK);
            assert_true(ls_allclose(gradient, ls_grad(leaf), 1e-13, 1e-15));
            assert_null(ls_grad(inputs[1 - which]));
            assert_int_equal(ls_scope_end(scope), LS_OK);
        }
    }
}

SCOPED_TEST(test_bce_holds_its_logarithms) {
    const double p[] = {0, 1, 0, 1};
    const double target[] = {0, 1, 1, 0};
    ls_tensor *x = ls_from(LS_SHAPE(4), LS_F64, p);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    check_against(fixtures, "bce/saturated", ls_bce_loss(x, ls_from(LS_SHAPE(4), LS_F64, target), LS_LOSS_NONE), &x, 1,
                  NULL, 0);
}

/* 0 log 0 is 0, and the gradient for the target is 0. */
SCOPED_TEST(test_kl_div_of_zero) {
    ls_tensor *target = ls_zeros(LS_SHAPE(3), LS_F32);
    assert_int_equal(ls_set_requires_grad(target, true), LS_OK);
    ls_tensor *loss = ls_kl_div_loss(ls_full(LS_SHAPE(3), LS_F32, -1), target, LS_LOSS_SUM);
    assert_true(ls_item(loss) == 0);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_true(ls_equal(ls_grad(target), ls_zeros(LS_SHAPE(3), LS_F32)));
}

SCOPED_TEST(test_element_losses_convert_dtypes) {
    ls_tensor *x = ls_full(LS_SHAPE(4), LS_BF16, 2.5);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    ls_tensor *loss = ls_mse_loss(x, ls_ones(LS_SHAPE(4), LS_I64), LS_LOSS_SUM);
    assert_int_equal(ls_dtype_of(loss), LS_BF16);
    assert_true(ls_item(loss) == 9);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_true(ls_equal(ls_grad(x), ls_full(LS_SHAPE(4), LS_BF16, 3)));
    assert_int_equal(ls_dtype_of(ls_mse_loss(ls_ones(LS_SHAPE(2), LS_F32), ls_ones(LS_SHAPE(2), LS_F64), LS_LOSS_MEAN)),
                     LS_F64);
    assert_true(isnan(ls_item(ls_mse_loss(ls_ones(LS_SHAPE(0), LS_F32), ls_ones(LS_SHAPE(0), LS_F32), LS_LOSS_MEAN))));
}

TEST(test_element_losses_of_integers) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *wide = ls_ones(LS_SHAPE(4), LS_I64), *narrow = ls_ones(LS_SHAPE(4), LS_I32);
    assert_null(ls_mse_loss(wide, narrow, LS_LOSS_MEAN));
    expect_message("ls_mse_loss: x is i64 and target is i32, but one of them must be floating-point: convert it with "
                   "ls_to");
    assert_int_equal(ls_error_status(), LS_ERR_ARGUMENT);
    assert_null(ls_l1_loss(wide, wide, LS_LOSS_NONE));
    assert_null(ls_huber_loss(narrow, wide, 1, LS_LOSS_SUM));
    assert_int_equal(ls_scope_end(scope), LS_ERR_ARGUMENT);
}

/* The class of element i is 3 i mod 4. */
static ls_tensor *targets(ls_shape shape, ls_dtype dtype) {
    ls_tensor *numbers = ls_empty(shape, LS_I64);
    int64_t *values = elements(numbers);
    for (int64_t i = 0; i < ls_numel(numbers); i++) {
        values[i] = i * 3 % 4;
    }
    return ls_to(numbers, dtype);
}

typedef struct class_case {
    const char *name;
    ls_shape x, target;
} class_case;

static void check_class_losses(const class_case *one, ls_class_loss_options options, ls_dtype dtype) {
    static const char *const smoothings[] = {"0.0", "0.2"};
    ls_scope *scope = ls_scope_begin();
    options.weight = options.weight != NULL ? wave_between(LS_SHAPE(4), 3, 0.5, 2) : NULL;
    char tail[40];
    snprintf(tail, sizeof tail, "%s/%s/%d%d", one->name, reductions[options.reduction], options.weight != NULL,
             options.ignore);
    ls_tensor *target = targets(one->target, dtype);
    char name[64];
    for (int i = 0; i < 2; i++) {
        options.label_smoothing = strtod(smoothings[i], NULL);
        ls_tensor *x = wave(one->x, 1);
        snprintf(name, sizeof name, "cross_entropy/%s/%s", tail, smoothings[i]);
        check_against(fixtures, name, ls_cross_entropy(x, target, &options), &x, 1, NULL, 0);
    }
    ls_tensor *x = wave(one->x, 1);
    snprintf(name, sizeof name, "nll/%s", tail);
    check_against(fixtures, name,
                  ls_nll_loss(x, target,
                              &(ls_nll_loss_options){.reduction = options.reduction,
                                                     .weight = options.weight,
                                                     .ignore = options.ignore,
                                                     .ignore_index = options.ignore_index}),
                  &x, 1, NULL, 0);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_class_losses_agree_with_pytorch) {
    const class_case cases[] = {{"rows", LS_SHAPE(5, 4), LS_SHAPE(5)},
                                {"planes", LS_SHAPE(2, 4, 3), LS_SHAPE(2, 3)},
                                {"vector", LS_SHAPE(4), LS_SCALAR}};
    static const ls_dtype dtypes[] = {LS_I64, LS_I32, LS_U8};
    ls_tensor *some = ls_ones(LS_SHAPE(4), LS_F64);
    for (int i = 0; i < 3; i++) {
        for (int options = 0; options < 12; options++) {
            const ls_class_loss_options chosen = {.reduction = (ls_loss_reduction)(options / 4),
                                                  .weight = options % 2 != 0 ? some : NULL,
                                                  .ignore = options / 2 % 2 != 0,
                                                  .ignore_index = 3};
            if (i < 2 || !chosen.ignore) {
                check_class_losses(&cases[i], chosen, dtypes[options % 3]);
            }
        }
    }
    ls_release(some);
}

/*
 * One-hot rows give the same results as class numbers, including gradients. A mixture of rows gives the same mixture of
 * their losses.
 */
TEST(test_probabilities) {
    for (int how = 0; how < 12; how++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *rows[2], *x = wave(LS_SHAPE(5, 4, 3), 1), *other = wave(LS_SHAPE(5, 4, 3), 1), *right[2];
        const ls_class_loss_options options = {.reduction = how % 2 == 0 ? LS_LOSS_NONE : LS_LOSS_SUM,
                                               .weight = how / 2 % 2 != 0 ? wave_between(LS_SHAPE(4), 3, 0.5, 2) : NULL,
                                               .label_smoothing = 0.2 * (how / 4)};
        ls_class_loss_options plain = options;
        plain.weight = options.weight != NULL ? ls_detach(options.weight) : NULL;
        for (int i = 0; i < 2; i++) {
            ls_tensor *numbers = i == 0 ? targets(LS_SHAPE(5, 3), LS_I64) : ls_full(LS_SHAPE(5, 3), LS_I64, 2);
            rows[i] = ls_to(ls_eq(ls_unsqueeze(numbers, 1), ls_reshape(ls_arange(LS_SHAPE(4), LS_I64), LS_SHAPE(4, 1))),
                            i == 0 ? LS_F64 : LS_F32);
            right[i] = ls_cross_entropy(x, numbers, &plain);
            ls_tensor *own = ls_cross_entropy(i == 0 ? other : x, rows[i], &plain);
            assert_true(ls_allclose(own, right[i], 1e-12, 0));
            if (i == 0) {
                assert_int_equal(ls_backward(ls_sum(ls_square(own))), LS_OK);
                assert_int_equal(ls_backward(ls_sum(ls_square(right[i]))), LS_OK);
                assert_true(ls_allclose(ls_grad(other), ls_grad(x), 1e-11, 1e-14));
            }
        }
        ls_tensor *mixed =
            ls_cross_entropy(x, ls_add(ls_mul(rows[0], 0.3), ls_mul(ls_to(rows[1], LS_F64), 0.7)), &plain);
        assert_true(ls_allclose(mixed, ls_add(ls_mul(right[0], 0.3), ls_mul(right[1], 0.7)), 1e-12, 0));
        if (options.reduction == LS_LOSS_NONE) {
            assert_int_equal(ls_ndim(mixed), 2);
            plain.reduction = LS_LOSS_MEAN;
            ls_tensor *mean = ls_cross_entropy(x, rows[0], &plain);
            assert_true(ls_allclose(mean, ls_div(ls_sum(right[0]), 15), 1e-12, 0));
        }
        assert_int_equal(ls_scope_end(scope), LS_OK);
    }
    ls_tensor *loss = ls_cross_entropy(NULL, NULL, NULL);
    assert_null(loss);
}

/* Tests a vector, losses without a scope, and gradients of the probabilities. */
TEST(test_probabilities_of_one) {
    ls_tensor *x = ls_zeros(LS_SHAPE(4), LS_F64), *p = ls_full(LS_SHAPE(4), LS_F64, 0.25);
    assert_int_equal(ls_set_requires_grad(p, true), LS_OK);
    ls_tensor *loss = ls_cross_entropy(x, p, NULL);
    assert_true(fabs(ls_item(loss) - log(4)) < 1e-14);
    assert_int_equal(ls_backward(loss), LS_OK);
    ls_tensor *want = ls_full(LS_SHAPE(4), LS_F64, log(4));
    assert_true(ls_allclose(ls_grad(p), want, 1e-14, 0));
    ls_release(want);
    ls_release(loss);
    ls_release(p);
    ls_release(x);
}

SCOPED_TEST(test_class_losses_of_views) {
    ls_tensor *x = wave(LS_SHAPE(4, 10), 1);
    ls_tensor *target = targets(LS_SHAPE(10), LS_U8);
    ls_tensor *views[] = {ls_slice(ls_transpose(x, 0, 1), 0, 0, 10, 2), ls_slice(target, 0, 0, 10, 2)};
    ls_tensor *loss = ls_cross_entropy(views[0], views[1], NULL);
    assert_true(ls_allclose(loss, ls_cross_entropy(ls_clone(views[0]), ls_clone(views[1]), NULL), 1e-14, 0));
    assert_int_equal(ls_backward(loss), LS_OK);
    ls_tensor *gradient = ls_sum_axes(ls_grad(x), LS_AXES(0), false); /* rows of softmax minus one-hot sum to 0 */
    assert_true(ls_allclose(gradient, ls_zeros(LS_SHAPE(10), LS_F64), 0, 1e-15));
}

SCOPED_TEST(test_nothing_counts) {
    ls_tensor *x = ls_zeros(LS_SHAPE(2, 3), LS_F32);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    const ls_class_loss_options options = {.ignore = true, .ignore_index = 0};
    ls_tensor *loss = ls_cross_entropy(x, ls_zeros(LS_SHAPE(2), LS_I64), &options);
    assert_true(isnan(ls_item(loss)));
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_true(ls_equal(ls_grad(x), ls_zeros(LS_SHAPE(2, 3), LS_F32)));
    assert_true(
        isnan(ls_item(ls_cross_entropy(ls_zeros(LS_SHAPE(0, 3), LS_F32), ls_zeros(LS_SHAPE(0), LS_I64), NULL))));
}

SCOPED_TEST(test_class_losses_in_half_precision) {
    ls_tensor *exact = ls_detach(wave(LS_SHAPE(5, 4), 1));
    ls_tensor *x = ls_to(exact, LS_BF16);
    assert_int_equal(ls_set_requires_grad(x, true), LS_OK);
    ls_class_loss_options options = {.weight = ls_full(LS_SHAPE(4), LS_BF16, 1.5), .reduction = LS_LOSS_SUM};
    ls_tensor *loss = ls_cross_entropy(x, targets(LS_SHAPE(5), LS_I32), &options);
    assert_int_equal(ls_dtype_of(loss), LS_BF16);
    assert_int_equal(ls_backward(loss), LS_OK);
    assert_int_equal(ls_dtype_of(ls_grad(x)), LS_BF16);
    options.weight = ls_full(LS_SHAPE(4), LS_F64, 1.5);
    ls_tensor *right = ls_cross_entropy(exact, targets(LS_SHAPE(5), LS_I32), &options);
    assert_true(ls_allclose(ls_to(loss, LS_F64), right, 1e-2, 0));
}

SCOPED_TEST(test_element_losses_refuse) {
    ls_tensor *x = ls_zeros(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_mse_loss(x, ls_zeros(LS_SHAPE(2, 1), LS_F32), LS_LOSS_MEAN), LS_ERR_SHAPE,
                  "ls_mse_loss: shape [2, 3] differs from target [2, 1]");
    x = ls_zeros(LS_SHAPE(2), LS_F32);
    check_refused(ls_l1_loss(x, x, (ls_loss_reduction)7), LS_ERR_ARGUMENT, "ls_l1_loss: reduction 7");
    check_refused(ls_bce_loss(ls_full(LS_SHAPE(2), LS_F32, 1.5), ls_ones(LS_SHAPE(2), LS_F32), LS_LOSS_MEAN),
                  LS_ERR_ARGUMENT, "ls_bce_loss: a probability is 1.5, but must be from 0 to 1");
    check_refused(ls_bce_loss(ls_full(LS_SHAPE(2), LS_F16, -2), ls_ones(LS_SHAPE(2), LS_F32), LS_LOSS_SUM),
                  LS_ERR_ARGUMENT, "ls_bce_loss: a probability is -2, but must be from 0 to 1");
    x = ls_from(LS_SHAPE(2), LS_F32, (const float[]){NAN, 3}); /* NaN does not hide the other number */
    check_refused(ls_bce_loss(x, ls_ones(LS_SHAPE(2), LS_F32), LS_LOSS_SUM), LS_ERR_ARGUMENT, "a probability is 3");
    x = ls_from(LS_SHAPE(2), LS_F32, (const float[]){NAN, 1});
    assert_true(isnan(ls_item(ls_bce_loss(x, ls_ones(LS_SHAPE(2), LS_F32), LS_LOSS_SUM))));
    x = ls_zeros(LS_SHAPE(2), LS_F32);
    check_refused(ls_huber_loss(x, x, 0, LS_LOSS_MEAN), LS_ERR_ARGUMENT, "delta is 0");
    x = ls_zeros(LS_SHAPE(2), LS_F32);
    check_refused(ls_mse_loss(x, NULL, LS_LOSS_MEAN), LS_ERR_ARGUMENT, "ls_mse_loss: argument 2 is NULL");
}

static void refuse_class(ls_shape x, ls_shape target, int64_t number, ls_class_loss_options options, ls_status status,
                         const char *words) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *numbers = ls_zeros(target, LS_I64);
    ((int64_t *)elements(numbers))[ls_numel(numbers) - 1] = number;
    check_refused_in(scope, ls_cross_entropy(ls_zeros(x, LS_F32), numbers, &options), status, words);
}

SCOPED_TEST(test_class_losses_refuse) {
    const ls_class_loss_options none = {0};
    refuse_class(LS_SHAPE(4, 10), LS_SHAPE(4), 12, none, LS_ERR_ARGUMENT,
                 "ls_cross_entropy: target[3] of the batch is 12, but there are 10 classes");
    refuse_class(LS_SHAPE(4, 10), LS_SHAPE(4), -1, none, LS_ERR_ARGUMENT, "target[3] of the batch is -1");
    refuse_class(LS_SHAPE(4, 10), LS_SHAPE(3), 0, none, LS_ERR_SHAPE,
                 "ls_cross_entropy: shape [4, 10] does not fit target [3]");
    refuse_class(LS_SHAPE(4, 10, 2), LS_SHAPE(4), 0, none, LS_ERR_SHAPE, "[4, 10, 2] does not fit target [4]");
    refuse_class(LS_SHAPE(4, 10), LS_SHAPE(4), 0, (ls_class_loss_options){.label_smoothing = 2}, LS_ERR_ARGUMENT,
                 "label_smoothing is 2");
    refuse_class(LS_SHAPE(4, 10), LS_SHAPE(4), 0, (ls_class_loss_options){.reduction = (ls_loss_reduction)9},
                 LS_ERR_ARGUMENT, "reduction 9");
    ls_tensor *weight = ls_ones(LS_SHAPE(9), LS_F32);
    refuse_class(LS_SHAPE(4, 10), LS_SHAPE(4), 0, (ls_class_loss_options){.weight = weight}, LS_ERR_SHAPE,
                 "weight is [9], but must be [10]");
    assert_int_equal(ls_set_requires_grad(weight, true), LS_OK);
    refuse_class(LS_SHAPE(4, 9), LS_SHAPE(4), 0, (ls_class_loss_options){.weight = weight}, LS_ERR_UNSUPPORTED,
                 "weight requires a gradient, which is not supported");
    ls_release(weight);
    ls_tensor *x = ls_zeros(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_cross_entropy(x, ls_zeros(LS_SHAPE(2), LS_F32), NULL), LS_ERR_SHAPE, "target is f32");
    x = ls_zeros(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_cross_entropy(x, x, &(ls_class_loss_options){.ignore = true}), LS_ERR_UNSUPPORTED,
                  "ignore cannot be set for targets that are probabilities");
    x = ls_zeros(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_cross_entropy(x, x, &(ls_class_loss_options){.label_smoothing = -1}), LS_ERR_ARGUMENT,
                  "label_smoothing is -1");
    x = ls_zeros(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_nll_loss(x, x, NULL), LS_ERR_SHAPE, "ls_nll_loss: target is f32");
    x = ls_zeros(LS_SHAPE(2, 3), LS_I64);
    check_refused(ls_nll_loss(x, ls_zeros(LS_SHAPE(2), LS_I64), NULL), LS_ERR_SHAPE,
                  "ls_nll_loss: expected a floating-point tensor");
    x = ls_zeros(LS_SHAPE(2, 3), LS_F32);
    check_refused(ls_cross_entropy(x, NULL, NULL), LS_ERR_ARGUMENT, "ls_cross_entropy: argument 2 is NULL");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_element_losses_agree_with_pytorch),
        cmocka_unit_test(test_weighted_bce_agrees_with_pytorch),
        cmocka_unit_test(test_weighted_bce_frees_its_intermediate_results),
        cmocka_unit_test(test_similarities_agree_with_pytorch),
        cmocka_unit_test(test_similarities_of_halves),
        cmocka_unit_test(test_similarities_refuse),
        cmocka_unit_test(test_element_losses_of_views),
        cmocka_unit_test(test_bce_holds_its_logarithms),
        cmocka_unit_test(test_kl_div_of_zero),
        cmocka_unit_test(test_element_losses_convert_dtypes),
        cmocka_unit_test(test_element_losses_of_integers),
        cmocka_unit_test(test_class_losses_agree_with_pytorch),
        cmocka_unit_test(test_probabilities),
        cmocka_unit_test(test_probabilities_of_one),
        cmocka_unit_test(test_class_losses_of_views),
        cmocka_unit_test(test_nothing_counts),
        cmocka_unit_test(test_class_losses_in_half_precision),
        cmocka_unit_test(test_element_losses_refuse),
        cmocka_unit_test(test_class_losses_refuse),
    };
    return cmocka_run_group_tests(tests, fixtures_begin, fixtures_end);
}
