/*
 * Loads a checkpoint, trains until one epoch has run, and saves, for checkpoint_split.sh:
 *
 *     split_program WAY LOAD SAVE
 *
 * WAY is how the ranks share the model: unsplit, tensor or stages. All have the same tensors, of which one has two
 * names. LOAD is a checkpoint, or - for none.
 */
#include <stdio.h>
#include <string.h>

#include <lockstep/lockstep.h>

enum { SAMPLES = 24, INPUTS = 6, HIDDEN = 8, CLASSES = 3 };

/* A layer that runs a child under two names. */
static ls_tensor *twice_forward(ls_module *self, ls_tensor *x) {
    return ls_forward(ls_module_child(self, 1), ls_tanh(ls_forward(ls_module_child(self, 0), x)));
}

static ls_module *twice(void) {
    static const ls_module_type type = {.name = "Twice", .forward = twice_forward};
    ls_module *module = ls_module_new(&type), *layer = ls_nn_linear(HIDDEN, HIDDEN);
    (void)ls_module_add_child(module, "first", layer);
    (void)ls_module_add_child(module, "second", layer);
    return ls_module_finish(module);
}

static ls_module *make_model(ls_comm *world, const char *way) {
    const bool tensor = strcmp(way, "tensor") == 0;
    ls_module *model = ls_sequential(
        tensor ? ls_nn_column_parallel(world, INPUTS, HIDDEN, NULL) : ls_nn_linear(INPUTS, HIDDEN), ls_nn_tanh(),
        tensor ? ls_nn_row_parallel(world, HIDDEN, HIDDEN, NULL) : ls_nn_linear(HIDDEN, HIDDEN),
        ls_nn_batch_norm_1d(HIDDEN, NULL), twice(), ls_nn_linear(HIDDEN, CLASSES));
    return strcmp(way, "stages") == 0 ? ls_pipeline(model, world, &(ls_pipeline_options){.micro_batches = 2}) : model;
}

static ls_status step_stages(ls_trial_state *state, void *user) {
    double loss = 0;
    (void)user;
    ls_optimizer_zero_grad(state->optimizer);
    const ls_status status =
        ls_pipeline_backward(state->model, state->input, state->target, ls_criterion_cross_entropy, NULL, &loss);
    state->loss = ls_scalar(loss, LS_F64);
    return status == LS_OK ? ls_optimizer_step(state->optimizer) : status;
}

static ls_loader *make_loader(void) {
    ls_tensor *input = ls_randn(LS_SHAPE(SAMPLES, INPUTS), LS_F32), *target = ls_empty(LS_SHAPE(SAMPLES), LS_I64);
    for (int64_t i = 0; i < SAMPLES; i++) {
        ((int64_t *)ls_data(target))[i] = i % CLASSES;
    }
    return ls_loader_new(ls_tensor_dataset(input, target), &(ls_loader_options){.batch_size = 12});
}

static ls_status run(ls_comm *world, char **arguments) {
    const char *way = arguments[1], *load = arguments[2], *save = arguments[3];
    ls_seed(1);
    ls_module *model = make_model(world, way);
    ls_optimizer *optimizer = ls_adam(model, NULL);
    ls_loader *loader = make_loader();
    ls_trial *trial = ls_trial_new(&(ls_trial_options){.model = model,
                                                       .optimizer = optimizer,
                                                       .criterion = ls_criterion_cross_entropy,
                                                       .train = loader,
                                                       .comm = world,
                                                       .step = strcmp(way, "stages") == 0 ? step_stages : NULL,
                                                       .quiet = true});
    ls_status status = trial != NULL ? LS_OK : ls_error_status();
    status = status == LS_OK && strcmp(load, "-") != 0 ? ls_trial_load(trial, load) : status;
    status = status == LS_OK ? ls_trial_run(trial, 1) : status;
    status = status == LS_OK ? ls_trial_save(trial, save) : status;
    ls_trial_free(trial);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    ls_loader_free(loader);
    return status;
}

int main(int argc, char **argv) {
    ls_comm *world = argc == 4 ? ls_init(NULL) : NULL;
    if (world == NULL) {
        return 2;
    }
    const ls_status status = run(world, argv);
    if (status != LS_OK) {
        fprintf(stderr, "rank %d: %s\n", ls_comm_rank(world), ls_error_message());
    }
    ls_finalize();
    return status == LS_OK ? 0 : 1;
}
