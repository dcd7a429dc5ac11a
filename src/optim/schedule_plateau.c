/* Rates that are reduced when a metric stops improving. */
#include <float.h>
#include <math.h>

#include "optim/schedule.h"

/* Applies the reductions one by one, until they have no further effect. */
static double plateau_rate(const ls_schedule *schedule, double base, int64_t step) {
    (void)step;
    const ls_plateau_options *options = &schedule->options.plateau;
    double rate = base;
    for (int64_t i = 0; i < schedule->plateau.reductions; i++) {
        const double reduced = fmax(rate * options->factor, options->minimum);
        if (!(rate - reduced > options->epsilon)) {
            break;
        }
        rate = reduced;
    }
    return rate;
}

static bool is_better(const ls_plateau_options *options, double metric, double best) {
    const double sign = options->larger_is_better ? 1 : -1;
    const double threshold = sign * options->threshold;
    const double limit = options->absolute ? best + threshold : best * (1 + threshold);
    return options->larger_is_better ? metric > limit : metric < limit;
}

static void plateau_look(const ls_plateau_options *options, ls_plateau *plateau, double metric) {
    plateau->bad++;
    if (is_better(options, metric, plateau->best)) {
        plateau->best = fmax(-DBL_MAX, fmin(metric, DBL_MAX)); /* finite, for the state */
        plateau->bad = 0;
    }
    if (plateau->cooldown > 0) {
        plateau->cooldown--;
        plateau->bad = 0;
    }
    if (plateau->bad > options->patience) {
        plateau->reductions++;
        plateau->cooldown = options->cooldown;
        plateau->bad = 0;
    }
}

static ls_status check_plateau(const char *call, ls_plateau_options *options) {
    options->factor = ls_option(options->factor, 0.1);
    options->threshold = ls_option(options->threshold, 1e-4);
    options->epsilon = ls_option(options->epsilon, 1e-8);
    options->minimum = ls_option(options->minimum, 0);
    options->patience = options->no_patience ? 0 : options->patience != 0 ? options->patience : 10;
    LS_TRY(ls_option_within(call, "factor", options->factor, 0, nextafter(1, 0)));
    LS_TRY(ls_option_within(call, "threshold", options->threshold, 0, DBL_MAX));
    LS_TRY(ls_option_within(call, "minimum", options->minimum, 0, DBL_MAX));
    LS_TRY(ls_option_within(call, "epsilon", options->epsilon, 0, INFINITY));
    LS_TRY(ls_schedule_check_steps(call, "patience", options->patience, 0));
    return ls_schedule_check_steps(call, "cooldown", options->cooldown, 0);
}

static const ls_field fields[] = {LS_FIELD_IN(ls_schedule, options.plateau., factor),
                                  LS_FIELD_IN(ls_schedule, options.plateau., patience),
                                  LS_FIELD_IN(ls_schedule, options.plateau., threshold),
                                  LS_FIELD_IN(ls_schedule, options.plateau., cooldown),
                                  LS_FIELD_IN(ls_schedule, options.plateau., minimum),
                                  LS_FIELD_IN(ls_schedule, options.plateau., epsilon),
                                  LS_FIELD_IN(ls_schedule, options.plateau., larger_is_better),
                                  LS_FIELD_IN(ls_schedule, options.plateau., absolute),
                                  {.name = NULL}};

ls_schedule *ls_schedule_plateau(ls_optimizer *optimizer, const ls_plateau_options *options) {
    static const ls_schedule_type type = {
        .name = "ls_schedule_plateau", .fields = fields, .rate = plateau_rate, .look = plateau_look};
    ls_plateau_options given = options != NULL ? *options : (ls_plateau_options){0};
    if (check_plateau(type.name, &given) != LS_OK) {
        return NULL;
    }
    return ls_schedule_new(&(ls_schedule){.type = &type,
                                          .options.plateau = given,
                                          .plateau.best = given.larger_is_better ? -DBL_MAX : DBL_MAX},
                           optimizer);
}
