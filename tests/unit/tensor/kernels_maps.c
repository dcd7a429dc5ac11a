/*
 * Map kernels compared with plain formulas in double precision: all dtypes, broadcasting, any strides, in place.
 *
 * devices: cpu cuda
 */
#include "tests/support/arrays.h"

#include "tests/support/kernels.h"

/* Values of operands: arbitrary numbers (with ties and zeros), positive numbers, or numbers between 0 and 1. */
typedef enum domain { ANY, POSITIVE, UNIT } domain;

/* The dtypes of a kernel. FLOATS: f32 and f64. NUMBERS: integers, too. ALL: bool, too. COMPARES returns bool. */
typedef enum types { FLOATS, NUMBERS, ALL, COMPARES } types;

typedef double (*formula)(double a, double b, double c, double p, double q);

typedef struct map_case {
    const char *name;
    size_t kernel;
    formula want;
    int operands;
    domain domain;
    types types;
    double parameters[2];
} map_case;

#define FORMULA(name, expression)                                                                                      \
    static double want_##name(double a, double b, double c, double p, double q) {                                      \
        (void)a, (void)b, (void)c, (void)p, (void)q;                                                                   \
        return expression;                                                                                             \
    }

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double larger(double a, double b) {
    return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
}

static double smaller(double a, double b) {
    return -larger(-a, -b);
}

static double sign(double x) {
    return x > 0 ? 1 : x < 0 ? -1 : 0;
}

static const double two_over_root_pi = 1.1283791670955126;
static const double one_over_root_two_pi = 0.3989422804014327;
static const double root_two_over_pi = 0.7978845608028654;

FORMULA(neg, -a)
FORMULA(abs, fabs(a))
FORMULA(square, a *a)
FORMULA(sqrt, sqrt(a))
FORMULA(exp, exp(a))
FORMULA(log, log(a))
FORMULA(log1p, log1p(a))
FORMULA(sin, sin(a))
FORMULA(cos, cos(a))
FORMULA(tanh, tanh(a))
FORMULA(erf, erf(a))
FORMULA(sigmoid, sigmoid(a))
FORMULA(relu, larger(a, 0))
FORMULA(gelu, a *(1 + erf(a / sqrt(2))) / 2)
FORMULA(gelu_tanh, a *(1 + tanh(root_two_over_pi * (a + 0.044715 * a * a * a))) / 2)
FORMULA(silu, a *sigmoid(a))
FORMULA(softplus, log(1 + exp(a)))
FORMULA(leaky_relu, a > 0 ? a : p * a)
FORMULA(elu, a > 0 ? a : p * (exp(a) - 1))
FORMULA(clamp, smaller(larger(a, p), q))

FORMULA(sign, sign(a))
FORMULA(floor, floor(a))
FORMULA(ceil, ceil(a))
FORMULA(round, nearbyint(a))
FORMULA(is_nan, isnan(a))
FORMULA(is_finite, isfinite(a))

FORMULA(abs_backward, a *sign(b))
FORMULA(square_backward, 2 * a * b)
FORMULA(log1p_backward, a / (1 + b))
FORMULA(sin_backward, a *cos(b))
FORMULA(cos_backward, -a *sin(b))
FORMULA(erf_backward, a *two_over_root_pi *exp(-b *b))
FORMULA(gelu_backward, a *((1 + erf(b / sqrt(2))) / 2 + b * one_over_root_two_pi * exp(-b * b / 2)))
static double gelu_tanh_slope(double x) {
    const double t = tanh(root_two_over_pi * (x + 0.044715 * x * x * x));
    return (1 + t) / 2 + x * (1 - t * t) / 2 * root_two_over_pi * (1 + 3 * 0.044715 * x * x);
}

FORMULA(gelu_tanh_backward, a *gelu_tanh_slope(b))
FORMULA(silu_backward, a *(sigmoid(b) + b * sigmoid(b) * sigmoid(-b)))
FORMULA(softplus_backward, a *sigmoid(b))
FORMULA(leaky_relu_backward, b > 0 ? a : p * a)
FORMULA(elu_backward, b > 0 ? a : p * a * exp(b))
FORMULA(clamp_backward, b > p && b < q ? a : 0)
FORMULA(sqrt_backward, a / (2 * b))
FORMULA(tanh_backward, a *(1 - b * b))
FORMULA(sigmoid_backward, a *b *(1 - b))
FORMULA(relu_backward, b > 0 ? a : 0)

