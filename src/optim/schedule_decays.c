/* Schedules whose rate is the base rate times a factor that depends on the step, or lies between the base rate and a
 * minimum. */
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "optim/schedule.h"

/* Checks `gamma`, and replaces 0 with the default. */
static ls_status check_gamma(const char *call, double *gamma) {
    *gamma = ls_option(*gamma, 0.1);
    return ls_option_within(call, "gamma", *gamma, 0, INFINITY);
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static const ls_field powers_fields[] = {
    LS_FIELD_IN(ls_schedule, options.powers., steps), LS_FIELD_IN(ls_schedule, options.powers., gamma), {.name = NULL}};
static const ls_field multi_step_fields[] = {LS_FIELD_IN(ls_schedule, options.multi_step., count),
                                             LS_FIELD_IN(ls_schedule, options.multi_step., milestones_hash),
                                             LS_FIELD_IN(ls_schedule, options.multi_step., gamma),
                                             {.name = NULL}};
static const ls_field cosine_fields[] = {LS_FIELD_IN(ls_schedule, options.cosine., steps),
                                         LS_FIELD_IN(ls_schedule, options.cosine., multiplier),
                                         LS_FIELD_IN(ls_schedule, options.cosine., minimum),
                                         {.name = NULL}};
static const ls_field linear_fields[] = {LS_FIELD_IN(ls_schedule, options.linear., steps),
                                         LS_FIELD_IN(ls_schedule, options.linear., start),
                                         LS_FIELD_IN(ls_schedule, options.linear., end),
                                         {.name = NULL}};
static const ls_field polynomial_fields[] = {LS_FIELD_IN(ls_schedule, options.polynomial., steps),
                                             LS_FIELD_IN(ls_schedule, options.polynomial., power),
                                             {.name = NULL}};

/* ---- powers of gamma --------------------------------------------------------------------------------------------- */

static double power_rate(const ls_schedule *schedule, double base, int64_t step) {
    return base * pow(schedule->options.powers.gamma, (double)(step / schedule->options.powers.steps));
}

ls_schedule *ls_schedule_step(ls_optimizer *optimizer, int64_t steps, double gamma) {
    static const ls_schedule_type type = {.name = "ls_schedule_step", .fields = powers_fields, .rate = power_rate};
    if (ls_schedule_check_steps(type.name, "steps", steps, 1) != LS_OK || check_gamma(type.name, &gamma) != LS_OK) {
        return NULL;
    }
    return ls_schedule_new(&(ls_schedule){.type = &type, .options.powers = {steps, gamma}}, optimizer);
}

ls_schedule *ls_schedule_exponential(ls_optimizer *optimizer, double gamma) {
    static const ls_schedule_type type = {
        .name = "ls_schedule_exponential", .fields = powers_fields, .rate = power_rate};
    if (ls_option_within(type.name, "gamma", gamma, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    return ls_schedule_new(&(ls_schedule){.type = &type, .options.powers = {1, gamma}}, optimizer);
}

static double multi_step_rate(const ls_schedule *schedule, double base, int64_t step) {
    int passed = 0;
    while (passed < schedule->options.multi_step.count && schedule->options.multi_step.milestones[passed] <= step) {
        passed++;
    }
    return base * pow(schedule->options.multi_step.gamma, passed);
}

static void multi_step_forget(ls_schedule *schedule) {
    ls_free(schedule->options.multi_step.milestones);
}

static ls_status check_milestones(const char *call, const int64_t *milestones, int count) {
    if (count < 0 || (milestones == NULL && count > 0)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: the milestones are NULL, or their number is negative", call);
    }
    for (int i = 0; i < count; i++) {
        const int64_t before = i > 0 ? milestones[i - 1] : 0;
        if (milestones[i] < before) {
            return ls_fail(LS_ERR_ARGUMENT,
                           "%s: milestone %d is %lld, but must be at least %lld, because milestones ascend", call, i,
                           (long long)milestones[i], (long long)before);
        }
    }
    return LS_OK;
}

ls_schedule *ls_schedule_multi_step(ls_optimizer *optimizer, const int64_t *milestones, int count, double gamma) {
    static const ls_schedule_type type = {.name = "ls_schedule_multi_step",
                                          .fields = multi_step_fields,
                                          .rate = multi_step_rate,
                                          .forget = multi_step_forget};
    if (check_milestones(type.name, milestones, count) != LS_OK || check_gamma(type.name, &gamma) != LS_OK) {
        return NULL;
    }
    const size_t bytes = (size_t)count * sizeof *milestones;
    int64_t *copied = ls_allocate(bytes);
    if (copied == NULL) {
        (void)ls_fail_memory(type.name, bytes);
        return NULL;
    }
    if (bytes > 0) {
        memcpy(copied, milestones, bytes);
    }
    const uint64_t hash = ls_hash(LS_HASH_START, copied, bytes);
    return ls_schedule_new(&(ls_schedule){.type = &type, .options.multi_step = {copied, hash, count, gamma}},
                           optimizer);
}

/* ---- cosine ------------------------------------------------------------------------------------------------------ */

static double half_wave(double base, double minimum, double part) {
    return minimum + (base - minimum) * (1 + cos(M_PI * part)) / 2;
}

static double cosine_rate(const ls_schedule *schedule, double base, int64_t step) {
    const int64_t steps = schedule->options.cosine.steps;
    /* The wave is periodic, and cos is more accurate for small arguments. */
    return half_wave(base, schedule->options.cosine.minimum, (double)(step % (2 * steps)) / (double)steps);
}

static double restarts_rate(const ls_schedule *schedule, double base, int64_t step) {
    double left = (double)step;
    double steps = (double)schedule->options.cosine.steps;
    if (schedule->options.cosine.multiplier == 1) {
        left = fmod(left, steps);
    }
    while (left >= steps) {
        left -= steps;
        steps *= (double)schedule->options.cosine.multiplier;
    }
    return half_wave(base, schedule->options.cosine.minimum, left / steps);
}

static ls_schedule *cosine_new(const ls_schedule_type *type, ls_optimizer *optimizer, int64_t steps, int64_t multiplier,
                               double minimum) {
    multiplier = multiplier != 0 ? multiplier : 1;
    if (ls_schedule_check_steps(type->name, "steps", steps, 1) != LS_OK ||
        ls_schedule_check_steps(type->name, "multiplier", multiplier, 1) != LS_OK ||
        ls_option_within(type->name, "minimum", minimum, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    return ls_schedule_new(&(ls_schedule){.type = type, .options.cosine = {steps, multiplier, minimum}}, optimizer);
}

ls_schedule *ls_schedule_cosine(ls_optimizer *optimizer, int64_t steps, double minimum) {
    static const ls_schedule_type type = {.name = "ls_schedule_cosine", .fields = cosine_fields, .rate = cosine_rate};
    return cosine_new(&type, optimizer, steps, 1, minimum);
}

ls_schedule *ls_schedule_cosine_warm_restarts(ls_optimizer *optimizer, int64_t steps, int64_t multiplier,
                                              double minimum) {
    static const ls_schedule_type type = {
        .name = "ls_schedule_cosine_warm_restarts", .fields = cosine_fields, .rate = restarts_rate};
    return cosine_new(&type, optimizer, steps, multiplier, minimum);
}

/* ---- to the end of a number of steps ----------------------------------------------------------------------------- */

static double linear_rate(const ls_schedule *schedule, double base, int64_t step) {
    const int64_t steps = schedule->options.linear.steps;
    const double start = schedule->options.linear.start;
    const double part = (double)(step < steps ? step : steps) / (double)steps;
    return base * (start + (schedule->options.linear.end - start) * part);
}

ls_schedule *ls_schedule_linear(ls_optimizer *optimizer, int64_t steps, double start, double end) {
    static const ls_schedule_type type = {.name = "ls_schedule_linear", .fields = linear_fields, .rate = linear_rate};
    start = ls_option(start, 1.0 / 3);
    end = ls_option(end, 1);
    if (ls_schedule_check_steps(type.name, "steps", steps, 1) != LS_OK ||
        ls_option_within(type.name, "start", start, 0, INFINITY) != LS_OK ||
        ls_option_within(type.name, "end", end, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    return ls_schedule_new(&(ls_schedule){.type = &type, .options.linear = {steps, start, end}}, optimizer);
}

static double polynomial_rate(const ls_schedule *schedule, double base, int64_t step) {
    const int64_t steps = schedule->options.polynomial.steps;
    const double part = (double)(step < steps ? step : steps) / (double)steps;
    return base * pow(1 - part, schedule->options.polynomial.power);
}

ls_schedule *ls_schedule_polynomial(ls_optimizer *optimizer, int64_t steps, double power) {
    static const ls_schedule_type type = {
        .name = "ls_schedule_polynomial", .fields = polynomial_fields, .rate = polynomial_rate};
    power = ls_option(power, 1);
    if (ls_schedule_check_steps(type.name, "steps", steps, 1) != LS_OK ||
        ls_option_within(type.name, "power", power, 0, INFINITY) != LS_OK) {
        return NULL;
    }
    return ls_schedule_new(&(ls_schedule){.type = &type, .options.polynomial = {steps, power}}, optimizer);
}

/* ---- user-defined functions -------------------------------------------------------------------------------------- */

static double function_rate(const ls_schedule *schedule, double base, int64_t step) {
    return base * schedule->options.function.factor(step, schedule->options.function.user);
}

ls_schedule *ls_schedule_function(ls_optimizer *optimizer, double (*factor)(int64_t step, void *user), void *user) {
    static const ls_schedule_type type = {.name = "ls_schedule_function", .rate = function_rate};
    if (factor == NULL) {
        return ls_fail_null(LS_ERR_ARGUMENT, "ls_schedule_function: the function is NULL");
    }
    return ls_schedule_new(&(ls_schedule){.type = &type, .options.function = {factor, user}}, optimizer);
}
