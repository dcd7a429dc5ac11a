/*
 * What metrics want to know of a batch comes to the host in one go: a fetch waits for the device, whatever its size.
 */
#include <string.h>

#include "tensor/device.h"
#include "tensor/scope.h"
#include "train/metrics/metric.h"

/* What each metric wants of the batch. */
typedef struct ls_wants {
    ls_tensor *elements[LS_METRIC_LIMIT]; /* as f64; NULL of a metric that has none, as below */
    ls_tensor *kept[LS_METRIC_LIMIT];
    ls_tensor *rows[LS_METRIC_LIMIT]; /* all that is to come to the host, in one dimension */
} ls_wants;

static bool have_same_elements(const ls_metric *a, const ls_metric *b) {
    return a->of == b->of && a->k == b->k && a->outputs == b->outputs;
}

/* Metrics that look at the same elements, "acc" and "running_acc", say, have them computed once. */
static ls_status find_elements(const ls_metrics *metrics, int index, const ls_trial_state *state, ls_wants *wants) {
    const ls_metric *metric = metrics->items[index];
    for (int i = 0; i < index; i++) {
        if (wants->elements[i] != NULL && have_same_elements(metrics->items[i], metric)) {
            wants->elements[index] = wants->elements[i];
            wants->kept[index] = wants->kept[i];
            return LS_OK;
        }
    }
    wants->elements[index] = ls_to(metric->of->elements(metric, state, &wants->kept[index]), LS_F64);
    wants->kept[index] = wants->kept[index] != NULL ? ls_to(wants->kept[index], LS_F64) : NULL;
    return wants->elements[index] != NULL ? LS_OK : ls_error_status();
}

/* The sum of the elements, their number where not all count, and their scatter where that is wanted. */
static ls_tensor *sum_up(const ls_metric *metric, ls_tensor *elements, ls_tensor *kept) {
    ls_tensor *parts[3];
    int count = 0;
    parts[count++] = ls_sum(kept != NULL ? ls_mul(elements, kept) : elements);
    if (kept != NULL) {
        parts[count++] = ls_sum(kept);
    }
    if (metric->type->scatter) {
        ls_tensor *mean = kept != NULL ? ls_div(parts[0], ls_maximum(parts[1], 1)) : ls_mean(elements);
        ls_tensor *squares = ls_square(ls_sub(elements, mean));
        parts[count++] = ls_sum(kept != NULL ? ls_mul(squares, kept) : squares);
    }
    return count > 1 ? ls_stack(parts, count, 0) : parts[0];
}

/* The tensor that a metric wants; `*none` if it wants none. */
static ls_tensor *ask(const ls_metrics *metrics, int index, const ls_trial_state *state, ls_wants *wants, bool *none) {
    const ls_metric *metric = metrics->items[index];
    if (metric->of != NULL && metric->of->elements != NULL) {
        return find_elements(metrics, index, state, wants) == LS_OK
                   ? sum_up(metric, wants->elements[index], wants->kept[index])
                   : NULL;
    }
    ls_tensor *(*const function)(const ls_metric *, const ls_trial_state *) =
        metric->of != NULL ? metric->of->ask : metric->type->ask;
    *none = function == NULL;
    return *none ? NULL : function(metric, state);
}

static ls_status ask_all(ls_metrics *metrics, const ls_trial_state *state, ls_wants *wants) {
    size_t total = 0;
    for (int i = 0; i < metrics->count; i++) {
        bool none = !ls_metric_is_on(metrics->items[i], state);
        ls_tensor *wanted = none ? NULL : ask(metrics, i, state, wants, &none);
        metrics->asked[i] = (ls_asked){.count = 0};
        if (none) {
            continue;
        }
        wants->rows[i] = wanted != NULL ? ls_reshape(ls_to(wanted, LS_F64), LS_SHAPE(-1)) : NULL;
        if (wants->rows[i] == NULL) {
            return ls_error_status();
        }
        const bool all_count = wants->elements[i] != NULL && wants->kept[i] == NULL;
        metrics->asked[i].elements = all_count ? ls_numel(wants->elements[i]) : -1;
        metrics->asked[i].count = ls_numel(wants->rows[i]);
        total += (size_t)metrics->asked[i].count;
    }
    return ls_tally_resize(&metrics->fetched, total);
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
            metrics->asked[i].numbers = at;
            at += metrics->asked[i].count;
            parts[count++] = rows[i];
            rows[i] = NULL;
        }
    }
    LS_TRY(copy(count == 1 ? ls_contiguous(parts[0]) : ls_concat(parts, count, 0), *to));
    *to = at;
    return LS_OK;
}

static ls_status fetch(ls_metrics *metrics, const ls_trial_state *state) {
    ls_wants wants = {{NULL}, {NULL}, {NULL}};
    LS_TRY(ask_all(metrics, state, &wants));
    double *to = metrics->fetched.items;
    for (int i = 0; i < metrics->count; i++) {
        if (wants.rows[i] != NULL) {
            LS_TRY(fetch_of_device(metrics, wants.rows, i, &to));
        }
    }
    return LS_OK;
}

ls_status ls_metrics_fetch(ls_metrics *metrics, const ls_trial_state *state) {
    ls_scope *scope = ls_scope_begin();
    if (scope == NULL) {
        return ls_error_status();
    }
    ls_thread_state *thread = ls_thread();
    const ls_device *usual = thread->device;
    const bool before = ls_no_grad(true);
    if (state->output != NULL && !ls_tensor_is_gone(state->output)) {
        thread->device = ls_tensor_device(state->output); /* metrics make tensors on the device of the output */
    }
    const ls_status status = fetch(metrics, state);
    thread->device = usual;
    ls_no_grad(before);
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}
