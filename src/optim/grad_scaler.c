/* Scales losses whose gradients pass through f16, like PyTorch's GradScaler. */
#include <float.h>
#include <math.h>

#include "base/freed.h"
#include "base/memory.h"
#include "comm/public_call.h"
#include "optim/divided.h"
#include "optim/optimizer.h"
#include "tensor/capture.h"
#include "tensor/scope.h"

/* State of an optimizer's gradients since the last update. */
typedef struct unscaled {
    const ls_optimizer *optimizer;
    bool overflowed;
    bool stepped;
} unscaled;

struct ls_grad_scaler {
    ls_grad_scaler_options options;
    double scale;
    int64_t good;     /* updates since the last change of the scale or the last overflow */
    int64_t skipped;  /* total number of skipped steps */
    unscaled *recent; /* array with capacity `room`; `count` entries are used */
    int count, room;
    ls_state_list listed;
    bool freed;
};

/* ---- creation and destruction ------------------------------------------------------------------------------------ */

ls_grad_scaler *ls_grad_scaler_new(const ls_grad_scaler_options *options) {
    static const char call[] = "ls_grad_scaler_new";
    const ls_grad_scaler_options given = options != NULL ? *options : (ls_grad_scaler_options){0};
    const ls_grad_scaler_options used = {
        .initial_scale = ls_option(given.initial_scale, 65536),
        .growth_factor = ls_option(given.growth_factor, 2),
        .backoff_factor = ls_option(given.backoff_factor, 0.5),
        .growth_interval = given.growth_interval != 0 ? given.growth_interval : 2000,
    };
    if (ls_option_within(call, "initial_scale", used.initial_scale, (double)FLT_MIN, (double)FLT_MAX) != LS_OK ||
        ls_option_within(call, "growth_factor", used.growth_factor, 1, (double)FLT_MAX) != LS_OK ||
        ls_option_within(call, "backoff_factor", used.backoff_factor, (double)FLT_MIN, nextafter(1, 0)) != LS_OK ||
        ls_option_within(call, "growth_interval", (double)used.growth_interval, 1, 0x1p53) != LS_OK) {
        return NULL;
    }
    ls_grad_scaler *scaler = ls_allocate_zeroed(1, sizeof *scaler);
    if (scaler == NULL) {
        (void)ls_fail_memory(call, sizeof *scaler);
        return NULL;
    }
    scaler->options = used;
    scaler->scale = used.initial_scale;
    return scaler;
}

ls_status ls_grad_scaler_check_here(const char *call, const ls_grad_scaler *scaler) {
    return scaler == NULL   ? ls_fail_missing("%s: the scaler", call)
           : !scaler->freed ? LS_OK
                            : ls_fail_freed(call, "scaler", "ls_grad_scaler_free");
}

void ls_grad_scaler_free(ls_grad_scaler *scaler) {
    if (scaler != NULL && !scaler->freed) {
        ls_state_forget(&scaler->listed);
        ls_free(scaler->recent);
        *scaler = (ls_grad_scaler){.scale = 1, .freed = true};
        ls_retire(scaler, LS_RETIRED_SINGLE);
    }
}

double ls_grad_scaler_get_scale(const ls_grad_scaler *scaler) {
    ls_capture_refuse_here("ls_grad_scaler_get_scale", LS_CAPTURE_NUMBER);
    return scaler != NULL ? scaler->scale : 1;
}

