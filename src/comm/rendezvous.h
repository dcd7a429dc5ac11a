/*
 * How a process finds its job: what the options and the environment say (ls_job_read), and meeting the other ranks
 * through a store (ls_rendezvous). docs/reference/communication.md tells users about it.
 */
#ifndef LS_COMM_RENDEZVOUS_H
#define LS_COMM_RENDEZVOUS_H

#include "comm/backend.h"
#include "comm/interface.h"
#include "comm/store.h"

#define LS_URL_CAPACITY 4096

/* What this process knows of its job before it has met anybody. */
typedef struct ls_job {
    char url[LS_URL_CAPACITY]; /* of the store; empty for a world of one, and where MPI started the ranks */
    int rank, size;
    int local_rank;        /* -1: found out when the ranks meet */
    int local_size;        /* 0: the same */
    double timeout;        /* seconds */
    const char *key;       /* borrowed from the options or the environment; NULL: none */
    const char *backend;   /* NULL: whatever fits */
    bool by_mpi;           /* the ranks know each other through MPI */
    bool launched;         /* Lockstep's launcher or ls_spawn started this process: standard output is line-buffered
                              if it is a pipe */
    ls_comm *mpi;          /* the program's own MPI communicator, on backend mpi; NULL: the world of MPI. ls_rendezvous
                              takes ownership */
    const char *interface; /* a name or an address, for data; NULL: whatever fits */
    int listener;          /* see ls_store_place */
    bool progress_thread;  /* the progress thread moves started work */
} ls_job;

/* Reads the options (may be NULL) and the environment. LS_ERR_ARGUMENT says which value is wrong or missing. */
ls_status ls_job_read(ls_job *job, const ls_init_options *options);

/* LS_ERR_ARGUMENT unless ranks that know each other through MPI can have this backend, or NULL: any. `otherwise` ends
 * the sentence with the remedy. */
ls_status ls_job_check_mpi_backend(const char *backend, const char *otherwise);

/* How long a call waits for a silent rank, in seconds: from the options, the environment, or the default. */
ls_status ls_timeout_read(const ls_init_options *options, double *timeout);

/* Whether the options or the environment request the progress thread. */
ls_status ls_progress_thread_read(const ls_init_options *options, bool *wanted);

/* A number that processes share which run under one kernel and see each other's process ids. */
uint64_t ls_machine_number(void);

/* Returns an environment variable; NULL if it is not set or empty. */
const char *ls_environment_text(const char *name);

/* A whole number of the environment in [low, high]; LS_ERR_ARGUMENT says what is wrong. */
ls_status ls_environment_number(const char *name, long low, long high, int *number);

/* The URL of a store at that host, an IPv6 one with or without its brackets. */
void ls_job_set_place(ls_job *job, const char *host, int port);

/* Returns true if srun started this process as one of its tasks. A batch script has no step, and is not a task. */
bool ls_slurm_is_here(void);

/* Reads rank, size and place on the machine from what srun set; then, for ranks that are to meet there, the store's
 * URL. */
ls_status ls_slurm_read_place(ls_job *job);
ls_status ls_slurm_find_master(ls_job *job);

/* The first host of a list such as "node[01-03,07],other". LS_ERR_ARGUMENT when it is malformed. */
ls_status ls_slurm_first_host(const char *list, char host[LS_HOST_CAPACITY]);

/* Where the ranks of a world turned out to be. */
typedef struct ls_rendezvous_result {
    ls_store *store;   /* NULL for a world of one, and where MPI carries it; given to the caller */
    ls_comm *launcher; /* over MPI, if the ranks met by it and another backend carries them, or if it is the job's
                          `mpi`; the caller frees it */
    int local_rank, local_size;
    const ls_backend *backend; /* the backend of the world; NULL: `launcher` is the job's `mpi` and becomes the world */
    uint64_t machine;          /* a number that ranks of one machine share */
    char address[LS_ADDRESS_CAPACITY]; /* of this machine, where to listen for data; empty for a world of one */
} ls_rendezvous_result;

/* rendezvous_mpi.c: the ranks of an MPI job tell each other where they are. If all share a machine and none asks for
 * backend mpi, there is a store afterwards. The caller frees the contents of `meeting`, also after a failure. */
ls_status ls_meet_by_mpi(const ls_job *job, ls_roster *world, ls_rendezvous_result *meeting);

/* Meets the other ranks of the job. On failure nothing stays open. */
ls_status ls_rendezvous(const ls_job *job, ls_rendezvous_result *meeting);

/* Joins the job and sets the world of this thread: ls_init without reading the environment. */
ls_comm *ls_init_job(const ls_job *job);

#endif
