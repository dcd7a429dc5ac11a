/*
 * Threads that make batches before they are asked for. Batch b is always made by thread b % threads, into slot
 * b % slots, of which each thread has as many: so memory that a thread took is what it takes again, whoever used it in
 * between, and a steady state allocates nothing. All waiting is for one condition, under one lock.
 */
#ifndef LS_DATA_PREFETCH_H
#define LS_DATA_PREFETCH_H

#include <lockstep/data.h>

/* Makes a batch, on any thread. *input and *target are NULL or those that were made before, which may be used again. */
typedef ls_status ls_make_batch(void *user, int64_t number, ls_tensor **input, ls_tensor **target);

typedef struct ls_prefetch ls_prefetch;

/* With so many threads, which make up to `ahead` batches before they are asked for; the threads start with the first
 * batch. Their lines of the log are those of `rank` (-1: of none). NULL with an error. */
ls_prefetch *ls_prefetch_new(int threads, int64_t ahead, int rank, ls_make_batch *make, void *user);

/*
 * Waits for batch `number` of `count`, and lends it until the next call. A number that does not follow the one before
 * begins anew there, so one that failed, in the words of its making, can be asked for again. `lent`: the program got
 * the tensors of the batch before, not copies of them, so that batch gets new records.
 */
ls_status ls_prefetch_take(ls_prefetch *self, int64_t number, int64_t count, bool lent, ls_tensor **input,
                           ls_tensor **target);

/* When it returns nothing is being made, nor will be before ls_prefetch_take. NULL is allowed. */
void ls_prefetch_halt(ls_prefetch *self);

/* Ends the threads. NULL is allowed. */
void ls_prefetch_free(ls_prefetch *self);

#endif
