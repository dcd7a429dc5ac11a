/*
 * Captured steps (ls_step_capture) of data-parallel models: replays give the same parameters as training without a
 * capture, even if only some ranks replay. If a rank fails, all ranks get the same error. Steps that communicate in
 * other ways are refused on every rank.
 *
 * ranks: 1 2 3
 * devices: cpu
 */
#include <stdio.h>

#include <lockstep/lockstep.h>

#include "comm/abort.h"
#include "tests/support/ranks.h"

enum { INPUTS = 5, WIDTH = 16, CLASSES = 3, STEPS = 8 };

/* ---- training ---------------------------------------------------------------------------------------------------- */

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
static ls_tensor *forward_branches(ls_module *self, ls_tensor *x) {
    ls_tensor *h = ls_tanh(ls_forward(ls_module_child(self, 0), x));
    return ls_forward(ls_module_child(self, other_branch ? 2 : 1), h);
}

/* A layer that runs twice between two other layers. */
static ls_tensor *forward_repeats(ls_module *self, ls_tensor *x) {
    ls_module *repeated = ls_module_child(self, 1);
    ls_tensor *h = ls_tanh(ls_forward(ls_module_child(self, 0), x));
    return ls_forward(ls_module_child(self, 2), ls_forward(repeated, ls_forward(repeated, h)));
}

