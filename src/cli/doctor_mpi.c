/*
 * Checks backend mpi with each MPI library: whether its plug-in works, and whether two ranks under its launcher can
 * compute.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cli/doctor.h"
#include "cli/program.h"
#include "comm/backend.h"

enum { VERSION_CAPACITY = 8192 /* the most that MPI_Get_library_version of MPICH writes */ };

typedef struct flavour {
    const char *name; /* of the plug-in */
    const char *title;
    const char *library;
    const char *launcher; /* the name in Debian; other systems call it mpirun */
    const char *mark;     /* a text in its --version output */
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

/* Returns whether this mpirun belongs to the library. */
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

/* Finds the path of the launcher. Returns false, with the reason, if no launcher is usable. */
static bool find_launcher(const flavour *self, char path[PATH_MAX], char *reason, size_t capacity) {
    int exit_status = 0;
    if (getenv("OMPI_COMM_WORLD_RANK") != NULL || getenv("PMI_RANK") != NULL) {
        snprintf(reason, capacity, "within a job of MPI its launchers start no other");
        return false;
    }
    if (ls_program_find(self->launcher, path, &exit_status) == LS_OK ||
        (ls_program_find("mpirun", path, &exit_status) == LS_OK && is_own(self, path))) {
        return true;
    }
    snprintf(reason, capacity, "there is no %s along PATH, and no mpirun of it", self->launcher);
    return false;
}

/* Runs two ranks under the launcher. */
static void test(const flavour *self, ls_backend_outcome *outcome, char *failures, char *gaps) {
    char path[PATH_MAX];
    char reason[LS_ERROR_CAPACITY / 2] = "";
    char *list = gaps;
    if (find_launcher(self, path, reason, sizeof reason)) {
        outcome->tested = true;
        if (ls_doctor_try("mpi", 2, path, reason, sizeof reason)) {
            return;
        }
        outcome->passed = false;
        list = failures;
    }
    ls_report_append(list, LS_ERROR_CAPACITY, "; ", self->title);
    ls_report_append(list, LS_ERROR_CAPACITY, ": ", reason);
}

void ls_doctor_mpi(ls_doctor_report *report) {
    char failures[LS_ERROR_CAPACITY] = "";
    char gaps[LS_ERROR_CAPACITY] = "";
    char version[256] = "";
    char broken[LS_ERROR_CAPACITY] = "";
    char absent[LS_ERROR_CAPACITY] =
        "neither libmpi.so.40 nor libmpich.so.12 is installed: install openmpi-bin or mpich";
    ls_backend_outcome outcome = {.name = "mpi", .passed = true, .ranks = 2, .version = version};
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
            test(&flavours[i], &outcome, failures, gaps);
        } else if (ls_doctor_plugin_is_broken(module)) {
            outcome.broken = true;
            snprintf(broken, sizeof broken, "%s", ls_error_message());
        } else if (installed) {
            snprintf(absent, sizeof absent, "its library is installed, but %s", ls_error_message());
            ls_report_append(version, sizeof version, " ", "(no module)");
        }
    }
    outcome.passed = outcome.passed && outcome.tested;
    outcome.reason = outcome.broken ? broken : !outcome.available ? absent : outcome.tested ? failures : gaps;
    ls_doctor_backend(report, &outcome);
    if (outcome.tested && gaps[0] != '\0') {
        ls_report_note(report, "backend mpi was not tested on %s", gaps);
    }
}
