/*
 * Callbacks that initialize weights: all ranks get the same weights, whatever their seeds, and the same as one process.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/training.h"

/* ---- by rules ---------------------------------------------------------------------------------------------------- */

static ls_module *make_model(uint64_t seed) {
    ls_seed(seed);
    return ls_sequential(ls_nn_linear(9, 16), ls_nn_relu(), ls_nn_embedding(4, 3), ls_nn_linear(16, 5));
}

static ls_status initialize(ls_module *model, const ls_initialize_options *how) {
    ls_callback *callback = ls_initialize(how);
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = model, .criterion = ls_criterion_mse, .callbacks = &callback, .callback_count = 1});
    LS_CHECK(trial != NULL);
    ls_trial_free(trial);
    return LS_OK;
}

/* Computes the standard deviation and the maximum of the elements. */
static void spread(ls_tensor *x, double *deviation, double *largest) {
    ls_scope *scope = ls_scope_begin();
    const bool before = ls_no_grad(true);
    *deviation = sqrt(ls_item(ls_mean(ls_square(x))));
    *largest = ls_item(ls_max(ls_abs(x)));
    ls_no_grad(before);
    (void)ls_scope_end(scope);
}

static ls_status has_rule(const ls_module *model, ls_weight_rule rule) {
    double deviation, largest;
    spread(ls_module_find(model, "0.weight"), &deviation, &largest);
    switch (rule) {
    case LS_KAIMING_UNIFORM:
        LS_CHECK(largest <= sqrt(6.0 / 9) && largest > 0.8 * sqrt(6.0 / 9));
        return LS_OK;
    case LS_KAIMING_NORMAL:
        LS_CHECK(largest > sqrt(6.0 / 9) && fabs(deviation / sqrt(2.0 / 9) - 1) < 0.25);
        return LS_OK;
    case LS_XAVIER_UNIFORM:
        LS_CHECK(largest <= sqrt(6.0 / 25) && largest > 0.8 * sqrt(6.0 / 25));
        return LS_OK;
    case LS_XAVIER_NORMAL:
        LS_CHECK(largest > sqrt(6.0 / 25) && fabs(deviation / sqrt(2.0 / 25) - 1) < 0.25);
        return LS_OK;
    default: /* 9 columns of norm 1 */
        LS_CHECK(fabs(deviation - sqrt(9.0 / (16 * 9))) < 1e-6);
        return LS_OK;
    }
}

static ls_status rules(ls_comm *world) {
    for (int rule = 0; rule < LS_WEIGHT_RULES; rule++) {
        const uint64_t rank = (uint64_t)ls_comm_rank(world);
        ls_module *model = make_model(5 + rank), *other = make_model(99);
        ls_tensor *table = ls_clone(ls_module_find(model, "2.weight"));
        const ls_random_state before = ls_random_get_state();
        const ls_initialize_options how = {.rule = (ls_weight_rule)rule, .zero_bias = true, .seed = 4};
        LS_TRY(initialize(model, &how));
        LS_TRY(initialize(other, &how));
        const ls_random_state after = ls_random_get_state();
        LS_CHECK(before.seed == after.seed && before.stream == after.stream);
        LS_CHECK(ls_equal(table, ls_module_find(model, "2.weight")));
        for (int i = 0; i < ls_module_parameter_count(model); i++) {
            LS_CHECK(i == 2 || ls_equal(ls_module_parameter(model, i), ls_module_parameter(other, i)));
        }
        LS_TRY(has_rule(model, (ls_weight_rule)rule));
        LS_CHECK(ls_at(ls_module_find(model, "3.bias"), (int64_t[]){4}) == 0);
        LS_TRY(same_on_all(world, ls_at(ls_module_find(model, "3.weight"), (int64_t[]){2, 7})));
        LS_TRY(initialize(other, &(ls_initialize_options){.rule = (ls_weight_rule)rule, .seed = 5}));
        LS_CHECK(!ls_equal(ls_module_find(model, "0.weight"), ls_module_find(other, "0.weight")));
        ls_release(table);
        ls_module_free(model);
        ls_module_free(other);
    }
    return LS_OK;
}

/* ---- selected modules -------------------------------------------------------------------------------------------- */

static ls_tensor *pass_through(ls_module *self, ls_tensor *input) {
    (void)self;
    return input;
}

