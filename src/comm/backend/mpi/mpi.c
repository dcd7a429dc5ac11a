/* Backend mpi: communicators, made of the world, of an MPI communicator or of a part of another, and their end. mpi.h
 * tells how it works. */
#include "comm/backend/mpi/mpi.h"

#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/collective/engine.h"
#include "comm/module.h"

/* ---- states, which are engines -------------------------------------------------------------------------------------
 */

/* An engine over the communicator, which this takes over. */
static ls_status start(const ls_join *join, const ls_mpi_options *options, void **state) {
    ls_mpi_options own = *options;
    own.timeout = join->timeout;
    own.oversubscribed = join->local_size > sysconf(_SC_NPROCESSORS_ONLN);
    (void)ls_mpi_sweep();
    ls_endpoint *endpoint = ls_mpi_endpoint(&own);
    ls_engine *engine = endpoint != NULL ? ls_engine_new(endpoint, join->timeout) : NULL;
    if (engine == NULL) {
        return ls_error_status();
    }
    ls_mpi_count_world(own.world ? 1 : 0);
    *state = engine;
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

/* Bytes of the largest message that all of them send without asking. */
static size_t find_unasked(const ls_mpi_greeting *all, int size) {
    size_t least = SIZE_MAX;
    for (int rank = 0; rank < size; rank++) {
        const size_t unasked = (size_t)all[rank].unasked;
        least = unasked < least ? unasked : least;
    }
    return least;
}

/* An engine over a duplicate of `comm`; all its ranks call this. Finds who shares the machine, if `join` does not know.
 */
static ls_status open_over(MPI_Comm comm, ls_join *join, bool world, void **state) {
    const ls_mpi_greeting own = {.machine = join->machine, .unasked = (int64_t)ls_mpi_unasked()};
    ls_mpi_options options = {.world = world};
    ls_mpi_greeting *all = NULL;
    LS_TRY(ls_mpi_meet(comm, &own, join->timeout, &all));
    options.unasked = find_unasked(all, join->size);
    if (join->local_size == 0) {
        find_local_ranks(all, join);
    }
    ls_free(all);
    MPI_Comm *duplicate = ls_allocate(sizeof *duplicate);
    if (duplicate == NULL) {
        return ls_fail_memory("ls_comm_open", sizeof *duplicate);
    }
    const ls_status status = ls_mpi_duplicate(comm, join->timeout, duplicate);
    if (status == LS_ERR_TIMEOUT) {
        return status; /* MPI may write to it still */
    }
    options.comm = *duplicate;
    ls_free(duplicate);
    return status == LS_OK ? start(join, &options, state) : status;
}

/* ---- the world -----------------------------------------------------------------------------------------------------
 */

static ls_status check_place(const ls_join *join) {
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(ls_mpi_world(), &rank);
    MPI_Comm_size(ls_mpi_world(), &size);
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

static ls_status open_world(ls_join *join, void **state) {
    LS_TRY(ls_mpi_join(join->timeout));
    LS_TRY(check_place(join));
    return open_over(ls_mpi_world(), join, true, state);
}

static ls_status mpi_open(const ls_join *join, void **state) {
    ls_join place = *join;
    const ls_status status = open_world(&place, state);
    if (status == LS_ERR_TIMEOUT) {
        ls_mpi_lose_world();
    }
    return status;
}

static void mpi_close(void *state) {
    ls_endpoint *endpoint = ls_engine_endpoint(state);
    const bool world = ls_mpi_options_of(endpoint)->world;
    const ls_engine_end end = ls_engine_ended(state);
    /* Who left a part in failure notes that itself. */
    if (end == LS_ENGINE_FAILED || (end == LS_ENGINE_DESERTED && world)) {
        ls_mpi_note_failure();
    }
    if (!ls_mpi_runs()) {
        ls_mpi_forsake(endpoint);
    }
    ls_mpi_count_world(world ? -1 : 0);
    ls_engine_close(state);
}

/* ---- communicators of the program's own ----------------------------------------------------------------------------
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
    LS_TRY(check_handle(comm));
    LS_TRY(ls_mpi_watch_finalize());
    MPI_Comm_rank(comm, &join->rank);
    MPI_Comm_size(comm, &join->size);
    return open_over(comm, join, false, state);
}

/* ---- parts ---------------------------------------------------------------------------------------------------------
 */

typedef struct making {
    MPI_Comm parent;
    MPI_Group group;
    MPI_Comm made;
} making;

static int make_part(void *argument) {
    making *part = argument;
    return MPI_Comm_create_group(part->parent, part->group, 0, &part->made);
}

/* Whether another thread may call MPI while this one waits. */
static bool has_threads(void) {
    int level = MPI_THREAD_SINGLE;
    return MPI_Query_thread(&level) == MPI_SUCCESS && level >= MPI_THREAD_SERIALIZED;
}

/* MPI makes a communicator of some ranks of the parent, which all are here or about to be: they have agreed to. */
static ls_status make_communicator(MPI_Comm parent, const ls_join *join, const int *ranks, MPI_Comm *made) {
    static const char name[] = "MPI_Comm_create_group";
    MPI_Group all;
    making *part = ls_allocate_zeroed(1, sizeof *part);
    if (part == NULL) {
        return ls_fail_memory("ls_comm_split", sizeof *part);
    }
    part->parent = parent;
    MPI_Comm_group(parent, &all);
    int code = MPI_Group_incl(all, join->size, ranks, &part->group);
    MPI_Group_free(&all);
    ls_status status = code == MPI_SUCCESS ? LS_OK : ls_mpi_fail("MPI_Group_incl", code);
    if (status == LS_OK && has_threads()) {
        status = ls_mpi_in_thread(make_part, part, name, join->timeout);
    } else if (status == LS_OK) {
        code = make_part(part);
        status = code == MPI_SUCCESS ? LS_OK : ls_mpi_fail(name, code);
    }
    if (status == LS_ERR_TIMEOUT) {
        return status; /* MPI is still at it */
    }
    *made = part->made;
    MPI_Group_free(&part->group);
    ls_free(part);
    return status;
}

static ls_status mpi_split(void *state, const ls_join *join, const int *ranks, void **result) {
    ls_mpi_options options = *ls_mpi_options_of(ls_engine_endpoint(state));
    *result = NULL;
    if (join == NULL) {
        return LS_OK;
    }
    options.world = false;
    LS_TRY(make_communicator(options.comm, join, ranks, &options.comm));
    return start(join, &options, result);
}

/* ---- the end -------------------------------------------------------------------------------------------------------
 */

static void mpi_leave(void *state, ls_leave_reason reason) {
    if (!ls_mpi_runs()) {
        return; /* the program finalized MPI too early */
    }
    ls_engine_leave(state, reason);
    if (reason == LS_LEAVE_EXITED) {
        ls_mpi_note_exit();
    }
}

static ls_status mpi_meet_leaving(void *state) {
    const ls_status status = ls_engine_meet_leaving(state);
    if (status != LS_OK) { /* it ends now, and the launcher then ends who failed first */
        ls_mpi_let_others_tell();
    }
    return status;
}

const ls_backend ls_module_backend = {
    .name = "mpi",
    .open = mpi_open,
    .close = mpi_close,
    .leave = mpi_leave,
    .meet_leaving = mpi_meet_leaving,
    .split = mpi_split,
    .adopt = mpi_adopt,
    LS_ENGINE_CALLS,
};
