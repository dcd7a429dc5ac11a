/*
 * `lockstep doctor --hashes`: prints hashes of small trained models, and the settings on which their bits depend. Two
 * machines with equal hashes train these models bit-identically.
 */
#include <inttypes.h>
#include <stdio.h>

#include <lockstep/lockstep.h>

#include "base/processor.h"
#include "base/status.h"
#include "cli/doctor.h"
#include "tensor/device/cpu/libraries.h"
#include "tensor/scope.h"

/* Slices have 32 samples, so that the products are large enough for oneDNN and OpenBLAS. */
enum { SAMPLES = 320, HEIGHT = 16, WIDTH = 16, CLASSES = 10, BATCH = 128, SHARDS = 4, STEPS = 10, SEED = 1 };

/* ---- the models -------------------------------------------------------------------------------------------------- */

typedef struct reference_model {
    ls_module *(*make)(void);
    ls_dtype dtype;
    bool images; /* samples have shape [1, HEIGHT, WIDTH], otherwise [HEIGHT, WIDTH] */
} reference_model;

static ls_module *make_mlp(void) {
    return ls_sequential(ls_nn_flatten(), ls_nn_linear((int64_t)HEIGHT * WIDTH, 128), ls_nn_relu(), ls_nn_dropout(0.3),
                         ls_nn_linear(128, 64), ls_nn_tanh(), ls_nn_linear(64, CLASSES));
}

static ls_module *make_convolutions(void) {
    const ls_conv_layer_options same = {.same = true};
    return ls_sequential(ls_nn_conv_2d(1, 8, LS_SHAPE(3, 3), &same), ls_nn_group_norm(2, 8, NULL), ls_nn_relu(),
                         ls_nn_conv_2d(8, 8, LS_SHAPE(3, 3), &same), ls_nn_relu(), ls_nn_flatten(),
                         ls_nn_linear((int64_t)8 * HEIGHT * WIDTH, CLASSES));
}

static ls_module *make_attention(void) {
    return ls_sequential(ls_nn_transformer_block(WIDTH, 2, &(ls_transformer_options){.dropout = 0.1}), ls_nn_flatten(),
                         ls_nn_linear((int64_t)HEIGHT * WIDTH, CLASSES));
}

static ls_module *make_lstm(void) {
    return ls_sequential(ls_nn_lstm(WIDTH, 24, &(ls_recurrent_options){.dtype = LS_F64}), ls_nn_flatten(),
                         ls_nn_linear_with((int64_t)HEIGHT * 24, CLASSES, &(ls_linear_options){.dtype = LS_F64}));
}

static const reference_model mlp = {make_mlp, LS_F32, false}, convolutions = {make_convolutions, LS_F32, true},
                             attention = {make_attention, LS_F32, false}, lstm = {make_lstm, LS_F64, false};

/* ---- training ---------------------------------------------------------------------------------------------------- */

static ls_dataset *make_samples(const reference_model *reference) {
    const ls_shape shape = reference->images ? LS_SHAPE(SAMPLES, 1, HEIGHT, WIDTH) : LS_SHAPE(SAMPLES, HEIGHT, WIDTH);
    ls_tensor *input = ls_empty(shape, LS_F32);
    ls_tensor *target = ls_empty(LS_SHAPE(SAMPLES), LS_I64);
    float *x = ls_data(input);
    int64_t *classes = ls_data(target);
    for (int64_t i = 0; x != NULL && i < ls_numel(input); i++) {
        x[i] = (float)ls_random_normal(SEED, 1, (uint64_t)i);
    }
    for (int64_t i = 0; classes != NULL && i < SAMPLES; i++) {
        classes[i] = (int64_t)(ls_random_u32(SEED, 2, (uint64_t)i) % CLASSES);
    }
    return ls_tensor_dataset(ls_to(input, reference->dtype), target);
}

static ls_tensor *loss_of(const ls_batch *batch, void *model) {
    return ls_cross_entropy(ls_forward(model, batch->input), batch->target, NULL);
}

static ls_status train(ls_module *model, ls_optimizer *optimizer, ls_loader *loader) {
    for (int step = 0; step < STEPS; step++) {
        ls_batch batch;
        bool more;
        LS_TRY(ls_loader_next(loader, &batch, &more));
        LS_TRY(more ? LS_OK : ls_loader_next(loader, &batch, &more));
        ls_optimizer_zero_grad(optimizer);
        LS_TRY(ls_data_parallel_step(model, &batch, loss_of, model));
        LS_TRY(ls_clip_grad_norm(model, 1, NULL));
        LS_TRY(ls_optimizer_step(optimizer));
    }
    return LS_OK;
}

typedef struct reference_training {
    const reference_model *reference;
    uint64_t hash;
} reference_training;

/* Trains on one rank, regardless of the job that the environment describes. */
static ls_status train_on(ls_comm *world, void *user) {
    reference_training *t = user;
    LS_TRY(ls_use_device("cpu"));
    ls_seed(SEED);
    ls_scope *scope = ls_scope_begin();
    ls_module *model = ls_data_parallel(t->reference->make(), world, &(ls_data_parallel_options){.shards = SHARDS});
    ls_optimizer *optimizer = ls_adam(model, &(ls_adam_options){.learning_rate = 0.01});
    ls_loader *loader =
        ls_loader_new(make_samples(t->reference),
                      &(ls_loader_options){.global_batch_size = BATCH, .comm = world, .seed = SEED, .shards = SHARDS});
    const ls_status status =
        model != NULL && optimizer != NULL && loader != NULL ? train(model, optimizer, loader) : ls_error_status();
    t->hash = status == LS_OK ? ls_module_hash(model) : 0;
    ls_loader_free(loader);
    ls_optimizer_free(optimizer);
    ls_module_free(model);
    return ls_scope_end_after(scope, status);
}

/* ---- the checks -------------------------------------------------------------------------------------------------- */

static void check_processor(ls_doctor_report *report, const ls_doctor_check *check) {
    char processor[LS_PROCESSOR_CAPACITY];
    ls_processor_describe(processor);
    ls_report_fact(report, check->name, ls_report_text(processor), "%s", processor);
}

static void check_libraries(ls_doctor_report *report, const ls_doctor_check *check) {
    const char *libraries = ls_cpu_libraries_describe();
    ls_report_fact(report, check->name, ls_report_text(libraries), "%s", libraries);
    if (ls_onednn_open() == NULL) {
        ls_report_note(report, "without plug-in onednn, the bits depend on the number of OpenBLAS threads: set "
                               "OMP_NUM_THREADS to the same number everywhere");
    }
}

static void check_hash(ls_doctor_report *report, const ls_doctor_check *check) {
    reference_training t = {.reference = check->data};
    if (ls_run_threads(1, train_on, &t) != LS_OK) {
        ls_report_fact(report, check->name, json_null(), "no hash: %s", ls_error_message());
        ls_report_problem(report, "training the reference model \"%s\" failed: %s", check->name, ls_error_message());
        return;
    }
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, t.hash);
    ls_report_fact(report, check->name, json_string(hash), "%s", hash);
}

const ls_doctor_check ls_doctor_hashes[] = {
    {"processor", "arithmetic", check_processor, NULL},
    {"libraries", "arithmetic", check_libraries, NULL},
    {"mlp", "hashes", check_hash, &mlp},
    {"convolutions", "hashes", check_hash, &convolutions},
    {"attention", "hashes", check_hash, &attention},
    {"lstm_f64", "hashes", check_hash, &lstm},
    {NULL, NULL, NULL, NULL},
};
