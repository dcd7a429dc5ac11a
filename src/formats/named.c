#include "formats/named.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"
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
                           tensor == NULL ? "NULL" : "not contiguous: call ls_contiguous first");
        }
        if (ls_named_find(tensors, i, tensors[i].name) != NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: two tensors are named %s", call, tensors[i].name);
        }
    }
    return LS_OK;
}

ls_status ls_metadata_count(const char *call, const char *const *metadata, size_t *pairs) {
    for (*pairs = 0; metadata != NULL && metadata[2 * *pairs] != NULL; ++*pairs) {
        const char *key = metadata[2 * *pairs], *value = metadata[2 * *pairs + 1];
        if (value == NULL) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: the key %s of the metadata has no value", call, key);
        }
        const bool key_is_utf8 = ls_text_is_utf8(key);
        if (!key_is_utf8 || !ls_text_is_utf8(value)) {
            return ls_fail(LS_ERR_ARGUMENT, "%s: the %s %.100s of the metadata is not UTF-8; convert it to UTF-8", call,
                           key_is_utf8 ? "value of the key" : "key", key);
        }
        for (size_t earlier = 0; earlier < *pairs; earlier++) {
            if (strcmp(metadata[2 * earlier], key) == 0) {
                return ls_fail(LS_ERR_ARGUMENT, "%s: the metadata contains the key %.100s twice", call, key);
            }
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

ls_status ls_named_set_reserve(const char *call, ls_named_set *set, size_t count) {
    set->items = ls_allocate_zeroed(count, sizeof *set->items);
    set->refused = ls_allocate_zeroed(count, sizeof *set->refused);
    return set->items != NULL && set->refused != NULL
               ? LS_OK
               : ls_fail_memory(call, count * (sizeof *set->items + sizeof *set->refused));
}

ls_status ls_named_set_refuse(const char *call, ls_named_set *set, const char *name) {
    char *reason = ls_duplicate_string(ls_error_message());
    if (reason == NULL) {
        return ls_fail_memory(call, strlen(ls_error_message()) + 1);
    }
    set->refused[set->refused_count++] = (ls_refused){.name = name, .reason = reason};
    return LS_OK;
}

void ls_named_set_forgive(const ls_named_set *set, const ls_saved_error *before) {
    if (set->refused_count > 0) {
        (void)ls_error_put_back(before);
    }
}

ls_named ls_named_set_at(const ls_named_set *set, int index) {
    return index >= 0 && index < set->count ? set->items[index] : (ls_named){0};
}

ls_tensor *ls_named_set_find(const ls_named_set *set, const char *name) {
    for (int i = 0; name != NULL && i < set->refused_count; i++) {
        if (strcmp(set->refused[i].name, name) == 0) {
            return ls_fail_null(LS_ERR_UNSUPPORTED, "%s", set->refused[i].reason);
        }
    }
    return ls_named_find(set->items, set->count, name);
}

void ls_named_set_free(ls_named_set *set) {
    for (int i = 0; i < set->count; i++) {
        ls_tensor_drop(set->items[i].tensor);
    }
    for (int i = 0; i < set->refused_count; i++) {
        ls_free(set->refused[i].reason);
    }
    ls_free(set->items);
    ls_free(set->refused);
}

size_t ls_tensor_bytes(const ls_tensor *tensor) {
    return (size_t)ls_numel(tensor) * ls_dtype_size(ls_dtype_of(tensor));
}
