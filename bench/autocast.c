/*
 * Measures the gain of ls_autocast: training steps of a perceptron (784-2048-2048-10, batches of 256, Adam) alternate
 * between f32 and bf16 in one process. Prints the median milliseconds per step of both, and the median of the ratios.
 */
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/lockstep.h>

#include "median.h"

enum { FEATURES = 784, WIDTH = 2048, CLASSES = 10, BATCH = 256, STEPS = 4, ROUNDS = 15 };

typedef struct work {
    ls_module *model;
    ls_optimizer *optimizer;
    ls_tensor *input, *target;
} work;

static ls_status set_up(work *w) {
    ls_seed(1);
    w->input = ls_keep(ls_randn(LS_SHAPE(BATCH, FEATURES), LS_F32));
    w->target = ls_keep(ls_to(ls_mul(ls_rand(LS_SHAPE(BATCH), LS_F32), CLASSES), LS_I64));
    w->model = ls_sequential(ls_nn_linear(FEATURES, WIDTH), ls_nn_relu(), ls_nn_linear(WIDTH, WIDTH), ls_nn_relu(),
                             ls_nn_linear(WIDTH, CLASSES));
    w->optimizer = ls_adam(w->model, &(ls_adam_options){.learning_rate = 1e-4});
    return w->target != NULL && w->input != NULL && w->optimizer != NULL ? LS_OK : ls_error_status();
}

static ls_status step(const work *w, ls_dtype dtype) {
    ls_optimizer_zero_grad(w->optimizer);
    ls_scope *scope = ls_scope_begin();
    const ls_dtype before = ls_autocast(dtype);
    ls_tensor *loss = ls_cross_entropy(ls_forward(w->model, w->input), w->target, NULL);
    (void)ls_autocast(before);
    ls_status status = ls_backward(loss);
    const ls_status ended = ls_scope_end(scope);
    status = status == LS_OK ? ended : status;
    return status == LS_OK ? ls_optimizer_step(w->optimizer) : status;
}

static ls_status run(const work *w, ls_dtype dtype, double *ms) {
    const double began = ls_clock_seconds();
    for (int i = 0; i < STEPS; i++) {
        const ls_status status = step(w, dtype);
        if (status != LS_OK) {
            return status;
        }
    }
    *ms = (ls_clock_seconds() - began) * 1e3 / STEPS;
    return LS_OK;
}

static ls_status measure(const work *w) {
    double single[ROUNDS], half[ROUNDS], ratio[ROUNDS];
    ls_status status = run(w, LS_F32, single);
    status = status == LS_OK ? run(w, LS_BF16, half) : status; /* warm-up: oneDNN generates its code */
    for (int round = 0; round < ROUNDS && status == LS_OK; round++) {
        status = run(w, LS_F32, &single[round]);
        status = status == LS_OK ? run(w, LS_BF16, &half[round]) : status;
        ratio[round] = single[round] / half[round];
    }
    if (status == LS_OK) {
        printf("a step in f32: %.2f ms, in bf16: %.2f ms, ratio %.2f (medians of %d)\n", median(single, ROUNDS),
               median(half, ROUNDS), median(ratio, ROUNDS), ROUNDS);
    }
    return status;
}

int main(void) {
    work w = {0};
    ls_scope *scope = ls_scope_begin();
    if (set_up(&w) != LS_OK || measure(&w) != LS_OK) {
        fprintf(stderr, "autocast: %s\n", ls_error_message());
        return 1;
    }
    ls_optimizer_free(w.optimizer);
    ls_module_free(w.model);
    ls_release(w.input);
    ls_release(w.target);
    return ls_scope_end(scope) == LS_OK ? 0 : 1;
}
