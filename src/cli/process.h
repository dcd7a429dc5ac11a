/* Starting one rank's process. */
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
    int standard_fds[3]; /* what becomes standard input, output and error */
    int kept_fds[2];     /* stay open in the program under their numbers; -1: none */
    bool own_group;      /* a process group of its own, out of reach of the terminal's signals */
    const cpu_set_t *cores;
    size_t cores_size;
    const sigset_t *mask;                /* the signal mask the program starts with */
    const struct sigaction *broken_pipe; /* what it does on SIGPIPE */
    const struct rlimit *files;          /* and how many files it may open */
} ls_process_spec;

/*
 * Starts the program. The kernel kills it when this thread ends, however it ends. Returns its process id, or -1 and in
 * *error the errno of what failed, execve included.
 */
pid_t ls_process_start(const ls_process_spec *spec, int *error);

#endif
