#include "cli/guard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "base/status.h"
#include "base/wait.h"

enum { WINDOW = 64 * 1024, MOST_ROUNDS = 5000 };

static bool environment_holds(const char *pid, const char *mark) {
    static char window[WINDOW]; /* static, because the guard is a separate process with one thread */
    const size_t mark_size = strlen(mark);
    snprintf(window, sizeof window, "/proc/%.20s/environ", pid);
    const int fd = open(window, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    size_t kept = 0;
    bool found = false;
    while (!found) {
        const ssize_t size = read(fd, window + kept, sizeof window - kept);
        if (size <= 0) {
            break;
        }
        const size_t filled = kept + (size_t)size;
        found = memmem(window, filled, mark, mark_size) != NULL;
        kept = filled < mark_size ? filled : mark_size - 1; /* the mark may be split between two reads */
        memmove(window, window + filled - kept, kept);
    }
    close(fd);
    return found;
}

/* Kills the processes whose environment contains the mark. Returns false if there were none. */
static bool kill_holders(const char *mark) {
    DIR *folder = opendir("/proc");
    bool found = false;
    for (struct dirent *entry = folder != NULL ? readdir(folder) : NULL; entry != NULL; entry = readdir(folder)) {
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && environment_holds(entry->d_name, mark)) {
            found = kill(atoi(entry->d_name), SIGKILL) == 0 || found;
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return found;
}

static _Noreturn void watch(int pipe, const char *mark) {
    sigset_t every;
    sigfillset(&every);
    sigprocmask(SIG_SETMASK, &every, NULL);
    setsid();
    prctl(PR_SET_NAME, "lockstep-guard");
    uv_set_process_title("lockstep-guard"); /* so that a search for the program by name does not find the guard */
    /* A reader that waits until the launcher's output is closed must not wait for the guard. */
    const int nothing = open("/dev/null", O_RDWR);
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        dup2(nothing, fd);
    }
    dup2(pipe, STDERR_FILENO + 1);
    close_range(STDERR_FILENO + 2, ~0U, 0);
    char byte;
    while (read(STDERR_FILENO + 1, &byte, 1) < 0 && errno == EINTR) {
    }
    for (int round = 0; round < MOST_ROUNDS && kill_holders(mark); round++) {
        ls_sleep_ns(1000000); /* killed processes take a moment to exit */
    }
    _exit(0);
}

ls_status ls_guard_start(ls_guard *guard, const char *mark) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return ls_fail(LS_ERR_IO, "lockstep run: cannot create a pipe for the guard process: %s", strerror(errno));
    }
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[1]);
        watch(ends[0], mark);
    }
    close(ends[0]);
    if (pid < 0) {
        const int reason = errno;
        close(ends[1]);
        return ls_fail(LS_ERR_IO, "lockstep run: cannot start the guard process: %s", strerror(reason));
    }
    *guard = (ls_guard){.pid = pid, .pipe = ends[1]};
    return LS_OK;
}

void ls_guard_stop(ls_guard *guard) {
    if (guard->pid > 0) {
        kill(guard->pid, SIGKILL); /* before the guard's pipe closes, which would start its search */
        waitpid(guard->pid, NULL, 0);
        ls_guard_forget(guard);
    }
}

void ls_guard_forget(ls_guard *guard) {
    close(guard->pipe);
    guard->pid = 0;
}
