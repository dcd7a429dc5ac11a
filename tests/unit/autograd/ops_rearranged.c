/*
 * Einsum, resized images, pixel shuffling, weight norm: values and gradients from PyTorch, layers, refusals.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/unit.h"

#include <lockstep/nn.h>

#include "tests/support/elements.h"
#include "tests/support/operations.h"

FIXTURES(pytorch, "rearranged.txt")

/* ---- einsum ------------------------------------------------------------------------------------------------------ */

static int64_t size_of(char letter) {
    return letter == 'j' || letter == 'A' ? 3 : letter == 'k' ? 4 : 2;
}

/* Makes the inputs of the script for an equation, and returns their number. */
static int operands_of(const char *equation, ls_tensor **operands) {
    int count = 0;
    ls_shape shape = LS_SCALAR;
    for (const char *at = equation;; at++) {
        if (*at == ',' || *at == '-' || *at == '\0') {
            operands[count] = wave(shape, 1 + count);
            count++;
            shape = LS_SCALAR;
            if (*at != ',') {
                return count;
            }
        } else {
            shape.size[shape.ndim++] = size_of(*at);
        }
    }
}

TEST(test_einsum) {
    int seen = 0;
    for (const fixture *one = pytorch; one != NULL; one = one->next) {
        if (strncmp(one->name, "einsum/", 7) == 0) {
            ls_scope *scope = ls_scope_begin();
            ls_tensor *operands[4];
            const int count = operands_of(one->name + 7, operands);
            ls_tensor *y = ls_contiguous(ls_einsum(one->name + 7, operands, count));
            check_against(pytorch, one->name, y, operands, count, NULL, 0);
            assert_int_equal(ls_scope_end(scope), LS_OK);
            seen++;
        }
    }
    assert_int_equal(seen, 24);
}

SCOPED_TEST(test_einsum_of_more) {
    ls_tensor *a = ls_randn(LS_SHAPE(3, 4), LS_F32), *b = ls_randn(LS_SHAPE(4, 2), LS_F32);
    ls_tensor *y = ls_einsum(" i k , k j -> i j ", (ls_tensor *[]){a, b}, 2); /* spaces */
    assert_true(ls_equal(y, ls_matmul(a, b)));
    ls_tensor *half = ls_einsum("ik,kj", (ls_tensor *[]){ls_to(a, LS_BF16), ls_to(b, LS_BF16)}, 2);
    assert_int_equal(ls_dtype_of(half), LS_BF16);
    assert_true(ls_allclose(ls_to(half, LS_F32), y, 0.1, 0.1));
    ls_tensor *turned = ls_transpose(ls_contiguous(ls_transpose(a, 0, 1)), 0, 1); /* strides */
    assert_true(ls_allclose(ls_einsum("ik,kj->ji", (ls_tensor *[]){turned, b}, 2), ls_transpose(y, 0, 1), 1e-5, 1e-6));
    ls_tensor *none =
        ls_einsum("ik,kj", (ls_tensor *[]){ls_zeros(LS_SHAPE(3, 0), LS_F32), ls_zeros(LS_SHAPE(0, 2), LS_F32)}, 2);
    assert_true(ls_equal(none, ls_zeros(LS_SHAPE(3, 2), LS_F32)));
    ls_tensor *number = ls_einsum(",i->i", (ls_tensor *[]){ls_full(LS_SCALAR, LS_F32, 2), ls_select(a, 0, 0)}, 2);
    assert_true(ls_equal(number, ls_mul(ls_select(a, 0, 0), 2)));
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

TEST(test_resize) {
    int seen = 0;
    for (const fixture *one = pytorch; one != NULL; one = one->next) {
        char kind[8], size[16], mode[16];
        if (sscanf(one->name, "resize/%7[^/]/%15[^/]/%15s", kind, size, mode) != 3) {
            continue;
        }
        const ls_shape shapes[] = {LS_SHAPE(2, 2, 5), LS_SHAPE(2, 1, 4, 3), LS_SHAPE(1, 2, 3, 2, 2),
                                   LS_SHAPE(1, 1, 1, 1)};
        ls_shape out = LS_SCALAR;
        for (char *at = size; *at != '\0'; at += *at == 'x') {
            out.size[out.ndim++] = strtol(at, &at, 10);
        }
        const ls_resize_options options = {.mode = mode[0] == 'l' ? LS_RESIZE_LINEAR : LS_RESIZE_NEAREST,
                                           .align_corners = strcmp(mode, "linear1") == 0};
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = wave(shapes[kind[0] == 'o' ? 3 : kind[0] - '1'], 1);
        check_against(pytorch, one->name, ls_resize(x, out, &options), &x, 1, NULL, 0);
        assert_int_equal(ls_scope_end(scope), LS_OK);
        seen++;
    }
    assert_int_equal(seen, 36);
}

SCOPED_TEST(test_resize_of_halves) {
    ls_tensor *x = wave(LS_SHAPE(2, 1, 4, 3), 1);
    const ls_resize_options linear = {.mode = LS_RESIZE_LINEAR};
    ls_tensor *y = ls_resize(ls_transpose(x, 2, 3), LS_SHAPE(5), &linear);
    assert_true(ls_allclose(y, ls_transpose(ls_resize(x, LS_SHAPE(5, 5), &linear), 2, 3), 1e-12, 1e-12));
    ls_tensor *half = ls_resize(ls_transpose(ls_to(x, LS_F16), 2, 3), LS_SHAPE(5), &linear);
    assert_int_equal(ls_dtype_of(half), LS_F16);
    assert_true(ls_allclose(ls_to(half, LS_F64), y, 2e-3, 2e-3));
    assert_true(ls_equal(ls_resize(x, LS_SHAPE(4, 3), &linear), x));
}

SCOPED_TEST(test_resize_to_the_same_size_is_a_view) {
    const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_BF16, LS_F16};
    for (int i = 0; i < 4; i++) {
        ls_tensor *x = ls_ones(LS_SHAPE(2, 1, 4, 3), dtypes[i]);
        ls_tensor *y = ls_resize(x, LS_SHAPE(4, 3), NULL);
        assert_int_equal(ls_dtype_of(y), dtypes[i]);
        assert_int_equal(ls_fill(x, 7), LS_OK);
        assert_true(ls_allclose(ls_to(y, LS_F64), ls_full(LS_SHAPE(2, 1, 4, 3), LS_F64, 7), 0, 0));
    }
}

