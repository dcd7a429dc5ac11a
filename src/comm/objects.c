#include "comm/objects.h"

#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/abort.h"

/* The first message from a rank: the length of its object, and the beginning of the object. */
typedef struct head {
    uint64_t bytes;
    unsigned char beginning[LS_OBJECT_INLINE];
} head;

/* Aborts the communicator on failure: if this rank is out of memory, the other ranks would wait for it in the next
 * call. */
static ls_status or_abort(ls_comm *comm, ls_status status) {
    return status == LS_OK ? LS_OK : ls_comm_abort(comm, status);
}

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

/* Exchanges objects of which at least one is longer than a head. */
static ls_status exchange_rest(const char *call, ls_comm *comm, const void *own, size_t bytes, size_t most,
                               ls_objects *all) {
    const size_t ranks = (size_t)ls_comm_size(comm), stride = (most + 7) / 8 * 8, heads = ranks * sizeof(head);
    LS_TRY(or_abort(comm, reserve(call, all, heads + (ranks + 1) * stride)));
    unsigned char *padded = all->memory + heads + ranks * stride;
    memset(padded, 0, stride);
    if (bytes > 0) {
        memcpy(padded, own, bytes);
    }
    all->offset = heads;
    all->stride = stride;
    return ls_comm_allgather(comm, padded, all->memory + heads, stride, LS_U8, NULL);
}

