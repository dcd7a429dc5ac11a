/*
 * What a trial can train beside a model with a criterion and an optimizer: inputs that are their own targets, two
 * optimizers, L-BFGS, a pipeline, gradients gathered over several passes, samples that a program generates. Each is
 * trained by a trial on all ranks, and by a plain loop in one process, which must end with the same parameters.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/elements.h"
#include "tests/support/ranks.h"

#include <math.h>
#include <string.h>

#include <lockstep/parallel.h>
#include <lockstep/train.h>

#include "base/share.h"

enum { SAMPLES = 48, INPUTS = 4, HIDDEN = 6, GLOBAL_BATCH = 12, EPOCHS = 3, SEED = 17 };

static const ls_linear_options in_f64 = {.dtype = LS_F64};

static ls_tensor *make_input(void) {
    ls_tensor *input = ls_empty(LS_SHAPE(SAMPLES, INPUTS), LS_F64);
    for (int64_t i = 0; i < SAMPLES * INPUTS; i++) {
        ((double *)elements(input))[i] = ls_random_normal(SEED, 0, (uint64_t)i);
    }
    return input;
}

/* A smooth function of the input. */
static ls_dataset *make_regression(void) {
    ls_tensor *input = make_input();
    ls_tensor *target = ls_empty(LS_SHAPE(SAMPLES, 1), LS_F64);
    for (int64_t row = 0; row < SAMPLES; row++) {
        const double *x = (const double *)elements(input) + row * INPUTS;
        ((double *)elements(target))[row] = sin(x[0]) + x[1] * x[2] - 0.5 * x[3];
    }
    return ls_tensor_dataset(input, target);
}

static ls_module *make_model(int64_t in, int64_t out) {
    ls_seed(SEED);
    return ls_sequential(ls_nn_linear_with(in, HIDDEN, &in_f64), ls_nn_tanh(), ls_nn_linear_with(HIDDEN, out, &in_f64));
}

static ls_loader *make_loader(ls_dataset *dataset, ls_comm *comm) {
    return ls_loader_new(dataset, &(ls_loader_options){.global_batch_size = GLOBAL_BATCH, .comm = comm, .seed = SEED});
}

/* The plain step: what most trials do. */
static ls_status plain_step(ls_module *model, ls_optimizer *optimizer, const ls_batch *batch, double *loss) {
    ls_scope *scope = ls_scope_begin();
    ls_optimizer_zero_grad(optimizer);
    ls_tensor *value = ls_mse_loss(ls_forward(model, batch->input), batch->target, LS_LOSS_MEAN);
    const ls_status passed = ls_backward(value);
    *loss = ls_item(value);
    const ls_status stepped = passed == LS_OK ? ls_optimizer_step(optimizer) : passed;
    const ls_status ended = ls_scope_end(scope);
    return stepped != LS_OK ? stepped : ended;
}

/* One epoch of plain steps; the mean loss over its samples. */
static ls_status plain_epoch(ls_module *model, ls_optimizer *optimizer, ls_loader *loader, double *mean) {
    double sum = 0;
    double count = 0;
    for (;;) {
        ls_batch batch;
        bool more;
        double loss;
        LS_TRY(ls_loader_next(loader, &batch, &more));
        if (!more) {
            *mean = sum / count;
            return LS_OK;
        }
        LS_TRY(plain_step(model, optimizer, &batch, &loss));
        sum += loss * (double)batch.count;
        count += (double)batch.count;
    }
}

/* Parameters under the same names are the same; a stage of a pipeline has some of them. */
static ls_status same_parameters(const ls_module *is, const ls_module *want, double tolerance) {
    LS_CHECK(ls_module_parameter_count(is) > 0);
    for (int i = 0; i < ls_module_parameter_count(is); i++) {
        ls_tensor *other = ls_module_find(want, ls_module_parameter_name(is, i));
        LS_CHECK(other != NULL);
        LS_CHECK(ls_allclose(ls_module_parameter(is, i), other, tolerance, tolerance));
    }
    return LS_OK;
}

