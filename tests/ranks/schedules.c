/*
 * Schedules on several ranks: with the mean loss as the metric, all ranks have the same learning rates. Interrupted
 * training resumes from the states of the optimizer and the schedule, with results that are bit-identical to an
 * uninterrupted run.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include "base/memory.h"

#include <lockstep/lockstep.h>

enum { KINDS = 3, BEFORE = 7, AFTER = 9, MOST = 32 };

static ls_schedule *make(int kind, ls_optimizer *optimizer) {
    switch (kind) {
    case 0:
        return ls_schedule_one_cycle(optimizer, &(ls_one_cycle_options){.steps = BEFORE + AFTER});
    case 1:
        return ls_schedule_warm_up(ls_schedule_cosine(optimizer, 12, 0), 4, 0.1);
    default:
        return ls_schedule_plateau(optimizer, &(ls_plateau_options){.no_patience = true, .threshold = 0.1});
    }
}

typedef struct training {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_schedule *schedule;
} training;

static ls_status begin(int kind, training *t) {
    ls_seed(3);
    t->model = ls_nn_linear(5, 3);
    t->optimizer = ls_sgd(t->model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9});
    t->schedule = make(kind, t->optimizer);
    return t->schedule != NULL ? LS_OK : ls_error_status();
}

static void end(training *t) {
    ls_schedule_free(t->schedule);
    ls_optimizer_free(t->optimizer);
    ls_module_free(t->model);
}

/* Runs a step on data that differ between ranks. */
static ls_status step(const training *t, ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    ls_optimizer_zero_grad(t->optimizer);
    ls_seed(100 + (uint64_t)ls_comm_rank(world));
    ls_tensor *x = ls_randn(LS_SHAPE(6, 5), LS_F32), *y = ls_randn(LS_SHAPE(6, 3), LS_F32);
    ls_tensor *loss = ls_mean(ls_square(ls_sub(ls_forward(t->model, x), y)));
    LS_TRY(ls_backward(loss));
    double mean = ls_item(loss);
    LS_TRY(ls_sync_gradients(t->model, world));
    LS_TRY(ls_comm_allreduce(world, &mean, &mean, 1, LS_F64, LS_AVG, NULL));
    LS_TRY(ls_optimizer_step(t->optimizer));
    LS_TRY(ls_schedule_advance_by(t->schedule, mean));
    return ls_scope_end(scope);
}

/* Checks that all ranks have the same learning rate. */
static ls_status check_rate(const training *t, ls_comm *world, double *rate) {
    *rate = ls_optimizer_learning_rate(t->optimizer, 0);
    double least = 0, most = 0;
    LS_TRY(ls_comm_allreduce(world, rate, &least, 1, LS_F64, LS_MIN, NULL));
    LS_TRY(ls_comm_allreduce(world, rate, &most, 1, LS_F64, LS_MAX, NULL));
    LS_CHECK(least == *rate && most == *rate);
    return LS_OK;
}

/* Copies borrowed tensors, as if they were read from a file. */
static ls_status copy_state(const ls_named *tensors, int count, ls_named *copies) {
    LS_CHECK(count <= MOST);
    for (int i = 0; i < count; i++) {
        copies[i] = (ls_named){ls_duplicate_string(tensors[i].name), ls_clone(tensors[i].tensor)};
        LS_CHECK(copies[i].name != NULL && copies[i].tensor != NULL);
    }
    return LS_OK;
}

static void free_names(const ls_named *copies, int count) {
    for (int i = 0; i < count; i++) {
        ls_free((char *)copies[i].name);
    }
}

/* The contents of a checkpoint. */
typedef struct checkpoint {
    ls_named optimizer[MOST], schedule[MOST];
    int optimizer_count, schedule_count;
} checkpoint;

static ls_status save(const training *t, checkpoint *c) {
    const ls_named *tensors;
    LS_TRY(ls_optimizer_state(t->optimizer, &tensors, &c->optimizer_count));
    LS_TRY(copy_state(tensors, c->optimizer_count, c->optimizer));
    LS_TRY(ls_schedule_state(t->schedule, &tensors, &c->schedule_count));
    return copy_state(tensors, c->schedule_count, c->schedule);
}

static ls_status resume(const training *t, const checkpoint *c, const training *from) {
    const bool before = ls_no_grad(true);
    for (int i = 0; i < ls_module_parameter_count(t->model); i++) {
        LS_TRY(ls_copy_into(ls_module_parameter(t->model, i), ls_module_parameter(from->model, i)));
    }
    (void)ls_no_grad(before);
    LS_TRY(ls_optimizer_set_state(t->optimizer, c->optimizer, c->optimizer_count));
    return ls_schedule_set_state(t->schedule, c->schedule, c->schedule_count);
}

static ls_status compare(int kind, ls_comm *world) {
    ls_scope *scope = ls_scope_begin();
    training whole, parts;
    checkpoint saved;
    double rate, last;
    LS_TRY(begin(kind, &whole));
    LS_TRY(begin(kind, &parts));
    LS_TRY(check_rate(&whole, world, &rate));
    for (int i = 0; i < BEFORE; i++) {
        LS_TRY(step(&whole, world));
    }
    LS_TRY(save(&whole, &saved));
    LS_TRY(resume(&parts, &saved, &whole));
    for (int i = 0; i < AFTER; i++) {
        LS_TRY(step(&whole, world));
        LS_TRY(step(&parts, world));
        LS_TRY(check_rate(&whole, world, &last));
        LS_CHECK(ls_optimizer_learning_rate(parts.optimizer, 0) == last);
    }
    LS_CHECK(last != rate);
    LS_CHECK(ls_module_hash(parts.model) == ls_module_hash(whole.model));
    free_names(saved.optimizer, saved.optimizer_count);
    free_names(saved.schedule, saved.schedule_count);
    end(&whole);
    end(&parts);
    return ls_scope_end(scope);
}

ls_status rank_test(ls_comm *world) {
    for (int kind = 0; kind < KINDS; kind++) {
        LS_TRY(compare(kind, world));
    }
    return LS_OK;
}
