/*
 * Threads that make batches in advance. Thread b % threads always makes batch b, in slot b % slots. Each thread has the
 * same number of slots, so it always reuses memory that it allocated, and allocates nothing in the steady state. All
 * waiting uses one condition variable and one lock.
 */
#ifndef LS_DATA_PREFETCH_H
#define LS_DATA_PREFETCH_H

#include <lockstep/data.h>

/* Makes a batch, on any thread. *input and *target are NULL, or tensors of an earlier batch that may be reused. */
typedef ls_status ls_make_batch(void *user, int64_t number, ls_tensor **input, ls_tensor **target);

typedef struct ls_prefetch ls_prefetch;

/*
 * Creates a prefetcher with `threads` threads, which make up to `ahead` batches in advance. The threads start with the
 * first batch. Their log lines name `rank` (-1 for no rank). Returns NULL with an error.
 */
ls_prefetch *ls_prefetch_new(int threads, int64_t ahead, int rank, ls_make_batch *make, void *user);

/*
 * Waits for batch `number` of `count`. The batch is valid until the next call. If `number` does not follow the previous
 * number, the threads restart at `number`, so a failed batch can be requested again. On failure, the error message is
 * the `user` of `make`. `lent` means that the program got the tensors of the previous batch, not copies, so the next
 * batch in that slot gets new tensor records.
 */
ls_status ls_prefetch_take(ls_prefetch *self, int64_t number, int64_t count, bool lent, ls_tensor **input,
                           ls_tensor **target);

/* Waits until no batch is being made. Until the next ls_prefetch_take, no batch is made. NULL is allowed. */
void ls_prefetch_halt(ls_prefetch *self);

/* Stops the threads and frees the prefetcher. NULL is allowed. */
void ls_prefetch_free(ls_prefetch *self);

#endif
