/*
 * tensor: printing in PyTorch's layout. The expected strings are from PyTorch 1.13, with our names of dtypes.
 *
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/unit.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "tensor/tensor.h"

static void expect(ls_tensor *tensor, const char *text) {
    char got[20000];
    assert_non_null(tensor);
    const size_t length = ls_format(tensor, got, sizeof got);
    assert_string_equal(got, text);
    assert_int_equal(length, strlen(text));
    ls_release(tensor);
}

#define FROM(shape, dtype, type, ...) ls_from(shape, dtype, (const type[]){__VA_ARGS__})

/* Makes an f64 tensor: first, first + step, ... */
static ls_tensor *ramp(ls_shape shape, double first, double step) {
    ls_tensor *tensor = ls_empty(shape, LS_F64);
    double *numbers = elements(tensor);
    for (int64_t i = 0; i < ls_numel(tensor); i++) {
        numbers[i] = first + step * (double)i;
    }
    return tensor;
}

TEST(test_plain_numbers) {
    expect(ls_scalar(3.25, LS_F32), "tensor(3.2500)");
    expect(FROM(LS_SHAPE(3), LS_F32, float, 1, 2, 3), "tensor([1., 2., 3.])");
    expect(FROM(LS_SHAPE(3), LS_F32, float, 1.5F, -2.25F, 1000), "tensor([   1.5000,   -2.2500, 1000.0000])");
    expect(FROM(LS_SHAPE(2), LS_F32, float, 0, 0), "tensor([0., 0.])");
    expect(FROM(LS_SHAPE(1, 2), LS_BOOL, uint8_t, 1, 0), "tensor([[ True, False]])");
    expect(FROM(LS_SHAPE(2), LS_I32, int32_t, -1, 200), "tensor([ -1, 200], dtype=i32)");
    expect(FROM(LS_SHAPE(2), LS_I64, int64_t, INT64_MIN, 9007199254740993),
           "tensor([-9223372036854775808,     9007199254740993])");
}

TEST(test_scientific_and_not_finite) {
    expect(FROM(LS_SHAPE(2), LS_F32, float, 1e-5F, 1), "tensor([1.0000e-05, 1.0000e+00])");
    expect(FROM(LS_SHAPE(2), LS_F32, float, 1e9F, 1), "tensor([1.0000e+09, 1.0000e+00])");
    expect(FROM(LS_SHAPE(3), LS_F32, float, 1, NAN, INFINITY), "tensor([1., nan, inf])");
    expect(FROM(LS_SHAPE(3), LS_F32, float, 1.5F, NAN, -INFINITY), "tensor([1.5000,    nan,   -inf])");
}

TEST(test_more_dimensions) {
    expect(ls_arange(LS_SHAPE(2, 3), LS_F32), "tensor([[0., 1., 2.],\n        [3., 4., 5.]])");
    expect(ls_arange(LS_SHAPE(2, 3, 4), LS_I64), "tensor([[[ 0,  1,  2,  3],\n"
                                                 "         [ 4,  5,  6,  7],\n"
                                                 "         [ 8,  9, 10, 11]],\n"
                                                 "\n"
                                                 "        [[12, 13, 14, 15],\n"
                                                 "         [16, 17, 18, 19],\n"
                                                 "         [20, 21, 22, 23]]])");
    expect(ramp(LS_SHAPE(3, 4), 0, 1.0 / 7), "tensor([[0.0000, 0.1429, 0.2857, 0.4286],\n"
                                             "        [0.5714, 0.7143, 0.8571, 1.0000],\n"
                                             "        [1.1429, 1.2857, 1.4286, 1.5714]], dtype=f64)");
    ls_tensor *base = ls_arange(LS_SHAPE(3, 4), LS_F32);
    expect(ls_tensor_view(base, 2, (const int64_t[]){4, 3}, (const int64_t[]){1, 4}, 0), "tensor([[ 0.,  4.,  8.],\n"
                                                                                         "        [ 1.,  5.,  9.],\n"
                                                                                         "        [ 2.,  6., 10.],\n"
                                                                                         "        [ 3.,  7., 11.]])");
    ls_release(base);
}

TEST(test_nothing_to_show) {
    char text[8];
    expect(ls_zeros(LS_SHAPE(0), LS_F32), "tensor([])");
    expect(ls_zeros(LS_SHAPE(0, 3), LS_F32), "tensor([], size=(0, 3))");
    expect(ls_zeros(LS_SHAPE(2, 0, 3), LS_F64), "tensor([], size=(2, 0, 3), dtype=f64)");
    expect(ls_zeros(LS_SHAPE(0), LS_I64), "tensor([], dtype=i64)");
    assert_int_equal(ls_format(NULL, text, sizeof text), 4);
    assert_int_equal(ls_format(NULL, NULL, 9), 4);
    assert_string_equal(text, "NULL");
}

