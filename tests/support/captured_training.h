/*
 * Trains data-parallel models on several ranks with captured steps (ls_step_capture). `compare` expects the same
 * parameters and errors as without a capture, even if only some ranks replay.
 */
#ifndef LS_TESTS_SUPPORT_CAPTURED_TRAINING_H
#define LS_TESTS_SUPPORT_CAPTURED_TRAINING_H

#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

#include "comm/abort.h"
#include "tests/support/ranks.h"

enum { INPUTS = 5, WIDTH = 16, CLASSES = 3, STEPS = 8 };

/* Which ranks replay. */
typedef enum replaying { NONE, ALL, EVEN, ODD } replaying;

typedef struct run_plan {
    ls_data_parallel_options parallel;
    replaying replaying;
    bool falls_back;  /* the step cannot be captured */
    int branch_at;    /* the step in which the last rank uses the other branch of the model; 0 for none */
    int smaller_at;   /* the step in which rank 0 has fewer samples */
    int spoiled_at;   /* the step in which the last rank has a target that does not exist */
    int revoked_at;   /* the step before which the last rank revokes the communicator */
    int refused_at;   /* the step in which the wire format fails on the last rank */
    int stranded_at;  /* the step with a second module, which rank 0 does not reach; the next step fails, too */
    bool doubles;     /* the loss has a term from a second data-parallel model */
    int skips_at;     /* the step in which the last rank has no samples */
    int seeded;       /* ls_backward_with gets an initial gradient. 1: of the loss; 2: of the squared output */
    bool keeps;       /* gradients accumulate over the steps */
    bool clears_last; /* a step clears its gradients at its end instead of its beginning */
    bool reduces;     /* the loss contains an all-reduce */
    int sums;         /* number of terms of the loss that are sums over samples */
    bool normalizes;  /* the model has batch normalization */
    bool statistics;  /* the step creates tensors for running statistics */
    bool drops;       /* the model has dropout */
    bool repeats;     /* a layer runs twice */
    bool recomputes;  /* the layer's forward function runs again in the backward pass */
    bool weights;     /* the classes of the loss have weights */
    bool ignores;     /* the loss ignores targets of a class */
} run_plan;

typedef struct training {
    const run_plan *plan;
    ls_comm *comm;
    ls_module *model;
    ls_module *second; /* NULL if no step has a second module */
    ls_wire_format *wire;
    ls_optimizer *optimizer;
    ls_tensor *x, *target;
    ls_tensor *weight; /* of the classes; or NULL */
    ls_tensor *seed;   /* the initial gradient; or NULL */
    ls_step *step;     /* NULL on ranks that do not replay */
    bool smaller;      /* the batch of this step has two samples */
    char message[LS_ERROR_CAPACITY];
} training;

static _Thread_local bool other_branch, refuses;

/* A layer, followed by one of two heads. */
static inline ls_tensor *forward_branches(ls_module *self, ls_tensor *x) {
    ls_tensor *h = ls_tanh(ls_forward(ls_module_child(self, 0), x));
    return ls_forward(ls_module_child(self, other_branch ? 2 : 1), h);
}

/* A layer that runs twice between two other layers. */
static inline ls_tensor *forward_repeats(ls_module *self, ls_tensor *x) {
    ls_module *repeated = ls_module_child(self, 1);
    ls_tensor *h = ls_tanh(ls_forward(ls_module_child(self, 0), x));
    return ls_forward(ls_module_child(self, 2), ls_forward(repeated, ls_forward(repeated, h)));
}

static inline ls_module *make_repeating(const run_plan *plan) {
    static const ls_module_type type = {.name = "Repeats", .forward = forward_repeats};
    ls_module *model = ls_module_new(&type);
    ls_module *repeated = ls_sequential(ls_nn_linear(WIDTH, WIDTH), ls_nn_tanh());
    ls_module_add_child(model, "first", ls_nn_linear(INPUTS, WIDTH));
    (void)ls_recompute(repeated, plan->recomputes);
    ls_module_add_child(model, "repeated", repeated);
    ls_module_add_child(model, "head", ls_nn_linear(WIDTH, CLASSES));
    return ls_module_finish(model);
}

