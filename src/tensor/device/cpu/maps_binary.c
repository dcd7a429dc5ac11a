/* Maps of two operands, or of one and a number. */
#include "tensor/device/cpu/map.h"

/* NaN wins. No branches, so that loops vectorise. */
#define MAXIMUM(a, b) ((((a) > (b)) | ((a) != (a))) ? (a) : (b))
#define MINIMUM(a, b) ((((a) < (b)) | ((a) != (a))) ? (a) : (b))

LS_MAP2_ANY(add, LS_NONE, a, b, (U)a + (U)b)
LS_MAP2_ANY(sub, LS_NONE, a, b, (U)a - (U)b)
LS_MAP2_ANY(mul, LS_NONE, a, b, ((U)a * (U)b))
LS_MAP2(div, LS_NONE, a, b, a / b)
LS_MAP2_CALLS(pow, LS_NONE, a, b, pow(a, b))
LS_MAP2_ANY(maximum, LS_NONE, a, b, MAXIMUM(a, b))
LS_MAP2_ANY(minimum, LS_NONE, a, b, MINIMUM(a, b))

LS_MAP1_ANY(add_number, LS_TAKE(b), a, (U)a + (U)b)
LS_MAP1_ANY(sub_number, LS_TAKE(b), a, (U)a - (U)b)
LS_MAP1_ANY(mul_number, LS_TAKE(b), a, ((U)a * (U)b))
LS_MAP1(div_number, LS_TAKE(b), a, a / b)

static ls_cpu_map ls_cpu_cube, ls_cpu_power;
LS_MAP1(cube, LS_NONE, a, (a * a * a))
LS_MAP1_CALLS(power, LS_TAKE(b), a, pow(a, b))

ls_status ls_cpu_pow_number(ls_stream *stream, ls_tensor *y, const ls_tensor *const *operands,
                            const double *parameters) {
    const double exponent = parameters[0];
    ls_cpu_map *const kernel = exponent == 2     ? ls_cpu_square
                               : exponent == 3   ? ls_cpu_cube
                               : exponent == 0.5 ? ls_cpu_sqrt
                                                 : ls_cpu_power;
    return kernel(stream, y, operands, parameters);
}

LS_MAP1_ANY(maximum_number, LS_TAKE(b), a, MAXIMUM(a, b))
LS_MAP1_ANY(minimum_number, LS_TAKE(b), a, MINIMUM(a, b))
