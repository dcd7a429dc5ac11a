/*
 * Threads that make batches in advance. Batch b is always made by thread b % threads, into slot b % slots, and each
 * thread has the same number of slots. So a thread always reuses memory that it allocated, and a steady state allocates
 * nothing. All waiting uses one condition under one lock.
 */
#ifndef LS_DATA_PREFETCH_H
#define LS_DATA_PREFETCH_H

#include <lockstep/data.h>

/* Makes a batch, on any thread. *input and *target are NULL or an earlier batch's tensors, which may be reused. */
typedef ls_status ls_make_batch(void *user, int64_t number, ls_tensor **input, ls_tensor **target);

typedef struct ls_prefetch ls_prefetch;

/*
 * Creates a prefetcher with this number of threads, which make up to `ahead` batches in advance. The threads start with
 * the first batch. Their log lines name `rank` (-1: no rank). Returns NULL with an error.
 */
ls_prefetch *ls_prefetch_new(int threads, int64_t ahead, int rank, ls_make_batch *make, void *user);

/*
 * Waits for batch `number` of `count`. It is valid until the next call. After a number that does not follow the
 * previous one, the threads restart there, so a failed batch can be requested again. A failure has the message of
 * `make`. `lent`: the program got the tensors of the previous batch, not copies, so that batch gets new tensor records.
 */
ls_status ls_prefetch_take(ls_prefetch *self, int64_t number, int64_t count, bool lent, ls_tensor **input,
                           ls_tensor **target);

/* Waits until no batch is being made. None is made until the next ls_prefetch_take. NULL is allowed. */
void ls_prefetch_halt(ls_prefetch *self);

/* Stops the threads and frees the prefetcher. NULL is allowed. */
void ls_prefetch_free(ls_prefetch *self);

#endif