static void check_layer(const char *name, ls_module *layer, ls_shape shape) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = wave(shape, 1);
    assert_non_null(layer);
    check_against(pytorch, name, ls_forward(layer, x), &x, 1, NULL, 0);
    ls_module_free(layer);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_layers) {
    check_layer("pixel_shuffle", ls_nn_pixel_shuffle(2), LS_SHAPE(2, 12, 2, 3));
    check_layer("pixel_unshuffle", ls_nn_pixel_unshuffle(2), LS_SHAPE(2, 3, 4, 6));
    check_layer("upsample/nearest", ls_nn_upsample(LS_SHAPE(3), NULL), LS_SHAPE(2, 2, 3, 2));
    check_layer("upsample/linear",
                ls_nn_upsample(LS_SHAPE(2, 3), &(ls_resize_options){.mode = LS_RESIZE_LINEAR, .align_corners = true}),
                LS_SHAPE(2, 2, 3, 2));
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static void check_normed(const char *name, ls_module *layer, ls_shape shape) {
    static const char *const names[] = {"weight_v", "weight_g", "bias"};
    ls_scope *scope = ls_scope_begin();
    ls_tensor *inputs[4] = {wave(shape, 1)};
    assert_int_equal(ls_module_parameter_count(layer), 3);
    for (int i = 0; i < 3; i++) {
        inputs[1 + i] = ls_module_find(layer, names[i]);
        const bool before = ls_no_grad(true);
        assert_int_equal(ls_copy_into(inputs[1 + i], wave_between(ls_shape_of(inputs[1 + i]), 2 + i, -2, 2)), LS_OK);
        (void)ls_no_grad(before);
    }
    check_against(pytorch, name, ls_forward(layer, inputs[0]), inputs, 4, NULL, 0);
    ls_module_free(layer);
    assert_int_equal(ls_scope_end(scope), LS_OK);
}

TEST(test_weight_norm) {
    const ls_linear_options linear = {.dtype = LS_F64, .weight_norm = true};
    const ls_conv_layer_options conv = {.dtype = LS_F64, .weight_norm = true};
    const ls_conv_transpose_layer_options transposed = {.dtype = LS_F64, .weight_norm = true};
    check_normed("weight_norm/linear", ls_nn_linear_with(4, 3, &linear), LS_SHAPE(5, 4));
    check_normed("weight_norm/conv", ls_nn_conv_2d(2, 3, LS_SHAPE(2), &conv), LS_SHAPE(2, 2, 3, 4));
    check_normed("weight_norm/conv_transpose", ls_nn_conv_transpose_1d(3, 2, LS_SHAPE(3), &transposed),
                 LS_SHAPE(2, 3, 4));
}

/* Initially, the layer equals the layer without weight norm, and a ReLU after it is fused in the same way. */
SCOPED_TEST(test_weight_norm_begins_as_the_weight) {
    ls_tensor *x = wave(LS_SHAPE(5, 4), 1), *y[2];
    for (int normed = 0; normed < 2; normed++) {
        ls_seed(4);
        const ls_linear_options options = {.dtype = LS_F64, .weight_norm = normed == 1};
        ls_module *model = ls_sequential(ls_nn_linear_with(4, 3, &options), ls_nn_relu());
        y[normed] = ls_forward(model, x);
        ls_module_free(model);
    }
    assert_true(ls_allclose(y[0], y[1], 1e-14, 1e-14));
    assert_true(ls_item(ls_min(y[1])) == 0);
}

/* 16-bit floats are computed in f32 and rounded once. */
SCOPED_TEST(test_weight_norm_of_halves) {
    ls_tensor *small = ls_full(LS_SHAPE(1, 4), LS_F16, 1e-4), *large = ls_full(LS_SHAPE(1, 4096), LS_F16, 2000);
    ls_tensor *y = ls_weight_norm(small, ls_full(LS_SHAPE(1, 1), LS_F16, 20));
    assert_true(ls_dtype_of(y) == LS_F16 && ls_at(y, (int64_t[]){0, 3}) == 10);
    y = ls_weight_norm(large, ls_full(LS_SHAPE(1, 1), LS_F16, 1));
    assert_true(ls_at(y, (int64_t[]){0, 99}) == 1.0 / 64);
    ls_tensor *direction = ls_to(wave(LS_SHAPE(5, 40), 1), LS_BF16), *length = ls_to(wave(LS_SHAPE(5, 1), 2), LS_BF16);
    ls_tensor *exact = ls_weight_norm(ls_to(direction, LS_F32), ls_to(length, LS_F32));
    assert_true(ls_equal(ls_weight_norm(direction, length), ls_to(exact, LS_BF16)));
    assert_true(ls_equal(ls_weight_norm(direction, ls_to(length, LS_F32)), exact));
    assert_int_equal(ls_dtype_of(ls_weight_norm(direction, ls_to(length, LS_F64))), LS_F64);
    ls_tensor *leaf = wave(LS_SHAPE(5, 40), 1);
    assert_int_equal(ls_backward(ls_sum(ls_weight_norm(ls_to(leaf, LS_F16), ls_to(length, LS_F16)))), LS_OK);
    assert_non_null(ls_grad(leaf));
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

#define REFUSED(expression, status, words)                                                                             \
    scope = ls_scope_begin();                                                                                          \
    a = ls_ones(LS_SHAPE(2, 3), LS_F32);                                                                               \
    image = ls_ones(LS_SHAPE(2, 6, 3, 4), LS_F32);                                                                     \
    check_refused_in(scope, expression, status, words);
#define PAIR(equation, x, y) ls_einsum(equation, (ls_tensor *[]){x, y}, 2)

TEST(test_refusals) {
    ls_scope *scope;
    ls_tensor *a, *image;
    REFUSED(PAIR("ij,jk->ik", a, a), LS_ERR_SHAPE, "ls_einsum: \"ij,jk->ik\": letter j has sizes 3 and 2")
    REFUSED(PAIR("ij,ijk", a, a), LS_ERR_SHAPE, "operand 2 is [2, 3], but has 3 letters")
    REFUSED(PAIR("ij->ij", a, a), LS_ERR_ARGUMENT, "names 1 operands, but there are 2")
    REFUSED(PAIR("ij,ij->k", a, a), LS_ERR_ARGUMENT, "letter k of the result does not occur in an operand")
    REFUSED(PAIR("ij,ij->ii", a, a), LS_ERR_ARGUMENT, "letter i of the result occurs twice")
    REFUSED(PAIR("...j,ij", a, a), LS_ERR_ARGUMENT, "there is no ellipsis here")
    REFUSED(PAIR("ij,ij-k", a, a), LS_ERR_ARGUMENT, "must be letters with commas")
    REFUSED(PAIR("ij,ij->i,j", a, a), LS_ERR_ARGUMENT, "text follows the result")
    REFUSED(PAIR("abcdefghi,ij", a, a), LS_ERR_ARGUMENT, "more than 8 letters for a tensor")
    REFUSED(PAIR("ij,ij", a, ls_to(a, LS_F64)), LS_ERR_SHAPE, "element types f32 and f64 differ")
    REFUSED(PAIR("ij,ij", a, NULL), LS_ERR_ARGUMENT, "ls_einsum: argument 2 is NULL")
    ls_tensor *many[16];
    ls_scope *outer = ls_scope_begin();
    for (int i = 0; i < 16; i++) {
        many[i] = ls_full(LS_SCALAR, LS_F32, 2);
    }
    REFUSED(ls_einsum(",,,,,,,,,,,,,,,,", many, 16), LS_ERR_ARGUMENT, "names more than 16 operands") /* 17 */
    assert_true(ls_item(ls_einsum(",,,,,,,,,,,,,,,", many, 16)) == 65536);
    assert_int_equal(ls_scope_end(outer), LS_OK);
    REFUSED(ls_einsum(NULL, &a, 1), LS_ERR_ARGUMENT, "needs an equation and 1 to 16 operands")
    REFUSED(PAIR("abcde,fghij", ls_ones(LS_SHAPE(1, 1, 1, 1, 1), LS_F32), ls_ones(LS_SHAPE(1, 1, 1, 1, 1), LS_F32)),
            LS_ERR_ARGUMENT, "too many axes")
    REFUSED(ls_resize(a, LS_SHAPE(2), NULL), LS_ERR_SHAPE, "ls_resize: x is [2, 3], but must be [n, channels, ...]")
    REFUSED(ls_resize(image, LS_SCALAR, NULL), LS_ERR_ARGUMENT, "no size is given")
    REFUSED(ls_resize(image, LS_SHAPE(2, 0), NULL), LS_ERR_ARGUMENT, "size is [2, 0]")
    REFUSED(ls_resize(image, LS_SHAPE(2), &(ls_resize_options){.align_corners = true}), LS_ERR_ARGUMENT,
            "does not support align_corners: use LS_RESIZE_LINEAR")
    REFUSED(ls_resize(ls_narrow(image, 3, 0, 0), LS_SHAPE(2), NULL), LS_ERR_SHAPE, "it has no positions")
    REFUSED(ls_pixel_shuffle(image, 2), LS_ERR_SHAPE, "its channels are not a multiple of 4")
    REFUSED(ls_pixel_unshuffle(image, 2), LS_ERR_SHAPE, "height and width must be multiples of 2")
    REFUSED(ls_pixel_shuffle(ls_zeros(LS_SHAPE(1, 4, 0, 3), LS_F32), 2), LS_ERR_SHAPE,
            "its height and width must be at least 1")
    REFUSED(ls_pixel_shuffle(ls_zeros(LS_SHAPE(1, 4, 3, 0), LS_F32), 1), LS_ERR_SHAPE,
            "its height and width must be at least 1")
    REFUSED(ls_pixel_unshuffle(ls_zeros(LS_SHAPE(1, 4, 0, 4), LS_F32), 2), LS_ERR_SHAPE,
            "its height and width must be at least 1")
    REFUSED(ls_pixel_shuffle(image, 0), LS_ERR_ARGUMENT, "the factor is 0, but must be positive")
    REFUSED(ls_weight_norm(a, a), LS_ERR_SHAPE, "the length is [2, 3], but must be [2, 1] for [2, 3]")
    REFUSED(ls_weight_norm(ls_to(a, LS_F16), a), LS_ERR_SHAPE, "the length is [2, 3], but must be [2, 1] for [2, 3]")
    assert_null(ls_nn_upsample(LS_SHAPE(0), NULL));
    assert_null(ls_nn_pixel_shuffle(-1));
    expect_message("ls_nn_pixel_shuffle: the factor is -1");
    ls_module *layer = ls_nn_upsample(LS_SHAPE(2, 2), NULL);
    REFUSED(ls_forward(layer, ls_select(image, 0, 0)), LS_ERR_SHAPE,
            "Upsample: x is [6, 3, 4], which does not fit 2 factors")
    ls_module_free(layer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_einsum),
        cmocka_unit_test(test_einsum_of_more),
        cmocka_unit_test(test_resize),
        cmocka_unit_test(test_resize_of_halves),
        cmocka_unit_test(test_resize_to_the_same_size_is_a_view),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_weight_norm),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_weight_norm_begins_as_the_weight),
        cmocka_unit_test(test_weight_norm_of_halves),
    };
    return cmocka_run_group_tests(tests, pytorch_begin, pytorch_end);
}