static ls_module *make_repeating(const run_plan *plan) {
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
static ls_tensor *forward_statistics(ls_module *self, ls_tensor *x) {
    ls_tensor *both = ls_module_buffer(self, 0);
    ls_tensor *h = ls_batch_norm(ls_forward(ls_module_child(self, 0), x), ls_select(both, 0, 0), ls_select(both, 0, 1),
                                 NULL, NULL, ls_module_is_training(self), 0.1, 1e-5);
    ls_tensor *mean = ls_zeros(LS_SHAPE(CLASSES), LS_F32), *variance = ls_ones(LS_SHAPE(CLASSES), LS_F32);
    h = ls_batch_norm(h, mean, variance, NULL, NULL, true, 0.1, 1e-5);
    return ls_add(h, ls_detach(mean));
}

static ls_module *make_statistics(void) {
    static const ls_module_type type = {.name = "Statistics", .forward = forward_statistics, .whole_batch = true};
    ls_module *model = ls_module_new(&type);
    ls_module_add_child(model, "layer", ls_nn_linear(INPUTS, CLASSES));
    ls_module_add_buffer(model, "both", ls_ones(LS_SHAPE(2, CLASSES), LS_F32));
    return ls_module_finish(model);
}

static ls_module *make_model(const run_plan *plan) {
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

static ls_tensor *loss_of(const training *self) {
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

static ls_tensor *step_of(void *user) {
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

static bool is_last(const training *self) {
    return ls_comm_rank(self->comm) == ls_comm_size(self->comm) - 1;
}

/* Gives the rank its share of a batch. Ranks have different numbers of samples. */
static ls_status change_batch(training *self, int step) {
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
static ls_status encode(const float *gradients, int64_t first, int64_t count, void *encoded, void *user) {
    (void)user;
    memcpy(encoded, gradients, (size_t)count * sizeof *gradients);
    return refuses && first == 0 ? ls_error_set(LS_ERR_UNSUPPORTED, "no bits left") : LS_OK;
}

static ls_status decode(const void *encoded, int64_t first, int64_t count, float *gradients, void *user) {
    (void)first;
    (void)user;
    memcpy(gradients, encoded, (size_t)count * sizeof *gradients);
    return LS_OK;
}

static ls_status begin(training *self, ls_comm *world, const run_plan *plan) {
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

static void end(training *self) {
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

static bool replays(const training *self) {
    const bool even = ls_comm_rank(self->comm) % 2 == 0;
    const replaying who = self->plan->replaying;
    return who == ALL || (who == EVEN && even) || (who == ODD && !even);
}

static ls_status run_eagerly(training *self) {
    ls_scope *scope = ls_scope_begin();
    const ls_tensor *loss = step_of(self);
    const ls_status status = loss != NULL ? LS_OK : ls_error_status();
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

static ls_status skip(const training *self) {
    ls_optimizer_zero_grad(self->optimizer);
    LS_TRY(ls_data_parallel_skip(self->model));
    return ls_optimizer_step(self->optimizer);
}

/* A pass of both modules, in which rank 0 fails between the modules. */
static ls_status strand(const training *self) {
    ls_scope *scope = ls_scope_begin();
    const bool leaves = ls_comm_rank(self->comm) == 0;
    ls_tensor *y = ls_forward(self->second, self->x);
    y = leaves ? ls_add(y, ls_ones(LS_SHAPE(7, 7), LS_F32)) : ls_forward(self->model, y);
    const ls_status status = ls_backward(ls_mean(ls_square(y)));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* One step. The first step of a rank that replays is the capture; if gradients accumulate, the second step. */
static ls_status take_step(training *self, int step) {
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
static ls_status revoke(const training *self, ls_comm *world, int step) {
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
static ls_status train(training *self, ls_comm *world, const run_plan *plan) {
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

static ls_status hash_of(const training *self, uint64_t *hash) {
    LS_TRY(self->plan->parallel.zero > 2 ? ls_data_parallel_gather(self->model, true) : LS_OK);
    *hash = ls_module_hash(self->model);
    return *hash != 0 ? LS_OK : ls_error_status();
}

/* Trains with each choice of ranks that replay, and compares with training in which no rank does. */
static ls_status compare(ls_comm *world, run_plan plan) {
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

/* ---- the same bits ----------------------------------------------------------------------------------------------- */

static ls_status averages_gradients(ls_comm *world) {
    LS_TRY(compare(world, (run_plan){.branch_at = 0}));
    LS_TRY(compare(world, (run_plan){.parallel = {.overlap = LS_OVERLAP_OFF}}));
    LS_TRY(compare(world, (run_plan){.parallel = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64}}));
    LS_TRY(compare(world, (run_plan){.parallel = {.reduce_dtype = LS_BF16, .overlap = LS_OVERLAP_ON}}));
    return compare(world, (run_plan){.parallel = {.powersgd_rank = 1}});
}

/* Buckets of one parameter, of several, and of all. */
static ls_status averages_in_buckets(ls_comm *world) {
    static const size_t sizes[] = {1, 200, 500, SIZE_MAX / 4};
    for (int i = 0; i < 4; i++) {
        const ls_data_parallel_options overlap = {.overlap = LS_OVERLAP_ON, .bucket_bytes = sizes[i]};
        ls_data_parallel_options bf16 = overlap;
        bf16.reduce_dtype = LS_BF16;
        LS_TRY(compare(world, (run_plan){.parallel = overlap}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .branch_at = 4}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .keeps = true}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .repeats = true}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .repeats = true, .recomputes = true}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .drops = true, .smaller_at = 3, .branch_at = 5}));
        LS_TRY(compare(world, (run_plan){.parallel = bf16, .branch_at = 1}));
    }
    return LS_OK;
}

/* A replay of the optimizer's step sends the updated parameters to all ranks. From stage 2 on, replays average the
 * gradients of each unit in the backward pass; in stage 3, they also gather its parameters. */
static ls_status captures_zero(ls_comm *world) {
    for (int zero = 1; zero <= 3; zero++) {
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero}}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero, .overlap = LS_OVERLAP_ON, .bucket_bytes = 64}}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero, .reduce_dtype = LS_BF16}, .smaller_at = 3}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero}, .keeps = true}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero, .overlap = LS_OVERLAP_ON}, .keeps = true}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero}, .repeats = true, .recomputes = true}));
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero}, .weights = true, .sums = 2, .smaller_at = 5}));
    }
    return LS_OK;
}

/* A replay gets the gradients of parameters that only another rank uses. */
static ls_status gets_gradients_of_others(ls_comm *world) {
    LS_TRY(compare(world, (run_plan){.branch_at = 4, .clears_last = true}));
    return compare(world, (run_plan){.branch_at = 4});
}

