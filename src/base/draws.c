#include "base/draws.h"

#include <math.h>

#include "base/random.h"

/* Each draw has its own 4 indices: a uniform or normal number uses at most this many words. */
static uint64_t next(ls_draws *draws) {
    return 4 * draws->drawn++;
}

double ls_draw_uniform(ls_draws *draws) {
    return ls_random_uniform(draws->seed, draws->stream, next(draws));
}

int64_t ls_draw_below(ls_draws *draws, int64_t bound) {
    return (int64_t)ls_random_below(draws->seed, draws->stream, next(draws), (uint64_t)bound);
}

double ls_draw_normal(ls_draws *draws) {
    return ls_random_normal(draws->seed, draws->stream, next(draws));
}

/*
 * Draws the logarithm of a number from Gamma(alpha, 1), by the method of Marsaglia and Tsang (ACM Transactions on
 * Mathematical Software 26, 2000). For alpha below 1, it scales a number from Gamma(alpha + 1, 1) by u^(1/alpha).
 */
static double draw_log_gamma(ls_draws *draws, double alpha) {
    const double shape = alpha < 1 ? alpha + 1 : alpha;
    const double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    double v, x;
    do {
        x = ls_draw_normal(draws);
        v = 1 + c * x;
        v = v * v * v;
    } while (v <= 0 || log1p(-ls_draw_uniform(draws)) >= x * x / 2 + d - d * v + d * log(v));
    return log(d * v) + (alpha < 1 ? log1p(-ls_draw_uniform(draws)) / alpha : 0);
}

double ls_draw_beta(ls_draws *draws, double alpha) {
    const double x = draw_log_gamma(draws, alpha), y = draw_log_gamma(draws, alpha);
    return 1 / (1 + exp(y - x));
}
