/* The numbers of metrics as named tensors in checkpoints: saves them, and restores them in a trial that resumes in
 * the middle of an epoch. */
#include <string.h>

#include "optim/optimizer.h"
#include "tensor/device.h"
#include "tensor/tensor.h"
#include "train/metrics/metric.h"

static void forget_state(ls_metrics *metrics) {
    for (int i = 0; i < metrics->count; i++) {
        ls_tensor_drop(metrics->state[i].tensor);
        metrics->state[i].tensor = NULL;
    }
}

ls_status ls_metrics_state(ls_trial *trial, const ls_named **tensors, int *count) {
    ls_metrics *metrics = trial->metrics;
    forget_state(metrics);
    LS_TRY(ls_metrics_make_room(metrics, metrics->set));
    for (int i = 0; i < metrics->count; i++) {
        const ls_tally *tally = &metrics->set->tallies[i];
        const ls_shape shape = LS_SHAPE((int64_t)tally->count);
        ls_tensor *tensor = ls_tensor_over(&ls_cpu, &shape, LS_F64, tally->items);
        if (tensor == NULL) {
            return ls_fail_memory("ls_trial", sizeof *tensor);
        }
        metrics->state[i] = (ls_named){.name = metrics->items[i]->name, .tensor = tensor};
    }
    *tensors = metrics->state;
    *count = metrics->count;
    return LS_OK;
}

/* ---- and back ---------------------------------------------------------------------------------------------------- */

/* Returns whether this count of numbers is valid for a metric in a pass. */
static bool fits(const ls_metric *metric, size_t count) {
    const size_t unit = (size_t)metric->type->unit;
    const size_t first = metric->type->settles ? 0 : metric->width;
    return unit > 0 ? count >= first && (count - first) % unit == 0 : count == first;
}

static ls_status check_numbers(const ls_metric *metric, const ls_tensor *tensor) {
    bool valid = tensor->dtype == LS_F64 && ls_ndim(tensor) == 1 && ls_is_contiguous(tensor) &&
                 fits(metric, (size_t)tensor->count);
    if (valid && metric->type->valid != NULL) {
        ls_host_view view;
        LS_TRY(ls_host_view_begin(&view, tensor, LS_HOST_READ));
        valid = metric->type->valid(metric, view.memory, (size_t)tensor->count);
        LS_TRY(ls_host_view_end(&view, LS_OK));
    }
    return valid ? LS_OK
                 : ls_fail(LS_ERR_FORMAT,
                           "ls_trial: the saved numbers of metric \"%s\", %s of %s, do not fit: create the metric with "
                           "the same options as before saving",
                           metric->name, LS_SHAPE_TEXT(tensor), ls_dtype_name((ls_dtype)tensor->dtype));
}

static ls_status check(const ls_metrics *metrics, const ls_named *tensors, int count) {
    for (int i = 0; i < metrics->count; i++) {
        const ls_metric *metric = metrics->items[i];
        const ls_tensor *tensor = ls_state_find(tensors, count, metric->name);
        LS_TRY(tensor != NULL
                   ? check_numbers(metric, tensor)
                   : ls_fail(LS_ERR_FORMAT, "ls_trial: there are no saved numbers of metric \"%s\"", metric->name));
    }
    return count == metrics->count
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "ls_trial: %d metrics were saved, but the trial has %d", count, metrics->count);
}

/* ---- three ways to use the numbers of a checkpoint --------------------------------------------------------------- */

typedef ls_status use_numbers(ls_tally *tally, const double *numbers, size_t count);

static ls_status copy(ls_tally *tally, const double *numbers, size_t count) {
    tally->count = 0;
    LS_TRY(ls_tally_resize(tally, count));
    for (size_t i = 0; i < count; i++) {
        tally->items[i] = numbers[i];
    }
    return LS_OK;
}

/* Adds the numbers of a rank that no longer exists to this rank's numbers. */
static ls_status join(ls_tally *tally, const double *numbers, size_t count) {
    return ls_tally_add(tally, numbers, count, (size_t)tally->metric->type->kept);
}

/* For a new rank: starts with the same count as another rank's numbers, and copies the first `kept` numbers. */
static ls_status begin_like(ls_tally *tally, const double *numbers, size_t count) {
    const ls_metric_type *type = tally->metric->type;
    tally->count = 0;
    LS_TRY(ls_tally_begin(tally));
    LS_TRY(type->merge == NULL ? ls_tally_resize(tally, count) : LS_OK);
    for (int i = 0; i < type->kept; i++) {
        tally->items[i] = numbers[i];
    }
    return LS_OK;
}

static ls_status restore(ls_trial *trial, const ls_named *tensors, int count, use_numbers *use) {
    ls_metrics *metrics = trial->metrics;
    LS_TRY(check(metrics, tensors, count));
    for (int i = 0; i < metrics->count; i++) {
        const ls_tensor *tensor = ls_state_find(tensors, count, metrics->items[i]->name);
        ls_host_view view;
        LS_TRY(ls_host_view_begin(&view, tensor, LS_HOST_READ));
        LS_TRY(ls_host_view_end(&view, use(&metrics->set->tallies[i], view.memory, (size_t)tensor->count)));
    }
    ls_metrics_mark(metrics);
    return LS_OK;
}

ls_status ls_metrics_set_state(ls_trial *trial, const ls_named *tensors, int count) {
    return restore(trial, tensors, count, copy);
}

ls_status ls_metrics_add_state(ls_trial *trial, const ls_named *tensors, int count, bool nothing) {
    return restore(trial, tensors, count, nothing ? begin_like : join);
}
