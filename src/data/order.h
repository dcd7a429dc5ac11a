/* Orders of samples: functions of a seed and a stream, equal on every rank and in every call. */
#ifndef LS_DATA_ORDER_H
#define LS_DATA_ORDER_H

#include <stdint.h>

/* order[i] = i */
void ls_order_identity(int64_t *order, int64_t count);

/* Shuffles `order`. */
void ls_order_shuffle(int64_t *order, int64_t count, uint64_t seed, uint64_t stream);

/*
 * Fills `order` with draws from samples 0 .. n-1, with replacement. sums[i] is the sum of the weights of samples 0 to
 * i.
 */
void ls_order_draw(int64_t *order, int64_t count, const double *sums, int64_t n, uint64_t seed, uint64_t stream);

#endif
