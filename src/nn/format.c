/* Printing of models. */
#include <stdarg.h>
#include <stdio.h>

#include "nn/module.h"

typedef struct model_text {
    char *text;
    size_t capacity;
    size_t length; /* length of the complete text, even if it does not fit */
} model_text;

static void write_text(model_text *out, const char *format, ...) LS_PRINTF(2, 3);

static void write_text(model_text *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const size_t room = out->length < out->capacity ? out->capacity - out->length : 0;
    const int written = vsnprintf(room > 0 ? out->text + out->length : NULL, room, format, arguments);
    va_end(arguments);
    out->length += written > 0 ? (size_t)written : 0;
}

static void write_tensors(model_text *out, const ls_named_list *list, int depth) {
    for (int i = 0; i < list->count; i++) {
        write_text(out, "%*s%s: %s %s\n", 2 * depth, "", list->items[i].name, LS_SHAPE_TEXT(list->items[i].tensor),
                   ls_dtype_name(ls_dtype_of(list->items[i].tensor)));
    }
}

static void write_module(model_text *out, const ls_module *module, const char *name, int depth) {
    write_text(out, "%*s%s%s%s\n", 2 * depth, "", name, *name != '\0' ? ": " : "", module->type->name);
    write_tensors(out, &module->own_parameters, depth + 1);
    write_tensors(out, &module->own_buffers, depth + 1);
    for (int i = 0; i < module->child_count; i++) {
        write_module(out, module->children[i].module, module->children[i].name, depth + 1);
    }
}

size_t ls_module_format(const ls_module *module, char *text, size_t capacity) {
    model_text out = {.text = text, .capacity = text != NULL ? capacity : 0};
    if (!ls_module_is_here(module)) {
        write_text(&out, "NULL\n");
    } else {
        write_module(&out, module, "", 0);
        write_text(&out, "%lld parameters\n", (long long)ls_module_size(module));
    }
    return out.length;
}
