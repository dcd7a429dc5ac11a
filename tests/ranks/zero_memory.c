/*
 * The memory of data-parallel training with Adam and 10 M parameters of f32: in every ZeRO stage, the peak of tensor
 * memory agrees with the formula in docs/explanation/sharded-state.md. In stage 3, so does the resident memory of a
 * process. Gradients that are sent as bf16 need the memory of half a unit in addition.
 *
 * ranks: 2 4 8
 * devices: cpu
 */
#include "tests/support/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <lockstep/optim.h>
#include <lockstep/parallel.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { WIDTH = 250, LAYERS = 16 }; /* ten times as slow */
#else
enum { WIDTH = 790, LAYERS = 16 };
#endif

static const double PARAMETERS = (double)LAYERS * WIDTH * (WIDTH + 1), UNIT = 4.0 * WIDTH * (WIDTH + 1);

/* Returns the number of bytes that a rank needs in addition to activations. */
static double formula(int zero, ls_dtype wire, double ranks) {
    const double encoded = wire == LS_F32 ? 0 : zero < 2 ? 2 * PARAMETERS : UNIT / 2;
    switch (zero) {
    case 0:
        return 16 * PARAMETERS + encoded;
    case 1:
        return 8 * PARAMETERS + 8 * PARAMETERS / ranks + encoded;
    case 2:
        return 4 * PARAMETERS + 12 * PARAMETERS / ranks + UNIT + encoded;
    default:
        return 16 * PARAMETERS / ranks + 2 * UNIT + encoded;
    }
}

static ls_status step(ls_module *module, ls_optimizer *optimizer, int width) {
    ls_scope *scope = ls_scope_begin();
    ls_optimizer_zero_grad(optimizer);
    LS_TRY(ls_backward(ls_mean(ls_square(ls_forward(module, ls_ones(LS_SHAPE(2, width), LS_F32))))));
    LS_TRY(ls_optimizer_step(optimizer));
    return ls_scope_end(scope);
}

/* Resets the peak of resident memory, if the system allows it. */
static void forget_peak(void) {
    FILE *file = fopen("/proc/self/clear_refs", "we");
    if (file != NULL) {
        fputs("5", file);
        fclose(file);
    }
}

/* Runs three training steps, and sets *bytes to the peak of tensor memory after the construction. */
static ls_status train(ls_comm *world, int zero, ls_dtype wire, int width, double *bytes) {
    ls_module *layers[LAYERS];
    ls_seed(1);
    for (int i = 0; i < LAYERS; i++) {
        layers[i] = ls_nn_linear(width, width);
    }
    ls_module *module = ls_data_parallel(ls_sequential_of(layers, LAYERS), world,
                                         &(ls_data_parallel_options){.zero = zero, .reduce_dtype = wire});
    ls_optimizer *optimizer = ls_adam(module, NULL);
    LS_CHECK(optimizer != NULL);
    LS_TRY(ls_memory_reset_peak());
    forget_peak();
    for (int i = 0; i < 3; i++) {
        LS_TRY(step(module, optimizer, width));
    }
    ls_memory memory;
    LS_TRY(ls_memory_stats(&memory));
    *bytes = (double)memory.peak_total - (double)memory.peak[LS_MEMORY_ACTIVATIONS];
    ls_optimizer_free(optimizer);
    ls_module_free(module);
    return LS_OK;
}

/* Returns a memory statistic of the process in bytes, or -1 if the system does not provide it. */
static double resident(const char *name) {
    FILE *file = fopen("/proc/self/status", "re");
    char line[256];
    double kilobytes = -1;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) {
            kilobytes = strtod(line + strlen(name) + 1, NULL);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return kilobytes < 0 ? -1 : 1024 * kilobytes;
}

/* Sets *alone if no two ranks are threads of one process. */
static ls_status are_processes(ls_comm *world, bool *alone) {
    const int64_t own = getpid();
    int64_t sides[] = {own, -own};
    LS_TRY(ls_comm_allreduce(world, sides, sides, 2, LS_I64, LS_MAX, NULL));
    *alone = sides[0] != -sides[1];
    return LS_OK;
}

/*
 * The working memory of collectives does not depend on the model, and a small training run has allocated most of it.
 * The limit allows 8 MB for the rest. Sanitizers keep freed memory.
 */
static ls_status test_resident(ls_comm *world, ls_dtype wire) {
    bool alone = false;
    LS_TRY(are_processes(world, &alone));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    alone = false;
#endif
    double bytes = 0;
    LS_TRY(train(world, 3, wire, 64, &bytes));
    const double before = resident("VmRSS");
    if (!alone || before < 0) {
        return LS_OK;
    }
    LS_TRY(train(world, 3, wire, WIDTH, &bytes));
    const double grown = resident("VmHWM") - before, expected = formula(3, wire, ls_comm_size(world));
    return grown <= 1.03 * expected + 8e6
               ? LS_OK
               : ls_fail(LS_ERR_INTERNAL,
                         ".zero = 3, %s gradients: resident memory grew by %.0f bytes, the formula gives %.0f",
                         ls_dtype_name(wire), grown, expected);
}

static ls_status test_peak(ls_comm *world, int zero, ls_dtype wire) {
    double bytes = 0;
    LS_TRY(train(world, zero, wire, WIDTH, &bytes));
    const double expected = formula(zero, wire, ls_comm_size(world));
    return bytes >= 0.97 * expected && bytes <= 1.03 * expected
               ? LS_OK
               : ls_fail(LS_ERR_INTERNAL, ".zero = %d, %s gradients: the peak is %.0f bytes, the formula gives %.0f",
                         zero, ls_dtype_name(wire), bytes, expected);
}

ls_status rank_test(ls_comm *world) {
    LS_TRY(test_resident(world, LS_F32)); /* first, because the peak counts the whole process */
    LS_TRY(test_resident(world, LS_BF16));
    for (int zero = 0; zero <= 3; zero++) {
        LS_TRY(test_peak(world, zero, LS_F32));
        LS_TRY(test_peak(world, zero, LS_BF16));
    }
    return LS_OK;
}
