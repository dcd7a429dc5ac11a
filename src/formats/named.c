#include "formats/named.h"

#include <string.h>

#include "tensor/tensor.h"

ls_status ls_named_check(const char *call, const ls_named *tensors, int count) {
    if (count < 0 || (tensors == NULL && count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %d tensors%s", call, count, tensors == NULL ? " at NULL" : "");
    }
    for (int i = 0; i < count; i++) {
        const ls_tensor *tensor = tensors[i].tensor;
        if (tensors[i].name == NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: tensor %d has no name", call, i);
        }
        if (tensor != NULL && ls_tensor_is_gone(tensor)) {
            return ls_tensor_refuse_gone(call, i + 1, tensor);
        }
        if (tensor == NULL || !tensor->contiguous) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: tensor %d (%s) is %s", call, i, tensors[i].name,
                           tensor == NULL ? "NULL" : "not contiguous: ls_contiguous first");
        }
        if (ls_named_find(tensors, i, tensors[i].name) != NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: two tensors are named %s", call, tensors[i].name);
        }
    }
    return LS_OK;
}

ls_tensor *ls_named_find(const ls_named *tensors, int count, const char *name) {
    for (int i = 0; name != NULL && i < count; i++) {
        if (strcmp(tensors[i].name, name) == 0) {
            return tensors[i].tensor;
        }
    }
    return NULL;
}

size_t ls_tensor_bytes(const ls_tensor *tensor) {
    return (size_t)ls_numel(tensor) * ls_dtype_size(ls_dtype_of(tensor));
}
