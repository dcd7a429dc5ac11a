/* Attributes that change a variable's values: the CF conventions. */
#include <math.h>
#include <stdio.h>

#include "formats/array_file.h"

/* The variable whose attributes are read. */
typedef struct reader {
    const ls_array_format *format;
    ls_array *array;
    char *reason;
} reader;

/* Sets *count to the number of values, 0 if there is no such attribute. Rejects a non-numeric attribute, because
 * ignoring it would give wrong values. */
static bool read_attribute(const reader *r, const char *name, bool as_elements, int most, ls_array_number *numbers,
                           int *count) {
    *count = r->format->attribute(r->array, name, as_elements, numbers);
    if (*count < 0 || *count > most) {
        (void)snprintf(r->reason, LS_ARRAY_REASON, "its attribute %s must be %s: correct or delete the attribute", name,
                       most > 1 ? "one to three numbers" : "one number");
        return false;
    }
    return true;
}

static bool read_packing(const reader *r, const char *name, double *value) {
    ls_array_number numbers[LS_ARRAY_NUMBERS];
    int count = 0;
    if (!read_attribute(r, name, false, 1, numbers, &count)) {
        return false;
    }
    if (count > 0) {
        r->array->packed = true;
        *value = numbers[0].real;
    }
    return true;
}

/* Makes a number comparable with stored elements. Returns false if no element can equal it. */
static bool convert_to_element(const ls_array *array, ls_array_number *number) {
    const bool is_unsigned = array->kind == LS_ARRAY_UNSIGNED;
    if (number->kind == array->kind) {
        return true;
    }
    if (number->kind == LS_ARRAY_FLOATING) {
        const double real = number->real, limit = is_unsigned ? 0x1p64 : 0x1p63;
        if (real != floor(real) || real >= limit || real < (is_unsigned ? 0 : -limit)) {
            return false;
        }
        number->integer = is_unsigned ? (int64_t)(uint64_t)real : (int64_t)real;
    } else if (number->integer < 0) { /* negative, or at least 2^63 */
        return false;
    }
    number->kind = array->kind;
    return true;
}

static bool read_missing(const reader *r, const char *name, int most, int *count) {
    ls_array_number numbers[LS_ARRAY_NUMBERS];
    if (!read_attribute(r, name, true, most, numbers, count)) {
        return false;
    }
    for (int i = 0; i < *count; i++) {
        if (convert_to_element(r->array, &numbers[i])) {
            r->array->missing[r->array->missing_count++] = numbers[i];
        }
    }
    return true;
}

bool ls_array_read_attributes(const ls_array_format *format, ls_array *array, char reason[LS_ARRAY_REASON]) {
    const reader r = {format, array, reason};
    ls_array_number fill;
    int fills = 0, others = 0;
    array->scale = 1;
    if (format->attribute(array, "_Unsigned", false, array->missing) != 0) {
        (void)snprintf(reason, LS_ARRAY_REASON, "it has the attribute _Unsigned: convert it to an unsigned type");
        return false;
    }
    if (!read_packing(&r, "scale_factor", &array->scale) || !read_packing(&r, "add_offset", &array->offset) ||
        !read_missing(&r, "_FillValue", 1, &fills) ||
        !read_missing(&r, "missing_value", LS_ARRAY_NUMBERS - 1, &others)) {
        return false;
    }
    if (fills == 0 && array->default_fill && ls_array_default_fill(array->kind, array->bytes, &fill)) {
        array->missing[array->missing_count++] = fill;
    }
    return true;
}
