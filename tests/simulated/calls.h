/* Calls that all ranks of a simulated network describe alike: what each of them passes to the engine, and must get. */
#ifndef LS_TESTS_SIMULATED_CALLS_H
#define LS_TESTS_SIMULATED_CALLS_H

#include "comm/backend.h"

/* Each rank sends to the next one, and receives from the one before: of what is no ls_operation. */
enum { CALL_RING = LS_OP_COUNT, CALL_OPERATIONS };

/* A call, as all ranks know it. Calls with counts per rank have their own from `seed`. */
typedef struct call_plan {
    int operation;
    ls_dtype dtype;
    ls_reduction reduction;
    size_t count;
    int root;
    uint64_t seed;
} call_plan;

/* A rank's side of it. */
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

/* A random number below `most`. */
uint64_t call_draw(uint64_t *state, uint64_t most);

/* A random call of so many ranks: of any operation but alloc and split, with at most so many bytes in a rank's buffer.
 * With many ranks, and not `all`, one of few messages. */
#define CALL_MOST_BYTES ((size_t)200000)
call_plan call_plan_draw(uint64_t seed, int size, size_t most_bytes, bool all);

/* Whether the call reduces, and what it reduces to, all of it: the caller's. */
bool call_reduces(const call_plan *plan);
unsigned char *call_reduce(const call_plan *plan, int size);

/* Bytes of an element. */
size_t call_width(const call_plan *plan);

/* Makes a rank's buffers and its ls_call, of that number; call_side_end frees them. */
void call_side_begin(call_side *side, const call_plan *plan, int size, int rank, uint64_t sequence);
void call_side_end(call_side *side);

/* Writes what the rank must receive, as far as anything is to. `reduced`: of call_reduce. */
void call_side_expect(const call_side *side, const unsigned char *reduced, unsigned char *wanted);

/* Whether the rank has what it must receive, and nothing else was written to. `reduced`: of call_reduce. */
bool call_side_is_right(const call_side *side, const unsigned char *reduced);

#endif
