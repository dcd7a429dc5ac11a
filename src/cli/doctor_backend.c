/* What doctor_backends.c and doctor_mpi.c share: the self-test of a backend, and the report of its outcome. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/module_file.h"
#include "base/status.h"
#include "cli/doctor.h"
#include "cli/program.h"

/* In the child: this program again, with its complaints going to `complaints`. */
static void become_bench(const char *backend, int ranks, const char *launcher, int complaints) {
    char path[PATH_MAX];
    char count[16];
    snprintf(count, sizeof count, "%d", ranks);
    ls_program_self(path);
    const char *const launched[] = {launcher, "-np", count, path};
    const char *const alone[] = {path, "bench", "allreduce", "-n", count};
    const char *const same[] = {"--backend", backend, "--sizes", "4,64K,1M", "--iterations", "2", "--json"};
    const char *words[16] = {NULL};
    size_t length = 0;
    if (launcher != NULL) {
        memcpy(words, launched, sizeof launched);
        length = sizeof launched / sizeof launched[0];
        words[length++] = "bench";
        words[length++] = "allreduce";
    } else {
        memcpy(words, alone, sizeof alone);
        length = sizeof alone / sizeof alone[0];
    }
    memcpy(words + length, same, sizeof same);
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 && dup2(nothing, STDOUT_FILENO) >= 0 &&
        dup2(complaints, STDERR_FILENO) >= 0) {
        setenv("LOCKSTEP_TIMEOUT", "60", 1); /* the machine may be busy; who dies is told at once */
        setenv("LOCKSTEP_LOG", "off", 1);
        unsetenv("RANK"); /* of a job that this shell is prepared for, which is not the job of the test */
        unsetenv("WORLD_SIZE");
        unsetenv("LOCKSTEP_BACKEND"); /* the test says which */
        /* As root, and with fewer cores than ranks, Open MPI starts nothing unless it is told that this is meant. */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
        execv(words[0], (char *const *)words);
    }
    _exit(127);
}

/* Reads to the end, so that the writer never waits; keeps the beginning. */
static void read_all(int fd, char *text, size_t capacity) {
    size_t size = 0;
    char piece[1024];
    for (ssize_t got = read(fd, piece, sizeof piece); got > 0; got = read(fd, piece, sizeof piece)) {
        const size_t room = capacity - 1 - size;
        const size_t kept = (size_t)got < room ? (size_t)got : room;
        memcpy(text + size, piece, kept);
        size += kept;
    }
    text[size] = '\0';
}

/* What the ranks said, in one line; the launcher's summary, which comes last, says nothing new. */
static void keep_complaints(char *text) {
    char *summary = strstr(text, "\nlockstep: rank");
    if (summary != NULL) {
        *summary = '\0';
    }
    for (size_t length = strlen(text); length > 0 && text[length - 1] == '\n'; length--) {
        text[length - 1] = '\0';
    }
    for (char *at = strchr(text, '\n'); at != NULL; at = strchr(at, '\n')) {
        *at = '|';
    }
}

bool ls_doctor_try(const char *backend, int ranks, const char *launcher, char *reason, size_t capacity) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        snprintf(reason, capacity, "no pipe to hear from it");
        return false;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        become_bench(backend, ranks, launcher, ends[1]);
    }
    close(ends[1]);
    read_all(ends[0], reason, capacity);
    keep_complaints(reason);
    close(ends[0]);
    int status = -1;
    const bool passed = pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!passed && reason[0] == '\0') {
        snprintf(reason, capacity, "the test could not be run");
    }
    return passed;
}

bool ls_doctor_plugin_is_broken(const char *name) {
    const ls_module_file_state state = ls_module_file_open(name).state;
    return state == LS_MODULE_BROKEN || state == LS_MODULE_OPEN; /* open, but from another version of Lockstep */
}

void ls_doctor_broken(ls_doctor_report *report, const char *key, json_t *value, const char *reason) {
    ls_report_fact(report, key, value, "broken: %s", reason);
    ls_report_problem(report, "the plug-in for %s is broken: %s", key, reason);
}

void ls_doctor_backend(ls_doctor_report *report, const ls_backend_outcome *outcome) {
    const char *reason = outcome->reason;
    json_t *fact = json_pack("{s:b, s:o, s:o, s:o}", "available", outcome->available, "reason",
                             outcome->passed ? json_null() : ls_report_text_or_null(reason), "self_test",
                             !outcome->tested ? json_null() : json_string(outcome->passed ? "pass" : "fail"), "version",
                             ls_report_text_or_null(outcome->version));
    const char *gap = outcome->version[0] != '\0' ? "; " : "";
    if (outcome->broken) {
        ls_doctor_broken(report, outcome->name, fact, reason);
    } else if (!outcome->available) {
        ls_report_fact(report, outcome->name, fact, "not here: %s%s%s", reason, gap, outcome->version);
    } else if (!outcome->tested) {
        ls_report_fact(report, outcome->name, fact, "here, not tested: %s%s%s", reason, gap, outcome->version);
    } else if (outcome->passed) {
        ls_report_fact(report, outcome->name, fact, "works: %d rank%s computed and checked an all-reduce%s%s",
                       outcome->ranks, outcome->ranks == 1 ? "" : "s", gap, outcome->version);
    } else {
        ls_report_fact(report, outcome->name, fact, "FAILS: %s%s%s", reason, gap, outcome->version);
        ls_report_problem(report, "backend %s does not work: %s", outcome->name, reason);
    }
}
