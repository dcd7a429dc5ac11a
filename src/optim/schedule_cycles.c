/* Schedules that also set the momentum: one cycle or many. */
#include <math.h>

#include "optim/schedule.h"

/* Replaces zero momenta with the defaults, and checks the momenta of a cycle. */
static ls_status check_momenta(const char *call, double *least, double usual_least, double *most, double usual_most) {
    const double above_zero = nextafter(0, 1), below_one = nextafter(1, 0);
    *least = ls_option(*least, usual_least);
    *most = ls_option(*most, usual_most);
    LS_TRY(ls_option_within(call, "min_momentum", *least, above_zero, below_one));
    return ls_option_within(call, "max_momentum", *most, above_zero, below_one);
}

/* ---- one cycle --------------------------------------------------------------------------------------------------- */

enum { POINTS = 4 };

/* Values at the start, at the end of the first phase, at the end of the second phase (if there are three), and at
 * the end. */
typedef struct curve {
    double values[POINTS];
} curve;

/*
 * Returns the value of the curve at a step. As in PyTorch, phases may end between steps, and may be shorter than a
 * step.
 */
static double curve_at(curve c, const ls_one_cycle_options *options, int64_t step) {
    const double steps = (double)options->steps, rising = options->rising * steps;
    double ends[POINTS] = {0, rising - 1, 2 * rising - 2, steps - 1};
    int last = POINTS - 1;
    if (!options->three_phases) {
        last--;
        ends[last] = ends[last + 1];
        c.values[last] = c.values[last + 1];
    }
    int to = 1;
    while (to < last && (double)step > ends[to]) {
        to++;
    }
    const double length = ends[to] - ends[to - 1];
    const double part = length > 0 ? fmin(((double)step - ends[to - 1]) / length, 1) : 1;
    const double change = c.values[to] - c.values[to - 1];
    return options->linear ? c.values[to - 1] + change * part : c.values[to] - change / 2 * (1 + cos(M_PI * part));
}

static double one_cycle_rate(const ls_schedule *schedule, double base, int64_t step) {
    const ls_one_cycle_options *options = &schedule->options.one_cycle;
    const double most = ls_option(options->max_learning_rate, base);
    const double first = most / options->initial_divisor;
    return curve_at((curve){{first, most, first, first / options->final_divisor}}, options, step);
}

static double one_cycle_momentum(const ls_schedule *schedule, int64_t step) {
    const ls_one_cycle_options *options = &schedule->options.one_cycle;
    const double least = options->min_momentum, most = options->max_momentum;
    return curve_at((curve){{most, least, most, most}}, options, step);
}

static ls_status check_one_cycle(const char *call, ls_one_cycle_options *options) {
    options->rising = ls_option(options->rising, 0.3);
    options->initial_divisor = ls_option(options->initial_divisor, 25);
    options->final_divisor = ls_option(options->final_divisor, 1e4);
    LS_TRY(ls_schedule_check_steps(call, "steps", options->steps, 1));
    LS_TRY(ls_option_within(call, "max_learning_rate", options->max_learning_rate, 0, INFINITY));
    LS_TRY(ls_option_within(call, "rising", options->rising, 0, options->three_phases ? 0.5 : 1));
    LS_TRY(ls_option_within(call, "initial_divisor", options->initial_divisor, 1, INFINITY));
    LS_TRY(ls_option_within(call, "final_divisor", options->final_divisor, 1, INFINITY));
    return check_momenta(call, &options->min_momentum, 0.85, &options->max_momentum, 0.95);
}

static const ls_field one_cycle_fields[] = {LS_FIELD_IN(ls_schedule, options.one_cycle., steps),
                                            LS_FIELD_IN(ls_schedule, options.one_cycle., max_learning_rate),
                                            LS_FIELD_IN(ls_schedule, options.one_cycle., rising),
                                            LS_FIELD_IN(ls_schedule, options.one_cycle., initial_divisor),
                                            LS_FIELD_IN(ls_schedule, options.one_cycle., final_divisor),
                                            LS_FIELD_IN(ls_schedule, options.one_cycle., min_momentum),
                                            LS_FIELD_IN(ls_schedule, options.one_cycle., max_momentum),
                                            LS_FIELD_IN(ls_schedule, options.one_cycle., three_phases),
                                            LS_FIELD_IN(ls_schedule, options.one_cycle., linear),
                                            LS_FIELD_IN(ls_schedule, options.one_cycle., no_momentum),
                                            {.name = NULL}};