static ls_status same_number(const char *what, double is, double want, double tolerance) {
    return fabs(is - want) <= tolerance ? LS_OK
                                        : ls_fail(LS_ERR_INTERNAL, "%s is %.17g, must be %.17g", what, is, want);
}

/* ---- inputs that are their own targets --------------------------------------------------------------------------- */

static ls_dataset *make_pictures(void) {
    ls_tensor *x = make_input();
    return ls_tensor_dataset(x, x);
}

static ls_status autoencoder(ls_comm *world) {
    ls_module *model = ls_data_parallel(make_model(INPUTS, INPUTS), world, NULL);
    ls_module *alone = make_model(INPUTS, INPUTS);
    ls_optimizer *optimizers[] = {ls_adam(model, NULL), ls_adam(alone, NULL)};
    ls_loader *loaders[] = {make_loader(make_pictures(), world), make_loader(make_pictures(), NULL)};
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model, .optimizer = optimizers[0], .criterion = ls_criterion_mse, .train = loaders[0], .quiet = true});
    LS_TRY(ls_trial_run(trial, EPOCHS));
    double first = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double loss;
        LS_TRY(plain_epoch(alone, optimizers[1], loaders[1], &loss));
        LS_TRY(same_number("the autoencoder's loss", ls_trial_history(trial, epoch, "loss"), loss, 1e-11));
        first = epoch == 0 ? loss : first;
        LS_CHECK(epoch == 0 || loss < first);
    }
    LS_TRY(same_parameters(model, alone, 1e-10));
    ls_trial_free(trial);
    for (int i = 0; i < 2; i++) {
        ls_optimizer_free(optimizers[i]);
        ls_loader_free(loaders[i]);
    }
    ls_module_free(model);
    ls_module_free(alone);
    return LS_OK;
}

/* ---- two optimizers ---------------------------------------------------------------------------------------------- */

enum { NOISE = 2 };

/* Goodfellow et al., arXiv 1406.2661: a generator, and a discriminator that tells its samples from real ones. */
typedef struct gan {
    ls_module *generator;
    ls_module *discriminator;
    ls_optimizer *of_generator;
    ls_optimizer *of_discriminator;
} gan;

static gan make_gan(ls_comm *comm) {
    gan g = {.generator = make_model(NOISE, INPUTS), .discriminator = make_model(INPUTS, 1)};
    if (comm != NULL) {
        g.generator = ls_data_parallel(g.generator, comm, NULL);
        g.discriminator = ls_data_parallel(g.discriminator, comm, NULL);
    }
    g.of_generator = ls_adam(g.generator, &(ls_adam_options){.learning_rate = 0.01});
    g.of_discriminator = ls_sgd(g.discriminator, &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.5});
    return g;
}

static void free_gan(gan *g) {
    ls_optimizer_free(g->of_generator);
    ls_optimizer_free(g->of_discriminator);
    ls_module_free(g->generator);
    ls_module_free(g->discriminator);
}

/* Noise for `count` samples of a step, from number `first` of the global batch on. */
static ls_tensor *make_noise(int64_t step, int64_t first, int64_t count) {
    ls_tensor *noise = ls_empty(LS_SHAPE(count, NOISE), LS_F64);
    for (int64_t i = 0; noise != NULL && i < count * NOISE; i++) {
        ((double *)elements(noise))[i] = ls_random_normal(SEED, 100 + (uint64_t)step, (uint64_t)(first * NOISE + i));
    }
    return noise;
}

static ls_tensor *judge(const gan *g, ls_tensor *samples, double truth) {
    ls_tensor *logits = ls_forward(g->discriminator, samples);
    return ls_bce_with_logits_loss(logits, ls_full(ls_shape_of(logits), LS_F64, truth), NULL);
}

/* One step of the discriminator, one of the generator. Gives the loss of the former. */
static ls_status step_gan(const gan *g, ls_tensor *real, ls_tensor *noise, ls_tensor **loss) {
    ls_optimizer_zero_grad(g->of_discriminator);
    ls_tensor *made = ls_forward(g->generator, noise);
    *loss = ls_add(judge(g, real, 1), judge(g, ls_detach(made), 0));
    LS_TRY(ls_backward(*loss));
    LS_TRY(ls_optimizer_step(g->of_discriminator));

    ls_optimizer_zero_grad(g->of_generator);
    LS_TRY(ls_backward(judge(g, ls_forward(g->generator, noise), 1)));
    return ls_optimizer_step(g->of_generator);
}

