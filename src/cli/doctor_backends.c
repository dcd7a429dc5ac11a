#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "cli/doctor.h"
#include "cli/program.h"
#include "comm/backend.h"

enum { LIBRARIES = 2, VERSION_CAPACITY = 8192 /* what MPI_Get_library_version of MPICH may need */ };

/* One row per backend there is or will be. */
typedef struct backend_row {
    const char *name;
    int ranks;                        /* of its self-test */
    bool needed;                      /* Lockstep without it is broken */
    const char *libraries[LIBRARIES]; /* any of which it needs */
    const char *package;              /* Debian's, that brings one */
    const char *version_function;     /* int f(char *text, int *size) of the library; NULL: none */
} backend_row;

static const backend_row backends[] = {
    {.name = "self", .ranks = 1, .needed = true},
    {.name = "shm", .ranks = 2, .needed = true},
    {.name = "mpi",
     .ranks = 1, /* more need MPI's own launcher */
     .libraries = {"libmpi.so.40", "libmpich.so.12"},
     .package = "libopenmpi3 or libmpich12",
     .version_function = "MPI_Get_library_version"},
    {.name = "gloo", .ranks = 2, .libraries = {"libgloo.so.0"}, .package = "libgloo0"},
    {.name = "nccl", .ranks = 2, .libraries = {"libnccl.so.2"}, .package = "libnccl2, from NVIDIA's repository"},
};

/* ---- self-test ------------------------------------------------------------------------------------------------- */

/* In the child: this program again, with its complaints going to `complaints`. */
static void become_bench(const backend_row *row, int complaints) {
    char path[PATH_MAX];
    char ranks[8];
    snprintf(ranks, sizeof ranks, "%d", row->ranks);
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 && dup2(nothing, STDOUT_FILENO) >= 0 &&
        dup2(complaints, STDERR_FILENO) >= 0) {
        setenv("LOCKSTEP_TIMEOUT", "20", 1);
        setenv("LOCKSTEP_LOG", "off", 1);
        execl(ls_program_self(path), "lockstep", "bench", "allreduce", "-n", ranks, "--backend", row->name, "--sizes",
              "4,64K,1M", "--iterations", "2", "--json", (char *)NULL);
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

/* Two ranks compute and check an all-reduce. Where that fails, `reason` says why. */
static bool passes(const backend_row *row, char *reason, size_t capacity) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        snprintf(reason, capacity, "no pipe to hear from it");
        return false;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        become_bench(row, ends[1]);
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

/* ---- what is there --------------------------------------------------------------------------------------------- */

/* The library that the backend stands on; NULL where none is installed or it needs none. */
static void *open_library(const backend_row *row) {
    void *library = NULL;
    for (int i = 0; i < LIBRARIES && row->libraries[i] != NULL && library == NULL; i++) {
        library = dlopen(row->libraries[i], RTLD_LAZY | RTLD_LOCAL);
    }
    return library;
}

static void read_version(const backend_row *row, void *library, char version[VERSION_CAPACITY]) {
    int (*function)(char *, int *) = NULL;
    version[0] = '\0';
    if (library != NULL && row->version_function != NULL) {
        *(void **)&function = dlsym(library, row->version_function);
    }
    int size = 0;
    if (function == NULL || function(version, &size) != 0) {
        version[0] = '\0';
    }
    version[strcspn(version, ",\n")] = '\0';
}

static void explain_absence(const backend_row *row, const void *library, char *reason, size_t capacity) {
    if (library == NULL && row->package != NULL) {
        snprintf(reason, capacity, "%s%s%s is not installed: install %s", row->libraries[0],
                 row->libraries[1] != NULL ? " or " : "", row->libraries[1] != NULL ? row->libraries[1] : "",
                 row->package);
    } else {
        snprintf(reason, capacity, "%s%s", library != NULL ? "its library is installed, but " : "", ls_error_message());
    }
}

static json_t *text_or_null(const char *text) {
    return text[0] != '\0' ? ls_report_text(text) : json_null();
}

static void check_backend(ls_report *report, const backend_row *row) {
    char reason[LS_ERROR_CAPACITY] = "";
    char version[VERSION_CAPACITY];
    const bool available = ls_backend_find(row->name) != NULL;
    void *library = open_library(row);
    if (!available) {
        explain_absence(row, library, reason, sizeof reason);
    }
    read_version(row, library, version);
    const bool passed = available && passes(row, reason, sizeof reason);
    json_t *fact =
        json_pack("{s:b, s:o, s:o, s:o}", "available", available, "reason", passed ? json_null() : text_or_null(reason),
                  "self_test", !available ? json_null() : json_string(passed ? "pass" : "fail"), "version",
                  text_or_null(version));
    const char *gap = version[0] != '\0' ? "; " : "";
    if (!available) {
        ls_report_fact(report, row->name, fact, "not here: %s%s%s", reason, gap, version);
    } else if (passed) {
        ls_report_fact(report, row->name, fact, "works: %d rank%s computed and checked an all-reduce%s%s", row->ranks,
                       row->ranks == 1 ? "" : "s", gap, version);
    } else {
        ls_report_fact(report, row->name, fact, "FAILS: %s%s%s", reason, gap, version);
    }
    if (!passed && (row->needed || available)) {
        ls_report_problem(report, "backend %s does not work: %s", row->name, reason);
    }
    if (library != NULL) {
        dlclose(library);
    }
}

void ls_doctor_backends(ls_report *report) {
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        check_backend(report, &backends[i]);
    }
}

void ls_doctor_devices(ls_report *report) {
    ls_report_fact(report, "cpu", json_pack("{s:b, s:n}", "available", true, "reason"), "computes");
    const char *reason = access("/dev/nvidia0", F_OK) == 0
                             ? "there is an NVIDIA device (/dev/nvidia0), but this build computes on CPUs only"
                             : "no NVIDIA device (/dev/nvidia0), and this build computes on CPUs only";
    ls_report_fact(report, "cuda", json_pack("{s:b, s:s}", "available", false, "reason", reason), "not here: %s",
                   reason);
}
