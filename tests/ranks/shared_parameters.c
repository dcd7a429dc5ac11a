/*
 * Parameters that occur several times in a model, trained on several ranks: each is sent as one parameter, and training
 * gives the same result as in a single process. A pipeline accepts such parameters if all uses are in one stage.
 *
 * ranks: 1 2 3 4 5
 * devices: cpu shadow cuda
 */
#include "tests/support/ranks.h"

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#include "tests/support/numbers.h"

enum { ROWS = 12, WIDTH = 6, HIDDEN = 4, STEPS = 4, SEED = 11 };

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct projection {
    ls_tensor *weight;
    bool back;
} projection;

static ls_tensor *projection_forward(ls_module *self, ls_tensor *input) {
    const projection *p = ls_module_state(self);
    return p->back ? ls_linear(input, p->weight, NULL) : ls_matmul(input, p->weight);
}

/* Creates a module that multiplies x by the matrix `weight`, or by its transpose. */
static ls_module *project(ls_tensor *weight, bool back) {
    static const ls_module_type type = {
        .name = "Projection", .state_size = sizeof(projection), .forward = projection_forward};
    ls_module *module = ls_module_new(&type);
    projection *p = ls_module_state(module);
    *p = (projection){.weight = ls_module_add_parameter(module, "weight", weight), .back = back};
    return ls_module_finish(module);
}

static ls_tensor *drawn(void) {
    ls_tensor *weight = ls_empty(LS_SHAPE(WIDTH, HIDDEN), LS_F64);
    return ls_nn_init_xavier_uniform(weight, 1) == LS_OK ? weight : NULL;
}

/* An autoencoder with one weight for encoder and decoder, "0.weight" and "5.weight", and a layer that is used twice. */
static ls_module *tied_model(void) {
    ls_tensor *weight = drawn();
    ls_module *layer = ls_nn_linear_with(HIDDEN, HIDDEN, &(ls_linear_options){.dtype = LS_F64});
    return ls_sequential(project(weight, false), layer, ls_nn_tanh(), layer, ls_nn_tanh(), project(weight, true));
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static ls_tensor *rows_of(int step, int64_t first, int64_t last) {
    ls_tensor *rows = ls_empty(LS_SHAPE(last - first, WIDTH), LS_F64);
    for (int64_t i = 0; rows != NULL && i < ls_numel(rows); i++) {
        numbers_set(rows, i, ls_random_normal(SEED, (uint64_t)step, (uint64_t)(first * WIDTH + i)));
    }
    return rows;
}

static ls_status backward(ls_module *model, int step, int64_t first, int64_t last) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = rows_of(step, first, last);
    const ls_status status = ls_backward(ls_mse_loss(ls_forward(model, x), x, LS_LOSS_MEAN));
    const ls_status ended = ls_scope_end(scope);
    return status != LS_OK ? status : ended;
}

/* Trains with the samples of rank `rank` of `size`. The ranks of `comm` average their gradients; with NULL, this
 * process trains alone. */
static ls_status train(ls_module *model, ls_comm *comm, bool wrapped, int rank, int size) {
    ls_optimizer *optimizer = ls_adamw(model, &(ls_adam_options){.learning_rate = 0.05});
    LS_CHECK(optimizer != NULL);
    for (int step = 0; step < STEPS; step++) {
        ls_optimizer_zero_grad(optimizer);
        LS_TRY(backward(model, step, ROWS * rank / size, ROWS * (rank + 1) / size));
        if (comm != NULL && !wrapped) {
            LS_TRY(ls_sync_gradients(model, comm));
        }
        double norm = 0;
        LS_TRY(ls_clip_grad_norm(model, 0.1, &norm));
        LS_CHECK(norm > 0.1);
        LS_TRY(ls_optimizer_step(optimizer));
    }
    const ls_named *tensors = NULL;
    int count = 0;
    LS_TRY(ls_optimizer_state(optimizer, &tensors, &count));
    LS_CHECK(count == 1 + 3 * ls_module_parameter_count(model));
    ls_optimizer_free(optimizer);
    return LS_OK;
}

static ls_status close(const ls_module *is, const ls_module *want) {
    LS_CHECK(ls_module_parameter_count(is) == 3 && ls_module_parameter_count(want) == 3);
    for (int i = 0; i < 3; i++) {
        LS_CHECK(ls_allclose(ls_module_parameter(is, i), ls_module_parameter(want, i), 1e-11, 1e-12));
    }
    return LS_OK;
}

static ls_status same_hash(ls_comm *world, const ls_module *model) {
    const int64_t hash = (int64_t)ls_module_hash(model);
    int64_t most = hash;
    int64_t least = hash;
    LS_TRY(ls_comm_allreduce(world, &most, &most, 1, LS_I64, LS_MAX, NULL));
    LS_TRY(ls_comm_allreduce(world, &least, &least, 1, LS_I64, LS_MIN, NULL));
    LS_CHECK(most == least);
    return LS_OK;
}

/* Uses ls_data_parallel with shares of different sizes, and also plain calls if shares are equal. */
static ls_status trains_like_one_process(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    const int size = ls_comm_size(world);
    for (int wrapped = 0; wrapped < 2; wrapped++) {
        if (wrapped == 0 && ROWS % size != 0) {
            continue;
        }
        ls_seed((uint64_t)(SEED + rank)); /* ranks start with different parameters, but rank 0's are used */
        ls_module *model = tied_model();
        model = wrapped ? ls_data_parallel(model, world, NULL) : model;
        LS_CHECK(model != NULL);
        if (!wrapped) {
            LS_TRY(ls_sync_parameters(model, world, 0));
        }
        ls_seed(SEED);
        ls_module *alone = tied_model();
        LS_CHECK(ls_module_hash(model) == ls_module_hash(alone));
        LS_TRY(train(model, world, wrapped, rank, size));
        LS_TRY(train(alone, NULL, false, 0, 1));
        LS_TRY(close(model, alone));
        LS_TRY(same_hash(world, model));
        LS_CHECK(ls_module_find(model, "0.weight") == ls_module_find(model, "5.weight"));
        ls_module_free(model);
        ls_module_free(alone);
    }
    return LS_OK;
}

