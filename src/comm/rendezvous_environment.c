#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/locale.h"
#include "base/option.h"
#include "comm/rendezvous.h"

/* Returns the number in `text`, or 0 if `text` is not a number. */
static double read_number(const char *text) {
    char *end;
    const double number = ls_strtod(text, &end);
    return end != text && *end == '\0' && isfinite(number) ? number : 0;
}

ls_status ls_timeout_read(const ls_init_options *options, double *timeout) {
    const char *text = ls_environment_text("LOCKSTEP_TIMEOUT");
    *timeout = ls_option_timeout(options->timeout, 0);
    if (!(*timeout >= 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "timeout is %g s, but must not be negative", options->timeout);
    }
    if (*timeout == 0 && text != NULL) {
        *timeout = read_number(text);
        if (*timeout <= 0) {
            return ls_fail(LS_ERR_ARGUMENT, "LOCKSTEP_TIMEOUT=%s is not a positive number of seconds", text);
        }
    }
    if (*timeout == 0) {
        *timeout = LS_DEFAULT_TIMEOUT;
    }
    return LS_OK;
}

ls_status ls_progress_thread_read(const ls_init_options *options, bool *wanted) {
    const char *text = ls_environment_text("LOCKSTEP_PROGRESS_THREAD");
    if (text != NULL && strcmp(text, "0") != 0 && strcmp(text, "1") != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "LOCKSTEP_PROGRESS_THREAD is %s, but must be 0 or 1", text);
    }
    *wanted = options->progress_thread || (text != NULL && text[0] == '1');
    return LS_OK;
}

/* srun's variables apply only if RANK and WORLD_SIZE, which take precedence, are not set. */
static bool slurm_counts(void) {
    return ls_environment_text("RANK") == NULL && ls_environment_text("WORLD_SIZE") == NULL && ls_slurm_is_here();
}

/* Reads the rank and the world size: from the options if they give a world size, otherwise from the environment. */
static ls_status read_place(ls_job *job, const ls_init_options *options) {
    if (options->world_size != 0) {
        if (options->world_size < 1 || options->world_size > LS_RANKS_MAX) {
            return ls_fail(LS_ERR_ARGUMENT, "world_size is %d, but must be from 1 to %d", options->world_size,
                           LS_RANKS_MAX);
        }
        if (options->rank < 0 || options->rank >= options->world_size) {
            return ls_fail(LS_ERR_ARGUMENT, "rank is %d, but must be from 0 to %d in a world of %d", options->rank,
                           options->world_size - 1, options->world_size);
        }
        job->rank = options->rank;
        job->size = options->world_size;
        return LS_OK;
    }
    if (slurm_counts()) {
        return ls_slurm_read_place(job);
    }
    LS_TRY(ls_environment_number("WORLD_SIZE", 1, LS_RANKS_MAX, &job->size));
    LS_TRY(ls_environment_number("RANK", 0, LS_RANKS_MAX - 1, &job->rank));
    if (job->rank >= job->size) {
        return ls_fail(LS_ERR_ARGUMENT, "RANK=%d must be below WORLD_SIZE=%d", job->rank, job->size);
    }
    if (ls_environment_text("LOCAL_WORLD_SIZE") != NULL) {
        LS_TRY(ls_environment_number("LOCAL_WORLD_SIZE", 1, job->size, &job->local_size));
    }
    if (ls_environment_text("LOCAL_RANK") != NULL) {
        LS_TRY(ls_environment_number("LOCAL_RANK", 0, (job->local_size > 0 ? job->local_size : job->size) - 1,
                                     &job->local_rank));
    }
    return LS_OK;
}

/* A launcher that had already bound the announced port passes the listening socket to rank 0. */
static ls_status read_listener(ls_job *job, int port) {
    if (job->rank != 0 || ls_environment_text("LOCKSTEP_STORE_FD") == NULL) {
        return LS_OK;
    }
    int fd;
    LS_TRY(ls_environment_number("LOCKSTEP_STORE_FD", 0, INT_MAX, &fd));
    if (ls_socket_port(fd) == port) { /* otherwise an earlier ls_init of this process has used and closed it */
        job->listener = fd;
    }
    return LS_OK;
}

