#include "formats/element.h"

#include <inttypes.h>
#include <string.h>

static const ls_element elements[] = {
    {"F32", "f4", LS_F32, .bytes = 4},
    {"F64", "f8", LS_F64, .bytes = 8},
    {"F16", "f2", LS_F16, .bytes = 2},
    {"BF16", NULL, LS_BF16, .bytes = 2},
    {"I64", "i8", LS_I64, .bytes = 8},
    {"I32", "i4", LS_I32, .bytes = 4},
    {"U8", "u1", LS_U8, .bytes = 1},
    {"BOOL", "b1", LS_BOOL, .bytes = 1},
    {"I8", "i1", LS_I32, .widened = true, .is_signed = true, .bytes = 1},
    {"I16", "i2", LS_I32, .widened = true, .is_signed = true, .bytes = 2},
    {"U16", "u2", LS_I32, .widened = true, .bytes = 2},
    {"U32", "u4", LS_I64, .widened = true, .bytes = 4},
    {"U64", "u8", LS_I64, .widened = true, .bytes = 8},
};

enum { ELEMENTS = sizeof elements / sizeof *elements };

const ls_element *ls_element_of_safetensors(const char *name) {
    for (int i = 0; i < ELEMENTS; i++) {
        if (strcmp(elements[i].safetensors, name) == 0) {
            return &elements[i];
        }
    }
    return NULL;
}

const ls_element *ls_element_of_numpy(const char *name) {
    for (int i = 0; i < ELEMENTS; i++) {
        if (elements[i].numpy != NULL && strcmp(elements[i].numpy, name) == 0) {
            return &elements[i];
        }
    }
    return NULL;
}

const ls_element *ls_element_of_dtype(ls_dtype dtype) {
    int i = 0;
    while (elements[i].dtype != dtype || elements[i].widened) {
        i++;
    }
    return &elements[i];
}

char *ls_elements_begin(const ls_element *element, void *memory, int64_t count) {
    return (char *)memory + (size_t)count * (ls_dtype_size(element->dtype) - element->bytes);
}

/* Returns an element of the file, which is little-endian. 64-bit elements keep their bits. */
static int64_t value_at(const ls_element *element, const char *from) {
    uint64_t bits = 0;
    memcpy(&bits, from, element->bytes);
    const int unused = 64 - 8 * element->bytes;
    return element->is_signed ? (int64_t)(bits << unused) >> unused : (int64_t)bits;
}

ls_status ls_elements_widen(const ls_element *element, void *memory, int64_t count, const char *call,
                            const char *what) {
    const char *from = ls_elements_begin(element, memory, count);
    const size_t width = ls_dtype_size(element->dtype);
    char *bytes = memory;
    for (int64_t i = 0; element->dtype == LS_BOOL && i < count; i++) {
        bytes[i] = bytes[i] != 0;
    }
    for (int64_t i = 0; element->widened && i < count;
         i++) { /* the file's elements are at the end, so none is overwritten before it is read */
        const int64_t value = value_at(element, from + (size_t)i * element->bytes);
        if (value < 0 && !element->is_signed) {
            return ls_fail(LS_ERR_UNSUPPORTED, "%s: %s: element %" PRId64 " is %" PRIu64 ", which i64 cannot hold",
                           call, what, i, (uint64_t)value);
        }
        memcpy((char *)memory + (size_t)i * width, &value, width);
    }
    return LS_OK;
}