TEST(test_long_lines_break) {
    expect(ls_zeros(LS_SHAPE(25), LS_F32),
           "tensor([0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.,\n"
           "        0.])");
    expect(ls_arange(LS_SHAPE(40), LS_F32),
           "tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11., 12., 13.,\n"
           "        14., 15., 16., 17., 18., 19., 20., 21., 22., 23., 24., 25., 26., 27.,\n"
           "        28., 29., 30., 31., 32., 33., 34., 35., 36., 37., 38., 39.])");
    expect(ramp(LS_SHAPE(14), 0.5, 1),
           "tensor([ 0.5000,  1.5000,  2.5000,  3.5000,  4.5000,  5.5000,  6.5000,  7.5000,\n"
           "         8.5000,  9.5000, 10.5000, 11.5000, 12.5000, 13.5000], dtype=f64)");
    expect(ls_arange(LS_SHAPE(12), LS_BF16),
           "tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11.],\n       dtype=bf16)");
    expect(ramp(LS_SHAPE(14), 0, 1), "tensor([ 0.,  1.,  2.,  3.,  4.,  5.,  6.,  7.,  8.,  9., 10., 11., 12., 13.],\n"
                                     "       dtype=f64)");
}

TEST(test_the_middle_of_large_tensors_is_left_out) {
    expect(ls_arange(LS_SHAPE(2000), LS_F32),
           "tensor([0.0000e+00, 1.0000e+00, 2.0000e+00,  ..., 1.9970e+03, 1.9980e+03,\n"
           "        1.9990e+03])");
    expect(ls_arange(LS_SHAPE(100, 11), LS_I32), "tensor([[   0,    1,    2,  ...,    8,    9,   10],\n"
                                                 "        [  11,   12,   13,  ...,   19,   20,   21],\n"
                                                 "        [  22,   23,   24,  ...,   30,   31,   32],\n"
                                                 "        ...,\n"
                                                 "        [1067, 1068, 1069,  ..., 1075, 1076, 1077],\n"
                                                 "        [1078, 1079, 1080,  ..., 1086, 1087, 1088],\n"
                                                 "        [1089, 1090, 1091,  ..., 1097, 1098, 1099]], dtype=i32)");
    expect(ls_arange(LS_SHAPE(2, 2, 300), LS_I64), "tensor([[[   0,    1,    2,  ...,  297,  298,  299],\n"
                                                   "         [ 300,  301,  302,  ...,  597,  598,  599]],\n"
                                                   "\n"
                                                   "        [[ 600,  601,  602,  ...,  897,  898,  899],\n"
                                                   "         [ 900,  901,  902,  ..., 1197, 1198, 1199]]])");
}

TEST(test_text_is_cut_at_the_capacity) {
    ls_tensor *tensor = FROM(LS_SHAPE(3), LS_F32, float, 1, 2, 3);
    char text[10];
    memset(text, 'x', sizeof text);
    assert_int_equal(ls_format(tensor, text, 9), 20);
    assert_string_equal(text, "tensor([");
    assert_int_equal(text[9], 'x');
    assert_int_equal(ls_format(tensor, NULL, 0), 20);
    ls_release(tensor);
}

/* Captures the output of ls_print. */
static void print_into(const ls_tensor *tensor, char *text, size_t capacity) {
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    const int kept = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    ls_print(tensor);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    rewind(file);
    text[fread(text, 1, capacity - 1, file)] = '\0';
    fclose(file);
}

/* Checks that the string from ls_format is printed, followed by a newline, even if it is longer than the fixed buffer.
 * NULL does not crash. */
TEST(test_printing) {
    static char printed[1 << 16], wanted[1 << 16];
    ls_tensor *tensors[] = {FROM(LS_SHAPE(3), LS_F32, float, 1, 2, 3), ls_arange(LS_SHAPE(10, 10, 10), LS_I64), NULL};
    for (int i = 0; i < 3; i++) {
        const size_t length = ls_format(tensors[i], wanted, sizeof wanted - 1);
        assert_true(i != 1 || length > 2048);
        wanted[length] = '\n';
        wanted[length + 1] = '\0';
        print_into(tensors[i], printed, sizeof printed);
        assert_string_equal(printed, wanted);
        ls_release(tensors[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_numbers),
        cmocka_unit_test(test_scientific_and_not_finite),
        cmocka_unit_test(test_more_dimensions),
        cmocka_unit_test(test_nothing_to_show),
        cmocka_unit_test(test_long_lines_break),
        cmocka_unit_test(test_the_middle_of_large_tensors_is_left_out),
        cmocka_unit_test(test_text_is_cut_at_the_capacity),
        cmocka_unit_test(test_printing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
