/* Measures how long the parts of a run take. */
#include "train/callbacks/callback.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/locale.h"
#include "comm/meter.h"

static const char *const maker = "ls_timer";
static const char *const names[LS_TIMES] = {"data",    "forward",    "backward",      "optimizer", "user step",
                                            "waiting", "validation", "communication", "total"};

enum { LEAST, MEAN, LARGEST, SIDES };

/* The index of the total, and the number of peaks. */
enum { PEAK_TOTAL = LS_MEMORY_KINDS, PEAKS };

typedef struct timer {
    bool bare; /* only measures */
    bool waits;
    bool prints;
    ls_run_end end;                /* the end of the run, which the trial notes */
    uint64_t began;                /* start of the run; 0 if no run is in progress */
    uint64_t mark;                 /* time of the last hook in a step */
    ls_time part;                  /* what the process does since the last hook of a step */
    uint64_t validation;           /* start of the validation; 0 if none is in progress */
    uint64_t communication;        /* communication time at the start of the run */
    uint64_t bytes_before;         /* bytes of this thread's communication calls before the run */
    uint64_t bytes;                /* bytes of communication calls in the last completed run */
    int64_t nanoseconds[LS_TIMES]; /* in all runs */
    int64_t before[LS_TIMES];      /* in all runs before this run */
    double over_ranks[LS_TIMES][SIDES];
    double peaks[PEAKS][SIDES]; /* in the last completed run, over all ranks: the peak of each kind, and of the total */
    ls_state_list listed;
} timer;

/* Adds the time since the last mark to `what`. A replay is not a run. */
static ls_status mark(timer *self, const ls_trial_state *state, ls_time what) {
    const uint64_t now = ls_clock_ns();
    self->nanoseconds[what] += ls_callback_in_replay(state) ? 0 : (int64_t)(now - self->mark);
    self->mark = now;
    return LS_OK;
}

/* Return the clock and the communication time of this thread, or their values at the end of a failed run. */
static uint64_t clock_of(const timer *self) {
    return self->end.time != 0 ? self->end.time : ls_clock_ns();
}

static uint64_t communication_clock_of(const timer *self) {
    return self->end.time != 0 ? self->end.communication : ls_comm_metered.nanoseconds;
}

/* Returns the communication time, in nanoseconds, of all runs including the current one. */
static int64_t communication_of(const timer *self) {
    const uint64_t current = self->began != 0 ? communication_clock_of(self) - self->communication : 0;
    return self->nanoseconds[LS_TIME_COMMUNICATION] + (int64_t)current;
}

/* Returns the duration of all validations including the current one, which may have failed, in nanoseconds. */
static int64_t validation_of(const timer *self) {
    const bool current = self->began != 0 && self->validation != 0;
    return self->nanoseconds[LS_TIME_VALIDATION] + (int64_t)(current ? clock_of(self) - self->validation : 0);
}

/* Returns the duration of all runs including the current one, in nanoseconds. */
static int64_t total_of(const timer *self) {
    return self->nanoseconds[LS_TIME_TOTAL] + (int64_t)(self->began != 0 ? clock_of(self) - self->began : 0);
}

static void take_times(timer *self) {
    self->nanoseconds[LS_TIME_COMMUNICATION] = communication_of(self);
    self->nanoseconds[LS_TIME_TOTAL] = total_of(self);
    self->nanoseconds[LS_TIME_VALIDATION] = validation_of(self);
    if (self->began != 0) {
        self->validation = self->validation != 0 ? clock_of(self) : 0;
        self->communication = communication_clock_of(self);
        self->began = clock_of(self);
    }
}

/* Ends the measurement of a run, which may have failed. */
static void stop(timer *self) {
    take_times(self);
    ls_comm_metered.users -= self->began != 0;
    self->began = self->validation = 0;
}

static ls_status on_start(ls_trial_state *state, void *user) {
    timer *self = user;
    stop(self);
    if (ls_callback_in_real_run(state)) {
        memcpy(self->before, self->nanoseconds, sizeof self->before);
        ls_trial_note_end(state->trial, &self->end);
        self->part = LS_TIME_DATA;
        self->began = self->mark = ls_clock_ns(); /* a run that resumes within an epoch has no on_start_training */
        self->communication = ls_comm_metered.nanoseconds;
        self->bytes_before = ls_comm_metered.bytes;
        ls_comm_metered.users++;
    }
    return LS_OK;
}

static ls_status on_start_training(ls_trial_state *state, void *user) {
    (void)state;
    ((timer *)user)->mark = ls_clock_ns();
    return LS_OK;
}

/* With `.shards`, each slice of the rank calls this hook and on_criterion: the time since the previous slice is not
 * waiting for data. */
static ls_status on_sample(ls_trial_state *state, void *user) {
    timer *self = user;
    (void)mark(self, state, self->part);
    self->part = LS_TIME_FORWARD;
    return LS_OK;
}

