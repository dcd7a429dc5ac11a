/*
 * Learning-rate schedules. A schedule is a `static const ls_schedule_type`. The framework (schedule.c) counts steps,
 * gets the rates of a step from the type, and sets them in the optimizer. A rate depends only on the schedule's
 * options, the group's base rate and the step. Therefore no error accumulates, and the state is only a few numbers.
 */
#ifndef LS_OPTIM_SCHEDULE_H
#define LS_OPTIM_SCHEDULE_H

#include "optim/optimizer.h"

/* State of ls_schedule_plateau. */
typedef struct ls_plateau {
    double best;        /* finite; before the first metric, the worst possible value */
    int64_t bad;        /* number of successive metrics without improvement */
    int64_t cooldown;   /* number of upcoming metrics to ignore */
    int64_t reductions; /* number of reductions of the rates */
} ls_plateau;

typedef struct ls_schedule_type {
    const char *name;       /* for messages: "ls_schedule_step" */
    const ls_field *fields; /* the options in ls_schedule; NULL if there are no options */
    /* Returns the rate at `step` for a group whose base rate is `base`, which is above 0. */
    double (*rate)(const ls_schedule *schedule, double base, int64_t step);
    /* Returns the momentum at `step`; NULL if the schedule does not change it. */
    double (*momentum)(const ls_schedule *schedule, int64_t step);
    /* Processes the metric of a step. NULL if the schedule needs no metric. */
    void (*look)(const ls_plateau_options *options, ls_plateau *plateau, double metric);
    /* Frees the data of the options; NULL if the options own nothing. */
    void (*forget)(ls_schedule *schedule);
} ls_schedule_type;

struct ls_schedule {
    const ls_schedule_type *type;
    union {
        struct {
            int64_t steps;
            double gamma;
        } powers; /* step, exponential */
        struct {
            int64_t *milestones; /* owned */
            uint64_t milestones_hash;
            int count;
            double gamma;
        } multi_step;
        struct {
            int64_t steps, multiplier;
            double minimum;
        } cosine;
        struct {
            int64_t steps;
            double start, end;
        } linear;
        struct {
            int64_t steps;
            double power;
        } polynomial;
        struct {
            double (*factor)(int64_t step, void *user);
            void *user;
        } function;
        ls_one_cycle_options one_cycle;
        ls_cyclic_options cyclic;
        ls_plateau_options plateau;
    } options;
    bool cycles_momentum;
    int64_t end; /* the last step; 0 if there is no last step */
    ls_plateau plateau;

    /* Used by the framework. */
    ls_optimizer *optimizer; /* borrowed */
    int group_count;
    double *bases; /* of each group */
    double *rates; /* rate of each group; in the same allocation */
    int64_t step;  /* from 0 */
    int64_t warm_up;
    double warm_up_start;
    ls_state_list listed; /* the last result of ls_schedule_state */
};

/*
 * Returns a schedule with the options of `initial`, which it consumes, even on failure. It covers the current groups of
 * the optimizer, and sets their rates to the rates of step 0.
 */
ls_schedule *ls_schedule_new(const ls_schedule *initial, ls_optimizer *optimizer);

/* Fails with LS_ERR_STATE if the schedule was freed, and with ls_fail_missing if it is NULL. */
ls_status ls_schedule_check_here(const char *call, const ls_schedule *schedule);

/* Writes the schedule's kind, options, warm-up and, if `step` is set, its step into `text`. */
void ls_schedule_describe(const ls_schedule *schedule, bool step, char *text, size_t size);

/* Fails with LS_ERR_ARGUMENT, naming the call and the option, if a number of steps is below `least` or above 2^53. */
ls_status ls_schedule_check_steps(const char *call, const char *option, int64_t number, int64_t least);

#endif
