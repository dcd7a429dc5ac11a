/*
 * The schedules of tests/fixtures/make_schedules.py: every rate and momentum equals PyTorch's, and is bit-identical if
 * the schedule is interrupted and resumed from its state.
 *
 * devices: cpu
 */
#include "tests/support/unit.h"

#include <math.h>

#include <lockstep/optim.h>

#include "tests/support/operations.h"

enum { LAST = 60, BROKEN_OFF = 23 };

static const double own_rate = 0.1;

FIXTURES(fixtures, "schedules.txt")

static ls_module *model;

static int load(void **state) {
    model = ls_nn_linear(1, 1);
    return model != NULL ? fixtures_begin(state) : 1;
}

static int unload(void **state) {
    ls_module_free(model);
    return fixtures_end(state);
}

/* ---- the schedules ----------------------------------------------------------------------------------------------- */

static ls_schedule *make_step(ls_optimizer *o) {
    return ls_schedule_step(o, 7, 0);
}

static ls_schedule *make_multi_step(ls_optimizer *o) {
    return ls_schedule_multi_step(o, (const int64_t[]){0, 3, 20, 20, 41}, 5, 0.5);
}

static ls_schedule *make_exponential(ls_optimizer *o) {
    return ls_schedule_exponential(o, 0.93);
}

static ls_schedule *make_cosine(ls_optimizer *o) {
    return ls_schedule_cosine(o, 25, 0.02);
}

static ls_schedule *make_cosine_warm(ls_optimizer *o) {
    return ls_schedule_warm_up(ls_schedule_cosine(o, 50, 0), 10, 0.05);
}

static ls_schedule *make_step_warm(ls_optimizer *o) {
    return ls_schedule_warm_up(ls_schedule_step(o, 7, 0.3), 13, 0.2);
}

static ls_schedule *make_restarts(ls_optimizer *o) {
    return ls_schedule_cosine_warm_restarts(o, 17, 0, 0);
}

static ls_schedule *make_restarts_longer(ls_optimizer *o) {
    return ls_schedule_cosine_warm_restarts(o, 8, 2, 0.001);
}

static ls_schedule *make_linear(ls_optimizer *o) {
    return ls_schedule_linear(o, 40, 0, 0);
}

static ls_schedule *make_linear_down(ls_optimizer *o) {
    return ls_schedule_linear(o, 55, 0.9, LS_ZERO);
}

static ls_schedule *make_polynomial(ls_optimizer *o) {
    return ls_schedule_polynomial(o, 50, 2.5);
}

static ls_schedule *make_polynomial_1(ls_optimizer *o) {
    return ls_schedule_polynomial(o, 9, 0);
}

static double inverse_root(int64_t step, void *user) {
    return 1 / sqrt(*(double *)user + (double)step);
}

static ls_schedule *make_function(ls_optimizer *o) {
    static double one = 1;
    return ls_schedule_function(o, inverse_root, &one);
}

static ls_schedule *make_one_cycle(ls_optimizer *o) {
    return ls_schedule_one_cycle(o, &(ls_one_cycle_options){.steps = LAST + 1});
}

static ls_schedule *make_one_cycle_adam(ls_optimizer *o) {
    return ls_schedule_one_cycle(o, &(ls_one_cycle_options){.steps = LAST + 1,
                                                            .max_learning_rate = 0.3,
                                                            .rising = 0.17,
                                                            .initial_divisor = 10,
                                                            .final_divisor = 100,
                                                            .min_momentum = 0.7,
                                                            .max_momentum = 0.9});
}

static ls_schedule *make_one_cycle_linear(ls_optimizer *o) {
    return ls_schedule_one_cycle(o, &(ls_one_cycle_options){.steps = 65, .max_learning_rate = 0.3, .linear = true});
}

static ls_schedule *make_one_cycle_three(ls_optimizer *o) {
    return ls_schedule_one_cycle(o,
                                 &(ls_one_cycle_options){.steps = 65, .max_learning_rate = 0.3, .three_phases = true});
}

