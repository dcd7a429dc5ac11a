/*
 * Backend mpi: opens communicators from the world, from an MPI communicator or by splitting, and closes them. See
 * mpi.h.
 */
#include "comm/backend/mpi/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/status.h"
#include "comm/engine/engine.h"
#include "comm/module.h"

/* ---- states, which are engines ----------------------------------------------------------------------------------- */

/* Returns an engine that has no communicator yet. Returns NULL and sets an error on failure. */
static ls_engine *make_engine(const ls_mpi_options *options) {
    (void)ls_mpi_progress_closing();
    ls_endpoint *endpoint = ls_mpi_endpoint(options);
    return endpoint != NULL ? ls_engine_new(endpoint, options->timeout) : NULL;
}

/* Takes ownership of `engine` and `comm`. */
static ls_status connect(ls_engine *engine, MPI_Comm comm, void **state) {
    ls_endpoint *endpoint = ls_engine_endpoint(engine);
    *state = engine;
    LS_TRY(ls_module_settle(ls_mpi_connect(endpoint, comm), state));
    ls_mpi_count_world(ls_mpi_options_of(endpoint)->world ? 1 : 0);
    return LS_OK;
}

/* Counts the ranks on this rank's machine. */
static void find_local_ranks(const ls_mpi_greeting *all, ls_join_context *join) {
    for (int rank = 0; rank < join->size; rank++) {
        const bool local = all[rank].machine == join->machine;
        join->local_size += local;
        join->local_rank += local && rank < join->rank;
    }
}

/* Returns true if this machine has more ranks than cores that they may run on. */
static bool is_oversubscribed(const ls_mpi_greeting *all, const ls_join_context *join) {
    int ranks = 0;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    for (int rank = 0; rank < join->size; rank++) {
        if (all[rank].machine == join->machine) {
            CPU_OR(&cores, &cores, &all[rank].cores);
            ranks++;
        }
    }
    return CPU_COUNT(&cores) < ranks;
}

/* Returns the size in bytes of the largest message that every rank can send eagerly. */
static size_t find_unasked(const ls_mpi_greeting *all, int size) {
    size_t least = SIZE_MAX;
    for (int rank = 0; rank < size; rank++) {
        const size_t unasked = (size_t)all[rank].unasked;
        least = unasked < least ? unasked : least;
    }
    return least;
}

/* Returns the reductions that MPI computes correctly on all ranks. The vector instructions of the machines may
 * differ. */
static ls_mpi_reductions find_reductions(const ls_mpi_greeting *all, int size) {
    ls_mpi_reductions common = all[0].reductions;
    for (int rank = 1; rank < size; rank++) {
        for (int dtype = 0; dtype < LS_DTYPE_COUNT; dtype++) {
            common.correct[dtype] &= all[rank].reductions.correct[dtype];
        }
    }
    return common;
}

/* In all measurements, MPICH's collectives were slower than the engine with MPICH's messages. */
#ifdef OMPI_MAJOR_VERSION
#define OWN_DEFAULT LS_OWN_BEYOND
#else
#define OWN_DEFAULT LS_OWN_NEVER
#endif

/*
 * Opens an engine over a duplicate of `comm`. All ranks of `comm` call this function. Determines the ranks on this
 * machine if `join` does not contain them.
 */
static ls_status open_over(MPI_Comm comm, ls_join_context *join, bool world, void **state) {
    ls_mpi_greeting own = {
        .machine = join->machine, .unasked = (int64_t)ls_mpi_unasked(), .reductions = ls_mpi_check_reductions()};
    ls_mpi_options options = {.rank = join->rank, .size = join->size, .timeout = join->timeout, .world = world};
    ls_mpi_greeting *all = NULL;
    if (sched_getaffinity(0, sizeof own.cores, &own.cores) != 0) {
        memset(&own.cores, 0xff, sizeof own.cores); /* too many for a cpu_set_t: treated as enough */
    }
    LS_TRY(ls_mpi_meet(comm, &own, join->timeout, &all));
    options.own = OWN_DEFAULT;
    options.unasked = find_unasked(all, join->size);
    options.reductions = find_reductions(all, join->size);
    options.oversubscribed = is_oversubscribed(all, join);
    options.place = ls_place_find(&all[0].machine, sizeof *all, join->size);
    if (join->local_size == 0) {
        find_local_ranks(all, join);
    }
    options.one_machine = join->local_size == join->size;
    ls_free(all);
    MPI_Comm *duplicate = ls_allocate(sizeof *duplicate);
    if (duplicate == NULL) {
        return ls_fail_memory("ls_comm_open", sizeof *duplicate);
    }
    LS_TRY(ls_mpi_duplicate(comm, join->timeout, duplicate)); /* if this fails, MPI may still write to the duplicate */
    MPI_Comm made = *duplicate;
    ls_free(duplicate);
    ls_engine *engine = make_engine(&options);
    if (engine == NULL) {
        MPI_Comm_free(&made);
        return ls_error_status();
    }
    return connect(engine, made, state);
}

