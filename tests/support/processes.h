/*
 * Forks for tests of what happens between processes: each runs a body that returns NULL or what went wrong. Bodies use
 * LS_MUST; cmocka's own checks belong to the parent.
 */
#ifndef LS_TESTS_SUPPORT_PROCESSES_H
#define LS_TESTS_SUPPORT_PROCESSES_H

#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include <lockstep/base.h>

/* What one process of a test does; `what` is the test's own. NULL is success. */
typedef const char *(*process_body)(int number, const void *what);

/* Starts one process. */
pid_t process_start(process_body body, int number, const void *what);

/* Waits for it: its exit status, or minus the signal that ended it. */
int process_wait(pid_t process);

/* Runs `count` at once; fails the test unless each succeeds or, in the bit mask `killed`, is ended by SIGKILL. */
void processes_run(int count, process_body body, const void *what, unsigned killed);

/* Ends the calling process by SIGKILL in so many milliseconds, whatever it is doing then. */
void process_kill_self_in(int milliseconds);

/* In a body: fails it, naming the place, the expression and the last error. */
const char *process_failure(const char *file, int line, const char *expression);
#define LS_MUST(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            return process_failure(__FILE__, __LINE__, #condition);                                                    \
        }                                                                                                              \
    } while (0)

/* Whether the last failure is of this status and its message has this part. */
static inline bool failed_with(ls_status status, const char *part) {
    return ls_error_status() == status && strstr(ls_error_message(), part) != NULL;
}

#endif
