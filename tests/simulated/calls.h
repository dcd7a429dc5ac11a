/*
 * Calls on a simulated network, with the same description on all ranks: each rank's arguments for the engine, and its
 * expected results.
 */
#ifndef LS_TESTS_SIMULATED_CALLS_H
#define LS_TESTS_SIMULATED_CALLS_H

#include "comm/backend.h"

/* Each rank sends to the next rank and receives from the previous rank. It is not an ls_operation. */
enum { CALL_RING = LS_OP_COUNT, CALL_OPERATIONS };

/* A call, with the same description on all ranks. Calls with counts per rank draw the counts from `seed`. */
typedef struct call_plan {
    int operation;
    ls_dtype dtype;
    ls_reduction reduction;
    size_t count;
    int root;
    uint64_t seed;
} call_plan;

/* One rank's side of a call. */
typedef struct call_side {
    call_plan plan;
    int size;
    int rank;
    ls_call call;
    unsigned char *send;
    unsigned char *receive;
    size_t *counts[4];
    size_t receive_bytes;
} call_side;

/* Returns a random number below `most`. */
uint64_t call_draw(uint64_t *state, uint64_t most);

/*
 * Returns a random call of `ranks` ranks: any operation except alloc and split, with at most CALL_MOST_BYTES bytes in a
 * rank's buffer. With many ranks, and unless `all` is set, the call needs few messages.
 */
#define CALL_MOST_BYTES ((size_t)200000)
call_plan call_plan_draw(uint64_t seed, int size, size_t most_bytes, bool all);

/* Return whether the call reduces, and the complete result of the reduction, which the caller frees. */
bool call_reduces(const call_plan *plan);
unsigned char *call_reduce(const call_plan *plan, int size);

/* Returns the size of an element in bytes. */
size_t call_width(const call_plan *plan);

/* Create a rank's buffers and its ls_call with this sequence number, and free them. */
void call_side_begin(call_side *side, const call_plan *plan, int size, int rank, uint64_t sequence);
void call_side_end(call_side *side);

/* Writes the data that the rank must receive, if any. `reduced` is the result of call_reduce. */
void call_side_expect(const call_side *side, const unsigned char *reduced, unsigned char *wanted);

/* Returns whether the rank received the expected data, and no other memory was changed. `reduced` is the result of
 * call_reduce. */
bool call_side_is_right(const call_side *side, const unsigned char *reduced);

#endif