/* ---- the world --------------------------------------------------------------------------------------------------- */

#ifdef OMPI_MAJOR_VERSION
#define OWN_LIBRARY "Open MPI"
#else
#define OWN_LIBRARY "MPICH"
#endif

/* Writes the first words of the running library's version, such as "MPICH Version: 4.0.2". Returns true if this is
 * the library that the plug-in was built with. MPI allows this call before MPI_Init and after MPI_Finalize. */
static bool find_library(char text[64]) {
    char version[8192] = ""; /* MPICH's MPI_MAX_LIBRARY_VERSION_STRING; Open MPI's is only 256 */
    int length = 0;
    MPI_Get_library_version(version, &length);
    const bool is_own = (strstr(version, "Open MPI") != NULL) == (strcmp(OWN_LIBRARY, "Open MPI") == 0);
    version[strcspn(version, ",\n")] = '\0';
    for (char *at = strchr(version, '\t'); at != NULL; at = strchr(at, '\t')) {
        *at = ' ';
    }
    snprintf(text, 64, "%.63s", version);
    return is_own;
}

/*
 * Fails if the process is linked with a different MPI library. The plug-in's MPI calls then resolve to that library,
 * which cannot interpret handles of the plug-in's library.
 */
static ls_status check_library(const char *remedy) {
    char library[64];
    return find_library(library)
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "Lockstep's plug-in for " OWN_LIBRARY " was selected, but this process is linked with %s: %s",
                         library, remedy);
}

static ls_status check_place(const ls_join_context *join) {
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(ls_mpi_world(), &rank);
    MPI_Comm_size(ls_mpi_world(), &size);
    if (size == 1 && join->size > 1) { /* all ranks report the same error */
        return ls_fail(
            LS_ERR_ARGUMENT,
            "ls_comm_open: MPI says that this process is alone, but the job has %d ranks: backend \"mpi\" needs ranks "
            "started by mpirun (or srun) of the MPI library that Lockstep's plug-in was built with",
            join->size);
    }
    if (rank != join->rank || size != join->size) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "ls_comm_open: this process is rank %d of %d, but MPI says rank %d of %d: backend \"mpi\" needs "
                       "ranks started by mpirun (or srun) of the MPI library that Lockstep's plug-in was built with",
                       join->rank, join->size, rank, size);
    }
    return LS_OK;
}

static ls_status open_world(ls_join_context *join, void **state) {
    LS_TRY(check_library("start it with the mpirun of that library"));
    LS_TRY(ls_mpi_join(join->timeout));
    LS_TRY(check_place(join));
    return open_over(ls_mpi_world(), join, true, state);
}

static ls_status mpi_open(const ls_join_context *join, void **state) {
    ls_join_context place = *join;
    const ls_status status = open_world(&place, state);
    if (status == LS_ERR_TIMEOUT) {
        ls_mpi_lose_world();
    }
    return status;
}

static void mpi_close(void *state) {
    const bool world = ls_mpi_options_of(ls_engine_endpoint(state))->world;
    const ls_engine_end end = ls_engine_ended(state);
    /* A rank that left a split communicator because of a failure reports this failure itself. */
    if (end == LS_ENGINE_FAILED || (end == LS_ENGINE_DESERTED && world)) {
        ls_mpi_note_failure();
    }
    ls_mpi_count_world(world ? -1 : 0);
    ls_engine_close(state);
}

/* ---- the program's own communicators ----------------------------------------------------------------------------- */

