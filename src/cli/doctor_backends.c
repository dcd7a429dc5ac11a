/*
 * The backends: whether each backend is available, and whether its ranks can compute. Backend mpi is checked with each
 * MPI library.
 */
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

/* The result of a check. `reason` says why the backend is missing, broken, untested or failed. */
typedef struct backend_outcome {
    const char *name;
    bool available, broken, tested, passed;
    int ranks;
    const char *reason;  /* may be "" */
    const char *version; /* version of the backend's library; may be "" */
} backend_outcome;

/* ---- the self-test ----------------------------------------------------------------------------------------------- */

/* In the child process: runs this program with standard error connected to `complaints`. */
static void become_bench(const char *backend, int ranks, const char *launcher, int complaints) {
    char path[PATH_MAX];
    char count[16];
    snprintf(count, sizeof count, "%d", ranks);
    ls_program_self(path);
    const bool launched = launcher != NULL;
    const char *const words[] = {
        launcher, "-np",     count,      path,           "bench", "allreduce", "--backend",
        backend,  "--sizes", "4,64K,1M", "--iterations", "2",     "--json",    launched ? NULL : "-n",
        count,    NULL};
    const char *const *first = launched ? words : words + 3;
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nothing >= 0 && dup2(nothing, STDIN_FILENO) >= 0 && dup2(nothing, STDOUT_FILENO) >= 0 &&
        dup2(complaints, STDERR_FILENO) >= 0) {
        setenv("LOCKSTEP_TIMEOUT", "60", 1); /* the machine may be busy; a dead rank is reported at once */
        setenv("LOCKSTEP_LOG", "off", 1);
        unsetenv("RANK"); /* the job for which the shell is prepared is not the job of this test */
        unsetenv("WORLD_SIZE");
        unsetenv("LOCKSTEP_BACKEND");   /* --backend selects the backend */
        unsetenv("LOCKSTEP_ALGORITHM"); /* the algorithm names of one backend are invalid for other backends */
        /* Open MPI refuses to run as root, or with fewer cores than ranks, unless these variables allow it. */
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
        setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
        setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
        execv(first[0], (char *const *)first);
    }
    _exit(127);
}

/* Reads to the end of the file, so that the writer never blocks. Keeps only the beginning. */
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

/* Joins the output of the ranks into one line. Removes the launcher's summary at its end, which adds nothing. */
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

/*
 * Runs this program as `ranks` ranks of the backend, which compute and check an all-reduce. The ranks are started by
 * the launcher at path `launcher`, or by lockstep bench if `launcher` is NULL. On failure, stores the reason in
 * `reason`.
 */
static bool run_self_test(const char *backend, int ranks, const char *launcher, char *reason, size_t capacity) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        snprintf(reason, capacity, "cannot create a pipe for the self-test");
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

