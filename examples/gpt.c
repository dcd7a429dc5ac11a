/*
 * A small GPT that reads bytes: it learns to continue any file, data-parallel over all ranks, and then writes a sample.
 *
 *     lockstep run -n 2 build/examples/gpt --file README.md
 *
 * The same program runs alone, or as any number of ranks.
 */
#include <lockstep/lockstep.h>

#include "arguments.h"
#include "text.h"

/* ---- what can be chosen ------------------------------------------------------------------------------------------ */

static const char *file = "README.md";
static long layers = 4;
static long heads = 4;
static long width = 128;
static long context = 64;
static long batch_size = 16;
static long steps = 500;
static long sample = 300;
static long seed = 1;
static double learning_rate = 1e-3;
static double temperature = 0.8;
static double dropout = 0.1;
static bool rotary;
static bool quiet;

static const argument options[] = {
    {"--file", ARGUMENT_TEXT, &file, "what to learn, any file (README.md)"},
    {"--layers", ARGUMENT_SIZE, &layers, "blocks of attention and MLP (4)"},
    {"--heads", ARGUMENT_SIZE, &heads, "of attention (4)"},
    {"--width", ARGUMENT_SIZE, &width, "numbers a position, a multiple of the heads (128)"},
    {"--context", ARGUMENT_SIZE, &context, "bytes that it sees (64)"},
    {"--batch-size", ARGUMENT_SIZE, &batch_size, "pieces of the file per rank and step (16)"},
    {"--steps", ARGUMENT_SIZE, &steps, "of training (500)"},
    {"--lr", ARGUMENT_NUMBER, &learning_rate, "AdamW's learning rate at its highest (0.001)"},
    {"--dropout", ARGUMENT_PART, &dropout, "the part of the numbers that training leaves out (0.1)"},
    {"--rotary", ARGUMENT_FLAG, &rotary, "rotary positions instead of learned ones"},
    {"--sample", ARGUMENT_COUNT, &sample, "bytes to write at the end (300)"},
    {"--temperature", ARGUMENT_NUMBER, &temperature, "below 1 it keeps to what is likely (0.8)"},
    {"--seed", ARGUMENT_COUNT, &seed, "of weights, order and sample (1)"},
    {"--quiet", ARGUMENT_FLAG, &quiet, "only the result lines"},
};

/* ---- the model --------------------------------------------------------------------------------------------------- */

static ls_module *build_model(void) {
    enum { MOST = 128 };
    if (layers > MOST - 5) {
        (void)ls_error_set(LS_ERR_ARGUMENT, "--layers: %ld are more than %d", layers, MOST - 5);
        return NULL;
    }
    const ls_transformer_options block = {.dropout = dropout, .attention = {.causal = true, .rotary = rotary}};
    ls_module *parts[MOST];
    int count = 0;
    parts[count++] = ls_nn_embedding(BYTES, width);
    if (!rotary) {
        parts[count++] = ls_nn_positions(context, width, NULL);
    }
    for (long i = 0; i < layers; i++) {
        parts[count++] = ls_nn_transformer_block(width, heads, &block);
    }
    parts[count++] = ls_nn_layer_norm(LS_SHAPE(width), NULL);
    parts[count++] = ls_nn_linear(width, BYTES);
    return ls_sequential_of(parts, count);
}

/* ---- a sample ---------------------------------------------------------------------------------------------------- */

/* Begins with a byte, and goes on with one after the other. */
static ls_status write_sample(ls_module *model, int first) {
    int64_t seen[4096] = {first};
    const long most = context < 4096 ? context : 4096;
    long count = 1;
    ls_status status = LS_OK;
    ls_module_train(model, false);
    const bool before = ls_no_grad(true);
    ls_seed((uint64_t)seed);
    putchar(first);
    for (long i = 1; i < sample && status == LS_OK; i++) {
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
                            .context = context,
                            .batch_size = batch_size,
                            .steps = steps,
                            .sample = sample,
                            .seed = seed,
                            .learning_rate = learning_rate,
                            .quiet = quiet,
                            .build_model = build_model,
                            .write_sample = write_sample};
    ls_comm *world = ls_init(NULL);
    if (world == NULL || train_on_text(world, &task) != LS_OK || ls_finalize() != LS_OK) {
        fprintf(stderr, "gpt: %s\n", ls_error_message());
        return 1;
    }
    return 0;
}
