/*
 * Lockstep's side of bench/gpu/run: training steps of the networks of examples/ and of GPT-2 on random data in device
 * memory. Steps are timed in windows of several steps. Each window ends by waiting for the device.
 *
 *     build-bench/bench/gpu_train --work mlp --batch-size 64 --device cuda:0
 *     build-bench/bench/gpu_train --work gpt --layers 12 --heads 12 --width 768 --context 1024 --vocabulary 50304
 * --tied \
 *         --batch-size 8 --bf16 --steps 20 --device cuda:0
 *
 * Prints the median of the windows as the examples do: `throughput: N samples/s`; a sample of gpt is a token.
 */
#include <inttypes.h>

#include <lockstep/lockstep.h>

#include "examples/arguments.h"

enum { BATCHES = 8, MOST_WINDOWS = 1000, MOST_LAYERS = 100, CLASSES = 10 };

static const char *work = "mlp";
static const char *device;
static long batch_size = 64;
static long steps = 200;
static long windows = 7;
static long warm_up = 20;
static long channels = 32;
static long layers = 4;
static long heads = 4;
static long width = 128;
static long context = 128;
static long vocabulary = 256;
static bool tied;
static bool bf16;
static bool by_trial;
static bool asked;

static const argument options[] = {
    {"--work", ARGUMENT_TEXT, &work, "mlp, cnn or gpt (mlp)"},
    {"--device", ARGUMENT_TEXT, &device, "cpu, cuda:0, ... (what LOCKSTEP_DEVICE says, else cpu)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "pictures, or rows of tokens, of a step (64)"},
    {"--steps", ARGUMENT_SIZE, &steps, "of a window (200)"},
    {"--windows", ARGUMENT_SIZE, &windows, "that are timed (7)"},
    {"--warm-up", ARGUMENT_COUNT, &warm_up, "steps before each window (20)"},
    {"--channels", ARGUMENT_SIZE, &channels, "cnn: of the first convolution (32)"},
    {"--layers", ARGUMENT_SIZE, &layers, "gpt: blocks (4)"},
    {"--heads", ARGUMENT_SIZE, &heads, "gpt: of attention (4)"},
    {"--width", ARGUMENT_SIZE, &width, "gpt: numbers a position (128)"},
    {"--context", ARGUMENT_SIZE, &context, "gpt: tokens of a row (128)"},
    {"--vocabulary", ARGUMENT_SIZE, &vocabulary, "gpt: how many kinds of tokens (256)"},
    {"--tied", ARGUMENT_FLAG, &tied, "gpt: the last layer has the weight of the embedding and no bias, as in GPT-2"},
    {"--bf16", ARGUMENT_FLAG, &bf16, "mixed precision"},
    {"--trial", ARGUMENT_FLAG, &by_trial, "steps of ls_trial, instead of a loop by hand"},
    {"--asked", ARGUMENT_FLAG, &asked, "each window waits for a line on standard input, and says what it took"},
};

/* ---- the networks ------------------------------------------------------------------------------------------------ */

/* 784-512-512-10, as in examples/fashion_mnist.c. */
static ls_module *build_mlp(void) {
    return ls_sequential(ls_nn_linear(784, 512), ls_nn_relu(), ls_nn_linear(512, 512), ls_nn_relu(),
                         ls_nn_linear(512, CLASSES));
}

static ls_module *convolution(int64_t in, int64_t out) {
    ls_module *windows_of_3 =
        ls_nn_conv_2d(in, out, LS_SHAPE(3), &(ls_conv_layer_options){.same = true, .no_bias = true});
    return ls_sequential(windows_of_3, ls_nn_batch_norm_2d(out, NULL), ls_nn_relu(),
                         ls_nn_max_pool(&(ls_max_pool_options){.kernel = LS_SHAPE(2)}));
}

/* The network of examples/cnn.c. */
static ls_module *build_cnn(void) {
    return ls_sequential(convolution(1, channels), convolution(channels, 2 * channels), ls_nn_flatten(),
                         ls_nn_linear(2 * channels * 7 * 7, 128), ls_nn_relu(), ls_nn_linear(128, CLASSES));
}

/* An embedding, whose weight the last layer shares if --tied is given. */
typedef struct gpt_state {
    ls_tensor *weight;
    ls_module *body, *head;
} gpt_state;

static ls_tensor *gpt_forward(ls_module *self, ls_tensor *tokens) {
    const gpt_state *state = ls_module_state(self);
    ls_tensor *x = ls_forward(state->body, ls_embedding(state->weight, tokens));
    return state->head != NULL ? ls_forward(state->head, x) : ls_linear(x, state->weight, NULL);
}

/* The network of examples/gpt.c --learned. */
static ls_module *build_gpt(void) {
    static const ls_module_type type = {.name = "Gpt", .state_size = sizeof(gpt_state), .forward = gpt_forward};
    ls_module *blocks[MOST_LAYERS];
    const ls_transformer_options block = {.norm_first = true, .activation = LS_MLP_GELU, .attention = {.causal = true}};
    for (long i = 0; i < layers; i++) {
        blocks[i] = ls_nn_transformer_block(width, heads, &block);
    }
    ls_module *body = ls_sequential(ls_nn_positions(context, width, LS_F32), ls_sequential_of(blocks, (int)layers),
                                    ls_nn_layer_norm(LS_SHAPE(width), NULL));
    ls_module *module = ls_module_new(&type);
    gpt_state *state = ls_module_state(module);
    if (state != NULL) {
        ls_tensor *weight = ls_mul(ls_randn(LS_SHAPE(vocabulary, width), LS_F32), 0.02);
        state->weight = ls_module_add_parameter(module, "weight", weight);
        state->body = ls_module_add_child(module, "body", body);
        state->head = tied ? NULL : ls_module_add_child(module, "head", ls_nn_linear(width, vocabulary));
    }
    return ls_module_finish(module);
}

/* Each position is a sample. */
static ls_tensor *next_token(ls_tensor *output, ls_tensor *target, void *user) {
    (void)user;
    return ls_cross_entropy(ls_reshape(output, LS_SHAPE(-1, vocabulary)), ls_reshape(target, LS_SHAPE(-1)), NULL);
}

/* ---- the trained model and its data ------------------------------------------------------------------------------ */

typedef struct training {
    const char *unit;
    double samples; /* per step */
    ls_module *model;
    ls_optimizer *optimizer;
    ls_criterion criterion;
    ls_tensor *inputs[BATCHES], *targets[BATCHES];
    int64_t step; /* steps so far */

    double began;
    long done; /* windows */
    double rates[MOST_WINDOWS];
    double loss;
} training;

static ls_status make_data(training *t, const ls_shape input, const ls_shape target, bool tokens) {
    for (int i = 0; i < BATCHES; i++) {
        t->inputs[i] = ls_keep(tokens ? ls_randint(input, LS_I64, 0, vocabulary) : ls_rand(input, LS_F32));
        t->targets[i] = ls_keep(ls_randint(target, LS_I64, 0, tokens ? vocabulary : CLASSES));
        if (t->inputs[i] == NULL || t->targets[i] == NULL) {
            return ls_error_status();
        }
    }
    return LS_OK;
}

static ls_status set_up(training *t) {
    ls_status status;
    ls_seed(1);
    t->unit = "samples";
    t->samples = (double)batch_size;
    t->criterion = ls_criterion_cross_entropy;
    if (strcmp(work, "mlp") == 0) {
        status = make_data(t, LS_SHAPE(batch_size, 784), LS_SHAPE(batch_size), false);
        t->model = build_mlp();
        t->optimizer = ls_adam(t->model, &(ls_adam_options){.learning_rate = 1e-3});
    } else if (strcmp(work, "cnn") == 0) {
        status = make_data(t, LS_SHAPE(batch_size, 1, 28, 28), LS_SHAPE(batch_size), false);
        t->model = build_cnn();
        t->optimizer = ls_adam(t->model, &(ls_adam_options){.learning_rate = 2e-3});
    } else if (strcmp(work, "gpt") == 0 && layers <= MOST_LAYERS) {
        status = make_data(t, LS_SHAPE(batch_size, context), LS_SHAPE(batch_size, context), true);
        t->unit = "tokens";
        t->samples *= (double)context;
        t->criterion = next_token;
        t->model = build_gpt();
        t->optimizer = ls_adamw(t->model, &(ls_adam_options){.learning_rate = 3e-4, .weight_decay = 0.1});
    } else {
        return ls_error_set(LS_ERR_ARGUMENT, "--work: there are mlp, cnn and gpt, of at most %d layers", MOST_LAYERS);
    }
    return status != LS_OK ? status : t->optimizer != NULL ? LS_OK : ls_error_status();
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A window begins after its warm-up steps. With --asked, the warm-up steps begin after a line on standard input. */
static ls_status before_step(training *t) {
    const int64_t place = t->step % (warm_up + steps);
    char line[256];
    if (place == 0 && asked && fgets(line, sizeof line, stdin) == NULL) {
        return ls_error_set(LS_ERR_IO, "nobody asks any more");
    }
    if (place == warm_up) {
        const ls_status status = ls_device_wait(device);
        t->began = ls_clock_seconds();
        return status;
    }
    return LS_OK;
}

static ls_status after_step(training *t, const ls_tensor *loss) {
    if (++t->step % (warm_up + steps) != 0) {
        return LS_OK;
    }
    const ls_status status = ls_device_wait(device);
    const double seconds = ls_clock_seconds() - t->began;
    t->loss = loss != NULL ? ls_item(loss) : t->loss;
    t->rates[t->done++] = (double)steps * t->samples / seconds;
    if (asked) {
        printf("window %.6f %.6f\n", seconds / (double)steps, t->loss);
        fflush(stdout);
    }
    return status;
}

static ls_status step_by_hand(training *t) {
    const int64_t batch = t->step % BATCHES;
    ls_optimizer_zero_grad(t->optimizer);
    ls_scope *scope = ls_scope_begin();
    const ls_dtype before = ls_autocast(bf16 ? LS_BF16 : LS_F32);
    ls_tensor *loss = t->criterion(ls_forward(t->model, t->inputs[batch]), t->targets[batch], NULL);
    (void)ls_autocast(before);
    ls_status status = ls_backward(loss);
    status = status == LS_OK ? ls_optimizer_step(t->optimizer) : status;
    status = status == LS_OK ? after_step(t, loss) : status;
    const ls_status ended = ls_scope_end(scope);
    return status == LS_OK ? ended : status;
}

static ls_status run_by_hand(training *t) {
    ls_status status = LS_OK;
    while (t->done < windows && status == LS_OK) {
        status = before_step(t);
        status = status == LS_OK ? step_by_hand(t) : status;
    }
    return status;
}

/* ---- the same with a trial, whose loader returns data in device memory ------------------------------------------- */

static ls_status next_batch(ls_loader *self, int64_t epoch, int64_t number, ls_batch *batch, bool *more) {
    const training *t = *(training **)ls_loader_state(self);
    (void)epoch;
    (void)more;
    batch->input = ls_alias(t->inputs[number % BATCHES]);
    batch->target = ls_alias(t->targets[number % BATCHES]);
    return LS_OK;
}

static ls_status on_sample(ls_trial_state *state, void *user) {
    (void)state;
    return before_step(user);
}

static ls_status on_step(ls_trial_state *state, void *user) {
    return after_step(user, state->loss);
}

static ls_status run_trial(training *t) {
    static const ls_loader_type type = {.name = "OnDevice", .state_size = sizeof(training *), .next = next_batch};
    const int64_t all = windows * (warm_up + steps);
    ls_loader *loader = ls_loader_custom(&type, all);
    if (loader == NULL) {
        return ls_error_status();
    }
    *(training **)ls_loader_state(loader) = t;
    ls_trial *trial = ls_trial_new(&(ls_trial_options){
        .model = t->model,
        .optimizer = t->optimizer,
        .criterion = t->criterion,
        .train = loader,
        .autocast = bf16 ? LS_BF16 : LS_F32,
        .quiet = true,
        LS_CALLBACKS(ls_callback_new(&(ls_callback_hooks){.on_sample = on_sample, .on_step_training = on_step}, t))});
    const ls_status status = trial != NULL ? ls_trial_run(trial, 1) : ls_error_status();
    ls_trial_free(trial);
    ls_loader_free(loader);
    return status;
}

/* ---- the results ------------------------------------------------------------------------------------------------- */

static void report(training *t) {
    qsort(t->rates, (size_t)t->done, sizeof *t->rates, compare);
    printf("parameters: %" PRId64 "\n", ls_module_size(t->model));
    printf("loss: %.4f\n", t->loss);
    printf("windows: %ld, from %.0f to %.0f\n", t->done, t->rates[0], t->rates[t->done - 1]);
    printf("throughput: %.0f %s/s\n", t->rates[t->done / 2], t->unit);
}

int main(int argc, char **argv) {
    static training t;
    ARGUMENTS_READ(argc, argv, "Times training steps on random data that lies on the device.", options);
    windows = windows < MOST_WINDOWS ? windows : MOST_WINDOWS;
    ls_scope *scope = ls_scope_begin();
    ls_status status = device != NULL ? ls_use_device(device) : LS_OK;
    device = status == LS_OK ? ls_default_device() : NULL;
    status = device != NULL ? set_up(&t) : ls_error_status();
    status = status == LS_OK ? (by_trial ? run_trial : run_by_hand)(&t) : status;
    if (status != LS_OK) {
        fprintf(stderr, "gpu_train: %s\n", ls_error_message());
        return 1;
    }
    report(&t);
    ls_optimizer_free(t.optimizer);
    ls_module_free(t.model);
    for (int i = 0; i < BATCHES; i++) {
        ls_release(t.inputs[i]);
        ls_release(t.targets[i]);
    }
    return ls_scope_end(scope) == LS_OK ? 0 : 1;
}
