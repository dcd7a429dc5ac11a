#include "cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * Runs in the child on borrowed memory (vfork) with every signal blocked: plain system calls only, like posix_spawn,
 * which offers neither the death signal nor the cores. Comes back with an errno when the program cannot be started.
 */
static int become_program(const ls_process_spec *spec, pid_t launcher) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) {
        return ESRCH; /* it was killed before the death signal was set */
    }
    if (spec->own_group && setpgid(0, 0) != 0) {
        return errno;
    }
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (spec->standard_fds[fd] != fd && dup2(spec->standard_fds[fd], fd) < 0) {
            return errno;
        }
    }
    for (int i = 0; i < 2; i++) {
        if (spec->kept_fds[i] >= 0 && fcntl(spec->kept_fds[i], F_SETFD, 0) != 0) {
            return errno;
        }
    }
    if (spec->cores != NULL) {
        sched_setaffinity(0, spec->cores_size, spec->cores); /* cores gone meanwhile: unbound is the best left */
    }
    /* A shell starts background jobs deaf to Ctrl-C; the launcher hears it for them and passes it on. */
    const struct sigaction usual = {.sa_handler = SIG_DFL};
    sigaction(SIGINT, &usual, NULL);
    sigaction(SIGQUIT, &usual, NULL);
    sigaction(SIGTERM, &usual, NULL);
    sigaction(SIGPIPE, spec->broken_pipe, NULL);
    setrlimit(RLIMIT_NOFILE, spec->files);
    sigprocmask(SIG_SETMASK, spec->mask, NULL);
    execve(spec->path, spec->argv, spec->environment);
    return errno;
}

pid_t ls_process_start(const ls_process_spec *spec, int *error) {
    sigset_t every;
    sigset_t before;
    sigfillset(&every);
    sigprocmask(SIG_SETMASK, &every, &before);
    const pid_t launcher = getpid();
    volatile int failure = 0;
    const pid_t pid = vfork();
    if (pid == 0) {
        failure = become_program(spec, launcher);
        _exit(127);
    }
    *error = pid < 0 ? errno : failure;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (pid > 0 && failure != 0) {
        waitpid(pid, NULL, 0);
        return -1;
    }
    return pid;
}
