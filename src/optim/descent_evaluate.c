/* Evaluates the loss for a descent. Ranks that hold shards of the parameters agree on the results. */
#include <math.h>
#include <stdio.h>

#include "nn/module.h"
#include "optim/descent.h"

/*
 * After a failure, this rank's calls do not match the calls in the other ranks' closures. A closure makes fewer calls
 * than this limit.
 */
enum { UNMATCHED_CALLS = 1000 };

/* Values whose maximum the ranks compute. The first rank that failed has the largest -order. */
enum { LOSS, MINUS_LOSS, MINUS_ORDER, COMPARED };

/* Orders ranks: first ranks that failed on their own, then ranks that failed because another rank failed, then all
 * others. */
static int order_of(const ls_comm *comm, ls_status status) {
    const int size = ls_comm_size(comm), rank = ls_comm_rank(comm);
    return status == LS_OK ? 2 * size : status != LS_ERR_MISMATCH ? rank : size + rank;
}

/*
 * Exchanges this rank's values. A failed rank repeats the call until the closures of the other ranks, which may be
 * waiting for it in other calls, have ended.
 */
static ls_status exchange(ls_comm *comm, ls_status status, const double *own, double *all) {
    ls_status exchanged = ls_comm_allreduce(comm, own, all, COMPARED, LS_F64, LS_MAX, NULL);
    for (int i = 0; status != LS_OK && exchanged == LS_ERR_MISMATCH && i < UNMATCHED_CALLS; i++) {
        exchanged = ls_comm_allreduce(comm, own, all, COMPARED, LS_F64, LS_MAX, NULL);
    }
    return exchanged;
}

static void set_losses(double own[COMPARED], bool finite, double loss) {
    own[LOSS] = finite ? loss : INFINITY;
    own[MINUS_LOSS] = finite ? -loss : INFINITY;
}

/* Sets the loss to NaN if it is not finite on a rank. Fails if the losses differ; `ranks` and `remedy` are for the
 * message. */
static ls_status compare_losses(const char *method, const double *all, double *loss, const char *ranks,
                                const char *remedy) {
    if (!isfinite(all[LOSS])) {
        *loss = NAN;
        return LS_OK;
    }
    if (all[LOSS] != -all[MINUS_LOSS]) {
        return ls_fail(LS_ERR_MISMATCH,
                       "%s: the closure's loss must be equal on all ranks of %s, but is %.9g on this rank, and from "
                       "%.9g to %.9g on all ranks: %s (ls_allreduce)",
                       method, ranks, *loss, -all[MINUS_LOSS], all[LOSS], remedy);
    }
    return LS_OK;
}

/*
 * Replicas of a data-parallel model stay equal only if their losses are equal. If the closure fails on one rank, this
 * rank must not communicate: the other ranks may wait for it in a call of the model.
 */
static ls_status compare_replicas(const ls_optimizer *optimizer, double *loss) {
    const ls_module *model = optimizer->model;
    const char *method = optimizer->type->name;
    ls_comm *comm = model != NULL && model->averaged_over != NULL ? model->averaged_over(model) : NULL;
    if (comm == NULL) {
        return LS_OK;
    }
    double own[COMPARED] = {0}, all[COMPARED] = {0};
    set_losses(own, isfinite(*loss), *loss);
    const ls_status exchanged = exchange(comm, LS_OK, own, all);
    if (exchanged != LS_OK) {
        ls_saved_error cause;
        ls_error_save(&cause);
        return ls_fail(exchanged, "%s: the ranks cannot compare their losses; maybe the closure failed on one rank: %s",
                       method, cause.message);
    }
    return compare_losses(method, all, loss, "the data-parallel model",
                          "return the mean loss over the samples of these ranks");
}

ls_status ls_descent_agree(const ls_optimizer *optimizer, ls_status status, double *loss) {
    ls_comm *comm = optimizer->comm;
    if (comm == NULL) {
        return status == LS_OK ? compare_replicas(optimizer, loss) : status;
    }
    char message[LS_ERROR_CAPACITY];
    snprintf(message, sizeof message, "%s", status != LS_OK ? ls_error_message() : "");
    const int size = ls_comm_size(comm), order = order_of(comm, status);
    double own[COMPARED] = {[MINUS_ORDER] = -order}, all[COMPARED] = {0};
    set_losses(own, status == LS_OK && isfinite(*loss), *loss);
    const ls_status exchanged = exchange(comm, status, own, all);
    const int first = (int)-all[MINUS_ORDER];
    if (status != LS_OK && (exchanged != LS_OK || order < size || order == first)) {
        ls_error_restore(status, message);
        return status;
    }
    LS_TRY(exchanged);
    if (first < 2 * size) {
        return ls_fail(LS_ERR_MISMATCH, "%s: the step failed on rank %d of .comm; the error on that rank says why",
                       optimizer->type->name, first % size);
    }
    LS_TRY(compare_losses(optimizer->type->name, all, loss, ".comm", "sum the loss over these ranks"));
    return compare_replicas(optimizer, loss);
}

static ls_status evaluate_part(ls_descent *descent, void *gradient, double *loss) {
    LS_TRY(ls_optimizer_evaluate(descent->optimizer, descent->closure, descent->user, loss));
    LS_TRY(ls_group_check_place(descent->optimizer, descent->group));
    return ls_descent_gather_gradient(descent, gradient);
}

ls_status ls_descent_evaluate(ls_descent *descent, void *gradient, double *loss) {
    return ls_descent_agree(descent->optimizer, evaluate_part(descent, gradient, loss), loss);
}
