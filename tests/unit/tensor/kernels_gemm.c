/*
 * The CPU's matrix products compared with plain loops in double precision.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <math.h>

#include "base/library.h"
#include "base/random.h"
#include "base/status.h"
#include "tensor/device/cpu/cpu_kernels.h"
#include "tensor/device/cpu/gemm.h"
#include "tensor/device/cpu/libraries.h"

/* An array with numbers of either type, surrounded by marks that must not be overwritten. */
enum { FRAME = 32 };

typedef struct matrix {
    ls_dtype dtype;
    int64_t rows, stride; /* as stored */
    void *memory;
} matrix;

static int64_t matrix_count(const matrix *m) {
    return m->rows * m->stride + 2 * FRAME;
}

static double matrix_get(const matrix *m, int64_t at) {
    return m->dtype == LS_F32 ? (double)((float *)m->memory)[FRAME + at] : ((double *)m->memory)[FRAME + at];
}

static void matrix_set(const matrix *m, int64_t at, double value) {
    if (m->dtype == LS_F32) {
        ((float *)m->memory)[FRAME + at] = (float)value;
    } else {
        ((double *)m->memory)[FRAME + at] = value;
    }
}

static void *matrix_data(const matrix *m) {
    return (char *)m->memory + FRAME * ls_dtype_size(m->dtype);
}

static matrix matrix_random(ls_dtype dtype, int64_t rows, int64_t stride, uint64_t stream) {
    matrix m = {dtype, rows, stride > 0 ? stride : 1, NULL};
    m.memory = calloc((size_t)matrix_count(&m), ls_dtype_size(dtype));
    assert_non_null(m.memory);
    for (int64_t i = -FRAME; i < rows * stride + FRAME; i++) {
        matrix_set(&m, i, ls_random_uniform(3, stream, (uint64_t)(i + FRAME)) * 2 - 1);
    }
    return m;
}

static matrix matrix_copy(const matrix *m) {
    matrix copy = *m;
    const size_t bytes = (size_t)matrix_count(m) * ls_dtype_size(m->dtype);
    copy.memory = malloc(bytes);
    assert_non_null(copy.memory);
    memcpy(copy.memory, m->memory, bytes);
    return copy;
}

/* Implementations of a product. Each must support every shape, even the shapes for which it is not chosen. */
static ls_status by_choice(const ls_gemm *gemm) {
    return ls_cpu_gemm(NULL, gemm);
}

static ls_status by_plain_loops(const ls_gemm *gemm) {
    ls_gemm_plain(gemm);
    return LS_OK;
}

static ls_status by_avx512(const ls_gemm *gemm) {
    return gemm->dtype == LS_F32 && ls_gemm_avx512(gemm) ? LS_OK : by_plain_loops(gemm);
}

static ls_status by_avx2(const ls_gemm *gemm) {
    return gemm->dtype == LS_F32 && ls_gemm_avx2(gemm) ? LS_OK : by_plain_loops(gemm);
}

static ls_status by_library(const ls_gemm *gemm) {
    return gemm->m > 0 && gemm->n > 0 && gemm->k > 0 ? ls_gemm_library(gemm) : by_choice(gemm);
}

typedef ls_status way(const ls_gemm *gemm);
static way *const ways[] = {by_choice, by_plain_loops, by_avx512, by_avx2, by_library};

/* One case. Leading dimensions are the widths plus `slack`. */
typedef struct product_case {
    ls_dtype dtype;
    int64_t m, n, k, slack;
    bool transpose_a, transpose_b, accumulate, bias, relu;
} product_case;

static double expected(const product_case *c, const matrix *a, const matrix *b, const matrix *bias, double before,
                       int64_t i, int64_t j) {
    double sum = c->accumulate ? before : 0;
    for (int64_t p = 0; p < c->k; p++) {
        sum += matrix_get(a, c->transpose_a ? p * a->stride + i : i * a->stride + p) *
               matrix_get(b, c->transpose_b ? j * b->stride + p : p * b->stride + j);
    }
    sum += c->bias ? matrix_get(bias, j) : 0;
    return c->relu && sum < 0 ? 0 : sum;
}

/* The operands of a case, the previous contents of its result, and the result. */
typedef struct operands {
    matrix a, b, bias, before, want;
} operands;

