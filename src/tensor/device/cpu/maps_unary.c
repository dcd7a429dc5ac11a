/* Maps of one operand, or of one and parameters. */
#include "tensor/device/cpu/map.h"

LS_MAP1_ANY(neg, LS_NONE, x, -(U)x)
LS_MAP1_ANY(abs, LS_NONE, x, (x > 0 ? (U)x : -(U)x) + 0) /* + 0 turns -0 into 0 */
LS_MAP1_ANY(square, LS_NONE, x, ((U)x * (U)x))
/* Where low > high, high wins; a bound that is NaN makes all NaN; no branches, so that loops vectorise. */
#define AT_LEAST(x, low) ((((x) < (low)) | ((low) != (low))) ? (low) : (x))
#define AT_MOST(x, high) ((((x) > (high)) | ((high) != (high))) ? (high) : (x))
LS_MAP1_ANY(clamp, LS_TAKE2(low, high), x, AT_MOST(AT_LEAST(x, low), high))

/* Negative is what is not 0, not above 0 and not NaN: u8 has no "x < 0" to compare. */
LS_MAP1_ANY(sign, LS_NONE, x, (x > 0) - ((x != 0) & !(x > 0) & (x == x)))

LS_MAP1(floor, LS_NONE, x, floor(x))
LS_MAP1(ceil, LS_NONE, x, ceil(x))
LS_MAP1(round, LS_NONE, x, rint(x))
LS_MAP1(sqrt, LS_NONE, x, sqrt(x))
LS_MAP1_F64_CALLS(exp, LS_NONE, x, LS_EXP(x))
LS_MAP1_CALLS(log, LS_NONE, x, log(x))
LS_MAP1_CALLS(log1p, LS_NONE, x, log1p(x))
LS_MAP1_CALLS(sin, LS_NONE, x, sin(x))
LS_MAP1_CALLS(cos, LS_NONE, x, cos(x))
LS_MAP1_F64_CALLS(tanh, LS_NONE, x, LS_TANH(x))
LS_MAP1_CALLS(erf, LS_NONE, x, erf(x))

LS_MAP1(relu, LS_NONE, x, x <= 0 ? 0 : x) /* NaN is not <= 0 and stays */
LS_MAP1(leaky_relu, LS_TAKE(slope), x, x > 0 ? x : slope * x)
LS_MAP1_CALLS(elu, LS_TAKE(alpha), x, x > 0 ? x : alpha * expm1(x))
LS_MAP1_F64_CALLS(sigmoid, LS_NONE, x, LS_SIGMOID(x))
LS_MAP1_F64_CALLS(silu, LS_NONE, x, (x * LS_SIGMOID(x)))
LS_MAP1_CALLS(softplus, LS_NONE, x, (x <= 0 ? 0 : x) + log1p(exp(-fabs(x))))
LS_MAP1_F64_CALLS(gelu, LS_NONE, x, (x * LS_NORMAL(x)))
