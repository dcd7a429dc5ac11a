/* Writes the record of a run for `lockstep report`: a file with one JSON object per line (run.jsonl). */
#include "train/callbacks/callback.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/processor.h"
#include "base/text.h"
#include "formats/file.h"
#include "formats/json.h"
#include "train/alike.h"

static const char *const maker = "ls_run_log";

enum { HOST_ROOM = 64, DEFAULT_EVERY_STEPS = 10, COMMAND_ROOM = 8192 };

typedef struct run_log {
    ls_run_log_options options;
    char *folder;
    FILE *file;              /* open on rank 0, from the first run on */
    ls_callback *timer;      /* measures the phases; borrowed from the group that contains both callbacks */
    bool starts;             /* the run has begun, but not its first epoch */
    uint64_t began;          /* start of the epoch: of the run's first epoch, or the end of the previous epoch */
    uint64_t mark;           /* start of the epoch's training */
    uint64_t training;       /* duration of the epoch's training in nanoseconds */
    int64_t samples;         /* samples of this rank in the epoch's training (ls_trial_samples) */
    double before[LS_TIMES]; /* total seconds of each phase up to `began` */
} run_log;

static ls_status cannot(const run_log *self, const char *what) {
    return ls_fail(LS_ERR_IO, "%s: cannot %s %s/run.jsonl: %s", maker, what, self->folder, strerror(errno));
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static ls_json_writer begin_line(const run_log *self, const char *kind) {
    ls_json_writer json = {.stream = self->file, .compact = true};
    ls_json_open(&json, NULL, '{');
    ls_json_put_text(&json, "kind", kind);
    return json;
}

static ls_status end_line(const run_log *self, ls_json_writer *json) {
    ls_json_close(json, '}');
    fputc('\n', self->file);
    return fflush(self->file) == 0 ? LS_OK : cannot(self, "write");
}

static void put_values(ls_json_writer *json, const ls_history_entry *entry) {
    ls_json_open(json, "metrics", '{');
    for (int i = 0; i < entry->count; i++) {
        if (strcmp(entry->values[i].name, "epoch") != 0) {
            ls_json_put_number(json, entry->values[i].name, entry->values[i].value);
        }
    }
    ls_json_close(json, '}');
}

/* ---- start of a run ---------------------------------------------------------------------------------------------- */

/* Returns the number that follows `begin` at the start of the line, or `otherwise` if the line does not start with
 * `begin`. */
static long long number_after(const char *line, const char *begin, long long otherwise) {
    const size_t length = strlen(begin);
    return strncmp(line, begin, length) == 0 ? strtoll(line + length, NULL, 10) : otherwise;
}

/* Returns whether the trial will not compute the line again. */
static bool is_before(void *user, const char *line) {
    const ls_trial_state *state = user;
    return number_after(line, "{\"kind\": \"step\",\"step\": ", 0) <= state->step &&
           number_after(line, "{\"kind\": \"epoch\",\"epoch\": ", -1) < state->trial->epochs_run;
}

/*
 * Opens the file, and removes the lines that the trial will write again, because it resumes from a checkpoint or runs
 * again after a failure.
 */
static ls_status open_file(run_log *self, ls_trial_state *state, bool resumes) {
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/run.jsonl", self->folder);
    if (self->file == NULL) {
        LS_TRY(ls_folder_make(maker, self->folder));
        self->file = fopen(path, resumes ? "a+e" : "w+e");
    }
    if (self->file == NULL) {
        return cannot(self, "open");
    }
    rewind(self->file);
    return ls_callback_cut_lines(maker, path, self->file, is_before, state);
}

static void put_command(ls_json_writer *json) {
    char command[COMMAND_ROOM];
    FILE *file = fopen("/proc/self/cmdline", "re");
    const size_t length = file != NULL ? fread(command, 1, sizeof command - 1, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    for (size_t i = 0; i + 1 < length; i++) {
        command[i] = command[i] == '\0' ? ' ' : command[i];
    }
    command[length] = '\0';
    ls_text_make_printable(command);
    ls_json_put_text(json, "command", command);
}

static void put_machine(ls_json_writer *json, const ls_trial_state *state, const char *hosts) {
    char processor[LS_PROCESSOR_CAPACITY];
    struct utsname system;
    const char *device =
        ls_module_parameter_count(state->model) > 0 ? ls_device_of(ls_module_parameter(state->model, 0)) : "none";
    ls_processor_describe(processor);
    ls_json_put_text(json, "version", ls_version());
    ls_json_put_integer(json, "time", (int64_t)time(NULL));
    ls_json_put_integer(json, "ranks", ls_trial_size(state));
    ls_json_put_text(json, "backend", state->comm != NULL ? ls_comm_backend(state->comm) : "self");
    ls_json_put_text(json, "device", device);
    ls_json_put_text(json, "processor", processor);
    ls_json_put_integer(json, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    if (uname(&system) == 0) {
        char text[2 * sizeof system.sysname + 2];
        (void)snprintf(text, sizeof text, "%s %s", system.sysname, system.release);
        ls_json_put_text(json, "system", text);
    }
    ls_json_open(json, "hosts", '[');
    for (int rank = 0; rank < ls_trial_size(state); rank++) {
        ls_json_put_text(json, NULL, hosts + (size_t)rank * HOST_ROOM);
    }
    ls_json_close(json, ']');
}

static void put_setup(const char *subject, const char *line, void *user) {
    char text[600];
    (void)snprintf(text, sizeof text, "%s: %s", subject, line);
    ls_json_put_text(user, NULL, text);
}

static ls_status put_configuration(ls_json_writer *json, const ls_trial_state *state) {
    const ls_trial *trial = state->trial;
    const size_t room = ls_module_format(state->model, NULL, 0) + 1;
    char *model = ls_allocate_for(maker, 1, room);
    LS_TRY(ls_made(model));
    (void)ls_module_format(state->model, model, room);
    if (!ls_text_is_utf8(model)) {
        ls_text_make_printable(model);
    }
    int64_t parameters = 0;
    for (int i = 0; i < ls_module_parameter_count(state->model); i++) {
        parameters += ls_numel(ls_module_parameter(state->model, i));
    }
    put_command(json);
    ls_json_put_text(json, "dtype", ls_dtype_name(trial->options.autocast));
    ls_json_put_integer(json, "parameters", parameters);
    ls_json_open(json, "setup", '[');
    const ls_status status = ls_trial_describe(trial, put_setup, json);
    ls_json_close(json, ']');
    ls_json_put_text(json, "model", model);
    ls_free(model);
    return status;
}

static ls_status write_start(const run_log *self, const ls_trial_state *state, const char *hosts, bool resumes) {
    ls_json_writer json = begin_line(self, "start");
    ls_json_put_integer(&json, "epoch", state->trial->epochs_run);
    ls_json_put_integer(&json, "epochs", state->epochs);
    ls_json_put_integer(&json, "step", state->step);
    ls_json_put_flag(&json, "resumes", resumes);
    put_machine(&json, state, hosts);
    const ls_status status = put_configuration(&json, state);
    return status == LS_OK ? end_line(self, &json) : status;
}

/* Gathers blocks of `size` bytes from all ranks on rank 0. Returns ownership of `*all` to the caller. */
static ls_status gather(const ls_trial_state *state, const void *own, size_t size, void **all) {
    const size_t ranks = (size_t)ls_trial_size(state);
    *all = ls_allocate_for(maker, ranks, size);
    LS_TRY(ls_made(*all));
    if (ranks == 1) {
        memcpy(*all, own, size);
        return LS_OK;
    }
    return ls_comm_gather(state->comm, own, *all, size, LS_U8, 0, NULL);
}

static void begin_epoch(run_log *self) {
    for (int i = 0; i < LS_TIMES; i++) {
        self->before[i] = ls_timer_seconds(self->timer, (ls_time)i);
    }
    self->began = ls_clock_ns();
}

static void begin_training(run_log *self) {
    self->mark = ls_clock_ns();
    self->training = 0;
    self->samples = 0;
}

static ls_status on_start(ls_trial_state *state, void *user) {
    run_log *self = user;
    const ls_trial *trial = state->trial;
    char host[HOST_ROOM] = "";
    void *hosts = NULL;
    if (!ls_callback_in_real_run(state)) {
        return LS_OK;
    }
    (void)(gethostname(host, sizeof host - 1) == 0);
    ls_text_make_printable(host);
    ls_status status = gather(state, host, sizeof host, &hosts);
    if (status == LS_OK && ls_callback_is_first_rank(state)) {
        const bool resumes = self->file == NULL && (trial->epochs_run > 0 || (trial->continues && state->batch > 0));
        status = open_file(self, state, resumes);
        status = status == LS_OK ? write_start(self, state, hosts, resumes && ftell(self->file) > 0) : status;
    }
    ls_free(hosts);
    if (ls_trial_size(state) > 1) { /* no rank measures how long it waits for the lines of rank 0 */
        const ls_status met = ls_comm_barrier(state->comm, NULL);
        status = status != LS_OK ? status : met;
    }
    self->starts = true;
    begin_epoch(self); /* a run that resumes within an epoch has neither on_start_epoch nor on_start_training */
    begin_training(self);
    return status;
}

/* ---- the epochs -------------------------------------------------------------------------------------------------- */

/* The hooks and the agreement at the start of the run are not part of its first epoch. */
static ls_status on_start_epoch(ls_trial_state *state, void *user) {
    run_log *self = user;
    if (self->starts && !ls_callback_in_replay(state)) {
        begin_epoch(self);
        self->starts = false;
    }
    return LS_OK;
}

static ls_status on_start_training(ls_trial_state *state, void *user) {
    (void)state;
    begin_training(user);
    return LS_OK;
}

static ls_status on_step_training(ls_trial_state *state, void *user) {
    run_log *self = user;
    double loss;
    self->samples += ls_trial_samples(state);
    if (self->options.no_steps || state->step % self->options.every_steps != 0 || ls_callback_in_replay(state)) {
        return LS_OK;
    }
    LS_TRY(ls_callback_batch_loss(state, &loss));
    if (self->file == NULL) {
        return LS_OK;
    }
    ls_json_writer json = begin_line(self, "step");
    ls_json_put_integer(&json, "step", state->step);
    ls_json_put_number(&json, "loss", loss);
    ls_json_put_number(&json, "rate", state->optimizer != NULL ? ls_optimizer_learning_rate(state->optimizer, 0) : NAN);
    return end_line(self, &json);
}

static ls_status on_end_training(ls_trial_state *state, void *user) {
    run_log *self = user;
    (void)state;
    self->training = ls_clock_ns() - self->mark;
    return LS_OK;
}

/* What a rank contributes to the line of an epoch. */
typedef struct epoch_share {
    int64_t samples;
    double phases[LS_TIME_TOTAL];
} epoch_share;

static ls_status write_epoch(const run_log *self, const ls_trial_state *state, const epoch_share *shares) {
    const ls_trial *trial = state->trial;
    int64_t samples = 0;
    for (int rank = 0; rank < ls_trial_size(state); rank++) {
        samples += shares[rank].samples;
    }
    ls_history_entry entry;
    ls_json_writer json = begin_line(self, "epoch");
    ls_history_entry_of(&trial->history, trial->history.count - 1, &entry);
    ls_json_put_integer(&json, "epoch", state->epoch);
    ls_json_put_integer(&json, "step", state->step);
    ls_json_put_number(&json, "seconds", (double)(ls_clock_ns() - self->began) * 1e-9);
    ls_json_put_number(&json, "samples_per_second", (double)samples / ((double)self->training * 1e-9));
    put_values(&json, &entry);
    ls_json_open(&json, "phases", '{');
    for (int i = 0; i < LS_TIME_TOTAL; i++) {
        ls_json_open(&json, ls_time_name((ls_time)i), '[');
        for (int rank = 0; rank < ls_trial_size(state); rank++) {
            ls_json_put_number(&json, NULL, shares[rank].phases[i]);
        }
        ls_json_close(&json, ']');
    }
    ls_json_close(&json, '}');
    return end_line(self, &json);
}

static ls_status on_end_epoch(ls_trial_state *state, void *user) {
    run_log *self = user;
    epoch_share own = {.samples = self->samples};
    void *all = NULL;
    if (!ls_callback_in_real_run(state)) {
        return LS_OK;
    }
    for (int i = 0; i < LS_TIME_TOTAL; i++) {
        const double now = ls_timer_seconds(self->timer, (ls_time)i);
        own.phases[i] = now - self->before[i];
        self->before[i] = now;
    }
    ls_status status = gather(state, &own, sizeof own, &all);
    status = status == LS_OK && self->file != NULL ? write_epoch(self, state, all) : status;
    ls_free(all);
    self->starts = false;
    self->began = ls_clock_ns();
    return status;
}

/* Also called after ls_trial_evaluate, to write its results. A prediction has no results. */
static ls_status on_end(ls_trial_state *state, void *user) {
    run_log *self = user;
    if (self->file == NULL || ls_callback_in_replay(state) || state->trial->prediction != NULL) {
        return LS_OK;
    }
    ls_json_writer json = begin_line(self, ls_callback_in_run(state) ? "end" : "results");
    ls_json_put_integer(&json, "time", (int64_t)time(NULL));
    put_values(&json, &state->trial->latest);
    return end_line(self, &json);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {
        LS_FIELD(ls_run_log_options, every_steps), LS_FIELD(ls_run_log_options, no_steps), {.name = NULL}};
    const run_log *self = user;
    ls_describe(text, size, maker, fields, &self->options);
}

static void release(void *user) {
    run_log *self = user;
    if (self->file != NULL) {
        (void)fclose(self->file);
    }
    ls_free(self->folder);
    ls_free(self);
}

static ls_status check(const char *folder, const ls_run_log_options *options) {
    if (folder == NULL || folder[0] == '\0') {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the folder is %s", maker, folder == NULL ? "NULL" : "empty");
    }
    if (strlen(folder) + sizeof "/run.jsonl" > PATH_MAX) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the folder's name is too long", maker);
    }
    return options->every_steps >= 0 ? LS_OK
                                     : ls_fail(LS_ERR_ARGUMENT, "%s: .every_steps is %lld, but must not be negative",
                                               maker, (long long)options->every_steps);
}

ls_callback *ls_run_log(const char *folder, const ls_run_log_options *options) {
    static const ls_run_log_options defaults;
    options = options != NULL ? options : &defaults;
    if (check(folder, options) != LS_OK) {
        return NULL;
    }
    run_log *self = ls_allocate_for(maker, 1, sizeof *self);
    if (self == NULL) {
        return NULL;
    }
    *self = (run_log){.options = *options, .folder = ls_duplicate_string(folder)};
    self->options.every_steps = options->every_steps > 0 ? options->every_steps : DEFAULT_EVERY_STEPS;
    self->timer = self->folder != NULL ? ls_timer_bare(maker) : NULL;
    if (self->timer == NULL) {
        (void)(self->folder == NULL ? ls_fail_memory(maker, strlen(folder) + 1) : LS_OK);
        release(self);
        return NULL;
    }
    ls_callback *log = ls_callback_make(&(ls_callback_hooks){.on_start = on_start,
                                                             .on_start_epoch = on_start_epoch,
                                                             .on_start_training = on_start_training,
                                                             .on_step_training = on_step_training,
                                                             .on_end_training = on_end_training,
                                                             .on_end_epoch = on_end_epoch,
                                                             .on_end = on_end,
                                                             .name = "run_log",
                                                             .describe = describe,
                                                             .release = release},
                                        self);
    /* If the log is NULL, this fails with the log's error, and frees the timer. The log comes first, so that the
       timer measures the log's time. */
    return ls_callbacks_as_first(maker, (ls_callback *const[]){log, self->timer}, 2);
}