int64_t ls_grad_scaler_skipped(const ls_grad_scaler *scaler) {
    return scaler != NULL ? scaler->skipped : 0;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

ls_tensor *ls_grad_scaler_scale(const ls_grad_scaler *scaler, ls_tensor *loss) {
    ls_capture_refuse_here("ls_grad_scaler_scale",
                           "uses a scale that changes, which a replay does not notice: run the step without "
                           "ls_step_capture");
    if (ls_grad_scaler_check_here("ls_grad_scaler_scale", scaler) != LS_OK) {
        return ls_scope_failed();
    }
    return ls_mul(loss, scaler->scale);
}

/*
 * Divides the gradients of a group by the scale, with one kernel call per contiguous run. Sets *found to 1 if a result
 * is not finite.
 */
static ls_status unscale_group(const ls_parameter_group *group, double scale, double *found) {
    for (int first = 0, last; ls_group_next_run(group, false, &first, &last); first = last + 1) {
        ls_run run = {.dtype = (ls_dtype)group->slots[first].parameter->dtype};
        if (ls_run_gradients(group, first, last, &run)) {
            const ls_tensor *gradient = group->slots[first].parameter->leaf->gradient;
            LS_TRY(ls_kernels_of(gradient)->unscale(ls_stream_of(gradient), run.dtype, run.count, 1 / scale,
                                                    (void *)run.gradient, found));
        }
        for (int i = first; i <= last; i++) {
            ls_tensor_changed(group->slots[i].parameter->leaf->gradient, "ls_grad_scaler_unscale");
        }
    }
    return LS_OK;
}

/*
 * Adds 1 to *number if a gradient of the group is not finite. The kernels of the group set a flag on the device, which
 * is read once.
 */
static ls_status look_at_group(const ls_parameter_group *group, double scale, double *number) {
    static const char call[] = "ls_grad_scaler_unscale";
    ls_tensor *found = ls_tensor_new_owned(call, group->device, 0, NULL, LS_F64);
    ls_status status = found != NULL ? ls_kernels_of(found)->fill(ls_stream_of(found), found, 0) : ls_error_status();
    status = status == LS_OK ? unscale_group(group, scale, found->data) : status;
    double here = 0;
    status = status == LS_OK ? ls_device_fetch(group->device, &here, found->data, sizeof here) : status;
    ls_tensor_drop(found);
    *number += here;
    return status;
}

/* Returns the sharding of the optimizer's gradients if each rank has only its own elements, otherwise NULL. */
static ls_sharding *sharding_of_gradients(const ls_optimizer *optimizer) {
    for (int g = 0; g < optimizer->group_count; g++) {
        for (int i = 0; i < optimizer->groups[g].count; i++) {
            const ls_leaf *leaf = optimizer->groups[g].slots[i].parameter->leaf;
            if (leaf != NULL && leaf->shard) {
                return leaf->sharding;
            }
        }
    }
    return NULL;
}

/*
 * Computes whether a gradient is not finite on any rank with a shard of the model. All other ranks have the same
 * gradients as this rank.
 */
static ls_status agree(const ls_optimizer *optimizer, double own, bool *found) {
    ls_divided_sums sums;
    double total = 0;
    LS_TRY(ls_divided_begin("ls_grad_scaler_unscale", &sums, optimizer->model));
    ls_sharding *sharding = sharding_of_gradients(optimizer);
    LS_TRY(sharding != NULL ? sharding->add(sharding, &own, 1) : LS_OK);
    for (int g = 0; g < optimizer->group_count; g++) {
        const ls_parameter_group *group = &optimizer->groups[g];
        for (int i = 0; i < group->count; i++) {
            const ls_leaf *leaf = group->slots[i].parameter->leaf;
            double *sum = leaf != NULL ? ls_divided_sum("ls_grad_scaler_unscale", &sums, leaf->divisions) : &total;
            if (sum == NULL) {
                return ls_error_status();
            }
            *sum = own;
        }
    }
    LS_TRY(ls_divided_total(&sums, &total));
    *found = total > 0;
    return LS_OK;
}

static unscaled *find(const ls_grad_scaler *scaler, const ls_optimizer *optimizer) {
    int i = 0;
    while (i < scaler->count && scaler->recent[i].optimizer != optimizer) {
        i++;
    }
    return i < scaler->count ? &scaler->recent[i] : NULL;
}

static ls_status check(const char *call, const ls_grad_scaler *scaler, const ls_optimizer *optimizer) {
    LS_TRY(ls_grad_scaler_check_here(call, scaler));
    LS_TRY(optimizer != NULL ? LS_OK : ls_fail_missing("%s: the optimizer", call));
    LS_TRY(ls_optimizer_check_here(call, optimizer));
    return optimizer->type->step != NULL
               ? LS_OK
               : ls_fail(LS_ERR_STATE,
                         "%s: %s evaluates the loss itself and scales it itself; use it without a grad scaler", call,
                         optimizer->type->name);
}

ls_status ls_grad_scaler_unscale(ls_grad_scaler *scaler, ls_optimizer *optimizer) {
    ls_capture_refuse_here("ls_grad_scaler_unscale", LS_CAPTURE_STATE);
    LS_TRY(check("ls_grad_scaler_unscale", scaler, optimizer));
    if (find(scaler, optimizer) != NULL) {
        return ls_fail(LS_ERR_STATE, "ls_grad_scaler_unscale: the gradients of this optimizer have already been "
                                     "divided by the scale since the last ls_grad_scaler_update");
    }
    if (scaler->count == scaler->room) {
        unscaled *recent = ls_grow(scaler->recent, (size_t)scaler->count, sizeof *recent);
        if (recent == NULL) {
            return ls_fail_memory("ls_grad_scaler_unscale", ((size_t)scaler->count + 1) * sizeof *recent);
        }
        scaler->recent = recent;
        scaler->room++;
    }
    double own = 0;
    bool overflowed = false;
    for (int g = 0; g < optimizer->group_count; g++) {
        LS_TRY(ls_group_check_place(optimizer, &optimizer->groups[g]));
    }
    /* If a later call fails, some gradients are already divided and others are not, so a step must not use them. */
    unscaled *made = &scaler->recent[scaler->count++];
    *made = (unscaled){.optimizer = optimizer, .overflowed = true};
    for (int g = 0; g < optimizer->group_count; g++) {
        LS_TRY(look_at_group(&optimizer->groups[g], scaler->scale, &own));
    }
    const ls_public_call outer = ls_public_begin(LS_PUBLIC_GRAD_SCALER_UNSCALE);
    LS_TRY(ls_public_end(outer, agree(optimizer, own, &overflowed)));
    made->overflowed = overflowed;
    return LS_OK;
}

bool *ls_grad_scaler_skips(const ls_grad_scaler *scaler, const ls_optimizer *optimizer) {
    unscaled *own = find(scaler, optimizer);
    return own != NULL ? &own->overflowed : NULL;
}

void ls_grad_scaler_forget(ls_grad_scaler *scaler, const ls_optimizer *optimizer) {
    unscaled *own = find(scaler, optimizer);
    if (own != NULL) {
        *own = scaler->recent[--scaler->count];
    }
}

ls_status ls_grad_scaler_step(ls_grad_scaler *scaler, ls_optimizer *optimizer) {
    ls_capture_refuse_here("ls_grad_scaler_step", LS_CAPTURE_STATE);
    LS_TRY(check("ls_grad_scaler_step", scaler, optimizer));
    if (find(scaler, optimizer) == NULL) {
        LS_TRY(ls_grad_scaler_unscale(scaler, optimizer));
    }
    unscaled *own = find(scaler, optimizer);
    if (own->stepped) {
        return ls_fail(LS_ERR_STATE,
                       "ls_grad_scaler_step: this optimizer has stepped since the last ls_grad_scaler_update");
    }
    LS_TRY(own->overflowed ? LS_OK : ls_optimizer_step(optimizer));
    own->stepped = true;
    scaler->skipped += own->overflowed;
    return LS_OK;
}

ls_status ls_grad_scaler_update(ls_grad_scaler *scaler) {
    ls_capture_refuse_here("ls_grad_scaler_update", LS_CAPTURE_STATE);
    LS_TRY(ls_grad_scaler_check_here("ls_grad_scaler_update", scaler));
    if (scaler->count == 0) {
        return ls_fail(LS_ERR_STATE,
                       "ls_grad_scaler_update: there was no ls_grad_scaler_unscale or ls_grad_scaler_step "
                       "since the last ls_grad_scaler_update");
    }
    bool overflowed = false;
    for (int i = 0; i < scaler->count; i++) {
        overflowed = overflowed || scaler->recent[i].overflowed;
    }
    scaler->count = 0;
    scaler->good = overflowed ? 0 : scaler->good + 1;
    const bool grows = scaler->good >= scaler->options.growth_interval;
    const double scale = scaler->scale * (overflowed ? scaler->options.backoff_factor
                                          : grows    ? scaler->options.growth_factor
                                                     : 1);
    if (scale < (double)FLT_MIN) {
        return ls_fail(LS_ERR_STATE,
                       "ls_grad_scaler_update: gradients are Inf or NaN even with the loss scaled by %g: the scale is "
                       "not the cause",
                       scaler->scale);
    }
    scaler->good = grows ? 0 : scaler->good;
    scaler->scale = scale <= (double)FLT_MAX ? scale : scaler->scale;
    return LS_OK;
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

static ls_status list_all(ls_grad_scaler *scaler, ls_state_list *list) {
    const ls_state_word scale = {"scale", LS_STATE_NOT_NEGATIVE}, good = {"_growth_tracker", LS_STATE_NOT_NEGATIVE},
                        skipped = {"skipped", LS_STATE_NOT_NEGATIVE};
    LS_TRY(ls_state_add(list, "", scale, LS_SCALAR, LS_F64, &ls_cpu, &scaler->scale));
    LS_TRY(ls_state_add(list, "", good, LS_SCALAR, LS_I64, &ls_cpu, &scaler->good));
    return ls_state_add(list, "", skipped, LS_SCALAR, LS_I64, &ls_cpu, &scaler->skipped);
}

ls_status ls_grad_scaler_state(ls_grad_scaler *scaler, const ls_named **tensors, int *count) {
    if (scaler == NULL || tensors == NULL || count == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_grad_scaler_state: an argument is NULL");
    }
    LS_TRY(ls_grad_scaler_check_here("ls_grad_scaler_state", scaler));
    ls_state_forget(&scaler->listed);
    LS_TRY(list_all(scaler, &scaler->listed));
    *tensors = scaler->listed.items;
    *count = scaler->listed.count;
    return LS_OK;
}

/* The scaled loss and the unscaled gradients must stay finite. */
static ls_status check_scale(const char *call, const ls_named *given, int count) {
    const ls_tensor *tensor = ls_state_find(given, count, "scale");
    double scale = 1;
    if (tensor != NULL && tensor->dtype == LS_F64 && tensor->count == 1) {
        LS_TRY(ls_device_fetch(ls_tensor_device(tensor), &scale, tensor->data, sizeof scale));
    }
    return scale >= (double)FLT_MIN && scale <= (double)FLT_MAX
               ? LS_OK
               : ls_fail(LS_ERR_FORMAT, "%s: scale is %g, but must be between %g and %g", call, scale, (double)FLT_MIN,
                         (double)FLT_MAX);
}

ls_status ls_grad_scaler_set_state(ls_grad_scaler *scaler, const ls_named *tensors, int count) {
    static const char call[] = "ls_grad_scaler_set_state";
    LS_TRY(ls_state_check_given(call, scaler, tensors, count));
    LS_TRY(ls_grad_scaler_check_here(call, scaler));
    LS_TRY(check_scale(call, tensors, count));
    ls_state_list list = {0};
    ls_status status = list_all(scaler, &list);
    if (status == LS_OK) {
        status = ls_state_restore(call, "ls_grad_scaler", &list, tensors, count);
    }
    ls_state_forget(&list);
    scaler->count = status == LS_OK ? 0 : scaler->count;
    return status;
}