static ls_status on_criterion(ls_trial_state *state, void *user) {
    timer *self = user;
    (void)mark(self, state, LS_TIME_FORWARD);
    self->part = LS_TIME_BACKWARD;
    return LS_OK;
}

/* Also called on a rank without samples, which waits for the gradients of the other ranks. */
static ls_status on_backward(ls_trial_state *state, void *user) {
    return mark(user, state, LS_TIME_BACKWARD);
}

static ls_status on_step_training(ls_trial_state *state, void *user) {
    timer *self = user;
    (void)mark(self, state, state->trial->options.step != NULL ? LS_TIME_USER_STEP : LS_TIME_OPTIMIZER);
    self->part = LS_TIME_DATA;
    if (self->waits && ls_comm_size(state->comm) > 1 && !ls_callback_in_replay(state)) {
        LS_TRY(ls_comm_barrier(state->comm, NULL));
        (void)mark(self, state, LS_TIME_WAITING);
    }
    return LS_OK;
}

static ls_status on_start_validation(ls_trial_state *state, void *user) {
    const bool measures = ls_callback_in_real_run(state);
    ((timer *)user)->validation = measures ? ls_clock_ns() : 0;
    return LS_OK;
}

static ls_status on_end_validation(ls_trial_state *state, void *user) {
    timer *self = user;
    (void)state;
    if (self->validation != 0) {
        self->nanoseconds[LS_TIME_VALIDATION] += (int64_t)(ls_clock_ns() - self->validation);
    }
    self->validation = 0;
    return LS_OK;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

/* Computes the minimum, mean and maximum of each number over the ranks. */
static ls_status compare_ranks(ls_comm *comm, size_t count, const double *numbers, double (*over_ranks)[SIDES]) {
    double sum[LS_TIMES + PEAKS], extremes[2 * (LS_TIMES + PEAKS)];
    const int ranks = ls_comm_size(comm) > 1 ? ls_comm_size(comm) : 1;
    for (size_t i = 0; i < count; i++) {
        sum[i] = extremes[i] = numbers[i];
        extremes[count + i] = -numbers[i];
    }
    if (ranks > 1) {
        LS_TRY(ls_comm_allreduce(comm, sum, sum, count, LS_F64, LS_SUM, NULL));
        LS_TRY(ls_comm_allreduce(comm, extremes, extremes, 2 * count, LS_F64, LS_MAX, NULL));
    }
    for (size_t i = 0; i < count; i++) {
        over_ranks[i][LEAST] = -extremes[count + i];
        over_ranks[i][MEAN] = sum[i] / ranks;
        over_ranks[i][LARGEST] = extremes[i];
    }
    return LS_OK;
}

static ls_status compare_times_and_peaks(timer *self, const ls_trial_state *state) {
    const ls_memory_watch *memory = &state->trial->memory;
    double numbers[LS_TIMES + PEAKS], over_ranks[LS_TIMES + PEAKS][SIDES];
    for (int i = 0; i < LS_TIMES; i++) {
        numbers[i] = (double)(self->nanoseconds[i] - self->before[i]) * 1e-9;
    }
    for (int i = 0; i < LS_MEMORY_KINDS; i++) {
        numbers[LS_TIMES + i] = (double)memory->bytes[i];
    }
    numbers[LS_TIMES + PEAK_TOTAL] = (double)memory->total;
    LS_TRY(compare_ranks(state->comm, LS_TIMES + PEAKS, numbers, over_ranks));
    memcpy(self->over_ranks, over_ranks, sizeof self->over_ranks);
    memcpy(self->peaks, over_ranks + LS_TIMES, sizeof self->peaks);
    return LS_OK;
}

static void print_head(const char *unit) {
    printf("%-13s %10s %10s %10s\n", unit, "least", "mean", "largest");
}

static void print_row(const char *name, const double row[SIDES], double unit) {
    if (row[LARGEST] > 0) {
        ls_fprintf(stdout, "%-13s %10.3f %10.3f %10.3f\n", name, row[LEAST] / unit, row[MEAN] / unit,
                   row[LARGEST] / unit);
    }
}

static ls_status print_table(const timer *self) {
    print_head("seconds");
    for (int i = 0; i < LS_TIMES; i++) {
        print_row(names[i], self->over_ranks[i], 1);
    }
    print_head("memory (MB)");
    for (int i = 0; i < LS_MEMORY_KINDS; i++) {
        print_row(ls_memory_kind_name((ls_memory_kind)i), self->peaks[i], 1e6);
    }
    print_row("peak", self->peaks[PEAK_TOTAL], 1e6);
    if (self->bytes > 0) {
        ls_fprintf(stdout, "rank 0 passed %.3f MB to communication calls\n", (double)self->bytes * 1e-6);
    }
    return fflush(stdout) == 0 ? LS_OK : ls_fail(LS_ERR_IO, "%s: cannot write to standard output", maker);
}

static ls_status on_end(ls_trial_state *state, void *user) {
    timer *self = user;
    if (self->began == 0) {
        return LS_OK;
    }
    self->bytes = ls_comm_metered.bytes - self->bytes_before;
    stop(self);
    LS_TRY(self->bare ? LS_OK : compare_times_and_peaks(self, state));
    return self->prints && ls_callback_is_first_rank(state) ? print_table(self) : LS_OK;
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static ls_status list(void *user, ls_state_list *list) {
    timer *self = user;
    return ls_state_add(list, "", (ls_state_word){"nanoseconds", LS_STATE_NOT_NEGATIVE}, LS_SHAPE(LS_TIMES), LS_I64,
                        &ls_cpu, self->nanoseconds);
}

static ls_status state(void *user, const ls_named **tensors, int *count) {
    timer *self = user;
    take_times(self);
    return ls_callback_state(self, list, &self->listed, tensors, count);
}

/* If a run has failed, its times are replaced too. */
static ls_status set_state(void *user, const ls_named *tensors, int count) {
    stop(user);
    return ls_callback_set_state(maker, user, list, tensors, count);
}

static void describe(void *user, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(timer, waits), {.name = NULL}};
    ls_describe(text, size, maker, fields, user);
}

static void release(void *user) {
    timer *self = user;
    stop(self);
    ls_state_forget(&self->listed);
    ls_free(self);
}

static void set_unknown(double row[SIDES]) {
    row[LEAST] = row[MEAN] = row[LARGEST] = NAN;
}

/* A bare timer has no state, so that a trial can resume from checkpoints of a trial without the timer. */
static ls_callback *make(const char *call, timer self) {
    for (int i = 0; i < LS_TIMES; i++) {
        set_unknown(self.over_ranks[i]);
    }
    for (int i = 0; i < PEAKS; i++) {
        set_unknown(self.peaks[i]);
    }
    return ls_callback_of(call, &self, sizeof self,
                          &(ls_callback_hooks){.on_start = on_start,
                                               .on_start_training = on_start_training,
                                               .on_sample = on_sample,
                                               .on_criterion = on_criterion,
                                               .on_backward = on_backward,
                                               .on_step_training = on_step_training,
                                               .on_start_validation = on_start_validation,
                                               .on_end_validation = on_end_validation,
                                               .on_end = on_end,
                                               .name = "timer",
                                               .describe = describe,
                                               .state = self.bare ? NULL : state,
                                               .set_state = self.bare ? NULL : set_state,
                                               .release = release});
}

ls_callback *ls_timer(const ls_timer_options *options) {
    return make(maker,
                (timer){.waits = options != NULL && options->waiting, .prints = options == NULL || !options->no_table});
}

ls_callback *ls_timer_bare(const char *call) {
    return make(call, (timer){.bare = true});
}

const char *ls_time_name(ls_time what) {
    return names[what];
}

static bool is_time(ls_time what) {
    return what >= 0 && what < LS_TIMES;
}

double ls_timer_seconds(const ls_callback *callback, ls_time what) {
    const timer *self = ls_callback_memory(callback, release);
    if (self == NULL || !is_time(what)) {
        return NAN;
    }
    return (double)(what == LS_TIME_COMMUNICATION ? communication_of(self)
                    : what == LS_TIME_TOTAL       ? total_of(self)
                    : what == LS_TIME_VALIDATION  ? validation_of(self)
                                                  : self->nanoseconds[what]) *
           1e-9;
}

double ls_timer_bytes(const ls_callback *callback) {
    const timer *self = ls_callback_memory(callback, release);
    return self != NULL ? (double)self->bytes : NAN;
}

/* Copies a row to the pointers, which may be NULL. If there is no row, sets NAN. */
static void copy_row(const double *row, double *least, double *mean, double *largest) {
    double *const places[SIDES] = {least, mean, largest};
    for (int i = 0; i < SIDES; i++) {
        if (places[i] != NULL) {
            *places[i] = row != NULL ? row[i] : NAN;
        }
    }
}

void ls_timer_over_ranks(const ls_callback *callback, ls_time what, double *least, double *mean, double *largest) {
    const timer *self = ls_callback_memory(callback, release);
    copy_row(self != NULL && is_time(what) ? self->over_ranks[what] : NULL, least, mean, largest);
}

void ls_timer_memory_over_ranks(const ls_callback *callback, ls_memory_kind kind, double *least, double *mean,
                                double *largest) {
    const timer *self = ls_callback_memory(callback, release);
    const bool known = kind >= 0 && kind <= LS_MEMORY_KINDS; /* LS_MEMORY_KINDS: the total */
    copy_row(self != NULL && known ? self->peaks[kind] : NULL, least, mean, largest);
}