ls_schedule *ls_schedule_one_cycle(ls_optimizer *optimizer, const ls_one_cycle_options *options) {
    static const ls_schedule_type type = {.name = "ls_schedule_one_cycle",
                                          .fields = one_cycle_fields,
                                          .rate = one_cycle_rate,
                                          .momentum = one_cycle_momentum};
    ls_one_cycle_options given = options != NULL ? *options : (ls_one_cycle_options){0};
    if (check_one_cycle(type.name, &given) != LS_OK) {
        return NULL;
    }
    return ls_schedule_new(
        &(ls_schedule){
            .type = &type, .options.one_cycle = given, .cycles_momentum = !given.no_momentum, .end = given.steps},
        optimizer);
}

/* ---- cycles ------------------------------------------------------------------------------------------------------ */

/* Returns the height in the current cycle, from 0 to 1, times the current scale. */
static double height_at(const ls_cyclic_options *options, int64_t step) {
    const int64_t period = options->steps_up + options->steps_down;
    const int64_t cycle = step / period, at = step % period;
    const double height = at <= options->steps_up ? (double)at / (double)options->steps_up
                                                  : (double)(period - at) / (double)options->steps_down;
    switch (options->heights) {
    case LS_CYCLES_HALVED:
        return height * pow(2, -(double)cycle);
    case LS_CYCLES_SHRINKING:
        return height * pow(options->gamma, (double)step);
    default:
        return height;
    }
}

static double cyclic_rate(const ls_schedule *schedule, double base, int64_t step) {
    const ls_cyclic_options *options = &schedule->options.cyclic;
    const double least = ls_option(options->min_learning_rate, base);
    return least + (options->max_learning_rate - least) * height_at(options, step);
}

static double cyclic_momentum(const ls_schedule *schedule, int64_t step) {
    const ls_cyclic_options *options = &schedule->options.cyclic;
    return options->max_momentum - (options->max_momentum - options->min_momentum) * height_at(options, step);
}

static ls_status check_cyclic(const char *call, ls_cyclic_options *options) {
    options->steps_up = options->steps_up != 0 ? options->steps_up : 2000;
    options->steps_down = options->steps_down != 0 ? options->steps_down : options->steps_up;
    options->gamma = ls_option(options->gamma, 1);
    options->max_learning_rate = ls_option(options->max_learning_rate, 0);
    if (options->heights > LS_CYCLES_SHRINKING) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: %d is not an ls_cycle_heights", call, (int)options->heights);
    }
    if (!(options->max_learning_rate > 0 && options->max_learning_rate < INFINITY)) {
        return ls_fail(LS_ERR_ARGUMENT, "%s: max_learning_rate is %g, but must be set and above 0", call,
                       options->max_learning_rate);
    }
    LS_TRY(ls_option_within(call, "min_learning_rate", options->min_learning_rate, 0, INFINITY));
    LS_TRY(ls_schedule_check_steps(call, "steps_up", options->steps_up, 1));
    LS_TRY(ls_schedule_check_steps(call, "steps_down", options->steps_down, 1));
    LS_TRY(ls_option_within(call, "gamma", options->gamma, 0, 1));
    return check_momenta(call, &options->min_momentum, 0.8, &options->max_momentum, 0.9);
}

static const ls_field cyclic_fields[] = {LS_FIELD_IN(ls_schedule, options.cyclic., min_learning_rate),
                                         LS_FIELD_IN(ls_schedule, options.cyclic., max_learning_rate),
                                         LS_FIELD_IN(ls_schedule, options.cyclic., steps_up),
                                         LS_FIELD_IN(ls_schedule, options.cyclic., steps_down),
                                         LS_FIELD_IN(ls_schedule, options.cyclic., heights),
                                         LS_FIELD_IN(ls_schedule, options.cyclic., gamma),
                                         LS_FIELD_IN(ls_schedule, options.cyclic., min_momentum),
                                         LS_FIELD_IN(ls_schedule, options.cyclic., max_momentum),
                                         LS_FIELD_IN(ls_schedule, options.cyclic., no_momentum),
                                         {.name = NULL}};

ls_schedule *ls_schedule_cyclic(ls_optimizer *optimizer, const ls_cyclic_options *options) {
    static const ls_schedule_type type = {
        .name = "ls_schedule_cyclic", .fields = cyclic_fields, .rate = cyclic_rate, .momentum = cyclic_momentum};
    ls_cyclic_options given = options != NULL ? *options : (ls_cyclic_options){0};
    if (check_cyclic(type.name, &given) != LS_OK) {
        return NULL;
    }
    return ls_schedule_new(
        &(ls_schedule){.type = &type, .options.cyclic = given, .cycles_momentum = !given.no_momentum}, optimizer);
}