/* Normalizes with running statistics that the step creates: views of a buffer, and temporary tensors. */
static inline ls_tensor *forward_statistics(ls_module *self, ls_tensor *x) {
    ls_tensor *both = ls_module_buffer(self, 0);
    ls_tensor *h = ls_batch_norm(ls_forward(ls_module_child(self, 0), x), ls_select(both, 0, 0), ls_select(both, 0, 1),
                                 NULL, NULL, ls_module_is_training(self), 0.1, 1e-5);
    ls_tensor *mean = ls_zeros(LS_SHAPE(CLASSES), LS_F32), *variance = ls_ones(LS_SHAPE(CLASSES), LS_F32);
    h = ls_batch_norm(h, mean, variance, NULL, NULL, true, 0.1, 1e-5);
    return ls_add(h, ls_detach(mean));
}

static inline ls_module *make_statistics(void) {
    static const ls_module_type type = {.name = "Statistics", .forward = forward_statistics, .whole_batch = true};
    ls_module *model = ls_module_new(&type);
    ls_module_add_child(model, "layer", ls_nn_linear(INPUTS, CLASSES));
    ls_module_add_buffer(model, "both", ls_ones(LS_SHAPE(2, CLASSES), LS_F32));
    return ls_module_finish(model);
}

static inline ls_module *make_model(const run_plan *plan) {
    if (plan->repeats) {
        return make_repeating(plan);
    }
    if (plan->statistics) {
        return make_statistics();
    }
    if (plan->parallel.zero > 0) {
        return ls_sequential(ls_nn_linear(INPUTS, WIDTH), ls_nn_tanh(), ls_nn_linear(WIDTH, CLASSES));
    }
    static const ls_module_type type = {.name = "Branches", .forward = forward_branches};
    ls_module *model = ls_module_new(&type);
    ls_module *norm = plan->normalizes ? ls_nn_batch_norm_1d(WIDTH, NULL) : NULL;
    ls_module *first = plan->normalizes && plan->drops
                           ? ls_sequential(ls_nn_linear(INPUTS, WIDTH), ls_nn_dropout(0.5), norm)
                       : plan->normalizes ? ls_sequential(ls_nn_linear(INPUTS, WIDTH), norm)
                       : plan->drops      ? ls_sequential(ls_nn_linear(INPUTS, WIDTH), ls_nn_dropout(0.5))
                                          : ls_nn_linear(INPUTS, WIDTH);
    ls_module_add_child(model, "first", first);
    ls_module_add_child(model, "head", ls_nn_linear(WIDTH, CLASSES));
    ls_module_add_child(model, "other", ls_nn_linear(WIDTH, CLASSES));
    return ls_module_finish(model);
}

static inline ls_tensor *loss_of(const training *self) {
    ls_tensor *y = ls_forward(self->model, self->smaller ? ls_narrow(self->x, 0, 0, 2) : self->x);
    if (self->plan->seeded == 2) { /* the mean is a metric */
        ls_tensor *output = ls_mul(ls_square(y), 1.5);
        return ls_mean(ls_square(y)) != NULL ? output : NULL;
    }
    const ls_class_loss_options options = {.weight = self->weight, .ignore = self->plan->ignores, .ignore_index = 1};
    ls_tensor *target = self->smaller ? ls_narrow(self->target, 0, 0, 2) : self->target;
    ls_tensor *loss = ls_cross_entropy(y, target, &options);
    loss = self->plan->doubles ? ls_add(loss, ls_mean(ls_square(ls_forward(self->second, self->x)))) : loss;
    loss = self->plan->reduces ? ls_allreduce(self->comm, loss, LS_SUM) : loss;
    for (int i = 0; i < self->plan->sums; i++) {
        loss = ls_add(loss, ls_mul(ls_sum(ls_square(y)), 0.01));
    }
    return loss;
}

static inline ls_tensor *step_of(void *user) {
    const training *self = user;
    if (!self->plan->keeps && !self->plan->clears_last) {
        ls_optimizer_zero_grad(self->optimizer);
    }
    ls_tensor *loss = loss_of(self);
    const bool good = ls_backward_with(loss, &(ls_backward_options){.gradient = self->seed}) == LS_OK &&
                      ls_optimizer_step(self->optimizer) == LS_OK;
    if (self->plan->clears_last) {
        ls_optimizer_zero_grad(self->optimizer);
    }
    return good ? loss : NULL;
}

static inline bool is_last(const training *self) {
    return ls_comm_rank(self->comm) == ls_comm_size(self->comm) - 1;
}

