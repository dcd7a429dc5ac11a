/*
 * Replays of captured steps (ls_step_capture) with gradients that are averaged during the backward pass. A replay
 * launches buckets before the last gradients are computed. If any call of a replay fails on a rank, before or between
 * the buckets, the step fails on all ranks, and the next step succeeds.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include <math.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

#include "autograd/captured_record.h"
#include "base/hash.h"
#include "parallel/data_parallel.h"
#include "tests/support/ranks.h"

enum { INPUTS = 5, WIDTH = 24, SAMPLES = 4, BUCKETS = 6, CALLS = 400 };

/* ---- training ---------------------------------------------------------------------------------------------------- */

typedef struct training {
    ls_comm *comm;
    ls_module *model;
    ls_optimizer *optimizer;
    ls_tensor *x;
    ls_step *step; /* NULL before the capture */
} training;

/* One bucket per parameter. */
static ls_status begin(training *self, ls_comm *world, bool drops) {
    const ls_data_parallel_options options = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 1};
    ls_seed(7);
    *self = (training){.comm = world};
    self->model = ls_data_parallel(ls_sequential(ls_nn_linear(INPUTS, WIDTH), drops ? ls_nn_dropout(0.3) : ls_nn_tanh(),
                                                 ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh(), ls_nn_linear(WIDTH, 2)),
                                   world, &options);
    self->x = ls_zeros(LS_SHAPE(SAMPLES, INPUTS), LS_F32);
    self->optimizer = ls_sgd(self->model, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9});
    return self->optimizer != NULL ? LS_OK : ls_error_status();
}

static void end(training *self) {
    ls_step_free(self->step);
    ls_optimizer_free(self->optimizer);
    ls_module_free(self->model);
    ls_release(self->x);
}

static ls_tensor *step_of(void *user) {
    const training *self = user;
    ls_optimizer_zero_grad(self->optimizer);
    ls_tensor *loss = ls_mean(ls_square(ls_forward(self->model, self->x)));
    return ls_backward(loss) == LS_OK && ls_optimizer_step(self->optimizer) == LS_OK ? loss : NULL;
}

static ls_status change_input(const training *self, int step) {
    float *x = ls_data(self->x);
    LS_CHECK(x != NULL);
    for (int i = 0; i < SAMPLES * INPUTS; i++) {
        x[i] = (float)ls_random_normal(3, (uint64_t)(step * 8 + ls_comm_rank(self->comm)), (uint64_t)i);
    }
    ls_mark_changed(self->x);
    return LS_OK;
}