static ls_status gan_step(ls_trial_state *state, void *user) {
    state->output = state->input;
    return step_gan(user, state->input, make_noise(state->step, state->first, state->count), &state->loss);
}

static ls_status gan_alone(const gan *g, ls_loader *loader, double *mean) {
    double sum = 0;
    int64_t steps = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        for (sum = 0;; steps++) {
            ls_batch batch;
            bool more;
            ls_tensor *loss;
            LS_TRY(ls_loader_next(loader, &batch, &more));
            if (!more) {
                break;
            }
            ls_scope *scope = ls_scope_begin();
            LS_TRY(step_gan(g, batch.input, make_noise(steps, 0, batch.count), &loss));
            sum += ls_item(loss) * (double)batch.count;
            LS_TRY(ls_scope_end(scope));
        }
    }
    *mean = sum / SAMPLES;
    return LS_OK;
}

static ls_status two_optimizers(ls_comm *world) {
    gan all = make_gan(world);
    gan alone = make_gan(NULL);
    ls_loader *loaders[] = {make_loader(make_regression(), world), make_loader(make_regression(), NULL)};
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = all.generator, .step = gan_step, .step_user = &all, .train = loaders[0], .quiet = true});
    double loss;
    LS_TRY(ls_trial_run(trial, EPOCHS));
    LS_TRY(gan_alone(&alone, loaders[1], &loss));
    LS_TRY(same_number("the discriminator's loss", ls_trial_metric(trial, "loss"), loss, 1e-10));
    LS_TRY(same_parameters(all.generator, alone.generator, 1e-9));
    LS_TRY(same_parameters(all.discriminator, alone.discriminator, 1e-9));
    gan untrained = make_gan(NULL);
    LS_CHECK(same_parameters(all.generator, untrained.generator, 1e-3) != LS_OK);
    LS_CHECK(same_parameters(all.discriminator, untrained.discriminator, 1e-3) != LS_OK);
    ls_trial_free(trial);
    ls_loader_free(loaders[0]);
    ls_loader_free(loaders[1]);
    free_gan(&all);
    free_gan(&alone);
    free_gan(&untrained);
    return LS_OK;
}

/* ---- an optimizer that evaluates the loss itself ----------------------------------------------------------------- */

/* What its closure needs. */
typedef struct evaluation {
    ls_module *model;
    ls_tensor *input;
    ls_tensor *target;
    ls_comm *comm;    /* NULL: alone */
    double share;     /* of the samples */
    int *evaluations; /* counted here */
} evaluation;

/* The mean over the samples of all ranks; its gradient is data_parallel's. */
static ls_status evaluate(void *argument, double *loss) {
    const evaluation *e = argument;
    ++*e->evaluations;
    ls_tensor *value = ls_mse_loss(ls_forward(e->model, e->input), e->target, LS_LOSS_MEAN);
    LS_TRY(ls_backward(value));
    *loss = ls_item(value) * e->share;
    return e->comm != NULL ? ls_comm_allreduce(e->comm, loss, loss, 1, LS_F64, LS_SUM, NULL) : LS_OK;
}

static ls_status lbfgs_step(ls_trial_state *state, void *user) {
    evaluation e = {.model = state->model,
                    .input = state->input,
                    .target = state->target,
                    .comm = state->comm,
                    .share = (double)state->count / (double)state->global_count,
                    .evaluations = user};
    double loss;
    LS_TRY(ls_optimizer_step_closure(state->optimizer, evaluate, &e, &loss));
    state->loss = ls_scalar(loss, LS_F64);
    return LS_OK;
}

static ls_optimizer *make_lbfgs(ls_module *model) {
    return ls_lbfgs(model, &(ls_lbfgs_options){.max_iterations = 4, .strong_wolfe = true});
}

