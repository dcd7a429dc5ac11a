#include <string.h>

#include "base/memory.h"
#include "comm/frame.h"

static void finish(ls_work *work, ls_status status) {
    work->finished = true;
    work->status = status;
    if (status != LS_OK) {
        memcpy(work->message, ls_error_message(), sizeof work->message);
    }
}

static void open_insert(ls_comm *comm, ls_work *work) {
    work->next_open = comm->open;
    work->open_link = &comm->open;
    if (comm->open != NULL) {
        comm->open->open_link = &work->next_open;
    }
    comm->open = work;
}

static void open_remove(ls_work *work) {
    *work->open_link = work->next_open;
    if (work->next_open != NULL) {
        work->next_open->open_link = work->open_link;
    }
}

/* Moves the first work of the queue; with `wait` to its end. Whether it has finished and left the queue. */
static bool advance(ls_comm *comm, bool wait) {
    ls_work *work = comm->first_queued;
    bool finished = false;
    ls_status status = ls_comm_check(comm);
    if (status == LS_OK && !work->begun) {
        work->begun = true;
        status = ls_comm_begin(comm, &work->call);
    }
    if (status == LS_OK) {
        status = ls_comm_progress(comm, wait, &finished);
    }
    if (status == LS_OK && !finished) {
        return false;
    }
    finish(work, status);
    comm->first_queued = work->next_queued;
    if (comm->first_queued == NULL) {
        comm->last_queued = NULL;
    }
    return true;
}

ls_status ls_work_queue(ls_comm *comm, const ls_call *call, ls_work **result) {
    ls_work *work = comm->spare;
    if (work != NULL) {
        comm->spare = work->next_open;
    } else {
        work = ls_allocate(sizeof *work);
        if (work == NULL) {
            return ls_fail_memory("ls_comm", sizeof *work);
        }
    }
    *work = (ls_work){.comm = comm, .call = *call};
    open_insert(comm, work);
    if (comm->last_queued == NULL) {
        comm->first_queued = work;
    } else {
        comm->last_queued->next_queued = work;
    }
    comm->last_queued = work;
    if (comm->first_queued == work) {
        (void)advance(comm, false); /* what can be done now need not wait */
    }
    *result = work;
    return LS_OK;
}

void ls_comm_drain(ls_comm *comm) {
    while (comm->first_queued != NULL) {
        (void)advance(comm, true);
    }
}

ls_status ls_work_wait(ls_work *work) {
    if (work == NULL) {
        return LS_OK;
    }
    while (!work->finished) {
        (void)advance(work->comm, true);
    }
    const ls_status status = work->status;
    if (status != LS_OK) {
        ls_error_restore(status, work->message);
    }
    if (work->comm == NULL) {
        ls_free(work);
    } else {
        open_remove(work);
        work->next_open = work->comm->spare;
        work->comm->spare = work;
    }
    return status;
}

bool ls_work_done(ls_work *work) {
    if (work == NULL) {
        return true;
    }
    while (!work->finished) {
        if (!advance(work->comm, false)) {
            return false;
        }
    }
    return true;
}

void ls_work_abandon(ls_comm *comm) {
    while (comm->open != NULL) {
        ls_work *work = comm->open;
        open_remove(work);
        work->comm = NULL;
        if (!work->finished) {
            char name[64];
            ls_call_describe(work->call.operation, work->call.sequence, name, sizeof name);
            finish(work, ls_fail(LS_ERR_STATE, "%s: the communicator was freed before the call had finished", name));
        }
    }
    while (comm->spare != NULL) {
        ls_work *work = comm->spare;
        comm->spare = work->next_open;
        ls_free(work);
    }
}
