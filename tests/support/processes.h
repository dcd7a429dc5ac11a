/*
 * Forks for tests with several processes: each runs a body that returns NULL or an error text. Bodies use LS_MUST; only
 * the parent uses cmocka's checks.
 */
#ifndef LS_TESTS_SUPPORT_PROCESSES_H
#define LS_TESTS_SUPPORT_PROCESSES_H

#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include <lockstep/base.h>

/* The body of one process of a test. `what` is defined by the test. Returns NULL on success. */
typedef const char *(*process_body)(int number, const void *what);

/* Starts one process. */
pid_t process_start(process_body body, int number, const void *what);

/* Waits for the process. Returns its exit status, or minus the signal that ended it. */
int process_wait(pid_t process);

/*
 * Runs `count` processes at once. Fails the test unless each succeeds or, if it is in the bit mask `killed`, is ended
 * by SIGKILL.
 */
void processes_run(int count, process_body body, const void *what, unsigned killed);

/* Ends the calling process by SIGKILL after this number of milliseconds, whatever it is doing then. */
void process_kill_self_in(int milliseconds);

/* For bodies: returns an error text with the location, the expression and the last error. */
const char *process_failure(const char *file, int line, const char *expression);
#define LS_MUST(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            return process_failure(__FILE__, __LINE__, #condition);                                                    \
        }                                                                                                              \
    } while (0)

/* Returns whether the last failure has this status and a message with this part. */
static inline bool failed_with(ls_status status, const char *part) {
    return ls_error_status() == status && strstr(ls_error_message(), part) != NULL;
}

#endif