FORMULA(add, a + b)
FORMULA(sub, a - b)
FORMULA(mul, a *b)
FORMULA(div, a / b)
FORMULA(pow, pow(a, b))
FORMULA(maximum, larger(a, b))
FORMULA(minimum, smaller(a, b))
FORMULA(eq, a == b)
FORMULA(ne, a != b)
FORMULA(lt, a < b)
FORMULA(le, a <= b)
FORMULA(gt, a > b)
FORMULA(ge, a >= b)
FORMULA(add_number, a + p)
FORMULA(sub_number, a - p)
FORMULA(mul_number, a *p)
FORMULA(div_number, a / p)
FORMULA(pow_number, pow(a, p))
FORMULA(maximum_number, larger(a, p))
FORMULA(minimum_number, smaller(a, p))
FORMULA(eq_number, a == p)
FORMULA(ne_number, a != p)
FORMULA(lt_number, a < p)
FORMULA(le_number, a <= p)
FORMULA(gt_number, a > p)
FORMULA(ge_number, a >= p)

FORMULA(div_backward_divisor, -a *b / (c * c))
FORMULA(pow_backward_base, a *c *pow(b, c - 1))
FORMULA(pow_backward_exponent, a *pow(b, c) * log(b))
FORMULA(pow_number_backward, a *p *pow(b, p - 1))
FORMULA(maximum_backward, b > c ? a : b == c ? a / 2 : 0)
FORMULA(minimum_backward, b < c ? a : b == c ? a / 2 : 0)
FORMULA(maximum_number_backward, b > p ? a : b == p ? a / 2 : 0)
FORMULA(minimum_number_backward, b < p ? a : b == p ? a / 2 : 0)

FORMULA(mse, pow(a - b, 2))
FORMULA(mse_backward, 2 * a * (b - c))
FORMULA(l1, fabs(a - b))
FORMULA(l1_backward, a *sign(b - c))
FORMULA(bce, -(b *larger(log(a), -100) + (1 - b) * larger(log(1 - a), -100)))
FORMULA(bce_backward, a *(b - c) / larger(b * (1 - b), 1e-12))
FORMULA(bce_with_logits, -(b *log(sigmoid(a)) + (1 - b) * log(sigmoid(-a))))
FORMULA(bce_with_logits_backward, a *(sigmoid(b) - c))
FORMULA(huber, fabs(a - b) <= p ? (a - b) * (a - b) / 2 : p * (fabs(a - b) - p / 2))
FORMULA(huber_backward, a *smaller(larger(b - c, -p), p))
FORMULA(kl_div, b == 0 ? 0 : b * (log(b) - a))

#define CASE(name_, operands_, domain_, types_)                                                                        \
    {                                                                                                                  \
        .name = #name_, .kernel = KERNEL(name_), .want = want_##name_, .operands = operands_, .domain = domain_,       \
        .types = types_                                                                                                \
    }
