/* The numbers of metrics as named tensors, for checkpoints: saved, and restored in a trial that resumes in the middle
 * of an epoch. */
#include <string.h>

#include "tensor/device.h"
#include "tensor/tensor.h"
#include "train/metrics/measured.h"

static void forget_state(ls_metrics *metrics) {
    for (int i = 0; i < metrics->count; i++) {
        ls_tensor_drop(metrics->state[i].tensor);
        metrics->state[i].tensor = NULL;
    }
}

ls_status ls_metrics_state(ls_trial *trial, const ls_named **tensors, int *count) {
    ls_metrics *metrics = trial->metrics;
    forget_state(metrics);
    LS_TRY(ls_metrics_make_room(metrics));
    for (int i = 0; i < metrics->count; i++) {
        const ls_numbers *numbers = &metrics->set->numbers[i];
        const ls_shape shape = LS_SHAPE((int64_t)numbers->count);
        ls_tensor *tensor = ls_tensor_over(&ls_cpu, &shape, LS_F64, numbers->items);
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

static const ls_tensor *find(const ls_named *tensors, int count, const char *name) {
    for (int i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0) {
            return tensors[i].tensor;
        }
    }
    return NULL;
}

/* Whether a metric can have so many numbers in a pass. */
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
    return valid
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "ls_trial: what the metric \"%s\" is to have counted, %s of %s, is not its own",
                         metric->name, LS_SHAPE_TEXT(tensor), ls_dtype_name((ls_dtype)tensor->dtype));
}

static ls_status check(const ls_metrics *metrics, const ls_named *tensors, int count) {
    for (int i = 0; i < metrics->count; i++) {
        const ls_metric *metric = metrics->items[i];
        const ls_tensor *tensor = find(tensors, count, metric->name);
        LS_TRY(tensor != NULL ? check_numbers(metric, tensor)
                              : ls_fail(LS_ERR_FORMAT, "ls_trial: there is nothing that the metric \"%s\" has counted",
                                        metric->name));
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
        LS_TRY(copy(find(tensors, count, metrics->items[i]->name), &metrics->set->numbers[i]));
    }
    ls_metrics_mark(metrics);
    return LS_OK;
}

/* ---- of other ranks ---------------------------------------------------------------------------------------------- */

/* Adds the numbers of a rank that is gone. */
static ls_status join(const ls_metric *metric, ls_numbers *numbers, const double *other, size_t count) {
    if (metric->type->merge != NULL) {
        return metric->type->merge(metric, numbers, other, count);
    }
    LS_TRY(numbers->count < count ? ls_numbers_resize(numbers, count) : LS_OK);
    for (size_t i = (size_t)metric->type->kept; i < count; i++) {
        numbers->items[i] += other[i];
    }
    return LS_OK;
}

/* The numbers of a new rank: as many as others have, of which it has those that a rank keeps. */
static ls_status begin_like(const ls_metric *metric, ls_numbers *numbers, const double *other, size_t count) {
    numbers->count = 0;
    LS_TRY(ls_numbers_resize(numbers, metric->type->merge == NULL ? count : metric->width));
    if (metric->type->kept > 0) {
        memcpy(numbers->items, other, (size_t)metric->type->kept * sizeof *other);
    } else if (metric->type->init != NULL) {
        metric->type->init(metric, numbers->items);
    }
    return LS_OK;
}

ls_status ls_metrics_add_state(ls_trial *trial, const ls_named *tensors, int count, bool nothing) {
    ls_metrics *metrics = trial->metrics;
    LS_TRY(check(metrics, tensors, count));
    for (int i = 0; i < metrics->count; i++) {
        const ls_metric *metric = metrics->items[i];
        const ls_tensor *tensor = find(tensors, count, metric->name);
        ls_numbers *numbers = &metrics->set->numbers[i];
        ls_host_view view;
        LS_TRY(ls_host_view_begin(&view, tensor, LS_HOST_READ));
        const ls_status status = nothing ? begin_like(metric, numbers, view.memory, (size_t)tensor->count)
                                         : join(metric, numbers, view.memory, (size_t)tensor->count);
        LS_TRY(ls_host_view_end(&view, status));
    }
    ls_metrics_mark(metrics);
    return LS_OK;
}
