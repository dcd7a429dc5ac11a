/*
 * Matrix products, convolution and attention of device/cuda, compiled for the host, compared with the CPU: all code
 * around the libraries' products, and the kernels for products that the libraries do not support.
 *
 * devices: cuda teams
 */
#include "tests/support/arrays.h"

#include "tensor/device/cpu/cpu_kernels.h"
#include "tensor/device/cuda/cuda_kernels.h"

static array random_array(ls_dtype dtype, int ndim, const int64_t *size, uint64_t stream) {
    array made = array_new(dtype, ndim, size, ARRAY_DENSE);
    for (int64_t i = 0; i < made.tensor.count; i++) {
        array_set(&made.tensor, i, ls_random_normal(17, stream, (uint64_t)i));
    }
    return made;
}

static array row_of(ls_dtype dtype, int64_t count, uint64_t stream) {
    return random_array(dtype, 1, &count, stream);
}

/* Compares with a tolerance relative to the largest number, because sums are added in a different order. */
static void assert_near(const ls_tensor *a, const ls_tensor *b) {
    double largest = 1;
    for (int64_t i = 0; i < a->count; i++) {
        const double number = fabs(array_get(a, a, i));
        largest = number > largest && isfinite(number) ? number : largest;
    }
    const double tolerance = (a->dtype == LS_F64 ? 1e-12 : 1e-5) * largest;
    for (int64_t i = 0; i < a->count; i++) {
        const double x = array_get(a, a, i), y = array_get(b, b, i);
        if (!(fabs(x - y) <= tolerance) && !(isnan(x) && isnan(y)) && x != y) {
            fail_msg("number %lld: %.9g on the CPU, %.9g by the GPU's kernel", (long long)i, x, y);
        }
    }
}

/* ---- matrix products --------------------------------------------------------------------------------------------- */

static int64_t row_length(int64_t columns) {
    return columns + (array_dice(2) == 0 ? 0 : array_dice(4)) + (columns == 0);
}

/* The next matrix may begin anywhere after the previous one. */
static int64_t room_of(int64_t rows, int64_t leading) {
    return rows * leading + array_dice(2) * array_dice(9);
}

static ls_gemm random_gemm(ls_dtype dtype) {
    const int64_t bound = array_dice(4) == 0 ? 70 : 12;
    ls_gemm gemm = {.dtype = dtype, .m = array_dice(bound), .n = array_dice(bound), .k = array_dice(bound)};
    gemm.transpose_a = array_dice(2) == 0;
    gemm.transpose_b = array_dice(2) == 0;
    gemm.lda = row_length(gemm.transpose_a ? gemm.m : gemm.k);
    gemm.ldb = row_length(gemm.transpose_b ? gemm.k : gemm.n);
    gemm.ldc = row_length(gemm.n);
    gemm.accumulate = array_dice(3) == 0;
    gemm.batch = array_dice(5);
    gemm.step_a = array_dice(4) == 0 ? 0 : room_of(gemm.transpose_a ? gemm.k : gemm.m, gemm.lda);
    gemm.step_b = array_dice(4) == 0 ? 0 : room_of(gemm.transpose_b ? gemm.n : gemm.k, gemm.ldb);
    gemm.step_c = room_of(gemm.m, gemm.ldc);
    gemm.activation = array_dice(2) == 0 ? LS_ACTIVATION_RELU : LS_ACTIVATION_NONE;
    gemm.rounds_to = array_dice(3) == 0 ? LS_BF16 : array_dice(3) == 0 ? LS_F16 : LS_F32;
    return gemm;
}

