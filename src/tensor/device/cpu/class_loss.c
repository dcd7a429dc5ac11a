/*
 * Losses of log-probabilities for class indices. With label smoothing s over C classes and class weights w, a row with
 * target t has the loss sum over c of q[c] * -log_probability[c]. Here q[c] = w[c] s / C, plus (1 - s) w[t] at c = t.
 * Ignored rows have q = 0.
 */
#include "tensor/device/cpu/exponential.h"
#include "tensor/device/cpu/floating.h"

#include <math.h>
#include <string.h>

static bool is_ignored(const ls_class_loss *loss, int64_t target) {
    return loss->ignore && target == loss->ignore_index;
}

/* Rejects targets outside [0, classes) before they are used as indices. */
static ls_status check_targets(const ls_class_loss *loss, int64_t rows, int64_t classes) {
    const int64_t *target = loss->target->data;
    for (int64_t i = 0; i < rows; i++) {
        if (!is_ignored(loss, target[i]) && (target[i] < 0 || target[i] >= classes)) {
            return ls_fail(LS_ERR_ARGUMENT, LS_TARGET_MESSAGE, (long long)i, (long long)target[i], (long long)classes);
        }
    }
    return LS_OK;
}

#define REAL     float
#define FN(name) name##_f32
#define EXP      ls_exp_f32
#include "tensor/device/cpu/class_loss.inc"

#define REAL     double
#define FN(name) name##_f64
#define EXP      exp
#include "tensor/device/cpu/class_loss.inc"

ls_status ls_cpu_nll(ls_stream *stream, ls_tensor *element, ls_tensor *row_weight, const ls_tensor *log_probability,
                     const ls_class_loss *loss) {
    (void)stream;
    const int64_t rows = log_probability->size[0];
    const int64_t classes = log_probability->size[1];
    LS_TRY(check_targets(loss, rows, classes));
    return LS_FLOATING(log_probability->dtype, nll, rows, classes, element->data, row_weight->data,
                       log_probability->data, loss);
}

/* Computes the gradient of the log-probabilities or of the logits. Only the gradient of the logits reads the
 * log-probabilities. */
static ls_status class_loss_backward(ls_tensor *dx, const ls_tensor *g, double scale, const ls_tensor *log_probability,
                                     const ls_class_loss *loss, bool logits) {
    const int64_t rows = log_probability->size[0];
    const int64_t classes = log_probability->size[1];
    LS_TRY(check_targets(loss, rows, classes));
    return LS_FLOATING(log_probability->dtype, class_gradient, rows, classes, dx->data, g->data, g->count == 1 ? 0 : 1,
                       scale, logits ? log_probability->data : NULL, loss);
}

ls_status ls_cpu_nll_backward(ls_stream *stream, ls_tensor *d_log_probability, const ls_tensor *g, double scale,
                              const ls_tensor *log_probability, const ls_class_loss *loss) {
    (void)stream;
    return class_loss_backward(d_log_probability, g, scale, log_probability, loss, false);
}

ls_status ls_cpu_cross_entropy_backward(ls_stream *stream, ls_tensor *d_logits, const ls_tensor *g, double scale,
                                        const ls_tensor *log_probability, const ls_class_loss *loss) {
    (void)stream;
    return class_loss_backward(d_logits, g, scale, log_probability, loss, true);
}
