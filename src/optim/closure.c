/* Steps with a closure, which evaluates the loss. */
#include <math.h>

#include "base/trace.h"
#include "optim/optimizer.h"
#include "tensor/capture.h"
#include "tensor/scope.h"

ls_status ls_optimizer_evaluate(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    ls_optimizer_zero_grad(optimizer);
    optimizer->last_step.evaluations++;
    (void)ls_no_grad(false);
    const ls_status status = closure(user, loss);
    const ls_status noted = ls_scope_end(scope);
    return status != LS_OK ? status : noted;
}

/* Makes a step of an optimizer that calls the closure itself. The step has a span in the trace. */
static ls_status step_traced(ls_optimizer *optimizer, ls_closure closure, void *user, double *first) {
    const uint64_t began = ls_trace_now();
    const ls_status status = optimizer->type->step_closure(optimizer, closure, user, first);
    ls_trace_add(LS_TRACE_TRAINING, began, -1, "optimizer step");
    return status;
}

static ls_status evaluate_and_step(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss) {
    LS_TRY(ls_optimizer_evaluate(optimizer, closure, user, loss));
    if (!isfinite(*loss)) {
        return ls_fail(LS_ERR_STATE, "ls_optimizer_step_closure: the loss is %g: the parameters are unchanged", *loss);
    }
    LS_TRY(ls_optimizer_step(optimizer));
    optimizer->last_step.reason = LS_STOP_ONE_STEP;
    optimizer->last_step.iterations = 1;
    return LS_OK;
}

static ls_status check_and_step(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss) {
    /* With .comm, a failure on one rank alone would leave the other ranks waiting. */
    if (optimizer->comm == NULL) {
        LS_TRY(ls_optimizer_check_groups("ls_optimizer_step_closure", optimizer));
    }
    ls_optimizer_begin_step(optimizer);
    return optimizer->type->step_closure != NULL ? step_traced(optimizer, closure, user, loss)
                                                 : evaluate_and_step(optimizer, closure, user, loss);
}

ls_status ls_optimizer_step_closure(ls_optimizer *optimizer, ls_closure closure, void *user, double *loss) {
    ls_capture_refuse_here("ls_optimizer_step_closure", LS_CAPTURE_STATE);
    if (optimizer == NULL) {
        return ls_fail_missing("ls_optimizer_step_closure: the optimizer");
    }
    if (closure == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_optimizer_step_closure: the closure is NULL");
    }
    LS_TRY(ls_optimizer_check_here("ls_optimizer_step_closure", optimizer));
    double value = NAN;
    double *first = loss != NULL ? loss : &value;
    optimizer->last_step = (ls_step_info){.reason = LS_STOP_NONE};
    const ls_status status = check_and_step(optimizer, closure, user, first);
    if (status != LS_OK) {
        optimizer->last_step.reason = LS_STOP_FAILED;
    }
    return status;
}

ls_step_info ls_optimizer_last_step(const ls_optimizer *optimizer) {
    const bool here = optimizer != NULL && ls_optimizer_check_here("ls_optimizer_last_step", optimizer) == LS_OK;
    return here ? optimizer->last_step : (ls_step_info){.reason = LS_STOP_NONE};
}

const char *ls_stop_reason_name(ls_stop_reason reason) {
    static const char *const names[] = {
        [LS_STOP_NONE] = "no step yet",
        [LS_STOP_FAILED] = "an error",
        [LS_STOP_ONE_STEP] = "one step per call",
        [LS_STOP_GRADIENT] = "gradient within tolerance_gradient",
        [LS_STOP_CHANGE] = "change within tolerance_change",
        [LS_STOP_DIRECTION] = "no descent along the direction",
        [LS_STOP_ITERATIONS] = "max_iterations reached",
        [LS_STOP_EVALUATIONS] = "max_evaluations reached",
    };
    const size_t index = (size_t)reason;
    return index < sizeof names / sizeof *names ? names[index] : "unknown";
}