static void check_gemm(ls_gemm gemm, ls_dtype compute) {
    const int64_t batch = gemm.batch > 1 ? gemm.batch : 1;
    array a = row_of(gemm.dtype, batch * gemm.step_a + (gemm.transpose_a ? gemm.k : gemm.m) * gemm.lda + 8, 1);
    array b = row_of(gemm.dtype, batch * gemm.step_b + (gemm.transpose_b ? gemm.n : gemm.k) * gemm.ldb + 8, 2);
    array c = row_of(gemm.dtype, batch * gemm.step_c + gemm.m * gemm.ldc + 8, 3);
    array other = row_of(gemm.dtype, c.tensor.count, 3);
    array bias = row_of(gemm.dtype, gemm.n, 4);
    gemm.a = a.memory;
    gemm.b = b.memory;
    gemm.bias = gemm.accumulate || array_dice(2) == 0 ? NULL : bias.memory;
    gemm.activation = gemm.accumulate ? LS_ACTIVATION_NONE : gemm.activation;
    gemm.c = c.memory;
    assert_int_equal(ls_cpu_gemm(NULL, &gemm), LS_OK);
    gemm.c = other.memory;
    gemm.compute = compute;
    assert_int_equal(ls_cuda_gemm(NULL, &gemm), LS_OK);
    assert_near(&c.tensor, &other.tensor);
    array_free(&a);
    array_free(&b);
    array_free(&c);
    array_free(&other);
    array_free(&bias);
}

TEST(test_gemm) {
    for (int i = 0; i < 3000; i++) {
        check_gemm(random_gemm(LS_F32), i % 4 == 0 ? LS_F64 : LS_F32);
        check_gemm(random_gemm(LS_F64), LS_F64);
    }
}

