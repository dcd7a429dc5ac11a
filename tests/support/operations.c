#include "tests/support/operations.h"
#include "tests/support/elements.h"

#include <math.h>

#include "tests/support/unit.h"

static fixture *read_one(FILE *file) {
    fixture *one = calloc(1, sizeof *one);
    assert_non_null(one);
    const int found = fscanf(file, "%63s %d", one->name, &one->count);
    if (found == EOF) {
        free(one);
        return NULL;
    }
    assert_int_equal(found, 2);
    one->values = calloc((size_t)one->count + 1, sizeof *one->values);
    assert_non_null(one->values);
    for (int i = 0; i < one->count; i++) {
        assert_int_equal(fscanf(file, "%lf", &one->values[i]), 1);
    }
    return one;
}

fixture *fixtures_load(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", LS_FIXTURES, name);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fail_msg("cannot open %s", path);
    }
    fixture *first = NULL;
    for (fixture *one = read_one(file); one != NULL; one = read_one(file)) {
        one->next = first;
        first = one;
    }
    fclose(file);
    return first;
}

void fixtures_free(fixture *first) {
    while (first != NULL) {
        fixture *next = first->next;
        free(first->values);
        free(first);
        first = next;
    }
}

const fixture *fixture_find(const fixture *first, const char *name) {
    for (; first != NULL; first = first->next) {
        if (strcmp(first->name, name) == 0) {
            return first;
        }
    }
    fail_msg("no fixture %s", name);
    return NULL;
}

ls_tensor *wave_between(ls_shape shape, int salt, double low, double high) {
    ls_tensor *tensor = ls_empty(shape, LS_F64);
    assert_non_null(tensor);
    double *values = elements(tensor);
    for (int64_t i = 0; i < ls_numel(tensor); i++) {
        values[i] = low + (high - low) * (0.5 + 0.5 * sin(1.37 * salt + 0.73 * (double)i));
    }
    return tensor;
}

ls_tensor *wave(ls_shape shape, int salt) {
    ls_tensor *tensor = wave_between(shape, salt, -2.0, 2.0);
    assert_int_equal(ls_set_requires_grad(tensor, true), LS_OK);
    return tensor;
}

/* Compares `part` with the expected values beginning at index `at`. Returns the index of the first value after the
 * part. */
static int check_part(const fixture *expected, int at, const char *what, const ls_tensor *part) {
    if (part == NULL) {
        fail_msg("%s: no %s: %s", expected->name, what, ls_error_message());
    }
    const double *values = elements(part);
    for (int64_t i = 0; i < ls_numel(part); i++, at++) {
        if (at >= expected->count) {
            fail_msg("%s: more values than PyTorch has, at %s[%d]", expected->name, what, (int)i);
        }
        const double right = expected->values[at];
        const bool same = isnan(right) ? isnan(values[i]) : fabs(values[i] - right) <= 1e-8 * fmax(1.0, fabs(right));
        if (!same) {
            fail_msg("%s: %s[%d] is %.12g, PyTorch has %.12g", expected->name, what, (int)i, values[i], right);
        }
    }
    return at;
}

void check_against(const fixture *first, const char *name, ls_tensor *result, ls_tensor *const *inputs, int count,
                   ls_tensor *const *extra, int extra_count) {
    const fixture *expected = fixture_find(first, name);
    if (result == NULL) {
        fail_msg("%s: %s", name, ls_error_message());
    }
    ls_tensor *loss = ls_sum(ls_mul(result, wave_between(ls_shape_of(result), 99, -2.0, 2.0)));
    if (ls_backward(loss) != LS_OK) {
        fail_msg("%s: %s", name, ls_error_message());
    }
    int at = check_part(expected, 0, "result", result);
    for (int i = 0; i < count; i++) {
        char what[32];
        snprintf(what, sizeof what, "gradient of input %d", i);
        at = check_part(expected, at, what, ls_grad(inputs[i]));
    }
    for (int i = 0; i < extra_count; i++) {
        at = check_part(expected, at, "changed tensor", extra[i]);
    }
    assert_int_equal(at, expected->count);
}

void check_refused_in(ls_scope *scope, const ls_tensor *result, ls_status status, const char *words) {
    if (result != NULL && strcmp(ls_device_of(result), "cpu") != 0) { /* kernels report errors later */
        const char *said = strstr(words, ": ");
        words = said != NULL ? said + 2 : words;
        assert_int_equal(ls_device_wait(ls_device_of(result)), status);
        assert_int_equal(ls_scope_end(scope), LS_OK);
    } else {
        assert_null(result);
        assert_int_equal(ls_scope_end(scope), status);
    }
    if (strstr(ls_error_message(), words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", ls_error_message(), words);
    }
}

static double precision_of(ls_dtype dtype) {
    return dtype == LS_BF16 ? 0x1p-8 : dtype == LS_F16 ? 0x1p-11 : 1e-6;
}

void check_values(const ls_tensor *tensor, ls_shape shape, ls_dtype dtype, const double *values) {
    if (tensor == NULL) {
        fail_msg("no tensor: %s", ls_error_message());
    }
    assert_int_equal(ls_dtype_of(tensor), dtype);
    assert_int_equal(ls_ndim(tensor), shape.ndim);
    int64_t count = 1;
    for (int i = 0; i < shape.ndim; i++) {
        assert_int_equal(ls_size(tensor, i), shape.size[i]);
        count *= shape.size[i];
    }
    for (int64_t k = 0; k < count; k++) {
        int64_t index[LS_MAX_DIMS];
        int64_t rest = k;
        for (int i = shape.ndim - 1; i >= 0; i--) {
            index[i] = rest % shape.size[i];
            rest /= shape.size[i];
        }
        const double is = ls_at(tensor, index);
        const double difference = fabs(is - values[k]);
        if (is != values[k] && !(isnan(is) && isnan(values[k])) &&
            !(difference <= precision_of(dtype) * (1 + fabs(values[k])))) {
            fail_msg("element %lld is %.9g, not %.9g", (long long)k, is, values[k]);
        }
    }
}

ls_tensor *leaf_from(ls_shape shape, const double *values) {
    ls_tensor *leaf = ls_from(shape, LS_F64, values);
    assert_int_equal(ls_set_requires_grad(leaf, true), LS_OK);
    return leaf;
}
