/* Queries of a tensor's properties, without access to its elements. */
#include <stdio.h>

#include "tensor/capture.h"
#include "tensor/device.h"
#include "tensor/scope.h"

int ls_axis_index(int axis, int ndim) {
    const int index = axis < 0 ? axis + ndim : axis;
    return index >= 0 && index < ndim ? index : -1;
}

ls_shape_text ls_shape_describe(int ndim, const int64_t *size) {
    ls_shape_text shape;
    size_t at = 0;
    shape.text[at++] = '[';
    for (int i = 0; i < ndim; i++) {
        at += (size_t)snprintf(shape.text + at, sizeof shape.text - at, i > 0 ? ", %lld" : "%lld", (long long)size[i]);
    }
    shape.text[at++] = ']';
    shape.text[at] = '\0';
    return shape;
}

ls_shape ls_shape_make(int ndim, const int64_t *size) {
    ls_shape shape = {ndim >= 0 && ndim <= LS_MAX_DIMS && (ndim == 0 || size != NULL) ? ndim : -1, {0}};
    for (int i = 0; i < shape.ndim; i++) {
        shape.size[i] = size[i];
    }
    return shape;
}

ls_axes ls_axes_make(int count, const int *axis) {
    ls_axes axes = {count >= 0 && count <= LS_MAX_DIMS && (count == 0 || axis != NULL) ? count : -1, {0}};
    for (int i = 0; i < axes.count; i++) {
        axes.axis[i] = axis[i];
    }
    return axes;
}

/* Reports a tensor that is NULL or was freed. */
static inline bool is_there(const char *call, const ls_tensor *tensor) {
    return tensor != NULL && ls_tensor_exists(call, tensor);
}

int ls_ndim(const ls_tensor *tensor) {
    return is_there("ls_ndim", tensor) ? tensor->ndim : 0;
}

int64_t ls_size(const ls_tensor *tensor, int axis) {
    const int index = is_there("ls_size", tensor) ? ls_axis_index(axis, tensor->ndim) : -1;
    return index >= 0 ? tensor->size[index] : 0;
}

int64_t ls_stride(const ls_tensor *tensor, int axis) {
    const int index = is_there("ls_stride", tensor) ? ls_axis_index(axis, tensor->ndim) : -1;
    return index >= 0 ? tensor->stride[index] : 0;
}

ls_shape ls_shape_of(const ls_tensor *tensor) {
    return is_there("ls_shape_of", tensor) ? ls_shape_make(tensor->ndim, tensor->size) : (ls_shape){0};
}

int64_t ls_numel(const ls_tensor *tensor) {
    return is_there("ls_numel", tensor) ? tensor->count : 0;
}

ls_dtype ls_dtype_of(const ls_tensor *tensor) {
    return is_there("ls_dtype_of", tensor) ? (ls_dtype)tensor->dtype : LS_F32;
}

bool ls_is_contiguous(const ls_tensor *tensor) {
    return is_there("ls_is_contiguous", tensor) && tensor->contiguous;
}

/* Returns the elements if the program can access them. Only some calls accept tensors that are not contiguous. */
static void *data_of(const char *call, const ls_tensor *tensor, bool any_strides) {
    ls_capture_refuse_here(call, LS_CAPTURE_READS);
    if (tensor == NULL) {
        (void)ls_fail(LS_ERR_ARGUMENT, "%s: tensor is NULL", call);
        return ls_scope_failed();
    }
    if (!ls_tensor_is_here(call, tensor)) {
        return NULL;
    }
    if (!tensor->contiguous && !any_strides) {
        (void)ls_fail(LS_ERR_STATE, "%s: the tensor %s is not contiguous; use ls_contiguous", call,
                      LS_SHAPE_TEXT(tensor));
        return ls_scope_failed();
    }
    if (!ls_tensor_device(tensor)->is_host) {
        (void)ls_fail(LS_ERR_STATE,
                      "%s: the tensor %s is on %s, whose memory the program cannot read; copy it with "
                      "ls_to_device(tensor, \"cpu\")",
                      call, LS_SHAPE_TEXT(tensor), ls_tensor_device(tensor)->name);
        return ls_scope_failed();
    }
    if (tensor->spread >= LS_SPREAD_COMBINED) { /* the program may send the elements to other ranks */
        ((ls_tensor *)tensor)->spread = 0;
    }
    return tensor->data;
}

const void *ls_data_const(const ls_tensor *tensor) {
    return data_of("ls_data_const", tensor, false);
}

void *ls_data(ls_tensor *tensor) {
    return data_of("ls_data", tensor, false);
}

void *ls_data_strided(ls_tensor *tensor) {
    return data_of("ls_data_strided", tensor, true);
}

const char *ls_device_of(const ls_tensor *tensor) {
    return is_there("ls_device_of", tensor) ? ls_tensor_device(tensor)->name : NULL;
}
