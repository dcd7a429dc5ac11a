#include "nn/spans.h"

/* Returns the offset of a parameter's gradient in the flat buffer, in elements; -1 if the gradient is in a different
 * buffer. */
static int64_t offset_in(const ls_flat *flat, const ls_leaf *leaf) {
    if (leaf == NULL || leaf->gradient->storage->whole != flat->gradients) {
        return -1;
    }
    const char *base = flat->gradients->memory;
    return ((const char *)leaf->gradient->data - base) / (int64_t)ls_dtype_size(flat->dtype);
}

static bool is_full(const ls_span *span, size_t width, size_t bytes) {
    return bytes > 0 && (size_t)span->count * width >= bytes;
}

/* Splits a span of a flat buffer. Returns the number of spans. */
static int cut_span(const ls_module *module, const ls_flat *flat, const ls_span *whole, const ls_span_rule *rule,
                    ls_span *spans) {
    const size_t width = ls_dtype_size(flat->dtype);
    int used = 0;
    ls_span *open = NULL;
    int64_t end = whole->offset + whole->count; /* end of the parameter, including the gap after it */
    for (int i = whole->last; i >= whole->first; i--) {
        const ls_leaf *leaf = module->parameters.items[i].tensor->leaf;
        const int64_t offset = offset_in(flat, leaf);
        if (offset < 0) {
            continue;
        }
        if (rule->includes != NULL && !rule->includes(rule->user, leaf)) {
            open = NULL;
        } else {
            if (open == NULL || is_full(open, width, rule->bytes)) {
                open = &spans[used++];
                *open = (ls_span){.flat = whole->flat, .last = i};
            }
            open->first = i;
            open->offset = offset;
            open->count += end - offset;
        }
        end = offset;
    }
    return used;
}

ls_span ls_span_of_flat(const ls_module *module, const ls_flat *flats, int index) {
    return (ls_span){.flat = index, .count = flats[index].count, .last = module->parameters.count - 1};
}

int ls_spans_cut(const ls_module *module, const ls_flat *flats, int flat_count, const ls_span_rule *rule,
                 ls_span *spans) {
    if (rule->within != NULL) {
        return cut_span(module, &flats[rule->within->flat], rule->within, rule, spans);
    }
    int used = 0;
    for (int i = 0; i < flat_count; i++) {
        const ls_span whole = ls_span_of_flat(module, flats, i);
        used += cut_span(module, &flats[i], &whole, rule, spans + used);
    }
    return used;
}
