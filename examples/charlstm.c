/*
 * An LSTM that reads bytes. It learns to continue a text (the Jargon File or any file), data-parallel over all ranks.
 * It reports the loss on the last tenth of the text, which is not used for training, and then writes a sample; the
 * LSTM's states are carried from byte to byte.
 *
 *     lockstep run -n 2 build/examples/charlstm
 *
 * On two ranks, this took 45 seconds of processor time per rank, and reached 1.68 nats per byte on the last tenth. The
 * same program runs alone, or on any number of ranks.
 */
#include <lockstep/lockstep.h>

#include "arguments.h"
#include "text.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

static const char *file = TEXT;
static const char *load;
static const char *save;
static long layers = 2;
static long width = 128;
static long context = 64;
static long batch_size = 16;
static long steps = 2000;
static long sample = 300;
static long seed = 1;
static double learning_rate = 1e-2;
static double temperature = 0.8;
static bool bf16;
static bool quiet;

static const argument options[] = {
    {"--file", ARGUMENT_TEXT, &file, "training text: any file, gzipped or not (Debian's jargon-text)"},
    {"--layers", ARGUMENT_SIZE, &layers, "number of LSTM layers (2)"},
    {"--width", ARGUMENT_SIZE, &width, "width of the hidden state (128)"},
    {"--context", ARGUMENT_SIZE, &context, "bytes per training sequence (64)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "sequences per rank and step (16)"},
    {"--steps", ARGUMENT_COUNT, &steps, "number of training steps (2000)"},
    {"--lr", ARGUMENT_NUMBER, &learning_rate, "peak learning rate of AdamW (0.01)"},
    {"--load", ARGUMENT_TEXT, &load, "start from the weights in this safetensors file"},
    {"--save", ARGUMENT_TEXT, &save, "write the weights to this safetensors file"},
    {"--sample", ARGUMENT_COUNT, &sample, "bytes to generate at the end (300)"},
    {"--temperature", ARGUMENT_NUMBER, &temperature, "sampling temperature: low values prefer likely bytes (0.8)"},
    {"--seed", ARGUMENT_COUNT, &seed, "random seed of weights, order and sample (1)"},
    {"--bf16", ARGUMENT_FLAG, &bf16, "matrix products in bf16, the rest and the weights in f32"},
    DATA_PARALLEL_ARGUMENTS,
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

/* ---- the model --------------------------------------------------------------------------------------------------- */

enum { EMBEDDING, LSTM, HEAD };

static ls_module *build_model(void) {
    const ls_recurrent_options recurrent = {.layers = (int)layers, .dropout = 0.1};
    return ls_sequential(ls_nn_embedding(BYTES, width), ls_nn_lstm(width, width, &recurrent),
                         ls_nn_linear(width, BYTES));
}

/* ---- a sample ---------------------------------------------------------------------------------------------------- */

/* Draws the byte after `byte`, and replaces the states h and c with the next states. Returns -1 on failure. */
static int next_of(ls_module *model, int byte, ls_tensor **h, ls_tensor **c) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *x = ls_forward(ls_module_child(model, EMBEDDING), ls_full(LS_SHAPE(1, 1), LS_I64, byte));
    ls_tensor *inputs[] = {x, *h, *c}, *outputs[3] = {NULL};
    (void)ls_forward_many(ls_module_child(model, LSTM), inputs, 3, outputs, 3);
    ls_tensor *logits = ls_forward(ls_module_child(model, HEAD), outputs[0]);
    const int next = draw_byte(ls_reshape(logits, LS_SHAPE(BYTES)), temperature);
    ls_release(*h);
    ls_release(*c);
    *h = ls_keep(ls_clone(outputs[1]));
    *c = ls_keep(ls_clone(outputs[2]));
    return ls_scope_end(scope) == LS_OK ? next : -1;
}

/* Starts after a newline, and draws one byte at a time. */
static ls_status write_sample(ls_module *model) {
    ls_tensor *h = NULL, *c = NULL;
    ls_module_train(model, false);
    const bool before = ls_no_grad(true);
    ls_seed((uint64_t)seed);
    int byte = '\n';
    for (long i = 0; i < sample && byte >= 0; i++) {
        byte = next_of(model, byte, &h, &c);
        if (byte >= 0) {
            putchar(byte);
        }
    }
    (void)ls_no_grad(before);
    ls_release(h);
    ls_release(c);
    putchar('\n');
    return byte >= 0 ? LS_OK : ls_error_status();
}

int main(int argc, char **argv) {
    ARGUMENTS_READ(argc, argv, "Trains an LSTM on the bytes of a file, and writes a sample.", options);
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
                            .build_model = build_model,
                            .write_sample = write_sample};
    ls_comm *world = ls_init(NULL);
    if (world == NULL || train_on_text(world, &task) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "charlstm: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
