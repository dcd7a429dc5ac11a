/* The framework of all schedules: step count, the rates and momentum of a step, warm-up, and state. */
#include "optim/schedule.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/freed.h"
#include "base/memory.h"
#include "tensor/capture.h"
#include "tensor/scope.h"

/* ---- the rates of a step ----------------------------------------------------------------------------------------- */

/* Returns the schedule's own step, counted from the end of the warm-up. */
static int64_t own_step(const ls_schedule *schedule) {
    return schedule->step > schedule->warm_up ? schedule->step - schedule->warm_up : 0;
}

static double rate_of(const ls_schedule *schedule, double base) {
    if (base == 0) {
        return 0; /* frozen */
    }
    const double rate = schedule->type->rate(schedule, base, own_step(schedule));
    if (schedule->step >= schedule->warm_up) {
        return rate;
    }
    const double start = schedule->warm_up_start;
    return rate * (start + (1 - start) * (double)schedule->step / (double)schedule->warm_up);
}

/* Sets the step's rates and momentum in the optimizer. On failure, changes nothing. */
static ls_status apply(const ls_schedule *schedule) {
    ls_optimizer *optimizer = schedule->optimizer;
    const char *call = schedule->type->name;
    ls_capture_refuse_here(call, LS_CAPTURE_STATE);
    LS_TRY(ls_optimizer_check_here(call, optimizer));
    if (optimizer->group_count != schedule->group_count) {
        return ls_fail(LS_ERR_STATE,
                       "%s: the optimizer has %d groups, but had %d when the schedule was created; add groups first",
                       call, optimizer->group_count, schedule->group_count);
    }
    for (int g = 0; g < schedule->group_count; g++) {
        const double rate = schedule->rates[g] = rate_of(schedule, schedule->bases[g]);
        if (!(rate >= 0 && rate <= DBL_MAX)) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "%s: at step %lld the learning rate of group %d is %g, but must be finite and not negative",
                           call, (long long)schedule->step, g, rate);
        }
    }
    if (schedule->cycles_momentum) {
        LS_TRY(ls_optimizer_set_momentum(optimizer, schedule->type->momentum(schedule, own_step(schedule))));
    }
    for (int g = 0; g < schedule->group_count; g++) {
        optimizer->groups[g].learning_rate = schedule->rates[g];
    }
    return LS_OK;
}

/* ---- creation and destruction ------------------------------------------------------------------------------------ */

ls_status ls_schedule_check_steps(const char *call, const char *option, int64_t number, int64_t least) {
    const int64_t most = INT64_C(1) << 53; /* a double cannot represent all larger integers exactly */
    return number >= least && number <= most
               ? LS_OK
               : ls_fail(LS_ERR_ARGUMENT, "%s: %s is %lld, but must be between %lld and 2^53", call, option,
                         (long long)number, (long long)least);
}

static ls_status allocate_rates(ls_schedule *schedule) {
    const size_t count = 2 * (size_t)schedule->group_count;
    schedule->bases = ls_allocate_zeroed(count, sizeof *schedule->bases);
    if (schedule->bases == NULL) {
        return ls_fail_memory(schedule->type->name, count * sizeof *schedule->bases);
    }
    schedule->rates = schedule->bases + schedule->group_count;
    return LS_OK;
}

static ls_status begin(ls_schedule *schedule, ls_optimizer *optimizer) {
    if (optimizer == NULL) {
        return ls_fail_missing("%s: the optimizer", schedule->type->name);
    }
    schedule->optimizer = optimizer;
    schedule->group_count = optimizer->group_count;
    LS_TRY(allocate_rates(schedule));
    for (int g = 0; g < schedule->group_count; g++) {
        schedule->bases[g] = optimizer->groups[g].learning_rate;
    }
    return apply(schedule);
}

ls_schedule *ls_schedule_new(const ls_schedule *initial, ls_optimizer *optimizer) {
    ls_schedule made = *initial;
    ls_schedule *schedule = ls_allocate(sizeof *schedule);
    if (schedule == NULL) {
        (void)ls_fail_memory(made.type->name, sizeof *schedule);
    } else if (begin(&made, optimizer) == LS_OK) {
        *schedule = made;
        return schedule;
    }
    ls_free(schedule);
    ls_free(made.bases);
    if (made.type->forget != NULL) {
        made.type->forget(&made);
    }
    return NULL;
}

ls_status ls_schedule_check_here(const char *call, const ls_schedule *schedule) {
    return schedule == NULL         ? ls_fail_missing("%s: the schedule", call)
           : schedule->type != NULL ? LS_OK
                                    : ls_fail_freed(call, "schedule", "ls_schedule_free");
}

void ls_schedule_free(ls_schedule *schedule) {
    if (schedule == NULL || schedule->type == NULL) {
        return;
    }
    if (schedule->type->forget != NULL) {
        schedule->type->forget(schedule);
    }
    ls_state_forget(&schedule->listed);
    ls_free(schedule->bases);
    *schedule = (ls_schedule){.type = NULL};
    ls_retire(schedule, LS_RETIRED_SINGLE);
}

static ls_status warm_up(ls_schedule *schedule, int64_t steps, double start) {
    const char *const call = "ls_schedule_warm_up";
    LS_TRY(ls_schedule_check_here(call, schedule));
    LS_TRY(ls_schedule_check_steps(call, "steps", steps, 0));
    LS_TRY(ls_option_within(call, "start", start, 0, 1));
    if (schedule->step > 0 || schedule->warm_up > 0) {
        return ls_fail(LS_ERR_STATE, "%s: the %s %s: add one warm-up, before the first step", call,
                       schedule->type->name, schedule->step > 0 ? "has been advanced" : "has a warm-up");
    }
    schedule->warm_up = steps;
    schedule->warm_up_start = start;
    return apply(schedule);
}

