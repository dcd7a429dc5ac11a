/*
 * Copies to the host the tensors of a batch that the metrics need. This takes a single fetch, because each fetch waits
 * for the device, whatever its size.
 */
#include <string.h>

#include "tensor/device.h"
#include "tensor/scope.h"
#include "train/metrics/metric.h"

/* The tensors that the metrics need, on one device. */
typedef struct request {
    ls_tensor *elements[LS_METRIC_LIMIT]; /* elements of metric i, as f64; NULL if there are none */
    ls_tensor *kept[LS_METRIC_LIMIT];
    ls_tensor *rows[LS_METRIC_LIMIT]; /* the tensors to copy, as one-dimensional f64 tensors */
    int count;                        /* of rows */
} request;

/* Metrics with the same elements, such as "acc" and "running_acc", share them. */
static ls_status find_elements(const ls_metrics *metrics, int index, const ls_trial_state *state, request *all) {
    const ls_metric *metric = metrics->items[index];
    for (int i = 0; i < index; i++) {
        const ls_metric *other = metrics->items[i];
        if (all->elements[i] != NULL && other->of == metric->of && other->k == metric->k &&
            other->outputs == metric->outputs) {
            all->elements[index] = all->elements[i];
            all->kept[index] = all->kept[i];
            return LS_OK;
        }
    }
    all->elements[index] = ls_to(metric->of->elements(metric, state, &all->kept[index]), LS_F64);
    all->kept[index] = all->kept[index] != NULL ? ls_to(all->kept[index], LS_F64) : NULL;
    return ls_made(all->elements[index]);
}

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

static ls_tensor *ask(const ls_metrics *metrics, int index, const ls_trial_state *state, request *all) {
    const ls_metric *metric = metrics->items[index];
    if (metric->of == NULL || metric->of->elements == NULL) {
        return metric->of != NULL ? metric->of->ask(metric, state) : metric->type->ask(metric, state);
    }
    return find_elements(metrics, index, state, all) == LS_OK ? sum_up(metric, all->elements[index], all->kept[index])
                                                              : NULL;
}

static bool asks(const ls_metric *metric) {
    return metric->of != NULL ? metric->of->elements != NULL || metric->of->ask != NULL : metric->type->ask != NULL;
}

static ls_status add_row(request *all, ls_tensor *asked) {
    ls_tensor *row = asked != NULL ? ls_reshape(ls_to(asked, LS_F64), LS_SHAPE(-1)) : NULL;
    if (row != NULL && all->count > 0 && ls_tensor_device(row) != ls_tensor_device(all->rows[0])) {
        row = ls_tensor_to_device(row, ls_tensor_device(all->rows[0])->name);
    }
    all->rows[all->count++] = row;
    return ls_made(row);
}

static ls_status ask_all(ls_metrics *metrics, const ls_trial_state *state, request *all) {
    for (int i = 0; i < metrics->count; i++) {
        metrics->asked[i] = (ls_asked){.count = 0};
        if (asks(metrics->items[i]) && ls_metric_is_on(metrics->items[i], state)) {
            LS_TRY(add_row(all, ask(metrics, i, state, all)));
            const bool all_count = all->elements[i] != NULL && all->kept[i] == NULL;
            metrics->asked[i].elements = all_count ? ls_numel(all->elements[i]) : -1;
            metrics->asked[i].count = ls_numel(all->rows[all->count - 1]);
        }
    }
    return LS_OK;
}

static ls_status fetch(ls_metrics *metrics, const ls_trial_state *state) {
    request all = {.count = 0};
    ls_host_view view;
    LS_TRY(ask_all(metrics, state, &all));
    if (all.count == 0) {
        return LS_OK;
    }
    ls_tensor *row = all.count == 1 ? ls_contiguous(all.rows[0]) : ls_concat(all.rows, all.count, 0);
    LS_TRY(ls_made(row));
    LS_TRY(ls_tally_resize(&metrics->fetched, (size_t)ls_numel(row)));
    LS_TRY(ls_host_view_begin(&view, row, LS_HOST_READ));
    memcpy(metrics->fetched.items, view.memory, metrics->fetched.count * sizeof *metrics->fetched.items);
    const double *next = metrics->fetched.items;
    for (int i = 0; i < metrics->count; next += metrics->asked[i++].count) {
        metrics->asked[i].numbers = next;
    }
    return ls_host_view_end(&view, LS_OK);
}

ls_status ls_metrics_fetch(ls_metrics *metrics, const ls_trial_state *state) {
    ls_scope *scope = ls_scope_open();
    LS_TRY(ls_made(scope));
    ls_thread_state *thread = ls_thread();
    const ls_device *usual = thread->device;
    const bool before = ls_no_grad(true);
    if (state->output != NULL && !ls_tensor_is_gone(state->output)) {
        thread->device = ls_tensor_device(state->output); /* metrics create tensors on the device of the output */
    }
    const ls_status status = fetch(metrics, state);
    thread->device = usual;
    ls_no_grad(before);
    const ls_status ended = ls_scope_close(scope);
    return status != LS_OK ? status : ended;
}
