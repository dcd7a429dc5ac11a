/* Backend mpi: communicators, made of the world, of an MPI communicator or of a part of another, and their end. mpi.h
 * tells how it works. */
#include "comm/backend/mpi/mpi.h"

#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/module.h"

/* Looks in vain before a rank yields, with a core for every rank of the machine and without. */
#define LOOKS_BEFORE_YIELD   4000
#define LOOKS_OVERSUBSCRIBED 16

/* ---- states --------------------------------------------------------------------------------------------------------
 */

static void discard(ls_mpi *mpi) {
    if (mpi->abandoned) {
        return; /* what MPI may still read and write stays */
    }
    ls_mpi_free_messages(mpi);
    ls_free(mpi->ranks);
    ls_free(mpi->transfers);
    ls_free(mpi->boxes);
    ls_free(mpi->sent);
    ls_free(mpi->headers);
    ls_free(mpi->found);
    ls_free(mpi->sources);
    ls_free(mpi->left);
    if (!mpi->lent) {
        ls_free(mpi->rows);
    }
    ls_free(mpi->scratch);
    ls_free(mpi);
}

/* A state of join's ranks without a wire yet; ranks are their own numbers. NULL: out of memory. */
static ls_mpi *make(const ls_join *join) {
    const size_t size = (size_t)join->size;
    ls_mpi *mpi = ls_allocate_zeroed(1, sizeof *mpi);
    if (mpi == NULL) {
        return NULL;
    }
    mpi->rank = join->rank;
    mpi->size = join->size;
    mpi->oversubscribed = join->local_size > sysconf(_SC_NPROCESSORS_ONLN);
    mpi->most_idle = mpi->oversubscribed ? LOOKS_OVERSUBSCRIBED : LOOKS_BEFORE_YIELD;
    mpi->timeout_ns = join->timeout < 1e9 ? (uint64_t)(join->timeout * 1e9) : UINT64_MAX;
    mpi->ranks = ls_allocate(size * sizeof *mpi->ranks);
    mpi->boxes = ls_allocate_zeroed(size, sizeof *mpi->boxes);
    mpi->sent = ls_allocate_zeroed(size, sizeof *mpi->sent);
    mpi->headers = ls_allocate_zeroed(size, sizeof *mpi->headers);
    mpi->found = ls_allocate_zeroed(size, sizeof *mpi->found);
    mpi->sources = ls_allocate_zeroed(size, sizeof *mpi->sources);
    mpi->left = ls_allocate_zeroed(2 * size, sizeof *mpi->left);
    mpi->rows = ls_allocate_zeroed(size, sizeof *mpi->rows);
    if (mpi->ranks == NULL || mpi->boxes == NULL || mpi->sent == NULL || mpi->headers == NULL || mpi->found == NULL ||
        mpi->sources == NULL || mpi->left == NULL || mpi->rows == NULL) {
        discard(mpi);
        return NULL;
    }
    mpi->reasons = mpi->left + size;
    for (int rank = 0; rank < mpi->size; rank++) {
        mpi->ranks[rank] = rank;
        mpi->boxes[rank].request = MPI_REQUEST_NULL;
        mpi->headers[rank] = rank == mpi->rank ? &mpi->own : &mpi->boxes[rank].packet.header;
    }
    return mpi;
}

/* Puts the state on a wire, with the context that its first rank gave. */
static ls_status enter(ls_mpi *mpi, ls_mpi_wire *wire, int64_t context) {
    if (context < 0 || context >= wire->contexts) {
        return ls_fail(LS_ERR_UNSUPPORTED,
                       "this MPI library has tags for %d communicators in the life of a process, "
                       "and all were used",
                       wire->contexts / wire->size);
    }
    wire->uses++;
    mpi->wire = wire;
    mpi->comm = wire->comm;
    mpi->tags = (int)context * LS_MPI_KINDS;
    mpi->room = wire->packet - sizeof(ls_call_header);
    for (int rank = 0; rank < mpi->size; rank++) {
        if (rank != mpi->rank) {
            LS_TRY(ls_mpi_box_open(mpi, &mpi->boxes[rank], LS_MPI_HEADERS, rank));
        }
    }
    return LS_OK;
}

/* Which ranks share this one's machine. */
static void find_local_ranks(const ls_mpi_greeting *all, ls_join *join) {
    for (int rank = 0; rank < join->size; rank++) {
        const bool local = all[rank].machine == join->machine;
        join->local_size += local;
        join->local_rank += local && rank < join->rank;
    }
}

/* Reads on the wire what its ranks have in common. */
static void read_greetings(const ls_mpi_greeting *all, int size, ls_mpi_wire *wire) {
    wire->unasked = SIZE_MAX;
    for (int rank = 0; rank < size; rank++) {
        const size_t unasked = (size_t)all[rank].unasked;
        wire->unasked = unasked < wire->unasked ? unasked : wire->unasked;
    }
    wire->packet = wire->unasked < LS_MPI_PACKET ? wire->unasked : LS_MPI_PACKET;
}

