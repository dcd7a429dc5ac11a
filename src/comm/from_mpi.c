/*
 * ls_comm_from_mpi: creates communicators over the program's MPI communicators. The core uses neither MPI nor its
 * types: the public header passes the library's name and a pointer, which the core passes to that library's plug-in.
 * The ranks meet over backend mpi, as with mpi://, and then use shared memory if they share a machine.
 */
#include <lockstep/comm.h>

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/threads.h"
#include "comm/record.h"
#include "comm/rendezvous.h"
#include "comm/separate.h"

/* The program's communicator. */
typedef struct program_comm {
    const char *library; /* "openmpi" or "mpich" */
    const void *handle;  /* points to an MPI_Comm, or to an MPI_Fint if `fortran` is true */
    bool fortran;
} program_comm;

static ls_status check_options(const ls_init_options *options) {
    const char *given = options->init != NULL      ? "init"
                        : options->world_size != 0 ? "world_size"
                        : options->rank != 0       ? "rank"
                        : options->key != NULL     ? "key"
                                                   : NULL;
    return given == NULL
               ? LS_OK
               : ls_fail(
                     LS_ERR_ARGUMENT,
                     "%s is set, but the MPI communicator determines it: set only backend, timeout and progress_thread",
                     given);
}

/*
 * Ignores values of LOCKSTEP_BACKEND other than "mpi", because they apply only to ls_init. Ranks on one machine use
 * "shm" by default.
 */
static const char *wanted_backend(const ls_init_options *options) {
    const char *named = ls_environment_text("LOCKSTEP_BACKEND");
    const bool mpi = named != NULL && strcmp(named, "mpi") == 0;
    return options->backend != NULL ? options->backend : mpi ? "mpi" : NULL;
}

/* ---- MPI_Finalize ------------------------------------------------------------------------------------------------ */

/* The communicators that the program has not freed. */
typedef struct adoption {
    ls_comm *comm;
    struct adoption *next;
} adoption;

static adoption *adoptions;
static pthread_mutex_t adoptions_lock = PTHREAD_MUTEX_INITIALIZER;

static void forget_adoption(void *ended, bool failed) {
    (void)failed;
    pthread_mutex_lock(&adoptions_lock);
    adoption **link = &adoptions;
    while (*link != ended) {
        link = &(*link)->next;
    }
    *link = (*link)->next;
    pthread_mutex_unlock(&adoptions_lock);
    ls_free(ended);
}

/* Without memory for the record, other ranks notice the end of this rank later. */
static void note_adoption(ls_comm *comm) {
    adoption *added = ls_allocate(sizeof *added);
    if (added != NULL) {
        pthread_mutex_lock(&adoptions_lock);
        *added = (adoption){.comm = comm, .next = adoptions};
        adoptions = added;
        pthread_mutex_unlock(&adoptions_lock);
        ls_comm_on_free(comm, forget_adoption, added);
    }
}

/*
 * MPI_Finalize calls this first. MPI_Finalize may wait for ranks that wait for this rank in a communicator, so this
 * rank leaves the communicators that the program has not freed.
 */
static void leave_all(void) {
    ls_saved_error before;
    ls_error_save(&before);
    pthread_mutex_lock(&adoptions_lock);
    for (const adoption *each = adoptions; each != NULL; each = each->next) {
        if (!ls_comm_is_inherited(each->comm) && ls_comm_size(each->comm) > 1) {
            ls_comm_leave(each->comm, LS_LEAVE_MPI_ENDED);
        }
    }
    pthread_mutex_unlock(&adoptions_lock);
    (void)ls_error_put_back(&before);
}

/* ---- communicators ----------------------------------------------------------------------------------------------- */

/* Returns a communicator on backend mpi, or NULL with an error set. */
static ls_comm *adopt(const program_comm *source, double timeout) {
    ls_join_context join = {
        .prefix = "mpi/", .machine = ls_machine_number(), .timeout = timeout, .mpi_ends = leave_all};
    void *state = NULL;
    const ls_backend *backend = ls_backend_find_mpi(source->library);
    if (backend == NULL || backend->adopt(source->handle, source->fortran, &join, &state) != LS_OK) {
        return NULL;
    }
    ls_comm *comm = ls_comm_make(backend, &join);
    if (comm == NULL) {
        backend->close(state);
        return NULL;
    }
    comm->state = state;
    if (join.alone) {
        ls_warn_mpi_is_alone();
    }
    return comm;
}

/* Opens a communicator of the same ranks on the backend that they agreed on. Takes ownership of the contents of
 * `meeting`. */