/* A replay also clears the gradients that an exchange with the other ranks has decided. */
static ls_status clears_gradients_last(ls_comm *world) {
    for (int zero = 0; zero <= 3; zero++) {
        const ls_data_parallel_options in_buckets = {.zero = zero, .overlap = LS_OVERLAP_ON, .bucket_bytes = 64};
        LS_TRY(compare(world, (run_plan){.parallel = {.zero = zero}, .clears_last = true, .smaller_at = 3}));
        LS_TRY(compare(world, (run_plan){.parallel = in_buckets, .clears_last = true, .smaller_at = 2}));
    }
    return LS_OK;
}

/* Dropout derives its random numbers from the index in the global batch, even if a rank before a rank that replays has
 * fewer samples. */
static ls_status drops_by_sample(ls_comm *world) {
    LS_TRY(compare(world, (run_plan){.drops = true}));
    LS_TRY(compare(world, (run_plan){.drops = true, .smaller_at = 4}));
    LS_TRY(compare(world, (run_plan){.drops = true, .smaller_at = 3, .branch_at = 5}));
    return compare(world, (run_plan){.drops = true, .parallel = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64}});
}

/* Batch normalization exchanges sums in both passes, and its scaling factors depend on the samples of all ranks. */
static ls_status normalizes(ls_comm *world) {
    static const ls_data_parallel_options overlap = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64};
    LS_TRY(compare(world, (run_plan){.normalizes = true}));
    LS_TRY(compare(world, (run_plan){.normalizes = true, .smaller_at = 4}));
    LS_TRY(compare(world, (run_plan){.normalizes = true, .drops = true, .smaller_at = 3, .branch_at = 5}));
    LS_TRY(compare(world, (run_plan){.normalizes = true, .keeps = true}));
    LS_TRY(compare(world, (run_plan){.statistics = true, .smaller_at = 3}));
    LS_TRY(compare(world, (run_plan){.normalizes = true, .parallel = {.zero = 1}, .smaller_at = 2}));
    LS_TRY(compare(world, (run_plan){.normalizes = true, .parallel = {.powersgd_rank = 1}}));
    return compare(world, (run_plan){.normalizes = true, .parallel = overlap, .smaller_at = 3, .branch_at = 5});
}

/* Losses whose divisors depend on the targets, and losses that need several scaling factors. */
static ls_status scales_losses(ls_comm *world) {
    static const ls_data_parallel_options overlap = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64};
    LS_TRY(compare(world, (run_plan){.weights = true, .smaller_at = 3}));
    LS_TRY(compare(world, (run_plan){.ignores = true, .parallel = overlap}));
    LS_TRY(compare(world, (run_plan){.sums = 1}));
    LS_TRY(compare(world, (run_plan){.sums = 7, .smaller_at = 4, .parallel = overlap}));
    LS_TRY(compare(world, (run_plan){.sums = 2, .weights = true, .ignores = true, .smaller_at = 4}));
    LS_TRY(compare(world, (run_plan){.sums = 1, .weights = true, .normalizes = true, .smaller_at = 2}));
    LS_TRY(compare(world, (run_plan){.seeded = 1, .skips_at = 3}));
    LS_TRY(compare(world, (run_plan){.seeded = 1, .sums = 1, .normalizes = true, .skips_at = 3}));
    LS_TRY(compare(world, (run_plan){.seeded = 2, .skips_at = 3}));
    LS_TRY(compare(world, (run_plan){.sums = 2, .weights = true, .skips_at = 4, .parallel = {.zero = 2}}));
    return compare(world, (run_plan){.sums = 1, .spoiled_at = 3});
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

static ls_status tells_failures(ls_comm *world) {
    LS_TRY(compare(world, (run_plan){.spoiled_at = 3}));
    LS_TRY(compare(world, (run_plan){.spoiled_at = 3, .drops = true}));
    LS_TRY(compare(world, (run_plan){.spoiled_at = 3, .normalizes = true}));
    LS_TRY(compare(world, (run_plan){.spoiled_at = 3, .parallel = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64}}));
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    for (int zero = 1; zero <= 3; zero++) {
        LS_TRY(compare(world, (run_plan){.spoiled_at = 3, .parallel = {.zero = zero}}));
        LS_TRY(compare(world, (run_plan){.spoiled_at = 3, .parallel = {.zero = zero, .overlap = LS_OVERLAP_ON}}));
        if (zero < 3) { /* after a failure, stage 3 cannot gather the parameters for their hash */
            LS_TRY(compare(world, (run_plan){.revoked_at = 5, .parallel = {.zero = zero}}));
        }
    }
    LS_TRY(compare(world, (run_plan){.revoked_at = 5, .drops = true}));
    LS_TRY(compare(world, (run_plan){.revoked_at = 5, .normalizes = true}));
    LS_TRY(compare(world, (run_plan){.revoked_at = 5}));
    return compare(world, (run_plan){.revoked_at = 5, .parallel = {.overlap = LS_OVERLAP_ON, .bucket_bytes = 64}});
}

