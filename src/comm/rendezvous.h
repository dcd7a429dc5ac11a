/*
 * How a process finds its job: ls_job_read reads the options and the environment, and ls_rendezvous meets the other
 * ranks through a store. The user documentation is docs/reference/communication.md.
 */
#ifndef LS_COMM_RENDEZVOUS_H
#define LS_COMM_RENDEZVOUS_H

#include "comm/backend.h"
#include "comm/interface.h"
#include "comm/store.h"

#define LS_URL_CAPACITY 4096

/* The properties of a job that this process knows before it has met the other ranks. */
typedef struct ls_job {
    char url[LS_URL_CAPACITY]; /* URL of the store; empty for a world of one rank, or if MPI started the ranks */
    int rank, size;
    int local_rank;      /* -1 if determined when the ranks meet */
    int local_size;      /* 0 if determined when the ranks meet */
    double timeout;      /* seconds */
    const char *key;     /* borrowed from the options or the environment; NULL if there is none */
    const char *backend; /* NULL selects a backend that all ranks can use */
    bool by_mpi;         /* the ranks know each other through MPI */
    bool launched; /* started by Lockstep's launcher or ls_spawn: standard output is line-buffered if it is a pipe */
    ls_comm *mpi;  /* the program's own MPI communicator, on backend mpi; NULL for MPI's world. ls_rendezvous takes
                      ownership */
    const char *interface; /* name or address of the interface for data; NULL selects it automatically */
    int listener;          /* see ls_store_place */
    bool progress_thread;  /* the progress thread advances started work */
} ls_job;

/* Reads the options (may be NULL) and the environment. Fails with LS_ERR_ARGUMENT, naming the value that is invalid
 * or missing. */
ls_status ls_job_read(ls_job *job, const ls_init_options *options);

/* Fails with LS_ERR_ARGUMENT unless ranks that know each other through MPI can use this backend; NULL stands for any
 * backend. `otherwise` ends the message with the remedy. */
ls_status ls_job_check_mpi_backend(const char *backend, const char *otherwise);

/* Reads how long, in seconds, a call waits for a silent rank: from the options, the environment, or the default. */
ls_status ls_timeout_read(const ls_init_options *options, double *timeout);

/* Sets `*wanted` to whether the options or the environment request the progress thread. */
ls_status ls_progress_thread_read(const ls_init_options *options, bool *wanted);

/* Returns a number that is equal for processes that run under one kernel and see each other's PIDs. */
uint64_t ls_machine_number(void);

/* Returns the value of an environment variable; NULL if it is unset or empty. */
const char *ls_environment_text(const char *name);

/* Reads an integer environment variable. Fails with LS_ERR_ARGUMENT if it is not an integer in [low, high]. */
ls_status ls_environment_number(const char *name, long low, long high, int *number);

/* Sets the URL of a store at the given host. An IPv6 address may be given with or without brackets. */
void ls_job_set_place(ls_job *job, const char *host, int port);

/* An MPI launcher: its name in messages, and the environment variables that it sets. */
typedef struct ls_mpi_launcher {
    const char *name, *rank, *size, *local_rank, *local_size;
} ls_mpi_launcher;

/* Returns the MPI launcher that started this process, or NULL if no MPI launcher started it. */
const ls_mpi_launcher *ls_mpi_launcher_find(void);

/* Returns true if srun started this process as one of its tasks. A batch script is not part of a step, so it is not
 * a task. */
bool ls_slurm_is_here(void);

/* Reads rank, size and local rank from srun's variables; then, for ranks that will meet there, sets the store's URL. */
ls_status ls_slurm_read_place(ls_job *job);
ls_status ls_slurm_find_master(ls_job *job);

/* Finds the first host of a list such as "node[01-03,07],other". Fails with LS_ERR_ARGUMENT if the list is
 * malformed. */
ls_status ls_slurm_first_host(const char *list, char host[LS_HOST_CAPACITY]);

/* The result of a rendezvous: where the ranks of a world are, and how they communicate. */
typedef struct ls_rendezvous_result {
    ls_store *store;   /* owned by the caller; NULL for a world of one rank, or if MPI is the backend */
    ls_comm *launcher; /* communicator over MPI if the ranks met through MPI and use a different backend, or the job's
                          `mpi`; the caller frees it */
    int local_rank, local_size;
    const ls_backend *backend;         /* the world's backend; NULL if `launcher`, the job's `mpi`, becomes the world */
    uint64_t machine;                  /* a number that is equal for ranks of the same machine */
    char address[LS_ADDRESS_CAPACITY]; /* data address of this machine, to listen on; empty for a world of one rank */
} ls_rendezvous_result;

/* In rendezvous_mpi.c: the ranks of an MPI job exchange their peer information. If all share a machine and none
 * requests backend mpi, also opens a store. The caller frees the contents of `meeting`, even on failure. */
ls_status ls_meet_by_mpi(const ls_job *job, ls_roster *world, ls_rendezvous_result *meeting);

/* Meets the other ranks of the job. On failure, nothing stays open. */
ls_status ls_rendezvous(const ls_job *job, ls_rendezvous_result *meeting);

/* Joins the job and sets the world of this thread, like ls_init, but without reading the environment. */
ls_comm *ls_init_job(const ls_job *job);

#endif
