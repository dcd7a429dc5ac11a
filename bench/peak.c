/*
 * Measures the peak rate of one core in 32-bit matrix products, in GFLOP/s. bench/run reports percentages of this rate.
 */
#include <stdio.h>

#include <lockstep/autograd.h>

enum { SIDE = 1536, ROUNDS = 9 };

int main(void) {
    ls_scope *scope = ls_scope_begin();
    ls_tensor *a = ls_rand(LS_SHAPE(SIDE, SIDE), LS_F32);
    ls_tensor *b = ls_rand(LS_SHAPE(SIDE, SIDE), LS_F32);
    double best = 0;
    for (int i = 0; i < ROUNDS; i++) {
        const double began = ls_clock_seconds();
        ls_release(ls_matmul(a, b));
        const double speed = 2.0 * SIDE * SIDE * SIDE / (ls_clock_seconds() - began) * 1e-9;
        best = speed > best ? speed : best;
    }
    if (ls_scope_end(scope) != LS_OK) {
        fprintf(stderr, "peak: %s\n", ls_error_message());
        return 1;
    }
    printf("%.0f\n", best);
    return 0;
}