static ls_loader *whole_batches(ls_comm *comm) {
    return ls_loader_new(make_regression(), &(ls_loader_options){.global_batch_size = SAMPLES, .comm = comm});
}

static ls_status closures(ls_comm *world) {
    ls_module *model = ls_data_parallel(make_model(INPUTS, 1), world, NULL);
    ls_module *alone = make_model(INPUTS, 1);
    ls_optimizer *optimizers[] = {make_lbfgs(model), make_lbfgs(alone)};
    ls_loader *loaders[] = {whole_batches(world), whole_batches(NULL)};
    int evaluations[2] = {0, 0};
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizers[0],
                                                       .step = lbfgs_step,
                                                       .step_user = &evaluations[0],
                                                       .criterion = ls_criterion_mse,
                                                       .train = loaders[0],
                                                       .quiet = true});
    LS_TRY(ls_trial_run(trial, EPOCHS));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        ls_batch batch;
        bool more;
        double loss;
        LS_TRY(ls_loader_next(loaders[1], &batch, &more));
        evaluation e = {alone, batch.input, batch.target, NULL, 1, &evaluations[1]};
        LS_TRY(ls_optimizer_step_closure(optimizers[1], evaluate, &e, &loss));
        LS_TRY(same_number("the loss of L-BFGS", ls_trial_history(trial, epoch, "loss"), loss, 1e-8));
        LS_TRY(ls_loader_next(loaders[1], &batch, &more));
        LS_CHECK(!more);
    }
    LS_CHECK(evaluations[0] == evaluations[1] && evaluations[0] > 2 * EPOCHS);
    LS_TRY(same_parameters(model, alone, 1e-6));
    LS_CHECK(ls_trial_history(trial, EPOCHS - 1, "loss") < 0.7 * ls_trial_history(trial, 0, "loss"));
    ls_trial_free(trial);
    for (int i = 0; i < 2; i++) {
        ls_optimizer_free(optimizers[i]);
        ls_loader_free(loaders[i]);
    }
    ls_module_free(model);
    ls_module_free(alone);
    return LS_OK;
}

/* ---- a pipeline -------------------------------------------------------------------------------------------------- */

/* For up to five stages, each with a layer that has parameters. */
static ls_module *make_deep_model(void) {
    ls_seed(SEED);
    return ls_sequential(ls_nn_linear_with(INPUTS, HIDDEN, &in_f64), ls_nn_tanh(),
                         ls_nn_linear_with(HIDDEN, HIDDEN, &in_f64), ls_nn_linear_with(HIDDEN, HIDDEN, &in_f64),
                         ls_nn_linear_with(HIDDEN, HIDDEN, &in_f64), ls_nn_linear_with(HIDDEN, 1, &in_f64));
}

static ls_status pipeline_step(ls_trial_state *state, void *user) {
    const ls_trial_options *options = user;
    double loss;
    ls_optimizer_zero_grad(state->optimizer);
    LS_TRY(ls_pipeline_backward(state->model, state->input, state->target, options->criterion, options->criterion_user,
                                &loss));
    state->loss = ls_scalar(loss, LS_F64);
    return ls_optimizer_step(state->optimizer);
}

