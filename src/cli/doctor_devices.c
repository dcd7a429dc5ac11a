/*
 * The CPU and the GPUs. A separate process examines the GPUs with plug-in cuda, because a defective driver may hang or
 * crash the process.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "cli/doctor.h"
#include "cli/gpus.h"
#include "tensor/device/cuda/cuda.h"

enum { MOST_GPUS = 32, MOST_SECONDS = 20, REASON = LS_ERROR_CAPACITY, VERSION = 32 };

/* The report of the separate process, as one block of bytes. */
typedef struct gpu_report {
    bool broken; /* the plug-in */
    int count;
    int versions[4];     /* in the order of ls_cuda: driver, runtime, cuBLAS, cuDNN */
    char reason[REASON]; /* why there are no GPUs; "" if there are GPUs */
    struct {
        bool known;
        ls_cuda_info info;
        char reason[REASON]; /* if unknown */
    } gpus[MOST_GPUS];
} gpu_report;

static void examine(gpu_report *found) {
    const ls_cuda *cuda = ls_cuda_open();
    if (cuda == NULL) {
        found->broken = ls_report_plugin_is_broken("cuda");
        snprintf(found->reason, sizeof found->reason, "%s", ls_cuda_failure());
        return;
    }
    memcpy(found->versions,
           (const int[]){cuda->driver_version, cuda->runtime_version, cuda->cublas_version, cuda->cudnn_version},
           sizeof found->versions);
    found->count = cuda->device_count < MOST_GPUS ? cuda->device_count : MOST_GPUS;
    if (found->count == 0) {
        snprintf(found->reason, sizeof found->reason, "no GPU: %s", ls_cuda_failure());
    }
    for (int i = 0; i < found->count; i++) {
        found->gpus[i].known = cuda->info(i, &found->gpus[i].info);
        if (!found->gpus[i].known) {
            snprintf(found->gpus[i].reason, sizeof found->gpus[i].reason, "%s", ls_error_message());
        }
    }
}

static void examine_and_send(int fd, gpu_report *found) {
    signal(SIGALRM, SIG_DFL);
    alarm(MOST_SECONDS);
    examine(found);
    _exit(write(fd, found, sizeof *found) == (ssize_t)sizeof *found
              ? 0
              : 1); /* this write to a pipe either writes all bytes or fails */
}

static void examine_in_child(gpu_report *found) {
    int ends[2];
    memset(found, 0, sizeof *found);
    if (pipe(ends) != 0) {
        snprintf(found->reason, sizeof found->reason, "cannot create a pipe for the process that searches for GPUs");
        return;
    }
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        examine_and_send(ends[1], found);
    }
    close(ends[1]);
    FILE *reports = fdopen(ends[0], "r");
    const bool told = pid > 0 && reports != NULL && fread(found, sizeof *found, 1, reports) == 1;
    (void)(reports != NULL ? fclose(reports) : close(ends[0]));
    int status = 0;
    if (pid > 0) {
        (void)waitpid(pid, &status, 0);
    }
    if (told) {
        return;
    }
    memset(found, 0, sizeof *found);
    if (pid > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
        snprintf(found->reason, sizeof found->reason, "CUDA has not answered within %d s", MOST_SECONDS);
    } else {
        snprintf(found->reason, sizeof found->reason, "the search for GPUs %s%s",
                 pid > 0 && WIFSIGNALED(status) ? "was terminated by a signal: " : "failed",
                 pid > 0 && WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : "");
    }
}

/* ---- the facts --------------------------------------------------------------------------------------------------- */