static ls_schedule *make_one_cycle_short(ls_optimizer *o) {
    return ls_schedule_one_cycle(o, &(ls_one_cycle_options){.steps = 64, .max_learning_rate = 0.3, .rising = 0.01});
}

static ls_schedule *make_cyclic(ls_optimizer *o) {
    return ls_schedule_cyclic(
        o, &(ls_cyclic_options){.min_learning_rate = 0.01, .max_learning_rate = 0.5, .steps_up = 11});
}

static ls_schedule *make_cyclic_halved(ls_optimizer *o) {
    return ls_schedule_cyclic(o, &(ls_cyclic_options){.max_learning_rate = 0.5,
                                                      .steps_up = 4,
                                                      .steps_down = 9,
                                                      .heights = LS_CYCLES_HALVED,
                                                      .min_momentum = 0.5,
                                                      .max_momentum = 0.99});
}

static ls_schedule *make_cyclic_shrinking(ls_optimizer *o) {
    return ls_schedule_cyclic(o, &(ls_cyclic_options){.min_learning_rate = 0.01,
                                                      .max_learning_rate = 0.5,
                                                      .steps_up = 9,
                                                      .steps_down = 4,
                                                      .heights = LS_CYCLES_SHRINKING,
                                                      .gamma = 0.97});
}

static ls_schedule *make_plateau(ls_optimizer *o) {
    return ls_schedule_plateau(o, NULL);
}

static ls_schedule *make_plateau_short(ls_optimizer *o) {
    return ls_schedule_plateau(o, &(ls_plateau_options){.factor = 0.5, .patience = 2, .cooldown = 3, .minimum = 0.002});
}

static ls_schedule *make_plateau_max(ls_optimizer *o) {
    return ls_schedule_plateau(
        o, &(ls_plateau_options){
               .larger_is_better = true, .factor = 0.7, .patience = 1, .threshold = 0.02, .epsilon = 0.01});
}

static ls_schedule *make_plateau_absolute(ls_optimizer *o) {
    return ls_schedule_plateau(
        o, &(ls_plateau_options){.factor = 0.7, .no_patience = true, .threshold = 0.03, .absolute = true});
}

static ls_schedule *make_plateau_max_absolute(ls_optimizer *o) {
    return ls_schedule_plateau(
        o, &(ls_plateau_options){
               .larger_is_better = true, .factor = 0.7, .patience = 4, .threshold = 0.03, .absolute = true});
}

/* Decreases, increases slightly in between, and stays constant. */
static double falling(int64_t step) {
    return 1 / (1 + (double)(step < 18 ? step : 18)) + 0.01 * sin((double)step);
}

static double rising(int64_t step) {
    return 2 - falling(step);
}

static double fallen(int64_t step) {
    return -falling(step);
}

static const struct row {
    const char *name; /* of the fixture */
    ls_schedule *(*make)(ls_optimizer *optimizer);
    enum { NO_MOMENTUM = 0, OF_SGD, OF_ADAM } momentum;
    double (*metric)(int64_t step);
} rows[] = {
    {"step", make_step, 0, NULL},
    {"multi_step", make_multi_step, 0, NULL},
    {"exponential", make_exponential, 0, NULL},
    {"cosine", make_cosine, 0, NULL},
    {"cosine_warm", make_cosine_warm, 0, NULL},
    {"step_warm", make_step_warm, 0, NULL},
    {"restarts", make_restarts, 0, NULL},
    {"restarts_longer", make_restarts_longer, 0, NULL},
    {"linear", make_linear, 0, NULL},
    {"linear_down", make_linear_down, 0, NULL},
    {"polynomial", make_polynomial, 0, NULL},
    {"polynomial_1", make_polynomial_1, 0, NULL},
    {"function", make_function, 0, NULL},
    {"one_cycle", make_one_cycle, OF_SGD, NULL},
    {"one_cycle_adam", make_one_cycle_adam, OF_ADAM, NULL},
    {"one_cycle_linear", make_one_cycle_linear, OF_SGD, NULL},
    {"one_cycle_three", make_one_cycle_three, OF_SGD, NULL},
    {"one_cycle_short", make_one_cycle_short, OF_SGD, NULL},
    {"cyclic", make_cyclic, OF_SGD, NULL},
    {"cyclic_halved", make_cyclic_halved, OF_SGD, NULL},
    {"cyclic_shrinking", make_cyclic_shrinking, OF_SGD, NULL},
    {"plateau", make_plateau, 0, falling},
    {"plateau_short", make_plateau_short, 0, falling},
    {"plateau_max", make_plateau_max, 0, rising},
    {"plateau_absolute", make_plateau_absolute, 0, falling},
    {"plateau_max_absolute", make_plateau_max_absolute, 0, fallen},
};

