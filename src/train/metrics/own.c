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
    const ls_metric *own = &measure->rule->own;
    const uint32_t errors = ls_error_count;
    return explain(measure, own->measure(batch->state, own->user, &batch->sum, &batch->weight), errors);
}

static const ls_metric_kind one_number = {.name = "own", .aggregate = &ls_aggregate_mean, .mean = mean};

/* ---- several numbers and a formula ------------------------------------------------------------------------------- */

static ls_status add(const ls_measure *measure, ls_numbers *numbers, const ls_batch_numbers *batch) {
    const ls_metric *own = &measure->rule->own;
    const uint32_t errors = ls_error_count;
    return batch->state->count > 0 ? explain(measure, own->add(batch->state, own->user, numbers->items), errors)
                                   : LS_OK;
}

static double value(const ls_measure *measure, double *numbers, size_t count) {
    const ls_metric *own = &measure->rule->own;
    (void)count;
    return own->result(numbers, own->user);
}

static const ls_aggregate by_formula = {.add = add, .value = value};
static const ls_metric_kind several_numbers = {.name = "own", .aggregate = &by_formula};

/* ------------------------------------------------------------------------------------------------------------------ */

static ls_status check(const char *call, const ls_metric *metric) {
    if (metric->name == NULL || (metric->measure == NULL && metric->add == NULL)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: a metric has no name or no function", call);
    }
    const bool one = metric->measure != NULL && metric->add == NULL && metric->result == NULL && metric->width == 0;
    const bool several = metric->measure == NULL && metric->add != NULL && metric->result != NULL && metric->width > 0;
    if (strlen(metric->name) > LS_METRIC_NAME_LIMIT / 2) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the metric's name \"%s\" is longer than %d bytes", call, metric->name,
                       LS_METRIC_NAME_LIMIT / 2);
    }
    if (!ls_text_is_utf8(metric->name)) { /* as files have names */
        return ls_fail(LS_ERR_ARGUMENT, "%s: the metric's name \"%s\" is not UTF-8", call, metric->name);
    }
    return one || several ? LS_OK
                          : ls_fail(LS_ERR_ARGUMENT,
                                    "%s: the metric \"%s\" (width %d) has either measure alone, or add, "
                                    "result and a width of 1 or more",
                                    call, metric->name, metric->width);
}

ls_status ls_metric_rule_own(const char *call, const ls_metric *metric, ls_metric_rule *rule) {
    LS_TRY(check(call, metric));
    const ls_metric_kind *kind = metric->measure != NULL ? &one_number : &several_numbers;
    *rule = (ls_metric_rule){.kind = kind, .aggregate = kind->aggregate, .own = *metric};
    rule->width = metric->measure != NULL ? kind->aggregate->width : metric->width;
    snprintf(rule->name, sizeof rule->name, "%s", metric->name);
    return LS_OK;
}