/* Gives the rank its share of a batch. Ranks have different numbers of samples. */
static inline ls_status change_batch(training *self, int step) {
    const int rank = ls_comm_rank(self->comm);
    int64_t *classes = ls_data(self->target);
    LS_CHECK(classes != NULL);
    for (int64_t i = 0; i < 3 + rank; i++) {
        classes[i] = (step + rank + i) % CLASSES;
    }
    if (step == self->plan->spoiled_at && step > 0 && is_last(self)) {
        classes[0] = CLASSES;
    }
    ls_mark_changed(self->target);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *ramp = ls_reshape(ls_arange(LS_SHAPE((3 + rank) * INPUTS), LS_F32), LS_SHAPE(3 + rank, INPUTS));
    LS_TRY(ls_copy_into(self->x, ls_sin(ls_add(ls_mul(ramp, 0.1 * step + 0.3), rank))));
    return ls_scope_end(scope);
}

/* A wire format that sends the numbers as they are. */
static inline ls_status encode(const float *gradients, int64_t first, int64_t count, void *encoded, void *user) {
    (void)user;
    memcpy(encoded, gradients, (size_t)count * sizeof *gradients);
    return refuses && first == 0 ? ls_error_set(LS_ERR_UNSUPPORTED, "no bits left") : LS_OK;
}

static inline ls_status decode(const void *encoded, int64_t first, int64_t count, float *gradients, void *user) {
    (void)first;
    (void)user;
    memcpy(gradients, encoded, (size_t)count * sizeof *gradients);
    return LS_OK;
}

static inline ls_status begin(training *self, ls_comm *world, const run_plan *plan) {
    *self = (training){.plan = plan};
    LS_TRY(ls_comm_split(world, 0, ls_comm_rank(world), &self->comm));
    const int64_t samples = 3 + ls_comm_rank(world);
    const ls_wire_functions functions = {.name = "plain", .encode = encode, .decode = decode};
    ls_data_parallel_options parallel = plan->parallel;
    parallel.wire = self->wire = plan->refused_at > 0 ? ls_wire_format_new(&functions, NULL) : NULL;
    ls_seed(5);
    self->model = ls_data_parallel(make_model(plan), self->comm, &parallel);
    self->second = plan->stranded_at > 0 || plan->doubles
                       ? ls_data_parallel(ls_nn_linear(INPUTS, INPUTS), self->comm, &parallel)
                       : NULL;
    self->x = ls_zeros(LS_SHAPE(samples, INPUTS), LS_F32);
    self->target = ls_zeros(LS_SHAPE(samples), LS_I64);
    self->weight = plan->weights ? ls_from(LS_SHAPE(CLASSES), LS_F32, (const float[CLASSES]){1, 2, 3}) : NULL;
    self->seed = plan->seeded == 1   ? ls_full((ls_shape){.ndim = 0}, LS_F32, 8)
                 : plan->seeded == 2 ? ls_full(LS_SHAPE(samples, CLASSES), LS_F32, 8)
                                     : NULL;
    self->optimizer = ls_adam(self->model, &(ls_adam_options){.learning_rate = 0.01});
    return self->optimizer != NULL ? LS_OK : ls_error_status();
}

static inline void end(training *self) {
    ls_step_free(self->step);
    ls_optimizer_free(self->optimizer);
    ls_module_free(self->model);
    ls_module_free(self->second);
    ls_wire_format_free(self->wire);
    ls_release(self->x);
    ls_release(self->target);
    ls_release(self->weight);
    ls_release(self->seed);
    ls_comm_free(self->comm);
}

static inline bool replays(const training *self) {
    const bool even = ls_comm_rank(self->comm) % 2 == 0;
    const replaying who = self->plan->replaying;
    return who == ALL || (who == EVEN && even) || (who == ODD && !even);
}