static ls_comm *move(const ls_job *job, const ls_rendezvous_result *meeting) {
    const ls_join_context join = {.rank = job->rank,
                                  .size = job->size,
                                  .local_rank = meeting->local_rank,
                                  .local_size = meeting->local_size,
                                  .store = meeting->store,
                                  .prefix = "mpi/",
                                  .timeout = job->timeout,
                                  .machine = meeting->machine,
                                  .address = meeting->address};
    ls_saved_error cause; /* if ls_comm_open fails */
    ls_comm *comm = ls_comm_open(meeting->backend, &join);
    ls_error_save(&cause);
    if (comm != NULL) {
        comm->store = NULL; /* all ranks have joined, so the store is no longer needed */
    }
    ls_store_close(meeting->store);
    ls_comm_free(meeting->launcher);
    (void)ls_error_put_back(&cause);
    return comm;
}

static ls_status open_best(const program_comm *source, const ls_init_options *options, ls_comm **result) {
    ls_job job = {.local_rank = -1, .listener = -1, .by_mpi = true, .backend = wanted_backend(options)};
    ls_rendezvous_result meeting;
    LS_TRY(check_options(options));
    LS_TRY(ls_job_check_mpi_backend(job.backend, "for that, call ls_init"));
    LS_TRY(ls_timeout_read(options, &job.timeout));
    LS_TRY(ls_progress_thread_read(options, &job.progress_thread));
    job.mpi = adopt(source, job.timeout);
    if (job.mpi == NULL) {
        return ls_error_status();
    }
    job.rank = job.mpi->rank;
    job.size = job.mpi->size;
    LS_TRY(ls_rendezvous(&job, &meeting));
    *result = meeting.backend != NULL ? move(&job, &meeting) : meeting.launcher;
    if (*result == NULL) {
        return ls_error_status();
    }
    (*result)->adopted = true;
    note_adoption(*result);
    if (!ls_log_has_rank()) { /* log lines name the rank in the first communicator of the thread */
        ls_log_set_rank(job.rank);
    }
    ls_threads_share_at_most(meeting.local_size);
    if (job.progress_thread && ls_comm_drive(*result) != LS_OK) {
        ls_saved_error cause;
        ls_error_save(&cause);
        ls_comm_free(*result);
        *result = NULL;
        return ls_error_put_back(&cause);
    }
    return LS_OK;
}

static ls_comm *open_over(const char *call, const program_comm *source, const ls_init_options *options) {
    const ls_init_options defaults = {0};
    ls_saved_error before;
    ls_comm *comm = NULL;
    ls_joined();
    ls_error_save(&before);
    if (open_best(source, options != NULL ? options : &defaults, &comm) != LS_OK) {
        ls_fail_in(call);
    } else { /* failed connection attempts before all ranks arrived are not failures of this call */
        (void)ls_error_put_back(&before);
    }
    return comm;
}

ls_comm *ls_comm_from_mpi_handle(const char *library, const void *handle, const ls_init_options *options) {
    if (library == NULL || handle == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_comm_from_mpi: the %s is NULL",
                            library == NULL ? "library" : "handle");
    }
    return open_over("ls_comm_from_mpi", &(program_comm){.library = library, .handle = handle}, options);
}

/*
 * Returns the name of the MPI library that this process has loaded, or NULL with an error set. A Fortran integer does
 * not identify its library, but the program that has the integer has loaded the library.
 */
static const char *loaded_library(void) {
    char version[8192] = ""; /* MPI_MAX_LIBRARY_VERSION_STRING of MPICH; Open MPI's is smaller */
    int length = 0;
    int (*get_version)(char *text, int *size) = NULL;
    const void *symbol = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    memcpy((void *)&get_version, (const void *)&symbol, sizeof get_version);
    if (get_version == NULL || get_version(version, &length) != 0) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_comm_from_mpi_fint: this process is not linked with MPI; call "
                                             "ls_comm_from_mpi_handle, which takes the library's name");
    }
    const char *library = strstr(version, "Open MPI") != NULL ? "openmpi"
                          : strstr(version, "MPICH") != NULL  ? "mpich"
                                                              : NULL;
    return library != NULL ? library
                           : ls_fail_null(LS_ERR_UNSUPPORTED,
                                          "ls_comm_from_mpi_fint: this process uses an unknown MPI library, \"%.60s\"; "
                                          "Lockstep supports Open MPI and MPICH",
                                          version);
}

ls_comm *ls_comm_from_mpi_fint(int comm, const ls_init_options *options) {
    const program_comm source = {.library = loaded_library(), .handle = &comm, .fortran = true};
    return source.library != NULL ? open_over("ls_comm_from_mpi_fint", &source, options) : NULL;
}
