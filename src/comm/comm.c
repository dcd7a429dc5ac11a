#include "comm/comm.h"

#include <string.h>

#include "base/memory.h"
#include "comm/frame.h"
#include "comm/reduce.h"

ls_comm *ls_comm_open(const ls_backend *backend, const ls_join *join) {
    if (join->size < 1 || join->rank < 0 || join->rank >= join->size) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_comm_open: rank %d of %d ranks does not exist", join->rank,
                            join->size);
    }
    ls_comm *comm = ls_allocate_zeroed(1, sizeof *comm);
    if (comm == NULL) {
        (void)ls_fail_memory("ls_comm_open", sizeof *comm);
        return NULL;
    }
    comm->backend = backend;
    comm->rank = join->rank;
    comm->size = join->size;
    comm->local_rank = join->local_rank;
    comm->local_size = join->local_size;
    if (backend->open(join, &comm->state) != LS_OK) {
        ls_free(comm);
        return NULL;
    }
    return comm;
}

void ls_comm_on_free(ls_comm *comm, void (*function)(void *argument), void *argument) {
    comm->on_free = function;
    comm->on_free_argument = argument;
}

void ls_comm_free(ls_comm *comm) {
    if (comm == NULL) {
        return;
    }
    ls_work_abandon(comm);
    comm->backend->close(comm->state);
    void (*on_free)(void *) = comm->on_free;
    void *argument = comm->on_free_argument;
    ls_free(comm);
    if (on_free != NULL) {
        on_free(argument);
    }
}

int ls_comm_rank(const ls_comm *comm) {
    return comm == NULL ? -1 : comm->rank;
}

int ls_comm_size(const ls_comm *comm) {
    return comm == NULL ? 0 : comm->size;
}

int ls_comm_local_rank(const ls_comm *comm) {
    return comm == NULL ? -1 : comm->local_rank;
}

int ls_comm_local_size(const ls_comm *comm) {
    return comm == NULL ? 0 : comm->local_size;
}

const char *ls_comm_backend(const ls_comm *comm) {
    return comm == NULL ? "" : comm->backend->name;
}

ls_status ls_comm_check(const ls_comm *comm) {
    if (comm->failed != LS_OK) {
        ls_error_restore(comm->failed, comm->message);
    }
    return comm->failed;
}

/* LS_ERR_MISMATCH and LS_ERR_MEMORY reach all ranks alike and leave them in step; all else revokes. */
static ls_status note(ls_comm *comm, ls_status status) {
    if (status != LS_OK && status != LS_ERR_MISMATCH && status != LS_ERR_MEMORY) {
        comm->failed = status;
        memcpy(comm->message, ls_error_message(), sizeof comm->message);
    }
    return status;
}

ls_status ls_comm_begin(ls_comm *comm, const ls_call *call) {
    switch (call->operation) {
    case LS_OP_BARRIER:
        return note(comm, comm->backend->barrier(comm->state, call));
    case LS_OP_BROADCAST:
        return note(comm, comm->backend->broadcast(comm->state, call));
    case LS_OP_ALLREDUCE:
        return note(comm, comm->backend->allreduce(comm->state, call));
    default:
        return ls_fail(LS_ERR_INTERNAL, "ls_comm_begin: no operation %d", (int)call->operation);
    }
}

ls_status ls_comm_progress(ls_comm *comm, bool wait, bool *finished) {
    return note(comm, comm->backend->progress(comm->state, wait, finished));
}

/* Numbers the call and carries it out now or, when `work` is wanted, in its turn. */
static ls_status run(ls_comm *comm, ls_call *call, ls_work **work) {
    if (work != NULL) {
        *work = NULL;
    }
    LS_TRY(ls_comm_check(comm));
    call->sequence = comm->sequence + 1;
    if (work != NULL) {
        LS_TRY(ls_work_queue(comm, call, work));
        comm->sequence = call->sequence;
        return LS_OK;
    }
    if (comm->first_queued != NULL) {
        ls_comm_drain(comm);
        LS_TRY(ls_comm_check(comm));
    }
    comm->sequence = call->sequence;
    bool finished = false;
    LS_TRY(ls_comm_begin(comm, call));
    return ls_comm_progress(comm, true, &finished);
}

static ls_status check_buffer(const char *name, size_t count, size_t width, const void *buffer) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(count, width, &bytes) || bytes > SIZE_MAX / 2) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %zu elements of %zu bytes are more than memory can hold", name, count,
                       width);
    }
    if (buffer == NULL && count != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the buffer for %zu elements is NULL", name, count);
    }
    return LS_OK;
}

static ls_status check_comm(const char *name, const ls_comm *comm) {
    return comm != NULL ? LS_OK : ls_fail(LS_ERR_ARGUMENT, "%s: the communicator is NULL", name);
}

ls_status ls_comm_barrier(ls_comm *comm, ls_work **work) {
    LS_TRY(check_comm("ls_comm_barrier", comm));
    ls_call call = {.operation = LS_OP_BARRIER};
    return run(comm, &call, work);
}

ls_status ls_comm_broadcast(ls_comm *comm, void *buffer, size_t count, ls_dtype dtype, int root, ls_work **work) {
    static const char name[] = "ls_comm_broadcast";
    LS_TRY(check_comm(name, comm));
    const size_t width = ls_dtype_size(dtype);
    if (width == 0) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %d is no dtype", name, (int)dtype);
    }
    LS_TRY(check_buffer(name, count, width, buffer));
    if (root < 0 || root >= comm->size) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: root %d is no rank of %d", name, root, comm->size);
    }
    ls_call call = {.operation = LS_OP_BROADCAST,
                    .dtype = dtype,
                    .root = root,
                    .count = count,
                    .width = width,
                    .send = buffer,
                    .receive = buffer};
    return run(comm, &call, work);
}

ls_status ls_comm_allreduce(ls_comm *comm, const void *send, void *receive, size_t count, ls_dtype dtype,
                            ls_reduction reduction, ls_work **work) {
    static const char name[] = "ls_comm_allreduce";
    LS_TRY(check_comm(name, comm));
    LS_TRY(ls_reduce_check(name, dtype, reduction));
    const size_t width = ls_reduce_width(dtype, reduction);
    LS_TRY(check_buffer(name, count, width, send));
    LS_TRY(check_buffer(name, count, width, receive));
    const uintptr_t from = (uintptr_t)send;
    const uintptr_t to = (uintptr_t)receive;
    const size_t bytes = count * width;
    if (from != to && from < to + bytes && to < from + bytes) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: send and receive overlap without being the same", name);
    }
    ls_call call = {.operation = LS_OP_ALLREDUCE,
                    .dtype = dtype,
                    .reduction = reduction,
                    .count = count,
                    .width = width,
                    .send = send,
                    .receive = receive};
    return run(comm, &call, work);
}

void *ls_comm_alloc(ls_comm *comm, size_t size) {
    if (check_comm("ls_comm_alloc", comm) != LS_OK || ls_comm_check(comm) != LS_OK) {
        return NULL;
    }
    ls_comm_drain(comm);
    if (ls_comm_check(comm) != LS_OK) {
        return NULL;
    }
    void *memory = NULL;
    comm->sequence++;
    return note(comm, comm->backend->alloc(comm->state, size, comm->sequence, &memory)) == LS_OK ? memory : NULL;
}

void ls_comm_release(ls_comm *comm, void *memory) {
    if (comm != NULL && memory != NULL) {
        comm->backend->release(comm->state, memory);
    }
}
