/* Losses element by element of x (or p, a probability) and a target t, and their gradients for x. */
#include "tensor/device/cpu/map.h"

#define HELD(log_of) ((log_of) < -100 ? -100 : (log_of))

LS_MAP2(mse, LS_NONE, x, t, (x - t) * (x - t))
LS_MAP3(mse_backward, LS_NONE, g, x, t, 2 * g * (x - t))
LS_MAP2(l1, LS_NONE, x, t, fabs(x - t))
LS_MAP3(l1_backward, LS_NONE, g, x, t, (g * LS_SIGN(x - t)))

LS_MAP2(huber, LS_TAKE(delta), x, t, fabs(x - t) <= delta ? (x - t) * (x - t) / 2 : delta * (fabs(x - t) - delta / 2))
LS_MAP3(huber_backward, LS_TAKE(delta), g, x, t, (g * (x - t < -delta ? -delta : x - t > delta ? delta : x - t)))

LS_MAP2_CALLS(bce, LS_NONE, p, t, -((t * HELD(log(p))) + (1 - t) * HELD(log1p(-p))))
LS_MAP3(bce_backward, LS_NONE, g, p, t, (g * (p - t) / (p * (1 - p) < (T)1e-12 ? (T)1e-12 : p * (1 - p))))
LS_MAP2_CALLS(bce_with_logits, LS_NONE, x, t, (x <= 0 ? 0 : x) - x * t + log1p(exp(-fabs(x))))
LS_MAP3_F64_CALLS(bce_with_logits_backward, LS_NONE, g, x, t, (g * (LS_SIGMOID(x) - t)))

LS_MAP2_CALLS(kl_div, LS_NONE, log_probability, t, t == 0 ? 0 : t * (log(t) - log_probability))
