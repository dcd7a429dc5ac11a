#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/module_file.h"
#include "base/status.h"
#include "cli/doctor.h"
#include "comm/backend.h"

/* One row per backend. */
typedef struct backend_row {
    const char *name;
    int ranks;                                /* of its self-test */
    const char *library;                      /* a required library; NULL: none */
    const char *package;                      /* the Debian package of that library */
    bool gpus;                                /* opens only if there are GPUs; its self-test uses host memory */
    void (*report)(ls_doctor_report *report); /* NULL: check_backend */
} backend_row;

static const backend_row backends[] = {
    {.name = "self", .ranks = 1},
    {.name = "shm", .ranks = 2},
    {.name = "tcp", .ranks = 2},
    {.name = "mpi", .report = ls_doctor_mpi},
    {.name = "gloo", .ranks = 2, .library = "libgloo.so.0", .package = "libgloo0"},
    {.name = "nccl", .ranks = 2, .library = "libnccl.so.2", .package = "NVIDIA's NCCL", .gpus = true},
};

static void explain_absence(const backend_row *row, const void *library, char *reason, size_t capacity) {
    if (library == NULL && row->library != NULL) {
        snprintf(reason, capacity, "%s is not installed: install %s", row->library, row->package);
    } else {
        snprintf(reason, capacity, "%s%s", library != NULL ? "its library is installed, but " : "", ls_error_message());
    }
}

/* Returns whether the ranks report that the backend found no GPU, and keeps only this sentence. */
static bool keep_want_of_gpu(const char *name, char *reason, size_t capacity) {
    char begin[64];
    char rest[LS_ERROR_CAPACITY];
    snprintf(begin, sizeof begin, "ls_comm_open: backend %s: ", name);
    const char *at = strstr(reason, begin);
    if (at == NULL) {
        return false;
    }
    at += strlen(begin);
    const char *rank = strstr(at, " (rank "); /* the launcher adds the rank that printed the line first */
    const size_t line = strcspn(at, "|");
    snprintf(rest, sizeof rest, "%.*s", rank != NULL && rank < at + line ? (int)(rank - at) : (int)line, at);
    snprintf(reason, capacity, "%s", rest);
    return true;
}

static void check_backend(ls_doctor_report *report, const backend_row *row) {
    char reason[LS_ERROR_CAPACITY] = "";
    const bool available = ls_backend_find(row->name) != NULL;
    const bool broken = !available && ls_doctor_plugin_is_broken(row->name);
    if (broken) {
        snprintf(reason, sizeof reason, "%s", ls_error_message());
    } else if (!available) {
        void *library = row->library != NULL ? dlopen(row->library, RTLD_LAZY | RTLD_LOCAL) : NULL;
        explain_absence(row, library, reason, sizeof reason);
        if (library != NULL) {
            dlclose(library);
        }
    }
    const bool passed = available && ls_doctor_try(row->name, row->ranks, NULL, reason, sizeof reason);
    const bool without_gpu = row->gpus && available && !passed && keep_want_of_gpu(row->name, reason, sizeof reason);
    if (row->gpus && passed) {
        snprintf(reason, sizeof reason, "its collectives on GPUs, by no self-test of this command's");
    }
    const ls_backend_outcome outcome = {.name = row->name,
                                        .available = available && !without_gpu,
                                        .broken = broken,
                                        .tested = available && !(row->gpus && (passed || without_gpu)),
                                        .passed = passed && !row->gpus,
                                        .ranks = row->ranks,
                                        .reason = reason,
                                        .version = ""};
    ls_doctor_backend(report, &outcome);
}

void ls_doctor_backends(ls_doctor_report *report) {
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (backends[i].report != NULL) {
            backends[i].report(report);
        } else {
            check_backend(report, &backends[i]);
        }
    }
}