/* MPI allows all functions called here before MPI_Init and after MPI_Finalize. */
static ls_status check_running(void) {
    LS_TRY(check_library("pass LS_MPI_LIBRARY of the <mpi.h> that the program was compiled with"));
    if (!ls_mpi_runs()) {
        char library[64];
        (void)find_library(library);
        return ls_fail(LS_ERR_STATE,
                       "MPI is not running in the library that Lockstep's plug-in was built with (%s): call this "
                       "between MPI_Init and MPI_Finalize of that library",
                       library);
    }
    return ls_mpi_check_allowed();
}

/* Calls MPI_Comm_test_inter, which returns an error if `comm` is not valid. MPI passes this error to the error
 * handler of MPI_COMM_WORLD or, from MPI 4 on, of MPI_COMM_SELF; the default handler aborts. */
static int test_inter(MPI_Comm comm, int *inter) {
    const MPI_Comm owners[2] = {MPI_COMM_WORLD, MPI_COMM_SELF};
    MPI_Errhandler handlers[2];
    for (int i = 0; i < 2; i++) {
        MPI_Comm_get_errhandler(owners[i], &handlers[i]);
        MPI_Comm_set_errhandler(owners[i], MPI_ERRORS_RETURN);
    }
    const int code = MPI_Comm_test_inter(comm, inter);
    for (int i = 0; i < 2; i++) {
        MPI_Comm_set_errhandler(owners[i], handlers[i]);
        MPI_Errhandler_free(&handlers[i]);
    }
    return code;
}

static ls_status check_handle(MPI_Comm comm) {
    int inter = 0;
    if (comm == MPI_COMM_NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "the communicator is MPI_COMM_NULL");
    }
    if (test_inter(comm, &inter) != MPI_SUCCESS) {
        return ls_fail(LS_ERR_ARGUMENT, "MPI says that the handle is not a valid communicator: pass one that was not "
                                        "freed, or the result of MPI_Comm_c2f");
    }
    if (inter != 0) {
        return ls_fail(LS_ERR_UNSUPPORTED, "the communicator is an intercommunicator: MPI_Intercomm_merge makes one "
                                           "communicator of its two groups");
    }
    return LS_OK;
}

static ls_status mpi_adopt(const void *handle, bool fortran, ls_join_context *join, void **state) {
    LS_TRY(check_running());
    const MPI_Comm comm = fortran ? MPI_Comm_f2c(*(const MPI_Fint *)handle) : *(const MPI_Comm *)handle;
    LS_TRY(check_handle(comm));
    LS_TRY(ls_mpi_watch_finalize(join->mpi_ends));
    MPI_Comm_rank(comm, &join->rank);
    MPI_Comm_size(comm, &join->size);
    int connected = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &connected);
    join->alone = connected == 1;
    return open_over(comm, join, false, state);
}

/* ---- splits ------------------------------------------------------------------------------------------------------ */

/* A communicator that MPI will create from some ranks of the parent, and the resources that this rank needs for it. */
typedef struct split_request {
    MPI_Comm parent;
    MPI_Group group;
    MPI_Comm made;
    ls_mpi_worker *worker; /* thread that makes the MPI call; NULL if the calling thread makes it */
    ls_engine *engine;
} split_request;

static int make_communicator(void *argument) {
    split_request *own = argument;
    return MPI_Comm_create_group(own->parent, own->group, 0, &own->made);
}

/* Returns true if one thread may block in MPI while another thread calls MPI. */
static bool has_threads(void) {
    int level = MPI_THREAD_SINGLE;
    return MPI_Query_thread(&level) == MPI_SUCCESS && level == MPI_THREAD_MULTIPLE;
}

static void discard_part(split_request *own) {
    if (own == NULL) {
        return;
    }
    if (own->engine != NULL) {
        ls_engine_close(own->engine);
    }
    if (own->group != MPI_GROUP_NULL) {
        MPI_Group_free(&own->group);
    }
    ls_mpi_worker_end(own->worker);
    ls_free(own);
}

