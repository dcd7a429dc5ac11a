#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/processor.h"
#include "base/status.h"
#include "base/text.h"
#include "cli/doctor.h"
#include "comm/algorithm.h"
#include "comm/backend.h"
#include "comm/rendezvous.h"
#include "formats/array_file.h"
#include "formats/image.h"
#include "tensor/device.h"
#include "tensor/device/cpu/libraries.h"

/* ---- libraries --------------------------------------------------------------------------------------------------- */

enum { VERSION = 160 };

static void openblas_version(void *library, char version[VERSION]) {
    char *(*function)(void) = NULL;
    *(void **)&function = dlsym(library, "openblas_get_config");
    if (function != NULL) {
        snprintf(version, VERSION, "%s", function());
    }
}

static void libpng_version(void *library, char version[VERSION]) {
    const char *(*function)(const void *) = NULL;
    *(void **)&function = dlsym(library, "png_get_libpng_ver");
    if (function != NULL) {
        snprintf(version, VERSION, "%s", function(NULL));
    }
}

static void report_library(ls_doctor_report *report, const char *key, const char *version, const char *file) {
    ls_report_fact(report, key,
                   json_pack("{s:b, s:o, s:o, s:n}", "found", true, "version", ls_report_text(version), "file",
                             ls_report_text(file), "reason"),
                   "%s (%s)", version[0] != '\0' ? version : "of unknown version", file);
}

static json_t *missing_library(const char *reason) {
    return json_pack("{s:b, s:n, s:n, s:o}", "found", false, "version", "file", "reason", ls_report_text(reason));
}

/* A library that Lockstep opens on demand. */
typedef struct library_row {
    const void *(*open)(void); /* returns a table of functions, or NULL with the error */
    void (*read_version)(void *library, char version[VERSION]); /* NULL if the library does not report its version */
    bool needed;                                                /* Lockstep does not work without this library */
} library_row;

static void check_library(ls_doctor_report *report, const ls_doctor_check *check) {
    const library_row *row = check->data;
    const char *key = check->name;
    const void *functions = row->open();
    char version[VERSION] = "";
    Dl_info about;
    if (functions == NULL) {
        const char *reason = ls_error_message();
        ls_report_fact(report, key, missing_library(reason), "not here: %s", reason);
        if (row->needed) {
            ls_report_problem(report, "%s", reason);
        }
        return;
    }
    void *const *first = functions;
    const char *file = dladdr(*first, &about) != 0 && about.dli_fname != NULL ? about.dli_fname : "";
    void *library = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
    if (library != NULL && row->read_version != NULL) {
        row->read_version(library, version);
    }
    if (library != NULL) {
        dlclose(library);
    }
    report_library(report, key, version, file);
}

static void check_onednn(ls_doctor_report *report, const ls_doctor_check *check) {
    const char *key = check->name;
    const ls_onednn *onednn = ls_onednn_open();
    if (onednn != NULL) {
        report_library(report, key, onednn->version, onednn->file);
        return;
    }
    const char *reason = ls_onednn_failure();
    if (ls_report_plugin_is_broken(key)) {
        ls_report_broken(report, key, missing_library(reason), reason);
        return;
    }
    ls_report_fact(report, key, missing_library(reason), "not here: %s", reason);
    ls_report_note(report,
                   "without module onednn, convolutions and products of f32 are slower: install libdnnl-dev and "
                   "build Lockstep again");
}

/* Plug-ins hdf5 and netcdf. */
static void check_arrays(ls_doctor_report *report, const ls_doctor_check *check) {
    const ls_array_library *library = check->data;
    const char *key = check->name, *reason = NULL;
    const ls_array_format *format = ls_array_format_open(*library, &reason);
    Dl_info about;
    if (format != NULL) {
        const bool known = dladdr(format, &about) != 0 && about.dli_fname != NULL;
        report_library(report, key, format->version, known ? about.dli_fname : "");
    } else if (ls_report_plugin_is_broken(key)) {
        ls_report_broken(report, key, missing_library(reason), reason);
    } else {
        ls_report_fact(report, key, missing_library(reason), "not here: %s", reason);
    }
}

static const void *open_openblas(void) {
    return ls_openblas_open();
}

static const library_row openblas = {open_openblas, openblas_version, true};

/* OpenBLAS uses its oldest x86-64 code on processors that are newer than its release. */
static void check_openblas(ls_doctor_report *report, const ls_doctor_check *check) {
    static const char *const oldest[] = {"Prescott", "Core2", "Nehalem", "Generic"};
    check_library(report, check);
    const ls_openblas *library = ls_openblas_open();
    char processor[LS_PROCESSOR_CAPACITY];
    ls_processor_describe(processor);
    if (library == NULL || library->get_config == NULL || strstr(processor, " fma") == NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof oldest / sizeof oldest[0]; i++) {
        char name[16];
        snprintf(name, sizeof name, " %s", oldest[i]);
        if (strstr(library->get_config(), name) != NULL) {
            ls_report_note(report,
                           "OpenBLAS uses its code for %s, and not this processor's vector instructions, so products "
                           "of f64 are slower: set OPENBLAS_CORETYPE=%s",
                           oldest[i], strstr(processor, " avx512vl") != NULL ? "SkylakeX" : "Haswell");
        }
    }
}
static const library_row libpng = {ls_libpng_open, libpng_version, false};
static const library_row libjpeg = {ls_libjpeg_open, NULL, false};
static const ls_array_library hdf5 = LS_ARRAY_HDF5, netcdf = LS_ARRAY_NETCDF;

