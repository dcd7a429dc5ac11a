#include "tests/support/processes.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/unit.h"

enum { MOST = 16 };

pid_t process_start(process_body body, int number, const void *what) {
    fflush(NULL);
    const pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        const char *failure = body(number, what);
        if (failure != NULL) {
            fprintf(stderr, "process %d: %s\n", number, failure);
        }
        fflush(NULL);
        _exit(failure == NULL ? 0 : 1);
    }
    return process;
}

int process_wait(pid_t process) {
    int how;
    assert_int_equal(waitpid(process, &how, 0), process);
    return WIFSIGNALED(how) ? -WTERMSIG(how) : WEXITSTATUS(how);
}

void processes_run(int count, process_body body, const void *what, unsigned killed) {
    pid_t processes[MOST];
    int wrong = 0;
    assert_true(count <= MOST);
    for (int i = 0; i < count; i++) {
        processes[i] = process_start(body, i, what);
    }
    for (int i = 0; i < count; i++) {
        const int how = process_wait(processes[i]);
        const int expected = (killed >> i) & 1U ? -SIGKILL : 0;
        if (how != expected) {
            print_error("process %d ended with %d, expected %d\n", i, how, expected);
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

static void kill_self(int signal_number) {
    (void)signal_number;
    kill(getpid(), SIGKILL);
}

void process_kill_self_in(int milliseconds) {
    signal(SIGALRM, kill_self);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {milliseconds / 1000, milliseconds % 1000 * 1000}}, NULL);
}

bool process_forbid_reading(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = {.len = sizeof steps / sizeof *steps, .filter = steps};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

const char *process_failure(const char *file, int line, const char *expression) {
    static char text[2048];
    snprintf(text, sizeof text, "%s:%d: not true: %s (last error: %s: %s)", file, line, expression,
             ls_status_name(ls_error_status()), ls_error_message());
    return text;
}