/* Allocates everything that this rank needs, before it reports to the other ranks that it is ready. */
static ls_status prepare_part(const ls_endpoint *parent, const ls_join_context *join, const int *ranks,
                              split_request **result) {
    MPI_Group all;
    ls_mpi_options options = *ls_mpi_options_of(parent);
    split_request *own = ls_allocate_zeroed(1, sizeof *own);
    *result = own;
    if (own == NULL) {
        return ls_fail_memory("ls_comm_open", sizeof *own);
    }
    own->parent = ls_mpi_comm_of(parent);
    own->group = MPI_GROUP_NULL;
    int code = MPI_Comm_group(own->parent, &all);
    if (code == MPI_SUCCESS) {
        code = MPI_Group_incl(all, join->size, ranks, &own->group);
        MPI_Group_free(&all);
    }
    if (code != MPI_SUCCESS) {
        return ls_mpi_fail("MPI_Group_incl", code);
    }
    if (has_threads()) {
        own->worker = ls_mpi_worker_start();
        LS_TRY(own->worker != NULL ? LS_OK : ls_error_status());
    }
    options.rank = join->rank;
    options.size = join->size;
    options.timeout = join->timeout;
    options.world = false;
    own->engine = make_engine(&options);
    return own->engine != NULL ? LS_OK : ls_error_status();
}

/* Creates the communicator. All its ranks have agreed to do so, so all of them make this call. Takes ownership of
 * `own`. */
static ls_status open_part(split_request *own, double timeout, void **state) {
    static const char name[] = "MPI_Comm_create_group";
    ls_status status = LS_OK;
    if (own->worker != NULL) {
        status = ls_mpi_worker_run(own->worker, make_communicator, own, name, timeout);
    } else {
        const int code = make_communicator(own);
        status = code == MPI_SUCCESS ? LS_OK : ls_mpi_fail(name, code);
    }
    if (status == LS_ERR_TIMEOUT) {
        return status; /* the worker is still in MPI, using `own` */
    }
    if (status == LS_OK) {
        ls_engine *engine = own->engine;
        own->engine = NULL;
        status = connect(engine, own->made, state);
    }
    discard_part(own);
    return status;
}

/* Fails if any rank is not ready. Called after all ranks have reported their status. */
static ls_status check_all_ready(const ls_join_context *join, const int *ranks, const int32_t *said) {
    for (int i = 0; i < join->size; i++) {
        if (said[ranks[i]] != LS_OK) {
            return ls_fail(LS_ERR_PEER, "ls_comm_open: rank %d cannot take part", i);
        }
    }
    return LS_OK;
}

static ls_status mpi_split(void *state, const ls_join_context *join, const int *ranks, void **result) {
    ls_endpoint *parent = ls_engine_endpoint(state);
    const size_t size = (size_t)parent->size;
    int32_t *said = ls_allocate(size * sizeof *said);
    char message[LS_ERROR_CAPACITY];
    split_request *own = NULL;
    *result = NULL;
    if (said == NULL) {
        ls_engine_abort(state, ls_fail_memory("ls_comm_split", size * sizeof *said), parent->rank);
        return ls_error_status();
    }
    const int32_t ready = join != NULL ? (int32_t)prepare_part(parent, join, ranks, &own) : (int32_t)LS_OK;
    snprintf(message, sizeof message, "%s", ls_error_message());
    ls_status status = ls_engine_exchange(state, &ready, said, sizeof ready);
    if (status == LS_OK && ready != LS_OK) {
        status = (ls_status)ready;
        ls_error_restore(status, message);
    } else if (status == LS_OK && join != NULL) {
        status = check_all_ready(join, ranks, said);
    }
    ls_free(said);
    if (status == LS_OK && join != NULL) {
        return open_part(own, join->timeout, result);
    }
    discard_part(own);
    return status;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

static void mpi_leave(void *state, ls_leave_reason reason) {
    ls_engine_leave(state, reason);
    if (reason == LS_LEAVE_EXITED) {
        ls_mpi_note_exit();
    }
}

static ls_status mpi_meet_leaving(void *state) {
    const ls_status status = ls_engine_finalize_barrier(state);
    if (status != LS_OK) { /* this process exits next; the launcher then terminates the rank that failed first */
        ls_mpi_await_reports();
    }
    return status;
}

static ls_status mpi_check(const void *state) {
    (void)state;
    return ls_mpi_check_allowed();
}

static bool mpi_any_thread(const void *state) {
    (void)state;
    return has_threads();
}

const ls_backend ls_module_backend = {
    .name = "mpi",
    .sends_by_library = true,
    .check = mpi_check,
    .any_thread = mpi_any_thread,
    .open = mpi_open,
    .close = mpi_close,
    .finish_closed = ls_mpi_finish_closed,
    .leave = mpi_leave,
    .finalize_barrier = mpi_meet_leaving,
    .split = mpi_split,
    .adopt = mpi_adopt,
    LS_ENGINE_CALLS,
};
