#include "cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/*
 * Runs in the child of vfork, in the parent's memory and with all signals blocked, so it makes only plain system calls.
 * (posix_spawn supports neither the death signal nor the binding to cores.) Returns errno if the program cannot be
 * started.
 */
static int become_program(const ls_process_spec *spec, pid_t launcher) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher) {
        return ESRCH; /* the launcher was killed before the death signal was set */
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
        sched_setaffinity(0, spec->cores_size,
                          spec->cores); /* if these cores are no longer available, the rank runs unbound */
    }
    /* A shell starts background jobs with SIGINT ignored, but the launcher handles it and passes it on. */
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