/* ---- running them ------------------------------------------------------------------------------------------------ */

typedef struct path {
    double rates[LAST + 1], momenta[LAST + 1];
} path;

static ls_optimizer *make_optimizer(const struct row *row) {
    return row->momentum == OF_ADAM ? ls_adam(model, &(ls_adam_options){.learning_rate = own_rate})
                                    : ls_sgd(model, &(ls_sgd_options){.learning_rate = own_rate, .momentum = 0.9});
}

static void run(const struct row *row, ls_optimizer *optimizer, ls_schedule *schedule, int first, int last, path *p) {
    for (int step = first; step <= last; step++) {
        p->rates[step] = ls_optimizer_learning_rate(optimizer, 0);
        p->momenta[step] = ls_optimizer_momentum(optimizer);
        if (step < LAST) {
            assert_int_equal(row->metric != NULL ? ls_schedule_advance_by(schedule, row->metric(step))
                                                 : ls_schedule_advance(schedule),
                             LS_OK);
        }
    }
}

static void compare(const char *name, const char *part, const double *are) {
    char full[64];
    (void)snprintf(full, sizeof full, "%s%s", name, part);
    const fixture *right = fixture_find(fixtures, full);
    assert_int_equal(right->count, LAST + 1);
    for (int step = 0; step <= LAST; step++) {
        if (!(fabs(are[step] - right->values[step]) <= 1e-12 * fabs(right->values[step]) + 1e-16)) {
            fail_msg("%s: at step %d it is %.17g, PyTorch's is %.17g", full, step, are[step], right->values[step]);
        }
    }
}

TEST(test_paths) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        path p;
        ls_optimizer *optimizer = make_optimizer(&rows[i]);
        ls_schedule *schedule = rows[i].make(optimizer);
        run(&rows[i], optimizer, schedule, 0, LAST, &p);
        compare(rows[i].name, "", p.rates);
        if (rows[i].momentum != NO_MOMENTUM) {
            compare(rows[i].name, ".momentum", p.momenta);
        }
        ls_schedule_free(schedule);
        ls_optimizer_free(optimizer);
    }
}

TEST(test_broken_off) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        path whole, parts;
        ls_optimizer *optimizer = make_optimizer(&rows[i]), *other = make_optimizer(&rows[i]);
        ls_schedule *schedule = rows[i].make(optimizer);
        const ls_named *tensors = NULL;
        int count = 0;
        run(&rows[i], optimizer, schedule, 0, BROKEN_OFF - 1, &whole);
        parts = whole;
        assert_int_equal(ls_optimizer_set_learning_rate(other, -1, 0.7),
                         LS_OK); /* the initial rates of this optimizer do not matter */
        ls_schedule *next = rows[i].make(other);
        assert_int_equal(ls_schedule_state(schedule, &tensors, &count), LS_OK);
        assert_int_equal(ls_schedule_set_state(next, tensors, count), LS_OK);
        run(&rows[i], optimizer, schedule, BROKEN_OFF, LAST, &whole);
        run(&rows[i], other, next, BROKEN_OFF, LAST, &parts);
        if (memcmp(&whole, &parts, sizeof whole) != 0) {
            fail_msg("%s does not go on as it would have", rows[i].name);
        }
        ls_schedule_free(schedule);
        ls_schedule_free(next);
        ls_optimizer_free(optimizer);
        ls_optimizer_free(other);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_broken_off),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
