/* What metrics have counted in a pass, as named tensors, and back: for a trial that goes on in the midst of an epoch.
 */
#include <string.h>

#include "tensor/device.h"
#include "tensor/tensor.h"
#include "train/metrics/metric.h"

void ls_metrics_forget_state(ls_metrics *metrics) {
    for (int i = 0; i < metrics->count; i++) {
        ls_tensor_drop(metrics->state[i].tensor);
        metrics->state[i].tensor = NULL;
    }
}

ls_status ls_metrics_state(ls_trial *trial, const ls_named **tensors, int *count) {
    ls_metrics *metrics = trial->metrics;
    ls_metrics_forget_state(metrics);
    LS_TRY(ls_metrics_make_room(metrics));
    for (int i = 0; i < metrics->count; i++) {
        const ls_numbers *numbers = &metrics->set->numbers[i];
        const ls_shape shape = LS_SHAPE((int64_t)numbers->count);
        ls_tensor *tensor = ls_tensor_over(&ls_cpu, &shape, LS_F64, numbers->items);
        if (tensor == NULL) {
            return ls_fail_memory("ls_trial", sizeof *tensor);
        }
        metrics->state[i] = (ls_named){.name = metrics->measures[i].rule->name, .tensor = tensor};
    }
    *tensors = metrics->state;
    *count = metrics->count;
    return LS_OK;
}

/* ---- and back ---------------------------------------------------------------------------------------------------- */

static const ls_tensor *find(const ls_named *tensors, int count, const char *name) {
    for (int i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0) {
            return tensors[i].tensor;
        }
    }
    return NULL;
}

/* Whether the metric can have counted so. */
static ls_status check_numbers(const ls_metric *rule, const ls_tensor *tensor) {
    bool fits = tensor->dtype == LS_F64 && ls_ndim(tensor) == 1 && ls_is_contiguous(tensor);
    if (fits && rule->aggregate->fits != NULL) {
        ls_host_view view;
        LS_TRY(ls_host_view_begin(&view, tensor, LS_HOST_READ));
        fits = rule->aggregate->fits(rule, view.memory, (size_t)tensor->count);
        LS_TRY(ls_host_view_end(&view, LS_OK));
    } else if (fits) {
        fits = tensor->count == rule->width;
    }
    return fits
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "ls_trial: what the metric \"%s\" is to have counted, %s of %s, is not its own",
                         rule->name, LS_SHAPE_TEXT(tensor), ls_dtype_name((ls_dtype)tensor->dtype));
}

static ls_status check(const ls_metrics *metrics, const ls_named *tensors, int count) {
    for (int i = 0; i < metrics->count; i++) {
        const ls_metric *rule = metrics->measures[i].rule;
        const ls_tensor *tensor = find(tensors, count, rule->name);
        LS_TRY(tensor != NULL ? check_numbers(rule, tensor)
                              : ls_fail(LS_ERR_FORMAT, "ls_trial: there is nothing that the metric \"%s\" has counted",
                                        rule->name));
    }
    return count == metrics->count ? LS_OK
                                   : ls_fail(LS_ERR_FORMAT, "ls_trial: %d metrics have counted, and there are %d here",
                                             count, metrics->count);
}

static ls_status copy(const ls_tensor *tensor, ls_numbers *numbers) {
    ls_host_view view;
    numbers->count = 0;
    LS_TRY(ls_numbers_resize(numbers, (size_t)tensor->count));
    LS_TRY(ls_host_view_begin(&view, tensor, LS_HOST_READ));
    if (numbers->count > 0) {
        memcpy(numbers->items, view.memory, numbers->count * sizeof *numbers->items);
    }
    return ls_host_view_end(&view, LS_OK);
}

ls_status ls_metrics_set_state(ls_trial *trial, const ls_named *tensors, int count) {
    ls_metrics *metrics = trial->metrics;
    LS_TRY(check(metrics, tensors, count));
    for (int i = 0; i < metrics->count; i++) {
        LS_TRY(copy(find(tensors, count, metrics->measures[i].rule->name), &metrics->set->numbers[i]));
    }
    ls_metrics_mark(metrics);
    return LS_OK;
}

/* ---- of other ranks ---------------------------------------------------------------------------------------------- */

static void join(const ls_aggregate *aggregate, double *numbers, const double *of, size_t count, bool nothing) {
    if (aggregate->join != NULL) {
        aggregate->join(numbers, of, count, nothing);
        return;
    }
    for (size_t i = 0; i < count && !nothing; i++) {
        numbers[i] += of[i];
    }
}

static ls_status add(const ls_tensor *tensor, const ls_aggregate *aggregate, bool nothing, ls_numbers *numbers) {
    const bool rows = aggregate->together == LS_ROWS;
    const size_t count = rows && nothing ? 0 : (size_t)tensor->count;
    numbers->count = nothing ? 0 : numbers->count;
    const size_t at = rows ? numbers->count : 0;
    ls_host_view view;
    LS_TRY(ls_numbers_resize(numbers, at + count > numbers->count ? at + count : numbers->count));
    LS_TRY(ls_host_view_begin(&view, tensor, LS_HOST_READ));
    if (count > 0) {
        join(aggregate, numbers->items + at, view.memory, count, nothing);
    }
    return ls_host_view_end(&view, LS_OK);
}

ls_status ls_metrics_add_state(ls_trial *trial, const ls_named *tensors, int count, bool nothing) {
    ls_metrics *metrics = trial->metrics;
    LS_TRY(check(metrics, tensors, count));
    for (int i = 0; i < metrics->count; i++) {
        const ls_metric *rule = metrics->measures[i].rule;
        LS_TRY(add(find(tensors, count, rule->name), rule->aggregate, nothing, &metrics->set->numbers[i]));
    }
    ls_metrics_mark(metrics);
    return LS_OK;
}