/* A bucket fails, or buckets of a failed pass are in flight when the next step begins. */
static ls_status tells_failed_buckets(ls_comm *world) {
    static const size_t sizes[] = {1, 500};
    for (int i = 0; i < 2 && ls_comm_size(world) > 1; i++) {
        const ls_data_parallel_options overlap = {.overlap = LS_OVERLAP_ON, .bucket_bytes = sizes[i]};
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .refused_at = 1}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .refused_at = 4, .branch_at = 2}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .stranded_at = 3}));
        LS_TRY(compare(world, (run_plan){.parallel = overlap, .stranded_at = 4, .branch_at = 3}));
    }
    return LS_OK;
}

static bool has_gradients(const training *self) {
    bool has = false;
    for (int i = 0; i < ls_module_parameter_count(self->model); i++) {
        has = has || ls_grad(ls_module_parameter(self->model, i)) != NULL;
    }
    return has;
}

/* If the checks of a replay fail on one rank, all ranks fail without gradients, and the next step is right again. */
static ls_status tells_failed_checks(ls_comm *world, bool drops) {
    training self;
    const run_plan plan = {.replaying = ALL, .drops = drops};
    LS_TRY(begin(&self, world, &plan));
    LS_TRY(take_step(&self, 0));
    for (int i = 1; i < 4; i++) {
        ls_module_train(ls_module_child(ls_module_child(self.model, 0), 1), i != 2 || !is_last(&self));
        ls_scope *scope = ls_scope_begin();
        const ls_status status = take_step(&self, i);
        LS_CHECK((status != LS_OK) == (i == 2));
        if (i == 2) {
            LS_EXPECT_MESSAGE("mode when the step was captured");
        }
        LS_CHECK(ls_comm_size(world) == 1 || has_gradients(&self) == (i != 2));
        LS_CHECK((ls_scope_end(scope) != LS_OK) == (i == 2));
    }
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

static void set_indices(const training *self, int step, bool bad) {
    int64_t *indices = ls_data(self->x);
    for (int64_t i = 0; i < 4; i++) {
        indices[i] = (step + 3 * i + ls_comm_rank(self->comm)) % INPUTS;
    }
    indices[3] = bad ? INPUTS : indices[3];
    ls_mark_changed(self->x);
}

/* In stage 3 of ZeRO, an operation fails on one rank while this rank has the parameters of a unit. All ranks get the
 * cause, and the next steps are right again. */
static ls_status tells_failures_in_units(ls_comm *world) {
    const run_plan plan = {.parallel = {.zero = 3}};
    training self = {.plan = &plan, .comm = world};
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    self.model = ls_data_parallel(
        ls_sequential(ls_nn_embedding(INPUTS, WIDTH), ls_nn_batch_norm_1d(WIDTH, NULL), ls_nn_linear(WIDTH, CLASSES)),
        world, &plan.parallel);
    self.x = ls_zeros(LS_SHAPE(4), LS_I64);
    self.target = ls_zeros(LS_SHAPE(4), LS_I64);
    self.optimizer = ls_sgd(self.model, NULL);
    for (int i = 0; i < 5; i++) {
        set_indices(&self, i, i == 2 && is_last(&self));
        ls_scope *scope = ls_scope_begin();
        self.step = i == 0 ? ls_step_capture(step_of, &self, NULL) : self.step;
        LS_CHECK(self.step != NULL);
        LS_CHECK((i > 0 && ls_step_replay(self.step) != LS_OK) == (i == 2));
        if (i == 2) {
            LS_EXPECT_MESSAGE("out of range");
        }
        LS_CHECK((ls_scope_end(scope) != LS_OK) == (i == 2));
    }
    LS_TRY(ls_data_parallel_gather(self.model, true));
    LS_TRY(ranks_have_same_module(world, self.model));
    self.comm = NULL;
    end(&self);
    return LS_OK;
}

/* A captured step that averages gradients cannot be replayed under no_sync. */
static ls_status notices_no_sync(ls_comm *world, ls_overlap_mode overlap) {
    training self;
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    const run_plan plan = {.replaying = ALL, .parallel = {.overlap = overlap, .bucket_bytes = 1}};
    LS_TRY(begin(&self, world, &plan));
    LS_TRY(take_step(&self, 0));
    LS_TRY(ls_data_parallel_no_sync(self.model, true));
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(take_step(&self, 1) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_data_parallel_no_sync was switched on");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    LS_TRY(ls_data_parallel_no_sync(self.model, false));
    LS_TRY(take_step(&self, 1));
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

/* After a loss that needs numbers from all ranks, ranks agree before every pass. The step must be captured again. */
static ls_status notices_other_losses(ls_comm *world) {
    training self;
    run_plan plan = {.replaying = ALL};
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(begin(&self, world, &plan));
    LS_TRY(take_step(&self, 0));
    plan.sums = 1;
    LS_TRY(run_eagerly(&self));
    plan.sums = 0;
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(take_step(&self, 1) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("a loss needed numbers from all ranks");
    LS_CHECK(ls_scope_end(scope) == LS_ERR_STATE);
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

/* Without .fallback, the capture fails on every rank, but only after a complete step, which changes the model. */
static ls_status is_refused(ls_comm *world, run_plan plan, const char *reason) {
    training self;
    LS_TRY(begin(&self, world, &plan));
    LS_TRY(change_batch(&self, 0));
    const uint64_t before = ls_module_hash(self.model);
    ls_scope *scope = ls_scope_begin();
    LS_CHECK(ls_step_capture(step_of, &self, NULL) == NULL);
    LS_CHECK(ls_error_status() == LS_ERR_UNSUPPORTED);
    LS_EXPECT_MESSAGE(reason);
    LS_CHECK(ls_scope_end(scope) == LS_ERR_UNSUPPORTED);
    LS_TRY(ls_data_parallel_gather(self.model, true));
    LS_CHECK(ls_module_hash(self.model) != before);
    LS_TRY(ranks_have_same_module(world, self.model));
    end(&self);
    return LS_OK;
}

/* If a step cannot be captured, ls_step_replay runs its function. */
static ls_status falls_back(ls_comm *world) {
    return compare(world, (run_plan){.falls_back = true, .reduces = true});
}

static ls_status refuses_other_communication(ls_comm *world) {
    LS_TRY(is_refused(world, (run_plan){.reduces = true}, "communicates, which is not recorded"));
    if (ls_comm_size(world) == 1) {
        return LS_OK;
    }
    LS_TRY(is_refused(world, (run_plan){.doubles = true}, "for several data-parallel modules"));
    return is_refused(world, (run_plan){.sums = 9}, "scales more than 8 sums or means over the samples");
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(averages_gradients(world));
    LS_TRY(averages_in_buckets(world));
    LS_TRY(captures_zero(world));
    LS_TRY(gets_gradients_of_others(world));
    LS_TRY(clears_gradients_last(world));
    LS_TRY(drops_by_sample(world));
    LS_TRY(normalizes(world));
    LS_TRY(scales_losses(world));
    LS_TRY(tells_failures(world));
    LS_TRY(tells_failures_in_units(world));
    LS_TRY(tells_failed_buckets(world));
    LS_TRY(tells_failed_checks(world, false));
    LS_TRY(tells_failed_checks(world, true));
    LS_TRY(notices_other_losses(world));
    LS_TRY(notices_no_sync(world, LS_OVERLAP_OFF));
    LS_TRY(notices_no_sync(world, LS_OVERLAP_ON));
    LS_TRY(falls_back(world));
    LS_TRY(refuses_other_communication(world));
    return ls_comm_barrier(world, NULL);
}