static ls_module *own_layer(void) {
    static const ls_module_type type = {.name = "ParallelConvBranch", .forward = pass_through};
    ls_module *layer = ls_module_new(&type);
    (void)ls_module_add_parameter(layer, "weight", ls_ones(LS_SHAPE(4, 3), LS_F32));
    return ls_module_finish(layer);
}

/* A layer is sharded if its parameters are, whatever the name of its type. */
static ls_status sharded_layers(ls_comm *world) {
    ls_seed(2);
    ls_module *model =
        ls_sequential(own_layer(), ls_nn_column_parallel(world, 8, 6, NULL), ls_nn_row_parallel(world, 6, 5, NULL));
    ls_tensor *before[4];
    LS_CHECK(ls_module_parameter_count(model) == 5);
    for (int i = 0; i < 4; i++) {
        before[i] = ls_clone(ls_module_parameter(model, i + 1));
    }
    LS_TRY(initialize(model, &(ls_initialize_options){.zero_bias = true, .seed = 4}));
    for (int i = 0; i < 4; i++) {
        LS_CHECK(ls_equal(before[i], ls_module_parameter(model, i + 1)));
        ls_release(before[i]);
    }
    ls_tensor *own = ls_module_find(model, "0.weight");
    LS_CHECK(ls_at(own, (int64_t[]){0, 0}) != 1 && ls_at(own, (int64_t[]){3, 2}) != 1);
    LS_TRY(same_on_all(world, ls_at(own, (int64_t[]){3, 2})));
    ls_module_free(model);
    return LS_OK;
}

/* With weight normalization, the layer's weight becomes the initialized weight. */
static ls_status normed_layers(ls_comm *world) {
    const ls_initialize_options how = {.rule = LS_ORTHOGONAL, .gain = 3, .zero_bias = true, .seed = 4};
    ls_seed(7 + (uint64_t)ls_comm_rank(world));
    ls_scope *scope = ls_scope_begin();
    ls_module *plain = ls_sequential(ls_nn_linear(9, 16), ls_nn_conv_1d(2, 3, LS_SHAPE(3), NULL));
    ls_module *normed = ls_sequential(ls_nn_linear_with(9, 16, &(ls_linear_options){.weight_norm = true}),
                                      ls_nn_conv_1d(2, 3, LS_SHAPE(3), &(ls_conv_layer_options){.weight_norm = true}));
    LS_TRY(initialize(plain, &how));
    LS_TRY(initialize(normed, &how));
    static const char *const names[][3] = {{"0.weight", "0.weight_v", "0.weight_g"},
                                           {"1.weight", "1.weight_v", "1.weight_g"}};
    for (int i = 0; i < 2; i++) {
        ls_tensor *weight = ls_module_find(plain, names[i][0]), *v = ls_module_find(normed, names[i][1]);
        LS_CHECK(ls_equal(v, weight));
        LS_CHECK(ls_allclose(ls_weight_norm(v, ls_module_find(normed, names[i][2])), weight, 1e-6, 1e-6));
    }
    LS_CHECK(ls_at(ls_module_find(normed, "1.bias"), (int64_t[]){2}) == 0);
    LS_TRY(ls_scope_end(scope));
    ls_module_free(plain);
    ls_module_free(normed);
    return LS_OK;
}

/* ---- by a batch -------------------------------------------------------------------------------------------------- */

typedef struct outputs {
    ls_module *layers[2];
    double deviations[2];
    uint64_t weights;
    const ls_loader *loader;
} outputs;

static ls_status measure(ls_module_call *call, void *user) {
    outputs *o = user;
    double largest;
    ls_tensor *x = ls_sub(call->outputs[0], ls_mean(call->outputs[0]));
    spread(x, &o->deviations[call->module == o->layers[1]], &largest);
    return LS_OK;
}

static ls_status note_weights(ls_trial_state *state, void *user) {
    int64_t epoch, batch;
    ((outputs *)user)->weights = ls_module_hash(state->model);
    ls_loader_position(((outputs *)user)->loader, &epoch, &batch);
    LS_CHECK(epoch == state->epoch && batch == 0);
    return LS_OK;
}

/*
 * Computes, in one process, the standard deviations of the layers' outputs for the first batch, with the weights that
 * all ranks scaled.
 */