ls_schedule *ls_schedule_warm_up(ls_schedule *schedule, int64_t steps, double start) {
    if (warm_up(schedule, steps, start) != LS_OK) {
        ls_schedule_free(schedule);
        return NULL;
    }
    return schedule;
}

/* ---- stepping ---------------------------------------------------------------------------------------------------- */

static ls_status advance(ls_schedule *schedule, double metric) {
    const ls_schedule before = *schedule;
    if (schedule->end > 0 && own_step(schedule) == schedule->end) {
        return ls_fail(LS_ERR_STATE, "%s: all %lld steps are done", schedule->type->name,
                       (long long)(schedule->warm_up + schedule->end));
    }
    schedule->step++;
    if (schedule->type->look != NULL && own_step(schedule) > 0) {
        schedule->type->look(&schedule->options.plateau, &schedule->plateau, metric);
    }
    const ls_status status = apply(schedule);
    if (status != LS_OK) {
        *schedule = before;
    }
    return status;
}

ls_status ls_schedule_advance(ls_schedule *schedule) {
    ls_capture_refuse_here("ls_schedule_advance", LS_CAPTURE_STATE);
    LS_TRY(ls_schedule_check_here("ls_schedule_advance", schedule));
    if (schedule->type->look != NULL) {
        return ls_fail(LS_ERR_STATE, "ls_schedule_advance: %s needs a metric: call ls_schedule_advance_by",
                       schedule->type->name);
    }
    return advance(schedule, NAN);
}

ls_status ls_schedule_advance_by(ls_schedule *schedule, double metric) {
    ls_capture_refuse_here("ls_schedule_advance_by", LS_CAPTURE_STATE);
    LS_TRY(ls_schedule_check_here("ls_schedule_advance_by", schedule));
    return advance(schedule, metric);
}

void ls_schedule_describe(const ls_schedule *schedule, bool step, char *text, size_t size) {
    static const ls_field fields[] = {LS_FIELD(ls_schedule, step), /* first */
                                      LS_FIELD(ls_schedule, warm_up),
                                      LS_FIELD(ls_schedule, warm_up_start),
                                      {.name = NULL}};
    ls_describe(text, size, schedule->type->name, schedule->type->fields, schedule);
    const size_t length = strlen(text);
    ls_describe(text + length, size - length, "", step ? fields : fields + 1, schedule);
}

/* ---- state ------------------------------------------------------------------------------------------------------- */

static ls_status add_counter(ls_state_list *list, const char *word, int64_t *counter) {
    return ls_state_add(list, "", (ls_state_word){word, LS_STATE_NOT_NEGATIVE}, LS_SCALAR, LS_I64, &ls_cpu, counter);
}

static ls_status list_all(ls_schedule *schedule, ls_state_list *list) {
    LS_TRY(add_counter(list, "last_epoch", &schedule->step));
    LS_TRY(ls_state_add(list, "", (ls_state_word){"base_lrs", LS_STATE_NOT_NEGATIVE}, LS_SHAPE(schedule->group_count),
                        LS_F64, &ls_cpu, schedule->bases));
    if (schedule->type->look == NULL) {
        return LS_OK;
    }
    ls_plateau *plateau = &schedule->plateau;
    LS_TRY(ls_state_add(list, "", (ls_state_word){"best", LS_STATE_ANY}, LS_SCALAR, LS_F64, &ls_cpu, &plateau->best));
    LS_TRY(add_counter(list, "num_bad_epochs", &plateau->bad));
    LS_TRY(add_counter(list, "cooldown_counter", &plateau->cooldown));
    return add_counter(list, "reductions", &plateau->reductions);
}

ls_status ls_schedule_state(ls_schedule *schedule, const ls_named **tensors, int *count) {
    if (schedule == NULL || tensors == NULL || count == NULL) {
        return ls_fail(LS_ERR_ARGUMENT, "ls_schedule_state: an argument is NULL");
    }
    LS_TRY(ls_schedule_check_here("ls_schedule_state", schedule));
    ls_state_forget(&schedule->listed);
    LS_TRY(list_all(schedule, &schedule->listed));
    *tensors = schedule->listed.items;
    *count = schedule->listed.count;
    return LS_OK;
}

/* Restores the state into a copy, which replaces the schedule only on success. */
static ls_status restore(ls_schedule *schedule, const ls_named *given, int count) {
    const char *const call = "ls_schedule_set_state";
    ls_state_list list = {0};
    LS_TRY(allocate_rates(schedule));
    ls_status status = list_all(schedule, &list);
    if (status == LS_OK) {
        status = ls_state_restore(call, schedule->type->name, &list, given, count);
    }
    ls_state_forget(&list);
    LS_TRY(status);
    if (schedule->end > 0 && own_step(schedule) > schedule->end) {
        return ls_fail(LS_ERR_FORMAT, "%s: last_epoch is %lld, but this %s has %lld steps", call,
                       (long long)schedule->step, schedule->type->name, (long long)(schedule->warm_up + schedule->end));
    }
    return apply(schedule);
}

ls_status ls_schedule_set_state(ls_schedule *schedule, const ls_named *tensors, int count) {
    LS_TRY(ls_state_check_given("ls_schedule_set_state", schedule, tensors, count));
    LS_TRY(ls_schedule_check_here("ls_schedule_set_state", schedule));
    ls_schedule filled = *schedule;
    const ls_status status = restore(&filled, tensors, count);
    if (status != LS_OK) {
        ls_free(filled.bases != schedule->bases ? filled.bases : NULL);
        return status;
    }
    ls_state_forget(&schedule->listed);
    filled.listed = schedule->listed;
    ls_free(schedule->bases);
    *schedule = filled;
    return LS_OK;
}
