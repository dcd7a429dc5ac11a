/*
 * Tensors as text, in PyTorch's layout: all elements have the same format, which depends on the printed elements. Lines
 * have at most 80 characters. If there are more than 1,000 elements, only the first and last three along each axis are
 * printed. The dtype is printed unless it is f32, i64 or bool.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/locale.h"
#include "base/memory.h"
#include "tensor/capture.h"
#include "tensor/scope.h"

enum { DIGITS = 4, LINE_WIDTH = 80, EDGE = 3, WHOLE_UP_TO = 1000, ELEMENT_TEXT = 400 };

static const char prefix[] = "tensor(";

/* Text that is truncated at the capacity, while the full length is counted. */
typedef struct writer {
    char *text;
    size_t capacity;
    size_t length;
    size_t line_start;
} writer;

static void put(writer *out, const char *text, size_t length) {
    if (out->length < out->capacity) {
        const size_t room = out->capacity - out->length;
        memcpy(out->text + out->length, text, length < room ? length : room);
    }
    out->length += length;
}

static void put_text(writer *out, const char *text) {
    put(out, text, strlen(text));
}

static void put_spaces(writer *out, int count) {
    for (int i = 0; i < count; i++) {
        put(out, " ", 1);
    }
}

static void put_newlines(writer *out, int count) {
    for (int i = 0; i < count; i++) {
        put(out, "\n", 1);
    }
    out->line_start = out->length;
}

typedef struct printer {
    const ls_tensor *tensor;
    writer out;
    bool floating;
    bool cut;        /* omit the middle */
    bool whole;      /* all finite numbers are integers */
    bool scientific; /* values are too large, too small or too different for fixed-point notation */
    double least;    /* smallest nonzero finite magnitude; 0 if there is no such element */
    double largest;
    int width; /* of an element */
} printer;

typedef void (*element_visitor)(printer *p, const void *element);

static bool is_shown(const printer *p, int64_t size, int64_t i) {
    return !p->cut || size <= 2 * EDGE || i < EDGE || i >= size - EDGE;
}

/* Calls `visit` for every element that will be printed. */
static void visit_shown(printer *p, int axis, int64_t offset, element_visitor visit) {
    const ls_tensor *tensor = p->tensor;
    if (axis == tensor->ndim) {
        int64_t element;
        if (ls_tensor_fetch(tensor, offset, &element) == LS_OK) {
            visit(p, &element);
        }
        return;
    }
    for (int64_t i = 0; i < tensor->size[axis]; i++) {
        if (!is_shown(p, tensor->size[axis], i)) {
            i = tensor->size[axis] - EDGE;
        }
        visit_shown(p, axis + 1, offset + i * tensor->stride[axis], visit);
    }
}

/* Collects the properties on which the format depends. */
static void survey(printer *p, const void *element) {
    const double value = ls_element_number((ls_dtype)p->tensor->dtype, element);
    if (!isfinite(value) || value == 0) {
        return;
    }
    const double magnitude = fabs(value);
    p->least = p->least == 0 || magnitude < p->least ? magnitude : p->least;
    p->largest = magnitude > p->largest ? magnitude : p->largest;
    p->whole = p->whole && value == ceil(value);
}

