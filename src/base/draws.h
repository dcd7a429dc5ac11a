/* Random numbers drawn one after the other for one thing: functions of what it is, and of how many were drawn. */
#ifndef LS_BASE_DRAWS_H
#define LS_BASE_DRAWS_H

#include <stdint.h>

typedef struct ls_draws {
    uint64_t seed;
    uint64_t stream;
    uint64_t drawn;
} ls_draws;

/* Those of a stream. `salt` differs from one purpose of random numbers to another, where they have one seed. */
static inline ls_draws ls_draws_salted(uint64_t seed, uint64_t salt, uint64_t stream) {
    return (ls_draws){.seed = seed + salt * 0x9E3779B97F4A7C15U, .stream = stream};
}

/* From 0 to below 1. */
double ls_draw_uniform(ls_draws *draws);
/* From 0 to below `bound`. */
int64_t ls_draw_below(ls_draws *draws, int64_t bound);
/* Of mean 0 and deviation 1. */
double ls_draw_normal(ls_draws *draws);
/* From Beta(alpha, alpha). */
double ls_draw_beta(ls_draws *draws, double alpha);

#endif