/* Two wrapped models share one weight. */
static ls_status two_models_share(ls_comm *world) {
    const int rank = ls_comm_rank(world);
    ls_seed((uint64_t)(SEED + rank));
    ls_tensor *weight = drawn();
    ls_module *there = ls_data_parallel(project(weight, false), world, NULL);
    ls_module *back = ls_data_parallel(project(weight, true), world, NULL);
    LS_CHECK(there != NULL && back != NULL);
    ls_optimizer *optimizer = ls_sgd(there, &(ls_sgd_options){.learning_rate = 0.1});
    for (int step = 0; step < 2; step++) {
        ls_optimizer_zero_grad(optimizer);
        ls_scope *scope = ls_scope_begin();
        ls_tensor *x = rows_of(step, 2 * rank, 2 * rank + 2);
        LS_TRY(ls_backward(ls_mse_loss(ls_forward(back, ls_forward(there, x)), x, LS_LOSS_MEAN)));
        LS_TRY(ls_scope_end(scope));
        LS_TRY(ls_optimizer_step(optimizer));
        LS_TRY(same_hash(world, there));
    }
    ls_optimizer_free(optimizer);
    ls_module_free(there);
    LS_TRY(same_hash(world, back));
    ls_module_free(back);
    return LS_OK;
}

/* A model is used after its wrapper was freed. */
static ls_status the_model_outlives_its_wrapper(ls_comm *world) {
    ls_module *model = ls_module_retain(tied_model());
    for (int i = 0; i < 2; i++) {
        ls_module *parallel = ls_data_parallel(model, world, NULL);
        LS_CHECK(parallel != NULL);
        LS_TRY(backward(parallel, i, 0, 2));
        ls_module_free(parallel);
        LS_CHECK(ls_data_parallel(model, NULL, NULL) == NULL);
    }
    LS_CHECK(ls_module_size(model) == WIDTH * HIDDEN + HIDDEN * HIDDEN + HIDDEN);
    ls_module_free(model);
    return LS_OK;
}

/* ---- pipelines --------------------------------------------------------------------------------------------------- */

static ls_module *straight(void) {
    return ls_nn_linear_with(WIDTH, WIDTH, &(ls_linear_options){.dtype = LS_F64});
}

/*
 * Makes `size` - 1 layers before two layers that share a parameter. Either both are in the last stage, or a stage would
 * begin between them.
 */
static ls_module *with_shared_end(int size) {
    ls_module *layers[16];
    for (int i = 0; i < size - 1; i++) {
        layers[i] = straight();
    }
    layers[size - 1] = layers[size] = straight();
    return ls_sequential_of(layers, size + 1);
}

static ls_status pipelines(ls_comm *world) {
    const int size = ls_comm_size(world);
    int cut[16];
    for (int stage = 1; stage < size; stage++) {
        cut[stage - 1] = stage;
    }
    ls_pipeline_options options = {.cut = cut, .micro_batches = 2};
    ls_seed(SEED);
    ls_module *pipeline = ls_pipeline(with_shared_end(size), world, &options);
    ls_seed(SEED);
    ls_module *alone = with_shared_end(size);
    LS_CHECK(pipeline != NULL && alone != NULL);
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = rows_of(0, 0, ROWS);
    double loss = 0;
    LS_TRY(ls_pipeline_backward(pipeline, x, x, ls_criterion_mse, NULL, &loss));
    LS_TRY(ls_backward(ls_mse_loss(ls_forward(alone, x), x, LS_LOSS_MEAN)));
    for (int i = 0; i < ls_module_parameter_count(pipeline); i++) {
        const ls_tensor *want = ls_module_find(alone, ls_module_parameter_name(pipeline, i));
        LS_CHECK(ls_allclose(ls_grad(ls_module_parameter(pipeline, i)), ls_grad(want), 1e-11, 1e-12));
    }
    LS_TRY(ls_scope_end(scope));
    ls_module_free(pipeline);
    ls_module_free(alone);
    if (size == 1) {
        return LS_OK;
    }
    cut[size - 2] = size;
    LS_CHECK(ls_pipeline(with_shared_end(size), world, &options) == NULL && ls_error_status() == LS_ERR_UNSUPPORTED);
    char sentence[200];
    snprintf(
        sentence, sizeof sentence,
        "ls_pipeline: \"%d.weight\" in stage %d (rank %d) and \"%d.weight\" in stage %d (rank %d) are the same tensor",
        size - 1, size - 2, size - 2, size, size - 1, size - 1);
    LS_EXPECT_MESSAGE(sentence);
    return LS_OK;
}

/* A retained model remains complete after its pipeline was freed. */
static ls_status a_model_outlives_its_pipeline(ls_comm *world) {
    ls_module *model = ls_module_retain(with_shared_end(ls_comm_size(world)));
    ls_module_free(ls_pipeline(model, world, NULL));
    LS_CHECK(ls_module_parameter_count(model) == 2 * ls_comm_size(world));
    ls_module_free(model);
    return LS_OK;
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(trains_like_one_process(world));
    LS_TRY(two_models_share(world));
    LS_TRY(the_model_outlives_its_wrapper(world));
    LS_TRY(pipelines(world));
    return a_model_outlives_its_pipeline(world);
}