/* A state of all ranks of a wire, which all call this. Finds who shares the machine, if `join` does not know. */
static ls_status open_on(ls_mpi_wire *wire, ls_join *join, ls_mpi **state) {
    const ls_mpi_greeting own = {.machine = join->machine,
                                 .context = wire->rank == 0 ? ls_mpi_wire_context(wire) : 0,
                                 .unasked = (int64_t)ls_mpi_unasked()};
    ls_mpi_greeting *all = NULL;
    LS_TRY(ls_mpi_meet(wire->comm, &own, join->timeout, &all));
    const int64_t context = all[0].context;
    read_greetings(all, join->size, wire);
    if (join->local_size == 0) {
        find_local_ranks(all, join);
    }
    ls_free(all);
    ls_mpi *mpi = make(join);
    if (mpi == NULL) {
        return ls_fail_memory("ls_comm_open", (size_t)join->size * 2 * sizeof(ls_mpi_packet));
    }
    const ls_status status = enter(mpi, wire, context);
    if (status != LS_OK) {
        discard(mpi);
        return status;
    }
    *state = mpi;
    return LS_OK;
}

/* ---- the world -----------------------------------------------------------------------------------------------------
 */

static ls_status check_place(const ls_join *join) {
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(ls_mpi_wire_of_world()->comm, &rank);
    MPI_Comm_size(ls_mpi_wire_of_world()->comm, &size);
    if (size == 1 && join->size > 1) { /* the same words on all ranks */
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_comm_open: MPI says that this process is alone, but the job has %d ranks: backend \"mpi\" "
                       "needs ranks that mpirun (or srun) started, of the MPI library that Lockstep's module was built "
                       "with",
                       join->size);
    }
    if (rank != join->rank || size != join->size) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_comm_open: this process is rank %d of %d, but MPI says rank %d of %d: backend \"mpi\" needs "
                       "ranks that mpirun (or srun) started, of the MPI library that Lockstep's module was built with",
                       join->rank, join->size, rank, size);
    }
    return LS_OK;
}

static ls_status open_world(ls_join *join, ls_mpi **state) {
    LS_TRY(ls_mpi_join(join->timeout));
    LS_TRY(check_place(join));
    return open_on(ls_mpi_wire_of_world(), join, state);
}

static ls_status mpi_open(const ls_join *join, void **state) {
    ls_mpi *mpi = NULL;
    ls_join place = *join;
    const ls_status status = open_world(&place, &mpi);
    if (status == LS_ERR_TIMEOUT) {
        ls_mpi_lose_world();
    }
    LS_TRY(status);
    mpi->world = true;
    ls_mpi_count_world(1);
    *state = mpi;
    return LS_OK;
}

/* Ends the mailboxes. What was heard there of ranks that left will not be heard again. */
static void close_boxes(ls_mpi *mpi) {
    for (int rank = 0; rank < mpi->size; rank++) {
        ls_mpi_mailbox *box = &mpi->boxes[rank];
        ls_mpi_box_close(box);
        mpi->left[rank] |= box->packet.header.operation == LS_MPI_LEFT ? LS_MPI_HEARD_CALLS : 0;
    }
    if (mpi->envelopes != NULL) {
        const ls_call_header *header = &mpi->envelopes->packet.header;
        if (!mpi->held) {
            ls_mpi_box_close(mpi->envelopes);
        } else {
            (void)MPI_Request_free(&mpi->envelopes->request);
        }
        if (header->operation == LS_MPI_LEFT && header->root >= 0 && header->root < mpi->size) {
            mpi->left[header->root] |= LS_MPI_HEARD_SENDS;
        }
    }
    for (int rank = 0; rank < mpi->size; rank++) {
        mpi->wire->leave_notices += rank == mpi->rank ? 0 : 3 - __builtin_popcount(mpi->left[rank]);
    }
}

static void mpi_close(void *state) {
    ls_mpi *mpi = state;
    /* Who left a part in failure notes that itself. */
    if (mpi->ended && mpi->reason == LS_LEAVE_FAILED && (mpi->world || !mpi->deserted)) {
        ls_mpi_note_failure();
    }
    ls_mpi_count_world(mpi->world ? -1 : 0);
    if (ls_mpi_runs()) { /* else the program finalized MPI too early */
        ls_mpi_end_state(mpi);
        close_boxes(mpi);
    }
    ls_mpi_wire_release(mpi->wire);
    discard(mpi);
}

/* ---- communicators of the program's own
 * ------------------------------------------------------------------------------
 */

static ls_status check_handle(MPI_Comm comm) {
    int inter = 0;
    if (!ls_mpi_runs()) {
        char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
        int length = 0;
        MPI_Get_library_version(library, &length);
        return ls_fail(LS_ERR_STATE,
                       "MPI is not running in the library that Lockstep's module was built with (%.*s): call this "
                       "between MPI_Init and MPI_Finalize of that library",
                       (int)strcspn(library, ",\n"), library);
    }
    if (comm == MPI_COMM_NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "the communicator is MPI_COMM_NULL");
    }
    if (MPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter != 0) {
        return ls_fail(LS_ERR_UNSUPPORTED, "the communicator is an intercommunicator: MPI_Intercomm_merge makes one "
                                           "communicator of its two groups");
    }
    return LS_OK;
}