#define CASE_WITH(name_, operands_, domain_, types_, ...)                                                              \
    {                                                                                                                  \
        .name = #name_, .kernel = KERNEL(name_), .want = want_##name_, .operands = operands_, .domain = domain_,       \
        .types = types_, .parameters = {                                                                               \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    }

static const map_case cases[] = {
    CASE(neg, 1, ANY, ALL),
    CASE(abs, 1, ANY, ALL),
    CASE(square, 1, ANY, ALL),
    CASE(sign, 1, ANY, ALL),
    CASE(floor, 1, ANY, FLOATS),
    CASE(ceil, 1, ANY, FLOATS),
    CASE(round, 1, ANY, FLOATS),
    CASE(is_nan, 1, ANY, COMPARES),
    CASE(is_finite, 1, ANY, COMPARES),
    CASE_WITH(clamp, 1, ANY, ALL, -0.5, 1),
    CASE_WITH(clamp, 1, ANY, FLOATS, -INFINITY, 0.5),
    CASE(sqrt, 1, POSITIVE, FLOATS),
    CASE(exp, 1, ANY, FLOATS),
    CASE(log, 1, POSITIVE, FLOATS),
    CASE(log1p, 1, POSITIVE, FLOATS),
    CASE(sin, 1, ANY, FLOATS),
    CASE(cos, 1, ANY, FLOATS),
    CASE(tanh, 1, ANY, FLOATS),
    CASE(erf, 1, ANY, FLOATS),
    CASE(sigmoid, 1, ANY, FLOATS),
    CASE(relu, 1, ANY, FLOATS),
    CASE(gelu, 1, ANY, FLOATS),
    CASE(gelu_tanh, 1, ANY, FLOATS),
    CASE(silu, 1, ANY, FLOATS),
    CASE(softplus, 1, ANY, FLOATS),
    CASE_WITH(leaky_relu, 1, ANY, FLOATS, 0.125),
    CASE_WITH(elu, 1, ANY, FLOATS, 0.75),

    CASE(abs_backward, 2, ANY, FLOATS),
    CASE(square_backward, 2, ANY, FLOATS),
    CASE(log1p_backward, 2, POSITIVE, FLOATS),
    CASE(sin_backward, 2, ANY, FLOATS),
    CASE(cos_backward, 2, ANY, FLOATS),
    CASE(erf_backward, 2, ANY, FLOATS),
    CASE(gelu_backward, 2, ANY, FLOATS),
    CASE(gelu_tanh_backward, 2, ANY, FLOATS),
    CASE(silu_backward, 2, ANY, FLOATS),
    CASE(softplus_backward, 2, ANY, FLOATS),
    CASE_WITH(leaky_relu_backward, 2, ANY, FLOATS, 0.125),
    CASE_WITH(elu_backward, 2, ANY, FLOATS, 0.75),
    CASE_WITH(clamp_backward, 2, ANY, FLOATS, -0.5, 1),
    CASE(sqrt_backward, 2, POSITIVE, FLOATS),
    CASE(tanh_backward, 2, ANY, FLOATS),
    CASE(sigmoid_backward, 2, ANY, FLOATS),
    CASE(relu_backward, 2, ANY, FLOATS),

    CASE(add, 2, ANY, ALL),
    CASE(sub, 2, ANY, ALL),
    CASE(mul, 2, ANY, ALL),
    CASE(div, 2, POSITIVE, FLOATS),
    CASE(pow, 2, POSITIVE, FLOATS),
    CASE(maximum, 2, ANY, ALL),
    CASE(minimum, 2, ANY, ALL),
    CASE(eq, 2, ANY, COMPARES),
    CASE(ne, 2, ANY, COMPARES),
    CASE(lt, 2, ANY, COMPARES),
    CASE(le, 2, ANY, COMPARES),
    CASE(gt, 2, ANY, COMPARES),
    CASE(ge, 2, ANY, COMPARES),
    CASE_WITH(add_number, 1, ANY, NUMBERS, 3),
    CASE_WITH(sub_number, 1, ANY, NUMBERS, 3),
    CASE_WITH(mul_number, 1, ANY, NUMBERS, 3),
    CASE_WITH(div_number, 1, ANY, FLOATS, 3),
    CASE_WITH(pow_number, 1, POSITIVE, FLOATS, 1.5),
    CASE_WITH(pow_number, 1, POSITIVE, FLOATS, 0.5),
    CASE_WITH(pow_number, 1, ANY, FLOATS, 2),
    CASE_WITH(pow_number, 1, ANY, FLOATS, 3),
    CASE_WITH(maximum_number, 1, ANY, NUMBERS, 1),
    CASE_WITH(minimum_number, 1, ANY, NUMBERS, 1),
    CASE_WITH(eq_number, 1, ANY, COMPARES, 1),
    CASE_WITH(ne_number, 1, ANY, COMPARES, 1),
    CASE_WITH(lt_number, 1, ANY, COMPARES, 0.5),
    CASE_WITH(le_number, 1, ANY, COMPARES, 0.5),
    CASE_WITH(gt_number, 1, ANY, COMPARES, 0.5),
    CASE_WITH(ge_number, 1, ANY, COMPARES, -0.5),

    CASE(div_backward_divisor, 3, POSITIVE, FLOATS),
    CASE(pow_backward_base, 3, POSITIVE, FLOATS),
    CASE(pow_backward_exponent, 3, POSITIVE, FLOATS),
    CASE_WITH(pow_number_backward, 2, POSITIVE, FLOATS, 1.5),
    CASE_WITH(pow_number_backward, 2, ANY, FLOATS, 2),
    CASE_WITH(pow_number_backward, 2, ANY, FLOATS, 3),
    CASE(maximum_backward, 3, ANY, FLOATS),
    CASE(minimum_backward, 3, ANY, FLOATS),
    CASE_WITH(maximum_number_backward, 2, ANY, FLOATS, 0.5),
    CASE_WITH(minimum_number_backward, 2, ANY, FLOATS, 0.5),

    CASE(mse, 2, ANY, FLOATS),
    CASE(mse_backward, 3, ANY, FLOATS),
    CASE(l1, 2, ANY, FLOATS),
    CASE(l1_backward, 3, ANY, FLOATS),
    CASE(bce, 2, UNIT, FLOATS),
    CASE(bce_backward, 3, UNIT, FLOATS),
    CASE(bce_with_logits, 2, UNIT, FLOATS),
    CASE(bce_with_logits_backward, 3, UNIT, FLOATS),
    CASE_WITH(huber, 2, ANY, FLOATS, 0.75),
    CASE_WITH(huber_backward, 3, ANY, FLOATS, 0.75),
    CASE(kl_div, 2, UNIT, FLOATS),
};

/* Returns a number that the dtype represents exactly. */
static double random_number(ls_dtype dtype, domain from) {
    if (dtype == LS_BOOL) {
        return (double)array_dice(2);
    }
    if (dtype == LS_U8) {
        return (double)array_dice(16);
    }
    if (!ls_dtype_is_floating(dtype)) {
        return (double)(array_dice(21) - 10);
    }
    if (from == ANY) { /* half of the numbers are multiples of 0.5, for ties */
        const double half = (double)(array_dice(9) - 4) / 2;
        return array_dice(2) == 0 ? half : (double)(array_dice(1 << 20) - (1 << 19)) / (1 << 17);
    }
    const double unit = (double)(1 + array_dice(4094)) / 4096;
    return from == UNIT ? unit : 4 * unit;
}

static array random_operand(ls_dtype dtype, domain from, int ndim, const int64_t *size) {
    array made = array_new(dtype, ndim, size, (array_layout)array_dice(ARRAY_LAYOUTS));
    for (int64_t i = 0; i < made.tensor.count; i++) {
        array_set(&made.tensor, i, random_number(dtype, from));
    }
    return made;
}

/* Returns the formula's result, rounded to the dtype. */
static double wanted(const map_case *c, ls_dtype dtype, const array *operand, const ls_tensor *y, int64_t i) {
    double x[3] = {0};
    for (int k = 0; k < c->operands; k++) {
        x[k] = array_get(&operand[k].tensor, y, i);
    }
    double value = c->want(x[0], x[1], x[2], c->parameters[0], c->parameters[1]);
    if (dtype == LS_BOOL) {
        return value != 0;
    }
    if (dtype == LS_U8 || dtype == LS_I32 || dtype == LS_I64) {
        value = trunc(value);
        return dtype == LS_U8 ? value - 256 * floor(value / 256) : value;
    }
    return value;
}

/* With in_place, the first operand is y. */
static void check_case(const map_case *c, ls_dtype dtype, bool in_place) {
    int64_t size[LS_MAX_DIMS];
    const int ndim = array_random_shape(size);
    const ls_dtype result = c->types == COMPARES ? LS_BOOL : dtype;
    array y = array_new(result, ndim, size, (array_layout)array_dice(ARRAY_LAYOUTS));
    array operand[3];
    const ls_tensor *operands[3];
    for (int k = 0; k < c->operands; k++) {
        int64_t part[LS_MAX_DIMS];
        const int part_ndim = k == 0 && in_place ? -1 : array_random_part(ndim, size, part);
        operand[k] = part_ndim < 0 ? random_operand(dtype, c->domain, ndim, size)
                                   : random_operand(dtype, c->domain, part_ndim, part);
        operands[k] = &operand[k].tensor;
    }
    double *const want = calloc((size_t)y.tensor.count + 1, sizeof *want);
    for (int64_t i = 0; i < y.tensor.count; i++) {
        want[i] = wanted(c, result, operand, &y.tensor, i);
    }
    ls_tensor *const to = in_place ? &operand[0].tensor : &y.tensor;
    assert_int_equal(KERNEL_AT(map, c->kernel)(NULL, to, operands, c->parameters), LS_OK);
    for (int64_t i = 0; i < to->count; i++) {
        array_expect(c->name, array_get(to, to, i), want[i], dtype == LS_F32 ? 3e-6 : 2e-14);
    }
    free(want);
    array_free(&y);
    for (int k = 0; k < c->operands; k++) {
        array_free(&operand[k]);
    }
}

TEST(test_maps_follow_their_formulas) {
    static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_I64, LS_I32, LS_U8, LS_BOOL};
    static const int counts[] = {[FLOATS] = 2, [NUMBERS] = 5, [ALL] = 6, [COMPARES] = 6};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int d = 0; d < counts[cases[i].types]; d++) {
            for (int turn = 0; turn < 40; turn++) {
                check_case(&cases[i], dtypes[d], turn % 4 == 0 && cases[i].types != COMPARES);
            }
        }
    }
}

