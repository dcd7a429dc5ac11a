/*
 * Forks processes for a test. Each runs a body that returns NULL or an error message. Bodies use LS_MUST; only the
 * parent uses cmocka's checks.
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

/* Waits for the process. Returns its exit status, or the negated number of the signal that killed it. */
int process_wait(pid_t process);

/*
 * Runs `count` processes at once. Fails the test unless each process succeeds or, if it is in the bit mask `killed`, is
 * killed by SIGKILL.
 */
void processes_run(int count, process_body body, const void *what, unsigned killed);

/* Kills the calling process by SIGKILL after this number of milliseconds, whatever it is doing then. */
void process_kill_self_in(int milliseconds);

/* Prevents this thread from reading memory of other processes. Returns false if the kernel does not support this. */
bool process_forbid_reading(void);

/* For bodies: returns an error message with the location, the expression and the last error. */
const char *process_failure(const char *file, int line, const char *expression);
#define LS_MUST(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            return process_failure(__FILE__, __LINE__, #condition);                                                    \
        }                                                                                                              \
    } while (0)

/* Returns whether the last failure has this status and a message that contains `part`. */
static inline bool failed_with(ls_status status, const char *part) {
    return ls_error_status() == status && strstr(ls_error_message(), part) != NULL;
}

#endif