static ls_status look(training *t, outputs *o) {
    ls_batch batch;
    bool more;
    ls_loader *loader = ls_loader_new(training_samples(0, TRAINING_SAMPLES),
                                      &(ls_loader_options){.global_batch_size = 40, .seed = TRAINING_SEED});
    LS_CHECK(loader != NULL);
    for (int i = 0; i < 2; i++) {
        o->layers[i] = ls_module_find_child(t->model, i == 0 ? "0" : "2");
        LS_CHECK(ls_module_add_hooks(o->layers[i], &(ls_module_hooks){.user = o, .forward = measure}) > 0);
    }
    LS_TRY(ls_loader_next(loader, &batch, &more));
    ls_scope *scope = ls_scope_begin();
    const bool before = ls_no_grad(true);
    ls_forward(t->model, batch.input);
    ls_no_grad(before);
    LS_TRY(ls_scope_end(scope));
    ls_loader_free(loader);
    return LS_OK;
}

static ls_status scale(training *t, ls_comm *comm, outputs *o, const ls_lsuv_options *how) {
    ls_callback *const callbacks[] = {ls_lsuv(how),
                                      ls_callback_new(&(ls_callback_hooks){.on_start_epoch = note_weights}, o)};
    const training_plan plan = {
        .callbacks = callbacks, .callback_count = 2, .global_batch = 40, .learning_rate = 1e-300};
    LS_TRY(training_begin(t, &plan, comm));
    o->loader = t->train;
    return ls_trial_run(t->trial, 1);
}

static ls_status layers(ls_comm *world) {
    const ls_lsuv_options how = {.deviation = 1.5, .tolerance = 1e-9, .attempts = 30};
    training all, alone;
    outputs of_all = {.weights = 0}, of_one = {.weights = 0};
    LS_TRY(scale(&all, world, &of_all, &how));
    LS_TRY(scale(&alone, NULL, &of_one, &how));
    LS_CHECK(parameter_difference(all.model, alone.model) < 1e-9);
    LS_TRY(look(&alone, &of_one));
    LS_CHECK(fabs(of_one.deviations[0] - 1.5) < 1e-8 && fabs(of_one.deviations[1] - 1.5) < 1e-8);
    LS_TRY(same_on_all(world, (double)(of_all.weights >> 12)));
    const uint64_t hash = ls_module_hash(all.model);
    LS_TRY(ls_trial_run(all.trial, 2)); /* a second run does not scale again */
    LS_CHECK(ls_module_hash(all.model) == hash || parameter_difference(all.model, alone.model) < 1e-9);
    training_end(&all);
    training_end(&alone);
    return LS_OK;
}

static ls_status outputs_that_do_not_vary(ls_comm *world) {
    training t;
    LS_TRY(training_prepare(&t, &(training_plan){.global_batch = 12}, world));
    for (int i = 0; i < ls_module_parameter_count(t.model); i++) {
        LS_TRY(ls_nn_init_constant(ls_module_parameter(t.model, i), 0));
    }
    ls_callback *zeros = ls_lsuv(&(ls_lsuv_options){.keep_weights = true});
    training_start(&t, &(training_plan){.callbacks = &zeros, .callback_count = 1});
    LS_CHECK(ls_trial_run(t.trial, 1) == LS_ERR_STATE);
    LS_EXPECT_MESSAGE("ls_lsuv: the outputs of layer \"0\" have deviation 0");
    int64_t batch = -1;
    ls_loader_position(t.train, NULL, &batch);
    LS_CHECK(batch == 0 && ls_trial_run(t.trial, 1) == LS_ERR_STATE); /* the next run initializes again */
    training_end(&t);
    return LS_OK;
}

/* The loader is at the end of its epoch, so training begins with the next epoch. */
static ls_status end_of_an_epoch(ls_comm *world) {
    training t;
    ls_callback *own = ls_lsuv(NULL);
    LS_TRY(training_begin(&t, &(training_plan){.callbacks = &own, .callback_count = 1, .global_batch = 12}, world));
    LS_TRY(ls_loader_seek(t.train, 0, ls_loader_batch_count(t.train)));
    LS_TRY(ls_trial_run(t.trial, 1));
    int64_t epoch = -1;
    ls_loader_position(t.train, &epoch, NULL);
    LS_CHECK(epoch == 2);
    training_end(&t);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(rules(world));
    LS_TRY(sharded_layers(world));
    LS_TRY(normed_layers(world));
    LS_TRY(layers(world));
    LS_TRY(outputs_that_do_not_vary(world));
    LS_TRY(end_of_an_epoch(world));
    return ls_comm_barrier(world, NULL);
}