TEST(test_where_chooses) {
    static const ls_dtype dtypes[] = {LS_F32, LS_F64, LS_I64, LS_I32, LS_U8, LS_BOOL};
    for (int turn = 0; turn < 300; turn++) {
        const ls_dtype dtype = dtypes[turn % 6];
        int64_t size[LS_MAX_DIMS];
        int64_t part[3][LS_MAX_DIMS];
        int part_ndim[3];
        const int ndim = array_random_shape(size);
        for (int k = 0; k < 3; k++) {
            part_ndim[k] = array_random_part(ndim, size, part[k]);
        }
        array y = array_new(dtype, ndim, size, (array_layout)array_dice(ARRAY_LAYOUTS));
        array condition = random_operand(turn % 2 == 0 ? LS_BOOL : LS_U8, ANY, part_ndim[0], part[0]);
        array a = random_operand(dtype, ANY, part_ndim[1], part[1]);
        array b = random_operand(dtype, ANY, part_ndim[2], part[2]);
        const ls_tensor *operands[] = {&condition.tensor, &a.tensor, &b.tensor};
        assert_int_equal(kernels()->where(NULL, &y.tensor, operands, NULL), LS_OK);
        for (int64_t i = 0; i < y.tensor.count; i++) {
            const array *const chosen = array_get(&condition.tensor, &y.tensor, i) != 0 ? &a : &b;
            array_expect("where", array_get(&y.tensor, &y.tensor, i), array_get(&chosen->tensor, &y.tensor, i), 0);
        }
        array_free(&y);
        array_free(&condition);
        array_free(&a);
        array_free(&b);
    }
}