/* Formats a version: CUDA's 13000 as "13.0", cuBLAS's 130002 and cuDNN's 91200 as "13.0.2" and "9.12.0", 0 as "". */
static void write_version(int number, bool is_cuda, char text[VERSION]) {
    text[0] = '\0';
    if (number > 0 && is_cuda) {
        snprintf(text, VERSION, "%d.%d", number / 1000, number % 1000 / 10);
    } else if (number > 0) {
        snprintf(text, VERSION, "%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
    }
}

static void report_cuda(ls_doctor_report *report, const char *key, const gpu_report *found) {
    static const char *const keys[] = {"driver", "runtime", "cublas", "cudnn"};
    static const char *const names[] = {"driver for CUDA ", "CUDA ", "cuBLAS ", "cuDNN "};
    char list[4 * (VERSION + 24)] = "";
    json_t *fact =
        json_pack("{s:b, s:o}", "available", found->count > 0, "reason", ls_report_text_or_null(found->reason));
    for (int i = 0; i < 4; i++) {
        char version[VERSION], part[VERSION + 24];
        write_version(found->versions[i], i < 2, version);
        json_object_set_new(fact, keys[i], ls_report_text_or_null(version));
        snprintf(part, sizeof part, "%s%s", names[i], version);
        if (version[0] != '\0') {
            ls_report_append(list, sizeof list, ", ", part);
        }
    }
    if (found->broken) {
        ls_report_broken(report, key, fact, found->reason);
    } else if (found->count > 0) {
        ls_report_fact(report, key, fact, "%d GPU%s; %s", found->count, found->count == 1 ? "" : "s", list);
    } else {
        ls_report_fact(report, key, fact, "not here: %s%s%s", found->reason, list[0] != '\0' ? "; " : "", list);
    }
}

static void report_gpu(ls_doctor_report *report, int index, const ls_cuda_info *info) {
    char key[16], capability[16];
    const double gib = (double)(1 << 30);
    snprintf(key, sizeof key, "cuda:%d", index);
    snprintf(capability, sizeof capability, "%d.%d", info->major, info->minor);
    json_t *left = info->free_bytes > 0 ? json_integer((json_int_t)info->free_bytes) : json_null();
    json_t *fact =
        json_pack("{s:b, s:n, s:o, s:I, s:o, s:s, s:i, s:o}", "available", true, "reason", "name",
                  ls_report_text(info->name), "memory_bytes", (json_int_t)info->total, "free_bytes", left, "capability",
                  capability, "multiprocessors", info->multiprocessors, "bus", ls_report_text(info->bus));
    char spare[32] = "";
    if (info->free_bytes > 0) {
        snprintf(spare, sizeof spare, " (%.1f free)", (double)info->free_bytes / gib);
    }
    ls_report_fact(report, key, fact, "%s, %.1f GiB%s, compute capability %s, %d multiprocessors, PCI bus %s",
                   info->name, (double)info->total / gib, spare, capability, info->multiprocessors, info->bus);
}

static void report_unknown(ls_doctor_report *report, int index, const char *reason) {
    char key[16];
    snprintf(key, sizeof key, "cuda:%d", index);
    ls_report_fact(report, key, json_pack("{s:b, s:o}", "available", false, "reason", ls_report_text(reason)),
                   "cannot be used: %s", reason);
    ls_report_note(report, "%s cannot be used: %s", key, reason);
}

static void check_cpu(ls_doctor_report *report, const ls_doctor_check *check) {
    ls_report_fact(report, check->name, json_pack("{s:b, s:n}", "available", true, "reason"), "computes");
}

/* Reports plug-in cuda, and then each GPU. */
static void check_cuda(ls_doctor_report *report, const ls_doctor_check *check) {
    static gpu_report found;
    examine_in_child(&found);
    report_cuda(report, check->name, &found);
    for (int i = 0; i < found.count; i++) {
        if (found.gpus[i].known) {
            report_gpu(report, i, &found.gpus[i].info);
        } else {
            report_unknown(report, i, found.gpus[i].reason);
        }
    }
    ls_gpus files;
    ls_gpus_find(&files, NULL, "/dev");
    if (found.count == 0 && files.count > 0 && getenv("CUDA_VISIBLE_DEVICES") == NULL) {
        ls_report_note(
            report,
            "this machine has %d NVIDIA GPU%s that Lockstep cannot use: docs/reference/gpu.md explains what is needed",
            files.count, files.count == 1 ? "" : "s");
    }
}

const ls_doctor_check ls_doctor_devices[] = {
    {"cpu", "devices", check_cpu, NULL}, {"cuda", "devices", check_cuda, NULL}, {NULL, NULL, NULL, NULL}};