static ls_status run_eagerly(training *self) {
    ls_scope *scope = ls_scope_begin();
    const ls_status status = step_of(self) != NULL ? LS_OK : ls_error_status();
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* ---- the calls of a replay --------------------------------------------------------------------------------------- */

/* The calls of a record, which run_watched makes. */
typedef struct watch {
    const ls_data_parallel_state *state;
    const float *gradient; /* of the first parameter, which the pass computes last; or NULL */
    ls_captured_call calls[CALLS];
    int next;
    int failing; /* index of the call that fails; -1 for none */
    bool early;  /* 4 buckets were launched before the gradient was computed */
} watch;

static _Thread_local watch watched;

static ls_status run_watched(void *arguments) {
    const int i = watched.next++;
    const ls_overlap *overlap = &watched.state->overlap;
    watched.early |= watched.gradient != NULL && overlap->begun && overlap->launched == 4 && isnan(watched.gradient[0]);
    return i == watched.failing ? ls_error_set(LS_ERR_UNSUPPORTED, "the call refuses")
                                : watched.calls[i].run(arguments);
}

/* Captures the step. */
static ls_status capture(training *self) {
    self->step = ls_step_capture(step_of, self, NULL);
    LS_CHECK(self->step != NULL);
    ls_capture *record = &self->step->capture;
    LS_CHECK(record->call_count <= CALLS);
    watched = (watch){.state = ls_module_state(self->model), .failing = -1};
    memcpy(watched.calls, record->calls, (size_t)record->call_count * sizeof *record->calls);
    for (int i = 0; i < record->call_count; i++) {
        record->calls[i].run = run_watched;
    }
    return LS_OK;
}

/* Replays the step. Call `failing` fails. `parts` calls the two parts of a replay, as trials do. */
static ls_status replay(const training *self, int failing, bool parts) {
    watched.next = 0;
    watched.failing = failing;
    watched.early = false;
    return !parts                               ? ls_step_replay(self->step)
           : ls_step_check(self->step) != LS_OK ? ls_error_status()
                                                : ls_step_run(self->step);
}

/* Returns the exchange of gradients. */
static const captured_exchange *averaging_of(const training *self) {
    return &self->step->exchanges[self->step->exchange_count - 1];
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* The captured step is the first step, which averages at its end, or a later step. */
static ls_status launches_early(ls_comm *world, int captured_at) {
    training self;
    LS_TRY(begin(&self, world, false));
    for (int i = 0; i < captured_at + 4; i++) {
        LS_TRY(change_input(&self, i));
        if (i <= captured_at) {
            LS_TRY(i < captured_at ? run_eagerly(&self) : capture(&self));
            continue;
        }
        float *gradient = ls_data(ls_grad(ls_module_parameter(self.model, 0)));
        LS_CHECK(gradient != NULL);
        gradient[0] = NAN;
        watched.gradient = gradient;
        LS_TRY(replay(&self, -1, false));
        LS_CHECK(!isnan(gradient[0]));
        LS_CHECK(watched.early == (ls_comm_size(world) > 1));
        LS_CHECK(ls_comm_size(world) == 1 || watched.state->overlap.launched == BUCKETS);
    }
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* A step that fails on the last rank. */
static ls_status fail_in_step(training *self, int call, bool parts) {
    const int last = ls_comm_size(self->comm) - 1;
    const bool replays = self->step != NULL;
    ls_scope *scope = ls_scope_begin();
    const ls_status status = !replays                           ? run_eagerly(self)
                             : ls_comm_rank(self->comm) == last ? replay(self, call, parts)
                                                                : replay(self, -1, false);
    LS_CHECK(status == (ls_comm_rank(self->comm) == last ? LS_ERR_UNSUPPORTED : LS_ERR_MISMATCH));
    char words[40];
    snprintf(words, sizeof words, "rank %d failed: ", last);
    LS_CHECK(ls_comm_rank(self->comm) == last || strstr(ls_error_message(), words) != NULL);
    LS_EXPECT_MESSAGE("the call refuses");
    for (int i = 0; i < ls_module_parameter_count(self->model); i++) {
        LS_CHECK(ls_grad(ls_module_parameter(self->model, i)) == NULL);
    }
    const ls_status ended = ls_scope_end(scope);
    LS_CHECK(ended == LS_OK || ended == status);
    return LS_OK;
}

/* After each failure, the next step succeeds. The failures do not change the parameters. */
static ls_status fails_anywhere(ls_comm *world, bool drops, bool all_replay) {
    training self;
    const bool last = ls_comm_rank(world) == ls_comm_size(world) - 1;
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(begin(&self, world, drops));
    LS_TRY(change_input(&self, 0));
    LS_TRY(last || all_replay ? capture(&self) : run_eagerly(&self));
    int32_t range[] = {0, 0, 0};
    if (last) {
        range[0] = averaging_of(&self)->begin;
        range[1] = averaging_of(&self)->call;
        range[2] = self.step->exchanges[0].call; /* with dropout, the exchange of shares */
        LS_CHECK(range[0] > 0 && range[1] - range[0] > BUCKETS);
    }
    LS_TRY(ls_comm_broadcast(world, range, 3, LS_I32, ls_comm_size(world) - 1, NULL));
    for (int call = 0; call < range[1]; call++) {
        LS_TRY(change_input(&self, call + 1));
        if (call == range[2]) {
            continue;
        }
        LS_TRY(fail_in_step(&self, call, call >= range[0] && call % 2 == 0));
        const ls_status status = self.step != NULL ? replay(&self, -1, false) : run_eagerly(&self);
        if (status != LS_OK) {
            return ls_fail(status, "after a failure of call %d of %d to %d: %s", call, range[0], range[1],
                           ls_error_message());
        }
    }
    LS_TRY(ranks_have_same_module(world, self.model));
    LS_TRY(ls_data_parallel_check(self.model));
    end(&self);
    return LS_OK;
}

/* A step after buckets were left in flight: rank `other` replays it, fails before its pass, has no samples, or has no
 * loss. */
static ls_status step_after_failure(const training *self, int kind, int other) {
    const bool differs = ls_comm_rank(self->comm) == other;
    if (kind == 3 && differs) {
        ls_scope *scope = ls_scope_begin();
        LS_CHECK(ls_forward(self->model, self->x) != NULL);
        const ls_status status = ls_backward(NULL);
        return ls_scope_end(scope) == status ? status : LS_ERR_INTERNAL;
    }
    return kind == 2 && differs ? ls_data_parallel_skip(self->model)
                                : replay(self, kind == 1 && differs ? averaging_of(self)->begin - 1 : -1, false);
}

/* Rank 0 calls a barrier instead of the step, and a call of the last rank's replay fails. The buckets of the
 * other ranks stay in flight. The next step fails on all ranks, and the steps after it succeed. */
static ls_status leaves_buckets(ls_comm *world) {
    training self;
    const int rank = ls_comm_rank(world), size = ls_comm_size(world);
    LS_TRY(begin(&self, world, false));
    LS_TRY(change_input(&self, 0));
    LS_TRY(capture(&self));
    const captured_exchange *averaging = averaging_of(&self);
    for (int call = averaging->begin + 1; call < averaging->call && size > 1; call++) {
        ls_scope *scope = ls_scope_begin();
        LS_TRY(change_input(&self, call));
        LS_CHECK((rank == 0 ? ls_comm_barrier(world, NULL) : replay(&self, rank == size - 1 ? call : -1, false)) !=
                 LS_OK);
        const int other = call / 4 % 2 == 0 ? 0 : size - 1;
        const int kind = call % 4;
        const bool own = rank == other && kind % 2 == 1; /* this rank keeps its own error */
        LS_CHECK(step_after_failure(&self, kind, other) == (!own        ? LS_ERR_MISMATCH
                                                            : kind == 1 ? LS_ERR_UNSUPPORTED
                                                                        : LS_ERR_ARGUMENT));
        LS_EXPECT_MESSAGE(!own        ? "an earlier backward pass failed on some ranks"
                          : kind == 1 ? "the call refuses"
                                      : "the loss is NULL");
        (void)!ls_scope_end(scope);
        LS_TRY(replay(&self, -1, false));
        LS_TRY(ls_data_parallel_check(self.model));
    }
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

/* A trial, which replays in two parts, reports failures before the pass itself: its replay makes no call for them. */
static ls_status fails_before_the_pass_of_a_trial(ls_comm *world) {
    training self;
    LS_TRY(begin(&self, world, false));
    LS_TRY(change_input(&self, 0));
    LS_TRY(capture(&self));
    if (ls_comm_rank(world) == ls_comm_size(world) - 1) {
        ls_scope *scope = ls_scope_begin();
        LS_CHECK(replay(&self, averaging_of(&self)->begin - 1, true) == LS_ERR_UNSUPPORTED);
        (void)!ls_scope_end(scope);
    }
    LS_TRY(ls_comm_barrier(world, NULL));
    end(&self);
    return LS_OK;
}

/* ---- runs of element-wise operations ----------------------------------------------------------------------------- */

enum { ROWS = 256, LAYERS = 3 };

/* An activation of several operations on 65,536 elements, which a replay makes piece by piece. */
static ls_tensor *activate(ls_tensor *x) {
    ls_tensor *inner = ls_mul(x, ls_add(ls_mul(ls_square(x), 0.044715), 1));
    return ls_mul(ls_mul(x, ls_add(ls_tanh(ls_mul(inner, 0.8)), 1)), 0.5);
}

static ls_tensor *wide_forward(ls_module *self, ls_tensor *x) {
    for (int i = 0; i < LAYERS; i++) {
        x = activate(ls_forward(ls_module_child(self, i), x));
    }
    return x;
}

static ls_status begin_wide(training *self, ls_comm *world) {
    static const ls_module_type type = {.name = "Wide", .forward = wide_forward};
    ls_seed(3);
    *self = (training){.comm = world, .x = ls_zeros(LS_SHAPE(ROWS, ROWS), LS_F32)};
    ls_module *model = ls_module_new(&type);
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "layer%d", i);
        LS_CHECK(ls_module_add_child(model, name, ls_nn_linear(ROWS, ROWS)) != NULL);
    }
    const ls_data_parallel_options options = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 4096};
    self->model = ls_data_parallel(ls_module_finish(model), world, &options);
    self->optimizer = ls_sgd(self->model, &(ls_sgd_options){.learning_rate = 0.1, .momentum = 0.9});
    return self->optimizer != NULL ? LS_OK : ls_error_status();
}

static ls_status train_wide(ls_comm *world, bool replays, uint64_t *hash) {
    training self;
    LS_TRY(begin_wide(&self, world));
    for (int i = 0; i < 4; i++) {
        const ls_tensor *x = self.x;
        float *numbers = ls_data(self.x);
        for (int64_t k = 0; k < ls_numel(x); k++) {
            numbers[k] = (float)ls_random_normal(3, (uint64_t)(i * 8 + ls_comm_rank(world)), (uint64_t)k);
        }
        ls_mark_changed(self.x);
        if (!replays) {
            LS_TRY(run_eagerly(&self));
        } else if (i == 0) {
            self.step = ls_step_capture(step_of, &self, NULL);
            LS_CHECK(self.step != NULL);
        } else {
            LS_TRY(ls_step_replay(self.step));
        }
    }
    *hash = LS_HASH_START;
    for (int i = 0; i < ls_module_parameter_count(self.model); i++) {
        const ls_tensor *parameter = ls_module_parameter(self.model, i);
        *hash = ls_hash(*hash, ls_data_const(parameter), (size_t)ls_numel(parameter) * sizeof(float));
    }
    end(&self);
    return LS_OK;
}

/* With polls between the operations of a run, the bits equal the bits of the function. */
static ls_status runs_with_polls(ls_comm *world) {
    uint64_t eager = 0, replayed = 0;
    LS_TRY(train_wide(world, false, &eager));
    LS_TRY(train_wide(world, true, &replayed));
    LS_CHECK(eager == replayed);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(launches_early(world, 0));
    LS_TRY(launches_early(world, 2));
    LS_TRY(fails_anywhere(world, false, false));
    LS_TRY(fails_anywhere(world, false, true));
    LS_TRY(fails_anywhere(world, true, true));
    LS_TRY(leaves_buckets(world));
    LS_TRY(fails_before_the_pass_of_a_trial(world));
    LS_TRY(runs_with_polls(world));
    return ls_comm_barrier(world, NULL);
}