static ls_status mpi_adopt(const void *handle, ls_join *join, void **state) {
    const MPI_Comm comm = *(const MPI_Comm *)handle;
    ls_mpi *mpi = NULL;
    LS_TRY(check_handle(comm));
    ls_mpi_wire *wire = ls_mpi_wire_over(comm, join->timeout);
    if (wire == NULL) {
        return ls_error_status();
    }
    MPI_Comm_rank(wire->comm, &join->rank);
    MPI_Comm_size(wire->comm, &join->size);
    wire->uses++; /* until here has ended */
    const ls_status status = open_on(wire, join, &mpi);
    if (status == LS_ERR_TIMEOUT) {
        return status; /* the wire is in use for ever */
    }
    ls_mpi_wire_release(wire);
    *state = mpi;
    return status;
}

/* ---- parts ---------------------------------------------------------------------------------------------------------
 */

/* The ranks' first gives a context to the groups into which they divide, which have no rank in common. */
static ls_status agree_on_context(ls_mpi *mpi, int64_t *context) {
    const int64_t own = mpi->rank == 0 ? ls_mpi_wire_context(mpi->wire) : 0;
    int64_t *all = ls_allocate_zeroed((size_t)mpi->size, sizeof *all);
    if (all == NULL) {
        return ls_mpi_give_up(mpi, ls_fail_memory("ls_comm_split", (size_t)mpi->size * sizeof *all));
    }
    const ls_call call = {.operation = LS_OP_SPLIT,
                          .dtype = LS_I64,
                          .count = 1,
                          .width = sizeof *all,
                          .send = &own,
                          .receive = all,
                          .sequence = mpi->call.sequence};
    bool finished = false;
    ls_status status = ls_mpi_exchange(mpi, &call);
    if (status == LS_OK) {
        status = ls_mpi_progress(mpi, true, &finished);
    }
    *context = all[0];
    ls_free(all);
    return status;
}

static ls_status mpi_split(void *state, const ls_join *join, const int *ranks, void **result) {
    ls_mpi *parent = state;
    int64_t context = 0;
    LS_TRY(agree_on_context(parent, &context));
    if (join == NULL) {
        return LS_OK;
    }
    ls_mpi *mpi = make(join);
    if (mpi == NULL) {
        return ls_fail_memory("ls_comm_split", (size_t)join->size * 2 * sizeof(ls_mpi_packet));
    }
    for (int rank = 0; rank < join->size; rank++) {
        mpi->ranks[rank] = parent->ranks[ranks[rank]];
    }
    const ls_status status = enter(mpi, parent->wire, context);
    if (status != LS_OK) {
        discard(mpi);
        return status;
    }
    *result = mpi;
    return LS_OK;
}

static void mpi_leave(void *state, ls_leave_reason reason) {
    if (!ls_mpi_runs()) {
        return; /* the program finalized MPI too early */
    }
    ls_mpi_leave(state, reason);
    if (reason == LS_LEAVE_EXITED) {
        ls_mpi_note_exit();
    }
}

static void mpi_give_up(void *state, ls_status status) {
    (void)ls_mpi_give_up(state, status);
}

const ls_backend ls_module_backend = {
    .name = "mpi",
    .open = mpi_open,
    .close = mpi_close,
    .leave = mpi_leave,
    .meet_leaving = ls_mpi_meet_leaving,
    .give_up = mpi_give_up,
    .begin = {[LS_OP_BARRIER] = ls_mpi_exchange,
              [LS_OP_BROADCAST] = ls_mpi_exchange,
              [LS_OP_ALLREDUCE] = ls_mpi_reduce,
              [LS_OP_REDUCE] = ls_mpi_reduce,
              [LS_OP_REDUCE_SCATTER] = ls_mpi_reduce,
              [LS_OP_REDUCE_SCATTERV] = ls_mpi_reduce,
              [LS_OP_GATHER] = ls_mpi_exchange,
              [LS_OP_GATHERV] = ls_mpi_exchange,
              [LS_OP_ALLGATHER] = ls_mpi_exchange,
              [LS_OP_ALLGATHERV] = ls_mpi_exchange,
              [LS_OP_SCATTER] = ls_mpi_exchange,
              [LS_OP_SCATTERV] = ls_mpi_exchange,
              [LS_OP_ALLTOALL] = ls_mpi_exchange,
              [LS_OP_ALLTOALLV] = ls_mpi_exchange,
              [LS_OP_SPLIT] = ls_mpi_exchange},
    .progress = ls_mpi_progress,
    .post = ls_mpi_post,
    .test = ls_mpi_test,
    .split = mpi_split,
    .adopt = mpi_adopt,
};
