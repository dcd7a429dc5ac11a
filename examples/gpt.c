/*
 * A small GPT that reads bytes. It learns to continue a text (the Jargon File or any file), data-parallel over all
 * ranks. It reports the loss on the last tenth of the text, which is not used for training, and then writes a sample.
 *
 *     lockstep run -n 2 build/examples/gpt
 *
 * On two ranks, this took ten minutes of processor time, and reached 1.45 nats per byte on the last tenth. The same
 * program runs alone, or on any number of ranks. With --learned, its parameters have the same names as in PyTorch, so
 * that weights can be exchanged.
 */
#include <lockstep/lockstep.h>

#include "arguments.h"
#include "text.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

static const char *file = TEXT;
static const char *load;
static const char *save;
static long layers = 4;
static long heads = 4;
static long width = 128;
static long context = 128;
static long batch_size = 16;
static long steps = 2000;
static long sample = 600;
static long seed = 1;
static double learning_rate = 3e-3;
static double temperature = 0.8;
static double dropout = 0;
static bool capture;
static bool learned;
static bool bf16;
static bool quiet;

static const argument options[] = {
    {"--file", ARGUMENT_TEXT, &file, "training text: any file, gzipped or not (Debian's jargon-text)"},
    {"--layers", ARGUMENT_SIZE, &layers, "number of transformer blocks (4)"},
    {"--heads", ARGUMENT_SIZE, &heads, "number of attention heads (4)"},
    {"--width", ARGUMENT_SIZE, &width, "embedding width, a multiple of the number of heads (128)"},
    {"--context", ARGUMENT_SIZE, &context, "context length in bytes (128)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "sequences per rank and step (16)"},
    {"--steps", ARGUMENT_COUNT, &steps, "number of training steps (2000)"},
    {"--lr", ARGUMENT_NUMBER, &learning_rate, "peak learning rate of AdamW (0.003)"},
    {"--dropout", ARGUMENT_PART, &dropout, "dropout probability (0)"},
    {"--learned", ARGUMENT_FLAG, &learned, "learned positions instead of rotary ones"},
    {"--load", ARGUMENT_TEXT, &load, "start from the weights in this safetensors file"},
    {"--save", ARGUMENT_TEXT, &save, "write the weights to this safetensors file"},
    {"--sample", ARGUMENT_COUNT, &sample, "bytes to generate at the end (600)"},
    {"--temperature", ARGUMENT_NUMBER, &temperature, "sampling temperature: low values prefer likely bytes (0.8)"},
    {"--seed", ARGUMENT_COUNT, &seed, "random seed of weights, order and sample (1)"},
    {"--bf16", ARGUMENT_FLAG, &bf16, "matrix products in bf16, the rest and the weights in f32"},
    {"--capture", ARGUMENT_FLAG, &capture, "record the first step, and replay it"},
    RECOMPUTE_ARGUMENT,
    DATA_PARALLEL_ARGUMENTS,
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

/* ---- the model --------------------------------------------------------------------------------------------------- */

static ls_module *build_model(void) {
    enum { MOST = 100 };
    if (layers > MOST) {
        (void)ls_error_set(LS_ERR_ARGUMENT, "--layers: %ld exceeds the limit of %d", layers, MOST);
        return NULL;
    }
    const ls_transformer_options block = {.norm_first = true,
                                          .activation = LS_MLP_GELU,
                                          .dropout = dropout,
                                          .attention = {.causal = true, .rotary = !learned}};
    ls_module *blocks[MOST];
    for (long i = 0; i < layers; i++) {
        blocks[i] = ls_nn_transformer_block(width, heads, &block);
    }
    ls_module *positions = learned ? ls_nn_positions(context, width, LS_F32) : ls_sequential_of(NULL, 0);
    return ls_sequential_named({"embedding", ls_nn_embedding(BYTES, width)}, {"positions", positions},
                               {"blocks", ls_sequential_of(blocks, (int)layers)},
                               {"norm", ls_nn_layer_norm(LS_SHAPE(width), NULL)}, {"head", ls_nn_linear(width, BYTES)});
}

/* ---- a sample ---------------------------------------------------------------------------------------------------- */

/* Begins after a newline, and draws one byte after the other. */
static ls_status write_sample(ls_module *model) {
    int64_t seen[4096] = {'\n'};
    const long most = context < 4096 ? context : 4096;
    long count = 1;
    ls_status status = LS_OK;
    ls_module_train(model, false);
    const bool before = ls_no_grad(true);
    ls_seed((uint64_t)seed);
    for (long i = 0; i < sample && status == LS_OK; i++) {
        ls_scope *scope = ls_scope_begin();
        ls_tensor *output = ls_forward(model, ls_from(LS_SHAPE(1, count), LS_I64, seen));
        const int byte = draw_byte(ls_select(ls_select(output, 0, 0), 0, -1), temperature);
        status = ls_scope_end(scope);
        if (status == LS_OK) {
            putchar(byte);
            if (count == most) {
                memmove(seen, seen + 1, (size_t)(--count) * sizeof *seen);
            }
            seen[count++] = byte;
        }
    }
    (void)ls_no_grad(before);
    putchar('\n');
    return status;
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Trains a small GPT on the bytes of a file, and writes a sample.", options);
    const text_task task = {.file = file,
                            .load = load,
                            .save = save,
                            .context = context,
                            .batch_size = batch_size,
                            .steps = steps,
                            .sample = sample,
                            .seed = seed,
                            .learning_rate = learning_rate,
                            .bf16 = bf16,
                            .quiet = quiet,
                            .capture = capture,
                            .build_model = build_model,
                            .write_sample = write_sample};
    ls_comm *world = ls_init(NULL);
    if (world == NULL || train_on_text(world, &task) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "gpt: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
