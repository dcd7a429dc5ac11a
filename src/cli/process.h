/* Starts the process of one rank. */
#ifndef LS_CLI_PROCESS_H
#define LS_CLI_PROCESS_H

#include <lockstep/base.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

typedef struct ls_process_spec {
    const char *path;
    char *const *argv;
    char *const *environment;
    int standard_fds[3]; /* the descriptors for standard input, output and error */
    int kept_fds[2];     /* descriptors that the program inherits with the same numbers; -1 means none */
    bool own_group;      /* a new process group, which the terminal does not signal */
    const cpu_set_t *cores;
    size_t cores_size;
    const sigset_t *mask;                /* the program's signal mask */
    const struct sigaction *broken_pipe; /* the program's action for SIGPIPE */
    const struct rlimit *files;          /* the program's limit of open files */
} ls_process_spec;

/*
 * Starts the program. The kernel kills it when the calling thread ends for any reason. Returns the process id. On
 * failure, returns -1, with the errno of the failed call (including execve) in *error.
 */
pid_t ls_process_start(const ls_process_spec *spec, int *error);

#endif
