/*
 * Only gradients of parameters that are not frozen are exchanged. Adjacent gradients form a span. For one all-reduce,
 * the spans are moved together towards the end of the buffer, before the other numbers, and moved back afterwards. If
 * all frozen parameters come first, as in fine-tuning, nothing is moved.
 */
#include <string.h>

#include "parallel/averaging.h"

bool ls_gradient_travels(const ls_data_parallel_state *state, const ls_leaf *leaf) {
    /* An older gradient is equal on all ranks, unless accumulated under no_sync, and must keep its value. */
    return leaf->tensor->needs_grad || leaf->has_gradient || state->gathering;
}

static size_t width_of(const ls_data_parallel_state *state, int flat) {
    return ls_dtype_size(state->flats[flat].dtype);
}

/* Returns the offset of a gradient in its flat buffer, in elements. */
static int64_t offset_of(const ls_data_parallel_state *state, int flat, const ls_leaf *leaf) {
    const ptrdiff_t bytes = (const char *)leaf->gradient->data - (const char *)state->shared[flat]->memory;
    return bytes / (ptrdiff_t)width_of(state, flat);
}

/* Appends the spans of one flat buffer. */
static void list_spans(ls_data_parallel_state *state, int flat) {
    ls_gradient_spans *of = &state->spans_of[flat];
    ls_gradient_span *span = NULL; /* the open span */
    *of = (ls_gradient_spans){.items = flat > 0 ? state->spans_of[flat - 1].items + state->spans_of[flat - 1].count
                                                : state->spans};
    for (int i = 0; i < state->parameter_count; i++) {
        const ls_leaf *leaf = ls_data_parallel_leaf(state, i);
        if (leaf == NULL || leaf->gradient->storage->whole != state->shared[flat]) {
            continue;
        }
        const bool travels = ls_gradient_travels(state, leaf);
        if (travels && span == NULL) {
            span = &of->items[of->count++];
            *span = (ls_gradient_span){.offset = offset_of(state, flat, leaf)};
        } else if (!travels && span != NULL) {
            span->count = offset_of(state, flat, leaf) - span->offset;
            of->total += span->count;
            span = NULL;
        }
    }
    if (span != NULL) {
        span->count = state->flats[flat].count - span->offset;
        of->total += span->count;
    }
}

void ls_gradient_spans_list(ls_data_parallel_state *state) {
    for (int i = 0; i < state->flat_count; i++) {
        list_spans(state, i);
    }
}

void *ls_gradient_spans_begin(const ls_data_parallel_state *state, int flat) {
    const int64_t before = state->flats[flat].count - state->spans_of[flat].total;
    return (char *)state->common[flat]->memory + (size_t)before * width_of(state, flat);
}

/* Copies a span from the gradients' memory to the memory where they are averaged, or back. */
static ls_status move_span(const ls_data_parallel_state *state, int flat, const ls_gradient_span *span, char *packed,
                           bool back) {
    ls_storage *gradients = state->flats[flat].gradients;
    char *place = (char *)gradients->memory + (size_t)span->offset * width_of(state, flat);
    const size_t bytes = (size_t)span->count * width_of(state, flat);
    if (state->common[flat] == gradients) {
        if (place != packed) {
            memmove(back ? place : packed, back ? packed : place, bytes);
        }
        return LS_OK;
    }
    return back ? ls_device_store(gradients->device, place, packed, bytes)
                : ls_device_fetch(gradients->device, packed, place, bytes);
}

ls_status ls_gradient_spans_pack(const ls_data_parallel_state *state, int flat) {
    const ls_gradient_spans *of = &state->spans_of[flat];
    char *end = (char *)state->common[flat]->memory + (size_t)state->flats[flat].count * width_of(state, flat);
    for (int i = of->count - 1; i >= 0; i--) {
        end -= (size_t)of->items[i].count * width_of(state, flat);
        LS_TRY(move_span(state, flat, &of->items[i], end, false));
    }
    return LS_OK;
}

/* The gaps between parameters must be zero, so clears gaps that moved spans have overwritten. */
static void clear_between(const ls_data_parallel_state *state, int flat) {
    const ls_gradient_spans *of = &state->spans_of[flat];
    char *memory = state->common[flat]->memory;
    for (int i = 0; state->common[flat] == state->flats[flat].gradients && i < of->count; i++) {
        const int64_t from = of->items[i].offset + of->items[i].count;
        const int64_t to = i + 1 < of->count ? of->items[i + 1].offset : state->flats[flat].count;
        memset(memory + (size_t)from * width_of(state, flat), 0, (size_t)(to - from) * width_of(state, flat));
    }
}

ls_status ls_gradient_spans_unpack(const ls_data_parallel_state *state, int flat) {
    const ls_gradient_spans *of = &state->spans_of[flat];
    char *packed = ls_gradient_spans_begin(state, flat);
    for (int i = 0; i < of->count; i++) {
        LS_TRY(move_span(state, flat, &of->items[i], packed, true));
        packed += (size_t)of->items[i].count * width_of(state, flat);
    }
    clear_between(state, flat);
    return LS_OK;
}
