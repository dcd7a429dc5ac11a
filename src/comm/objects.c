#include "comm/objects.h"

#include <string.h>

#include "base/memory.h"
#include "base/status.h"

/* The first message of a rank: the length of its object, and the beginning of the object. */
typedef struct head {
    uint64_t bytes;
    unsigned char beginning[LS_OBJECT_INLINE];
} head;

static ls_status reserve(const char *call, ls_objects *all, size_t bytes) {
    if (bytes <= all->capacity) {
        return LS_OK;
    }
    unsigned char *memory = ls_allocate(bytes);
    if (memory == NULL) {
        return ls_fail_memory(call, bytes);
    }
    if (all->capacity > 0) {
        memcpy(memory, all->memory, all->capacity);
    }
    ls_free(all->memory);
    all->memory = memory;
    all->capacity = bytes;
    return LS_OK;
}

/* Exchanges objects of which one is longer than a head. */
static ls_status exchange_rest(const char *call, ls_comm *comm, const void *own, size_t bytes, size_t most,
                               ls_objects *all) {
    const size_t ranks = (size_t)ls_comm_size(comm), stride = (most + 7) / 8 * 8, heads = ranks * sizeof(head);
    const ls_status status = reserve(call, all, heads + (ranks + 1) * stride);
    if (status != LS_OK) {
        return status;
    }
    unsigned char *padded = all->memory + heads + ranks * stride;
    memset(padded, 0, stride);
    memcpy(padded, own, bytes);
    all->offset = heads;
    all->stride = stride;
    return ls_comm_allgather(comm, padded, all->memory + heads, stride, LS_U8, NULL);
}

ls_status ls_objects_allgather(const char *call, ls_comm *comm, const void *own, size_t bytes, ls_objects *all) {
    const size_t ranks = (size_t)ls_comm_size(comm);
    const ls_status reserved = reserve(call, all, ranks * sizeof(head));
    if (reserved != LS_OK) {
        return reserved;
    }
    head first = {.bytes = bytes};
    memcpy(first.beginning, own, bytes < sizeof first.beginning ? bytes : sizeof first.beginning);
    const ls_status status = ls_comm_allgather(comm, &first, all->memory, sizeof first, LS_U8, NULL);
    uint64_t most = 0;
    for (size_t i = 0; i < ranks && status == LS_OK; i++) {
        memcpy(&first.bytes, all->memory + i * sizeof first, sizeof first.bytes);
        most = first.bytes > most ? first.bytes : most;
    }
    all->offset = offsetof(head, beginning);
    all->stride = sizeof(head);
    return status == LS_OK && most > LS_OBJECT_INLINE ? exchange_rest(call, comm, own, bytes, (size_t)most, all)
                                                      : status;
}

void ls_objects_free(ls_objects *all) {
    ls_free(all->memory);
    *all = (ls_objects){0};
}
