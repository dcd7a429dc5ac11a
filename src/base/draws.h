/* Sequences of random numbers. A number is a function of the seed, the stream and its index in the sequence. */
#ifndef LS_BASE_DRAWS_H
#define LS_BASE_DRAWS_H

#include <stdint.h>

typedef struct ls_draws {
    uint64_t seed;
    uint64_t stream;
    uint64_t drawn; /* numbers so far */
} ls_draws;

/* Returns the start of a sequence. Uses that share a seed have different values of `salt`. */
static inline ls_draws ls_draws_salted(uint64_t seed, uint64_t salt, uint64_t stream) {
    return (ls_draws){.seed = seed + salt * 0x9E3779B97F4A7C15U, .stream = stream};
}

/* Draws a uniform number in [0, 1). */
double ls_draw_uniform(ls_draws *draws);
/* Draws an integer in [0, bound). */
int64_t ls_draw_below(ls_draws *draws, int64_t bound);
/* Draws a normal number with mean 0 and standard deviation 1. */
double ls_draw_normal(ls_draws *draws);
/* Draws a number from Beta(alpha, alpha). */
double ls_draw_beta(ls_draws *draws, double alpha);

#endif