/* NaN passes through the activation. */
TEST(test_nan_stays) {
    const float a = NAN, b = 1, bias = 1;
    float c = 0;
    const ls_gemm gemm = {.dtype = LS_F32,
                          .m = 1,
                          .n = 1,
                          .k = 1,
                          .a = &a,
                          .lda = 1,
                          .b = &b,
                          .ldb = 1,
                          .c = &c,
                          .ldc = 1,
                          .bias = &bias,
                          .activation = LS_ACTIVATION_RELU};
    assert_int_equal(ls_cuda_gemm(NULL, &gemm), LS_OK);
    assert_true(isnan(c));
    assert_true(ls_cuda_gains_by(LS_BF16) && ls_cuda_gains_by(LS_F16) && !ls_cuda_gains_by(LS_F32));
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

typedef struct conv_case {
    ls_dtype dtype, rounds_to;
    ls_window window;
    int64_t large[5], small[5], weight[5];
} conv_case;

static conv_case random_conv(ls_dtype dtype) {
    conv_case c = {.dtype = dtype, .rounds_to = array_dice(3) == 0 ? LS_BF16 : array_dice(3) == 0 ? LS_F16 : LS_F32};
    const int64_t groups = 1 + array_dice(3);
    c.window.groups = (int32_t)groups;
    c.large[0] = c.small[0] = array_dice(3) + (array_dice(10) != 0);
    c.weight[1] = 1 + array_dice(3);
    c.large[1] = c.weight[1] * groups;
    c.weight[0] = c.small[1] = (1 + array_dice(3)) * groups;
    for (int i = 0; i < 3; i++) {
        const bool flat = i == 0 && array_dice(2) == 0;
        c.window.kernel[i] = flat ? 1 : (int32_t)(1 + array_dice(3));
        c.window.stride[i] = (int32_t)(1 + array_dice(3));
        c.window.dilation[i] = (int32_t)(1 + array_dice(2));
        c.window.before[i] = flat ? 0 : (int32_t)array_dice(3);
        c.window.after[i] = flat ? 0 : (int32_t)array_dice(3);
        const int64_t reach = c.window.dilation[i] * (c.window.kernel[i] - 1) + 1;
        c.large[2 + i] = flat ? 1 : reach + array_dice(7);
        c.small[2 + i] = (c.large[2 + i] + c.window.before[i] + c.window.after[i] - reach) / c.window.stride[i] + 1;
        c.weight[2 + i] = c.window.kernel[i];
    }
    return c;
}

static void check_conv(const conv_case *c) {
    array large = random_array(c->dtype, 5, c->large, 1), large_other = random_array(c->dtype, 5, c->large, 1);
    array small = random_array(c->dtype, 5, c->small, 2), small_other = random_array(c->dtype, 5, c->small, 2);
    array weight = random_array(c->dtype, 5, c->weight, 3), weight_other = random_array(c->dtype, 5, c->weight, 3);
    array outputs = row_of(c->dtype, c->small[1], 4), channels = row_of(c->dtype, c->large[1], 5);
    const ls_tensor *const of_small = array_dice(2) == 0 ? &outputs.tensor : NULL;
    const ls_tensor *const of_large = array_dice(2) == 0 ? &channels.tensor : NULL;
    assert_int_equal(ls_cpu_conv_weight(NULL, &weight.tensor, &large.tensor, &small.tensor, &c->window, c->rounds_to),
                     LS_OK);
    assert_int_equal(
        ls_cuda_conv_weight(NULL, &weight_other.tensor, &large.tensor, &small.tensor, &c->window, c->rounds_to), LS_OK);
    assert_near(&weight.tensor, &weight_other.tensor);
    assert_int_equal(
        ls_cpu_conv(NULL, &small.tensor, &large.tensor, &weight.tensor, of_small, &c->window, c->rounds_to), LS_OK);
    assert_int_equal(
        ls_cuda_conv(NULL, &small_other.tensor, &large.tensor, &weight.tensor, of_small, &c->window, c->rounds_to),
        LS_OK);
    assert_near(&small.tensor, &small_other.tensor);
    assert_int_equal(
        ls_cpu_conv_transpose(NULL, &large.tensor, &small.tensor, &weight.tensor, of_large, &c->window, c->rounds_to),
        LS_OK);
    assert_int_equal(ls_cuda_conv_transpose(NULL, &large_other.tensor, &small.tensor, &weight.tensor, of_large,
                                            &c->window, c->rounds_to),
                     LS_OK);
    assert_near(&large.tensor, &large_other.tensor);
    array *const all[] = {&large, &large_other, &small, &small_other, &weight, &weight_other, &outputs, &channels};
    for (int i = 0; i < 8; i++) {
        array_free(all[i]);
    }
}

TEST(test_conv) {
    for (int i = 0; i < 600; i++) {
        const conv_case c = random_conv(i % 3 == 0 ? LS_F64 : LS_F32);
        check_conv(&c);
    }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

typedef struct attention_case {
    ls_dtype dtype, rounds_to;
    int64_t batch, heads, queries, keys, width, value_width;
    bool causal, masks, biased,
        heads_inside; /* heads_inside: the layout is [position, head, ...], as after a projection */
} attention_case;

static array heads_array(const attention_case *c, int64_t length, int64_t width, uint64_t stream) {
    const int64_t size[4] = {c->batch, c->heads, length, width};
    array made = random_array(c->dtype, 4, size, stream);
    if (c->heads_inside) {
        made.tensor.stride[1] = width;
        made.tensor.stride[2] = c->heads * width;
        made.tensor.contiguous = false;
    }
    return made;
}

static void check_attention(const attention_case *c) {
    enum { QUERY, KEY, VALUE, Y, G, DQ, DK, DV, OTHER_Y, OTHER_DQ, OTHER_DK, OTHER_DV, ARRAYS };
    array own[ARRAYS];
    for (int i = 0; i < ARRAYS; i++) {
        const int kind = i >= OTHER_DQ ? i - OTHER_DQ : i >= DQ && i <= DV ? i - DQ : i;
        const bool value = kind == VALUE || kind == Y || kind == G || kind == OTHER_Y;
        own[i] = heads_array(c, kind == KEY || kind == VALUE ? c->keys : c->queries, value ? c->value_width : c->width,
                             (uint64_t)i);
    }
    const int64_t sums[3] = {c->batch, c->heads, c->queries}, masks[2] = {c->batch, c->keys};
    array log_sum = random_array(c->dtype, 3, sums, 20), other_log_sum = random_array(c->dtype, 3, sums, 21);
    array mask = array_new(LS_BOOL, 2, masks, ARRAY_DENSE);
    for (int64_t i = 0; i < mask.tensor.count; i++) {
        array_set(&mask.tensor, i, i / c->keys > 0 && array_dice(4) != 0); /* the first batch attends to no key */
    }
    /* One mask for all batches, which hides keys. */
    array bias = random_array(c->dtype, 4, (const int64_t[]){1, c->heads, c->queries, c->keys}, 22);
    for (int64_t i = 0; i < bias.tensor.count; i += 5) {
        array_set(&bias.tensor, i, -(double)INFINITY);
    }
    bias.tensor.size[0] = c->batch;
    bias.tensor.stride[0] = 0;
    const ls_tensor *const m = c->masks ? &mask.tensor : NULL, *const b = c->biased ? &bias.tensor : NULL;
    const ls_tensor *const q = &own[QUERY].tensor, *const k = &own[KEY].tensor, *const v = &own[VALUE].tensor;
    assert_int_equal(
        ls_cpu_attention(NULL, &own[Y].tensor, &log_sum.tensor, q, k, v, m, b, 0.3, c->causal, c->rounds_to), LS_OK);
    assert_int_equal(ls_cuda_attention(NULL, &own[OTHER_Y].tensor, &other_log_sum.tensor, q, k, v, m, b, 0.3, c->causal,
                                       c->rounds_to),
                     LS_OK);
    const bool same =
        c->rounds_to == LS_F32 || c->keys <= 256; /* otherwise 16-bit rounding is applied to different numbers */
    if (same) {
        assert_near(&own[Y].tensor, &own[OTHER_Y].tensor);
    }
    assert_near(&log_sum.tensor, &other_log_sum.tensor);
    ls_tensor *const dq = array_dice(4) == 0 ? NULL : &own[DQ].tensor, *const dk =
                                                                           array_dice(4) == 0 ? NULL : &own[DK].tensor;
    ls_tensor *const dv = array_dice(4) == 0 ? NULL : &own[DV].tensor;
    assert_int_equal(ls_cpu_attention_backward(NULL, dq, dk, dv, &own[G].tensor, &own[Y].tensor, &log_sum.tensor, q, k,
                                               v, m, b, 0.3, c->causal, c->rounds_to),
                     LS_OK);
    assert_int_equal(ls_cuda_attention_backward(
                         NULL, dq != NULL ? &own[OTHER_DQ].tensor : NULL, dk != NULL ? &own[OTHER_DK].tensor : NULL,
                         dv != NULL ? &own[OTHER_DV].tensor : NULL, &own[G].tensor, &own[Y].tensor, &log_sum.tensor, q,
                         k, v, m, b, 0.3, c->causal, c->rounds_to),
                     LS_OK);
    for (int i = 0; i < 3; i++) {
        const bool wanted = (i == 0 ? dq : i == 1 ? dk : dv) != NULL;
        if (wanted && c->rounds_to == LS_F32) {
            assert_near(&own[DQ + i].tensor, &own[OTHER_DQ + i].tensor);
        }
    }
    for (int i = 0; i < ARRAYS; i++) {
        array_free(&own[i]);
    }
    array_free(&log_sum);
    array_free(&other_log_sum);
    array_free(&mask);
    array_free(&bias);
}

TEST(test_attention) {
    for (int i = 0; i < 300; i++) {
        const attention_case c = {.dtype = array_dice(2) == 0 ? LS_F64 : LS_F32,
                                  .rounds_to = array_dice(4) == 0 ? LS_BF16 : LS_F32,
                                  .batch = 1 + array_dice(3),
                                  .heads = 1 + array_dice(3),
                                  .queries = array_dice(40),
                                  .keys = array_dice(40),
                                  .width = 1 + array_dice(9),
                                  .value_width = 1 + array_dice(9),
                                  .causal = array_dice(2) == 0,
                                  .masks = array_dice(2) == 0,
                                  .biased = array_dice(2) == 0,
                                  .heads_inside = array_dice(2) == 0};
        check_attention(&c);
    }
}

/* Tests several blocks of rows, and of heads. */
TEST(test_attention_in_blocks) {
    for (int way = 0; way < 4; way++) {
        check_attention(&(attention_case){.batch = 2,
                                          .heads = 3,
                                          .queries = 700,
                                          .keys = way < 2 ? 650 : 777,
                                          .width = 8,
                                          .value_width = 5,
                                          .causal = true,
                                          .masks = way % 2 == 0,
                                          .biased = way >= 2,
                                          .heads_inside = way == 1 || way == 2});
    }
    check_attention(
        &(attention_case){.batch = 2, .heads = 5, .queries = 1100, .keys = 1200, .width = 4, .value_width = 3});
    check_attention(&(attention_case){
        .batch = 1, .heads = 1, .queries = 3500, .keys = 3700, .width = 4, .value_width = 3, .heads_inside = true});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),      cmocka_unit_test(test_nan_stays),           cmocka_unit_test(test_conv),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_attention_in_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
