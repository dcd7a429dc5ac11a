/* Vectors of a descent. Each vector is as long as all parameters together. The parameters are treated as such a
 * vector too. */
#include <math.h>

#include "optim/descent.h"

void *ls_vector_new(ls_descent *descent) {
    const size_t bytes = descent->group->bytes;
    const ls_device *device = descent->group->device;
    void *vector = device->allocate(device, bytes);
    if (vector == NULL) {
        (void)ls_fail_memory(descent->optimizer->type->name, bytes);
        return NULL;
    }
    descent->vectors++;
    ls_account_begin(ls_thread_present, descent->account, LS_MEMORY_OPTIMIZER, bytes);
    if (device->clear(descent->stream, vector, bytes) != LS_OK) {
        ls_vector_free(descent, vector);
        vector = NULL;
    }
    return vector;
}

void ls_vector_free(ls_descent *descent, void *vector) {
    const ls_device *device = descent->group->device;
    if (vector != NULL) {
        descent->vectors--;
        ls_account_end(ls_thread(), descent->account, LS_MEMORY_OPTIMIZER, descent->group->bytes);
        device->release(device, vector, descent->group->bytes);
    }
}

ls_status ls_vector_copy(const ls_descent *descent, void *to, const void *from) {
    return descent->group->device->copy(descent->stream, to, from, descent->group->bytes);
}

ls_status ls_descent_combine(const ls_descent *descent, double *number, ls_reduction reduction) {
    ls_comm *comm = descent->optimizer->comm;
    return comm != NULL ? ls_comm_allreduce(comm, number, number, 1, LS_F64, reduction, NULL) : LS_OK;
}

/* Returns a kernel's result for this rank's shard, reduced over all shards. */
static ls_status fetch_number(const ls_descent *descent, double *number, ls_reduction reduction) {
    LS_TRY(ls_device_fetch(descent->group->device, number, descent->number, sizeof *number));
    return ls_descent_combine(descent, number, reduction);
}

ls_status ls_vector_dot(const ls_descent *descent, const void *x, const void *y, double *sum) {
    LS_TRY(descent->kernels->dot(descent->stream, descent->dtype, descent->count, x, y, descent->number));
    return fetch_number(descent, sum, LS_SUM);
}

static size_t slot_bytes(const ls_optimizer_slot *slot) {
    return (size_t)slot->parameter->count * ls_dtype_size((ls_dtype)slot->parameter->dtype);
}

ls_status ls_descent_gather_parameters(const ls_descent *descent, char *vector) {
    for (int i = 0; i < descent->group->count; i++) {
        const ls_optimizer_slot *slot = &descent->group->slots[i];
        LS_TRY(descent->group->device->copy(descent->stream, vector + slot->offset, slot->parameter->data,
                                            slot_bytes(slot)));
    }
    return LS_OK;
}

/* The gradient counts as zero if the parameter is frozen or has no gradient. */
ls_status ls_descent_gather_gradient(const ls_descent *descent, char *vector) {
    const ls_device *device = descent->group->device;
    for (int i = 0; i < descent->group->count; i++) {
        const ls_optimizer_slot *slot = &descent->group->slots[i];
        const ls_tensor *gradient = ls_requires_grad(slot->parameter) ? ls_grad(slot->parameter) : NULL;
        LS_TRY(gradient != NULL ? device->copy(descent->stream, vector + slot->offset, gradient->data, slot_bytes(slot))
                                : device->clear(descent->stream, vector + slot->offset, slot_bytes(slot)));
    }
    return LS_OK;
}

ls_status ls_descent_move(const ls_descent *descent, double step) {
    for (int i = 0; i < descent->group->count; i++) {
        const ls_optimizer_slot *slot = &descent->group->slots[i];
        LS_TRY(descent->kernels->axpy(descent->stream, descent->dtype, slot->parameter->count, step,
                                      (const char *)descent->direction + slot->offset, slot->parameter->data));
        ls_tensor_changed(slot->parameter, descent->optimizer->type->name);
    }
    return LS_OK;
}

ls_status ls_descent_place(ls_descent *descent, double step) {
    for (int i = 0; i < descent->group->count; i++) {
        const ls_optimizer_slot *slot = &descent->group->slots[i];
        LS_TRY(descent->group->device->copy(descent->stream, slot->parameter->data,
                                            (const char *)descent->start + slot->offset, slot_bytes(slot)));
        ls_tensor_changed(slot->parameter, descent->optimizer->type->name);
    }
    return step != 0 ? ls_descent_move(descent, step) : LS_OK;
}

ls_status ls_vector_largest(const ls_descent *descent, const void *vector, double *largest) {
    LS_TRY(
        descent->kernels->largest_magnitude(descent->stream, descent->dtype, descent->count, vector, descent->number));
    return fetch_number(descent, largest, LS_MAX);
}

ls_status ls_descent_steepest(ls_descent *descent, double learning_rate) {
    double sum = 0;
    LS_TRY(ls_vector_copy(descent, descent->direction, descent->gradient[0]));
    LS_TRY(ls_vector_scale(descent, -1, descent->direction));
    LS_TRY(descent->kernels->sum_of_magnitudes(descent->stream, descent->dtype, descent->count, descent->direction,
                                               descent->number));
    LS_TRY(fetch_number(descent, &sum, LS_SUM));
    descent->step = fmin(1, 1 / sum) * learning_rate;
    return LS_OK;
}
