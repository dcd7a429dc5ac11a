/* self: a world of one. A call ends when it begins. */
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/backend.h"
#include "comm/reduce.h"

/* Memory of ls_comm_alloc, so that close can free what is left. */
typedef struct block {
    _Alignas(64) struct block *next;
} block;

typedef struct self_state {
    block *blocks;
} self_state;

static ls_status self_open(const ls_join *join, void **state) {
    if (join->size != 1) {
        return ls_fail(LS_ERR_UNSUPPORTED, "ls_comm_open: backend self is a world of one, not of %d ranks", join->size);
    }
    *state = ls_allocate_zeroed(1, sizeof(self_state));
    return *state != NULL ? LS_OK : ls_fail_memory("ls_comm_open", sizeof(self_state));
}

static void self_close(void *state) {
    self_state *self = state;
    while (self->blocks != NULL) {
        block *next = self->blocks->next;
        ls_free(self->blocks);
        self->blocks = next;
    }
    ls_free(self);
}

static ls_status self_nothing(void *state, const ls_call *call) {
    (void)state;
    (void)call;
    return LS_OK;
}

/* Not a mere copy: a logical reduction makes 0 and 1 of what it is given. */
static ls_status self_allreduce(void *state, const ls_call *call) {
    (void)state;
    const ls_reduce_task task = {.dtype = call->dtype,
                                 .reduction = call->reduction,
                                 .ranks = 1,
                                 .sources = &call->send,
                                 .copies = 1,
                                 .destinations = (void *const *)&call->receive,
                                 .count = call->count};
    ls_reduce(&task);
    return LS_OK;
}

static ls_status self_progress(void *state, bool wait, bool *finished) {
    (void)state;
    (void)wait;
    *finished = true;
    return LS_OK;
}

static ls_status self_alloc(void *state, size_t size, uint64_t sequence, void **memory) {
    (void)sequence;
    self_state *self = state;
    if (size > SIZE_MAX / 2) {
        return ls_fail_memory("ls_comm_alloc", size);
    }
    block *made = ls_allocate_aligned(sizeof *made + size, 64);
    if (made == NULL) {
        return ls_fail_memory("ls_comm_alloc", size);
    }
    made->next = self->blocks;
    self->blocks = made;
    *memory = memset(made + 1, 0, size);
    return LS_OK;
}

static void self_release(void *state, void *memory) {
    self_state *self = state;
    for (block **link = &self->blocks; *link != NULL; link = &(*link)->next) {
        block *found = *link;
        if ((void *)(found + 1) == memory) {
            *link = found->next;
            ls_free(found);
            return;
        }
    }
}

const ls_backend ls_backend_self = {
    .name = "self",
    .open = self_open,
    .close = self_close,
    .barrier = self_nothing,
    .broadcast = self_nothing,
    .allreduce = self_allreduce,
    .progress = self_progress,
    .alloc = self_alloc,
    .release = self_release,
};