static inline ls_status run_eagerly(training *self) {
    ls_scope *scope = ls_scope_begin();
    const ls_tensor *loss = step_of(self);
    const ls_status status = loss != NULL ? LS_OK : ls_error_status();
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static inline ls_status skip(const training *self) {
    ls_optimizer_zero_grad(self->optimizer);
    LS_TRY(ls_data_parallel_skip(self->model));
    return ls_optimizer_step(self->optimizer);
}

/* A pass of both modules, in which rank 0 fails between the modules. */
static inline ls_status strand(const training *self) {
    ls_scope *scope = ls_scope_begin();
    const bool leaves = ls_comm_rank(self->comm) == 0;
    ls_tensor *y = ls_forward(self->second, self->x);
    y = leaves ? ls_add(y, ls_ones(LS_SHAPE(7, 7), LS_F32)) : ls_forward(self->model, y);
    const ls_status status = ls_backward(ls_mean(ls_square(y)));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* One step. The first step of a rank that replays is the capture; if gradients accumulate, the second step. */
static inline ls_status take_step(training *self, int step) {
    LS_TRY(change_batch(self, step));
    if (step > 0 && step == self->plan->stranded_at) {
        return strand(self);
    }
    if (step > 0 && step == self->plan->skips_at && is_last(self) && ls_comm_size(self->comm) > 1) {
        return skip(self);
    }
    refuses = step > 0 && step == self->plan->refused_at && is_last(self);
    other_branch = step > 0 && step == self->plan->branch_at && is_last(self);
    self->smaller = step > 0 && step == self->plan->smaller_at && ls_comm_rank(self->comm) == 0;
    if (!replays(self) || other_branch || self->smaller || (self->plan->keeps && step == 0)) {
        return run_eagerly(self);
    }
    if (self->step != NULL) {
        return ls_step_replay(self->step);
    }
    self->step = ls_step_capture(step_of, self, &(ls_step_capture_options){.fallback = self->plan->falls_back});
    LS_CHECK(self->step == NULL || ls_step_is_captured(self->step) == !self->plan->falls_back);
    return self->step != NULL ? LS_OK : ls_error_status();
}

/* Revokes the communicator on the last rank, after all ranks have completed the earlier steps. */
static inline ls_status revoke(const training *self, ls_comm *world, int step) {
    if (step != self->plan->revoked_at || step == 0) {
        return LS_OK;
    }
    LS_TRY(ls_comm_barrier(world, NULL));
    if (is_last(self)) {
        (void)ls_comm_abort(self->comm, ls_error_set(LS_ERR_PEER, "the last rank gives up"));
    }
    return LS_OK;
}

/* Trains. A failure must occur in the step that the plan spoils, on every rank; its message is in self->message. */
static inline ls_status train(training *self, ls_comm *world, const run_plan *plan) {
    LS_TRY(begin(self, world, plan));
    for (int i = 0; i < STEPS; i++) {
        LS_TRY(revoke(self, world, i));
        const bool fails = i > 0 && (i == plan->spoiled_at || i == plan->revoked_at || i == plan->refused_at ||
                                     i == plan->stranded_at || (i - 1 == plan->stranded_at && i > 1));
        ls_scope *scope = ls_scope_begin();
        const ls_status status = take_step(self, i);
        if (fails) {
            snprintf(self->message, sizeof self->message, "%s", ls_error_message());
        }
        const ls_status ended = ls_scope_end(scope);
        LS_CHECK((status != LS_OK) == fails);
        LS_CHECK(ended == LS_OK || fails);
        if (i == plan->revoked_at && i > 0) {
            break;
        }
    }
    return LS_OK;
}

static inline ls_status hash_of(const training *self, uint64_t *hash) {
    LS_TRY(self->plan->parallel.zero > 2 ? ls_data_parallel_gather(self->model, true) : LS_OK);
    *hash = ls_module_hash(self->model);
    return *hash != 0 ? LS_OK : ls_error_status();
}

/* Trains with each choice of ranks that replay, and compares with training in which no rank does. */
static inline ls_status compare(ls_comm *world, run_plan plan) {
    training eager, other;
    plan.replaying = NONE;
    LS_TRY(train(&eager, world, &plan));
    uint64_t hash = 0, other_hash = 1;
    LS_TRY(hash_of(&eager, &hash));
    for (plan.replaying = ALL; plan.replaying <= ODD; plan.replaying++) {
        LS_TRY(train(&other, world, &plan));
        LS_CHECK(replays(&other) == (other.step != NULL));
        LS_TRY(hash_of(&other, &other_hash));
        LS_CHECK(other_hash == hash);
        if (strcmp(other.message, eager.message) != 0) {
            return ls_fail(LS_ERR_INTERNAL, "replaying %d: \"%s\" instead of \"%s\"", (int)plan.replaying,
                           other.message, eager.message);
        }
        if (plan.revoked_at == 0) {
            LS_TRY(ranks_have_same_module(world, other.model));
        }
        end(&other);
    }
    end(&eager);
    return LS_OK;
}

#endif
