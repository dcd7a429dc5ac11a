#include "cli/report.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "formats/file.h"

enum { MOST_RUNS = 8 };

typedef struct report_values {
    const char *output;
    bool json;
} report_values;

static const ls_cli_option options[] = {
    {"output", 'o', LS_OPTION_TEXT, "FILE", offsetof(report_values, output), 0, 0,
     "the page; - is standard output (default: report.html in the folder of the first RUN)"},
    {"json", 0, LS_OPTION_FLAG, NULL, offsetof(report_values, json), 0, 0,
     "one JSON object per line for each RUN, on standard output unless -o is given"},
};

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *numbers_of(const double *numbers, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        json_array_append_new(list, isfinite(numbers[i]) ? json_real(numbers[i]) : json_null());
    }
    return list;
}

static ls_status write_json(FILE *stream, const ls_run_record *run) {
    json_t *object =
        json_pack("{s:b, s:b, s:i, s:O, s:O, s:O, s:{s:o, s:o, s:o}}", "ended", run->ended, "incomplete",
                  run->incomplete, "resumes", run->resumes, "start", run->start, "epochs", run->epochs, "results",
                  run->results, "steps", "step", numbers_of(run->loss.x, run->loss.count), "loss",
                  numbers_of(run->loss.y, run->loss.count), "rate", numbers_of(run->rate.y, run->rate.count));
    const bool written = object != NULL && json_dumpf(object, stream, JSON_COMPACT) == 0;
    json_decref(object);
    fputc('\n', stream);
    return written ? LS_OK : ls_fail(LS_ERR_IO, "lockstep report: cannot write the JSON of %s", run->path);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static ls_status write_stream(FILE *stream, ls_run_record *runs, int count, bool json) {
    for (int r = 0; json && r < count; r++) {
        LS_TRY(write_json(stream, &runs[r]));
    }
    return json ? LS_OK : ls_page_write(stream, runs, count);
}

/* Finds the default output file: report.html in the folder of the run. */
static ls_status find_output(const char *run, char path[PATH_MAX]) {
    struct stat about;
    const char *slash = strrchr(run, '/');
    const bool folder = stat(run, &about) == 0 && S_ISDIR(about.st_mode);
    const int length = folder ? (int)strlen(run) : slash != NULL ? (int)(slash - run) : 0;
    return snprintf(path, PATH_MAX, "%.*s%sreport.html", length, run, folder || slash != NULL ? "/" : "") < PATH_MAX
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "lockstep report: the path %.100s... is too long", run);
}

static ls_status check_output(const char *output, const ls_run_record *runs, int count) {
    struct stat about;
    for (int i = 0; i < count && stat(output, &about) == 0; i++) {
        if (about.st_dev == runs[i].file.st_dev && about.st_ino == runs[i].file.st_ino) {
            return ls_fail(LS_ERR_ARGUMENT, "lockstep report: %s is the record of %s: choose another file for -o",
                           output, runs[i].path);
        }
    }
    return LS_OK;
}

static ls_status write_output(const report_values *values, ls_run_record *runs, int count) {
    char path[PATH_MAX];
    const char *output = values->output;
    if (output == NULL ? values->json : strcmp(output, "-") == 0) {
        return write_stream(stdout, runs, count, values->json);
    }
    if (output == NULL) {
        LS_TRY(find_output(runs[0].path, path));
        output = path;
    }
    LS_TRY(check_output(output, runs, count));
    ls_new_file file;
    LS_TRY(ls_file_create("lockstep report", output, &file));
    LS_TRY(ls_file_commit("lockstep report", &file, write_stream(file.stream, runs, count, values->json)));
    printf("%s\n", output);
    return LS_OK;
}

static ls_status report(const report_values *values, char **paths, int count) {
    ls_run_record runs[MOST_RUNS];
    int read = 0;
    ls_status status = LS_OK;
    while (read < count && status == LS_OK) {
        status = ls_run_record_read(paths[read], &runs[read]);
        read += status == LS_OK;
    }
    status = status == LS_OK ? write_output(values, runs, count) : status;
    for (int r = 0; r < read; r++) {
        ls_run_record_free(&runs[r]);
    }
    return status;
}

/* Options may stand before, between and after the runs. */
static ls_status run(int argc, char **argv, int *exit_status) {
    report_values values = {.output = NULL};
    char *paths[MOST_RUNS];
    int count = 0;
    (void)exit_status;
    for (int at = 0; at < argc;) {
        int rest = 0;
        bool help = false;
        LS_TRY(ls_options_parse(&ls_report_command, argc - at, argv + at, &values, &rest, &help));
        if (help) {
            ls_options_help(&ls_report_command);
            return LS_OK;
        }
        at += rest;
        if (at < argc && count == MOST_RUNS) {
            return ls_fail(LS_ERR_ARGUMENT, "lockstep report: more than %d runs: choose fewer", MOST_RUNS);
        }
        if (at < argc) {
            paths[count++] = argv[at];
        }
    }
    return count > 0 ? report(&values, paths, count)
                     : ls_fail(LS_ERR_ARGUMENT, "lockstep report: no run given (usage: lockstep report %s)",
                               ls_report_command.usage);
}

const ls_command ls_report_command = {
    .name = "report",
    .summary = "create a page about training runs: curves, phases, machine",
    .usage = "RUN [RUN...] [-o FILE] [--json]",
    .about =
        "Writes an HTML page about a training run, from the record that the callback ls_run_log writes: curves of the\n"
        "loss and of all metrics, the throughput, the time that each rank spends in each phase, the\n"
        "configuration, the model and the machine. The page is one file without scripts, and loads nothing else.\n"
        "Several runs are compared on one page.\n"
        "\n"
        "RUN is the folder of the callback, or the file run.jsonl in it. If the run is still running, or was killed,\n"
        "the page shows the run until the last line of the record.\n",
    .notes = "examples:\n"
             "  lockstep run -n 2 ./fashion_mnist --report runs/a\n"
             "  lockstep report runs/a\n"
             "  lockstep report runs/a runs/b -o compare.html\n"
             "\n"
             "keys of --json:\n"
             "  ended        whether the last run of the trial has ended\n"
             "  incomplete   whether the last line of the record was incomplete, and skipped\n"
             "  resumes      how often the trial resumed from a checkpoint\n"
             "  start        configuration and machine: command, model, parameters, setup, hosts, backend and others;\n"
             "               time is the time of the first start\n"
             "  epochs       for each epoch: epoch, step, seconds (of this epoch), samples_per_second, metrics, and\n"
             "               phases: for each phase a list of the seconds of each rank\n"
             "  results      the last value of every metric since the last start, also of evaluations\n"
             "  steps        lists step, loss and rate\n"
             "\n"
             "exit status:\n"
             "  0    written     1    a record is missing or damaged, or the page cannot be written     2    the "
             "command line is wrong\n",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .run = run,
};
