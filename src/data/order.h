/* Sample orders. Each order depends only on a seed and a stream, so it is the same on every rank and in every call. */
#ifndef LS_DATA_ORDER_H
#define LS_DATA_ORDER_H

#include <stdint.h>

#include "base/status.h"

/* order[i] = i */
void ls_order_identity(int64_t *order, int64_t count);

/* Shuffles order[0 .. count-1]. */
void ls_order_shuffle(int64_t *order, int64_t count, uint64_t seed, uint64_t stream);

/*
 * Fills `order` with draws from samples 0 .. n-1, with replacement. sums[i] is the sum of the weights of samples 0 to
 * i.
 */
void ls_order_draw(int64_t *order, int64_t count, const double *sums, int64_t n, uint64_t seed, uint64_t stream);

/*
 * The order of a block-wise shuffle. Blocks of consecutive samples are shuffled; `window` consecutive blocks of this
 * order form a window. Each batch of a window has about the same number of samples from each block of the window, in
 * random order.
 */
typedef struct ls_block_order {
    int64_t block;  /* samples per block */
    int64_t first;  /* samples before the first complete block */
    int64_t window; /* blocks */
    int64_t batch;  /* samples in a global batch, which is sorted by block */
    int64_t blocks;
    int64_t *ids;             /* blocks in the order of the epoch */
    int64_t *positions;       /* position of each block in `ids` */
    struct ls_sort_key *keys; /* sort keys of a window or a batch */
} ls_block_order;

/* Allocates memory for `count` samples. Free it with ls_block_order_free, even on failure. */
ls_status ls_block_order_make(ls_block_order *self, int64_t count);
void ls_block_order_free(ls_block_order *self);

/* Fills order[0 .. count-1]; `count` is the same as for ls_block_order_make. */
void ls_block_order_fill(ls_block_order *self, int64_t *order, int64_t count, uint64_t seed, uint64_t stream);

#endif
