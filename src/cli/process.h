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
    int kept_fds[2];     /* descriptors that the program inherits under their numbers; -1: none */
    bool own_group;      /* a new process group, which the terminal does not signal */
    const cpu_set_t *cores;
    size_t cores_size;
    const sigset_t *mask;                /* the signal mask of the program */
    const struct sigaction *broken_pipe; /* the action of the program on SIGPIPE */
    const struct rlimit *files;          /* the program's limit of open files */
} ls_process_spec;

/*
 * Starts the program. The kernel kills it when the calling thread ends for any reason. Returns the process id. Returns
 * -1 on failure, with the errno of the failed call (execve included) in *error.
 */
pid_t ls_process_start(const ls_process_spec *spec, int *error);

#endif
