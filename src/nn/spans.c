#include "nn/spans.h"

/* Returns the offset of a parameter's gradient in the flat buffer, in elements; -1 if it is in another buffer. */
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

/* Cuts flat buffer `index`. Returns the number of spans. */
static int cut_flat(const ls_module *module, const ls_flat *flat, int index, const ls_span_rule *rule, ls_span *spans) {
    const size_t width = ls_dtype_size(flat->dtype);
    int used = 0;
    ls_span *open = NULL;
    int64_t end = flat->count; /* of the parameter, with the gap after it */
    for (int i = module->parameters.count - 1; i >= 0; i--) {
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
                *open = (ls_span){.flat = index, .last = i};
            }
            open->first = i;
            open->offset = offset;
            open->count += end - offset;
        }
        end = offset;
    }
    return used;
}

int ls_spans_cut(const ls_module *module, const ls_flat *flats, int flat_count, const ls_span_rule *rule,
                 ls_span *spans) {
    int used = 0;
    for (int i = 0; i < flat_count; i++) {
        used += cut_flat(module, &flats[i], i, rule, spans + used);
    }
    return used;
}