/* ---- environment ------------------------------------------------------------------------------------------------- */

/* Prefixes of the variables that affect Lockstep or launchers. */
static const char *const beginnings[] = {"LOCKSTEP_",
                                         "OMPI_COMM_WORLD_",
                                         "PMI_",
                                         "PMIX_RANK=",
                                         "SLURM_PROCID=",
                                         "SLURM_NTASKS=",
                                         "SLURM_NODEID=",
                                         "SLURM_LOCALID=",
                                         "RANK=",
                                         "WORLD_SIZE=",
                                         "LOCAL_RANK=",
                                         "LOCAL_WORLD_SIZE=",
                                         "MASTER_ADDR=",
                                         "MASTER_PORT=",
                                         "GROUP_RANK=",
                                         "TORCHELASTIC_RESTART_COUNT=",
                                         "CUDA_VISIBLE_DEVICES=",
                                         "OMP_NUM_THREADS=",
                                         "OPENBLAS_CORETYPE=",
                                         "OPENBLAS_NUM_THREADS="};

static bool matters(const char *variable) {
    for (size_t i = 0; i < sizeof beginnings / sizeof beginnings[0]; i++) {
        if (strncmp(variable, beginnings[i], strlen(beginnings[i])) == 0) {
            return true;
        }
    }
    return false;
}

static ls_status check_job(void) {
    ls_job job;
    LS_TRY(ls_job_read(&job, NULL));
    return job.backend != NULL ? ls_made(ls_backend_find(job.backend)) : LS_OK;
}

/* Checks LOCKSTEP_ALGORITHM for a valid backend. If the ranks choose the backend, shm or the other backends must accept
 * the value. */
static ls_status check_algorithms(void) {
    ls_algorithm_setting settings[LS_OP_COUNT] = {{.excluded = 0}};
    const char *backend = ls_environment_text("LOCKSTEP_BACKEND");
    const bool shm = backend != NULL && strcmp(backend, "shm") == 0;
    if (backend != NULL && (strcmp(backend, "self") == 0 || ls_backend_find(backend) == NULL)) {
        return LS_OK; /* self reads no algorithms */
    }
    if ((shm || backend == NULL) && ls_algorithm_read(&ls_shm_algorithms, settings) == LS_OK) {
        return LS_OK;
    }
    const ls_algorithm_list list = ls_engine_algorithms(backend);
    return shm ? ls_error_status() : ls_algorithm_read(&list, settings);
}

static ls_status check_device(void) {
    const char *device = ls_environment_text("LOCKSTEP_DEVICE");
    return device != NULL ? ls_made(ls_device_find("LOCKSTEP_DEVICE", device)) : LS_OK;
}

static void note_failure(ls_doctor_report *report, ls_status status, const char *what) {
    if (status != LS_OK) {
        ls_report_note(report, "a program started in this environment cannot %s: %s", what, ls_error_message());
    }
}

/* Notes variables whose values would make a call of a program fail. */
static void check_values(ls_doctor_report *report) {
    note_failure(report, check_job(), "join its job");
    note_failure(report, check_algorithms(), "join its job");
    note_failure(report, check_device(), "create tensors");
}

static void check_environment(ls_doctor_report *report, const ls_doctor_check *check) {
    (void)check;
    int count = 0;
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        const size_t length = strcspn(*at, "=");
        char name[128];
        if (!matters(*at) || length >= sizeof name) {
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)length, *at);
        ls_text_make_printable(name);
        const char *value = (*at)[length] == '=' ? *at + length + 1 : "";
        const char *shown = strstr(name, "KEY") != NULL ? (value[0] != '\0' ? "(set, not shown)" : "") : value;
        ls_report_fact(report, name, ls_report_text(shown), "%s", shown);
        count++;
    }
    if (count == 0 && !report->as_json) {
        printf("  (none relevant here)\n");
    }
    check_values(report);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

const ls_doctor_check ls_doctor_software[] = {
    {"onednn", "libraries", check_onednn, NULL},
    {"openblas", "libraries", check_openblas, &openblas},
    {"libpng", "libraries", check_library, &libpng},
    {"libjpeg", "libraries", check_library, &libjpeg},
    {"hdf5", "libraries", check_arrays, &hdf5},
    {"netcdf", "libraries", check_arrays, &netcdf},
    {"environment", "environment", check_environment, NULL},
    {NULL, NULL, NULL, NULL},
};