static int element_text(const printer *p, const void *element, char *text) {
    const ls_dtype dtype = (ls_dtype)p->tensor->dtype;
    const double value = ls_element_number(dtype, element);
    if (dtype == LS_BOOL) {
        return snprintf(text, ELEMENT_TEXT, "%s", value != 0 ? "True" : "False");
    }
    if (dtype == LS_I64) {
        int64_t integer;
        memcpy(&integer, element, sizeof integer);
        return snprintf(text, ELEMENT_TEXT, "%lld", (long long)integer);
    }
    if (!isfinite(value)) {
        return snprintf(text, ELEMENT_TEXT, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    }
    if (p->scientific) {
        return snprintf(text, ELEMENT_TEXT, "%.*e", DIGITS, value);
    }
    if (p->floating && p->whole) {
        return snprintf(text, ELEMENT_TEXT, "%.0f.", value);
    }
    return snprintf(text, ELEMENT_TEXT, "%.*f", p->floating ? DIGITS : 0, value);
}

static void measure(printer *p, const void *element) {
    const double value = ls_element_number((ls_dtype)p->tensor->dtype, element);
    if (p->floating && (!isfinite(value) || value == 0)) {
        return; /* as in PyTorch, these do not affect the width */
    }
    char text[ELEMENT_TEXT];
    const int width = element_text(p, element, text);
    p->width = width > p->width ? width : p->width;
}

static void choose_format(printer *p) {
    if (p->floating) {
        visit_shown(p, 0, 0, survey);
        p->scientific =
            p->least > 0 && (p->largest / p->least > 1000 || p->largest > 1e8 || (!p->whole && p->least < 1e-4));
    }
    visit_shown(p, 0, 0, measure);
}

static void put_element(printer *p, int64_t offset) {
    char text[ELEMENT_TEXT];
    int64_t element;
    if (ls_tensor_fetch(p->tensor, offset, &element) == LS_OK) {
        const int length = element_text(p, &element, text);
        put_spaces(&p->out, p->width - length);
        put_text(&p->out, text);
    }
}

/* Prints the last axis, with as many elements per line as fit. */
static void put_row(printer *p, int64_t offset, int indent) {
    const int axis = p->tensor->ndim - 1;
    const int64_t size = p->tensor->size[axis];
    const int fit = (LINE_WIDTH - indent) / (p->width + 2);
    const int per_line = fit > 1 ? fit : 1;
    int in_line = 0;
    put_text(&p->out, "[");
    for (int64_t i = 0; i < size; i++) {
        if (in_line == per_line) {
            put_text(&p->out, ",");
            put_newlines(&p->out, 1);
            put_spaces(&p->out, indent + 1);
            in_line = 0;
        } else if (i > 0) {
            put_text(&p->out, ", ");
        }
        if (is_shown(p, size, i)) {
            put_element(p, offset + i * p->tensor->stride[axis]);
        } else {
            put_text(&p->out, " ...");
            i = size - EDGE - 1;
        }
        in_line++;
    }
    put_text(&p->out, "]");
}

static void put_axis(printer *p, int axis, int64_t offset, int indent) {
    const ls_tensor *tensor = p->tensor;
    if (axis == tensor->ndim) {
        put_element(p, offset);
        return;
    }
    if (axis == tensor->ndim - 1) {
        put_row(p, offset, indent);
        return;
    }
    const int64_t size = tensor->size[axis];
    put_text(&p->out, "[");
    for (int64_t i = 0; i < size; i++) {
        if (i > 0) {
            put_text(&p->out, ",");
            put_newlines(&p->out, tensor->ndim - axis - 1);
            put_spaces(&p->out, indent + 1);
        }
        if (is_shown(p, size, i)) {
            put_axis(p, axis + 1, offset + i * tensor->stride[axis], indent + 1);
        } else {
            put_text(&p->out, "...");
            i = size - EDGE - 1;
        }
    }
    put_text(&p->out, "]");
}

/* Prints ", text", on a new line if it does not fit. */
static void put_suffix(printer *p, const char *format, ...) LS_PRINTF(2, 3);
static void put_suffix(printer *p, const char *format, ...) {
    char suffix[LS_MAX_DIMS * 22 + 32];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(suffix, sizeof suffix, format, arguments);
    va_end(arguments);
    writer *out = &p->out;
    if (out->length - out->line_start + strlen(suffix) + 4 > LINE_WIDTH) {
        put_text(out, ",");
        put_newlines(out, 1);
        put_spaces(out, (int)strlen(prefix));
    } else {
        put_text(out, ", ");
    }
    put_text(out, suffix);
}

static void put_tensor(printer *p) {
    const ls_tensor *tensor = p->tensor;
    const ls_dtype dtype = (ls_dtype)tensor->dtype;
    put_text(&p->out, prefix);
    bool name_dtype = dtype != LS_F32;
    if (tensor->count == 0) {
        put_text(&p->out, "[]");
        if (tensor->ndim != 1) {
            const ls_shape_text sizes = ls_shape_describe(tensor->ndim, tensor->size);
            put_suffix(p, "size=(%.*s)", (int)strlen(sizes.text) - 2, sizes.text + 1);
        }
    } else {
        choose_format(p);
        put_axis(p, 0, 0, (int)strlen(prefix));
        name_dtype = name_dtype && dtype != LS_I64 && dtype != LS_BOOL;
    }
    if (name_dtype) {
        put_suffix(p, "dtype=%s", ls_dtype_name(dtype));
    }
    if (tensor->needs_grad) {
        put_suffix(p, "requires_grad=True");
    }
    put_text(&p->out, ")");
}

size_t ls_format(const ls_tensor *tensor, char *text, size_t capacity) {
    ls_capture_refuse_here("ls_format", LS_CAPTURE_READS);
    capacity = text != NULL ? capacity : 0;
    printer state = {.tensor = tensor, .out = {.text = text, .capacity = capacity > 0 ? capacity - 1 : 0}};
    if (tensor == NULL || !ls_tensor_is_here("ls_format", tensor)) {
        put_text(&state.out, "NULL");
    } else {
        state.floating = ls_dtype_is_floating((ls_dtype)tensor->dtype);
        state.cut = tensor->count > WHOLE_UP_TO;
        state.whole = true;
        state.width = 1;
        const locale_t before = ls_locale_enter();
        put_tensor(&state);
        ls_locale_leave(before);
    }
    if (capacity > 0) {
        text[state.out.length < capacity ? state.out.length : capacity - 1] = '\0';
    }
    return state.out.length;
}

void ls_print(const ls_tensor *tensor) {
    ls_capture_refuse_here("ls_print", LS_CAPTURE_READS);
    char local[2048];
    const size_t length = ls_format(tensor, local, sizeof local);
    char *text = length < sizeof local ? local : ls_allocate(length + 1);
    if (text == NULL) {
        text = local; /* a truncated text is better than none */
    } else if (text != local) {
        (void)ls_format(tensor, text, length + 1);
    }
    puts(text);
    if (text != local) {
        ls_free(text);
    }
}