/* Checks a kernel on one number, as f32 and as f64. */
static void expect_of(const char *what, size_t kernel, double a, double b, double c, double parameter, double want) {
    const ls_dtype dtypes[] = {LS_F32, LS_F64};
    for (int d = 0; d < 2; d++) {
        array x[3];
        const double numbers[] = {a, b, c};
        const ls_tensor *operands[3];
        for (int k = 0; k < 3; k++) {
            x[k] = array_new(dtypes[d], 0, NULL, ARRAY_DENSE);
            array_set(&x[k].tensor, 0, numbers[k]);
            operands[k] = &x[k].tensor;
        }
        array y = array_new(dtypes[d], 0, NULL, ARRAY_DENSE);
        assert_int_equal(KERNEL_AT(map, kernel)(NULL, &y.tensor, operands, (const double[]){parameter, INFINITY}),
                         LS_OK);
        array_expect(what, array_get(&y.tensor, &y.tensor, 0), want, 1e-6);
        array_free(&y);
        for (int k = 0; k < 3; k++) {
            array_free(&x[k]);
        }
    }
}

TEST(test_edges_of_one_operand) {
    expect_of("relu of NaN", KERNEL(relu), NAN, 0, 0, 0, NAN);
    expect_of("relu of inf", KERNEL(relu), INFINITY, 0, 0, 0, INFINITY);
    expect_of("relu of -inf", KERNEL(relu), -INFINITY, 0, 0, 0, 0);
    expect_of("leaky_relu of NaN", KERNEL(leaky_relu), NAN, 0, 0, 0.5, NAN);
    expect_of("elu of -inf", KERNEL(elu), -INFINITY, 0, 0, 2, -2);
    expect_of("clamp of NaN", KERNEL(clamp), NAN, 0, 0, 0, NAN);
    expect_of("sigmoid far right", KERNEL(sigmoid), 1000, 0, 0, 0, 1);
    expect_of("sigmoid far left", KERNEL(sigmoid), -1000, 0, 0, 0, 0);
    expect_of("sigmoid of NaN", KERNEL(sigmoid), NAN, 0, 0, 0, NAN);
    expect_of("silu far left", KERNEL(silu), -1000, 0, 0, 0, 0);
    expect_of("silu far right", KERNEL(silu), 1000, 0, 0, 0, 1000);
    expect_of("softplus far right", KERNEL(softplus), 1000, 0, 0, 0, 1000);
    expect_of("softplus far left", KERNEL(softplus), -1000, 0, 0, 0, 0);
    expect_of("softplus of NaN", KERNEL(softplus), NAN, 0, 0, 0, NAN);
    expect_of("gelu far left", KERNEL(gelu), -100, 0, 0, 0, 0);
    expect_of("gelu_tanh far left", KERNEL(gelu_tanh), -1e30, 0, 0, 0, 0);
    expect_of("gelu_tanh_backward far left", KERNEL(gelu_tanh_backward), 1, -1e30, 0, 0, 0);
    expect_of("gelu_tanh_backward far right", KERNEL(gelu_tanh_backward), 1, 1e30, 0, 0, 1);
    expect_of("gelu_tanh_backward of NaN", KERNEL(gelu_tanh_backward), 1, NAN, 0, 0, NAN);
    expect_of("abs of -0", KERNEL(abs), -0.0, 0, 0, 0, 0);
    expect_of("sqrt of -1", KERNEL(sqrt), -1, 0, 0, 0, NAN);
    expect_of("log of 0", KERNEL(log), 0, 0, 0, 0, -INFINITY);
    expect_of("0 to the 0", KERNEL(pow_number), 0, 0, 0, 0, 1);
}

