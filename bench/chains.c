/*
 * Measures the speedup of a captured step of element-wise operations, which a replay computes piece by piece:
 * the step's function and replays alternate in one process. Prints the median milliseconds per step of both, and the
 * median of the ratios, for the value of an expression and for a loss with its gradient.
 *
 *     chains [ELEMENTS [ROUNDS]]
 */
#include <stdio.h>
#include <stdlib.h>

#include <lockstep/lockstep.h>

#include "median.h"

enum { MOST_ROUNDS = 101 };

typedef struct work {
    ls_tensor *x, *y, *z;
    int rounds, steps; /* steps per round */
} work;

/* (0.5 (x y + z) + x) y - z */
static ls_tensor *value(void *user) {
    const work *w = user;
    ls_tensor *inner = ls_mul(ls_add(ls_mul(w->x, w->y), w->z), 0.5);
    return ls_sub(ls_mul(ls_add(inner, w->x), w->y), w->z);
}

/* The mean of (y tanh(x y + z) - z)^2, and its gradient with respect to x. */
static ls_tensor *gradient(void *user) {
    const work *w = user;
    ls_zero_grad(w->x);
    ls_tensor *inner = ls_tanh(ls_add(ls_mul(w->x, w->y), w->z));
    ls_tensor *loss = ls_mean(ls_square(ls_sub(ls_mul(inner, w->y), w->z)));
    return ls_backward(loss) == LS_OK ? loss : NULL;
}

static ls_status run(const work *w, ls_step_function function, ls_step *step, double *ms) {
    const double began = ls_clock_seconds();
    for (int i = 0; i < w->steps; i++) {
        ls_status status = LS_OK;
        if (step != NULL) {
            status = ls_step_replay(step);
        } else {
            ls_scope *scope = ls_scope_begin();
            (void)function((void *)w);
            status = ls_scope_end(scope);
        }
        if (status != LS_OK) {
            return status;
        }
    }
    *ms = (ls_clock_seconds() - began) * 1e3 / w->steps;
    return LS_OK;
}

static ls_status measure(work *w, const char *name, ls_step_function function) {
    double by_function[MOST_ROUNDS], by_replay[MOST_ROUNDS], ratio[MOST_ROUNDS];
    ls_step *step = ls_step_capture(function, w, NULL);
    ls_status status = step != NULL ? LS_OK : ls_error_status();
    for (int round = 0; round < w->rounds && status == LS_OK; round++) {
        status = run(w, function, NULL, &by_function[round]);
        status = status == LS_OK ? run(w, function, step, &by_replay[round]) : status;
        ratio[round] = status == LS_OK ? by_function[round] / by_replay[round] : 0;
    }
    ls_step_free(step);
    if (status == LS_OK) {
        printf("%s: function %.3f ms, replay %.3f ms, ratio %.2f\n", name, median(by_function, w->rounds),
               median(by_replay, w->rounds), median(ratio, w->rounds));
    }
    return status;
}

int main(int argc, char **argv) {
    const long elements = argc > 1 ? atol(argv[1]) : 1000000, rounds = argc > 2 ? atol(argv[2]) : 15;
    if (elements < 1 || rounds < 1 || rounds > MOST_ROUNDS) {
        fprintf(stderr, "usage: chains [ELEMENTS [ROUNDS]], with 1 element or more and 1 to %d rounds\n", MOST_ROUNDS);
        return 2;
    }
    work w = {.rounds = (int)rounds, .steps = elements < 10000000 ? (int)(10000000 / elements) : 1};
    w.x = ls_rand(LS_SHAPE(elements), LS_F32);
    w.y = ls_rand(LS_SHAPE(elements), LS_F32);
    w.z = ls_rand(LS_SHAPE(elements), LS_F32);
    ls_status status = measure(&w, "value", value);
    if (status == LS_OK) {
        status = ls_set_requires_grad(w.x, true);
        status = status == LS_OK ? measure(&w, "gradient", gradient) : status;
    }
    if (status != LS_OK) {
        fprintf(stderr, "chains: %s\n", ls_error_message());
    }
    ls_release(w.x);
    ls_release(w.y);
    ls_release(w.z);
    return status == LS_OK ? 0 : 1;
}