static operands operands_of(const product_case *c, uint64_t stream) {
    operands o = {
        .a = matrix_random(c->dtype, c->transpose_a ? c->k : c->m, (c->transpose_a ? c->m : c->k) + c->slack,
                           4 * stream),
        .b = matrix_random(c->dtype, c->transpose_b ? c->n : c->k, (c->transpose_b ? c->k : c->n) + c->slack,
                           4 * stream + 1),
        .bias = matrix_random(c->dtype, 1, c->n, 4 * stream + 2),
        .before = matrix_random(c->dtype, c->m, c->n + c->slack, 4 * stream + 3),
        .want = matrix_random(LS_F64, c->m, c->n + c->slack, 0),
    };
    for (int64_t i = 0; i < c->m; i++) {
        for (int64_t j = 0; j < c->n; j++) {
            const int64_t at = i * o.before.stride + j;
            matrix_set(&o.want, at, expected(c, &o.a, &o.b, &o.bias, matrix_get(&o.before, at), i, j));
            if (!c->accumulate) {
                matrix_set(&o.before, at, NAN); /* must not be read */
            }
        }
    }
    return o;
}

static void check_result(const product_case *c, const operands *o, const matrix *out) {
    const double tolerance = (c->dtype == LS_F32 ? 1e-6 : 1e-14) * (double)(c->k + 2);
    for (int64_t at = -FRAME; at < out->rows * out->stride + FRAME; at++) {
        const int64_t i = at < 0 ? -1 : at / out->stride;
        const int64_t j = at < 0 ? -1 : at % out->stride;
        const double is = matrix_get(out, at);
        const bool inside = i >= 0 && i < c->m && j < c->n;
        const double want = matrix_get(inside ? &o->want : &o->before, at);
        if (!(fabs(is - want) <= (inside ? tolerance : 0))) {
            fail_msg("%s %lld x %lld x %lld%s%s%s%s%s slack %lld: [%lld, %lld] is %.9g, not %.9g",
                     ls_dtype_name(c->dtype), (long long)c->m, (long long)c->n, (long long)c->k,
                     c->transpose_a ? " at" : "", c->transpose_b ? " bt" : "", c->accumulate ? " accumulate" : "",
                     c->bias ? " bias" : "", c->relu ? " relu" : "", (long long)c->slack, (long long)i, (long long)j,
                     is, want);
        }
    }
}

static void check_product_by(way *multiply, const product_case *c, const operands *o) {
    const matrix out = matrix_copy(&o->before);
    const ls_gemm gemm = {.dtype = c->dtype,
                          .m = c->m,
                          .n = c->n,
                          .k = c->k,
                          .a = matrix_data(&o->a),
                          .lda = o->a.stride,
                          .transpose_a = c->transpose_a,
                          .b = matrix_data(&o->b),
                          .ldb = o->b.stride,
                          .transpose_b = c->transpose_b,
                          .c = matrix_data(&out),
                          .ldc = out.stride,
                          .accumulate = c->accumulate,
                          .bias = c->bias ? matrix_data(&o->bias) : NULL,
                          .activation = c->relu ? LS_ACTIVATION_RELU : LS_ACTIVATION_NONE};
    assert_int_equal(multiply(&gemm), LS_OK);
    check_result(c, o, &out);
    free(out.memory);
}

static void operands_free(operands *o) {
    free(o->a.memory);
    free(o->b.memory);
    free(o->bias.memory);
    free(o->before.memory);
    free(o->want.memory);
}

static void check_product(const product_case *c, uint64_t stream) {
    operands o = operands_of(c, stream);
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        check_product_by(ways[i], c, &o);
    }
    operands_free(&o);
}

/* Checks all twenty combinations of transposing, accumulating and finishing for one shape. */
static void check_shape(ls_dtype dtype, int64_t m, int64_t n, int64_t k, int64_t slack, uint64_t stream) {
    for (int kind = 0; kind < 20; kind++) {
        const int finish = kind / 4; /* plain, accumulate, bias, relu, both */
        const product_case c = {.dtype = dtype,
                                .m = m,
                                .n = n,
                                .k = k,
                                .slack = slack,
                                .transpose_a = (kind & 1) != 0,
                                .transpose_b = (kind & 2) != 0,
                                .accumulate = finish == 1,
                                .bias = finish == 2 || finish == 4,
                                .relu = finish >= 3};
        check_product(&c, stream);
    }
}

TEST(test_small_shapes) {
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 8, 10, 17};
    const int count = (int)(sizeof sizes / sizeof sizes[0]);
    for (int at = 0; at < count * count * count; at += IS_SANITIZED ? 5 : 1) { /* every size, in fewer combinations */
        const int64_t m = sizes[at % count];
        const int64_t n = sizes[at / count % count];
        const int64_t k = sizes[at / count / count];
        check_shape(LS_F32, m, n, k, at % 3, (uint64_t)at);
        check_shape(LS_F64, m, n, k, at % 3, (uint64_t)at);
    }
}