static void report_backend(ls_doctor_report *report, const backend_outcome *outcome) {
    const char *reason = outcome->reason;
    json_t *fact = json_pack("{s:b, s:o, s:o, s:o}", "available", outcome->available, "reason",
                             outcome->passed ? json_null() : ls_report_text_or_null(reason), "self_test",
                             !outcome->tested ? json_null() : json_string(outcome->passed ? "pass" : "fail"), "version",
                             ls_report_text_or_null(outcome->version));
    const char *gap = outcome->version[0] != '\0' ? "; " : "";
    if (outcome->broken) {
        ls_report_broken(report, outcome->name, fact, reason);
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

/* ---- most backends ----------------------------------------------------------------------------------------------- */

/* The requirements of a backend. */
typedef struct backend_row {
    int ranks;           /* of its self-test */
    const char *library; /* a required library, or NULL */
    const char *package; /* the Debian package that contains the library */
    bool gpus;           /* the backend is available only if there are GPUs; its self-test uses host memory */
} backend_row;

static void explain_absence(const backend_row *row, const void *library, char *reason, size_t capacity) {
    if (library == NULL && row->library != NULL) {
        snprintf(reason, capacity, "%s is not installed: install %s", row->library, row->package);
    } else {
        snprintf(reason, capacity, "%s%s", library != NULL ? "the library is installed, but " : "", ls_error_message());
    }
}

/* Returns whether the ranks report that the backend found no GPU. If so, keeps only this sentence. */
static bool keep_missing_gpu(const char *name, char *reason, size_t capacity) {
    char begin[64];
    char rest[LS_ERROR_CAPACITY];
    snprintf(begin, sizeof begin, "ls_comm_open: backend %s: ", name);
    const char *at = strstr(reason, begin);
    if (at == NULL) {
        return false;
    }
    at += strlen(begin);
    const char *rank = strstr(at, " (rank "); /* the launcher appends the rank that first printed the line */
    const size_t line = strcspn(at, "|");
    snprintf(rest, sizeof rest, "%.*s", rank != NULL && rank < at + line ? (int)(rank - at) : (int)line, at);
    snprintf(reason, capacity, "%s", rest);
    return true;
}

static void check_backend(ls_doctor_report *report, const ls_doctor_check *check) {
    const backend_row *row = check->data;
    const char *name = check->name;
    char reason[LS_ERROR_CAPACITY] = "";
    const bool available = ls_backend_find(name) != NULL;
    const bool broken = !available && ls_report_plugin_is_broken(name);
    if (broken) {
        snprintf(reason, sizeof reason, "%s", ls_error_message());
    } else if (!available) {
        void *library = row->library != NULL ? dlopen(row->library, RTLD_LAZY | RTLD_LOCAL) : NULL;
        explain_absence(row, library, reason, sizeof reason);
        if (library != NULL) {
            dlclose(library);
        }
    }
    const bool passed = available && run_self_test(name, row->ranks, NULL, reason, sizeof reason);
    const bool without_gpu = row->gpus && available && !passed && keep_missing_gpu(name, reason, sizeof reason);
    if (row->gpus && passed) {
        snprintf(reason, sizeof reason, "the self-test does not use GPUs");
    }
    const backend_outcome outcome = {.name = name,
                                     .available = available && !without_gpu,
                                     .broken = broken,
                                     .tested = available && !(row->gpus && (passed || without_gpu)),
                                     .passed = passed && !row->gpus,
                                     .ranks = row->ranks,
                                     .reason = reason,
                                     .version = ""};
    report_backend(report, &outcome);
}

/* ---- mpi --------------------------------------------------------------------------------------------------------- */

enum { VERSION_CAPACITY = 8192 /* maximum length of MPICH's MPI_Get_library_version */ };

typedef struct flavour {
    const char *name; /* of the plug-in */
    const char *title;
    const char *library;
    const char *launcher; /* the launcher's name in Debian; other systems call it mpirun */
    const char *mark;     /* a string in its --version output */
} flavour;

static const flavour flavours[] = {
    {"openmpi", "Open MPI", "libmpi.so.40", "mpirun.openmpi", "Open MPI"},
    {"mpich", "MPICH", "libmpich.so.12", "mpirun.mpich", "HYDRA"},
};

/* Writes "Open MPI 4.1.4". Returns false if the library is not installed. */
static bool find_library(const flavour *self, char *text, size_t capacity) {
    void *library = dlopen(self->library, RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) {
        return false;
    }
    int (*function)(char *, int *) = NULL;
    char version[VERSION_CAPACITY] = "";
    int size = 0;
    *(void **)&function = dlsym(library, "MPI_Get_library_version"); /* allowed before MPI_Init */
    if (function == NULL || function(version, &size) != 0) {
        version[0] = '\0';
    }
    const char *number = version + strcspn(version, "0123456789");
    snprintf(text, capacity, "%s %.*s", self->title, (int)strspn(number, "0123456789.abcrc"), number);
    dlclose(library);
    return true;
}

/* Returns whether the mpirun at `path` belongs to the library. */
static bool is_own(const flavour *self, const char *path) {
    char command[PATH_MAX + 64];
    char text[4096];
    snprintf(command, sizeof command, "'%s' --version 2>/dev/null", path);
    FILE *output = strchr(path, '\'') == NULL ? popen(command, "re") : NULL;
    if (output == NULL) {
        return false;
    }
    const size_t length = fread(text, 1, sizeof text - 1, output);
    text[length] = '\0';
    return pclose(output) == 0 && strstr(text, self->mark) != NULL;
}

/* Finds the path of the launcher. If there is no usable launcher, returns false with the reason. */
static bool find_launcher(const flavour *self, char path[PATH_MAX], char *reason, size_t capacity) {
    int exit_status = 0;
    if (getenv("OMPI_COMM_WORLD_RANK") != NULL || getenv("PMI_RANK") != NULL) {
        snprintf(reason, capacity, "an MPI launcher cannot start another job within an MPI job");
        return false;
    }
    if (ls_program_find(self->launcher, path, &exit_status) == LS_OK ||
        (ls_program_find("mpirun", path, &exit_status) == LS_OK && is_own(self, path))) {
        return true;
    }
    snprintf(reason, capacity, "neither %s nor an mpirun of the same MPI library is in PATH", self->launcher);
    return false;
}

/* Runs two ranks under the launcher. */
static void test_flavour(const flavour *self, backend_outcome *outcome, char *failures, char *gaps) {
    char path[PATH_MAX];
    char reason[LS_ERROR_CAPACITY / 2] = "";
    char *list = gaps;
    if (find_launcher(self, path, reason, sizeof reason)) {
        outcome->tested = true;
        if (run_self_test("mpi", 2, path, reason, sizeof reason)) {
            return;
        }
        outcome->passed = false;
        list = failures;
    }
    ls_report_append(list, LS_ERROR_CAPACITY, "; ", self->title);
    ls_report_append(list, LS_ERROR_CAPACITY, ": ", reason);
}

/* Checks the plug-in for each MPI library, and two ranks under its launcher. */
static void check_mpi(ls_doctor_report *report, const ls_doctor_check *check) {
    char failures[LS_ERROR_CAPACITY] = "";
    char gaps[LS_ERROR_CAPACITY] = "";
    char version[256] = "";
    char broken[LS_ERROR_CAPACITY] = "";
    char absent[LS_ERROR_CAPACITY] =
        "neither libmpi.so.40 nor libmpich.so.12 is installed: install openmpi-bin or mpich";
    backend_outcome outcome = {.name = check->name, .passed = true, .ranks = 2, .version = version};
    for (size_t i = 0; i < sizeof flavours / sizeof flavours[0]; i++) {
        char text[128];
        char module[64];
        snprintf(module, sizeof module, "mpi_%s", flavours[i].name);
        const bool installed = find_library(&flavours[i], text, sizeof text);
        if (installed) {
            ls_report_append(version, sizeof version, ", ", text);
        }
        if (ls_backend_find_mpi(flavours[i].name) != NULL) {
            outcome.available = true;
            test_flavour(&flavours[i], &outcome, failures, gaps);
        } else if (ls_report_plugin_is_broken(module)) {
            outcome.broken = true;
            snprintf(broken, sizeof broken, "%s", ls_error_message());
        } else if (installed) {
            snprintf(absent, sizeof absent, "the library is installed, but %s", ls_error_message());
            ls_report_append(version, sizeof version, " ", "(no module)");
        }
    }
    outcome.passed = outcome.passed && outcome.tested;
    outcome.reason = outcome.broken ? broken : !outcome.available ? absent : outcome.tested ? failures : gaps;
    report_backend(report, &outcome);
    if (outcome.tested && gaps[0] != '\0') {
        ls_report_note(report, "backend mpi was not tested on %s", gaps);
    }
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const backend_row self = {.ranks = 1};
static const backend_row plain = {.ranks = 2};
static const backend_row gloo = {.ranks = 2, .library = "libgloo.so.0", .package = "libgloo0"};
static const backend_row nccl = {.ranks = 2, .library = "libnccl.so.2", .package = "NVIDIA's NCCL", .gpus = true};

const ls_doctor_check ls_doctor_backends[] = {
    {"self", "backends", check_backend, &self},
    {"shm", "backends", check_backend, &plain},
    {"tcp", "backends", check_backend, &plain},
    {"mpi", "backends", check_mpi, NULL},
    {"gloo", "backends", check_backend, &gloo},
    {"nccl", "backends", check_backend, &nccl},
    {NULL, NULL, NULL, NULL},
};
