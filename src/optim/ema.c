/* Averages of a model's parameters and buffers during training. */
#include <math.h>
#include <string.h>

#include "base/freed.h"
#include "base/memory.h"
#include "optim/snapshot.h"
#include "tensor/capture.h"
#include "tensor/scope.h"

struct ls_ema {
    double decay; /* 0 selects the plain mean */
    int64_t updates;
    ls_snapshot averages; /* the averages or, while the averages are in the model, the model's values; 16-bit averages
                             stay here */
    bool swapped;
    bool freed;
    ls_state_list listed;
};

/* ---- creation and destruction ------------------------------------------------------------------------------------ */

ls_ema *ls_ema_new(ls_module *model, double decay) {
    if (model == NULL) {
        (void)ls_fail_missing("ls_ema_new: the model");
        return NULL;
    }
    if (!ls_module_is_here(model) || ls_option_within("ls_ema_new", "decay", decay, 0, nextafter(1, 0)) != LS_OK) {
        return NULL;
    }
    ls_ema *ema = ls_allocate_zeroed(1, sizeof *ema);
    if (ema == NULL) {
        (void)ls_fail_memory("ls_ema_new", sizeof *ema);
        return NULL;
    }
    ema->decay = decay;
    if (ls_snapshot_make("ls_ema_new", &ema->averages, model, true) != LS_OK) {
        ls_ema_free(ema);
        return NULL;
    }
    return ema;
}

void ls_ema_free(ls_ema *ema) {
    if (ema != NULL && !ema->freed) {
        ls_state_forget(&ema->listed);
        ls_snapshot_forget(&ema->averages);
        *ema = (ls_ema){.freed = true};
        ls_retire(ema, LS_RETIRED_SINGLE);
    }
}

/* ---- averaging --------------------------------------------------------------------------------------------------- */

/* Fails if `ema` is NULL or was freed. */
static ls_status check_here(const char *call, const ls_ema *ema) {
    return ema == NULL   ? ls_fail_missing("%s: the averages", call)
           : !ema->freed ? LS_OK
                         : ls_fail_freed(call, "average of the model", "ls_ema_free");
}

/* Also fails with LS_ERR_STATE while the averages are in the model. */
static ls_status check_unswapped(const char *call, const ls_ema *ema) {
    LS_TRY(check_here(call, ema));
    return !ema->swapped ? LS_OK
                         : ls_fail(LS_ERR_STATE, "%s: the averages are in the model: call ls_ema_swap first", call);
}

/* Returns average + weight * (present - average), which is exact if both are equal. An infinite average, as in a mask,
 * has no difference: then returns average + weight * present. */
static ls_tensor *moved(ls_tensor *average, ls_tensor *present, double weight) {
    ls_tensor *difference = ls_where(ls_is_finite(average), ls_sub(present, average), present);
    return ls_add(average, ls_mul(difference, weight));
}

/* Moves the average towards `present`. Copies counters. */
static ls_status average_one(ls_tensor *average, ls_tensor *present, double weight) {
    ls_scope *scope = ls_scope_open();
    if (scope == NULL) {
        return ls_error_status();
    }
    (void)ls_no_grad(true);
    ls_tensor *next = ls_dtype_is_floating(ls_dtype_of(average)) ? moved(average, present, weight) : present;
    const ls_status copied = next != NULL ? ls_copy_into(average, next) : ls_error_status();
    const ls_status ended = ls_scope_close(scope);
    return copied != LS_OK ? copied : ended;
}

static ls_status average_all(ls_ema *ema) {
    LS_TRY(ls_snapshot_check("ls_ema_update", &ema->averages));
    const double weight = ema->decay > 0 ? 1 - ema->decay : 1 / ((double)ema->updates + 1);
    for (int i = 0; i < ema->averages.count; i++) {
        LS_TRY(average_one(ema->averages.tensors[i], ls_snapshot_source(&ema->averages, i), weight));
    }
    return LS_OK;
}

ls_status ls_ema_update(ls_ema *ema) {
    ls_capture_refuse_here("ls_ema_update", LS_CAPTURE_STATE);
    LS_TRY(check_unswapped("ls_ema_update", ema));
    LS_TRY(ema->updates == 0 ? ls_snapshot_take("ls_ema_update", &ema->averages) : average_all(ema));
    ema->updates++;
    return LS_OK;
}