/* The same batches on every rank; the whole model in a trial of its own. */
static ls_status pipeline(ls_comm *world) {
    static const int cut[] = {2, 3, 4, 5};
    ls_module *stage = ls_pipeline(make_deep_model(), world, &(ls_pipeline_options){.cut = cut});
    ls_module *whole = make_deep_model();
    ls_optimizer *optimizers[] = {ls_adam(stage, NULL), ls_adam(whole, NULL)};
    ls_loader *loaders[4];
    for (int i = 0; i < 4; i++) {
        loaders[i] = make_loader(make_regression(), NULL);
    }
    ls_trial_options options = {.model = stage,
                                .optimizer = optimizers[0],
                                .comm = world,
                                .criterion = ls_criterion_mse,
                                .step = pipeline_step,
                                .step_user = &options,
                                .train = loaders[0],
                                .validate = loaders[1],
                                .quiet = true};
    ls_trial *trials[2] = {ls_trial_new(&options)};
    trials[1] = ls_trial_new(&(ls_trial_options){.model = whole,
                                                 .optimizer = optimizers[1],
                                                 .criterion = ls_criterion_mse,
                                                 .train = loaders[2],
                                                 .validate = loaders[3],
                                                 .quiet = true});
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_trial_run(trials[i], EPOCHS));
    }
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        LS_TRY(same_number("the pipeline's loss", ls_trial_history(trials[0], epoch, "loss"),
                           ls_trial_history(trials[1], epoch, "loss"), 1e-11));
        LS_TRY(same_number("the pipeline's loss in validation", ls_trial_history(trials[0], epoch, "val_loss"),
                           ls_trial_history(trials[1], epoch, "val_loss"), 1e-11));
    }
    LS_TRY(same_parameters(stage, whole, 1e-10));
    for (int i = 0; i < 4; i++) {
        ls_loader_free(loaders[i]);
    }
    for (int i = 0; i < 2; i++) {
        ls_trial_free(trials[i]);
        ls_optimizer_free(optimizers[i]);
    }
    ls_module_free(stage);
    ls_module_free(whole);
    return LS_OK;
}

/* ---- gradients gathered over several passes ---------------------------------------------------------------------- */

enum { PASSES = 3 };

/* The batch in PASSES parts, the gradients of which are added up: that of the whole batch. */
static ls_status gathering_step(ls_trial_state *state, void *user) {
    (void)user;
    const int64_t rows = state->count / PASSES;
    double loss = 0;
    ls_optimizer_zero_grad(state->optimizer);
    for (int pass = 0; pass < PASSES; pass++) {
        ls_scope *scope = ls_scope_begin();
        LS_TRY(ls_data_parallel_no_sync(state->model, pass < PASSES - 1));
        ls_tensor *output = ls_forward(state->model, ls_narrow(state->input, 0, pass * rows, rows));
        ls_tensor *target = ls_narrow(state->target, 0, pass * rows, rows);
        ls_tensor *part = ls_div(ls_mse_loss(output, target, LS_LOSS_MEAN), PASSES);
        LS_TRY(ls_backward(part));
        loss += ls_item(part);
        LS_TRY(ls_scope_end(scope));
    }
    state->loss = ls_scalar(loss, LS_F64);
    return ls_optimizer_step(state->optimizer);
}

/* Every rank has two passes' worth of equal parts of every batch. */
static ls_loader *equal_shares(ls_comm *world, ls_comm *comm) {
    return ls_loader_new(make_regression(), &(ls_loader_options){.global_batch_size = 2 * PASSES * ls_comm_size(world),
                                                                 .comm = comm,
                                                                 .seed = SEED,
                                                                 .drop_last = true});
}

static ls_status gathered_gradients(ls_comm *world) {
    ls_module *models[] = {ls_data_parallel(make_model(INPUTS, 1), world, NULL), make_model(INPUTS, 1)};
    ls_optimizer *optimizers[2];
    ls_loader *loaders[] = {equal_shares(world, world), equal_shares(world, NULL)};
    for (int i = 0; i < 2; i++) {
        optimizers[i] = ls_sgd(models[i], &(ls_sgd_options){.learning_rate = 0.05, .momentum = 0.9});
    }
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = models[0], .optimizer = optimizers[0], .step = gathering_step, .train = loaders[0], .quiet = true});
    LS_TRY(ls_trial_run(trial, EPOCHS));
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double loss;
        LS_TRY(plain_epoch(models[1], optimizers[1], loaders[1], &loss));
        LS_TRY(same_number("the loss of gathered passes", ls_trial_history(trial, epoch, "loss"), loss, 1e-11));
    }
    LS_TRY(same_parameters(models[0], models[1], 1e-10));
    ls_trial_free(trial);
    for (int i = 0; i < 2; i++) {
        ls_optimizer_free(optimizers[i]);
        ls_loader_free(loaders[i]);
        ls_module_free(models[i]);
    }
    return LS_OK;
}

/* ---- samples that a program generates ---------------------------------------------------------------------------- */

