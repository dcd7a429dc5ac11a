/* Metrics computed by user functions. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "train/metrics/metric.h"

static ls_status explain(const ls_metric *metric, ls_status status, uint32_t errors) {
    return ls_explain(status, errors, "metric", metric->name);
}

static ls_status measure(const ls_metric *metric, ls_batch_numbers *batch) {
    const uint32_t errors = ls_error_count;
    return explain(metric, metric->own.mean(batch->state, metric->user, &batch->sum, &batch->weight), errors);
}

static void init(ls_tally *tally) {
    if (tally->metric->own.init != NULL) {
        tally->metric->own.init(tally->items, tally->metric->user);
    }
}

static ls_status update(ls_tally *tally, const ls_batch_numbers *batch) {
    const ls_metric *metric = tally->metric;
    const uint32_t errors = ls_error_count;
    return batch->state->count > 0
               ? explain(metric, metric->own.update(batch->state, metric->user, tally->items), errors)
               : LS_OK;
}

static ls_status merge(ls_tally *tally, const double *other, size_t count) {
    (void)count;
    tally->metric->own.merge(tally->items, other, tally->metric->user);
    return LS_OK;
}

static double result(const ls_tally *tally) {
    return tally->metric->own.result(tally->items, tally->metric->user);
}

static const ls_batch_mean own_mean = {.measure = measure};
static const ls_metric_type added = {.update = update, .result = result};
static const ls_metric_type merged = {.init = init, .update = update, .merge = merge, .result = result};

/* ---- the constructor --------------------------------------------------------------------------------------------- */

static const char *const maker = "ls_metric_new";

static ls_status check_functions(const ls_metric_functions *own) {
    const bool others = own->update != NULL || own->result != NULL || own->init != NULL || own->merge != NULL;
    const bool mean = own->mean != NULL && !others && own->width == 0;
    const bool numbers = own->mean == NULL && own->update != NULL && own->result != NULL && own->width > 0;
    if (!mean && !numbers) {
        return ls_fail(
            LS_ERR_ARGUMENT,
            "%s: the metric \"%s\" (width %d) needs either mean alone, or update, result and a width of at least 1",
            maker, own->name, own->width);
    }
    return own->init == NULL || own->merge != NULL
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: the metric \"%s\" has init, but not merge: give both", maker, own->name);
}

static bool has_controls(const char *name) {
    for (; *name != '\0'; name++) {
        if (iscntrl((unsigned char)*name)) {
            return true;
        }
    }
    return false;
}

static ls_status check(const ls_metric_functions *own) {
    if (own == NULL || own->name == NULL || (own->mean == NULL && own->update == NULL)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: a metric needs a name, and either .mean or .update", maker);
    }
    if (strlen(own->name) > LS_METRIC_NAME_LIMIT / 2) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the metric's name \"%s\" is longer than %d bytes", maker, own->name,
                       LS_METRIC_NAME_LIMIT / 2);
    }
    if (!ls_text_is_utf8(own->name)) { /* file names must be UTF-8 too */
        return ls_fail(LS_ERR_ARGUMENT, "%s: the metric's name \"%s\" is not UTF-8", maker, own->name);
    }
    if (has_controls(own->name)) { /* control characters would break lines in logs */
        return ls_fail(LS_ERR_ARGUMENT, "%s: a metric's name contains a control character, such as a line end", maker);
    }
    return check_functions(own);
}

static ls_metric *make(const ls_metric_functions *own) {
    if (check(own) != LS_OK) {
        return NULL;
    }
    return own->mean != NULL ? ls_metric_make(own->name, &ls_type_mean, &own_mean)
                             : ls_metric_make(own->name, own->merge != NULL ? &merged : &added, NULL);
}

ls_metric *ls_metric_new(const ls_metric_functions *functions, void *user) {
    ls_metric *metric = make(functions);
    if (metric == NULL) {
        if (functions != NULL && functions->release != NULL) {
            functions->release(user);
        }
        return NULL;
    }
    metric->width += (size_t)functions->width;
    metric->own = *functions;
    metric->own.name = NULL; /* borrowed from the caller; metric->name is a copy */
    metric->user = user;
    return metric;
}