/* Before the first update, the averages are the current parameters. */
static ls_status refresh(const char *call, const ls_ema *ema) {
    if (ema->updates > 0 || ema->swapped) {
        return LS_OK;
    }
    ls_capture_refuse_here(call, LS_CAPTURE_STATE);
    return ls_snapshot_take(call, &ema->averages);
}

ls_status ls_ema_swap(ls_ema *ema) {
    ls_capture_refuse_here("ls_ema_swap", LS_CAPTURE_STATE);
    LS_TRY(check_here("ls_ema_swap", ema));
    LS_TRY(refresh("ls_ema_swap", ema));
    LS_TRY(ls_snapshot_swap("ls_ema_swap", &ema->averages));
    ema->swapped = !ema->swapped;
    return LS_OK;
}

ls_status ls_ema_put(ls_ema *ema) {
    ls_capture_refuse_here("ls_ema_put", LS_CAPTURE_STATE);
    LS_TRY(check_unswapped("ls_ema_put", ema));
    LS_TRY(refresh("ls_ema_put", ema));
    return ls_snapshot_put("ls_ema_put", &ema->averages);
}

int64_t ls_ema_count(const ls_ema *ema) {
    return ema != NULL ? ema->updates : 0;
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

static ls_status list_all(ls_ema *ema, ls_state_list *list) {
    LS_TRY(ls_snapshot_list(&ema->averages, NULL, list));
    return ls_state_add(list, "", (ls_state_word){"n_averaged", LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_I64, &ls_cpu,
                        &ema->updates);
}

ls_status ls_ema_state(ls_ema *ema, const ls_named **tensors, int *count) {
    if (ema == NULL || tensors == NULL || count == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_ema_state: an argument is NULL");
    }
    LS_TRY(check_unswapped("ls_ema_state", ema));
    LS_TRY(refresh("ls_ema_state", ema));
    ls_state_forget(&ema->listed);
    LS_TRY(list_all(ema, &ema->listed));
    *tensors = ema->listed.items;
    *count = ema->listed.count;
    return LS_OK;
}

/* Returns whether the tensor is an average in the 16-bit dtype of the model. Versions that did not keep averages in f32
 * saved such averages. */
static bool is_rounded(const ls_ema *ema, const ls_state_list *list, const ls_named *given) {
    int i = 0;
    while (i < ema->averages.count && strcmp(list->items[i].name, given->name) != 0) {
        i++;
    }
    const ls_tensor *average = list->items[i].tensor;
    return i < ema->averages.count && given->tensor->dtype == ls_snapshot_source(&ema->averages, i)->dtype &&
           given->tensor->dtype != average->dtype && ls_tensor_same_shape(given->tensor, average);
}

/* Lists the given tensors in `wide`, with copies in f32 of rounded averages. */
static ls_status widen(const ls_ema *ema, const ls_state_list *list, const ls_named *given, int count, ls_named *wide) {
    for (int i = 0; i < count; i++) {
        wide[i] = given[i];
        if (is_rounded(ema, list, &given[i])) {
            wide[i].tensor = ls_to(given[i].tensor, LS_F32);
            LS_TRY(wide[i].tensor != NULL ? LS_OK : ls_error_status());
        }
    }
    return LS_OK;
}

static ls_status restore(const char *call, const ls_ema *ema, const ls_state_list *list, const ls_named *given,
                         int count) {
    ls_named *wide = ls_allocate_zeroed((size_t)count, sizeof *wide);
    if (wide == NULL) {
        return ls_fail_memory(call, (size_t)count * sizeof *wide);
    }
    ls_scope *scope = ls_scope_open(); /* for the copies */
    ls_status status = ls_error_status();
    if (scope != NULL) {
        (void)ls_no_grad(true);
        status = widen(ema, list, given, count, wide);
        status = status == LS_OK ? ls_state_restore(call, "ls_ema", list, wide, count) : status;
        const ls_status ended = ls_scope_close(scope);
        status = status != LS_OK ? status : ended;
    }
    ls_free(wide);
    return status;
}

ls_status ls_ema_set_state(ls_ema *ema, const ls_named *tensors, int count) {
    const char *const call = "ls_ema_set_state";
    LS_TRY(ls_state_check_given(call, ema, tensors, count));
    LS_TRY(check_unswapped(call, ema));
    ls_state_list list = {0};
    ls_status status = list_all(ema, &list);
    if (status == LS_OK) {
        status = restore(call, ema, &list, tensors, count);
    }
    ls_state_forget(&list);
    return status;
}
