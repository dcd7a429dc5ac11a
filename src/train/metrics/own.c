/* Metrics of the user's own. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "train/metrics/metric.h"

/* What the user's function fails with, in a sentence even where it gave none. */
static ls_status explain(const ls_measure *measure, ls_status status, uint32_t errors) {
    return status == LS_OK || ls_error_count != errors ? status
                                                       : ls_fail(status, "ls_trial: the metric \"%s\" failed with %s",
                                                                 measure->rule->name, ls_status_name(status));
}

/* ---- one number with its weight ---------------------------------------------------------------------------------- */

static ls_status mean(const ls_measure *measure, ls_batch_numbers *batch) {
    const ls_metric *metric = measure->rule;
    const uint32_t errors = ls_error_count;
    return explain(measure, metric->own.mean(batch->state, metric->user, &batch->sum, &batch->weight), errors);
}

static const ls_metric_kind one_number = {.name = "own", .aggregate = &ls_aggregate_mean, .mean = mean};

/* ---- several numbers and a formula ------------------------------------------------------------------------------- */

static ls_status add(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    const ls_metric *metric = measure->rule;
    const uint32_t errors = ls_error_count;
    return batch->state->count > 0
               ? explain(measure, metric->own.update(batch->state, metric->user, numbers->items), errors)
               : LS_OK;
}

static double value(const ls_measure *measure, double *numbers, size_t count) {
    const ls_metric *metric = measure->rule;
    (void)count;
    return metric->own.result(numbers, metric->user);
}

static const ls_aggregate by_formula = {.add = add, .value = value};
static const ls_metric_kind several_numbers = {.name = "own", .aggregate = &by_formula};

/* ---- the constructor --------------------------------------------------------------------------------------------- */

static const char *const maker = "ls_metric_new";

static ls_status check(const ls_metric_functions *own) {
    if (own == NULL || own->name == NULL || (own->mean == NULL && own->update == NULL)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: a metric needs a name, and mean or update", maker);
    }
    const bool one = own->mean != NULL && own->update == NULL && own->result == NULL && own->width == 0;
    const bool several = own->mean == NULL && own->update != NULL && own->result != NULL && own->width > 0;
    if (strlen(own->name) > LS_METRIC_NAME_LIMIT / 2) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the metric's name \"%s\" is longer than %d bytes", maker, own->name,
                       LS_METRIC_NAME_LIMIT / 2);
    }
    if (!ls_text_is_utf8(own->name)) { /* like the names of files */
        return ls_fail(LS_ERR_ARGUMENT, "%s: the metric's name \"%s\" is not UTF-8", maker, own->name);
    }
    return one || several ? LS_OK
                          : ls_fail(LS_ERR_ARGUMENT,
                                    "%s: the metric \"%s\" (width %d) needs mean alone, or update, result and a width "
                                    "of 1 or more",
                                    maker, own->name, own->width);
}

ls_metric *ls_metric_new(const ls_metric_functions *functions, void *user) {
    ls_metric *metric = NULL;
    if (check(functions) == LS_OK) {
        metric = ls_metric_make(functions->mean != NULL ? &one_number : &several_numbers);
    }
    if (metric == NULL) {
        if (functions != NULL && functions->release != NULL) {
            functions->release(user);
        }
        return NULL;
    }
    metric->width = functions->mean != NULL ? metric->width : functions->width;
    metric->own = *functions;
    metric->user = user;
    snprintf(metric->name, sizeof metric->name, "%s", functions->name);
    metric->own.name = NULL;
    return metric;
}