/* The tail of sigmoid keeps its precision in the whole range of f32. */
TEST(test_sigmoid_keeps_its_tail) {
    float x = -87;
    float y = 0;
    const ls_tensor from = {.data = &x, .count = 1, .contiguous = true};
    ls_tensor to = {.data = &y, .count = 1, .contiguous = true};
    assert_int_equal(kernels()->sigmoid(NULL, &to, (const ls_tensor *const[]){&from}, NULL), LS_OK);
    assert_true(fabs((double)y / exp(-87.0) - 1) < 1e-5);
}

TEST(test_edges_of_more_operands) {
    expect_of("maximum of NaN and 1", KERNEL(maximum), NAN, 1, 0, 0, NAN);
    expect_of("maximum of 1 and NaN", KERNEL(maximum), 1, NAN, 0, 0, NAN);
    expect_of("minimum of NaN and 1", KERNEL(minimum), NAN, 1, 0, 0, NAN);
    expect_of("minimum of 1 and NaN", KERNEL(minimum), 1, NAN, 0, 0, NAN);
    expect_of("maximum of infinities", KERNEL(maximum), -INFINITY, INFINITY, 0, 0, INFINITY);
    expect_of("maximum_number of NaN", KERNEL(maximum_number), NAN, 0, 0, 2, NAN);
    expect_of("pow gradient, base 0, exponent 0", KERNEL(pow_backward_base), 3, 0, 0, 0, 0);
    expect_of("pow gradient for the exponent, base 0", KERNEL(pow_backward_exponent), 3, 0, 2, 0, 0);
    expect_of("pow gradient, number 0", KERNEL(pow_number_backward), 3, 0, 0, 0, 0);
    expect_of("abs gradient at 0", KERNEL(abs_backward), 3, 0, 0, 0, 0);
    expect_of("relu gradient at 0", KERNEL(relu_backward), 3, 0, 0, 0, 0);
    expect_of("relu gradient at NaN", KERNEL(relu_backward), 3, NAN, 0, 0, 3);
    expect_of("silu gradient far left", KERNEL(silu_backward), 3, -1000, 0, 0, 0);
    expect_of("elu gradient far left", KERNEL(elu_backward), 3, -1000, 0, 1, 0);
    expect_of("bce at p 0, target 1", KERNEL(bce), 0, 1, 0, 0, 100);
    expect_of("bce at p 1, target 1", KERNEL(bce), 1, 1, 0, 0, 0);
    expect_of("bce gradient at p 0, target 0", KERNEL(bce_backward), 3, 0, 0, 0, 0);
    expect_of("bce_with_logits far right", KERNEL(bce_with_logits), 1000, 0, 0, 0, 1000);
    expect_of("bce_with_logits far left", KERNEL(bce_with_logits), -1000, 0, 0, 0, 0);
    expect_of("kl_div at target 0", KERNEL(kl_div), -INFINITY, 0, 0, 0, 0);
}

