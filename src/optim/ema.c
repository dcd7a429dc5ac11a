/* Averages of a model's parameters over the steps of its training. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "nn/module.h"
#include "optim/optimizer.h"

struct ls_ema {
    ls_module *model; /* lent */
    double decay;
    int64_t updates;
    ls_tensor **averages; /* of the parameters, in their order */
    int count;
    bool swapped; /* the averages are in the model, its own parameters here */
    ls_state_list lent;
};

/* ---- making and freeing ------------------------------------------------------------------------------------------ */

static ls_status copy_parameter(ls_ema *ema, int index) {
    const ls_tensor *parameter = ls_module_parameter(ema->model, index);
    if (parameter->dtype != LS_F32 && parameter->dtype != LS_F64) {
        return ls_fail(LS_ERR_UNSUPPORTED, "ls_ema_new: parameter %s is of %s; averages are of f32 and f64",
                       ls_module_parameter_name(ema->model, index), ls_dtype_name((ls_dtype)parameter->dtype));
    }
    ls_tensor *average = ls_tensor_like_owned("ls_ema_new", parameter, (ls_dtype)parameter->dtype);
    if (average == NULL) {
        return ls_error_status();
    }
    ema->averages[ema->count++] = average;
    return ls_kernels_of(parameter)->copy(ls_stream_of(parameter), average, parameter);
}

static ls_status begin(ls_ema *ema) {
    ls_flat flats[LS_FLAT_LIMIT];
    if (ls_module_flatten(ema->model, flats) < 0) { /* dense from here on */
        return ls_error_status();
    }
    const int count = ls_module_parameter_count(ema->model);
    ema->averages = ls_allocate_zeroed((size_t)count, sizeof(ls_tensor *));
    if (ema->averages == NULL) {
        return ls_fail_memory("ls_ema_new", (size_t)count * sizeof(ls_tensor *));
    }
    for (int i = 0; i < count; i++) {
        LS_TRY(copy_parameter(ema, i));
    }
    return LS_OK;
}

ls_ema *ls_ema_new(ls_module *model, double decay) {
    if (model == NULL) {
        (void)ls_fail_missing("ls_ema_new: the model");
        return NULL;
    }
    if (ls_option_within("ls_ema_new", "decay", decay, 0, 1) != LS_OK) {
        return NULL;
    }
    ls_ema *ema = ls_allocate_zeroed(1, sizeof *ema);
    if (ema == NULL) {
        (void)ls_fail_memory("ls_ema_new", sizeof *ema);
        return NULL;
    }
    ema->model = model;
    ema->decay = decay;
    if (begin(ema) != LS_OK) {
        ls_ema_free(ema);
        return NULL;
    }
    return ema;
}

void ls_ema_free(ls_ema *ema) {
    if (ema == NULL) {
        return;
    }
    ls_state_forget(&ema->lent);
    for (int i = 0; i < ema->count; i++) {
        ls_tensor_drop(ema->averages[i]);
    }
    ls_free(ema->averages);
    ls_free(ema);
}

/* ---- averaging --------------------------------------------------------------------------------------------------- */

static ls_status check_model(const char *call, const ls_ema *ema) {
    for (int i = 0; i < ema->count; i++) {
        const ls_device *here = ls_tensor_device(ema->averages[i]);
        const ls_device *there = ls_tensor_device(ls_module_parameter(ema->model, i));
        if (here != there) {
            return ls_fail(LS_ERR_STATE,
                           "%s: parameter %s is on %s, its average on %s: make the averages after "
                           "ls_to_device",
                           call, ls_module_parameter_name(ema->model, i), there->name, here->name);
        }
    }
    return LS_OK;
}

