/*
 * One call of a test, on every rank: its buffers with the data to send, the call itself, and a check of the buffers and
 * the memory around them afterwards. All ranks describe the same step, which determines the data that each must receive
 * (support/reference.h). The conformance list and the random programs are sequences of steps.
 */
#ifndef LS_TESTS_SUPPORT_STEPS_H
#define LS_TESTS_SUPPORT_STEPS_H

#include <lockstep/comm.h>

enum { STEP_RANKS_MOST = 16 };

typedef enum step_call {
    STEP_BARRIER,
    STEP_BROADCAST,
    STEP_ALLREDUCE,
    STEP_REDUCE,
    STEP_REDUCE_SCATTER,
    STEP_REDUCE_SCATTERV,
    STEP_GATHER,
    STEP_GATHERV,
    STEP_ALLGATHER,
    STEP_ALLGATHERV,
    STEP_SCATTER,
    STEP_SCATTERV,
    STEP_ALLTOALL,
    STEP_ALLTOALLV,
    STEP_MESSAGE, /* from rank `root` to rank `other` */
    STEP_RING,    /* from each rank r to rank r + `root`, all at once */
    STEP_CALLS
} step_call;

/* Return whether the call reduces, and whether it has counts per rank. */
bool step_reduces(step_call call);
bool step_varies(step_call call);

/* Elements of one side of a call, by rank of the other side. */
typedef struct step_parts {
    size_t counts[STEP_RANKS_MOST];
    size_t places[STEP_RANKS_MOST]; /* in elements from the start of the buffer */
    size_t elements;                /* of the whole buffer, including gaps */
} step_parts;

typedef struct step {
    /* The call: the same on all ranks. */
    step_call call;
    ls_comm *comm;
    ls_dtype dtype;
    ls_reduction reduction;
    size_t count; /* the count of the call; with counts per rank, the maximum count */
    int root;
    int other;
    int tag;
    uint64_t seed; /* of the contents and of the counts per rank */
    bool in_place; /* if the call supports it */
    bool own_part; /* for in-place reduce-scatter: at the rank's own part, not at the start */
    bool gaps;     /* with counts per rank: parts are apart and in reverse order */

    /* How this rank makes the call. */
    bool later;            /* as work */
    size_t shift;          /* bytes of misalignment */
    unsigned char *shared; /* step_room bytes of ls_comm_alloc for the buffers; NULL selects ordinary memory */

    /* Between begin and end. */
    step_parts out;
    step_parts in;
    unsigned char *block; /* guard, sent data, guard, received data, guard */
    unsigned char *image; /* the expected final contents of the block */
    size_t bytes;
    unsigned char *send;
    unsigned char *receive;
    ls_work *works[2];
} step;

/* Returns the size in bytes of `shared` for any step of up to `count` elements of `width` bytes on `ranks` ranks. */
size_t step_room(int ranks, size_t count, size_t width);

/* Makes the call. Do not move the step until step_end. Errors begin with a description of the step. */
ls_status step_begin(step *s);

/*
 * Waits for the call and checks all of its memory. If it differs, fails with LS_ERR_INTERNAL and a description of the
 * step.
 */
ls_status step_end(step *s);

/* Lays out the buffers and the expected result. This and the next functions are parts of a step, for calls that must
 * fail. */
ls_status step_prepare(step *s);

/* Expects unchanged buffers from now on. */
void step_expect_nothing(step *s);

/* Makes only the call, and returns its own error. If `work` is NULL, waits for the call. */
ls_status step_make(step *s, ls_work **work);

/* Only checks the memory, and frees it. */
ls_status step_verify(step *s);

/* Frees the memory without a check. */
void step_discard(step *s);

/* Returns the number of elements from rank `from` to rank `to`; for a reduction, the number that `to` receives. */
size_t step_piece(const step *s, int from, int to);

/* Returns the name of the public call, such as "broadcast", or "message" or "ring" for sends and receives. */
const char *step_name(step_call call);

/* Writes a description of the step, and returns `text`. */
const char *step_describe(const step *s, char *text, size_t capacity);

#endif
