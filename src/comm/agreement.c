#include "comm/agreement.h"

#include <stdio.h>

#include "base/status.h"
#include "comm/algorithm.h"
#include "comm/pieces.h"
#include "comm/reduce.h"

ls_call_header ls_call_header_of(const ls_call *call) {
    return (ls_call_header){.operation = (uint32_t)call->operation,
                            .dtype = (int32_t)call->dtype,
                            .reduction = (int32_t)call->reduction,
                            .root = call->root,
                            .layout = call->layout,
                            .on_device = call->stream != NULL,
                            .public_call = call->public_call,
                            .algorithm = call->algorithm,
                            .agreed = ls_call_agreed(call),
                            .sequence = call->sequence};
}

static bool reduces(const ls_call_header *header) {
    return ls_operation_is_collective(header->operation) && !ls_flows[header->operation].moves;
}

/* Returns the element size in bytes, or 0 if dtype, reduction and operation are incompatible. */
static size_t width_of(const ls_call_header *header) {
    if (header->dtype < 0 || header->dtype >= LS_DTYPE_COUNT || header->reduction < 0 ||
        header->reduction >= LS_REDUCTION_COUNT) {
        return 0;
    }
    return reduces(header) ? ls_reduce_width((ls_dtype)header->dtype, (ls_reduction)header->reduction)
                           : ls_dtype_size((ls_dtype)header->dtype);
}

bool ls_call_header_is_sound(const ls_call_header *header, int size, char *why) {
    uint64_t bytes = 0;
    if (header->operation >= LS_OP_COUNT) {
        snprintf(why, LS_HEADER_WHY, "there is no operation %u", header->operation);
        return false;
    }
    const size_t width = width_of(header);
    if (width == 0) {
        snprintf(why, LS_HEADER_WHY, "there is no dtype %d with reduction %d", header->dtype, header->reduction);
        return false;
    }
    if (header->root < 0 || header->root >= size) {
        snprintf(why, LS_HEADER_WHY, "there is no rank %d", header->root);
        return false;
    }
    if (header->on_device > 1) {
        snprintf(why, LS_HEADER_WHY, "there is no kind of memory %u", header->on_device);
        return false;
    }
    if (!ls_algorithm_is_number(header->algorithm)) {
        snprintf(why, LS_HEADER_WHY, "there is no setting of algorithms %u", header->algorithm);
        return false;
    }
    if (header->operation == LS_OP_SEND && header->tag < 0 && header->tag != LS_TAG_INTERNAL) {
        snprintf(why, LS_HEADER_WHY, "there is no tag %d", header->tag);
        return false;
    }
    if (__builtin_mul_overflow(header->count, width, &bytes) || bytes != header->bytes || bytes > SIZE_MAX / 2) {
        snprintf(why, LS_HEADER_WHY, "%llu bytes for %llu elements of %s", (unsigned long long)header->bytes,
                 (unsigned long long)header->count, ls_dtype_name((ls_dtype)header->dtype));
        return false;
    }
    return true;
}

bool ls_agreement_same(const ls_call_header *a, const ls_call_header *b) {
    return a->operation == b->operation && a->dtype == b->dtype && a->reduction == b->reduction && a->root == b->root &&
           a->layout == b->layout && a->on_device == b->on_device && a->algorithm == b->algorithm &&
           a->agreed == b->agreed && a->sequence == b->sequence;
}

const char *ls_call_header_detail(const ls_call_header *header, char *text, size_t capacity) {
    ls_call call = {.operation = (ls_operation)header->operation,
                    .dtype = (ls_dtype)header->dtype,
                    .reduction = (ls_reduction)header->reduction,
                    .root = header->root,
                    .count = (size_t)header->agreed,
                    .total = (size_t)header->agreed,
                    .layout = header->layout,
                    .public_call = (uint8_t)header->public_call};
    call.stream = header->on_device != 0 ? &call : NULL; /* any non-NULL pointer */
    return ls_call_detail(&call, text, capacity);
}

/* Writes the list of ranks that made the same call as `rank`, which is the first of them: " 0", or "s 1, 2" for
 * several ranks. Truncates the list with dots if it does not fit. */
static void list_callers(const ls_call_header *const *headers, int size, int rank, char *text, size_t capacity) {
    size_t used = 0;
    int callers = 0;
    for (int other = rank; other < size; other++) {
        if (!ls_agreement_same(headers[other], headers[rank])) {
            continue;
        }
        if (used >= capacity - 24) {
            snprintf(text + used, capacity - used, ", ...");
            return;
        }
        used += (size_t)snprintf(text + used, capacity - used, "%s%d", callers == 0 ? "s " : ", ", other);
        callers++;
    }
    if (callers == 1) {
        snprintf(text, capacity, " %d", rank);
    }
}

/* Writes the calls of all ranks to `text`: "rank 0 called barrier (#3); ranks 1, 2 called ...". */
static void tell_calls(const ls_call_header *const *headers, int size, char *text, size_t capacity) {
    size_t length = 0;
    for (int rank = 0; rank < size && length < capacity - 1; rank++) {
        int first = 0;
        while (!ls_agreement_same(headers[first], headers[rank])) {
            first++;
        }
        if (first != rank) {
            continue; /* already listed with the first rank that made the same call */
        }
        char ranks[256];
        char detail[192];
        list_callers(headers, size, rank, ranks, sizeof ranks);
        ls_call_header_detail(headers[rank], detail, sizeof detail);
        length += (size_t)snprintf(text + length, capacity - length, "%srank%s called %s (#%llu)",
                                   length == 0 ? "" : "; ", ranks, detail, (unsigned long long)headers[rank]->sequence);
    }
}

ls_status ls_agreement_check(const ls_call *call, const ls_call_header *const *headers, int size) {
    for (int rank = 1; rank < size; rank++) {
        if (!ls_agreement_same(headers[rank], headers[0])) {
            char calls[768];
            char name[64];
            tell_calls(headers, size, calls, sizeof calls);
            return ls_fail(LS_ERR_MISMATCH, "%s: the ranks made different calls: %s",
                           ls_call_describe(call->operation, call->sequence, name, sizeof name), calls);
        }
    }
    return LS_OK;
}

bool ls_agreement_varies(ls_operation operation) {
    return ls_flows[operation].agreed == LS_AGREED_NOTHING;
}