/* Sets the store's address from MASTER_ADDR and MASTER_PORT, where rank 0 serves the store. */
static ls_status read_master(ls_job *job) {
    const char *host = ls_environment_text("MASTER_ADDR");
    const char *agent = ls_environment_text("TORCHELASTIC_USE_AGENT_STORE");
    int port;
    if (host == NULL) {
        return ls_fail(LS_ERR_ARGUMENT,
                       "MASTER_ADDR is not set in the environment: set it to the host of rank 0, where the ranks meet");
    }
    if (strlen(host) >= LS_HOST_CAPACITY) {
        return ls_fail(LS_ERR_ARGUMENT, "MASTER_ADDR has %zu bytes, but at most %d are allowed", strlen(host),
                       LS_HOST_CAPACITY - 1);
    }
    LS_TRY(ls_environment_number("MASTER_PORT", 1, 65535, &port));
    if (agent != NULL && strcmp(agent, "True") == 0) { /* torchrun's own store listens on this port */
        if (++port > 65535) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "MASTER_PORT=65535 is used by torchrun and leaves no higher port for Lockstep");
        }
    }
    LS_TRY(read_listener(job, port));
    ls_job_set_place(job, host, port);
    return LS_OK;
}

static const ls_mpi_launcher launchers[] = {
    {"mpirun of Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"mpirun of MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

const ls_mpi_launcher *ls_mpi_launcher_find(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        if (ls_environment_text(launchers[i].rank) != NULL && ls_environment_text(launchers[i].size) != NULL) {
            return &launchers[i];
        }
    }
    return NULL;
}

/* Returns true if the variable was set when the process started. In a single process, Open MPI's MPI_Init sets
 * PMIx's variables itself. */
static bool started_with(const char *name) {
    FILE *file = fopen("/proc/self/environ", "re");
    const size_t length = strlen(name);
    char *text = NULL;
    size_t room = 0;
    bool found = false;
    while (file != NULL && !found && getdelim(&text, &room, '\0', file) > 0) {
        found = strncmp(text, name, length) == 0 && text[length] == '=';
    }
    free(text);
    if (file != NULL) {
        (void)fclose(file);
    }
    return found;
}

/* PMIx launchers (prterun) number the processes, but do not set their total number. */
static bool pmix_started_this(void) {
    return ls_environment_text("PMIX_RANK") != NULL && ls_environment_text("PMIX_NAMESPACE") != NULL &&
           started_with("PMIX_RANK");
}

static ls_status refuse_pmix(void) {
    return ls_fail(LS_ERR_ARGUMENT,
                   "a PMIx launcher started this process (PMIX_NAMESPACE=%s, PMIX_RANK=%s), which does not report the "
                   "number of processes: start the program with mpirun, srun or `lockstep run`, or set RANK, "
                   "WORLD_SIZE, MASTER_ADDR and MASTER_PORT",
                   getenv("PMIX_NAMESPACE"), getenv("PMIX_RANK"));
}

/*
 * Rejects WORLD_SIZE=1 in each of several processes that mpirun, srun or prterun started, because each would be a
 * separate job. `lockstep run` and torchrun, which set WORLD_SIZE themselves, may run as processes of such a launcher.
 */
static ls_status check_alone(const ls_job *job) {
    const ls_mpi_launcher *mpi = ls_mpi_launcher_find();
    const bool slurm = mpi == NULL && ls_slurm_is_here();
    const char *name = mpi != NULL ? mpi->size : slurm ? "SLURM_STEP_NUM_TASKS" : "PMIX_RANK";
    const char *text = ls_environment_text(name);
    const long started = text != NULL ? strtol(text, NULL, 10) + (mpi == NULL && !slurm) : 0;
    const bool nested =
        ls_environment_text("LOCKSTEP_LAUNCH") != NULL || ls_environment_text("TORCHELASTIC_RUN_ID") != NULL;
    return job->size > 1 || nested || started <= 1
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "WORLD_SIZE is 1, but a launcher started several processes (%s=%s), each of which would be a "
                         "separate job: unset RANK and WORLD_SIZE",
                         name, text);
}

ls_status ls_job_check_mpi_backend(const char *backend, const char *otherwise) {
    return backend == NULL || strcmp(backend, "mpi") == 0 || strcmp(backend, "shm") == 0
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT,
                         "an MPI job can use backend \"mpi\" or, on one machine, \"shm\", not \"%s\": %s", backend,
                         otherwise);
}