ls_status ls_objects_allgather(const char *call, ls_comm *comm, const void *own, size_t bytes, ls_objects *all) {
    const size_t ranks = (size_t)ls_comm_size(comm);
    LS_TRY(or_abort(comm, reserve(call, all, ranks * sizeof(head))));
    head first = {.bytes = bytes};
    if (bytes > 0) {
        memcpy(first.beginning, own, bytes < sizeof first.beginning ? bytes : sizeof first.beginning);
    }
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

size_t ls_object_bytes(const ls_objects *all, int rank) {
    uint64_t bytes;
    memcpy(&bytes, all->memory + (size_t)rank * sizeof(head), sizeof bytes);
    return (size_t)bytes;
}

void ls_objects_free(ls_objects *all) {
    ls_free(all->memory);
    *all = (ls_objects){0};
}

/* ---- public calls ------------------------------------------------------------------------------------------------ */

void ls_object_free(ls_object *object) {
    if (object != NULL) {
        ls_free(object->data);
        *object = (ls_object){0};
    }
}

static void free_all(ls_object *objects, int count) {
    for (int i = 0; i < count; i++) {
        ls_object_free(&objects[i]);
    }
}

/* Creates an object of `bytes` uninitialized bytes followed by a zero byte. */
static ls_status make_object(const char *call, ls_object *object, size_t bytes) {
    unsigned char *data = bytes < SIZE_MAX ? ls_allocate(bytes + 1) : NULL;
    if (data == NULL) {
        return ls_fail_memory(call, bytes);
    }
    data[bytes] = 0;
    *object = (ls_object){.data = data, .bytes = bytes};
    return LS_OK;
}

static ls_status check(const char *call, const ls_comm *comm, const void *objects, const ls_object *own) {
    if (comm == NULL || objects == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %s is NULL", call, comm == NULL ? "the communicator" : "an argument");
    }
    return own == NULL || own->data != NULL || own->bytes == 0
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: the data of an object of %zu bytes is NULL", call, own->bytes);
}

static ls_status check_root(const char *call, const ls_comm *comm, int root) {
    return root >= 0 && root < ls_comm_size(comm)
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: root %d is not a rank of 0 to %d", call, root, ls_comm_size(comm) - 1);
}

ls_status ls_comm_broadcast_object(ls_comm *comm, ls_object *object, int root) {
    static const char call[] = "ls_comm_broadcast_object";
    const bool sends = comm != NULL && ls_comm_rank(comm) == root;
    LS_TRY(check(call, comm, object, sends ? object : NULL));
    LS_TRY(check_root(call, comm, root));
    ls_object received = {0};
    int64_t bytes = sends ? (int64_t)object->bytes : 0;
    ls_status status = ls_comm_broadcast(comm, &bytes, 1, LS_I64, root, NULL);
    if (status == LS_OK && !sends) {
        status = or_abort(comm, make_object(call, &received, (size_t)bytes));
    }
    if (status == LS_OK) {
        status = ls_comm_broadcast(comm, sends ? object->data : received.data, (size_t)bytes, LS_U8, root, NULL);
    }
    if (status != LS_OK) {
        ls_object_free(&received);
    }
    if (!sends) {
        *object = received;
    }
    return status;
}

ls_status ls_comm_allgather_object(ls_comm *comm, const ls_object *own, ls_object *all) {
    static const char call[] = "ls_comm_allgather_object";
    LS_TRY(check(call, comm, own != NULL ? all : NULL, own));
    const int ranks = ls_comm_size(comm);
    ls_objects gathered = {0};
    const ls_object sent = *own; /* `own` may be an entry of `all` */
    memset(all, 0, (size_t)ranks * sizeof *all);
    ls_status status = ls_objects_allgather(call, comm, sent.data, sent.bytes, &gathered);
    for (int i = 0; i < ranks && status == LS_OK; i++) {
        const size_t bytes = ls_object_bytes(&gathered, i);
        status = make_object(call, &all[i], bytes);
        if (status == LS_OK && bytes > 0) {
            memcpy(all[i].data, ls_object_of(&gathered, i), bytes);
        }
    }
    ls_objects_free(&gathered);
    if (status != LS_OK) {
        free_all(all, ranks);
    }
    return status;
}

/* The lengths of all ranks' objects, and their offsets in one block. */
typedef struct object_layout {
    int64_t *bytes;
    size_t *counts, *offsets;
    unsigned char *block;
} object_layout;

static void free_layout(object_layout *l) {
    ls_free(l->bytes);
    ls_free(l->counts);
    ls_free(l->block);
}

static ls_status make_layout(const char *call, object_layout *l, int ranks) {
    l->bytes = ls_allocate_zeroed((size_t)ranks, sizeof *l->bytes);
    l->counts = ls_allocate_zeroed((size_t)ranks * 2, sizeof *l->counts);
    l->offsets = l->counts != NULL ? l->counts + ranks : NULL;
    return l->bytes != NULL && l->counts != NULL ? LS_OK : ls_fail_memory(call, (size_t)ranks * 24);
}

/* Allocates the block for these lengths. */
static ls_status lay_out(const char *call, object_layout *l, int ranks) {
    size_t total = 0;
    for (int i = 0; i < ranks; i++) {
        l->counts[i] = (size_t)l->bytes[i];
        l->offsets[i] = total;
        total += l->counts[i];
    }
    l->block = ls_allocate(total + 1);
    return l->block != NULL ? LS_OK : ls_fail_memory(call, total);
}

/* Copies the parts of the block into objects. */
static ls_status split_block(const char *call, const object_layout *l, ls_object *all, int ranks) {
    ls_status status = LS_OK;
    for (int i = 0; i < ranks && status == LS_OK; i++) {
        status = make_object(call, &all[i], l->counts[i]);
        if (status == LS_OK && l->counts[i] > 0) {
            memcpy(all[i].data, l->block + l->offsets[i], l->counts[i]);
        }
    }
    if (status != LS_OK) {
        free_all(all, ranks);
    }
    return status;
}

ls_status ls_comm_gather_object(ls_comm *comm, const ls_object *own, ls_object *all, int root) {
    static const char call[] = "ls_comm_gather_object";
    LS_TRY(check(call, comm, own, own));
    LS_TRY(check_root(call, comm, root));
    const bool receives = ls_comm_rank(comm) == root;
    const int ranks = ls_comm_size(comm);
    LS_TRY(receives ? check(call, comm, all, NULL) : LS_OK);
    object_layout l = {0};
    const ls_object sent = *own; /* `own` may be an entry of `all` */
    const int64_t bytes = (int64_t)sent.bytes;
    if (receives) {
        memset(all, 0, (size_t)ranks * sizeof *all);
    }
    ls_status status = receives ? or_abort(comm, make_layout(call, &l, ranks)) : LS_OK;
    status = status == LS_OK ? ls_comm_gather(comm, &bytes, l.bytes, 1, LS_I64, root, NULL) : status;
    if (status == LS_OK && receives) {
        status = or_abort(comm, lay_out(call, &l, ranks));
    }
    if (status == LS_OK) {
        status = ls_comm_gatherv(comm, sent.data, sent.bytes, l.block, l.counts, l.offsets, LS_U8, root, NULL);
    }
    if (status == LS_OK && receives) {
        status = split_block(call, &l, all, ranks);
    }
    free_layout(&l);
    return status;
}

/* Copies the objects into the block. */
static ls_status join_objects(const char *call, object_layout *l, const ls_object *all, int ranks) {
    LS_TRY(make_layout(call, l, ranks));
    for (int i = 0; i < ranks; i++) {
        l->bytes[i] = (int64_t)all[i].bytes;
    }
    LS_TRY(lay_out(call, l, ranks));
    for (int i = 0; i < ranks; i++) {
        if (l->counts[i] > 0) {
            memcpy(l->block + l->offsets[i], all[i].data, l->counts[i]);
        }
    }
    return LS_OK;
}

ls_status ls_comm_scatter_object(ls_comm *comm, const ls_object *all, ls_object *own, int root) {
    static const char call[] = "ls_comm_scatter_object";
    LS_TRY(check(call, comm, own, NULL));
    LS_TRY(check_root(call, comm, root));
    const bool sends = ls_comm_rank(comm) == root;
    const int ranks = ls_comm_size(comm);
    LS_TRY(sends ? check(call, comm, all, NULL) : LS_OK);
    for (int i = 0; i < ranks && sends; i++) {
        LS_TRY(check(call, comm, all, &all[i]));
    }
    object_layout l = {0};
    int64_t bytes = 0;
    ls_status status = sends ? or_abort(comm, join_objects(call, &l, all, ranks)) : LS_OK;
    *own = (ls_object){0}; /* after the root has copied the objects: `own` may be an entry of `all` */
    status = status == LS_OK ? ls_comm_scatter(comm, l.bytes, &bytes, 1, LS_I64, root, NULL) : status;
    status = status == LS_OK ? or_abort(comm, make_object(call, own, (size_t)bytes)) : status;
    if (status == LS_OK) {
        status = ls_comm_scatterv(comm, l.block, l.counts, l.offsets, own->data, own->bytes, LS_U8, root, NULL);
    }
    if (status != LS_OK) {
        ls_object_free(own);
    }
    free_layout(&l);
    return status;
}
