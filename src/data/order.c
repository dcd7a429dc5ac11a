#include "data/order.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/random.h"

void ls_order_identity(int64_t *order, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        order[i] = i;
    }
}

/*
 * Fisher-Yates shuffle (Knuth, The Art of Computer Programming, vol. 2, algorithm 3.4.2P). Step i uses random number
 * base + i of the stream.
 */
static void shuffle(int64_t *order, int64_t count, uint64_t seed, uint64_t stream, uint64_t base) {
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t j = (int64_t)ls_random_below(seed, stream, base + (uint64_t)i, (uint64_t)i + 1);
        const int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

void ls_order_shuffle(int64_t *order, int64_t count, uint64_t seed, uint64_t stream) {
    shuffle(order, count, seed, stream, 0);
}

/*
 * Samples by inversion (Devroye, Non-Uniform Random Variate Generation, 1986, section III.2): takes the first sample
 * whose cumulative weight exceeds a uniform random number times the total. Draw i uses random number i of the stream.
 */
void ls_order_draw(int64_t *order, int64_t count, const double *sums, int64_t n, uint64_t seed, uint64_t stream) {
    for (int64_t i = 0; i < count; i++) {
        const double share = ls_random_uniform(seed, stream, (uint64_t)i) * sums[n - 1];
        int64_t low = 0;
        int64_t high = n - 1;
        while (low < high) {
            const int64_t middle = low + (high - low) / 2;
            if (sums[middle] > share) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        order[i] = low;
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* The samples before the first complete block form block 0. */
static int64_t block_of(const ls_block_order *self, int64_t sample) {
    return self->first == 0       ? sample / self->block
           : sample < self->first ? 0
                                  : 1 + (sample - self->first) / self->block;
}

static int64_t begin_of(const ls_block_order *self, int64_t block) {
    return self->first == 0 ? block * self->block : block == 0 ? 0 : self->first + (block - 1) * self->block;
}

/* Sorted by `major`, then by `minor`. All keys differ. */
struct ls_sort_key {
    double major, minor;
    int64_t sample;
};

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Returns the number of samples in a window. The last windows may contain fewer. */
static int64_t window_samples(const ls_block_order *self, int64_t count) {
    return self->window < count / self->block ? self->window * self->block : count;
}

ls_status ls_block_order_make(ls_block_order *self, int64_t count) {
    const int64_t samples = window_samples(self, count), batch = smaller(self->batch, count);
    self->blocks = count > 0 ? block_of(self, count - 1) + 1 : 0;
    self->window = smaller(self->window, self->blocks > 0 ? self->blocks : 1);
    const size_t blocks = (size_t)self->blocks, keys = (size_t)(samples > batch ? samples : batch);
    self->ids = ls_allocate_zeroed(blocks, sizeof *self->ids);
    self->positions = ls_allocate_zeroed(blocks, sizeof *self->positions);
    self->keys = ls_allocate_zeroed(keys, sizeof *self->keys);
    return self->ids != NULL && self->positions != NULL && self->keys != NULL
               ? LS_OK
               : ls_fail_memory("ls_loader_new", 2 * blocks * sizeof *self->ids + keys * sizeof *self->keys);
}

void ls_block_order_free(ls_block_order *self) {
    ls_free(self->ids);
    ls_free(self->positions);
    ls_free(self->keys);
}

static int compare_keys(const void *a, const void *b) {
    const struct ls_sort_key *x = a, *y = b;
    return x->major != y->major ? (x->major > y->major) - (x->major < y->major)
                                : (x->minor > y->minor) - (x->minor < y->minor);
}

static void sort_by_keys(const ls_block_order *self, int64_t *order, int64_t count) {
    qsort(self->keys, (size_t)count, sizeof *self->keys, compare_keys);
    for (int64_t i = 0; i < count; i++) {
        order[i] = self->keys[i].sample;
    }
}

/*
 * Sorts the samples of a global batch by the position of their block in the window. Ranks have contiguous shares of the
 * batch, so each rank needs the same few blocks of the window for all batches. Without the sort, every rank would read
 * all blocks.
 */
static void sort_batch(const ls_block_order *self, int64_t *batch, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const int64_t position = self->positions[block_of(self, batch[i])];
        self->keys[i] = (struct ls_sort_key){(double)(position % self->window), (double)i, batch[i]};
    }
    sort_by_keys(self, batch, count);
}

/*
 * Writes the shuffled samples of a block, and their sort keys within the window: sample i of n gets a random key
 * between i / n and (i + 1) / n. Every batch thus draws evenly from the blocks of the window. `done` samples are
 * already ordered. Returns the number of samples in the block.
 */
static int64_t put_block(const ls_block_order *self, int64_t number, int64_t done, int64_t count, uint64_t seed,
                         uint64_t stream, int64_t *order, struct ls_sort_key *keys) {
    const int64_t begin = begin_of(self, number), end = begin_of(self, number + 1);
    const int64_t size = smaller(end, count) - begin;
    const uint64_t base = (uint64_t)(self->blocks + done); /* earlier random numbers are used elsewhere */
    for (int64_t i = 0; i < size; i++) {
        order[i] = begin + i;
    }
    shuffle(order, size, seed, stream, base);
    for (int64_t i = 0; i < size; i++) {
        const double within = ls_random_uniform(seed, stream, base + (uint64_t)(count + i));
        keys[i] = (struct ls_sort_key){((double)i + within) / (double)size, (double)(done + i), order[i]};
    }
    return size;
}

void ls_block_order_fill(ls_block_order *self, int64_t *order, int64_t count, uint64_t seed, uint64_t stream) {
    ls_order_identity(self->ids, self->blocks);
    shuffle(self->ids, self->blocks, seed, stream, 0);
    int64_t begin = 0, done = 0; /* the first sample of the window, and the number of samples that are ordered */
    for (int64_t i = 0; i < self->blocks; i++) {
        self->positions[self->ids[i]] = i;
        done += put_block(self, self->ids[i], done, count, seed, stream, order + done, self->keys + (done - begin));
        if ((i + 1) % self->window == 0 || i + 1 == self->blocks) {
            sort_by_keys(self, order + begin, done - begin);
            begin = done;
        }
    }
    for (int64_t first = 0; first < count; first += self->batch) {
        sort_batch(self, order + first, smaller(count - first, self->batch));
    }
}