/* Reads the job from MPI's variables. The ranks of an MPI job already know each other, so they need no store. */
static ls_status read_mpi(ls_job *job, const ls_init_options *options) {
    const ls_mpi_launcher *found = ls_mpi_launcher_find();
    if (found == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "init is mpi://, but no MPI launcher started this process: mpirun sets neither "
                                        "OMPI_COMM_WORLD_RANK nor PMI_RANK");
    }
    if (options->world_size != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "world_size is %d, but with mpi://, mpirun determines the number of ranks",
                       options->world_size);
    }
    LS_TRY(ls_environment_number(found->size, 1, INT_MAX, &job->size));
    LS_TRY(ls_environment_number(found->rank, 0, job->size - 1, &job->rank));
    if (ls_environment_text(found->local_size) != NULL && ls_environment_text(found->local_rank) != NULL) {
        LS_TRY(ls_environment_number(found->local_size, 1, job->size, &job->local_size));
        LS_TRY(ls_environment_number(found->local_rank, 0, job->local_size - 1, &job->local_rank));
    }
    job->by_mpi = true;
    return ls_job_check_mpi_backend(job->backend, "for that, use an init other than mpi://");
}

/* Runs first, so that a user who mistyped the URL does not get an error about variables that are not set. */
static ls_status check_url(const ls_job *job, const char *init) {
    if (init == NULL || strcmp(init, "env://") == 0) {
        return LS_OK;
    }
    if (strlen(init) >= sizeof job->url) {
        return ls_fail(LS_ERR_ARGUMENT, "init has %zu bytes, but at most %zu are allowed", strlen(init),
                       sizeof job->url - 1);
    }
    if (strncmp(init, "tcp://", strlen("tcp://")) != 0 && strncmp(init, "file://", strlen("file://")) != 0) {
        return ls_fail(LS_ERR_ARGUMENT, "init is \"%s\", but must be env://, tcp://HOST:PORT, file://PATH or mpi://",
                       init);
    }
    return ls_store_check_url(init);
}

/* Rejects port 0, for which the system would choose a port that the other ranks do not know. */
static ls_status check_port(const char *init) {
    ls_address address = {.port = 1};
    LS_TRY(strncmp(init, "tcp://", strlen("tcp://")) == 0 ? ls_address_parse(init, &address) : LS_OK);
    return address.port != 0
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "init is \"%s\", but its port must be from 1 to 65535 and equal on all ranks",
                         init);
}

static ls_status read_url(ls_job *job, const char *init) {
    if (strcmp(init, "env://") == 0) {
        return job->size > 1 ? read_master(job) : LS_OK;
    }
    if (job->size > 1) {
        LS_TRY(check_port(init));
        memcpy(job->url, init, strlen(init) + 1);
    }
    return LS_OK;
}

ls_status ls_job_read(ls_job *job, const ls_init_options *options) {
    const ls_init_options defaults = {0};
    options = options != NULL ? options : &defaults;
    *job = (ls_job){.size = 1, .local_rank = -1, .listener = -1, .backend = options->backend};
    job->backend = job->backend != NULL ? job->backend : ls_environment_text("LOCKSTEP_BACKEND");
    job->interface = ls_environment_text("LOCKSTEP_INTERFACE");
    job->launched = ls_environment_text("LOCKSTEP_LAUNCH") != NULL;
    job->key = options->key != NULL ? options->key : ls_environment_text("LOCKSTEP_KEY");
    LS_TRY(ls_timeout_read(options, &job->timeout));
    LS_TRY(ls_progress_thread_read(options, &job->progress_thread));
    if (options->init != NULL && strcmp(options->init, "mpi://") == 0) {
        return read_mpi(job, options);
    }
    if (options->init == NULL && options->world_size == 0 && ls_environment_text("RANK") == NULL &&
        ls_environment_text("WORLD_SIZE") == NULL) {
        if (ls_mpi_launcher_find() != NULL) {
            return read_mpi(job, options);
        }
        if (!slurm_counts()) {
            return pmix_started_this() ? refuse_pmix() : LS_OK;
        }
        LS_TRY(ls_slurm_read_place(job));
        return job->size > 1 ? ls_slurm_find_master(job) : LS_OK;
    }
    LS_TRY(check_url(job, options->init));
    LS_TRY(read_place(job, options));
    LS_TRY(options->world_size == 0 ? check_alone(job) : LS_OK);
    return read_url(job, options->init != NULL ? options->init : "env://");
}