/* average = decay average + (1 - decay) parameter; the first time the parameter itself. */
static ls_status average_parameter(const ls_ema *ema, const ls_tensor *parameter, ls_tensor *average) {
    const ls_kernels *kernels = ls_kernels_of(parameter);
    ls_stream *stream = ls_stream_of(parameter);
    if (ema->updates == 0) {
        return kernels->copy(stream, average, parameter);
    }
    const ls_dtype dtype = (ls_dtype)parameter->dtype;
    LS_TRY(kernels->scale(stream, dtype, average->count, ema->decay, average->data));
    return kernels->axpy(stream, dtype, average->count, 1 - ema->decay, parameter->data, average->data);
}

ls_status ls_ema_update(ls_ema *ema) {
    if (ema == NULL) {
        return ls_fail_missing("ls_ema_update: the average");
    }
    if (ema->swapped) {
        return ls_fail(LS_ERR_STATE, "ls_ema_update: the averages are in the model: ls_ema_swap first");
    }
    LS_TRY(check_model("ls_ema_update", ema));
    for (int i = 0; i < ema->count; i++) {
        LS_TRY(average_parameter(ema, ls_module_parameter(ema->model, i), ema->averages[i]));
    }
    ema->updates++;
    return LS_OK;
}

static ls_status swap(const ls_tensor *parameter, ls_tensor *average) {
    const ls_device *device = ls_tensor_device(parameter);
    ls_stream *stream = ls_stream_of(parameter);
    const size_t bytes = (size_t)parameter->count * ls_dtype_size((ls_dtype)parameter->dtype);
    void *between = device->allocate(device, bytes);
    if (between == NULL) {
        return ls_fail_memory("ls_ema_swap", bytes);
    }
    ls_status status = device->copy(stream, between, parameter->data, bytes);
    status = status == LS_OK ? device->copy(stream, parameter->data, average->data, bytes) : status;
    status = status == LS_OK ? device->copy(stream, average->data, between, bytes) : status;
    device->release(device, between, bytes);
    ls_tensor_changed(parameter, "ls_ema_swap");
    return status;
}

ls_status ls_ema_swap(ls_ema *ema) {
    if (ema == NULL) {
        return ls_fail_missing("ls_ema_swap: the average");
    }
    LS_TRY(check_model("ls_ema_swap", ema));
    for (int i = 0; i < ema->count; i++) {
        LS_TRY(swap(ls_module_parameter(ema->model, i), ema->averages[i]));
    }
    ema->swapped = !ema->swapped;
    return LS_OK;
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

static ls_status list_all(ls_ema *ema, ls_state_list *list) {
    for (int i = 0; i < ema->count; i++) {
        const ls_tensor *average = ema->averages[i];
        LS_TRY(ls_state_add(list, "", (ls_state_word){ls_module_parameter_name(ema->model, i), LS_STATE_ANY},
                            ls_shape_of(average), (ls_dtype)average->dtype, ls_tensor_device(average), average->data));
    }
    return ls_state_add(list, "", (ls_state_word){"n_averaged", LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_I64, &ls_cpu,
                        &ema->updates);
}

ls_status ls_ema_state(ls_ema *ema, const ls_named **tensors, int *count) {
    if (ema == NULL || tensors == NULL || count == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_ema_state: an argument is NULL");
    }
    if (ema->swapped) {
        return ls_fail(LS_ERR_STATE, "ls_ema_state: the averages are in the model: ls_ema_swap first");
    }
    ls_state_forget(&ema->lent);
    LS_TRY(list_all(ema, &ema->lent));
    *tensors = ema->lent.items;
    *count = ema->lent.count;
    return LS_OK;
}

ls_status ls_ema_set_state(ls_ema *ema, const ls_named *tensors, int count) {
    const char *const call = "ls_ema_set_state";
    LS_TRY(ls_state_check_given(call, ema, tensors, count));
    if (ema->swapped) {
        return ls_fail(LS_ERR_STATE, "%s: the averages are in the model: ls_ema_swap first", call);
    }
    ls_state_list list = {0};
    ls_status status = list_all(ema, &list);
    if (status == LS_OK) {
        status = ls_state_restore(call, "ls_ema", &list, tensors, count);
    }
    ls_state_forget(&list);
    return status;
}