/* Which samples of each global batch are made here. */
typedef struct generator {
    int rank;
    int size;
    bool counted; /* else the generator itself says where an epoch ends: behind BATCHES + epoch batches */
    int sought;   /* how often it was moved */
} generator;

enum { BATCHES = 5 };

static ls_status generate(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    const generator *g = ls_loader_state(self);
    *more = g->counted || number < BATCHES + epoch;
    if (!*more) {
        return LS_OK;
    }
    const ls_share share = ls_share_of(GLOBAL_BATCH, g->size, g->rank);
    ls_tensor *x = ls_empty(LS_SHAPE(share.count, INPUTS), LS_F64);
    for (int64_t i = 0; x != NULL && i < share.count * INPUTS; i++) {
        ((double *)elements(x))[i] =
            ls_random_normal(SEED + (uint64_t)epoch, 10 + (uint64_t)number, (uint64_t)(share.start * INPUTS + i));
    }
    batch->first = share.start;
    batch->input = x;
    batch->target = ls_sum_axes(ls_sin(x), LS_AXES(1), true);
    batch->global_count = GLOBAL_BATCH;
    return LS_OK;
}

static ls_status note_seek(ls_loader *self, int64_t epoch, int64_t batch) {
    generator *g = ls_loader_state(self);
    g->sought++;
    return epoch < 100 ? LS_OK
                       : ls_error_set(LS_ERR_UNSUPPORTED, "no epoch %lld.%lld", (long long)epoch, (long long)batch);
}

static ls_loader *make_generator(ls_comm *comm, bool counted) {
    static const ls_loader_type type = {
        .name = "generator", .state_size = sizeof(generator), .next = generate, .seek = note_seek};
    ls_loader *loader = ls_loader_custom(&type, counted ? BATCHES : -1);
    if (loader != NULL) {
        *(generator *)ls_loader_state(loader) = (generator){.rank = comm != NULL ? ls_comm_rank(comm) : 0,
                                                            .size = comm != NULL ? ls_comm_size(comm) : 1,
                                                            .counted = counted};
    }
    return loader;
}

/* The trial goes on from where the user put the loader: in the midst of epoch 1. */
static ls_status generated(ls_comm *world, bool counted) {
    ls_module *model = ls_data_parallel(make_model(INPUTS, 1), world, NULL);
    ls_module *alone = make_model(INPUTS, 1);
    ls_optimizer *optimizers[] = {ls_sgd(model, NULL), ls_sgd(alone, NULL)};
    ls_loader *loaders[] = {make_generator(world, counted), make_generator(NULL, counted)};
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model, .optimizer = optimizers[0], .criterion = ls_criterion_mse, .train = loaders[0], .quiet = true});
    LS_CHECK(ls_loader_batch_count(loaders[0]) == (counted ? BATCHES : -1));
    LS_TRY(ls_loader_seek(loaders[0], 1, 2));
    LS_TRY(ls_loader_seek(loaders[1], 1, 2));
    LS_TRY(ls_trial_run(trial, EPOCHS));
    LS_CHECK(((const generator *)ls_loader_state(loaders[0]))->sought == 1);
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double loss;
        LS_TRY(plain_epoch(alone, optimizers[1], loaders[1], &loss));
        LS_TRY(same_number("the generator's loss", ls_trial_history(trial, epoch, "loss"), loss, 1e-11));
    }
    int64_t epoch;
    int64_t batch;
    ls_loader_position(loaders[0], &epoch, &batch);
    LS_CHECK(epoch == 1 + EPOCHS && batch == 0);
    LS_TRY(same_parameters(model, alone, 1e-10));
    ls_trial_free(trial);
    for (int i = 0; i < 2; i++) {
        ls_optimizer_free(optimizers[i]);
        ls_loader_free(loaders[i]);
    }
    ls_module_free(model);
    ls_module_free(alone);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(autoencoder(world));
    LS_TRY(two_optimizers(world));
    LS_TRY(closures(world));
    LS_TRY(pipeline(world));
    LS_TRY(gathered_gradients(world));
    LS_TRY(generated(world, true));
    LS_TRY(generated(world, false));
    return ls_comm_barrier(world, NULL);
}