TEST(test_integers_wrap_around_and_hold) {
    int64_t x = INT64_MAX;
    int64_t y = 0;
    bool answer = false;
    const ls_tensor from = {.data = &x, .count = 1, .contiguous = true, .dtype = LS_I64};
    ls_tensor to = {.data = &y, .count = 1, .contiguous = true, .dtype = LS_I64};
    ls_tensor told = {.data = &answer, .count = 1, .contiguous = true, .dtype = LS_BOOL};
    const ls_tensor *const one[] = {&from};
    assert_int_equal(kernels()->add_number(NULL, &to, one, &(double){1}), LS_OK);
    assert_true(y == INT64_MIN);
    assert_int_equal(kernels()->clamp(NULL, &to, one, (const double[]){-INFINITY, INFINITY}), LS_OK);
    assert_true(y == INT64_MAX);
    assert_int_equal(kernels()->lt_number(NULL, &told, one, &(double){0x1p63}), LS_OK);
    assert_true(answer); /* as doubles, the two would be equal */
    x = INT64_MIN;
    assert_int_equal(kernels()->neg(NULL, &to, one, NULL), LS_OK);
    assert_true(y == INT64_MIN);
    assert_int_equal(kernels()->abs(NULL, &to, one, NULL), LS_OK);
    assert_true(y == INT64_MIN);
}

TEST(test_a_dtype_without_kernel_is_named) {
    array x = array_new(LS_I32, 1, (const int64_t[]){3}, ARRAY_DENSE);
    const ls_tensor *const operands[] = {&x.tensor};
    assert_int_equal(kernels()->exp(NULL, &x.tensor, operands, NULL), LS_ERR_UNSUPPORTED);
    expect_message("has no kernel for i32");
    x.tensor.dtype = LS_BF16;
    assert_int_equal(kernels()->neg(NULL, &x.tensor, operands, NULL), LS_ERR_UNSUPPORTED);
    expect_message("has no kernel for bf16");
    array_free(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maps_follow_their_formulas),
        cmocka_unit_test(test_where_chooses),
        cmocka_unit_test(test_edges_of_one_operand),
        cmocka_unit_test(test_sigmoid_keeps_its_tail),
        cmocka_unit_test(test_edges_of_more_operands),
        cmocka_unit_test(test_integers_wrap_around_and_hold),
        cmocka_unit_test(test_a_dtype_without_kernel_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
