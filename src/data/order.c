#include "data/order.h"

#include "base/random.h"

void ls_order_identity(int64_t *order, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        order[i] = i;
    }
}

/*
 * Fisher-Yates shuffle (Knuth, The Art of Computer Programming, vol. 2, algorithm 3.4.2P). Number i of the stream
 * decides step i.
 */
void ls_order_shuffle(int64_t *order, int64_t count, uint64_t seed, uint64_t stream) {
    for (int64_t i = count - 1; i > 0; i--) {
        const int64_t j = (int64_t)ls_random_below(seed, stream, (uint64_t)i, (uint64_t)i + 1);
        const int64_t kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/*
 * By inversion (Devroye, Non-Uniform Random Variate Generation, 1986, section III.2): takes the first sample whose
 * cumulative weight exceeds a uniform number times the total. Number i of the stream decides draw i.
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
