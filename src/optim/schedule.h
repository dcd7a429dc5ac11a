/*
 * Schedules of learning rates. A schedule is one `static const ls_schedule_type` row; the frame (schedule.c) counts
 * steps, asks the row for the rates of a step and gives them to the optimizer. A rate follows from the row's options,
 * the group's base rate and the step alone, so that nothing adds up over the steps and a state is a few numbers.
 */
#ifndef LS_OPTIM_SCHEDULE_H
#define LS_OPTIM_SCHEDULE_H

#include "optim/optimizer.h"

/* What ls_schedule_plateau has seen. */
typedef struct ls_plateau {
    double best;        /* finite; before the first metric the worst that there is */
    int64_t bad;        /* metrics in a row that were not better */
    int64_t cooldown;   /* metrics not to be counted from here on */
    int64_t reductions; /* of the rates */
} ls_plateau;

typedef struct ls_schedule_type {
    const char *name;       /* as in messages: "ls_schedule_step" */
    const ls_field *fields; /* of the schedule: its options; NULL: there are none */
    /* The rate at `step` of a group with that base, which is above 0. */
    double (*rate)(const ls_schedule *schedule, double base, int64_t step);
    /* The momentum at `step`; NULL where it is left alone. */
    double (*momentum)(const ls_schedule *schedule, int64_t step);
    /* Looks at the metric that goes with a step; NULL where none is needed. */
    void (*look)(const ls_plateau_options *options, ls_plateau *plateau, double metric);
    /* Frees what the options own; NULL where that is nothing. */
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
    int64_t end; /* the last step; 0: there is none */
    ls_plateau plateau;

    /* The frame's. */
    ls_optimizer *optimizer; /* lent */
    int group_count;
    double *bases; /* of each group */
    double *rates; /* of each group; in the same memory */
    int64_t step;  /* from 0 */
    int64_t warm_up;
    double warm_up_start;
    ls_state_list lent; /* what ls_schedule_state gave last */
};

/*
 * A schedule with the options of `initial`, taken over also when it fails, over the groups that the optimizer has,
 * whose rates become those of step 0.
 */
ls_schedule *ls_schedule_new(const ls_schedule *initial, ls_optimizer *optimizer);

/* Writes the kind with its options, the step and the warm-up into `text`. */
void ls_schedule_describe(const ls_schedule *schedule, char *text, size_t size);

/* LS_ERR_ARGUMENT, naming call and option, when the number, of steps, is below the least or above 2^53. */
ls_status ls_schedule_check_steps(const char *call, const char *option, int64_t number, int64_t least);

#endif
