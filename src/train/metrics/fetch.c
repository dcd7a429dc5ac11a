/*
 * What metrics want to know of a batch comes to the host in one go: a fetch waits for the device, whatever its size.
 */
#include <string.h>

#include "tensor/device.h"
#include "tensor/scope.h"
#include "train/metrics/metric.h"

/* The sum of the elements that there is a mean of, or whatever else the metric wants. */
static ls_tensor *ask(ls_measure *measure, const ls_trial_state *state) {
    const ls_metric_kind *kind = measure->rule->kind;
    if (kind->elements == NULL) {
        return kind->ask(measure, state);
    }
    ls_tensor *elements = kind->elements(measure, state);
    measure->elements = ls_numel(elements);
    return elements != NULL ? ls_sum(ls_to(elements, LS_F64)) : NULL;
}

/* What each metric asks for, as a row of f64; NULL of one that wants nothing. */
static ls_status ask_all(ls_metrics *metrics, const ls_trial_state *state, ls_tensor *rows[LS_METRIC_LIMIT]) {
    size_t total = 0;
    for (int i = 0; i < metrics->count; i++) {
        ls_measure *measure = &metrics->measures[i];
        const ls_metric_kind *kind = measure->rule->kind;
        measure->asked_count = 0;
        rows[i] = NULL;
        if (kind->elements == NULL && kind->ask == NULL) {
            continue;
        }
        ls_tensor *wanted = ask(measure, state);
        rows[i] = wanted != NULL ? ls_reshape(ls_to(wanted, LS_F64), LS_SHAPE(-1)) : NULL;
        if (rows[i] == NULL) {
            return ls_error_status();
        }
        measure->asked_count = ls_numel(rows[i]);
        total += (size_t)measure->asked_count;
    }
    return ls_numbers_resize(&metrics->fetched, total);
}

static ls_status copy(const ls_tensor *row, double *to) {
    ls_host_view view;
    if (row == NULL) {
        return ls_error_status();
    }
    LS_TRY(ls_host_view_begin(&view, row, LS_HOST_READ));
    memcpy(to, view.memory, (size_t)ls_numel(row) * sizeof *to);
    return ls_host_view_end(&view, LS_OK);
}

/* Takes those that are on the device of row `first` off the list, and copies them to `*to` as one. */
static ls_status fetch_of_device(ls_metrics *metrics, ls_tensor *rows[LS_METRIC_LIMIT], int first, double **to) {
    const ls_device *device = ls_tensor_device(rows[first]);
    ls_tensor *parts[LS_METRIC_LIMIT];
    double *at = *to;
    int count = 0;
    for (int i = first; i < metrics->count; i++) {
        if (rows[i] != NULL && ls_tensor_device(rows[i]) == device) {
            metrics->measures[i].asked = at;
            at += metrics->measures[i].asked_count;
            parts[count++] = rows[i];
            rows[i] = NULL;
        }
    }
    LS_TRY(copy(count == 1 ? ls_contiguous(parts[0]) : ls_concat(parts, count, 0), *to));
    *to = at;
    return LS_OK;
}

static ls_status fetch(ls_metrics *metrics, const ls_trial_state *state) {
    ls_tensor *rows[LS_METRIC_LIMIT];
    LS_TRY(ask_all(metrics, state, rows));
    double *to = metrics->fetched.items;
    for (int i = 0; i < metrics->count; i++) {
        if (rows[i] != NULL) {
            LS_TRY(fetch_of_device(metrics, rows, i, &to));
        }
    }
    return LS_OK;
}

ls_status ls_metrics_fetch(ls_metrics *metrics, const ls_trial_state *state) {
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    const bool before = ls_no_grad(true);
    const ls_status status = fetch(metrics, state);
    ls_no_grad(before);
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}