TEST(test_random_shapes) {
    for (uint64_t i = 0; i < (IS_SANITIZED ? 15 : 60); i++) {
        const int64_t m = 1 + (int64_t)ls_random_below(7, 1, i, 140);
        const int64_t n = 1 + (int64_t)ls_random_below(7, 2, i, 140);
        const int64_t k = 1 + (int64_t)ls_random_below(7, 3, i, 140);
        const int64_t slack = (int64_t)ls_random_below(7, 4, i, 9);
        check_shape(i % 2 == 0 ? LS_F32 : LS_F64, m, n, k, slack, 1000 + i);
    }
}

/* The shapes of the examples' layers, forward and backward, at batch sizes on both sides of the thresholds. */
TEST(test_layer_shapes) {
    static const int64_t batches[] = {1, 3, 32, 64};
    static const int64_t layers[][2] = {{10, 100}, {100, 1}, {96, 80}, {80, 10}, {784, 33}, {1024, 70}, {130, 1024}};
    for (size_t b = 0; b < sizeof batches / sizeof batches[0]; b++) {
        for (size_t l = 0; l < sizeof layers / sizeof layers[0]; l++) {
            const int64_t in = layers[l][0];
            const int64_t out = layers[l][1];
            check_product(
                &(product_case){.m = batches[b], .n = out, .k = in, .transpose_b = true, .bias = true, .relu = true},
                b);
            check_product(&(product_case){.m = out, .n = in, .k = batches[b], .transpose_a = true}, b);
            check_product(&(product_case){.m = batches[b], .n = in, .k = out}, b);
            check_product(&(product_case){.m = batches[b], .n = in, .k = out, .accumulate = true}, b);
        }
    }
    /* A tall gradient, computed through its transpose. */
    check_product(&(product_case){.m = 401, .n = 129, .k = 403, .transpose_a = true}, 1);
    check_product(&(product_case){.m = 401, .n = 129, .k = 403, .transpose_a = true, .accumulate = true}, 2);
}

/* Products that module onednn splits: into rows, columns, both, or parts of the sums. */
TEST(test_products_in_parts) {
    static const int64_t sizes[][3] = {{300, 20, 99}, {9, 515, 260}, {261, 390, 70}, {20, 30, 9001}, {131, 3, 9001}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int kind = 0; kind < 8; kind++) {
            const product_case c = {.m = sizes[i][0],
                                    .n = sizes[i][1],
                                    .k = sizes[i][2],
                                    .slack = 3,
                                    .transpose_a = (kind & 1) != 0,
                                    .transpose_b = (kind & 2) != 0,
                                    .accumulate = (kind & 4) != 0};
            operands o = operands_of(&c, i);
            check_product_by(by_choice, &c, &o);
            operands_free(&o);
        }
    }
}

TEST(test_not_a_number_survives_relu) {
    const float a = NAN;
    const float b = 1;
    float c = 0;
    const ls_gemm gemm = {.m = 1,
                          .n = 1,
                          .k = 1,
                          .a = &a,
                          .lda = 1,
                          .b = &b,
                          .ldb = 1,
                          .c = &c,
                          .ldc = 1,
                          .activation = LS_ACTIVATION_RELU};
    assert_int_equal(ls_cpu_gemm(NULL, &gemm), LS_OK);
    assert_true(isnan(c));
}

TEST(test_other_types_are_refused) {
    const ls_gemm gemm = {.dtype = LS_I32, .m = 1, .n = 1, .k = 1};
    assert_int_equal(ls_cpu_gemm(NULL, &gemm), LS_ERR_UNSUPPORTED);
    expect_message("i32");
}

TEST(test_missing_libraries_are_named) {
    ls_library absent = {.use = "matrix product",
                         .title = "oneTwo",
                         .package = "libonetwo9",
                         .files = {"libonetwo.so.9"},
                         .functions = {"one"}};
    for (int again = 0; again < 2; again++) {
        assert_null(ls_library_get(&absent));
        assert_int_equal(ls_error_status(), LS_ERR_UNSUPPORTED);
        expect_message("oneTwo cannot be opened (libonetwo.so.9: ");
        expect_message("install libonetwo9 or newer");
    }
    ls_library other = {.use = "matrix product",
                        .title = "libc",
                        .package = "libc6",
                        .files = {"libc.so.9", "libc.so.6"},
                        .functions = {"one"}};
    assert_null(ls_library_get(&other));
    assert_string_equal(ls_error_message(), "matrix product: libc has no function one");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_shapes),
        cmocka_unit_test(test_random_shapes),
        cmocka_unit_test(test_layer_shapes),
        cmocka_unit_test(test_products_in_parts),
        cmocka_unit_test(test_not_a_number_survives_relu),
        cmocka_unit_test(test_other_types_are_refused),
        cmocka_unit_test(test_missing_libraries_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
